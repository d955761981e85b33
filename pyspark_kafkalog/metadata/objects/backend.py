"""A root's metadata in an object store: its identity, its snapshots, and the maintenance that follows a commit.

For the objects see log.py. No object is looked at to see whether the root is still the same: its directory id is in
`kafkalog-start`, which is read every ten minutes and when the root is opened. So a process asks for the ids of a root
only once: the start of the log confirms them when it opens the root again.

*Snapshots.* A snapshot is created under its name, the pointer (file name, a blank, size in bytes, a line end) is put
after that. A crash in between leaves the pointer to the previous one, which costs reading more commits.

*Maintenance.* Most commits do nothing of it, and make no request for it. When a snapshot is due (after 64 KiB of
commits, of which inline data counts a sixteenth, or a sixteenth of the last snapshot's size, or an hour), the commit
that finds so costs some requests more: one to see whether another process has written a snapshot, two to write one and
its pointer; and for the removal of old objects one or more to list them and four to remove them. The commit is already
published then: an error is only logged, and the next commit tries again.

The retention job removes all that is due at once, since a root at rest has no commits that could do it. There the time
is that of the newest commit or snapshot: the job's own commits, one in staging.retention.ms, move it on.

*Retention.* A commit is removed once it is older than metadata.max.retention.ms, an hour at least, and a snapshot
contains its records, unless it, or one before it, holds data of its write that was not merged yet (inline data,
metadata/extents.py); older snapshots with it. Ages are differences of times that the store gave. The newest snapshot
and the last commit in it are kept. The start of the log moves first, then the objects are deleted; each run
begins with the first name in the folder, and so removes what a crash in between has left, and commits that do not
count.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError, LogDirError
from pyspark_kafkalog.metadata.backend import LOGGING_FAILURES, Look, MetadataBackend, MetadataLogConfig, Pause
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH, Commit, KnownSnapshot, LoadedImage, OldCommits
from pyspark_kafkalog.metadata.image import MetadataImage, image_records
from pyspark_kafkalog.metadata.messages.metadata_records import CommitRecord, MetadataRecord
from pyspark_kafkalog.metadata.objects.host import HostShare
from pyspark_kafkalog.metadata.objects.log import (
    MARKER_KEY,
    META_PROPERTIES_BYTES_MAX,
    MIN_RETENTION_MS,
    CommitLogStart,
    ObjectCommitLog,
    metadata_key,
    name_of,
    parse_commit_key,
    parse_snapshot_key,
    read_if_there,
    snapshot_key,
)
from pyspark_kafkalog.metadata.root_format import METADATA_DIR, check_object_marker
from pyspark_kafkalog.metadata.snapshots import (
    MAX_SNAPSHOT_BYTES,
    POINTER_FILE,
    Snapshot,
    SnapshotId,
    Snapshots,
    decode_snapshot,
    encode_snapshot,
    is_native,
)
from pyspark_kafkalog.metadata.store import Clock, MetadataStore
from pyspark_kafkalog.object_store.retries import Waiting
from pyspark_kafkalog.object_store.store import (
    ObjectExistsError,
    ObjectMetadata,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
)
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity, parse_meta_properties
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import META_PROPERTIES
from pyspark_kafkalog.threads import side_by_side
from pyspark_kafkalog.values import dataclass

POINTER_KEY: Final = metadata_key(POINTER_FILE)

_POINTER: Final = re.compile(r"(\S+) ([0-9]{1,12})\n")


class ObjectSnapshots(Snapshots):
    """The snapshots in `store`, down to the start of the log of its commits."""

    def __init__(self, store: ObjectStore, start: CommitLogStart) -> None:
        self._store = store
        self._start = start

    @property
    def location(self) -> str:
        return f"{self._store.url}/{METADATA_DIR}"

    def name_of(self, end_offset: int) -> str:
        return name_of(self._store, snapshot_key(SnapshotId(end_offset, LEADER_EPOCH)))

    def pointed_to(self) -> SnapshotId | None:
        pointed = self.pointed_to_with_size()
        return None if pointed is None or pointed[0].end_offset < self._start.offset else pointed[0]

    def pointed_to_with_size(self) -> tuple[SnapshotId, int] | None:
        data = read_if_there(self._store, POINTER_KEY)
        if data is None:
            return None
        match = _POINTER.fullmatch(data.decode("ascii", errors="replace"))
        snapshot = None if match is None else SnapshotId.parse(match[1])
        return None if match is None or snapshot is None or not is_native(snapshot) else (snapshot, int(match[2]))

    def listed(self) -> list[SnapshotId]:
        found = (parse_snapshot_key(each.key) for each in self._store.list_objects(METADATA_DIR))
        return sorted(each for each in found if each is not None and is_native(each))

    def read(self, end_offset: int) -> Snapshot:
        key = snapshot_key(SnapshotId(end_offset, LEADER_EPOCH))
        return decode_snapshot(self._store.get(key, max_bytes=MAX_SNAPSHOT_BYTES), self.name_of(end_offset))

    def write(self, image: MetadataImage) -> KnownSnapshot:
        """Write the snapshot of `image` and set the pointer to it, unless it exists. Raises ObjectStoreError."""
        snapshot = SnapshotId(image.next_offset, LEADER_EPOCH)
        data = b"".join(
            encode_snapshot(
                image_records(image), last_contained_timestamp_ms=image.last_timestamp_ms, epoch=LEADER_EPOCH
            )
        )
        try:
            self._store.create(snapshot_key(snapshot), data)
        except ObjectExistsError:
            return KnownSnapshot(image.next_offset, len(data), image.last_timestamp_ms, is_sound=False)
        self._store.put(POINTER_KEY, f"{snapshot.file_name} {len(data)}\n".encode("ascii"))
        return KnownSnapshot(image.next_offset, len(data), image.last_timestamp_ms, is_sound=True)


_LOG: Final = logging.getLogger(__name__)

#: Objects looked at in one run; a snapshot is due after fewer commits.
_OBJECTS_A_RUN: Final = 2_000
#: Objects that are deleted after one move of the start of the log.
_DELETED_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Expired:
    """An object to remove, if `start` becomes the oldest commit: the commit at that offset, None for a snapshot."""

    key: str
    size_bytes: int
    commit: int | None
    start: int


def _kept_ms(config: MetadataLogConfig) -> int:
    return max(config.max_retention_ms, MIN_RETENTION_MS)


def _lowest_inline(loaded: LoadedImage) -> int | None:
    return loaded.image.objects.lowest_inline_commit


#: The roots that this process has opened, by the client of their store.
_IDENTITIES: Final[WeakKeyDictionary[ObjectStore, RootIdentity]] = WeakKeyDictionary()


class ObjectBackend(MetadataBackend):
    """The root with `identity` in `store`."""

    repeats_creates = True
    #: Requests cost, bytes hardly: snapshots are written more often than on a file system, so that opening a root takes
    #: few requests also while the image is large.
    snapshot_share = 16
    maintains_each_commit = False

    log: ObjectCommitLog
    snapshots: ObjectSnapshots
    identity: RootIdentity

    def __init__(self, store: ObjectStore, identity: RootIdentity, start: CommitLogStart, *, waiting: Waiting) -> None:
        super().__init__(ObjectCommitLog(store, start, waiting=waiting), ObjectSnapshots(store, start))
        self._waiting = waiting
        self._host: HostShare | None = None
        self.location = store.url
        self.identity = identity
        self.opened = identity
        self._store = store
        self._start = start

    @staticmethod
    def open(store: ObjectStore, *, clock: Callable[[], int], waiting: Waiting) -> ObjectBackend:
        """The place of the root in `store`: two requests at once. Raises the errors of MetadataStore."""
        marker, properties = side_by_side(
            [
                partial(read_if_there, store, MARKER_KEY),
                partial(read_if_there, store, META_PROPERTIES, max_bytes=META_PROPERTIES_BYTES_MAX),
            ]
        )
        if marker is None:
            raise LogDirError(
                f"{store.url} is not a native log directory: expected the object {MARKER_KEY}, found no such object"
            )
        check_object_marker(marker, name_of(store, MARKER_KEY))
        if properties is None:
            raise LogDirError(f"creating the log directory {store.url} was not finished: create it again")
        identity = _IDENTITIES[store] = _identity(properties, name_of(store, META_PROPERTIES))
        return ObjectBackend._of(store, identity, clock=clock, waiting=waiting)

    @staticmethod
    def open_again(store: ObjectStore, *, clock: Callable[[], int], waiting: Waiting) -> ObjectBackend | None:
        """The place of the root that this process has opened in `store` before; None if it has not. No request.

        It holds only if `is_confirmed` is true after the log was read to its end.
        """
        identity = _IDENTITIES.get(store)
        return None if identity is None else ObjectBackend._of(store, identity, clock=clock, waiting=waiting)

    @staticmethod
    def _of(store: ObjectStore, identity: RootIdentity, *, clock: Callable[[], int], waiting: Waiting) -> ObjectBackend:
        start = CommitLogStart(store, identity.directory_id or "", clock=clock, monotonic=waiting.monotonic)
        return ObjectBackend(store, identity, start, waiting=waiting)

    @property
    def is_confirmed(self) -> bool:
        """Whether the start of the log, when it was read last, was that of the root with `identity`."""
        return self._start.is_stored

    def check_root(self, known: object) -> object:
        return known  # reading the start of the log reports another root

    def cache_key(self, known: object) -> object:
        return (known, self.location)

    def check_format(self, known: object) -> bool:
        """Looks at nothing: an upgrade is a commit, and the create of the next one decides."""
        return True

    def check_image(self, image: MetadataImage, file: str) -> None:
        image.format.check(file, in_object_store=True)

    def state_of(self, loaded: LoadedImage) -> object:
        return self.identity  # reading the log reports what was removed

    def sees_end(self, loaded: LoadedImage) -> bool:
        return self.log.sees_end(loaded.image.next_offset)

    def join_host(self, directory: Path) -> None:
        self._host = HostShare(directory, self.identity.directory_id or "", self._waiting)
        self.log.join_host(self._host)

    def host_turn(self) -> AbstractContextManager[None]:
        return super().host_turn() if self._host is None else self._host.turn()

    def pauses(self, lost: int, jitter: Callable[[], float]) -> Iterator[Pause]:
        for pause in self.log.turns.pauses(lost, jitter):
            self.log.put_claim()
            yield pause

    def look(self, offset: int, look: Look) -> Iterable[Commit]:
        return self.log.look(offset, look)

    def header(self, commit_id: str, operation: str) -> CommitRecord:
        return CommitRecord(commit_id=commit_id, operation=operation, turn=self.log.turns.announce())

    def after_commit(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        self.log.delete_claims(own=True)
        try:
            return super().after_commit(loaded, now_ms=now_ms)
        finally:
            self.log.turns.ended()

    def head(self) -> int | None:
        return None

    def publish(
        self,
        loaded: LoadedImage,
        records: Sequence[MetadataRecord],
        *,
        timestamp_ms: int,
        frees_space: bool,
        before_visible: Callable[[], None] | None = None,
    ) -> Commit:
        if before_visible is not None:
            before_visible()
        return self.log.publish(loaded, records, timestamp_ms=timestamp_ms)

    def _maintain(
        self,
        loaded: LoadedImage,
        newer: KnownSnapshot | None,
        config: MetadataLogConfig,
        *,
        snapshot_was_due: bool,
        now_ms: int,
    ) -> None:
        if newer is None or not newer.is_sound or config.max_retention_ms < 0:
            return
        with LOGGING_FAILURES:
            newest = self._store.head(snapshot_key(SnapshotId(newer.end_offset, LEADER_EPOCH)))
            older_than_ms = newest.last_modified_ms - _kept_ms(config)
            listed = islice(self._store.list_objects(METADATA_DIR), _OBJECTS_A_RUN)
            self._remove(self._expired(listed, newer.end_offset, older_than_ms), _lowest_inline(loaded))

    def _find_old_commits(
        self, loaded: LoadedImage, end_offset: int, config: MetadataLogConfig, *, now_ms: int, clock_ms: int
    ) -> OldCommits:
        """Only this goes by the time given: it says what the next commit would allow."""
        expired = self._expired(self._store.list_objects(METADATA_DIR), end_offset, now_ms - _kept_ms(config))
        return self._remove(expired, _lowest_inline(loaded), dry_run=True)

    def _remove_old_commits(
        self, loaded: LoadedImage, known: KnownSnapshot, config: MetadataLogConfig, *, now_ms: int, clock_ms: int
    ) -> OldCommits:
        """1 HEAD and 1 LIST if there is nothing to remove."""
        older_than_ms = self._written_ms(loaded, known.end_offset) - _kept_ms(config)
        expired = self._expired(self._store.list_objects(METADATA_DIR), known.end_offset, older_than_ms)
        first = next(expired, None)
        if first is not None and not known.is_sound:
            self.snapshots.check(known.end_offset)
        return self._remove(chain([] if first is None else [first], expired), _lowest_inline(loaded))

    def _written_ms(self, loaded: LoadedImage, snapshot_end_offset: int) -> int:
        """When the last commit, or the snapshot that contains it, was put, by the store's clock."""
        key = loaded.tail.last_file.removeprefix(f"{self._store.url}/")
        if parse_commit_key(key) is None:
            key = snapshot_key(SnapshotId(snapshot_end_offset, LEADER_EPOCH))
        return self._store.head(key).last_modified_ms

    def _remove(self, expired: Iterator[_Expired], lowest_inline: int | None, *, dry_run: bool = False) -> OldCommits:
        """Remove the objects, some at a time; the start of the log moves first.

        `lowest_inline`: the oldest commit that holds data of its write which was not merged yet; None without one.
        """
        removed = OldCommits()
        while some := list(islice(expired, _DELETED_AT_ONCE)):
            start = some[-1].start if lowest_inline is None else min(some[-1].start, lowest_inline)
            gone = [each for each in some if each.commit is None or each.commit < start]
            commits = [each for each in gone if each.commit is not None]
            size_bytes = sum(each.size_bytes for each in commits)
            removed = OldCommits(removed.count + len(commits), removed.size_bytes + size_bytes, start)
            if gone and not dry_run:
                self._start.move(start)
                self._store.delete([each.key for each in gone])
        if not dry_run and not self._start.is_stored:
            self._start.move(self._start.offset)
        return removed

    def _expired(
        self, listed: Iterable[ObjectMetadata], snapshot_end_offset: int, older_than_ms: int
    ) -> Iterator[_Expired]:
        """The commits that the snapshot contains and that are older, up to the first that is not, and their snapshots.

        `listed` are objects in the order of their keys: a snapshot comes before the commit that begins where it ends.
        """
        start = self._start.offset
        last: tuple[int, ObjectMetadata] | None = None
        snapshots: list[tuple[int, ObjectMetadata]] = []
        for each in listed:
            offset, snapshot = parse_commit_key(each.key), parse_snapshot_key(each.key)
            if snapshot is not None:
                snapshots.append((snapshot.end_offset, each))
            if offset is None:
                continue
            if last is not None:
                if last[0] >= start:
                    if last[1].last_modified_ms >= older_than_ms or offset >= snapshot_end_offset:
                        return
                    start = offset
                yield _Expired(last[1].key, last[1].size_bytes, last[0], start)
                old = [known for end, known in snapshots if end < start]
                snapshots = [known for known in snapshots if known[0] >= start]
                yield from (_Expired(known.key, known.size_bytes, None, start) for known in old)
            last = offset, each


