"""Commits that append: packed as the codec encodes them, with the image that delta and invariants make of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.metadata.commit_log import encode_commit
from pyspark_kafkalog.metadata.delta import start_delta
from pyspark_kafkalog.metadata.image import Following, MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.invariants import check_invariants, image_after_appends
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AppendedBatches,
    CommitRecord,
    MetadataRecord,
    PartitionRecord,
    PartitionStateRecord,
    ProducerIdsRecord,
    ProducerState,
    TopicRecord,
)
from pyspark_kafkalog.metadata.messages.records import encode_by_schema, packed_record
from pyspark_kafkalog.metadata.messages.usual_commits import STATES_MAX, AppendedState, UsualCommits
from pyspark_kafkalog.metadata.root_format import RootFormat
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import OFFSETS_TOPIC, encode_uuid

INTEGERS = {"q": 63, "i": 31, "h": 15}
uuids = st.binary(min_size=16, max_size=16).map(encode_uuid)
tags = st.just(()) | st.just(()) | st.lists(st.tuples(st.integers(9, 99), st.binary(max_size=3)), max_size=1).map(tuple)


def numbers(bits: int, *, beyond: bool = False) -> st.SearchStrategy[int]:
    least, most = -(1 << bits), (1 << bits) - 1
    inside = st.sampled_from([-1, 0, 1, most, least]) | st.integers(least, most)
    return inside | st.sampled_from([least - 1, most + 1]) if beyond else inside


@st.composite
def state_records(draw: st.DrawFn) -> PartitionStateRecord:
    """Any record of a partition's state; some have a number that does not fit into its field."""
    int64s, int32s, int16s = numbers(63), numbers(31), numbers(15)
    producer = st.builds(
        ProducerState,
        producer_id=int64s,
        producer_epoch=int16s,
        last_sequence=numbers(31, beyond=draw(st.sampled_from([False, False, True]))),
        last_offset=int64s,
        offset_delta=int32s,
        last_timestamp_ms=int64s,
        coordinator_epoch=int32s,
        current_txn_first_offset=int64s,
        unknown_tags=tags,
    )
    appended = st.builds(AppendedBatches, first_offset=int64s, records=int64s, bytes=int64s, unknown_tags=tags)
    return PartitionStateRecord(
        topic_id=draw(uuids | st.just("no id")),
        partition=draw(int32s),
        leader_epoch=draw(int32s),
        log_start_offset=draw(int64s),
        log_end_offset=draw(numbers(63, beyond=draw(st.sampled_from([False, False, True])))),
        active_base_offset=draw(int64s),
        active_size_bytes=draw(int64s),
        active_first_timestamp_ms=draw(int64s),
        active_max_timestamp_ms=draw(int64s),
        active_max_timestamp_offset=draw(int64s),
        bytes_since_last_index_entry=draw(int64s),
        producer=draw(st.none() | producer),
        first_unstable_offset=draw(st.just(-1) | int64s),
        local_log_start_offset=draw(st.just(-1) | int64s),
        appended=draw(st.none() | appended),
        unknown_tags=draw(tags),
    )


commit_records = st.builds(
    CommitRecord, commit_id=uuids | st.just("?"), operation=st.text(max_size=200), unknown_tags=tags
)


@settings(max_examples=examples(1000))
@given(state_records() | commit_records)
def test_packed_record_is_what_the_codec_encodes(record: MetadataRecord) -> None:
    packed = packed_record(record)
    try:
        encoded = encode_by_schema(record)
    except (InvalidRecordError, UnicodeEncodeError):
        assert packed is None
    else:
        assert packed in (None, encoded)


def test_records_of_usual_commits_are_packed() -> None:
    producer = ProducerState(producer_id=7, producer_epoch=1, last_sequence=4, last_offset=4, offset_delta=4)
    appended = AppendedBatches(first_offset=0, records=5, bytes=300)
    for each in (
        CommitRecord(commit_id=encode_uuid(bytes(range(16))), operation="produce"),
        PartitionStateRecord(topic_id=encode_uuid(bytes(range(16))), partition=1, log_end_offset=5),
        PartitionStateRecord(topic_id=encode_uuid(bytes(range(16))), producer=producer, appended=appended),
    ):
        assert packed_record(each) == encode_by_schema(each)


@settings(max_examples=examples(1000))
@given(st.data())
def test_usual_commit_of_a_template_is_what_the_codec_encodes(data: st.DataObject) -> None:
    producers = st.none() | st.builds(
        ProducerStateEntry, numbers(63), numbers(15), *[numbers(bits) for bits in (31, 63, 31, 63, 31, 63)]
    )
    logs = st.builds(
        lambda start, epoch, numbers, producer: LogState(
            log_start_offset=start,
            leader_epoch=epoch,
            producer=producer,
            **dict(zip(LOG_NUMBERS, numbers, strict=True)),
        ),
        numbers(63),
        numbers(31),
        st.tuples(*[numbers(63) for _ in LOG_NUMBERS]),
        producers,
    )
    parts = st.builds(AppendedState, st.just("a"), uuids, numbers(31), logs, *[numbers(63)] * 3)
    states = data.draw(st.lists(parts, min_size=1, max_size=STATES_MAX))
    base_offset, time_ms = data.draw(st.integers(0, 1 << 62)), data.draw(st.integers(0, 1 << 62))
    operation, commit_id = data.draw(st.text(max_size=200)), data.draw(st.binary(min_size=16, max_size=16))
    try:
        records: list[MetadataRecord] = [CommitRecord(commit_id=encode_uuid(commit_id), operation=operation)]
        records += [
            partition_state_record(
                each.topic_id,
                each.partition,
                each.state,
                AppendedBatches(first_offset=each.first_offset, records=each.records_count, bytes=each.size_bytes),
            )
            for each in states
        ]
        encoded = encode_commit(base_offset, records, time_ms)
    except UnicodeEncodeError:
        return
    assert UsualCommits(operation).encode(base_offset, time_ms, commit_id, states) == encoded


