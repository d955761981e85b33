"""A native root on an object store: no directories and no lock; commits name the objects that hold the records.

    __cluster_metadata-0/     the commit log (metadata/objects)
    data/                     data objects, each of one task of a write (storage/objects)

A write adds runs to the partitions (metadata/extents), which readers find in the image. A commit that loses the race
for its name applies the winner's changes and is made again, with its objects as they are. What deleted topics leave is
dropped by the commit that deletes them, and deleted by the clean-up after file.delete.delay.ms.

A root is created in a store that is probed first (object_store/retries.py), in this order, each object if it is absent:
the marker, meta.properties, `kafkalog-start`, the first commit. After a crash between two of them, the next
`create_object_root` finishes the root with the ids that are there. Of several that create at the same time one makes
the first commit, with the ids that all find; the others are refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import CommitConflictError, KafkalogError, LogDirError, ReadOnlyLogDirError
from pyspark_kafkalog.metadata.commit_log import CommitLogTail, LoadedImage
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, TopicImage
from pyspark_kafkalog.metadata.objects.backend import ObjectBackend, ObjectMetadataStore
from pyspark_kafkalog.metadata.objects.log import (
    MARKER_KEY,
    META_PROPERTIES_BYTES_MAX,
    START_KEY,
    encode_start,
    has_commits_from,
    name_of,
    parse_commit_key,
    parse_snapshot_key,
    read_if_there,
)
from pyspark_kafkalog.metadata.root_format import (
    METADATA_DIR,
    OBJECT_FORMAT_VERSION,
    OBJECT_MARKER,
    check_object_marker,
)
from pyspark_kafkalog.metadata.store import Clock, MetadataStore
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.retries import PROBE_FOLDER, Taken, Waiting, check_store, create_once
from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStore
from pyspark_kafkalog.root.admin import Build
from pyspark_kafkalog.root.bootstrap import DEFAULT_NODE_ID, first_records
from pyspark_kafkalog.root.commit.staged_write import commit_objects
from pyspark_kafkalog.root.commit.staging import ObjectStaging, Staged
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.root.writes import CommitResult, WriteTransaction
from pyspark_kafkalog.storage.artefacts.marker_files import (
    MetaProperties,
    RootIdentity,
    another_root_error,
    format_meta_properties,
    parse_meta_properties,
)
from pyspark_kafkalog.storage.filesystem import FlushMode, time_ms
from pyspark_kafkalog.storage.names import META_PROPERTIES, TopicPartition, random_uuid
from pyspark_kafkalog.storage.objects.upload import WrittenObject
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.commit.object_engine import ObjectEngine
    from pyspark_kafkalog.storage.log.log_state import LogState
    from pyspark_kafkalog.storage.log.producers import ProducerState
    from pyspark_kafkalog.storage.log.reader import PartitionExtents

#: Objects looked at to find whether a place is empty.
_OBJECTS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSnapshot(PartitionSnapshot):
    """One partition in the object store `objects`, as `store` has it."""

    store: MetadataStore = field(repr=False, compare=False)
    objects: ObjectStore = field(repr=False, compare=False)

    def extents(self) -> PartitionExtents:
        log = ObjectLog.of(self.store.image, self.topic_partition)
        return log.extents(self.objects, lambda: _newest(log, self.store))

    def stored_producers(self) -> Collection[ProducerState]:
        from pyspark_kafkalog.root.object_producers import producers_of  # not needed by readers

        try:
            found = producers_of(self.store.image, self.objects, self.topic_partition)
        except FileNotFoundError:  # the image is old: a merge has replaced the segment with the snapshot
            found = producers_of(self.store.refresh(), self.objects, self.topic_partition)
        return found.producers.values()


class ObjectRoot(NativeRoot):
    """One native root on an object store, as of its last `refresh`."""

    def __init__(self, address: StoreAddress, *, clock: Callable[[], int] = time_ms) -> None:
        self._address = address
        self._objects = address.open()
        self.directories: tuple[Path, ...] = ()
        self._planned: PlannedRoot | None = None  # of the last plan
        super().__init__(ObjectMetadataStore.open(self._objects, clock=clock), clock=clock)

    @classmethod
    def create(cls, address: StoreAddress, *, clock: Callable[[], int] = time_ms) -> ObjectRoot:
        """Create an empty root and open it. Raises as `create_object_root`."""
        create_object_root(address.open(), clock=clock)
        return cls(address, clock=clock)

    @staticmethod
    def is_vacant(address: StoreAddress) -> bool:
        """Whether a root can be created there."""
        return is_vacant_store(address.open())

    @property
    def path(self) -> ObjectLocation:
        return self._address.location

    @property
    def address(self) -> StoreAddress:
        """Where tasks find the store."""
        return self._address

    @property
    def objects(self) -> ObjectStore:
        """The store that holds the root."""
        return self._objects

    def _snapshot(self, topic: TopicImage, partition: PartitionImage) -> PartitionSnapshot:
        state = partition.state
        tail_base_offset, tail_bytes = _tail(partition)
        return ObjectSnapshot(
            topic=topic.name,
            partition=partition.partition,
            topic_id=topic.topic_id,
            local_directory=None,
            leader_epoch=state.leader_epoch,
            log_start_offset=state.log_start_offset,
            local_log_start_offset=state.log_start_offset,
            high_watermark=state.log_end_offset,
            log_end_offset=state.log_end_offset,
            stable=state.last_stable_offset,
            active_base_offset=tail_base_offset,
            active_size_bytes=tail_bytes,
            store=self._store,
            objects=self._objects,
        )

    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> PlannedObjects:
        image = self._store.image
        if self._planned is None or self._planned.version != image.next_offset:
            self._planned = PlannedRoot(self._address, self.identity, image.next_offset)
        return PlannedObjects(self._planned, ObjectLog.of(image, topic_partition), topic_id)

    def commit(self, build: Build, *, operation: str, frees_space: bool = False) -> None:
        self._store.commit(build, operation=operation, frees_space=frees_space)

    def _commit_topics(
        self, names: Callable[[], Collection[str]], build: Build, operation: str, *, frees_space: bool = False
    ) -> None:
        self.commit(build, operation=operation, frees_space=frees_space)

    def _is_ready(self, topic: str) -> bool:
        # A topic that was deleted meanwhile has another id, which the commit notices: no request for one that is known.
        return topic in self._store.image.topics or topic in self._store.refresh().topics

    def delete_topics(self, topics: Mapping[str, str | None]) -> tuple[KafkalogError | None, ...]:
        """Commit the deletions, which drop the topics' objects; the clean-up deletes them after their delay."""
        deletions = self._deletions(topics)
        self._store.refresh()
        self.commit(deletions.build, operation="delete topic", frees_space=True)
        return deletions.errors

    def commit_engine(
        self, *, flush: FlushMode = "fsync", operation: str = "append", following_id: str | None = None
    ) -> ObjectEngine:
        from pyspark_kafkalog.root.commit.object_engine import ObjectEngine  # not needed by readers

        return ObjectEngine(self, self._objects, operation=operation, following_id=following_id)

    def staging(self, write_id: str, *, flush: FlushMode = "fsync") -> ObjectStaging:
        return ObjectStaging(self._objects, write_id, 0, planned_at=self.version)

    def commit_staged(
        self, staged: Sequence[Staged], *, transaction: WriteTransaction | None = None, flush: FlushMode = "fsync"
    ) -> CommitResult:
        objects = [each for each in staged if isinstance(each, WrittenObject)]
        if len(objects) != len(staged):
            raise LogDirError("expected data objects, found staged files: the write was planned for a file system")
        return commit_objects(self._store, self._objects, objects, transaction)


