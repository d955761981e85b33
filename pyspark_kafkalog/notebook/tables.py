"""Tables of records, and of a partition's segments and record batches.

`Records` is the common base of a topic, a log and a slice of a log. All conversions use Arrow. An object is itself an
Arrow stream (`__arrow_c_stream__`), so that `pyarrow.table(log)` and `polars.DataFrame(log)` accept it too, batch by
batch.

Points in time that select records are parsed to ms since 1970, the unit of their timestamps:

    >>> point_in_time_ms("2024-01-15T10:00")
    1705312800000
    >>> point_in_time_ms("2024-01-15T11:00+01:00") == point_in_time_ms("2024-01-15 10:00:00Z")
    True

Segments, one row each; their sizes require one listing of the directory, times a few reads per local segment:

    base_offset, end_offset     offsets [base_offset, end_offset)
    size_bytes                  of the .log; index_bytes, time_index_bytes, txn_index_bytes: of the indexes
    first_timestamp             of the first batch's first record, null if its header does not contain it, or if it is
                                in remote storage
    max_timestamp               the largest of the segment, by its time index
    state                       active: appended to; clean, dirty: below or above the cleaner's checkpoint, of a
                                compacted topic; closed: of any other; remote: only in remote storage
    file                        name of the .log

The headers of record batches, one row each; CRCs are checked while the table is built, so it also proves that its
batches are intact:

    base_offset, last_offset    of the batch, as it was written; records_count may be less after compaction
    file, position, size_bytes  its location
    codec                       none, gzip, snappy, lz4, zstd
    max_timestamp               the largest of its records; timestamp_type: create or append
    base_timestamp              of its first record; null if a delete horizon takes its place, see delete_horizon
    kind                        data, or the type of a control batch: commit, abort, leader_change, …
    is_transactional, producer_id, producer_epoch, base_sequence      -1 without a producer
    leader_epoch, crc
"""

from __future__ import annotations

import contextlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_kafkalog.errors import DiskFormatError, InvalidOptionError, KafkalogError, MissingPackageError
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA, RECORD_SCHEMA, schema_of
from pyspark_kafkalog.record.codecs.codec import CODEC_NAMES
from pyspark_kafkalog.record.control import parse_control_type
from pyspark_kafkalog.record.header import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.snapshot import IsolationLevel, PartitionSnapshot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.artefacts.index_file import MAX_INDEX_BYTES, TimeIndex
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    offset_file_name,
    segment_file,
)
from pyspark_kafkalog.storage.segment.reader import BatchRun, Extent, LocalExtent, SegmentReader
from pyspark_kafkalog.storage.segment.stored import largest_timestamp_ms
from pyspark_kafkalog.units import EPOCH

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

_TEXT_COLUMNS = ("key", "value")