LOG_NUMBERS = (
    "log_end_offset",
    "active_base_offset",
    "active_size_bytes",
    "active_first_timestamp_ms",
    "active_max_timestamp_ms",
    "active_max_timestamp_offset",
    "bytes_since_last_index_entry",
)
OFFSETS = st.integers(-1, 3)
states = st.builds(
    LogState,
    leader_epoch=OFFSETS,
    log_start_offset=OFFSETS,
    log_end_offset=OFFSETS,
    active_base_offset=OFFSETS,
    active_size_bytes=OFFSETS,
    local_log_start_offset=OFFSETS,
    first_unstable_offset=OFFSETS,
)
whole_states = st.integers(0, 3).flatmap(
    lambda start: st.builds(
        LogState,
        leader_epoch=st.integers(0, 3),
        log_start_offset=st.just(start),
        log_end_offset=st.integers(start, 5),
        active_base_offset=st.just(start),
        active_size_bytes=st.integers(0, 3),
    )
)


def following(leader: str) -> Following:
    return Following(following_id="f", leader=leader, cluster_id="c", topics=".*", since_ms=1)


def created(name: str, partitions: int) -> list[MetadataRecord]:
    topic_id = encode_uuid(name.encode()[-16:].rjust(16))
    made = [PartitionRecord(topic_id=topic_id, partition_id=each) for each in range(partitions)]
    return [TopicRecord(name=name, topic_id=topic_id), *made]


def delta_of(image: MetadataImage, records: list[MetadataRecord], timestamp_ms: int) -> MetadataImage:
    """The image by the general way. Raises InvalidRecordError."""
    delta = start_delta(image, base_offset=image.next_offset, timestamp_ms=timestamp_ms)
    delta.replay(records)
    after = delta.build(image.next_offset + len(records))
    check_invariants(image, after, delta.changes)
    return after


@st.composite
def images(draw: st.DrawFn) -> MetadataImage:
    """A root on a file system with two topics, of which one may be that of the offsets."""
    image = MetadataImage(format=RootFormat(draw(st.sampled_from([1, 2]))))
    for name in ("a", draw(st.sampled_from(["b", OFFSETS_TOPIC]))):
        image = delta_of(image, created(name, 2), 5)
        topic_id = image.topic(name).topic_id
        records = [partition_state_record(topic_id, each, draw(whole_states)) for each in range(2)]
        image = delta_of(image, [*records], 5)
    return image


@settings(max_examples=examples(1000))
@given(st.data(), images())
def test_image_after_appends_is_that_of_the_delta_and_breaks_no_invariant(
    data: st.DataObject, image: MetadataImage
) -> None:
    topics = [each.topic_id for each in image.topics.values()]
    following_states = whole_states | states
    if data.draw(st.booleans()):  # what an append may do to a partition that is there
        before = data.draw(st.sampled_from([each for topic in image.topics.values() for each in topic.partitions]))
        grows = st.integers(0, 3)
        following_states = st.builds(
            lambda by, epochs, size: replace(
                before.state,
                log_end_offset=before.state.log_end_offset + by,
                leader_epoch=before.state.leader_epoch + epochs,
                active_size_bytes=size,
            ),
            grows,
            grows,
            grows,
        )
    records: list[MetadataRecord] = [CommitRecord(commit_id=encode_uuid(bytes(16)), operation="x")]
    for _ in range(data.draw(st.integers(0, 3))):
        topic_id = data.draw(st.sampled_from([*topics, *topics, encode_uuid(bytes(16))]))
        state = partition_state_record(topic_id, data.draw(st.integers(-1, 2)), data.draw(following_states))
        other = ProducerIdsRecord(broker_id=-1, next_producer_id=9)
        records.append(data.draw(st.sampled_from([state, state, state, other])))
    timestamp_ms = data.draw(st.integers(0, 9))
    after = image_after_appends(image, records, timestamp_ms=timestamp_ms)
    if after is not None:
        assert after == delta_of(image, records, timestamp_ms)


def test_appends_to_several_partitions_need_no_delta() -> None:
    image = MetadataImage(format=RootFormat(1))
    image = delta_of(image, created("a", 3), 5)
    topic_id = image.topic("a").topic_id
    state = LogState(log_end_offset=3, active_size_bytes=70)
    records: list[MetadataRecord] = [partition_state_record(topic_id, each, state) for each in (0, 2)]
    after = image_after_appends(image, records, timestamp_ms=7)
    assert after == delta_of(image, records, 7)
    assert [each.high_watermark for each in image.topic("a").partitions] == [0, 0, 0]
    assert image_after_appends(replace(image, following=following("x")), records, timestamp_ms=7) is None
    assert image_after_appends(image, [TopicRecord(), PartitionRecord()], timestamp_ms=7) is None
