"""The streaming reader: the driver plans micro-batches by offsets, and each task reads its ranges as Arrow batches.

One process has the reader as long as its query runs. The state that it keeps between calls is never needed to plan a
micro-batch again after a crash (see plan.py); it serves to report losses early and to avoid repeated reads.

A query reads from one log directory. The checkpoint contains its ids and those of its topics (plan.py): another log
directory at the path ends the query, and a re-created topic is recognised by its id. A checkpoint of Spark's Kafka
source, or of an earlier version, has no ids; they are added with the next offsets.

With a consumer group, progress is committed to it, so that group tools can show the lag. It is never read back: a query
resumes from its checkpoint. A failed commit is logged and does not fail the query. Each commit contains the offsets
that changed, and from time to time all of them, so that the offset of an idle partition does not expire. A query that
starts, or fails in its first micro-batch, moves no offset; nor does one move the offset of a partition of which it has
processed nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pyspark_kafkalog.errors import (
    DataLossError,
    InvalidOptionError,
    KafkalogError,
    ReadOnlyLogDirError,
    UnknownTopicError,
    called_by_spark,
    without_frames,
)
from pyspark_kafkalog.root.snapshot import reading_notices
from pyspark_kafkalog.spark.options.parse import StreamReadOptions, at_location, locate_source
from pyspark_kafkalog.spark.options.positions import Earliest
from pyspark_kafkalog.spark.read.plan import (
    OffsetRange,
    OffsetResolver,
    PlanReaders,
    cut_by_bytes,
    cut_by_records,
    subscribed_partitions,
)
from pyspark_kafkalog.spark.read.reader import StreamRange, StreamTask, read_stream_range, share_tasks
from pyspark_kafkalog.spark.stream.plan import (
    BatchDelay,
    Origin,
    StreamOffsets,
    StreamView,
    TopicIds,
    default_read_limit,
    from_json,
    limit_bytes,
    limit_offsets,
    origin_from_json,
    plan_latest,
    plan_read,
    take_view,
    to_json,
    unread_count,
)
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity, another_root_error
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.threads import freeze_imports
from pyspark_kafkalog.units import NS_PER_MS

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.root.protocol import Root


_LOG: Final = logging.getLogger(__name__)
_ALL_EVERY_S: Final = 3600.0


class GroupProgress:
    """Commits offsets to `group_id`; does nothing if it is None.

    Of a partition of which this run has processed nothing, the group's offset stays: it may be that of another reader,
    or one that was reset. Exceptions: the group has none yet; or a resumed query is ahead of it, whose last run was
    killed before the commit.
    """

    def __init__(self, group_id: str | None) -> None:
        self._group_id = group_id
        self._begun: StreamOffsets | None = None
        self._is_resumed = True
        self._reached: StreamOffsets | None = None
        self._committed: StreamOffsets = {}
        self._all_at_s: float | None = None

    def begin(self, offsets: StreamOffsets) -> None:
        """Register where a new query begins. Without this call a query resumes at the offsets it reaches first."""
        self._begun = self._reached = offsets
        self._is_resumed = False

    def reach(self, offsets: StreamOffsets, root: Root) -> None:
        """Commit that all records before `offsets` are processed; does nothing if they are those of the last call."""
        if self._group_id is None or offsets == self._reached:
            return
        if self._begun is None:
            self._begun = offsets
        self._reached = offsets  # also after a failure: the next micro-batch retries, not the next poll for records
        now_s = time.monotonic()
        is_all = self._all_at_s is None or now_s - self._all_at_s >= _ALL_EVERY_S
        topics = root.topics()
        changed = {
            each: offset
            for each, offset in offsets.items()
            if each.topic in topics and (is_all or self._committed.get(each) != offset)
        }
        from pyspark_kafkalog.groups.guarded_group import open_group

        try:
            group = open_group(root, self._group_id)
            unprocessed = {each for each, offset in changed.items() if offset == self._begun.get(each)}
            if unprocessed:
                held = group.fetch({each.topic for each in unprocessed})
                for each in unprocessed:
                    if each in held and not self._may_replace(held[each].offset, changed[each]):
                        del changed[each]
            if changed:
                group.commit(changed)
        except ReadOnlyLogDirError as error:
            _LOG.warning("no offsets are committed to group %s: %s", self._group_id, error)
            self._group_id = None
        except (KafkalogError, OSError) as error:
            _LOG.warning("offsets could not be committed to group %s: %s", self._group_id, error)
        else:
            self._committed = offsets
            self._all_at_s = now_s if is_all else self._all_at_s

    def _may_replace(self, held_offset: int, offset: int) -> bool:
        """Whether `offset`, at which this run began, may replace the group's; the same one is stored anew."""
        return held_offset == offset or (self._is_resumed and held_offset < offset)