class Records(ABC):
    """Records with the columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp, …

    `columns` of the methods selects columns, all by default. With `text`, keys and values are strings instead of bytes;
    invalid UTF-8 is replaced by U+FFFD.
    """

    __slots__ = ()

    @abstractmethod
    def _record_batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The records with the columns of `schema`, a subset of RECORD_SCHEMA's."""

    #: Indices are partition numbers and offsets, so Python's way to reverse by position does not apply.
    __reversed__ = None

    def to_batches(self, columns: Sequence[str] | None = None, *, text: bool = False) -> Iterator[pa.RecordBatch]:
        """The records as Arrow batches, one in memory at a time."""
        batches = self._record_batches(schema_of(columns))
        return map(as_text, batches) if text else batches

    def to_arrow(self, columns: Sequence[str] | None = None, *, text: bool = False) -> pa.Table:
        """All records in an Arrow table."""
        schema = schema_of(columns)
        return pa.Table.from_batches(self.to_batches(columns, text=text), as_text_schema(schema) if text else schema)

    def to_pandas(self, columns: Sequence[str] | None = None, *, text: bool = False) -> pd.DataFrame:
        """All records in a pandas DataFrame. Raises MissingPackageError if pandas is not installed."""
        import_package("pandas")
        frame: pd.DataFrame = self.to_arrow(columns, text=text).to_pandas()
        return frame

    def to_polars(self, columns: Sequence[str] | None = None, *, text: bool = False) -> pl.DataFrame:
        """All records in a polars DataFrame. Raises MissingPackageError if polars is not installed."""
        frame: pl.DataFrame = import_package("polars").from_arrow(self.to_arrow(columns, text=text))
        return frame

    def to_duckdb(
        self,
        columns: Sequence[str] | None = None,
        *,
        text: bool = False,
        connection: duckdb.DuckDBPyConnection | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """All records as a DuckDB relation, of `connection` or the default one: `log.to_duckdb().aggregate(...)`.

        DuckDB's timestamps are in microseconds. Raises InvalidRecordError for one that is out of their range,
        MissingPackageError if duckdb is not installed.
        """
        used = connection or import_package("duckdb")
        schema = pa.schema([KAFKA_SCHEMA.field(each.name) for each in schema_of(columns)])
        table = pa.Table.from_batches(self._record_batches(schema), schema)
        if text:
            table = pa.Table.from_batches(map(as_text, table.to_batches()), as_text_schema(schema))
        relation: duckdb.DuckDBPyRelation = used.from_arrow(table)
        return relation

    def count(self) -> int:
        """The number of records. Reads the log, but decodes no columns; offsets do not suffice, as they have gaps."""
        return sum(batch.num_rows for batch in self._record_batches(pa.schema([])))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        stream = pa.RecordBatchReader.from_batches(RECORD_SCHEMA, self._record_batches(RECORD_SCHEMA))
        return stream.__arrow_c_stream__(requested_schema)


class LogRange(Protocol):
    """What drawings and `tail` need of a partition's log or a slice of it: see `PartitionLog`."""

    @property
    def root(self) -> Root: ...

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def isolation(self) -> IsolationLevel: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def fixed_end_offset(self) -> int | None: ...

    @property
    def past_end(self) -> str: ...

    def describe(self) -> PartitionSnapshot: ...

    def between(self, start_offset: int, end_offset: int) -> Records: ...


def as_dicts(records: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows; a timestamp that Python's calendar does not have is its number of milliseconds."""
    try:
        return [dict(each) for each in records.to_pylist()]
    except (ValueError, OverflowError):
        index = records.schema.get_field_index("timestamp")
        numbers = records.column(index).cast(pa.int64())
        rows = records.set_column(index, "timestamp", numbers).to_pylist()
        return [{**row, "timestamp": _time_or_ms(row["timestamp"])} for row in rows]


def _time_or_ms(timestamp_ms: int) -> datetime | int:
    try:
        return EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return timestamp_ms


def as_text_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` with keys and values as strings."""
    return pa.schema([field.with_type(pa.string()) if field.name in _TEXT_COLUMNS else field for field in schema])


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` with keys and values as strings."""
    arrays = [
        _as_text(array) if field.name in _TEXT_COLUMNS else array
        for field, array in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=as_text_schema(batch.schema))


def _as_text(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:  # some of it is not UTF-8: the slow path
        values = (None if value is None else value.decode(errors="replace") for value in array.to_pylist())
        return pa.array(values, pa.string())


def import_package(module: str, package: str | None = None) -> Any:
    """The module, of the optional package. Raises MissingPackageError, which says how to install the package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = package or module
        raise MissingPackageError(f"this needs {package}: pip install {package}") from error


# Points in time


#: ISO 8601 text or a datetime; UTC if it has no zone. A date means its midnight.
PointInTime: TypeAlias = str | date

_MS: Final = timedelta(milliseconds=1)


def point_in_time_ms(point: PointInTime) -> int:
    """`point` in ms, rounded up: a record is at or after the result exactly if it is at or after `point`.

    Raises InvalidOptionError for text that is not an ISO 8601 date or time.
    """
    if isinstance(point, str):
        point = _parse(point)
    elif not isinstance(point, date):
        raise InvalidOptionError(f"{point!r} is no point in time: expected ISO 8601 text, a datetime or a date")
    elif not isinstance(point, datetime):
        point = datetime.combine(point, time())
    if point.tzinfo is None:
        point = point.replace(tzinfo=timezone.utc)
    return -((EPOCH - point) // _MS)


def iso_text(timestamp_ms: int) -> str:
    """`timestamp_ms` as ISO 8601 text in UTC; the number itself if it is outside the calendar."""
    try:
        return (EPOCH + timedelta(milliseconds=timestamp_ms)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except OverflowError:
        return f"{timestamp_ms} ms"


def _parse(text: str) -> datetime:
    written = text.strip()
    if written.endswith(("Z", "z")):
        written = written[:-1] + "+00:00"
    try:
        return datetime.fromisoformat(written)
    except ValueError as error:
        raise InvalidOptionError(
            f"{text!r} is no point in time: expected ISO 8601, as 2024-01-15T10:00 or 2024-01-15T10:00:30.5+01:00"
        ) from error


_TIMESTAMP: Final = pa.timestamp("ms", "UTC")
_CODECS: Final = np.array([*CODEC_NAMES, *["unknown"] * (COMPRESSION_MASK + 1 - len(CODEC_NAMES))])

BATCHES_SCHEMA: Final = pa.schema(
    [
        pa.field("base_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("records_count", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("codec", pa.string()),
        pa.field("base_timestamp", _TIMESTAMP),
        pa.field("max_timestamp", _TIMESTAMP),
        pa.field("timestamp_type", pa.string()),
        pa.field("delete_horizon", _TIMESTAMP),
        pa.field("is_transactional", pa.bool_()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("base_sequence", pa.int32()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("crc", pa.uint32()),
        pa.field("file", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("size_bytes", pa.int64()),
    ]
)


def batch_table(reader: LogReader, start_offset: int, end_offset: int) -> pa.Table:
    """The batches that overlap [start_offset, end_offset), with the columns of BATCHES_SCHEMA; CRCs are checked.

    Raises CorruptRecordError for damage in the range, OffsetOutOfRangeError below the first segment.
    """
    if start_offset >= end_offset:
        return BATCHES_SCHEMA.empty_table()
    tables = [_rows(run) for run in reader.runs(start_offset, end_offset)]
    return pa.concat_tables(tables) if tables else BATCHES_SCHEMA.empty_table()


def _rows(run: BatchRun) -> pa.Table:
    batches = run.batches
    attributes = batches["attributes"]
    has_horizon = (attributes & DELETE_HORIZON_MASK) != 0
    base_timestamps = batches["base_timestamp_ms"]
    is_appended = (attributes & TIMESTAMP_TYPE_MASK) != 0
    columns: dict[str, Any] = {
        **{name: batches[name] for name in ("base_offset", "last_offset", "records_count")},
        "kind": _kinds(run),
        "codec": _CODECS[attributes & COMPRESSION_MASK],
        "base_timestamp": _times(base_timestamps, ~has_horizon & (base_timestamps >= 0)),
        "max_timestamp": _times(batches["max_timestamp_ms"], batches["max_timestamp_ms"] >= 0),
        "timestamp_type": np.where(is_appended, "append", "create"),
        "delete_horizon": _times(base_timestamps, has_horizon),
        "is_transactional": (attributes & TRANSACTIONAL_MASK) != 0,
        **{
            name: batches[name]
            for name in (
                "producer_id",
                "producer_epoch",
                "base_sequence",
                "leader_epoch",
                "crc",
                "position",
                "size_bytes",
            )
        },
        "file": [Path(run.file).name] * len(batches),
    }
    arrays = [
        each.cast(field.type) if isinstance(each, pa.Array) else pa.array(each, field.type)
        for field, each in ((field, columns[field.name]) for field in BATCHES_SCHEMA)
    ]
    return pa.Table.from_arrays(arrays, schema=BATCHES_SCHEMA)


def _times(timestamps_ms: NDArray[np.int64], known: NDArray[np.bool_]) -> pa.Array:
    return pa.array(np.ascontiguousarray(timestamps_ms), pa.int64(), mask=~known).cast(_TIMESTAMP)


def _kinds(run: BatchRun) -> list[str]:
    """The kind of each batch; control batches, which are few, are decoded."""
    kinds = ["data"] * len(run.batches)
    for row in np.flatnonzero(run.batches["attributes"] & CONTROL_MASK).tolist():
        kinds[row] = _marker(run, row)
    return kinds


def _marker(run: BatchRun, row: int) -> str:
    position = int(run.batches["position"][row])
    try:
        records = decode_batch(run.data, position - run.position, file=run.file, file_position=position).records
        key = records[0].key if records else None
        return parse_control_type(key, file=run.file, file_position=position).name.lower()
    except DiskFormatError:
        return "control"


class CleanerMarks:
    """The cleaner's checkpoint and the compacted topics, read once for any number of partitions."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._checkpoints = {directory: _cleaned(directory) for directory in root.directories}

    def first_dirty_offset(self, found: PartitionSnapshot) -> int | None:
        """The offset below which the log is clean; None if the topic is not known to be compacted."""
        clean_until = self._checkpoints.get(found.directory.parent, {}).get(found.topic_partition)
        if clean_until is None and self._is_compacted(found.topic):
            return found.log_start_offset
        return clean_until

    def _is_compacted(self, topic: str) -> bool:
        try:
            return self._root.is_compacted(topic)
        except (KafkalogError, OSError):
            return False


def _cleaned(directory: Path) -> Mapping[TopicPartition, int]:
    try:
        return read_offset_checkpoint(directory / CLEANER_OFFSET_CHECKPOINT)
    except (DiskFormatError, OSError):
        return {}


SegmentState = Literal["remote", "clean", "dirty", "closed", "active"]
SEGMENTS_SCHEMA: Final = pa.schema(
    [
        pa.field("base_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("index_bytes", pa.int64()),
        pa.field("time_index_bytes", pa.int64()),
        pa.field("txn_index_bytes", pa.int64()),
        pa.field("first_timestamp", _TIMESTAMP),
        pa.field("max_timestamp", _TIMESTAMP),
        pa.field("state", pa.string()),
        pa.field("file", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment; timestamps in ms, None if not requested or not known.

    `remote`: the segment in remote or object storage, if it is not in a directory; sizes of its indexes are 0.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    state: SegmentState
    index_bytes: int = 0
    time_index_bytes: int = 0
    txn_index_bytes: int = 0
    first_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    remote: Extent | None = None

    def extent(self, directory: Path | None) -> Extent:
        """What a reader reads of it; `directory` is the partition's."""
        if self.remote is not None:
            return self.remote
        assert directory is not None  # only remote segments are without one
        return LocalExtent(directory, self.base_offset)

    @property
    def file(self) -> str:
        """Name of the `.log` file."""
        return offset_file_name(self.base_offset, LOG_SUFFIX)


def list_segments(
    root: Root, found: PartitionSnapshot, *, times: bool = False, marks: CleanerMarks | None = None
) -> list[SegmentInfo]:
    """The partition's segments in order, the active one last. In a native log directory, sizes are of the last commit.

    `marks`: the directory's, if the caller already has them. Segments that are in remote storage only come first; their
    first timestamps are not read. A partition that has no directory yet has no segments.
    """
    sizes = _local_sizes(found)
    bases = sorted(base for base, files in sizes.items() if LOG_SUFFIX in files)
    if found.active_base_offset >= 0:  # a crashed writer left the data above it
        bases = [base for base in bases if base <= found.active_base_offset]
    clean_until = (marks or CleanerMarks(root)).first_dirty_offset(found) if bases[1:] else None
    ends = [*bases[1:], max(found.high_watermark, bases[-1])] if bases else []
    segments = []
    for base, end in zip(bases, ends, strict=True):
        is_active = base == bases[-1]
        size = sizes[base][LOG_SUFFIX]
        if is_active and found.active_size_bytes >= 0:
            size = min(size, found.active_size_bytes)
        segments.append(
            SegmentInfo(
                base_offset=base,
                end_offset=end,
                size_bytes=size,
                state="active" if is_active else _closed_state(end, clean_until),
                index_bytes=sizes[base].get(INDEX_SUFFIX, 0),
                time_index_bytes=sizes[base].get(TIME_INDEX_SUFFIX, 0),
                txn_index_bytes=sizes[base].get(TXN_INDEX_SUFFIX, 0),
            )
        )
    if times:
        segments = [with_times(found.local_directory, each) for each in segments]
    return [*_remote_segments(found, bases[0] if bases else found.high_watermark), *segments]


def _local_sizes(found: PartitionSnapshot) -> dict[int, dict[str, int]]:
    if found.local_directory is None:
        return {}
    try:
        return _file_sizes(found.directory)
    except FileNotFoundError:
        return {}


def _remote_segments(found: PartitionSnapshot, end_offset: int) -> list[SegmentInfo]:
    """The segments in remote storage that begin below `end_offset`, where the local ones begin.

    In an object store these are segment objects, and groups of runs that were not merged yet.
    """
    return [
        SegmentInfo(
            base_offset=each.base_offset,
            end_offset=end_offset if each.end_offset is None else min(each.end_offset, end_offset),
            size_bytes=each.known_size_bytes or 0,
            state="remote",
            max_timestamp_ms=each.known_max_timestamp_ms,
            remote=each,
        )
        for each in _remote_extents(found, end_offset)
    ]


def _remote_extents(found: PartitionSnapshot, end_offset: int) -> Sequence[Extent]:
    if found.remote is not None:
        return found.remote.log.extents_below(end_offset)
    return found.extents().current() if found.local_directory is None else ()


def segments_table(segments: Sequence[SegmentInfo]) -> pa.Table:
    """The segments as a table with the columns of SEGMENTS_SCHEMA."""
    return pa.table(
        {
            "base_offset": [each.base_offset for each in segments],
            "end_offset": [each.end_offset for each in segments],
            "size_bytes": [each.size_bytes for each in segments],
            "index_bytes": [each.index_bytes for each in segments],
            "time_index_bytes": [each.time_index_bytes for each in segments],
            "txn_index_bytes": [each.txn_index_bytes for each in segments],
            "first_timestamp": [each.first_timestamp_ms for each in segments],
            "max_timestamp": [each.max_timestamp_ms for each in segments],
            "state": [each.state for each in segments],
            "file": [each.file for each in segments],
        },
        schema=SEGMENTS_SCHEMA,
    )


def max_timestamp_ms(directory: Path | None, segment: SegmentInfo) -> int:
    """The largest timestamp of a segment's batches, -1 without any. Raises DiskFormatError, FileNotFoundError."""
    base_offset = segment.base_offset
    if directory is None or segment.remote is not None:
        return _remote_max_timestamp_ms(segment.extent(directory))
    if segment.state != "active":
        return largest_timestamp_ms(directory, base_offset)
    # The time index covers the batches up to the last offset index entry; the headers after it cover the rest.
    largest_ms = NO_TIMESTAMP
    try:
        path = segment_file(directory, base_offset, TIME_INDEX_SUFFIX)
        with TimeIndex.open(path, base_offset, max_index_bytes=MAX_INDEX_BYTES) as index:
            largest_ms = index.last_entry.timestamp_ms
    except (DiskFormatError, FileNotFoundError):
        pass
    with SegmentReader(LocalExtent(directory, base_offset)) as reader:
        position = reader.position_for_offset(segment.end_offset) if largest_ms != NO_TIMESTAMP else 0
        for _, header in reader.headers(position):
            largest_ms = max(largest_ms, header.max_timestamp_ms)
            if header.next_offset >= segment.end_offset:
                break  # the rest is uncommitted, or the torn tail of a broker that was killed
    return largest_ms


def _remote_max_timestamp_ms(extent: Extent) -> int:
    known_ms = extent.known_max_timestamp_ms
    if known_ms is not None:
        return known_ms
    with SegmentReader(extent) as reader:
        return max((header.max_timestamp_ms for _, header in reader.headers(0)), default=NO_TIMESTAMP)


def with_times(directory: Path | None, segment: SegmentInfo) -> SegmentInfo:
    """`segment` with its times; without them if it is damaged, was deleted meanwhile, or cannot be reached."""
    try:
        first_ms = _first_timestamp_ms(segment.extent(directory))
        largest_ms = max_timestamp_ms(directory, segment)
    except (KafkalogError, FileNotFoundError):
        return segment
    return replace(
        segment,
        first_timestamp_ms=None if first_ms < 0 else first_ms,
        max_timestamp_ms=None if largest_ms < 0 else largest_ms,
    )


def _first_timestamp_ms(extent: Extent) -> int:
    """The first record's timestamp; unknown if the cleaner has replaced it by a delete horizon in the header."""
    with SegmentReader(extent) as segment:
        for _, header in segment.headers(0):
            return NO_TIMESTAMP if header.attributes & DELETE_HORIZON_MASK else header.base_timestamp_ms
    return NO_TIMESTAMP


def _closed_state(end_offset: int, clean_until: int | None) -> SegmentState:
    if clean_until is None:
        return "closed"
    return "clean" if end_offset <= clean_until else "dirty"


def _file_sizes(directory: Path) -> dict[int, dict[str, int]]:
    """Sizes in bytes by base offset and suffix."""
    sizes: dict[int, dict[str, int]] = {}
    for suffix, offsets in PartitionListing.read(directory).files.items():
        for offset in offsets:
            with contextlib.suppress(FileNotFoundError):  # retention has deleted it since
                sizes.setdefault(offset, {})[suffix] = segment_file(directory, offset, suffix).stat().st_size
    return sizes
