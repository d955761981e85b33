"""A native log directory: its topics and partitions as of its commit log. Only commits change them.

`NativeRoot` is what a root with a commit log of this package has in common, wherever it is; where the records are, and
how a write adds to them, is the difference:

    file_root.FileRoot       on a file system: directories with segments, changed under the root's lock
    object_root.ObjectRoot   in an object store: data objects and segments, which commits name

*Following.* The commit log says that a root follows a leader (`Following` in metadata/image.py). Beginning again for
the same leader replaces the id, so that the follower before it, if it still runs, cannot commit any more.

A promotion is one commit: following ends; each partition gets a leader epoch above every one that is known of the
leader; the next producer id is above those that the leader may have handed out. From then on the follower's commits
fail, and anybody may write. What is written has the new leader epoch, so what the former leader has written since is
seen to diverge, and the former leader may follow this root. Transactions that were open stay open: the server's
coordinator continues with those in `__transaction_state`, and `kafkalog transactions` ends any of them.

A crash leaves the root following or not: each of the changes is one commit.
"""

from __future__ import annotations

import contextlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import FollowingEndedError, FollowingRootError, KafkalogError, TopicDeletionDisabledError
from pyspark_kafkalog.metadata.acl import Unguarded
from pyspark_kafkalog.metadata.history import HistoryEntry, read_history
from pyspark_kafkalog.metadata.image import (
    Following,
    MetadataImage,
    PartitionImage,
    TopicImage,
    broker_configs,
    following_record,
)
from pyspark_kafkalog.metadata.invariants import check_not_following
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, PartitionChangeRecord, ProducerIdsRecord
from pyspark_kafkalog.metadata.root_format import FORMAT_VERSION
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store.location import RootPath
from pyspark_kafkalog.root import admin
from pyspark_kafkalog.root.admin import Build
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, PartitionSnapshots, TopicDescription
from pyspark_kafkalog.root.writes import CommitResult, WriteTransaction, committed_before, expired_ids, take_over
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import TopicPartition, encode_uuid
from pyspark_kafkalog.units import plural
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit
    from pyspark_kafkalog.root.commit.committer import CommitEngine, FollowerWriter, LeaderWriter
    from pyspark_kafkalog.root.commit.cut_files import KeptRecords
    from pyspark_kafkalog.root.commit.staging import Staged, Staging
    from pyspark_kafkalog.root.planned import PlannedPartition
    from pyspark_kafkalog.storage.log.reader import LogReader

#: Brokers hand out producer ids from blocks of this size (ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE in Kafka).
_PRODUCER_ID_BLOCK: Final = 1000
#: Blocks that brokers may hold of which no id was seen here: one a broker and restart, with much to spare.
_UNSEEN_BLOCKS: Final = 10_000

#: Ids that one commit makes the root forget at most.
_IDS_A_COMMIT: Final = 1_000

_LOG: Final = logging.getLogger(__name__)


