"""The plan of a leader's commit: what each partition gets, decided on the newest image before anything is stored.

For each unit in order:

    appends     the unit makes its appends from the image, and may refuse itself
    check       batches are checked and get the offsets after those of the units before (`leader_append`), and
                sequences are checked against the log and the units before (`ProducerView`)
    records     the unit makes its further records from what its appends would get
    keep        the partitions' plans take over the unit's batches; a refused unit leaves no trace

If all units are batches of clients, those of a partition are planned together: one compiled loop checks and numbers
them, as far as each is stored as it came, and they continue the sequence of one producer. Where it does not accept
them, each is planned as above.

Nothing here writes. Where the logs are, and how they are opened, is the engine's: `OpenPartition`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError, LogDirError, UnknownTopicError, without_frames
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.record.header import Buffer, TimestampType
from pyspark_kafkalog.root.commit.changes import (
    AppendedRange,
    AppendOrigin,
    CommitUnit,
    LeaderAppend,
    OutdatedCheckError,
    UnitResult,
)
from pyspark_kafkalog.root.commit.checked_batches import CheckedBatches
from pyspark_kafkalog.storage.log.leader_append import (
    REQUEST,
    LeaderBatches,
    ProducerView,
    accept_together,
    validate_batches,
)
from pyspark_kafkalog.storage.log.producers import AppendedProducers, ProducerBatch, producer_batches
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.values import quick_dataclass


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
    #: Of each part the batches with a producer id; None: to be made from its table, none is of a transaction.
    _batches_of_parts: list[list[ProducerBatch] | None] = field(default_factory=list)
    _last_writer: int | None = None
    _is_plain: bool = True

    @property
    def producer_batches(self) -> list[ProducerBatch]:
        """The batches of all parts that have a producer id."""
        return [
            each
            for part, known in zip(self.parts, self._batches_of_parts, strict=True)
            for each in (_producer_batches(part) if known is None else known)
        ]

    @property
    def appended_producers(self) -> AppendedProducers:
        """What the parts mean for producers."""
        return AppendedProducers(
            self.producers.changed, self._last_writer, self._is_plain, lambda: self.producer_batches
        )

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
        self._batches_of_parts += draft._batches_of_parts
        self._last_writer = self._last_writer if draft._last_writer is None else draft._last_writer
        self._is_plain &= draft._is_plain
        self.next_offset = draft.next_offset
        self.producers.absorb(draft.producers)

    def add(self, append: LeaderAppend, now_ms: int) -> AppendedRange:
        """Add the batches of `append`, unless they are in the log. Raises KafkalogError, and then adds nothing."""
        is_client = append.origin is AppendOrigin.CLIENT
        prepared = append.prepared
        if prepared is not None and prepared.config == self.config:
            now_ms = prepared.now_ms
            checked = prepared.placed(self.next_offset, self.leader_epoch)
        elif prepared is not None and not len(append.data):
            raise OutdatedCheckError(f"the configuration of topic {self.topic_partition.topic} has changed")
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
        batches = _producer_batches(checked)
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
            self._is_plain &= not any(each.is_transactional or each.is_control for each in batches)
            self._add(checked, batches, batches[-1].producer_id if batches else None)
        return AppendedRange(
            first_offset=first_offset,
            last_offset=self.next_offset - 1,
            log_start_offset=self.log_start_offset,
            log_append_time_ms=now_ms if sets_append_time else -1,
        )

    def add_checked(self, some: CheckedBatches) -> PlacedBatches | None:
        """Add batches that were checked before; None, and nothing is added, if each has to be added by itself."""
        placed = some.placed(self.config, self.producers, next_offset=self.next_offset, leader_epoch=self.leader_epoch)
        return None if placed is None else self._add_placed(placed)

    def add_together(self, batches: Sequence[Buffer], now_ms: int) -> PlacedBatches | None:
        """Add batches of clients that nobody has checked, each an append of its own; None as of `add_checked`."""
        part = accept_together(
            batches,
            self.config,
            self.producers,
            next_offset=self.next_offset,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
        )
        return None if part is None else self._add_placed(part)

    def _add_placed(self, part: LeaderBatches) -> PlacedBatches:
        producer_id = int(part.batches["producer_id"][-1])
        self._add(part, None, producer_id if producer_id >= 0 else None)
        return PlacedBatches(part.batches, self.log_start_offset)

    def _add(self, part: LeaderBatches, batches: list[ProducerBatch] | None, last_writer: int | None) -> None:
        self.parts.append(part)
        self._batches_of_parts.append(batches)
        self._last_writer = self._last_writer if last_writer is None else last_writer
        self.next_offset = part.next_offset


def _producer_batches(part: LeaderBatches) -> list[ProducerBatch]:
    return list(producer_batches(part.data, part.batches, data_position=0, file=REQUEST))


@quick_dataclass(frozen=True, slots=True)
class PlacedBatches:
    """The result of checked batches that all were appended: their table (BATCH_DTYPE), and where their log starts."""

    table: NDArray[np.void]
    log_start_offset: int

    def ranges(self) -> list[tuple[AppendedRange, ...]]:
        """The result of each batch as that of a unit."""
        offsets = zip(self.table["base_offset"].tolist(), self.table["last_offset"].tolist(), strict=True)
        start = self.log_start_offset
        return [
            (AppendedRange(first_offset=first, last_offset=last, log_start_offset=start),) for first, last in offsets
        ]


#: The result of checked batches: of all together, or of each.
CheckedResult: TypeAlias = "PlacedBatches | Sequence[UnitResult]"


#: Opens a partition of the image for the commit. Raises UnknownTopicError; KafkalogError or OSError of its log.
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
        appends = unit.appends_on(self.image)
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

    def add_checked(self, some: CheckedBatches) -> CheckedResult:
        """Add batches that were checked before to the plan; returns what they get, or why each is refused."""
        try:
            placed = self._opened(some).add_checked(some)
        except KafkalogError as error:
            return [without_frames(error)] * len(some.table)
        return plan_units(self, some.units()) if placed is None else placed

    def add_together(self, appends: Sequence[LeaderAppend]) -> PlacedBatches | None:
        """Add the batches of clients for one partition; None, and nothing is added, if each has to be added alone."""
        try:
            return self._opened(appends[0]).add_together([each.data for each in appends], self._now_ms)
        except KafkalogError:
            return None

    def _append(self, append: LeaderAppend, drafts: dict[TopicPartition, PartitionPlan]) -> AppendedRange:
        plan = self._opened(append)
        draft = drafts.get(append.topic_partition)
        if draft is None:
            draft = drafts[append.topic_partition] = plan.draft()
        return draft.add(append, self._now_ms)

    def _opened(self, append: LeaderAppend | CheckedBatches) -> PartitionPlan:
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
    """Add the units to the plan, those of each partition in order; the result of each."""
    found = _planned_together(plan, units) if len(units) > 1 else {}
    results: list[tuple[AppendedRange, ...] | KafkalogError] = []
    for row, unit in enumerate(units):
        try:
            results.append(found[row] if row in found else plan.add(unit))
        except KafkalogError as error:
            # Its frames hold the batches of the unit, and `results`; those of its cause what was decompressed.
            results.append(without_frames(error))
    return results


def _planned_together(plan: CommitPlan, units: Sequence[CommitUnit]) -> dict[int, tuple[AppendedRange, ...]]:
    """The results of units, by their row, whose batches were added together with those of others for their partition.

    Only where every unit is a batch of a client, so that none depends on what another one has done.
    """
    results: dict[int, tuple[AppendedRange, ...]] = {}
    for some in batches_by_partition(units):
        placed = plan.add_together(some.appends) if len(some.appends) > 1 else None
        if placed is not None:
            results.update(zip(some.rows, placed.ranges(), strict=True))
    return results


@quick_dataclass(frozen=True, slots=True)
class BatchesOfPartition:
    """Batches of clients for one partition: the units that have them, by their row in a commit."""

    rows: list[int]
    appends: list[LeaderAppend]

    def usual(self) -> UsualAppend:
        """All of them as one append."""
        batches = [each.data for each in self.appends]
        return UsualAppend(self.appends[0], lambda plan, now_ms: plan.add_together(batches, now_ms))


def batches_by_partition(units: Sequence[CommitUnit]) -> list[BatchesOfPartition]:
    """The batches of units by partition and topic id; none if a unit is not the batch of a client, or was checked."""
    found: dict[tuple[TopicPartition, str | None], BatchesOfPartition] = {}
    for row, unit in enumerate(units):
        append = unit.only_batch
        if append is None or append.prepared is not None:
            return []
        of_partition = found.setdefault((append.topic_partition, append.topic_id), BatchesOfPartition([], []))
        of_partition.rows.append(row)
        of_partition.appends.append(append)
    return list(found.values())


@quick_dataclass(frozen=True, slots=True)
class UsualAppend:
    """Batches of clients for one partition. `of` names it, with the id of its topic, None for any.

    `add` adds them all to its plan, at a time in ms; None, and nothing is added, if each has to be added by itself.
    """

    of: LeaderAppend | CheckedBatches
    add: Callable[[PartitionPlan, int], PlacedBatches | None]
