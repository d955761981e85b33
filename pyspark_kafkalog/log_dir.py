"""`LogDir`: a log directory opened from Python, of ours or as a Kafka broker left it.

>>> import tempfile, pyarrow as pa
>>> from pyspark_kafkalog import LogDir
>>> scratch = tempfile.TemporaryDirectory()
>>> log_dir = LogDir.open_or_create(scratch.name + "/log")
>>> _ = log_dir.create_topic("orders", partitions=2, configs={"compression.type": "zstd"})
>>> committed = log_dir.append("orders", pa.table({"key": ["ann", "bob", "ann"], "value": ["1", "2", "3"]}))
>>> [(str(each.topic_partition), each.records) for each in committed.partitions]
[('orders-0', 3)]
>>> log_dir.read("orders", columns=["key", "value", "offset"]).slice(1).to_pylist()
[{'key': b'bob', 'value': b'2', 'offset': 1}, {'key': b'ann', 'value': b'3', 'offset': 2}]

A write with an id and a version is made once.

>>> written = pa.table({"value": ["4"]})
>>> for _ in range(2):
...     nightly = log_dir.append("orders", written, transactional_id="nightly", transaction_version=20260131)
>>> nightly.is_duplicate
True
>>> scratch.cleanup()

A root whose metadata log is not ours belongs to a broker: it can be read, at any time, and is never written to.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pyspark_kafkalog.errors import (
    InvalidOptionError,
    LogDirError,
    OffsetOutOfRangeError,
    ReadOnlyLogDirError,
    UnknownTopicError,
)
from pyspark_kafkalog.log_dir_items import LogDirItems
from pyspark_kafkalog.metadata.bootstrap import is_vacant
from pyspark_kafkalog.metadata.commit_result import CommitResult
from pyspark_kafkalog.metadata.own_root import OwnRoot
from pyspark_kafkalog.metadata.store import MetadataStore, is_ours
from pyspark_kafkalog.metadata.write_transaction import WriteTransaction
from pyspark_kafkalog.storage.broker_config import BrokerConfig
from pyspark_kafkalog.storage.clock import time_ms
from pyspark_kafkalog.storage.config_definitions import BATCH_SIZE_BYTES
from pyspark_kafkalog.storage.descriptions import PartitionDescription, TopicDescription
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.flush_mode import FlushMode, flushing_file_system
from pyspark_kafkalog.storage.foreign_root import ForeignRoot
from pyspark_kafkalog.storage.log_config import LogConfig
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.root_identity import RootIdentity, check_identity
from pyspark_kafkalog.storage.staging import StagedFile, discard_staged

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.metadata.history import HistoryEntry
    from pyspark_kafkalog.metadata.planned_state import PlannedState
    from pyspark_kafkalog.storage.log_reader import LogReader

__all__ = [
    "CommitResult",
    "FlushMode",
    "IsolationLevel",
    "LogDir",
    "PartitionDescription",
    "RootIdentity",
    "TopicDescription",
    "WriteTransaction",
]

IsolationLevel = Literal["read_uncommitted", "read_committed"]

_LOG: Final = logging.getLogger(__name__)


class LogDir(LogDirItems):
    """One root. What it tells is as of `open` or the last `refresh`, one consistent cut over all partitions."""

    def __init__(self, root: OwnRoot | ForeignRoot, *, clock: Callable[[], int], fs: FileSystem) -> None:
        self._root = root
        self._clock = clock
        self._fs = fs
        self._incarnation = uuid.uuid4().hex

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        principal: str | None = None,
        read_to_log_end: bool = False,
        identity: RootIdentity | None = None,
        clock: Callable[[], int] = time_ms,
        fs: FileSystem = LOCAL,
    ) -> LogDir:
        """Open the log directory at `path`, ours or a broker's.

        With a `principal`, such as "User:ann", methods raise AuthorizationError for what the access control entries do
        not permit it. With `read_to_log_end` a broker's logs are read up to their last whole, valid batch, not only to
        the high watermark of its checkpoint, which may be older than the logs. Raises LogDirError when there is no log
        directory, it cannot be read, or it is not the one with `identity`.
        """
        path = Path(path)
        check_identity(path, identity)
        root: OwnRoot | ForeignRoot
        if is_ours(path):
            root = OwnRoot(MetadataStore.open(path, clock=clock, fs=fs), clock=clock, fs=fs)
            if read_to_log_end:
                _LOG.warning("%s is not a broker's: reading to the log end has no effect, all is committed there", path)
        else:
            from pyspark_kafkalog.metadata.broker_metadata import read_topic_configs

            root = ForeignRoot(path, topic_configs=read_topic_configs, clock=clock, read_to_log_end=read_to_log_end)
        if principal is None:
            return cls(root, clock=clock, fs=fs)
        from pyspark_kafkalog.authorized_log_dir import AuthorizedLogDir

        return AuthorizedLogDir(root, principal=principal, clock=clock, fs=fs)

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        server_properties: str | Path | None = None,
        clock: Callable[[], int] = time_ms,
        fs: FileSystem = LOCAL,
    ) -> LogDir:
        """Make an empty log directory of ours at `path` and open it.

        `server_properties` names a file with broker-level settings (see conf/server.properties); they are kept in the
        metadata log. Raises LogDirError when it is one already, ReadOnlyLogDirError when a broker's files are there.
        """
        broker_config = None if server_properties is None else BrokerConfig.load(Path(server_properties))
        root = OwnRoot(MetadataStore.create(Path(path), clock=clock, fs=fs), clock=clock, fs=fs)
        if broker_config is not None:
            root.set_broker_configs(broker_config.properties)
        return cls(root, clock=clock, fs=fs)

    @classmethod
    def adopt(
        cls,
        path: str | Path,
        *,
        server_properties: str | Path | None = None,
        create_missing: bool = False,
        local_only: bool = False,
        clock: Callable[[], int] = time_ms,
        fs: FileSystem = LOCAL,
    ) -> LogDir:
        """Make the log directory of a stopped Kafka broker ours, in place, and open it; one of ours is just opened.

        Nothing is copied; an unclean log is recovered as by the broker. `server_properties` is the broker's
        configuration file, whose settings for topics are kept. `create_missing` makes the partitions, empty, that
        topics have elsewhere. `local_only` goes without the offsets that a tiering broker has moved to remote storage,
        which are refused otherwise. Raises LogDirError for a running broker's directory, and what cannot be adopted.
        """
        from pyspark_kafkalog.metadata.adopt import adopt  # the engine: not for those who just look

        properties = None if server_properties is None else Path(server_properties)
        adopt(
            Path(path),
            server_properties=properties,
            create_missing=create_missing,
            local_only=local_only,
            clock=clock,
            fs=fs,
        )
        return cls.open(path, clock=clock, fs=fs)

    @classmethod
    def open_or_create(cls, path: str | Path, *, clock: Callable[[], int] = time_ms, fs: FileSystem = LOCAL) -> LogDir:
        """Open the log directory at `path`; where there is nothing, or an empty directory, make one of ours.

        Also when others do the same at once, and after a crash in the middle of it.
        """
        root = Path(path)
        if not is_vacant(root):
            try:
                return cls.open(root, clock=clock, fs=fs)
            except LogDirError:
                if not is_ours(root):
                    raise
        try:
            return cls.create(root, clock=clock, fs=fs)
        except LogDirError:
            return cls.open(root, clock=clock, fs=fs)

    @property
    def path(self) -> Path:
        """The directory."""
        return self._root.path

    @property
    def is_foreign(self) -> bool:
        """Whether a Kafka broker wrote it, so that it is read-only here."""
        return self._root.is_foreign

    @property
    def identity(self) -> RootIdentity | None:
        """Which log directory it is, whatever its path: its cluster id and directory id; None where it has none."""
        return self._root.identity

    def refresh(self) -> None:
        """Take in what has been committed since. Raises LogDirError when another log directory, or none, is there."""
        self._root.refresh()

    @property
    def version(self) -> int | None:
        """Rises when `refresh` takes something in; None for a broker's directory, which does not tell."""
        return None if isinstance(self._root, ForeignRoot) else self._root.version

    def planned_state(self) -> PlannedState:
        """What a task needs to tell whether log starts have moved since the last `refresh`."""
        from pyspark_kafkalog.metadata.planned_state import PlannedState

        if isinstance(self._root, ForeignRoot):
            return PlannedState(str(self.path))
        last_file, next_file = self._root.store.last_and_next_file
        return PlannedState(str(self.path), str(last_file), str(next_file))

    def history(
        self, *, topic: str | None = None, limit: int | None = None, newest_first: bool = True
    ) -> Iterator[HistoryEntry]:
        """The commits that are kept, those that touched `topic` if one is named, the newest `limit` of them if given.

        Raises ReadOnlyLogDirError for a broker's directory, which has none of this package.
        """
        if isinstance(self._root, ForeignRoot):
            raise ReadOnlyLogDirError(
                f"{self.path} is a Kafka broker's log directory, which has no commits of this package to list; "
                "kafkalog dump-log --cluster-metadata-decoder shows the broker's own, in __cluster_metadata-0"
            )
        return self._root.history(topic=topic, limit=limit, newest_first=newest_first)

    def check_read(self, topics: Collection[str]) -> None:
        """Raises AuthorizationError where this was opened for a principal that may not read all of the topics."""

    def check_writable(self) -> None:
        """Raises ReadOnlyLogDirError for a broker's directory."""
        self._own()

    def check_write(self, topic: str) -> None:
        """Raises AuthorizationError where this was opened for a principal that may not write to the topic."""

    def looked_at(self) -> tuple[PartitionDescription, ...]:
        """The partitions of a broker's directory that were looked at since the last refresh; none of one of ours."""
        return self._root.looked_at() if isinstance(self._root, ForeignRoot) else ()

    # Topics

    def topics(self) -> tuple[str, ...]:
        """Names of all topics, internal ones too, in order."""
        return self._root.topics()

    def topic(self, name: str, *, without_links: bool = False) -> TopicDescription:
        """One topic with its partitions. Raises UnknownTopicError that lists the topics there are.

        In a broker's directory a partition that is a symbolic link raises LogDirError, or with `without_links` is left
        out and listed in `links`.
        """
        if isinstance(self._root, ForeignRoot):
            return self._root.topic(name, without_links=without_links)
        return self._root.topic(name)

    def log_config(self, topic: str) -> LogConfig:
        """The topic's configuration: its own over the broker-level one over Kafka's defaults."""
        return self._own().log_config(topic)

    def config_for_write(self, topic: str) -> LogConfig:
        """As `log_config`, for who may write to the topic: batches are made by it."""
        return self._own().log_config(topic)

    def broker_configs(self) -> Mapping[str, str]:
        """The broker-level settings that were made (`log.*`, `num.partitions`, …), by name."""
        return self._own().broker_configs()

    def alter_broker_configs(self, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        """Set broker-level settings and put others back to their defaults. Raises InvalidConfigError."""
        self._own().alter_broker_configs(add=add or {}, delete=delete)

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> TopicDescription:
        """Create a topic; `partitions` is num.partitions by default.

        Raises InvalidTopicError, TopicExistsError, InvalidConfigError.
        """
        self._own().create_topic(name, partitions=partitions, configs=configs or {})
        return self.topic(name)

    def ensure_topic(self, name: str) -> TopicDescription:
        """The topic, created first if need be and auto.create.topics.enable allows it."""
        self._own().ensure_topic(name)
        return self.topic(name)

    def add_partitions(self, name: str, total: int) -> None:
        """Raise the number of the topic's partitions to `total`. Raises InvalidTopicError when it is no more."""
        self._own().add_partitions(name, total=total)

    def alter_topic(self, name: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        """Set and delete configuration overrides of the topic. Raises InvalidConfigError."""
        self._own().alter_configs(name, add=add or {}, delete=delete)

    def delete_topic(self, name: str) -> None:
        """Delete the topic; its files go after file.delete.delay.ms."""
        self._own().delete_topic(name)

    # Reading

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        """Numbers of the topic's partitions that are here, without a look at them. Raises UnknownTopicError."""
        return self._root.partition_numbers(topic)

    def partition(self, topic: str, partition: int) -> PartitionDescription:
        """One partition. Raises UnknownTopicError."""
        return self._root.partition(TopicPartition(topic, partition))

    def last_stable_offset(self, topic: str, partition: int) -> int:
        """Where reading committed records ends: the oldest open transaction's first offset, or the high watermark."""
        return self._root.last_stable_offset(TopicPartition(topic, partition))

    def reader(self, topic: str, partition: int) -> LogReader:
        """Reads the partition's records at offsets of the caller's choice."""
        from pyspark_kafkalog.storage.log_reader import LogReader

        return LogReader(self.partition(topic, partition).directory, TopicPartition(topic, partition))

    def read(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start_offset: int | None = None,
        end_offset: int | None = None,
        isolation: IsolationLevel = "read_uncommitted",
        columns: Sequence[str] | None = None,
        local_only: bool = False,
    ) -> pa.Table:
        """Records of a topic, or of one partition, as a table with the columns of Spark's Kafka source.

        Offsets [start_offset, end_offset) of one partition may be given; they are the log start and the high watermark
        by default. Where a tiering broker has moved the earliest offsets to remote storage, reading from there fails,
        unless `local_only` lets it begin at the first offset in the directory. `columns` chooses some, headers among
        them; all by default. The table is in memory: for more than that, iterate over
        `reader(topic, partition).read(...)`.

        Raises OffsetOutOfRangeError, UnknownTopicError, CorruptRecordError.
        """
        from pyspark_kafkalog.partition_reads import read_table

        if partition is None and (start_offset is not None or end_offset is not None):
            raise OffsetOutOfRangeError("offsets are of one partition: name it")
        chosen = self.topic(topic).partitions if partition is None else (self.partition(topic, partition),)
        return read_table(self, chosen, start_offset, end_offset, isolation, columns, local_only=local_only)

    # Writing

    def append(
        self,
        topic: str,
        records: pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        compression_type: str | None = None,
        transactional_id: str | None = None,
        transaction_version: int | None = None,
        flush: FlushMode = "fsync",
    ) -> CommitResult:
        """Write records to a topic in one commit; the topic is created first if need be.

        Columns of `records`: value (string or binary), and key, headers, timestamp (any Arrow timestamp; the present
        time where null or left out). Without `partition` records with a key go where Kafka's default partitioner puts
        them, the others are spread. `compression_type` counts where the topic's leaves it to the producer.

        With `transactional_id` and `transaction_version` the write is made once: when that version of the id, or a
        later one, has been committed, nothing is done. This LogDir is then the id's holder, and others who wrote
        with it before are fenced. `flush` "os" leaves it to the kernel when the data reach the disk.

        Raises InvalidRecordError, ReadOnlyLogDirError, ProducerFencedError, InvalidOptionError.
        """
        from pyspark_kafkalog.storage.table_stager import stage_table
        from pyspark_kafkalog.storage.topic_stager import StagingTask

        transaction = self._transaction(transactional_id, transaction_version)
        fs = flushing_file_system(self._fs, flush)
        if transaction is not None and self.has_committed(transaction):
            return self.commit_staged((), transaction=transaction, flush=flush)
        described = self.ensure_topic(topic)
        if partition is not None and not 0 <= partition < len(described.partitions):
            raise UnknownTopicError(f"topic {topic!r} has partitions 0 to {len(described.partitions) - 1}")
        staged = stage_table(
            StagingTask(root=self.path, write_id=uuid.uuid4().hex, task=0),
            topic,
            records,
            partitions_count=len(described.partitions),
            partition=partition,
            config=self.config_for_write(topic),
            asked_compression=compression_type,
            batch_size_bytes=BATCH_SIZE_BYTES,
            clock_ms=self._clock,
            fs=fs,
        )
        try:
            return self.commit_staged(staged, transaction=transaction, flush=flush)
        except BaseException:
            discard_staged(self.path, staged, fs)
            raise

    def commit_staged(
        self,
        staged: Sequence[StagedFile],
        *,
        transaction: WriteTransaction | None = None,
        flush: FlushMode = "fsync",
    ) -> CommitResult:
        """Make staged files part of their partitions' logs, all in one commit, and remove them.

        With a `transaction` whose version has been committed nothing is done (`is_duplicate`). When it raises the
        files stay, and the same commit can be tried again.

        Raises ProducerFencedError when another incarnation has taken the transactional id over, UnknownTopicError,
        CommitConflictError, CommitStateUnknownError.
        """
        return self._own().commit_staged(staged, transaction=transaction, flush=flush)

    def init_transaction(self, transactional_id: str, incarnation: str) -> None:
        """Register `incarnation` as the holder of the transactional id, before it writes; those before it are fenced.

        A writer that does not call this takes the id over with its first commit. Raises ProducerFencedError when it is
        itself fenced.
        """
        self._own().init_transaction(transactional_id, incarnation)

    def has_transactional_id(self, transactional_id: str) -> bool:
        """Whether anybody has committed or registered with the transactional id, as of the last refresh."""
        return self._own().has_transactional_id(transactional_id)

    def last_version(self, transactional_id: str) -> int | None:
        """The last version of the transactional id that has been committed; None when there is none."""
        return self._own().last_version(transactional_id)

    def has_committed(self, transaction: WriteTransaction) -> bool:
        """Whether this version of the transactional id, or a later one, has been committed."""
        last_version = self.last_version(transaction.transactional_id)
        return last_version is not None and transaction.version <= last_version

    def _transaction(self, transactional_id: str | None, version: int | None) -> WriteTransaction | None:
        if transactional_id is None and version is None:
            return None
        if transactional_id is None or version is None:
            raise InvalidOptionError("transactional_id and transaction_version go together: give both or none")
        return WriteTransaction(transactional_id, version, self._incarnation)

    def own_root(self) -> OwnRoot:
        """The root itself, for maintenance. Raises ReadOnlyLogDirError for a broker's directory."""
        return self._own()

    def _own(self) -> OwnRoot:
        if isinstance(self._root, ForeignRoot):
            raise ReadOnlyLogDirError(
                f"{self.path} is a Kafka broker's log directory: it can be read, not written to or reconfigured; "
                "kafkalog adopt makes it one of this package's"
            )
        return self._root
