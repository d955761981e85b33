"""A topic, a partition's log, and slices of it, for use from Python.

    topic = log_dir["orders"]
    topic["2024-01-15T10:00":]                      all partitions from then on
    topic.to_pandas(text=True)                      all records
    log = topic[0]                                  a partition's log; also log_dir["orders", 0]
    log[100:200]                                    records with offsets 100 to 199
    log[-10:]                                       the last ten offsets
    log["2024-01-15T10:00":"2024-01-15T11:00"]      an hour
    log[100]                                        one record, as a dict
    log.tail()                                      records as they are committed

Iteration, indexing and `len` have the same elements: the names of topics in a LogDir, as the keys of a dict; partitions
in a TopicLog; records in a PartitionLog. `len` of a PartitionLog reads the log, as `count` does.

A TopicLog keeps its set of partitions; to include partitions added later, get `log_dir["orders"]` again.

A slice is a range of the log; creating one reads no records. Offsets are absolute, also in a slice of a slice;
negative offsets count from the end; offsets outside of the log are ignored, as in Python's lists, but the display of a
slice past the end says so. Offsets may have gaps (compaction, transaction markers), so a slice of ten offsets can have
fewer records.

A slice by time uses the time indexes, as Kafka's offsetsForTimes does: it extends from the first record at or after the
start to the first record at or after the end, which is excluded. If timestamps are out of order, all records between
these two belong to the slice regardless of their timestamps, and late records after it do not.

A poll of `tail` is cheap: in a native log directory it costs one failed open and one stat, in a broker's directory some
stats (the checkpoint of high watermarks, the partitions' directories and active segments). The root is read again only
if there is something new.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, overload

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidOptionError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.notebook.html import partition_log_html, topic_log_html
from pyspark_kafkalog.notebook.plots import Measure, plot_batches
from pyspark_kafkalog.notebook.seek import OffsetSeek, TimeSeek, explain_offset, explain_timestamp
from pyspark_kafkalog.notebook.tables import (
    LogRange,
    PointInTime,
    Records,
    as_dicts,
    batch_table,
    list_segments,
    point_in_time_ms,
    segments_table,
)
from pyspark_kafkalog.record.arrow import schema_of
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.reads import read_partition
from pyspark_kafkalog.root.snapshot import IsolationLevel, PartitionSnapshot, TopicDescription
from pyspark_kafkalog.storage.artefacts.checkpoint_file import REPLICATION_OFFSET_CHECKPOINT
from pyspark_kafkalog.storage.names import LOG_SUFFIX, segment_file
from pyspark_kafkalog.units import plural
from pyspark_kafkalog.values import check_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A bound of a slice: an offset (negative: from the end) or a point in time.
Bound: TypeAlias = "SupportsIndex | PointInTime | None"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PartitionLog(Records):
    """Offsets [start_offset, end_offset) of one partition; `log_dir[topic, partition]` is all of them.

    The contents are as of the log directory's last refresh. An unsliced log grows with each refresh, a slice keeps its
    offsets.
    """

    root: Root
    topic: str
    partition: int
    isolation: IsolationLevel = "read_uncommitted"
    _start: int | None = None
    _end: int | None = None
    _past_end: int | None = None

    @property
    def start_offset(self) -> int:
        """The first offset; for a whole log, the log start offset."""
        return self.describe().log_start_offset if self._start is None else self._start

    @property
    def end_offset(self) -> int:
        """The offset after the last; for a whole log, the high watermark, or the last stable offset if committed."""
        return self.describe().readable_end(self.isolation) if self._end is None else self._end

    @property
    def fixed_end_offset(self) -> int | None:
        """The end set by slicing; None if the end moves with the log."""
        return self._end

    def describe(self) -> PartitionSnapshot:
        """Directory, leader epoch, log start offset and high watermark of the partition."""
        return self.root.partition(self.topic, self.partition)

    def refresh(self) -> PartitionLog:
        """Read new commits, for all objects of the same log directory."""
        self.root.refresh()
        return self

    def committed(self) -> PartitionLog:
        """The same offsets, read as read_committed: without aborted transactions, up to the last stable offset."""
        found = replace(self, isolation="read_committed")
        end = self.describe().readable_end("read_committed")
        return found if self._end is None else replace(found, _end=max(min(self._end, end), self.start_offset))

    @overload
    def __getitem__(self, item: slice) -> PartitionLog: ...

    @overload
    def __getitem__(self, item: SupportsIndex) -> dict[str, Any]: ...

    def __getitem__(self, item: slice | SupportsIndex) -> PartitionLog | dict[str, Any]:
        """A slice by offsets or points in time, or the one record at an offset.

        Raises InvalidOptionError for a bound that is neither, OffsetOutOfRangeError if there is no record.
        """
        if not isinstance(item, slice):
            return self._record(item)
        if item.step is not None:
            raise InvalidOptionError("a log has no slices with a step")
        low, high = self.start_offset, self.end_offset
        start = low if item.start is None else self._offset_of(item.start, low, high)
        end = high if item.stop is None else self._offset_of(item.stop, low, high)
        past_end = max(start, end) if max(start, end) > high else None
        start = min(max(start, low), high)
        return replace(self, _start=start, _end=max(min(end, high), start), _past_end=past_end)

    def _offset_of(self, bound: Bound, low: int, high: int) -> int:
        if isinstance(bound, str | date):
            found = self.root.reader(self.topic, self.partition).offset_for_timestamp(
                point_in_time_ms(bound), low, high
            )
            return high if found is None else found.offset
        if isinstance(bound, SupportsIndex) and not isinstance(bound, bool):  # numpy's integers too
            offset = bound.__index__()
            return offset if offset >= 0 else high + offset
        raise InvalidOptionError(f"{bound!r} is neither an offset nor a point in time (ISO text or datetime)")

    def _record(self, item: SupportsIndex) -> dict[str, Any]:
        low, high = self.start_offset, self.end_offset
        offset = self._offset_of(item, low, high)
        if not low <= offset < high:
            raise OffsetOutOfRangeError(f"offset {item} of {self.name} is not in [{low}, {high})")
        for record in as_dicts(self.between(offset, offset + 1).to_arrow()):
            return record
        raise OffsetOutOfRangeError(
            f"offset {offset} of {self.name} has no record: it is a marker's, aborted, or compacted away"
        )

    def offset_at(self, point: PointInTime) -> int | None:
        """The offset of the first record at or after the point in time; None if there is no such record."""
        start, end = self.start_offset, self.end_offset
        found = self.root.reader(self.topic, self.partition).offset_for_timestamp(point_in_time_ms(point), start, end)
        return None if found is None else found.offset

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records in offset order, as indexing returns them; one Arrow batch is in memory at a time."""
        for batch in self.to_batches():
            yield from as_dicts(batch)

    def __len__(self) -> int:
        """The number of records, as `count`."""
        return self.count()

    def __bool__(self) -> bool:
        """Whether the range contains any offset; reads nothing."""
        return self.start_offset < self.end_offset

    def _record_batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        start, end = self.start_offset, self.end_offset
        return read_partition(self.root, self.describe(), start, end, self.isolation, schema)

    def tail(
        self,
        start: Bound = None,
        *,
        timeout_seconds: float | None = None,
        stop: Callable[[], bool] | None = None,
        columns: Sequence[str] | None = None,
        text: bool = False,
        poll_seconds: float = 0.1,
    ) -> Iterator[pa.RecordBatch]:
        """Yield records as they are committed, as Arrow batches, from the current end or `start` on; waits for more.

        Ends if no record arrives for `timeout_seconds`, if `stop()` is true (called after every batch and every poll),
        or at the end of a slice. It polls every `poll_seconds`, which costs one failed open and one stat, and refreshes
        the log directory if there are new commits. Raises OffsetOutOfRangeError if retention deletes records before
        they are read.
        """
        return follow(
            [self],
            [self.tail_start(start)],
            timeout_seconds=timeout_seconds,
            stop=stop,
            columns=columns,
            text=text,
            poll_seconds=poll_seconds,
        )

    def tail_start(self, start: Bound) -> int:
        """The offset at which `tail` begins: the current end, or the first offset at or after `start`."""
        return self.end_offset if start is None else self[start:].start_offset

    def between(self, start_offset: int, end_offset: int) -> PartitionLog:
        """The slice of these absolute offsets."""
        check_number("start_offset", start_offset)
        check_number("end_offset", end_offset)
        return replace(self, _start=start_offset, _end=end_offset, _past_end=None)

    def segments(self) -> pa.Table:
        """The segments that overlap the slice, one per row: offsets, sizes, time range, remote, clean, dirty or active.

        See `notebook.tables` for the columns.
        """
        start, end = self.start_offset, self.end_offset
        every = list_segments(self.root, self.describe(), times=True)
        return segments_table(
            [each for each in every if each.base_offset < max(end, start + 1) and each.end_offset >= start]
        )

    def batches(self) -> pa.Table:
        """The headers of the record batches that overlap the slice, one per row: see `notebook.tables`."""
        return batch_table(self.root.reader(self.topic, self.partition), self.start_offset, self.end_offset)

    def plot(self, *, of: Measure = "records", bins: int = 60, axes: Axes | None = None) -> Axes:
        """A chart of the records or bytes of the slice by time, drawn into `axes` if they are given; reads the headers.

        Raises MissingPackageError if matplotlib is not installed.
        """
        return plot_batches(self.name, [self.batches()], of=of, bins=bins, axes=axes)

    def at(self, offset: SupportsIndex) -> OffsetSeek:
        """The steps by which a reader finds the record at `offset`: segment, index, scan."""
        self.root.check(AclOperation.READ, ResourceType.TOPIC, self.topic)
        low, high = self.start_offset, self.end_offset
        found = self._offset_of(offset, low, high)
        if not low <= found < high:
            raise OffsetOutOfRangeError(f"offset {offset} of {self.name} is not in [{low}, {high})")
        return explain_offset(self.describe(), list_segments(self.root, self.describe()), found)

    def seek(self, point: PointInTime) -> TimeSeek:
        """The steps by which a reader finds the first record at or after a point in time."""
        self.root.check(AclOperation.READ, ResourceType.TOPIC, self.topic)
        segments = list_segments(self.root, self.describe())
        start, end = self.start_offset, self.end_offset
        return explain_timestamp(self.describe(), segments, point_in_time_ms(point), start, end)

    @property
    def name(self) -> str:
        """The name of the partition's directory, such as `orders-0`."""
        return f"{self.topic}-{self.partition}"

    def __repr__(self) -> str:
        committed = ", read_committed" if self.isolation == "read_committed" else ""
        return f"PartitionLog({self.name}, offsets [{self.start_offset}, {self.end_offset}){committed}{self.past_end})"

    @property
    def past_end(self) -> str:
        """What to add to the display of a slice that was to end, or to begin, after the end; else an empty text."""
        return "" if self._past_end is None else f", {self._past_end} is past the end"

    def _repr_html_(self) -> str:
        return partition_log_html(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TopicLog(Records):
    """A topic's partitions, or a slice by time of each. Records come partition by partition, each in offset order."""

    root: Root
    name: str
    logs: tuple[PartitionLog, ...]

    @classmethod
    def open(cls, root: Root, name: str) -> TopicLog:
        """The whole topic. Raises UnknownTopicError, which lists the existing topics."""
        numbers = root.partition_numbers(name)
        return cls(root, name, tuple(PartitionLog(root, name, number) for number in numbers))

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions' numbers; a broker's directory may have only some of them."""
        return tuple(log.partition for log in self.logs)

    def describe(self) -> TopicDescription:
        """Id, configuration overrides and partitions."""
        return self.root.topic(self.name)

    def refresh(self) -> TopicLog:
        """Read new commits, for all objects of the same log directory."""
        self.root.refresh()
        return self

    def committed(self) -> TopicLog:
        """The same, read as read_committed: without aborted transactions, up to the last stable offsets."""
        return replace(self, logs=tuple(log.committed() for log in self.logs))

    @overload
    def __getitem__(self, item: int) -> PartitionLog: ...

    @overload
    def __getitem__(self, item: slice) -> TopicLog: ...

    def __getitem__(self, item: int | slice) -> PartitionLog | TopicLog:
        """A partition's log by its number, or a slice of all partitions by points in time.

        Raises UnknownTopicError if the partition does not exist.
        """
        if isinstance(item, slice):
            bounds = [each for each in (item.start, item.stop) if each is not None]
            if item.step is not None or not all(isinstance(each, str | date) for each in bounds):
                raise InvalidOptionError(
                    f"a topic is sliced by points in time; offsets are a partition's: "
                    f'log_dir["{self.name}", 0][100:200]'
                )
            return replace(self, logs=tuple(log[item] for log in self.logs))
        for log in self.logs:
            if log.partition == item:
                return log
        numbers = ", ".join(map(str, self.partitions[:20]))
        raise UnknownTopicError(f"topic {self.name!r} has no partition {item}; there are: {numbers}")

    def __iter__(self) -> Iterator[PartitionLog]:
        """The partitions' logs, as indexing returns them, in the order of their numbers."""
        return iter(self.logs)

    def __len__(self) -> int:
        """The number of partitions in this directory; `count` is the number of records."""
        return len(self.logs)

    def _record_batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for log in self.logs:
            yield from log._record_batches(schema)

    def tail(
        self,
        start: PointInTime | None = None,
        *,
        timeout_seconds: float | None = None,
        stop: Callable[[], bool] | None = None,
        columns: Sequence[str] | None = None,
        text: bool = False,
        poll_seconds: float = 0.1,
    ) -> Iterator[pa.RecordBatch]:
        """Records of all partitions as they are committed: see `PartitionLog.tail`."""
        return follow(
            self.logs,
            [log.tail_start(start) for log in self.logs],
            timeout_seconds=timeout_seconds,
            stop=stop,
            columns=columns,
            text=text,
            poll_seconds=poll_seconds,
        )

    def plot(self, *, of: Measure = "records", bins: int = 60, axes: Axes | None = None) -> Axes:
        """A chart of the records or bytes of all partitions by time: see `PartitionLog.plot`."""
        return plot_batches(self.name, [log.batches() for log in self.logs], of=of, bins=bins, axes=axes)

    def __repr__(self) -> str:
        return f"TopicLog({self.name}, {plural(len(self.logs), 'partition')})"

    def _repr_html_(self) -> str:
        return topic_log_html(self.root, self.name, self.logs)


def follow(
    logs: Sequence[LogRange],
    start_offsets: Sequence[int],
    *,
    timeout_seconds: float | None,
    stop: Callable[[], bool] | None,
    columns: Sequence[str] | None,
    text: bool,
    poll_seconds: float,
) -> Iterator[pa.RecordBatch]:
    """The records of each log from its start offset on: see `PartitionLog.tail`. Raises InvalidOptionError at once."""
    schema_of(columns)
    return _follow(
        list(logs), list(start_offsets), timeout_seconds, stop or (lambda: False), columns, text, poll_seconds
    )


def _follow(
    logs: list[LogRange],
    positions: list[int],
    timeout_seconds: float | None,
    stop: Callable[[], bool],
    columns: Sequence[str] | None,
    text: bool,
    poll_seconds: float,
) -> Iterator[pa.RecordBatch]:
    news = _News(logs)
    last_seen = time.monotonic()
    while True:
        for number, log in enumerate(logs):
            _check_not_gone(log, positions[number])
            end = log.end_offset
            if end <= positions[number]:
                continue
            for batch in log.between(positions[number], end).to_batches(columns, text=text):
                yield batch
                last_seen = time.monotonic()
                if stop():
                    return
            positions[number] = end
        is_done = all(log.fixed_end_offset == at for log, at in zip(logs, positions, strict=True))
        if is_done:
            return
        while not news.take():
            is_late = timeout_seconds is not None and time.monotonic() - last_seen >= timeout_seconds
            if is_late or stop():
                return
            time.sleep(poll_seconds)


def _check_not_gone(log: LogRange, position: int) -> None:
    found = log.describe()
    if not found.log_start_offset <= position <= found.high_watermark:
        raise OffsetOutOfRangeError(
            f"offset {position} of {log.name}, which is next, is not in [{found.log_start_offset}, "
            f"{found.high_watermark}] any more: retention deleted it, or the topic was re-created"
        )


class _News:
    """Detects new commits, and then refreshes the root."""

    def __init__(self, logs: Sequence[LogRange]) -> None:
        self._root: Root = logs[0].root
        self._logs = logs
        self._seen = self._stamp()

    def take(self) -> bool:
        """Whether there are new commits since the last call."""
        has_versions = self._root.version is not None
        if has_versions:
            self._root.refresh()
        if self._stamp() == self._seen:
            return False
        if not has_versions:
            self._root.refresh()  # partitions may have rolled
        self._seen = self._stamp()
        return True

    def _stamp(self) -> object:
        """Changes with each commit: the version of the root, or else the files that a broker appends to."""
        if self._root.version is not None:
            return self._root.version
        paths = [directory / REPLICATION_OFFSET_CHECKPOINT for directory in self._root.directories]
        for log in self._logs:
            found = log.describe()
            paths += [found.directory, segment_file(found.directory, max(found.active_base_offset, 0), LOG_SUFFIX)]
        return [_file_stamp(path) for path in paths]


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