def _tail(partition: PartitionImage) -> tuple[int, int]:
    """The first offset and the size in bytes of what is written last: the runs, or else the last segment."""
    if len(partition.runs):
        return int(partition.runs.table["base_offset"][0]), partition.runs.size_bytes
    if partition.segments:
        return partition.segments[-1].base_offset, partition.segments[-1].size_bytes
    return -1, -1


def _newest(log: ObjectLog, metadata: MetadataStore) -> ObjectLog:
    """`log` as of the newest commit. Raises ObjectNotFoundError if its topic was deleted, or created again since."""
    image = metadata.refresh()
    if image.state_of(log.topic_partition, log.topic_id) is None:
        raise ObjectNotFoundError(f"{metadata.location}: {log.topic_partition}: the topic was deleted meanwhile")
    return ObjectLog.of(image, log.topic_partition)


class PlannedRoot:
    """The root at `address`, as a plan knows it as of the metadata offset `version`.

    All partitions of a task share it, so that they ask the store only once. Can be pickled; what a process has found
    out stays in it.
    """

    def __init__(self, address: StoreAddress, identity: RootIdentity | None, version: int) -> None:
        self.address = address
        self.identity = identity
        self.version = version
        self._opened: MetadataStore | None = None
        self._has_later_commit: bool | None = None

    def __reduce__(self) -> tuple[type[PlannedRoot], tuple[StoreAddress, RootIdentity | None, int]]:
        return PlannedRoot, (self.address, self.identity, self.version)

    def later_state(self, topic_partition: TopicPartition, topic_id: str) -> LaterState | None:
        """The partition of the topic with that id as of a commit after the plan; None if there was no such commit.

        The answer is that of the first call: objects do not change and belong to one topic id, so commits during the
        task cannot add rows to it.
        """
        if self._has_later_commit is None:
            self._has_later_commit = has_commits_from(self.address.open(), self.version)
        if not self._has_later_commit:
            return None
        return LaterState(self.metadata.image.state_of(topic_partition, topic_id))

    def newest(self, log: ObjectLog) -> ObjectLog:
        """`log` as of the newest commit, after an object of it turned out to be gone. Raises ObjectNotFoundError."""
        self._has_later_commit = True
        return _newest(log, self.metadata)

    @property
    def metadata(self) -> MetadataStore:
        """The root's metadata, opened on first use."""
        if self._opened is None:
            self._opened = ObjectMetadataStore.open(self.address.open())
        return self._opened


