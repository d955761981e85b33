"""`LogDir`: a log directory opened from Python, native or a Kafka broker's; the facade over a `Root` for users.

The methods that it has from `root.protocol.PublicRoot` are documented there; `LogDir` also checks their arguments.

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

A write with a transactional id and a version is committed once, however often it is retried.

    >>> written = pa.table({"value": ["4"]})
    >>> for _ in range(2):
    ...     nightly = log_dir.append("orders", written, transactional_id="nightly", transaction_version=20260131)
    >>> nightly.is_duplicate
    True
    >>> scratch.cleanup()

Topics and logs by square brackets:

    log_dir["orders"]           a topic                      notebook.logs.TopicLog
    log_dir["orders", 0]        one partition's log          notebook.logs.PartitionLog
    "orders" in log_dir         whether the topic exists
    for name in log_dir         the names of the topics; len(log_dir) is their number

A root without a commit log of this package is a broker's directory: it can be read at any time and is never written to.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args, overload

from pyspark_kafkalog.config.broker import BROKER_CONFIGS, BrokerConfig
from pyspark_kafkalog.config.definitions import LowerVersion
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import InvalidOptionError, OffsetOutOfRangeError
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.record.codecs.codec import CODEC_NAMES
from pyspark_kafkalog.root.protocol import PublicRoot, Root
from pyspark_kafkalog.root.reads import append_table, read_table
from pyspark_kafkalog.root.snapshot import IsolationLevel, PartitionSnapshot, TopicDescription
from pyspark_kafkalog.root.writes import CommitResult, WriteTransaction
from pyspark_kafkalog.security.open import (
    AnyPath,
    create_native_root,
    open_access_control,
    open_or_create_root,
    open_root,
)
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity, read_properties_file
from pyspark_kafkalog.storage.filesystem import FlushMode, time_ms
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS
from pyspark_kafkalog.units import plural
from pyspark_kafkalog.values import check_mapping, check_number, check_one_of, check_text, check_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes

    from pyspark_kafkalog.groups.guarded_group import AnyGroup
    from pyspark_kafkalog.maintenance.export.broker_directory import ExportedBroker
    from pyspark_kafkalog.maintenance.export.copy import ExportedPartition
    from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
    from pyspark_kafkalog.metadata.history import HistoryEntry
    from pyspark_kafkalog.notebook.logs import PartitionLog, TopicLog
    from pyspark_kafkalog.notebook.plots import Measure
    from pyspark_kafkalog.notebook.tables import PointInTime
    from pyspark_kafkalog.object_store.address import StoreAddress
    from pyspark_kafkalog.object_store.location import RootPath
    from pyspark_kafkalog.record.appendable import Appendable
    from pyspark_kafkalog.report.maintenance import Maintenance, ReportPage, RunReports
    from pyspark_kafkalog.root.commit.staging import Staged
    from pyspark_kafkalog.security.access_control import AccessControl
    from pyspark_kafkalog.storage.log.reader import LogReader
    from pyspark_kafkalog.tiered.remote_storage import RemoteStorageOption

__all__ = [
    "CommitResult",
    "FlushMode",
    "IsolationLevel",
    "LogDir",
    "PartitionSnapshot",
    "RootIdentity",
    "TopicDescription",
    "WriteTransaction",
]

#: The kinds of arguments, by their names; the others are numbers.
_TEXTS: Final = frozenset({"group_id", "incarnation", "principal", "topic", "transactional_id"})
_MAPPINGS: Final = frozenset({"add", "configs", "store_options"})


class LogDir(PublicRoot):
    """An open log directory. All methods see the state as of `open` or the last `refresh`, consistent over partitions.

    A crash of the process leaves nothing that has to be cleaned up: each commit is atomic, and the next writer recovers
    the logs.
    """

    def __init__(self, root: Root, *, clock: Callable[[], int] = time_ms) -> None:
        self._root = root
        self._clock = clock
        self._incarnation = uuid.uuid4().hex

    @classmethod
    def open(
        cls,
        path: AnyPath | None,
        *,
        principal: str | None = None,
        read_to_log_end: bool = False,
        remote_storage: str | Path | None = None,
        remote_storage_layout: str | None = None,
        remote_storage_key_files: str | None = None,
        store_options: Mapping[str, str] | None = None,
    ) -> LogDir:
        """Open the log directory at `path`, native or a broker's; or several directories of brokers as one root.

        The URL of a log directory in an object store is opened with the settings of the environment, and a
        `StoreAddress` with its own. Several directories, as of a broker's log.dirs or copies of several brokers' disks,
        are a sequence of paths, or one path with commas between them. Each partition is read from its best replica.

        With a `principal`, such as "User:ann", methods raise AuthorizationError for operations that the access control
        entries do not permit. With `read_to_log_end`, a broker's logs are read up to the last complete, valid batch
        instead of the high watermark of the broker's checkpoint, which may be older than the logs.

        `remote_storage` is the remote storage of a broker with tiered storage, as a path or URL; logs then include what
        is there. Its layout, "local" or "aiven", is found by looking at the objects if it is not given. If `path` is
        None, the remote storage alone is read. `remote_storage_key_files` is for encrypted segments: the path of a PEM
        file with the private key, or several as <key id>:<path> with commas between.

        `store_options` are for the object store that a native log directory has copied segments to: options of the data
        source (storeEndpoint, storeAccessKey, …) or Hadoop's settings of S3A, where the environment does not tell.

        Raises LogDirError if `path` is not a log directory, or cannot be read.
        """
        _check(store_options=store_options)
        if principal is not None:
            _check(principal=principal)
        root = open_root(
            path,
            principal=principal,
            read_to_log_end=read_to_log_end,
            remote_storage=_remote_storage(remote_storage, remote_storage_layout, remote_storage_key_files),
            store_options=store_options or {},
        )
        return cls(root)

    @classmethod
    def create(cls, path: str | RootPath | StoreAddress, *, server_properties: str | Path | None = None) -> LogDir:
        """Create an empty native log directory at `path` and open it.

        `server_properties` is the path of a file with broker-level settings (see conf/server.properties); they are
        stored in the commit log.

        Raises LogDirError if `path` is already a native log directory or cannot be created, ReadOnlyLogDirError if it
        contains a broker's files.
        """
        broker_config = (
            None
            if server_properties is None
            else BrokerConfig.from_properties(read_properties_file(Path(server_properties)))
        )
        root = create_native_root(path)
        if broker_config is not None:
            given = broker_config.properties.items()
            root.alter_broker_configs(add={name: value for name, value in given if name in BROKER_CONFIGS})
        return cls(root)

    @classmethod
    def adopt(
        cls,
        path: str | Path,
        *,
        server_properties: str | Path | None = None,
        create_missing: bool = False,
        local_only: bool = False,
    ) -> LogDir:
        """Convert a stopped Kafka broker's directory into a native log directory, in place, and open it.

        No records are copied. A log that the broker did not close cleanly is recovered as the broker would recover it.
        A native log directory is only opened.

        - `server_properties`: the broker's configuration file; its topic-level defaults are kept
        - `create_missing`: create, empty, the partitions that the topics have only in other directories
        - `local_only`: give up the offsets that a broker has moved to tiered storage, instead of refusing to adopt

        Raises LogDirError for the directory of a running broker, and for a directory that cannot be adopted.
        """
        from pyspark_kafkalog.root.adopt.adopt import adopt  # loads the write path, which readers do not need

        properties = None if server_properties is None else Path(server_properties)
        adopt(Path(path), server_properties=properties, create_missing=create_missing, local_only=local_only)
        return cls.open(path)

    @classmethod
    def open_or_create(cls, path: str | RootPath | StoreAddress) -> LogDir:
        """Open the log directory at `path`; create a native one if `path` does not exist or is an empty directory.

        Concurrent calls are safe, and a call completes a creation that a crash interrupted.
        """
        return cls(open_or_create_root(path))

    @property
    def root(self) -> Root:
        """The log directory in the form that the functions of this package take, such as those for maintenance."""
        return self._root

    @property
    def path(self) -> RootPath:
        return self._root.path

    @property
    def is_broker_directory(self) -> bool:
        return self._root.is_broker_directory

    @property
    def follows(self) -> str | None:
        return self._root.follows

    @property
    def identity(self) -> RootIdentity | None:
        return self._root.identity

    def refresh(self) -> None:
        self._root.refresh()

    @property
    def version(self) -> int | None:
        return self._root.version

    def history(
        self, *, topic: str | None = None, limit: int | None = None, newest_first: bool = True
    ) -> Iterator[HistoryEntry]:
        check_number("limit", limit, least=0)
        if topic is not None:
            _check(topic=topic)
        return self._root.history(topic=topic, limit=limit, newest_first=newest_first)

    def access_control(self) -> AccessControl:
        """Lists and changes the access control entries. They apply to a LogDir opened with a principal."""
        return open_access_control(self._root)

    # Topics

    def topics(self) -> tuple[str, ...]:
        return self._root.topics()

    def topic(self, name: str, *, readable_only: bool = False) -> TopicDescription:
        _check(topic=name)
        return self._root.topic(name, readable_only=readable_only)

    def log_config(self, topic: str) -> LogConfig:
        _check(topic=topic)
        return self._root.log_config(topic)

    def broker_configs(self) -> Mapping[str, str]:
        return self._root.broker_configs()

    def alter_broker_configs(self, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        _check(add=add, delete=delete)
        self._root.alter_broker_configs(add=add, delete=delete)

    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        return self._root.group_configs()

    def alter_group_configs(
        self, group_id: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()
    ) -> None:
        _check(group_id=group_id, add=add, delete=delete)
        self._root.alter_group_configs(group_id, add=add, delete=delete)

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> TopicDescription:
        _check(topic=name, partitions=partitions, configs=configs)
        return self._root.create_topic(name, partitions, configs)

    def ensure_topic(self, name: str) -> TopicDescription:
        _check(topic=name)
        self._root.refresh()
        return self._root.ensure_topic(name)

    def add_partitions(self, name: str, total: int) -> None:
        _check(topic=name, total=total)
        self._root.add_partitions(name, total)

    def alter_topic(self, name: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        _check(topic=name, add=add, delete=delete)
        self._root.alter_topic(name, add=add, delete=delete)

    def delete_topic(self, name: str) -> None:
        _check(topic=name)
        self._root.delete_topic(name)

    # Reading

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        _check(topic=topic)
        return self._root.partition_numbers(topic)

    def partition(self, topic: str, partition: int) -> PartitionSnapshot:
        _check(topic=topic, partition=partition)
        return self._root.partition(topic, partition)

    def last_stable_offset(self, topic: str, partition: int) -> int:
        """The end of `read_committed` reads: first offset of the oldest open transaction, else the high watermark."""
        _check(topic=topic, partition=partition)
        return self._root.partition(topic, partition).last_stable_offset

    def reader(self, topic: str, partition: int) -> LogReader:
        _check(topic=topic, partition=partition)
        return self._root.reader(topic, partition)

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

        - `start_offset`, `end_offset`: the range [start_offset, end_offset) of one partition; the defaults are the log
          start offset and the high watermark, or the last stable offset with isolation "read_committed"
        - `columns`: the columns to read, which may include headers; the default is all
        - `local_only`: start at the local log start offset if a broker has moved earlier offsets to tiered storage;
          otherwise reading those raises OffsetOutOfRangeError

        The table is in memory. For data that do not fit, iterate over `reader(topic, partition).read(...)`.

        Raises OffsetOutOfRangeError, UnknownTopicError, CorruptRecordError.
        """
        _check(topic=topic, partition=partition, start_offset=start_offset)
        check_number("end_offset", end_offset, least=0)
        check_one_of("isolation", isolation, get_args(IsolationLevel))
        if partition is None and (start_offset is not None or end_offset is not None):
            raise OffsetOutOfRangeError("offsets are of one partition: name it")
        chosen = self.topic(topic).partitions if partition is None else (self.partition(topic, partition),)
        return read_table(self._root, chosen, start_offset, end_offset, isolation, columns, local_only=local_only)

    # Writing

    def append(
        self,
        topic: str,
        records: Appendable,
        *,
        partition: int | None = None,
        compression_type: str | None = None,
        transactional_id: str | None = None,
        transaction_version: int | None = None,
        lower_version: LowerVersion = "fail",
        flush: FlushMode = "fsync",
    ) -> CommitResult:
        """Write records to a topic in one commit. The topic is created if it does not exist.

        `records` are an Arrow table, record batch or RecordBatchReader, another object with `__arrow_c_stream__` (a
        DataFrame of pandas or polars, a relation of DuckDB), or a list of dicts. A RecordBatchReader is read batch by
        batch, so it may be larger than memory.

        Their columns are value, and optionally key, headers and timestamp. Keys and values are text, which is stored as
        UTF-8, or binary. Headers are lists of structs with key and value; in a dict also a dict, or pairs. Timestamps
        are of any unit; null or missing means the current time, and one without a zone is UTC.

        Without `partition`, Kafka's default partitioner chooses the partition of records with a key, and the others are
        spread. `compression_type` applies if the topic's compression.type is "producer".

        With `transactional_id` and `transaction_version`, the write is idempotent: if that version is the last one that
        was committed with the id, nothing is written. A lower version is an error, or with `lower_version` "skip" not
        written either. The write makes this LogDir the id's current incarnation and fences earlier ones. With `flush`
        "os", the kernel decides when the data reach the disk.

        Raises InvalidRecordError, ReadOnlyLogDirError, ProducerFencedError, LowerVersionError, InvalidOptionError.
        """
        _check(topic=topic, partition=partition)
        check_one_of("flush", flush, get_args(FlushMode))
        if compression_type is not None:
            check_one_of("compression_type", compression_type, CODEC_NAMES)
        self._root.check(AclOperation.WRITE, ResourceType.TOPIC, topic)  # before anything is staged
        self._root.check_writable()
        if transactional_id is not None:
            _check(transactional_id=transactional_id)
            self._root.check(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        transaction = self._transaction(transactional_id, transaction_version, lower_version)
        if transaction is not None and self.has_committed(transaction):
            return self.commit_staged((), transaction=transaction, flush=flush)
        return append_table(
            self._root,
            topic,
            records,
            partition=partition,
            compression_type=compression_type,
            transaction=transaction,
            flush=flush,
            clock=self._clock,
        )

    def commit_staged(
        self, staged: Sequence[Staged], *, transaction: WriteTransaction | None = None, flush: FlushMode = "fsync"
    ) -> CommitResult:
        return self._root.commit_staged(staged, transaction=transaction, flush=flush)

    def init_transaction(self, transactional_id: str, incarnation: str) -> None:
        _check(transactional_id=transactional_id, incarnation=incarnation)
        self._root.init_transaction(transactional_id, incarnation)

    def has_transactional_id(self, transactional_id: str) -> bool:
        _check(transactional_id=transactional_id)
        return self._root.has_transactional_id(transactional_id)

    def last_version(self, transactional_id: str) -> int | None:
        _check(transactional_id=transactional_id)
        return self._root.last_version(transactional_id)

    def has_committed(self, transaction: WriteTransaction) -> bool:
        return self._root.has_committed(transaction)

    def _transaction(
        self, transactional_id: str | None, version: int | None, lower_version: LowerVersion
    ) -> WriteTransaction | None:
        if transactional_id is None and version is None:
            return None
        if transactional_id is None or version is None:
            raise InvalidOptionError("transactional_id and transaction_version go together: give both or none")
        _check(transaction_version=version)
        return WriteTransaction(transactional_id, version, self._incarnation, lower_version)

    # Consumer groups

    def group(self, group_id: str) -> AnyGroup:
        """The consumer group of that name, which need not exist yet. Raises InvalidGroupError for an invalid name."""
        from pyspark_kafkalog.groups.guarded_group import open_group

        _check(group_id=group_id)
        return open_group(self._root, group_id)

    def groups(self) -> tuple[str, ...]:
        """Names of all groups in `__consumer_offsets`, in order."""
        from pyspark_kafkalog.groups.guarded_group import list_groups

        return list_groups(self._root)

    # Maintenance, in this process

    def retain(self, *topics: str, now: PointInTime | None = None, dry_run: bool = False) -> RunReports:
        """Delete the segments that retention.ms and retention.bytes let go, of all topics or of these.

        `now` is the time to use instead of the clock's; with `dry_run`, only report what would be deleted. A
        partition's failure is in its report. The command is `kafkalog retention`. Raises ReadOnlyLogDirError,
        UnknownTopicError.
        """
        return self._maintenance(*topics).retain(now, dry_run=dry_run)

    def clean(
        self, *topics: str, now: PointInTime | None = None, force: bool = False, dry_run: bool = False
    ) -> RunReports:
        """Compact all compacted topics, or these: keep the last record of each key in the closed segments.

        A partition is cleaned if it is due by min.cleanable.dirty.ratio, or, with `force`, if there is anything to
        clean. For `now`, `dry_run` and errors see `retain`. The command is `kafkalog log-cleaner`.
        """
        return self._maintenance(*topics).clean(now, force=force, dry_run=dry_run)

    def merge(self, *topics: str, dry_run: bool = False) -> RunReports:
        """Merge the small closed segments, and in an object store the data objects, of all topics or of these.

        For `dry_run` and errors see `retain`. The command is `kafkalog merge-segments`.
        """
        return self._maintenance(*topics).merge(dry_run=dry_run)

    def delete_records(self, offsets: Mapping[tuple[str, int], int], *, dry_run: bool = False) -> list[PartitionReport]:
        """Increase the log start offset of each topic and partition to the offset; -1 stands for the high watermark.

        A partition's failure is in its report. The command is `kafkalog delete-records`. Raises ReadOnlyLogDirError.
        """
        return self._maintenance().delete_records(offsets, dry_run=dry_run)

    def verify(self, *topics: str, deep: bool = False) -> RunReports:
        """Check all bytes of all topics, or of these; without names also the log directory itself.

        With `deep`, the records in compressed batches too. Works on broker's directories. The command is `kafkalog
        verify`, which also repairs. Raises UnknownTopicError, LogDirError.
        """
        return self._maintenance(*topics).verify(deep=deep)

    def export(
        self, to: str | Path, *topics: str, link: bool = True, overwrite: bool = False, tiered: bool = False
    ) -> list[ExportedPartition]:
        """Copy all topics, or these, to a new log directory, or into that of a stopped broker with the same topics.

        `link`: closed segments are hard links where the file system has them. `overwrite` replaces records that the
        broker's partitions have. `tiered`: segments in remote storage stay there. The command is `kafkalog export`.
        Raises LogDirError if `to` is another directory that is not empty, ReadOnlyLogDirError for a broker's directory.
        """
        return self._maintenance(*topics).export(to, link=link, overwrite=overwrite, tiered=tiered)

    def export_broker(self, to: str | Path, *topics: str, link: bool = True, tiered: bool = False) -> ExportedBroker:
        """Copy all topics, or these, to a directory on which a new broker starts; also from a broker's directory.

        The result has what its server.properties must say. For `link` and `tiered` see `export`. Raises LogDirError.
        """
        return self._maintenance(*topics).export_broker(to, link=link, tiered=tiered)

    def report(self, *, verify: bool = False, sample_bytes: int = 256 << 20) -> ReportPage:
        """The page on the log directory that `kafkalog report` writes: shown in a notebook, or saved with `save`.

        Up to `sample_bytes` of log are read for the largest keys, and with `verify` all bytes are checked.
        """
        _check(sample_bytes=sample_bytes)
        return self._maintenance().report(verify=verify, sample_bytes=sample_bytes)

    def _maintenance(self, *topics: str) -> Maintenance:
        from pyspark_kafkalog.report.maintenance import Maintenance  # loads the jobs, and compiled code

        for each in topics:
            _check(topic=each)
        return Maintenance(self._root, topics)

    # As a collection of topics, and in a notebook

    @overload
    def __getitem__(self, item: str) -> TopicLog: ...

    @overload
    def __getitem__(self, item: tuple[str, int]) -> PartitionLog: ...

    def __getitem__(self, item: str | tuple[str, int]) -> TopicLog | PartitionLog:
        """A topic, by name; or a partition's log, by topic name and partition number. Raises UnknownTopicError."""
        from pyspark_kafkalog.notebook.logs import TopicLog

        if isinstance(item, tuple) and len(item) != 2:
            raise InvalidOptionError(f"[{', '.join(map(repr, item))}]: expected [topic] or [topic, partition]")
        topic, *partition = item if isinstance(item, tuple) else (item,)
        _check(topic=topic)
        found = TopicLog.open(self._root, topic)
        return found[partition[0]] if partition else found

    def plot(self, *topics: str, of: Measure = "records", bins: int = 60, axes: Axes | None = None) -> Axes:
        """A chart of the records or bytes of these topics by time, or of all that are not internal; reads the headers.

        For the arguments see `PartitionLog.plot`. Raises InvalidOptionError if there is no topic.
        """
        for name in topics or [each for each in self.topics() if each not in INTERNAL_TOPICS]:
            axes = self[name].plot(of=of, bins=bins, axes=axes)
        if axes is None:
            raise InvalidOptionError(f"{self.path} has no topic to plot")
        return axes

    def __iter__(self) -> Iterator[str]:
        return iter(self.topics())

    def __len__(self) -> int:
        """The number of topics."""
        return len(self.topics())

    def __bool__(self) -> bool:
        """True, also without topics."""
        return True

    def __contains__(self, topic: object) -> bool:
        return topic in self.topics()

    def __repr__(self) -> str:
        kind = "a broker's directory" if self.version is None else f"native, version {self.version}"
        if self.follows is not None:
            kind += f", follows {self.follows}"
        return f"LogDir({str(self.path)!r}, {kind}, {plural(len(self.topics()), 'topic')})"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.topics())

    def _repr_html_(self) -> str:
        from pyspark_kafkalog.notebook.html import log_dir_html

        return log_dir_html(self._root)


def _check(**arguments: object) -> None:
    """Raise InvalidOptionError for an argument of another kind than its name tells."""
    for name, value in arguments.items():
        if name in _TEXTS:
            check_text(name, value)
        elif name == "delete":
            check_texts(name, value)
        elif name in _MAPPINGS:
            check_mapping(name, value)
        else:
            check_number(name, value)


def _remote_storage(
    location: str | Path | None, layout: str | None, key_files: str | None
) -> RemoteStorageOption | None:
    if location is None:
        if layout is not None or key_files is not None:
            raise InvalidOptionError("settings of remote storage go with remote_storage: give that too")
        return None
    from pyspark_kafkalog.tiered.remote_storage import parse_remote_storage  # few log directories have one

    return parse_remote_storage(str(location), layout, key_files=key_files)
