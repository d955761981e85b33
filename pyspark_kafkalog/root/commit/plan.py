"""The plan of a commit of many units: what each partition gets, decided before anything is stored.

    for each unit, in order
        appends     the unit makes its appends from the image, and may refuse itself
        check       batches are checked and get the offsets after those of the units before (`leader_append`), and
                    sequences are checked against the log and the units before (`sequences`)
        records     the unit makes its further records from what its appends would get
        keep        the partitions' plans take over the unit's batches; a refused unit leaves no trace

Nothing here writes. Where the logs are, and how they are opened, is the caller's: `open_partition`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError, LogDirError, UnknownTopicError, without_frames
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.record.header import TimestampType
from pyspark_kafkalog.root.commit.changes import AppendedRange, AppendOrigin, CommitUnit, LeaderAppend
from pyspark_kafkalog.storage.log.leader_append import REQUEST, LeaderBatches, validate_batches
from pyspark_kafkalog.storage.log.producers import ProducerBatch, producer_batches
from pyspark_kafkalog.storage.log.sequences import ProducerView
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(slots=True)
class PartitionPlan:
    """What a commit appends to one partition: `parts`, which end before `next_offset`.

    `producers` are those of its log, with the changes of `parts`, whose batches of producers are `producer_batches`.
    """

    topic_partition: TopicPartition
    config: LogConfig
    log_start_offset: int
    next_offset: int
    leader_epoch: int
    producers: ProducerView
    parts: list[LeaderBatches] = field(default_factory=list)
    producer_batches: list[ProducerBatch] = field(default_factory=list)

    def draft(self) -> PartitionPlan:
        """A plan of what follows this one, to be absorbed or dropped."""
        return PartitionPlan(
            self.topic_partition,
            self.config,
            self.log_start_offset,
            self.next_offset,
            self.leader_epoch,
            self.producers.child(),
        )

    def absorb(self, draft: PartitionPlan) -> None:
        """Take over what `draft` has added."""
        self.parts += draft.parts
        self.producer_batches += draft.producer_batches
        self.next_offset = draft.next_offset
        self.producers.absorb(draft.producers)

    def add(self, append: LeaderAppend, now_ms: int) -> AppendedRange:
        """Add the batches of `append`, unless they are in the log. Raises KafkalogError, and then adds nothing."""
        is_client = append.origin is AppendOrigin.CLIENT
        prepared = append.prepared
        if prepared is not None and prepared.config == self.config:
            now_ms = prepared.now_ms
            checked = prepared.placed(self.next_offset, self.leader_epoch)
        else:
            checked = validate_batches(
                append.data,
                next_offset=self.next_offset,
                leader_epoch=self.leader_epoch,
                config=self.config,
                now_ms=now_ms,
                is_client=is_client,
            )
        sets_append_time = self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        batches = list(producer_batches(checked.data, checked.batches, data_position=0, file=REQUEST))
        is_v2 = append.is_transaction_v2
        duplicate = self.producers.add(batches, is_client=is_client, is_transaction_v2=is_v2) if batches else None
        if duplicate is not None:
            return AppendedRange(
                first_offset=duplicate.first_offset,
                last_offset=duplicate.last_offset,
                log_start_offset=self.log_start_offset,
                log_append_time_ms=duplicate.timestamp_ms if sets_append_time else -1,
                is_duplicate=True,
            )
        first_offset = self.next_offset
        if len(checked):
            self.parts.append(checked)
            self.producer_batches += batches
            self.next_offset = checked.next_offset
        return AppendedRange(
            first_offset=first_offset,
            last_offset=self.next_offset - 1,
            log_start_offset=self.log_start_offset,
            log_append_time_ms=now_ms if sets_append_time else -1,
        )


#: Opens a partition of the image for the commit. Raises KafkalogError or OSError if its log cannot be opened.
OpenPartition = Callable[[TopicPartition], PartitionPlan]


class CommitPlan:
    """The plan of one commit on `image`; `partitions` are those that units have appended to, or tried to."""

    def __init__(self, image: MetadataImage, open_partition: OpenPartition, now_ms: int) -> None:
        self.image = image
        self.partitions: dict[TopicPartition, PartitionPlan] = {}
        self.records: list[MetadataRecord] = []
        self._open_partition = open_partition
        self._now_ms = now_ms

    @property
    def changed(self) -> list[PartitionPlan]:
        """The partitions that get batches, in order."""
        return [self.partitions[each] for each in sorted(self.partitions) if self.partitions[each].parts]

    def add(self, unit: CommitUnit) -> tuple[AppendedRange, ...]:
        """Add a unit to the plan; returns what its appends get. Raises KafkalogError if the unit is refused."""
        appends = unit.appends(self.image)
        if len(appends) == 1 and not unit.makes_records:
            # Nothing can refuse the unit after its only append: there is no draft to be dropped.
            return (self._opened(appends[0]).add(appends[0], self._now_ms),)
        drafts: dict[TopicPartition, PartitionPlan] = {}
        appended = tuple(self._append(each, drafts) for each in appends)
        records = unit.records(self.image, appended)
        for topic_partition, draft in drafts.items():
            self.partitions[topic_partition].absorb(draft)
        self.records += records
        return appended

    def _append(self, append: LeaderAppend, drafts: dict[TopicPartition, PartitionPlan]) -> AppendedRange:
        plan = self._opened(append)
        draft = drafts.get(append.topic_partition)
        if draft is None:
            draft = drafts[append.topic_partition] = plan.draft()
        return draft.add(append, self._now_ms)

    def _opened(self, append: LeaderAppend) -> PartitionPlan:
        """The plan of the partition that `append` is for. Raises UnknownTopicError if the topic is another one now."""
        topic_partition = append.topic_partition
        topic_id = self.image.topic(topic_partition.topic).topic_id
        if append.topic_id is not None and append.topic_id != topic_id:
            raise UnknownTopicError(
                f"topic {topic_partition.topic!r} with the id {append.topic_id} was deleted; now it has {topic_id}"
            )
        return self._partition(topic_partition)

    def _partition(self, topic_partition: TopicPartition) -> PartitionPlan:
        plan = self.partitions.get(topic_partition)
        if plan is None:
            self.image.partition(topic_partition.topic, topic_partition.partition)
            try:
                plan = self._open_partition(topic_partition)
            except KafkalogError:
                raise
            except OSError as error:
                # One unusable directory must not keep everybody else from writing.
                raise LogDirError(f"the log of {topic_partition} cannot be opened: {error}") from error
            self.partitions[topic_partition] = plan
        return plan


def plan_units(plan: CommitPlan, units: Sequence[CommitUnit]) -> list[tuple[AppendedRange, ...] | KafkalogError]:
    """Add the units to the plan in order; the result of each."""
    results: list[tuple[AppendedRange, ...] | KafkalogError] = []
    for unit in units:
        try:
            results.append(plan.add(unit))
        except KafkalogError as error:
            # Its frames hold the batches of the unit, and `results`; those of its cause what was decompressed.
            results.append(without_frames(error))
    return results
