"""What all read-only roots share: the partitions that `refresh` found, read on first access, and refusals to write.

They are `broker_root.BrokerRoot`, one broker's directory, `replicas.broker_directories.BrokerDirectories`, several of
them as one root, and `remote.remote_storage_root.RemoteStorageRoot`, the bucket of brokers with tiered storage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pyspark_kafkalog.errors import KafkalogError, ReadOnlyLogDirError, UnknownTopicError, without_frames
from pyspark_kafkalog.metadata.acl import Unguarded
from pyspark_kafkalog.root.brokers.image import BrokerMetadata, read_metadata_of
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, TopicDescription
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.history import HistoryEntry
    from pyspark_kafkalog.root.commit.staging import Staged
    from pyspark_kafkalog.root.writes import WriteTransaction
    from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
    from pyspark_kafkalog.storage.filesystem import FlushMode


class ReadOnlyRoot(Unguarded):
    """The topics and partitions of `directories` as of the last `refresh`.

    The metadata log that counts, if there is one, is in the first of the directories.
    """

    is_broker_directory: Final = True
    has_broker_coordinator: Final = True
    has_broker_configs: Final = False
    version: Final = None
    follows: Final = None

    def __init__(self, path: Path, identity: RootIdentity | None) -> None:
        self.path = path
        self.directories: tuple[Path, ...] = (path,)
        self.identity = identity
        self._snapshots: dict[TopicPartition, PartitionSnapshot] = {}
        self._list(())

    def _list(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace all partitions by these, which are in order."""
        listed: dict[str, list[TopicPartition]] = {}
        for each in partitions:
            listed.setdefault(each.topic, []).append(each)
        self._partitions = listed
        self._snapshots.clear()
        self._topic_ids: dict[str, str | None] = {}
        self._topic_names: dict[str, str] = {}  # by id; all of them, once one was asked for
        self._metadata: BrokerMetadata | None = None

    def _read_snapshot(self, topic_partition: TopicPartition) -> PartitionSnapshot:
        """The partition as it is now."""
        raise NotImplementedError

    def _find_topic_id(self, topic: str) -> str | None:
        """The id of an existing topic; None without one."""
        raise NotImplementedError

    def topics(self) -> tuple[str, ...]:
        """All topics except the metadata log, which Kafka's clients do not see either."""
        return tuple(name for name in self._partitions if name != CLUSTER_METADATA_TOPIC)

    def topic(self, name: str, *, readable_only: bool = False) -> TopicDescription:
        """Describe a topic. Raises the error of a partition that cannot be read, unless `readable_only`."""
        partitions: list[PartitionSnapshot] = []
        unreadable: dict[int, KafkalogError | OSError] = {}
        for each in self._partitions_of(name):
            try:
                partitions.append(self._snapshot(each))
            except (KafkalogError, OSError) as error:
                if not readable_only:
                    raise
                unreadable[each.partition] = without_frames(error)
        configs = _ConfigsOnDemand(lambda: self._configs_of(name))
        return TopicDescription(name, self._topic_id(name), configs, tuple(partitions), unreadable)

    def metadata(self) -> BrokerMetadata:
        """What the metadata log says; nothing without one. Raises OSError if it cannot be read."""
        if self._metadata is None:
            self._metadata = read_metadata_of(self.directories)
        return self._metadata

    def _configs_of(self, topic: str) -> Mapping[str, str]:
        return self.metadata().topic_configs.get(topic, {})

    def is_compacted(self, topic: str) -> bool:
        return "compact" in self._configs_of(topic).get("cleanup.policy", "")

    def topic_id(self, topic: str) -> str | None:
        """The topic's id as Kafka's Uuid text; None if its directories have none. Raises UnknownTopicError."""
        self._partitions_of(topic)
        return self._topic_id(topic)

    def _topic_id(self, topic: str) -> str | None:
        known = self._topic_ids  # a refresh in another thread replaces it
        if topic not in known:
            known[topic] = self._find_topic_id(topic)
        return known[topic]

    def topic_name(self, topic_id: str) -> str | None:
        """The topic with that id; None if there is none. The first call after a refresh reads the ids of all topics."""
        names = self._topic_names  # a refresh in another thread replaces it
        if not names:
            names.update({found: each for each in self.topics() if (found := self._topic_id(each)) is not None})
        return names.get(topic_id)

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        """Numbers of the topic's partitions that have a directory."""
        return tuple(each.partition for each in self._partitions_of(topic))

    def partition(self, topic: str, partition: int) -> PartitionSnapshot:
        topic_partition = TopicPartition(topic, partition)
        found = self._partitions_of(topic)
        at = bisect_left(found, topic_partition)  # there may be thousands
        if at == len(found) or found[at] != topic_partition:
            numbers = ", ".join(str(each.partition) for each in found)
            raise UnknownTopicError(
                f"topic {topic!r} has no partition {partition} in {self.path}, there are: {numbers}"
            )
        return self._snapshot(topic_partition)

    def high_watermark(self, topic: str, partition: int) -> int:
        return self.partition(topic, partition).high_watermark

    def partitions(self) -> tuple[TopicPartition, ...]:
        """All partitions in order, with that of the metadata log."""
        return tuple(sorted(each for found in self._partitions.values() for each in found))

    def partitions_read(self) -> tuple[PartitionSnapshot, ...]:
        return tuple(self._snapshots.values())

    def reader(self, topic: str, partition: int) -> LogReader:
        return LogReader(self.partition(topic, partition).extents(), TopicPartition(topic, partition))

    # A broker's directory is never written to, and has no commits of this package.

    def history(
        self, *, topic: str | None = None, limit: int | None = None, newest_first: bool = True
    ) -> Iterator[HistoryEntry]:
        raise ReadOnlyLogDirError(
            f"{self.path} is a Kafka broker's log directory, which has no commits of this package to list; "
            "kafkalog dump-log --cluster-metadata-decoder shows the broker's own, in __cluster_metadata-0"
        )

    def native(self) -> NoReturn:
        self._refuse()

    def check_writable(self) -> None:
        self._refuse()

    def log_config(self, topic: str) -> NoReturn:
        self._refuse()

    def config_for_write(self, topic: str) -> NoReturn:
        self._refuse()

    def broker_configs(self) -> NoReturn:
        self._refuse()

    def alter_broker_configs(self, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> NoReturn:
        self._refuse()

    def group_configs(self) -> NoReturn:
        self._refuse()

    def alter_group_configs(
        self, group_id: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()
    ) -> NoReturn:
        self._refuse()

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> NoReturn:
        self._refuse()

    def ensure_topic(self, name: str) -> NoReturn:
        self._refuse()

    def add_partitions(self, name: str, total: int) -> NoReturn:
        self._refuse()

    def alter_topic(self, name: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> NoReturn:
        self._refuse()

    def delete_topic(self, name: str) -> NoReturn:
        self._refuse()

    def staging(self, write_id: str, *, flush: FlushMode = "fsync") -> NoReturn:
        self._refuse()

    def commit_staged(
        self, staged: Sequence[Staged], *, transaction: WriteTransaction | None = None, flush: FlushMode = "fsync"
    ) -> NoReturn:
        self._refuse()

    def init_transaction(self, transactional_id: str, incarnation: str) -> NoReturn:
        self._refuse()

    def has_transactional_id(self, transactional_id: str) -> NoReturn:
        self._refuse()

    def last_version(self, transactional_id: str) -> NoReturn:
        self._refuse()

    def has_committed(self, transaction: WriteTransaction) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        if len(self.directories) > 1:
            raise ReadOnlyLogDirError(
                f"{self.path} are Kafka brokers' log directories: they can be read, not written to or reconfigured; "
                "kafkalog adopt makes a single one of them this package's"
            )
        raise ReadOnlyLogDirError(
            f"{self.path} is a Kafka broker's log directory: it can be read, not written to or reconfigured; "
            "kafkalog adopt makes it one of this package's"
        )

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions in order. Raises UnknownTopicError."""
        found = self._partitions.get(topic)
        if found is None:
            names = ", ".join(self.topics()[:20]) or "none"
            raise UnknownTopicError(f"there is no topic {topic!r} in {self.path}; existing topics: {names}")
        return found

    def _snapshot(self, topic_partition: TopicPartition) -> PartitionSnapshot:
        found = self._snapshots.get(topic_partition)
        if found is None:
            found = self._snapshots[topic_partition] = self._read_snapshot(topic_partition)
        return found


class _ConfigsOnDemand(Mapping[str, str]):
    """A topic's configuration overrides, read on first access: few callers need them, and a whole metadata log must be
    read for them."""

    def __init__(self, read: Callable[[], Mapping[str, str]]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> str:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(dict(self))
