"""The batch reader: the driver plans offset ranges, and each task reads one of them as Arrow batches.

Tasks read ranges of the planned topics, and not of topics re-created under their names since.

A task of a batch read has one range. A task of a micro-batch may have several: each task costs Spark about ten
milliseconds, however little it reads, so small ranges share one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_kafkalog.errors import CorruptRecordError, DataLossError, OffsetOutOfRangeError, called_by_spark
from pyspark_kafkalog.root.snapshot import reading_notices
from pyspark_kafkalog.spark.options.parse import Location, ReadOptions, at_location, locate_source
from pyspark_kafkalog.spark.read.filters import PushedFilters, push_filters
from pyspark_kafkalog.spark.read.plan import (
    OffsetRange,
    OffsetResolver,
    apply_filters,
    check_end_if_kept,
    check_ends,
    cut_by_bytes,
    cut_by_records,
    subscribed_partitions,
)
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.threads import bound_address_space, freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.root.planned import PlannedPartition
    from pyspark_kafkalog.root.protocol import Root

_LOG: Final = logging.getLogger(__name__)
_TRIES: Final = 10
_HEADERS: Final = "headers"


@dataclass(frozen=True)
class OffsetRangePartition(InputPartition):
    """The input of one task: offsets [start_offset, end_offset) of the partition `planned`, timestamps in ms.

    `committed`, `min_timestamp_ms` and `until_timestamp_ms` as in LogReader.read.
    """

    #: Advice about missing records, for the error message.
    advice: ClassVar[str] = ", or load() again: a DataFrame keeps the offsets that its first action planned"

    planned: PlannedPartition
    start_offset: int
    end_offset: int
    committed: bool
    fail_on_data_loss: bool
    min_timestamp_ms: int | None
    until_timestamp_ms: int | None

    @property
    def topic_partition(self) -> TopicPartition:
        return self.planned.topic_partition


def read_offset_range(each: OffsetRangePartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of `schema` with the records of one range.

    Records below the current log start offset are deleted, whether or not their bytes are still on disk. Raises
    DataLossError if records of the range were deleted after it was planned, unless failOnDataLoss is false.
    """
    bound_address_space()
    start_offset = each.start_offset
    log_start_offset = each.planned.moved_log_start()
    if log_start_offset > start_offset:
        end_offset = min(log_start_offset, each.end_offset)
        _report_lost(each, start_offset, end_offset, f"the log starts at {log_start_offset} now")
        start_offset = end_offset
    reader = _reader(each)
    while start_offset < each.end_offset:
        try:
            for batch in reader.read(
                start_offset,
                each.end_offset,
                schema=schema,
                committed=each.committed,
                min_timestamp_ms=each.min_timestamp_ms,
                until_timestamp_ms=each.until_timestamp_ms,
            ):
                yield _null_for_no_headers(batch) if _HEADERS in schema.names else batch
            return
        except OffsetOutOfRangeError as error:
            lost_from = max(start_offset, reader.reached_offset)
            start_offset = max(lost_from + 1, reader.first_offset_from(lost_from, default=each.end_offset))
            _report_lost(each, lost_from, min(start_offset, each.end_offset), str(error), error)


def _reader(each: OffsetRangePartition) -> LogReader:
    return LogReader(each.planned.extents(), each.topic_partition)


def _report_lost(
    each: OffsetRangePartition, start_offset: int, end_offset: int, reason: str, error: Exception | None = None
) -> None:
    message = f"{each.topic_partition}: records of offsets {start_offset} to {end_offset} are gone: {reason}"
    if each.fail_on_data_loss:
        raise DataLossError(
            f"{message}. Set failOnDataLoss to false to read the available records{each.advice}"
        ) from error
    _LOG.warning(message)


def _null_for_no_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spark's Kafka source shows a record without headers as null, not as an empty list."""
    import numpy as np
    import pyarrow as pa

    lists = batch.column(_HEADERS)
    bounds = lists.offsets.to_numpy()
    some = pa.py_buffer(np.packbits(bounds[1:] != bounds[:-1], bitorder="little"))
    shown = pa.Array.from_buffers(
        lists.type, len(lists), [some, lists.offsets.buffers()[1]], offset=0, children=[lists.values]
    )
    return batch.set_column(batch.schema.get_field_index(_HEADERS), batch.schema.field(_HEADERS), shown)


