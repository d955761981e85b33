"""Commits the units of a server to a root on an object store: many units, one commit, at most two objects put.

    plan        by the newest image, as for a root on a file system (plan.py). Producers are those of the image and of
                the newest segments (root/objects/producers.py)
    compose     one body of all batches, sorted by partition: inside the commit if it is small, else put as an object
    commit      a record of the body with a run for each partition and the batches of producers in it; the state of
                partitions in which the oldest open transaction is another one now; further records of the units

A commit that loses the race for its name is planned again on the newest image. The object stays as it is if the same
batches are stored again: their offsets are added when they are read.

Nothing is locked. That a refused or duplicate batch was judged by the newest image is confirmed by the commit of the
other units, or else by a refresh. A crash before the commit leaves an object that no commit names: the clean-up deletes
it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import InvalidRecordError, KafkalogError
from pyspark_kafkalog.metadata.extents import RunPlace, data_object_record
from pyspark_kafkalog.metadata.following import check_not_following
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStoreError
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.commit.changes import CommitUnit, UnitResult
from pyspark_kafkalog.root.commit.plan import CommitPlan, PartitionPlan, plan_units
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.root.objects.producers import (
    KnownProducers,
    LazyProducers,
    ProducersAppended,
    appended_to,
    earlier_batches,
)
from pyspark_kafkalog.storage.log.producers import ProducerBatch
from pyspark_kafkalog.storage.log.sequences import ProducerView
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import encode_rows
from pyspark_kafkalog.storage.objects.upload import INLINE_BYTES, NewRun, UploadTask, WrittenObject, compose_body

_TASK: Final = 0


class ObjectLeaderWriter:
    """The LeaderWriter of an object root. Used by one thread; Spark and other processes may write beside it.

    `operation` is what the history says of its commits.
    """

    def __init__(self, root: ObjectRoot, *, operation: str = "append", inline_bytes: int = INLINE_BYTES) -> None:
        self._root = root
        self._operation = operation
        self._inline_bytes = inline_bytes
        self._producers = KnownProducers(root.objects)
        self._configs = _Configs()

    def commit(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        """See LeaderWriter.commit."""
        if not units:
            return []
        made = _Commit(self._root, self._producers, self._configs, units, self._inline_bytes)
        try:
            self._root.store.commit(made.build, operation=self._operation)
        except (InvalidRecordError, ObjectNotFoundError) as error:
            # The records of a unit contradict the image, or those of another unit, which nobody but the image can tell;
            # or the producers of one partition cannot be read.
            if len(units) == 1:
                return [error]
            return [self._alone(each) for each in units]
        return made.results

    def _alone(self, unit: CommitUnit) -> UnitResult:
        try:
            return self.commit([unit])[0]
        except KafkalogError as error:
            return error

    def commit_at_once(self, units: Sequence[CommitUnit]) -> None:
        """See LeaderWriter.commit_at_once: every commit waits for the store."""

    def close(self) -> None:
        """Does nothing: no file is open between commits."""


class _Configs:
    """The configurations of topics, parsed once for as long as they do not change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mapping[str, Mapping[str, str]], Mapping[str, str], LogConfig]] = {}

    def of(self, image: MetadataImage, topic: TopicImage) -> LogConfig:
        known = self._known.get(topic.topic_id)
        if known is not None and known[0] is image.broker_configs and known[1] is topic.configs:
            return known[2]
        if len(self._known) > 2 * len(image.topics):
            self._known.clear()  # most are of deleted topics
        config = broker_config(image).log_config(topic.configs)
        self._known[topic.topic_id] = image.broker_configs, topic.configs, config
        return config