@dataclass(frozen=True, slots=True)
class LaterState:
    """The state of a partition after a plan; None: its topic was deleted."""

    state: LogState | None


@dataclass(frozen=True)
class PlannedObjects:
    """A partition of `root`, as of a plan: `log` is its log as of then.

    `topic_id` is the id that the plan has for the topic; None: it is not to be checked.
    """

    root: PlannedRoot
    log: ObjectLog
    topic_id: str | None

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    def extents(self) -> PartitionExtents:
        root = self.root
        return self.log.extents(root.address.open(), lambda: root.newest(self.log))

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> PlannedObjects:
        return replace(self, log=self.log.part(start_offset, end_offset, committed=committed))

    def moved_log_start(self) -> int:
        later = self._later_state()
        return 0 if later is None or later.state is None else later.state.log_start_offset

    def is_same_topic(self) -> bool:
        if self.topic_id not in (None, self.log.topic_id):
            return False
        later = self._later_state()
        return later is None or later.state is not None

    def _later_state(self) -> LaterState | None:
        return self.root.later_state(self.topic_partition, self.log.topic_id)

    def check_root(self) -> None:
        identity = self.root.identity
        if identity is not None and not identity.fits(self.root.metadata.identity):
            raise another_root_error(self.root.address.location, identity, self.root.metadata.identity)


# Creating a root


def is_object_root(store: ObjectStore) -> bool:
    """Whether there is a root in `store`, or the creation of one has begun. Raises ObjectStoreError."""
    return read_if_there(store, MARKER_KEY) is not None