def read_same_topic(each: OffsetRangePartition, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass on `batches`, read lazily from the range `each`, and check that its topic is still the planned one.

    If the topic was deleted or re-created after planning, that is data loss: DataLossError, or a warning if
    failOnDataLoss is false. Raises DataLossError in any case if batches already passed on may contain records of
    another topic: Spark then drops them all. Raises LogDirError if the log directory was deleted or replaced.
    """
    if not each.planned.is_same_topic():
        _report_recreated(each)
        return
    try:
        yield from batches
    except (FileNotFoundError, CorruptRecordError):
        if each.planned.is_same_topic():
            raise
        _report_recreated(each)
        return
    if not each.planned.is_same_topic():
        each.planned.check_root()
        raise DataLossError(_lost(each))


def _report_recreated(each: OffsetRangePartition) -> None:
    each.planned.check_root()
    if each.fail_on_data_loss:
        raise DataLossError(f"{_lost(each)}. Set failOnDataLoss to false to read the other partitions")
    _LOG.warning(_lost(each))


def _lost(each: OffsetRangePartition) -> str:
    return (
        f"{each.topic_partition}: offsets {each.start_offset} to {each.end_offset} were "
        f"requested, but the topic was deleted or re-created after the read was planned"
    )


_SHARED_TASK_BYTES: Final = 256 << 10


@dataclass(frozen=True)
class StreamRange(OffsetRangePartition):
    """A range to read.

    `is_at_high_watermark`: it ends at the high watermark of the plan; the log must contain the batch that ends there.
    """

    advice: ClassVar[str] = ""

    is_at_high_watermark: bool


@dataclass(frozen=True)
class StreamTask(InputPartition):
    """The ranges that one task reads, in order."""

    ranges: tuple[StreamRange, ...]


def share_tasks(ranges: Iterable[tuple[StreamRange, int | None]]) -> list[StreamTask]:
    """Group ranges into tasks; small neighbours share one. Each comes with a bound on its bytes, None for many."""
    tasks: list[list[StreamRange]] = []
    room_bytes = 0
    for each, size_bytes in ranges:
        if size_bytes is None or size_bytes > room_bytes:
            tasks.append([])
            room_bytes = _SHARED_TASK_BYTES
        tasks[-1].append(each)
        room_bytes = 0 if size_bytes is None else room_bytes - size_bytes
    return [StreamTask(tuple(each)) for each in tasks]


def read_stream_range(each: StreamRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of `schema` with the records of one range. Raises DataLossError as `read_same_topic`."""
    yield from read_same_topic(each, _read_to_end(each, schema))


def _read_to_end(each: StreamRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    _check_end(each)
    yield from read_offset_range(each, schema)


def _check_end(each: StreamRange) -> None:
    if each.is_at_high_watermark:
        check_end_if_kept(_reader(each), each.end_offset)


@called_by_spark
class KafkalogBatchReader(DataSourceReader):
    """Plans and reads offset ranges; takes no filters."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """One input partition for each offset range, ordered by topic, partition and offset."""
        from pyspark_kafkalog.security.open import open_root

        location = locate_source(self._options)
        options = self._options
        root = open_root(
            None if location is None else location.root,
            principal=options.principal,
            read_to_log_end=options.read_to_log_end,
            remote_storage=options.remote_storage,
            store_options=options.store,
        )
        for _ in range(_TRIES - 1):
            version = root.version
            try:
                return self._planned(root, location)
            except (FileNotFoundError, CorruptRecordError):
                root.refresh()
                if root.version == version:  # so no topic was deleted meanwhile
                    raise
        return self._planned(root, location)

    def _planned(self, root: Root, location: Location | None) -> list[OffsetRangePartition]:
        ranges = self._plan(root, location)
        for notice in reading_notices(root.partitions_read()):
            _LOG.warning(notice)
        names = {each.topic_partition.topic for each in ranges}
        # Of a broker's directory, or a copy of one, people also read partitions that were put together.
        ids = {name: None if root.version is None else root.topic(name, readable_only=True).topic_id for name in names}
        return [
            self._input_partition(each, root.planned_partition(each.topic_partition, ids[each.topic_partition.topic]))
            for each in ranges
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one input partition; none for the placeholder that Spark creates for an empty plan."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if isinstance(partition, OffsetRangePartition):
            schema = to_arrow_schema(self._schema, timezone="UTC")
            yield from read_same_topic(partition, read_offset_range(partition, schema))
            freeze_imports()

    def _plan(self, root: Root, location: Location | None) -> list[OffsetRange]:
        options = self._options
        resolver = OffsetResolver(
            root,
            subscribed_partitions(root, at_location(options.subscription, location)),
            committed=options.committed,
            on_no_match=options.on_no_match,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        ranges = apply_filters(resolver.resolve(options.starting, options.ending), self._filters, resolver.readers)
        readers = resolver.readers
        check_ends(ranges, readers)
        ranges = cut_by_records(
            ranges, min_partitions=options.min_partitions, max_records_per_partition=options.max_records_per_partition
        )
        return cut_by_bytes(ranges, readers, max_bytes=options.max_bytes_per_partition, known_bytes=readers.known_bytes)

    def _input_partition(self, each: OffsetRange, planned: PlannedPartition) -> OffsetRangePartition:
        return OffsetRangePartition(
            planned.part(each.start_offset, each.end_offset, committed=self._options.committed),
            start_offset=each.start_offset,
            end_offset=each.end_offset,
            committed=self._options.committed,
            fail_on_data_loss=self._options.fail_on_data_loss,
            min_timestamp_ms=self._filters.timestamps_ms.start,
            until_timestamp_ms=self._filters.timestamps_ms.end,
        )


@called_by_spark
class KafkalogPushdownReader(KafkalogBatchReader):
    """Takes pushed-down filters on topic, partition, offset and timestamp before it plans."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters that the read applies exactly; return those that Spark has to evaluate."""
        self._filters, left = push_filters(filters)
        return left