class _Commit:
    """The commit of `units`. `results` are those of the last attempt to build it."""

    def __init__(
        self,
        root: ObjectRoot,
        producers: KnownProducers,
        configs: _Configs,
        units: Sequence[CommitUnit],
        inline_bytes: int,
    ) -> None:
        self._root = root
        self._known = producers
        self._configs = configs
        self._units = units
        self._inline_bytes = inline_bytes
        self._now_ms = root.clock()  # the same for all attempts, as it may be in the batches
        self._write_id = uuid.uuid4().hex
        self._objects_count = 0
        self._written: tuple[bytes, WrittenObject] | None = None
        self._image = MetadataImage()
        self._producers: dict[TopicPartition, LazyProducers] = {}
        self.results: list[UnitResult] = []

    def build(self, image: MetadataImage) -> list[MetadataRecord]:
        """The records of the commit after `image`; none if no unit has anything to commit. Raises ObjectStoreError."""
        check_not_following(image)
        self._image = image
        self._producers = {}
        plan = CommitPlan(image, self._open, self._now_ms)
        self.results = plan_units(plan, self._units)
        for each in self.results:
            if isinstance(each, ObjectStoreError):
                raise each  # of the store, not of the unit; or the image is old
        return [*self._data_records(plan.changed), *plan.records]

    def _open(self, topic_partition: TopicPartition) -> PartitionPlan:
        image = self._image
        topic = image.topic(topic_partition.topic)
        state = image.partition(topic_partition.topic, topic_partition.partition).state
        producers = LazyProducers(
            partial(self._known.at, image, topic_partition, now_ms=self._now_ms),
            partial(self._earlier_batches, image, topic_partition),
        )
        self._producers[topic_partition] = producers
        return PartitionPlan(
            topic_partition,
            self._configs.of(image, topic),
            state.log_start_offset,
            state.log_end_offset,
            state.leader_epoch,
            ProducerView(producers, recalled=producers.recalled),
        )

    def _earlier_batches(
        self, image: MetadataImage, of: TopicPartition, producer_id: int, end_offset: int
    ) -> Sequence[ProducerBatch]:
        from pyspark_kafkalog.storage.log.reader import LogReader  # imports compiled code

        reader = LogReader(self._root.partition_in(image, of.topic, of.partition).extents(), of)
        return list(earlier_batches(image, of, reader, producer_id, end_offset))

    def _data_records(self, changed: Sequence[PartitionPlan]) -> list[MetadataRecord]:
        """The records of what the units append; puts the object, unless it is small or there already."""
        if not changed:
            return []
        new_runs = [self._run(each) for each in changed]
        written = self._object(new_runs)
        first_offsets = {(each.topic_id, each.partition): each.first_offset for each in new_runs}
        rows: dict[tuple[str, int], bytes] = {}
        states: list[MetadataRecord] = []
        for each in changed:
            appended = self._producers_after(each)
            if appended is None:
                continue
            of = each.topic_partition
            topic_id = self._image.topic(of.topic).topic_id
            rows[topic_id, of.partition] = encode_rows(appended.rows)
            state = self._image.partition(of.topic, of.partition).state
            if appended.first_unstable_offset != state.first_unstable_offset:
                after = replace(
                    state,
                    log_end_offset=each.next_offset,
                    first_unstable_offset=appended.first_unstable_offset,
                )
                states.append(partition_state_record(topic_id, of.partition, after))
        places = [
            RunPlace(rows.get(of, b""), first_offset=first_offsets[of])
            for of in ((each.topic_id, each.partition) for each in written.runs)
        ]
        return [data_object_record(written, places), *states]

    def _producers_after(self, plan: PartitionPlan) -> ProducersAppended | None:
        """What the commit says of the batches of producers in the partition; None if there are none."""
        batches = plan.producer_batches
        return appended_to(self._producers[plan.topic_partition].base, batches) if batches else None

    def _run(self, plan: PartitionPlan) -> NewRun:
        of = plan.topic_partition
        first_offset = self._image.partition(of.topic, of.partition).state.log_end_offset
        return NewRun(self._image.topic(of.topic).topic_id, of.partition, first_offset, plan.parts)

    def _object(self, runs: Sequence[NewRun]) -> WrittenObject:
        """The object with `runs`: that of the last attempt if it is the same, and has not expired."""
        image = self._image
        body, made = compose_body(runs)
        if self._written is not None:
            known, written = self._written
            if known == body and not image.staging_horizon.has_expired(written.planned_at):
                return written
        topics = frozenset(image.topic_names[each.topic_id] for each in made)
        planned_at = image.next_offset
        key = ""
        if len(body) > self._inline_bytes:
            key = UploadTask(self._write_id, _TASK, planned_at).key(self._objects_count)
            self._objects_count += 1
            self._root.objects.put(key, body)
        inline_data = None if key else body
        written = WrittenObject(self._write_id, key, len(body), planned_at, topics, made, inline_data)
        self._written = body, written
        return written