def is_vacant_store(store: ObjectStore) -> bool:
    """Whether a root can be created in `store`: it is empty, or a creation has begun. Raises ObjectStoreError."""
    return not _has_commits(store) and _foreign_key(store) is None


def create_object_root(
    store: ObjectStore,
    *,
    cluster_id: str | None = None,
    node_id: int = DEFAULT_NODE_ID,
    clock: Clock = time_ms,
    rng: random.Random | None = None,
    waiting: Waiting | None = None,
) -> MetadataStore:
    """Create a root in `store`, or finish a creation that a crash interrupted, whose ids are kept; open it.

    Without `cluster_id` the id is random. Raises LogDirError if there is a finished root, ReadOnlyLogDirError if there
    are other objects, StoreUnsuitableError if the store cannot decide between concurrent writers, ObjectStoreError;
    CommitStateUnknownError if it is unknown whether an object was created, in which case a further call completes it.
    """
    rng = rng if rng is not None else random.SystemRandom()
    waiting = waiting if waiting is not None else Waiting()
    _check_place(store)
    check_store(store, random_uuid(random.SystemRandom()), waiting=waiting, then=lambda: _check_place(store))
    check_object_marker(_create(store, MARKER_KEY, OBJECT_MARKER, waiting), name_of(store, MARKER_KEY))
    properties = _create_ids(store, cluster_id, node_id, rng, waiting)
    start = encode_start(0, properties.directory_id or "")
    _create(store, START_KEY, start, waiting)  # it may be there with a higher offset
    place = ObjectBackend.open(store, clock=clock, waiting=waiting)
    records = first_records(properties, rng, format_version=OBJECT_FORMAT_VERSION)
    try:
        place.publish(LoadedImage(MetadataImage(), CommitLogTail("")), records, timestamp_ms=clock(), frees_space=False)
    except CommitConflictError:
        raise LogDirError(f"{store.url} was created by another process meanwhile: open it") from None
    return ObjectMetadataStore.open(store, clock=clock, rng=rng, waiting=waiting)


def _check_place(store: ObjectStore) -> None:
    """Raises LogDirError if there is a finished root, ReadOnlyLogDirError if there are other objects."""
    if _has_commits(store):
        raise LogDirError(f"{store.url} is already a log directory: open it")
    foreign = _foreign_key(store)
    if foreign is not None:
        raise ReadOnlyLogDirError(
            f"{store.url} contains {foreign}, which does not belong to a log directory: expected an empty place"
        )


def _has_commits(store: ObjectStore) -> bool:
    """Whether a first commit was made; it may have been removed."""
    return any(
        parse_commit_key(each.key) is not None or parse_snapshot_key(each.key) is not None
        for each in islice(store.list_objects(METADATA_DIR), _OBJECTS_MAX)
    )


def _foreign_key(store: ObjectStore) -> str | None:
    for each in islice(store.list_objects(""), _OBJECTS_MAX):
        if each.key != META_PROPERTIES and each.key.partition("/")[0] not in (METADATA_DIR, PROBE_FOLDER):
            return each.key
    return None


def _create(store: ObjectStore, key: str, body: bytes, waiting: Waiting) -> bytes:
    """Create the object unless it exists; its content."""
    outcome = create_once(
        store, key, body, is_own=lambda found: found == body, max_bytes=META_PROPERTIES_BYTES_MAX, waiting=waiting
    )
    return outcome.body if isinstance(outcome, Taken) else body


def _create_ids(
    store: ObjectStore, cluster_id: str | None, node_id: int, rng: random.Random, waiting: Waiting
) -> MetaProperties:
    properties = MetaProperties(
        cluster_id=cluster_id if cluster_id is not None else random_uuid(rng),
        node_id=node_id,
        directory_id=random_uuid(rng),
    )
    body = _create(store, META_PROPERTIES, format_meta_properties(properties), waiting)
    return parse_meta_properties(body, name_of(store, META_PROPERTIES))
