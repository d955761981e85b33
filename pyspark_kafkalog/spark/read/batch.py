"""The batch reader: the driver plans offset ranges, and each task reads one of them as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.root.brokers.notices import reading_notices
from pyspark_kafkalog.spark.options.parse import Location, ReadOptions, at_location, locate_source
from pyspark_kafkalog.spark.read.filters import PushedFilters, push_filters
from pyspark_kafkalog.spark.read.plan import (
    OffsetRange,
    OffsetResolver,
    apply_filters,
    check_ends,
    cut_by_bytes,
    cut_by_records,
    subscribed_partitions,
)
from pyspark_kafkalog.spark.read.task import OffsetRangePartition, read_offset_range, read_same_topic
from pyspark_kafkalog.spark.worker_memory import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PlannedPartition

_LOG: Final = logging.getLogger(__name__)
_TRIES: Final = 10


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
        check_ends(ranges, root, resolver.readers)
        ranges = cut_by_records(
            ranges,
            min_partitions=options.min_partitions,
            max_records_per_partition=options.max_records_per_partition,
        )
        return cut_by_bytes(ranges, resolver.readers, max_bytes=options.max_bytes_per_partition)

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


class KafkalogPushdownReader(KafkalogBatchReader):
    """Takes pushed-down filters on topic, partition, offset and timestamp before it plans."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters that the read applies exactly; return those that Spark has to evaluate."""
        self._filters, left = push_filters(filters)
        return left
