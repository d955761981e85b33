"""`Root`: a log directory as the rest of the package uses it, whatever kind it is; `PublicRoot`: the part for users.

    root.native.NativeRoot                a native log directory: it has a commit log; root.file_root.FileRoot is one
                                          on a file system
    root.brokers.broker_root.BrokerRoot   a Kafka broker's directory, which is read-only; several of them are one
                                          root.brokers.broker_directories.BrokerDirectories
    security.open.GuardedRoot             another root, opened for a principal: checks each operation, then forwards it

Consumer groups, Spark's readers and writers, maintenance and the notebook take a `Root`, which
`security.open.open_root` opens. `log_dir.LogDir` is a `PublicRoot` over it, which also checks arguments; its methods
are documented here.

All methods see the state as of `open_root` or the last `refresh`, consistent over partitions. A method that writes
raises ReadOnlyLogDirError for a broker's directory. With a GuardedRoot every method may raise AuthorizationError.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark_kafkalog.config.topic import LogConfig
    from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
    from pyspark_kafkalog.metadata.history import HistoryEntry
    from pyspark_kafkalog.object_store.location import RootPath
    from pyspark_kafkalog.root.commit.staging import Staged, Staging
    from pyspark_kafkalog.root.native import NativeRoot
    from pyspark_kafkalog.root.planned import PlannedPartition
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot, TopicDescription
    from pyspark_kafkalog.root.writes import CommitResult, WriteTransaction
    from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
    from pyspark_kafkalog.storage.filesystem import FlushMode
    from pyspark_kafkalog.storage.log.reader import LogReader
    from pyspark_kafkalog.storage.names import TopicPartition


class PublicRoot(Protocol):
    """An open log directory, for users. With a GuardedRoot every method may raise AuthorizationError.

    A crash of the process leaves nothing that has to be cleaned up: each commit is atomic, and the next writer recovers
    the logs.
    """

    @property
    def path(self) -> RootPath:
        """The top level of the log directory."""

    @property
    def is_broker_directory(self) -> bool:
        """Whether this is a broker's directory, which is read-only."""

    @property
    def follows(self) -> str | None:
        """The leader that a native root follows, so that only the follower writes to it; None without one."""

    @property
    def identity(self) -> RootIdentity | None:
        """The cluster id and directory id, which do not depend on the path; None if the directory has none."""

    @property
    def version(self) -> int | None:
        """Version of the metadata: `refresh` increases it if there are new commits; None for a broker's directory."""

    def refresh(self) -> None:
        """Read the commits since the last refresh. Raises LogDirError if the path no longer has this log directory."""

    def history(
        self, *, topic: str | None = None, limit: int | None = None, newest_first: bool = True
    ) -> Iterator[HistoryEntry]:
        """The retained commits; with `topic`, those that changed it; with `limit`, the newest `limit` of them.

        Raises ReadOnlyLogDirError for a broker's directory, which has no commits of this package.
        """

    # Topics

    def topics(self) -> tuple[str, ...]:
        """Names of all topics, including internal ones, in order."""

    def topic(self, name: str, *, readable_only: bool = False) -> TopicDescription:
        """One topic with its partitions. Raises UnknownTopicError, whose message lists the existing topics.

        Raises KafkalogError, OSError for a partition of a broker's directory that cannot be read, such as a symbolic
        link; with `readable_only`, such partitions are omitted, and `unreadable` has their errors.
        """

    def log_config(self, topic: str) -> LogConfig:
        """The topic's configuration: its overrides, else the broker-level settings, else Kafka's defaults."""

    def broker_configs(self) -> Mapping[str, str]:
        """The broker-level settings that have been set (`log.*`, `num.partitions`, …), by name."""

    def alter_broker_configs(self, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        """Set the broker-level settings in `add` and reset those in `delete` to their defaults.

        Raises InvalidConfigError for a setting that is unknown or has an invalid value.
        """

    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        """The configurations that single groups have for themselves (`consumer.*`), by group id, then name."""

    def alter_group_configs(
        self, group_id: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()
    ) -> None:
        """Set the configurations of a group in `add`, and let it have those in `delete` as all groups do.

        The group need not exist. Raises InvalidConfigError for one that is unknown or has an invalid value.
        """

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> TopicDescription:
        """Create a topic. The default of `partitions` is the broker-level setting num.partitions.

        Raises InvalidTopicError for an invalid name or number of partitions, TopicExistsError, InvalidConfigError.
        """

    def ensure_topic(self, name: str) -> TopicDescription:
        """The topic; it is created if it does not exist and auto.create.topics.enable is true.

        Raises UnknownTopicError if it does not exist and auto.create.topics.enable is false.
        """

    def add_partitions(self, name: str, total: int) -> None:
        """Increase the topic's number of partitions to `total`. Raises InvalidTopicError if that is no increase."""

    def alter_topic(self, name: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        """Set and delete configuration overrides of the topic. Raises InvalidConfigError."""

    def delete_topic(self, name: str) -> None:
        """Delete the topic; its files are deleted after file.delete.delay.ms."""

    # Reading

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        """Numbers of the topic's partitions in this directory; opens no log. Raises UnknownTopicError."""

    def partition(self, topic: str, partition: int) -> PartitionSnapshot:
        """One partition. Raises UnknownTopicError."""

    def reader(self, topic: str, partition: int) -> LogReader:
        """A reader of the partition's records, from any offset."""

    # Writing

    def commit_staged(
        self, staged: Sequence[Staged], *, transaction: WriteTransaction | None = None, flush: FlushMode = "fsync"
    ) -> CommitResult:
        """Append what tasks have staged to their partitions' logs, all in one commit.

        If the version of `transaction` has already been committed, nothing is appended and the result's `is_duplicate`
        is true. If this raises, the staged files remain, and the same commit can be retried.

        Raises ProducerFencedError if a later incarnation has taken over the transactional id, LowerVersionError if a
        later version of it has been committed, UnknownTopicError, CommitConflictError, CommitStateUnknownError.
        """

    def init_transaction(self, transactional_id: str, incarnation: str) -> None:
        """Register `incarnation` as the current one of the transactional id, and fence the earlier ones.

        A writer that does not call this takes over the id with its first commit. Raises ProducerFencedError if
        `incarnation` is itself fenced.
        """

    def has_transactional_id(self, transactional_id: str) -> bool:
        """Whether a writer has committed or registered with the transactional id, as of the last refresh."""

    def last_version(self, transactional_id: str) -> int | None:
        """The last committed version of the transactional id; None if it has none."""

    def has_committed(self, transaction: WriteTransaction) -> bool:
        """Whether this version of the transactional id has been committed, or a later one and lower ones are skipped.

        Raises LowerVersionError if a later version has been committed and lower ones are not skipped,
        ProducerFencedError if a later incarnation has taken over the id.
        """


class Root(PublicRoot, Protocol):
    """An open log directory, for this package."""

    @property
    def directories(self) -> tuple[Path, ...]:
        """`path` itself, or each of several brokers' directories; the metadata log that counts is in the first one."""

    def native(self) -> NativeRoot:
        """The native root itself, for maintenance. Raises ReadOnlyLogDirError for a broker's directory."""

    # Permissions

    @property
    def principal(self) -> str | None:
        """The principal that this was opened for; None: everything is permitted."""

    def allows(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Whether the principal may do `operation` on the resource."""

    def check(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """Raises AuthorizationError if the principal may not do `operation` on the resource."""

    def coordinator_root(self) -> Root:
        """The root without checks, for the package `groups` alone, which checks operations on groups itself.

        A broker's group coordinator also reads and writes `__consumer_offsets` by its own authority.
        """

    def check_writable(self) -> None:
        """Raises ReadOnlyLogDirError for a broker's directory, FollowingRootError for a root that follows a leader."""

    # The owner

    @property
    def has_broker_coordinator(self) -> bool:
        """Whether a broker coordinates the groups and transactions.

        It has the groups' members, deletes offsets of deleted topics, and ends the transactions that have a state. The
        root may have only some partitions of the topics with their records.
        """

    @property
    def has_broker_configs(self) -> bool:
        """Whether the broker-level settings and groups' configurations are known.

        A broker's directory does not contain its server.properties.
        """

    # Topics

    def topic_name(self, topic_id: str) -> str | None:
        """The topic with that id; None if there is none."""

    def config_for_write(self, topic: str) -> LogConfig:
        """As `log_config`, but requires permission to write to the topic, not to describe its configuration."""

    def is_compacted(self, topic: str) -> bool:
        """Whether the cleaner compacts the topic, as far as the directory has its configuration."""

    # Reading

    def high_watermark(self, topic: str, partition: int) -> int:
        """The end of the partition's committed records; of a native root without a snapshot of the partition.

        Raises UnknownTopicError.
        """

    def partitions_read(self) -> tuple[PartitionSnapshot, ...]:
        """The partitions read since the last refresh of a broker's directory; empty for a native log directory."""

    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> PlannedPartition:
        """The partition as of the last refresh, for the tasks of a read; None as `topic_id`: do not check the id."""

    # Writing

    def staging(self, write_id: str, *, flush: FlushMode = "fsync") -> Staging:
        """Where to stage the records of a write that has one task; `commit_staged` takes them."""


def native_or_none(root: Root) -> NativeRoot | None:
    """The native root that `root` is; None for a broker's directory. Raises AuthorizationError, see `Root.native`."""
    return None if root.is_broker_directory else root.native()