class NativeRoot(Unguarded, ABC):
    """One native root, as of its last `refresh`; every change refreshes it first."""

    is_broker_directory: Final = False
    has_broker_coordinator: Final = False
    has_broker_configs: Final = True

    def __init__(self, store: MetadataStore, *, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        #: The parsed configurations of the images of this root.
        self.configs = admin.EffectiveConfigs()

    @property
    @abstractmethod
    def path(self) -> RootPath: ...

    directories: tuple[Path, ...]

    def refresh(self) -> None:
        self._store.refresh()

    @property
    def identity(self) -> RootIdentity | None:
        return self._store.identity

    @property
    def version(self) -> int:
        return self._store.image.next_offset

    @property
    def follows(self) -> str | None:
        following = self._store.image.following
        return None if following is None else following.leader

    def native(self) -> NativeRoot:
        return self

    @property
    def store(self) -> MetadataStore:
        """The store with the image as of the last refresh, which also makes the commits."""
        return self._store

    @property
    def clock(self) -> Callable[[], int]:
        return self._clock

    def broker_config(self) -> BrokerConfig:
        """The broker-level configuration, parsed."""
        return self.configs.broker(self._store.image)

    # Describing

    def topics(self) -> tuple[str, ...]:
        return tuple(sorted(self._store.image.topics))

    def partitions(self, topics: Collection[str] | None = None) -> list[TopicPartition]:
        """All partitions, or those of `topics`, in order. Raises UnknownTopicError."""
        names = self.topics() if topics is None else sorted(set(topics))
        return [
            TopicPartition(name, partition.partition)
            for name in names
            for partition in self._store.image.topic(name).partitions
        ]

    def topic(self, name: str, *, readable_only: bool = False) -> TopicDescription:
        topic = self._store.image.topic(name)
        partitions = PartitionSnapshots(
            len(topic.partitions), lambda number: self._snapshot(topic, topic.partitions[number])
        )
        return TopicDescription(name, topic.topic_id, topic.configs, partitions)

    def topic_name(self, topic_id: str) -> str | None:
        return self._store.image.topic_names.get(topic_id)

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        return tuple(range(len(self._store.image.topic(topic).partitions)))

    def partition(self, topic: str, partition: int) -> PartitionSnapshot:
        return self.partition_in(self._store.image, topic, partition)

    def partition_in(self, image: MetadataImage, topic: str, partition: int) -> PartitionSnapshot:
        """One partition as of `image`, which may be newer than the last refresh. Raises UnknownTopicError."""
        return self._snapshot(image.topic(topic), image.partition(topic, partition))

    def high_watermark(self, topic: str, partition: int) -> int:
        return self._store.image.partition(topic, partition).high_watermark

    def partitions_read(self) -> tuple[PartitionSnapshot, ...]:
        return ()

    @abstractmethod
    def _snapshot(self, topic: TopicImage, partition: PartitionImage) -> PartitionSnapshot: ...

    def reader(self, topic: str, partition: int) -> LogReader:
        from pyspark_kafkalog.storage.log.reader import LogReader  # no description needs it

        return LogReader(self.partition(topic, partition).extents(), TopicPartition(topic, partition))

    @abstractmethod
    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> PlannedPartition: ...

    def history(
        self, *, topic: str | None = None, limit: int | None = None, newest_first: bool = True
    ) -> Iterator[HistoryEntry]:
        names = self._store.image.topic_names
        return read_history(self._store.log, names, topic=topic, limit=limit, newest_first=newest_first)

    def log_config(self, topic: str) -> LogConfig:
        image = self._store.image
        return self.configs.of(image, image.topic(topic))

    def config_for_write(self, topic: str) -> LogConfig:
        return self.log_config(topic)

    def is_compacted(self, topic: str) -> bool:
        return self.log_config(topic).compact

    def broker_configs(self) -> Mapping[str, str]:
        return broker_configs(self._store.image)

    # Changing

    def check_writable(self) -> None:
        """Raise FollowingRootError if the root follows a leader."""
        if self._store.image.following is not None:
            check_not_following(self._store.refresh())

    @abstractmethod
    def commit(self, build: Build, *, operation: str, frees_space: bool = False) -> None:
        """Commit the records that `build` makes from the newest image, if there are any.

        `frees_space`: see `MetadataBackend.publish`.
        """

    @abstractmethod
    def commit_engine(
        self, *, flush: FlushMode = "fsync", operation: str = "append", following_id: str | None = None
    ) -> CommitEngine:
        """What carries out changes of partitions, whose commits wait for the disk as `flush` says.

        `operation` is the commits' operation in the history. `following_id`: they are those of the follower that has
        it. What is in an object store is durable, whatever `flush` says. Used by one thread; the caller closes it.
        """

    def committer(self, *, flush: FlushMode = "fsync", operation: str = "append") -> LeaderWriter:
        """The writer of a leader's units; arguments as for `commit_engine`."""
        from pyspark_kafkalog.root.commit.committer import LeaderWriter  # imports compiled code

        return LeaderWriter(self.commit_engine(flush=flush, operation=operation))

    def commit_unit(
        self, unit: CommitUnit, *, flush: FlushMode = "fsync", operation: str = "append"
    ) -> tuple[AppendedRange, ...]:
        """Commit one unit of a leader; what its appends got. Arguments as for `commit_engine`.

        Raises KafkalogError if the unit is refused, and the errors of `LeaderWriter.commit`.
        """
        with contextlib.closing(self.committer(flush=flush, operation=operation)) as writer:
            (result,) = writer.commit([unit])
        if isinstance(result, KafkalogError):
            raise result
        return result

    def follower(
        self, following_id: str, *, flush: FlushMode = "fsync", on_kept: KeptRecords | None = None
    ) -> FollowerWriter:
        """The writer of the follower with `following_id`; `flush` as for `commit_engine`.

        `on_kept` is called before each commit that drops records, once they are kept in files.
        """
        from pyspark_kafkalog.root.commit.committer import FollowerWriter
        from pyspark_kafkalog.root.commit.cut_files import ignore_kept

        engine = self.commit_engine(flush=flush, operation="follow", following_id=following_id)
        return FollowerWriter(engine, on_kept=on_kept or ignore_kept)

    @abstractmethod
    def _commit_topics(
        self, names: Callable[[], Collection[str]], build: Build, operation: str, *, frees_space: bool = False
    ) -> None:
        """As `commit`, for a change of the topics that `names` gives after it: with all that belongs to them."""

    def _commit_topic(self, name: str, build: Build, operation: str, *, frees_space: bool = False) -> None:
        self._commit_topics(lambda: (name,), build, operation, frees_space=frees_space)

    def change_topics(
        self,
        changes: Sequence[admin.TopicChange],
        *,
        operation: str,
        frees_space: bool = False,
        validate_only: bool = False,
    ) -> tuple[KafkalogError | None, ...]:
        """Commit the changes of different topics that are possible, all at once; why each of the others is refused.

        `validate_only`: only tell this. For deleting topics see `delete_topics`.
        """
        each = admin.TopicChanges(changes)
        if validate_only:
            each.build(self._store.refresh())
        else:
            self._commit_topics(lambda: each.made, each.build, operation, frees_space=frees_space)
        return each.errors

    def alter_broker_configs(self, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        change = admin.ConfigChange(add or {}, delete)
        self.change_broker_configs(lambda current: change)

    def change_broker_configs(self, plan: admin.ConfigPlan, *, validate_only: bool = False) -> None:
        """As `alter_broker_configs`, with the change that `plan` makes from the settings at the commit.

        `validate_only`: only raise what the change would raise.
        """

        def build(image: MetadataImage) -> list[MetadataRecord]:
            change = plan(broker_configs(image))
            self._check_broker_configs(change.add)
            return admin.alter_broker_configs(image, add=change.add, delete=change.delete)

        if validate_only:
            build(self._store.refresh())
        else:
            self.commit(build, operation="alter broker configs", frees_space=True)

    def raise_format(self) -> None:
        """Raise the format version to that of new roots, for good: earlier versions of the package refuse the root."""
        self.commit(lambda image: admin.format_records(image, FORMAT_VERSION), operation="upgrade")

    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        return self._store.image.group_configs

    def alter_group_configs(
        self, group_id: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()
    ) -> None:
        change = admin.ConfigChange(add or {}, delete)
        self.change_group_configs(group_id, lambda current: change)

    def change_group_configs(self, group_id: str, plan: admin.ConfigPlan, *, validate_only: bool = False) -> None:
        """As `alter_group_configs`, with the change that `plan` makes from the configurations at the commit.

        `validate_only`: only raise what the change would raise.
        """

        def build(image: MetadataImage) -> list[MetadataRecord]:
            change = plan(image.group_configs.get(group_id, {}))
            return admin.alter_group_configs(image, group_id, add=change.add, delete=change.delete)

        if validate_only:
            build(self._store.refresh())
        else:
            self.commit(build, operation="alter group configs", frees_space=True)

    def _check_broker_configs(self, configs: Mapping[str, str]) -> None:
        """Raise InvalidConfigError for a setting that this root cannot have where it is."""

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> TopicDescription:
        """Commit the topic. `partitions` None stands for num.partitions."""

        def build(image: MetadataImage) -> list[MetadataRecord]:
            broker = admin.broker_config(image)
            return admin.create_topic(
                image,
                name,
                partitions=broker.num_partitions if partitions is None else partitions,
                configs=configs or {},
                broker_configs=broker.properties,
            )

        self._commit_topic(name, build, "create topic")
        return self.topic(name)

    def ensure_topic(self, name: str) -> TopicDescription:
        """The topic. It is created if it does not exist, as for a write to it; a warning is logged then."""
        if self._is_ready(name):
            return self.topic(name)
        is_new = False

        def build(image: MetadataImage) -> list[MetadataRecord]:
            nonlocal is_new
            is_new = name not in image.topics
            if not is_new:
                return []
            broker = admin.broker_config(image)
            if not broker.auto_create_topics_enable:
                image.topic(name)
            return admin.create_topic(image, name, partitions=broker.num_partitions, broker_configs=broker.properties)

        self._commit_topic(name, build, "create topic")
        found = self.topic(name)
        if is_new:
            partitions = plural(len(found.partitions), "partition")
            _LOG.warning("created topic %r with %s in %s, for a write to it", name, partitions, self.path)
        return found

    @abstractmethod
    def _is_ready(self, topic: str) -> bool:
        """Whether the topic exists with all that a write needs: now, or, in an object store, at the last refresh."""

    def add_partitions(self, name: str, total: int) -> None:
        self._commit_topic(name, lambda image: admin.add_partitions(image, name, total=total), "add partitions")

    def alter_topic(self, name: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        def build(image: MetadataImage) -> list[MetadataRecord]:
            broker = admin.broker_config(image)
            return admin.alter_configs(image, name, add=add or {}, delete=delete, broker_configs=broker.properties)

        self._commit_topic(name, build, "alter topic configs", frees_space=True)

    def delete_topic(self, name: str) -> None:
        (error,) = self.delete_topics({name: None})
        if error is not None:
            raise error

    @abstractmethod
    def delete_topics(self, topics: Mapping[str, str | None]) -> tuple[KafkalogError | None, ...]:
        """Delete the topics, by name, in one commit; why each of them cannot be deleted, None for one that is.

        A topic that has another id than the given one is not deleted; None stands for any id. What the topics hold is
        removed after file.delete.delay.ms.
        """

    def _deletions(self, topics: Mapping[str, str | None]) -> admin.TopicChanges:
        def deletion(name: str, topic_id: str | None) -> admin.TopicChange:
            return admin.TopicChange(name, lambda image: self._deletion_of(image, name, topic_id))

        return admin.TopicChanges([deletion(name, topic_id) for name, topic_id in topics.items()])

    @staticmethod
    def _deletion_of(image: MetadataImage, name: str, topic_id: str | None) -> list[MetadataRecord]:
        records = admin.delete_topic(image, name, topic_id=topic_id)
        if not admin.broker_config(image).delete_topic_enable:
            raise TopicDeletionDisabledError(f"topic {name} cannot be deleted: delete.topic.enable is false")
        return records

    @abstractmethod
    def staging(self, write_id: str, *, flush: FlushMode = "fsync") -> Staging: ...

    @abstractmethod
    def commit_staged(
        self, staged: Sequence[Staged], *, transaction: WriteTransaction | None = None, flush: FlushMode = "fsync"
    ) -> CommitResult: ...

    def init_transaction(self, transactional_id: str, incarnation: str) -> None:
        """Commit `incarnation` as the current one of the transactional id; earlier ones are fenced."""
        self.commit(
            lambda image: take_over(image, transactional_id, incarnation, now_ms=self._clock()),
            operation="init transaction",
        )

    def expire_transactional_ids(self, *, now_ms: int | None = None) -> int:
        """Forget the ids of writers that were not used for writer.id.expiration.ms; returns how many."""
        count = 0
        while some := self._expire_some_ids(self._clock() if now_ms is None else now_ms):
            count += some
        return count

    def _expire_some_ids(self, now_ms: int) -> int:
        """Forget as many as one commit takes; returns how many."""
        seen = self._store.refresh()
        expiration_ms = admin.broker_config(seen).writer_id_expiration_ms
        if expiration_ms < 0:
            return 0
        expired = partial(expired_ids, unused_since_ms=now_ms - expiration_ms, most=_IDS_A_COMMIT)
        records = expired(seen)

        def build(image: MetadataImage) -> Sequence[MetadataRecord]:
            nonlocal records
            if image is not seen:
                records = expired(image)
            return records

        if records:
            self.commit(build, operation="expire writers' ids", frees_space=True)
        return len(records)

    def has_transactional_id(self, transactional_id: str) -> bool:
        return transactional_id in self._store.image.transactional_ids

    def last_version(self, transactional_id: str) -> int | None:
        """The last committed version of the transactional id, made durable; None if it has none."""
        known = self._store.refresh().transactional_ids.get(transactional_id)
        if known is None or known.version < 0:
            return None
        # The writer may have been killed after publishing the commit and before making it durable.
        self._store.sync()
        return known.version

    def has_committed(self, transaction: WriteTransaction) -> bool:
        if committed_before(self._store.refresh(), transaction, self._store.log) is None:
            return False
        self._store.sync()  # as in last_version
        return True


def begin_following(root: NativeRoot, *, leader: str, cluster_id: str, topics: str) -> str:
    """Make `root` follow the leader called `leader`, whose cluster has the id `cluster_id`; returns the following id.

    `topics` is the regular expression of the topics that are followed. If the root
    follows the same cluster already, the new follower replaces the old one. Raises FollowingRootError if the root
    follows another cluster.
    """
    # Never from a seeded generator: two followers must not take each other's id for their own.
    following_id = encode_uuid(os.urandom(16))

    def build(image: MetadataImage) -> list[MetadataRecord]:
        known = image.following
        if known is not None and known.cluster_id != cluster_id:
            raise FollowingRootError(
                f"the root follows {known.leader}, whose cluster id is {known.cluster_id}, not {leader} with "
                f"{cluster_id}: kafkalog promote ends following, and then it may follow another leader"
            )
        following = Following(
            following_id=following_id,
            leader=leader,
            cluster_id=cluster_id,
            topics=topics,
            since_ms=root.clock() if known is None else known.since_ms,
            had_records=_has_records(image) if known is None else known.had_records,
        )
        return [following_record(following)]

    root.commit(build, operation="follow")
    return following_id


def _has_records(image: MetadataImage) -> bool:
    states = (each.state for topic in image.topics.values() for each in topic.partitions)
    return any(state.log_start_offset < state.log_end_offset for state in states)


@dataclass(frozen=True, slots=True)
class Promotion:
    """What was promoted: the leader that the root followed, and the number of partitions that got a leader epoch."""

    following: Following
    partitions_count: int


def promote(root: NativeRoot) -> Promotion:
    """End following and let `root` take writes. Raises FollowingEndedError if it does not follow."""
    promoted: list[Promotion] = []

    def build(image: MetadataImage) -> list[MetadataRecord]:
        if image.following is None:
            raise FollowingEndedError(f"{root.path} does not follow a leader: it accepts writes already")
        elections = [
            # A change of the leader raises the leader epoch by one, and that of the partition never falls while it
            # follows: it is the highest one known.
            PartitionChangeRecord(partition_id=each.partition, topic_id=topic.topic_id, leader=image.node.broker_id)
            for topic in image.topics.values()
            for each in topic.partitions
        ]
        promoted[:] = [Promotion(image.following, len(elections))]
        next_producer_id = _next_producer_id(image.next_producer_id)
        return [following_record(None), *elections, ProducerIdsRecord(broker_id=-1, next_producer_id=next_producer_id)]

    root.commit(build, operation="promote")
    return promoted[0]


def _next_producer_id(known: int) -> int:
    """An id above all that the leader may have handed out; those below `known` were seen in what it wrote."""
    return (known // _PRODUCER_ID_BLOCK + _UNSEEN_BLOCKS) * _PRODUCER_ID_BLOCK
