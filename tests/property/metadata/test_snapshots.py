"""After any commits, a snapshot taken anywhere and the commits after it give the image of all commits."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from builders.root_places import PLACES, Place, commit_names, point_to, snapshot_names
from fakes.clock import Clock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import (
    DataObjectRecord,
    MetadataRecord,
    ProducerIdsRecord,
    Run,
    TopicRuns,
    TransactionalIdRecord,
    WriteCommitRecord,
)
from pyspark_kafkalog.metadata.snapshots import POINTER_FILE
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.admin import add_partitions, alter_configs, broker_config_record, create_topic, delete_topic
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry

NAMES = ("a", "b", "c")
Step = Callable[[MetadataImage], Sequence[MetadataRecord]]

int64s = st.integers(-(2**63), 2**63 - 1)
names = st.sampled_from(NAMES)
producers = st.builds(
    ProducerStateEntry,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    last_sequence=st.integers(-1, 2**31 - 1),
    last_offset=st.integers(-1, 2**63 - 1),
    offset_delta=st.integers(0, 2**31 - 1),
    last_timestamp_ms=int64s,
    coordinator_epoch=st.integers(-1, 9),
    current_txn_first_offset=st.just(-1),
)


def creating(name: str, partitions: int, configs: dict[str, str]) -> Step:
    def step(image: MetadataImage) -> Sequence[MetadataRecord]:
        if name in image.topics:
            return []
        rng = random.Random(image.next_offset)
        return create_topic(image, name, partitions=partitions, configs=configs, rng=rng)

    return step


def on_topic(name: str, step: Step) -> Step:
    return lambda image: step(image) if name in image.topics else []


def writing(name: str, advance: int, producer: ProducerStateEntry | None, timestamp_ms: int, epochs: int) -> Step:
    def step(image: MetadataImage) -> Sequence[MetadataRecord]:
        topic = image.topic(name)
        partition = topic.partitions[advance % len(topic.partitions)]
        if image.format.in_object_store:
            run = Run(partition=partition.partition, size_bytes=100, offsets_count=advance % 999 + 1, batches_count=1)
            topics = (TopicRuns(topic_id=topic.topic_id, runs=(run,)),)
            key, planned_at = "data/a-0-0-0.batches", image.next_offset
            return [DataObjectRecord(key=key, size_bytes=100, planned_at=planned_at, topics=topics)]
        state = replace(
            partition.state,
            log_end_offset=partition.state.log_end_offset + advance,
            leader_epoch=partition.state.leader_epoch + epochs,
            active_size_bytes=advance,
            active_max_timestamp_ms=timestamp_ms,
            producer=producer,
        )
        return [partition_state_record(topic.topic_id, partition.partition, state)]

    return on_topic(name, step)


def transaction(name: str, is_new: bool, by_write: bool) -> Step:
    def step(image: MetadataImage) -> Sequence[MetadataRecord]:
        known = image.transactional_ids.get(name)
        version = 0 if known is None else known.version + 1
        incarnation = str(version) if is_new or known is None else known.incarnation
        if by_write or known is None:
            written = WriteCommitRecord(
                write_id="w",
                partitions=(),
                transactional_id=name,
                transaction_version=version,
                producer_id=version,
                producer_epoch=1,
                incarnation=incarnation,
            )
            return [written]
        held = known.held_by(incarnation)
        taken = TransactionalIdRecord(
            transactional_id=name, version=version, producer_id=7, incarnation=held.incarnation, fenced=held.fenced
        )
        return [taken]

    return step


configs = st.dictionaries(st.sampled_from(["retention.ms", "segment.ms"]), st.integers(1, 99).map(str))
broker_settings = st.tuples(st.sampled_from(["num.partitions", "log.retention.ms"]), st.none() | st.just("3"))

steps = st.one_of(
    st.builds(creating, names, st.integers(1, 4), configs),
    st.builds(writing, names, st.integers(0, 2**40), st.none() | producers, int64s, st.integers(0, 2)),
    names.map(lambda name: on_topic(name, lambda image: delete_topic(image, name))),
    names.map(
        lambda name: on_topic(
            name, lambda image: add_partitions(image, name, total=len(image.topics[name].partitions) + 2)
        )
    ),
    st.builds(
        lambda name, add: on_topic(
            name, lambda image: alter_configs(image, name, add=add, delete=() if add else ("retention.ms",))
        ),
        names,
        configs,
    ),
    broker_settings.map(lambda setting: lambda image: [broker_config_record(*setting)]),
    st.builds(transaction, names, st.booleans(), st.booleans()),
    st.just(lambda image: [ProducerIdsRecord(next_producer_id=image.next_producer_id + 1000)]),
)


def run(store: MetadataStore, clock: Clock, history: list[Step], waits_ms: list[int]) -> None:
    for step, wait_ms in zip(history, waits_ms, strict=True):
        clock.now_ms += wait_ms
        store.commit(step, operation="step")


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(steps, st.integers(0, 2_000_000)), min_size=1, max_size=25),
    st.sampled_from([1, 500, 3000]),
    st.integers(0, 10**6),
    st.sampled_from(PLACES),
)
def test_image_of_snapshot_and_later_commits_equals_full_replay(
    history: list[tuple[Step, int]], snapshot_bytes: int, pick: int, kind: type[Place]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = kind(Path(directory))
        store, clock = place.create(), place.clock
        setting = broker_config_record("metadata.log.max.record.bytes.between.snapshots", str(snapshot_bytes))
        store.commit(lambda image: [setting], operation="alter")
        run(store, clock, *map(list, zip(*history, strict=True)))
        there = snapshot_names(place)
        if there:  # begin from any of them, not just from the newest
            point_to(place, there[pick % len(there)])
        assert place.open().image == store.image
        for name in (*there, *([POINTER_FILE] if there else [])):
            place.remove(name)
        assert place.open().image == store.image


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(steps, st.integers(0, 3_000_000)), min_size=1, max_size=25),
    st.lists(st.integers(0, 24), max_size=6),
    st.sampled_from(PLACES),
)
def test_readers_overtaken_by_retention_reach_same_image(
    history: list[tuple[Step, int]], readers_at: list[int], kind: type[Place]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = kind(Path(directory))
        store, clock = place.create(), place.clock
        limits = {"metadata.log.max.record.bytes.between.snapshots": "700", "metadata.max.retention.ms": "40"}
        store.commit(lambda image: [broker_config_record(*each) for each in limits.items()], operation="alter")
        readers = []
        for at, (step, wait_ms) in enumerate(history):
            if at in readers_at:
                readers.append(place.open())
            run(store, clock, [step], [wait_ms])
        readers.append(place.open())
        for reader in readers:
            assert reader.refresh() == store.image
        assert commit_names(place)