_LOSSES_REPORTED_MAX: Final = 10
_TRIES: Final = 10


@called_by_spark
class KafkalogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches."""

    def __init__(self, options: StreamReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._source: _Source | None = None
        self._delay: BatchDelay | None = None
        if options.min_offsets_per_trigger is not None:
            self._delay = BatchDelay(
                options.min_offsets_per_trigger, options.max_trigger_delay_ms, clock_ms=_monotonic_ms
            )
        self._topic_ids: dict[str, str | None] = {}
        self._view: StreamView | None = None  # of the last latestOffset call, for the plan that follows
        self._target: StreamView | None = None  # the end for Trigger.AvailableNow
        self._initial: StreamOffsets | None = None
        self._is_initial_anew = False  # whether an earlier process may have planned the first micro-batch's end
        self._pinned: frozenset[TopicPartition] = frozenset()
        self._progress = GroupProgress(options.group_id)

    # Where to start

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """The start of a new query, from the options. Spark calls it twice; both calls return the same offsets."""
        if self._initial is None:
            if self._target is None:
                self._opened().refresh()
            self._initial = self._resolve_initial()
            self._is_initial_anew = True
            self._progress.begin(self._initial)
        root = self._opened().root
        ids = {topic: root.topic(topic).topic_id for topic in {each.topic for each in self._initial}}
        return to_json(self._initial, self._origin(ids))

    def _origin(self, topic_ids: TopicIds) -> Origin:
        known = {topic: topic_id for topic, topic_id in topic_ids.items() if topic_id is not None}
        return Origin(self._opened().root.identity, known)

    def _resolve_initial(self) -> StreamOffsets:
        source, options = self._opened(), self._options
        resolver = OffsetResolver(
            source.root,
            subscribed_partitions(source.root, source.subscription),
            committed=options.committed,
            on_no_match=options.on_no_match,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        starts = resolver.resolve_starts(options.starting)
        # Spark writes the end of the first micro-batch to the checkpoint, not its start. A query that is killed in it
        # gets here again, and "latest" is then a later offset. So the first micro-batch reads nothing from partitions
        # that start at their end: their offset in the checkpoint is then where they started.
        if not isinstance(options.starting, Earliest):
            self._pinned = frozenset(
                each for each, offset in starts.items() if offset >= resolver.available(each).end_offset
            )
        return starts

    # Where to end

    def prepareForTriggerAvailableNow(self) -> None:
        """Store the current ends of the partitions: the query stops there."""
        self._target = self._opened().refreshed_view()
        self._topic_ids = {each.topic: found.topic_id for each, found in self._target.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits in the options; `latestOffset` applies all of them."""
        return default_read_limit(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """The end of the next micro-batch after `start`; `start` itself if there are no new records, or not enough.

        Raises DataLossError if offsets from `start` on are missing, unless failOnDataLoss is false; LogDirError if the
        log directory is not the one that `start` belongs to.
        """
        self._is_initial_anew = False
        starts, origin = from_json(start), origin_from_json(start)
        self._opened(origin.root)
        # Spark passes the offsets that it has processed. It calls `commit` for a micro-batch only with the next one,
        # which may come much later or never.
        self._progress.reach(starts, self._opened().root)
        view = self._view = self._opened().refreshed_view()
        self._meet_topics(starts, view)
        plan = plan_latest(starts, view, {**self._topic_ids, **origin.topic_ids})
        if self._options.fail_on_data_loss:
            self._report_losses(plan.losses)
        ends = self._up_to_target(starts, plan.ends)
        if self._pinned:
            ends.update({each: starts[each] for each in self._pinned if each in ends and each in starts})
            self._pinned = frozenset()
        if not isinstance(limit, ReadAllAvailable):
            ends = dict(starts if self._is_held_back(starts, ends, view) else self._limited(starts, ends, view))
        if ends == starts:
            return start
        ids = {each.topic: view[each].topic_id or origin.topic_ids.get(each.topic) for each in ends}
        return to_json(ends, self._origin(ids))

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        """The end of all records at the last `latestOffset` call, which Spark shows beside the query's progress."""
        if not self._view:
            return None
        return to_json({each: found.readable_end_offset for each, found in self._view.items()})

    def _meet_topics(self, starts: StreamOffsets, view: StreamView) -> None:
        """Store the ids of the topics that are read; a topic that has one keeps it as long as it is in `starts`."""
        known = {each.topic for each in starts}
        for topic_partition, found in view.items():
            topic = topic_partition.topic
            if topic not in known or topic not in self._topic_ids:
                self._topic_ids[topic] = found.topic_id

    def _up_to_target(self, starts: StreamOffsets, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """`ends`, limited to the target of Trigger.AvailableNow; partitions created or re-created later stay put."""
        target, view = self._target, self._view
        if target is None or view is None:
            return ends
        bounded: dict[TopicPartition, int] = {}
        for topic_partition, end_offset in ends.items():
            start_offset = starts.get(topic_partition)
            seen = target.get(topic_partition)
            if seen is not None and seen.topic_id == view[topic_partition].topic_id:
                bounded[topic_partition] = min(end_offset, max(seen.readable_end_offset, start_offset or 0))
            elif start_offset is not None:
                bounded[topic_partition] = min(end_offset, start_offset)
        return bounded

    def _is_held_back(self, starts: StreamOffsets, ends: StreamOffsets, view: StreamView) -> bool:
        """Whether there are too few records for a batch; always False with Trigger.AvailableNow, which must finish."""
        if self._delay is None or self._target is not None:
            return False
        return self._delay.holds_back(unread_count(starts, ends, view))

    def _limited(self, starts: StreamOffsets, ends: StreamOffsets, view: StreamView) -> StreamOffsets:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            ends = limit_offsets(starts, ends, view, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            ends = limit_bytes(starts, ends, view, options.max_bytes_per_trigger)
        return ends

    # What to read

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One input partition for each task, ordered by topic, partition and offset; none for start == end.

        Raises DataLossError if offsets in the range are missing; with failOnDataLoss=false it logs a warning instead.
        """
        if start == end:
            return []
        self._opened(origin_from_json(start).root)
        source = self._opened(origin_from_json(end).root)
        self._pinned = frozenset()
        for _ in range(_TRIES - 1):
            view = self._view = self._view or source.refreshed_view()
            try:
                return self._planned(start, end, view)
            except (FileNotFoundError, UnknownTopicError):  # a topic was deleted since the view was taken
                self._view = source.refreshed_view()
                if self._view is view:
                    raise
        return self._planned(start, end, self._view or source.refreshed_view())

    def _planned(self, start: dict[str, Any], end: dict[str, Any], view: StreamView) -> list[StreamTask]:
        """The tasks by the state of the partitions in `view`. Raises FileNotFoundError, UnknownTopicError if it is
        old."""
        topic_ids = {**origin_from_json(start).topic_ids, **origin_from_json(end).topic_ids}
        plan = plan_read(from_json(start), from_json(end), view, is_initial=self._is_initial_anew, topic_ids=topic_ids)
        self._report_losses(plan.losses)
        return self._tasks(self._cut(plan.ranges, view), view)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one input partition."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if isinstance(partition, StreamTask):
            schema = to_arrow_schema(self._schema, timezone="UTC")
            for each in partition.ranges:
                yield from read_stream_range(each, schema)
            freeze_imports()

    def stop(self) -> None:
        """Drop the stored views."""
        self._source = self._view = self._target = None

    def _cut(self, ranges: list[OffsetRange], view: StreamView) -> list[OffsetRange]:
        options = self._options
        pieces = cut_by_records(
            ranges, min_partitions=options.min_partitions, max_records_per_partition=options.max_records_per_partition
        )
        return cut_by_bytes(
            pieces,
            PlanReaders(self._opened().root),
            max_bytes=options.max_bytes_per_partition,
            known_bytes=lambda each: view[each.topic_partition].known_size_bytes(each.start_offset),
        )

    def _tasks(self, ranges: list[OffsetRange], view: StreamView) -> list[StreamTask]:
        """One task per range; unless options set the number of tasks, small ranges share one."""
        is_free = self._options.min_partitions is None and self._options.max_records_per_partition is None
        return share_tasks(
            (
                self._stream_range(each, view),
                view[each.topic_partition].estimated_bytes(each.start_offset, each.end_offset) if is_free else None,
            )
            for each in ranges
        )

    def _stream_range(self, each: OffsetRange, view: StreamView) -> StreamRange:
        found = view[each.topic_partition]
        return StreamRange(
            self._opened()
            .root.planned_partition(each.topic_partition, found.topic_id)
            .part(each.start_offset, each.end_offset, committed=self._options.committed),
            start_offset=each.start_offset,
            end_offset=each.end_offset,
            committed=self._options.committed,
            fail_on_data_loss=self._options.fail_on_data_loss,
            min_timestamp_ms=None,
            until_timestamp_ms=None,
            is_at_high_watermark=each.end_offset == found.high_watermark,
        )

    def _report_losses(self, losses: Sequence[str]) -> None:
        if not losses:
            return
        if self._options.fail_on_data_loss:
            more = f"; and {len(losses) - _LOSSES_REPORTED_MAX} more" if len(losses) > _LOSSES_REPORTED_MAX else ""
            raise DataLossError(
                f"{'; '.join(losses[:_LOSSES_REPORTED_MAX])}{more}. "
                "Set failOnDataLoss to false to read the available records"
            )
        for loss in losses:
            _LOG.warning(loss)

    def _opened(self, identity: RootIdentity | None = None) -> _Source:
        """The source. Raises LogDirError unless it is the log directory with `identity`; None accepts any."""
        if self._source is None:
            self._source = _Source(self._options, identity)
        self._source.check(identity)
        return self._source


@called_by_spark
class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error by which the options of a stream are refused, whatever Spark calls first.

    If `streamReader` raises it, the process of Spark 4.2 reports another error, of its own clean-up, in place of it.
    """

    def __init__(self, error: InvalidOptionError) -> None:
        self._error = without_frames(error)

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def initialOffset(self) -> dict[str, dict[str, int]]:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class _Source:
    """The log directory as the options name it."""

    def __init__(self, options: StreamReadOptions, identity: RootIdentity | None) -> None:
        location = locate_source(options)
        self._path = None if location is None else location.root
        self._committed = options.committed
        self._principal = options.principal
        self._read_to_log_end = options.read_to_log_end
        self._remote_storage = options.remote_storage
        self._store_options = options.store
        self._has_warned = False
        self._view: StreamView | None = None
        self._view_version: int | None = None
        self.subscription = at_location(options.subscription, location)
        self.root = self._open(identity)

    def check(self, identity: RootIdentity | None) -> None:
        """Raise LogDirError unless it is the log directory with `identity`; None accepts any."""
        if identity is not None and not identity.fits(self.root.identity):
            raise another_root_error(self.root.path, identity, self.root.identity)

    def refresh(self) -> None:
        """Refresh the log directory. One without commits is opened again: it may have been adopted meanwhile.

        Raises LogDirError if the path has another log directory, or none.
        """
        if self.root.version is None:
            self.root = self._open(self.root.identity)
        else:
            self.root.refresh()

    def refreshed_view(self) -> StreamView:
        """The subscribed partitions as of now; the previous view if nothing was committed since."""
        self.refresh()
        if self._view is None or self.root.version is None or self.root.version != self._view_version:
            self._view = take_view(self.root, self.subscription, committed=self._committed)
            self._view_version = self.root.version
            self._warn_once()
        return self._view

    def _warn_once(self) -> None:
        """Log, once per query, what it does not read of brokers' directories."""
        if not self._has_warned:
            self._has_warned = True
            for notice in reading_notices(self.root.partitions_read()):
                _LOG.warning(notice)

    def _open(self, identity: RootIdentity | None) -> Root:
        from pyspark_kafkalog.security.open import open_root

        return open_root(
            self._path,
            principal=self._principal,
            identity=identity,
            read_to_log_end=self._read_to_log_end,
            remote_storage=self._remote_storage,
            store_options=self._store_options,
        )


def _monotonic_ms() -> int:
    return time.monotonic_ns() // NS_PER_MS