class ObjectMetadataStore(MetadataStore):
    """The metadata of a root in an object store."""

    _backend: ObjectBackend

    @staticmethod
    def open(
        store: ObjectStore, *, clock: Clock = time_ms, rng: random.Random | None = None, waiting: Waiting | None = None
    ) -> ObjectMetadataStore:
        """The store of the root in the object store `store`, with the current image.

        This takes six requests and a few for the commits since the newest snapshot, or two if this process has opened
        the root before. `waiting` is how commits wait for an answer of the store.

        Raises LogDirError if there is no root in `store`, or its creation was interrupted, CorruptRecordError for a
        damaged or lost commit, UnsupportedFormatError for a format version that this package does not read,
        ObjectStoreError.
        """
        waiting = waiting if waiting is not None else Waiting()

        def metadata_of(backend: ObjectBackend) -> ObjectMetadataStore:
            metadata = ObjectMetadataStore(backend, clock=clock, rng=rng, sleep=waiting.sleep)
            if metadata.is_from_cache:
                metadata.refresh()
            return metadata

        known = ObjectBackend.open_again(store, clock=clock, waiting=waiting)
        metadata = None
        if known is not None:
            try:
                metadata = metadata_of(known)
            except KafkalogError as error:
                if isinstance(error, ObjectStoreError) and not isinstance(error, ObjectNotFoundError):
                    raise
        if metadata is None or not metadata._backend.is_confirmed:  # opening it from the start tells what is there
            metadata = metadata_of(ObjectBackend.open(store, clock=clock, waiting=waiting))
        if metadata.image.format_version is None:
            raise LogDirError(f"creating the log directory {store.url} was not finished: create it again")
        metadata.remember()
        return metadata


def _identity(data: bytes, file: str) -> RootIdentity:
    properties = parse_meta_properties(data, file)
    if properties.cluster_id is None or properties.directory_id is None:
        raise DiskFormatError(
            file=file,
            position=0,
            expected="properties cluster.id and directory.id",
            found="none",
            advice="restore the object, from an earlier version of it if the bucket keeps versions",
        )
    return RootIdentity(properties.cluster_id, properties.directory_id)
