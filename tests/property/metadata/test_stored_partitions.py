"""Partitions of a snapshot, decoded in runs, give the image of their records; values are those of whole records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.metadata.delta import ImageDelta
from pyspark_kafkalog.metadata.image import BrokerImage, MetadataImage, partition_record, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import AppendedBatches, FeatureLevelRecord, TopicRecord
from pyspark_kafkalog.metadata.messages.records import decode_record, encode_record
from pyspark_kafkalog.metadata.stored_partitions import PartitionRuns
from pyspark_kafkalog.record.header import RECORDS_AT, parse_header
from pyspark_kafkalog.record.reference import Record, decode_batch, decode_values, encode_batch, seal
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import encode_uuid

IDS = tuple(encode_uuid(bytes([number]) * 16) for number in range(1, 4))  # the last one is no topic's
NODE = BrokerImage(1, IDS[0], 0, (IDS[1],))

int16s, int32s, int64s = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
producers = st.builds(ProducerStateEntry, int64s, int16s, int32s, int64s, int32s, int64s, int32s, int64s)
states = st.builds(
    LogState,
    leader_epoch=int32s,
    log_start_offset=int64s,
    log_end_offset=st.integers(0, 2**63 - 1) | int64s,
    active_base_offset=int64s,
    active_size_bytes=int64s,
    active_first_timestamp_ms=int64s,
    active_max_timestamp_ms=int64s,
    active_max_timestamp_offset=int64s,
    bytes_since_last_index_entry=int64s,
    first_unstable_offset=st.sampled_from([-1, -1, -1, 5]),
    local_log_start_offset=st.sampled_from([-1, -1, -1, 2**40]),
    producer=st.none() | producers,
)


@st.composite
def snapshots(draw: st.DrawFn) -> list[bytes]:
    """Values of records: topics with partitions in their order, and now and then something else."""
    values = [encode_record(TopicRecord(name=f"t{at}", topic_id=IDS[at])) for at in range(2)]
    odd = st.integers(0, 19).map(lambda number: number == 0)
    for topic_id in draw(st.lists(st.sampled_from(IDS[:2]), unique=True)):
        for number in range(draw(st.integers(0, 8))):
            at = draw(int32s) if draw(odd) else number
            of = draw(st.sampled_from(IDS)) if draw(odd) else topic_id
            epoch = draw(st.integers(0, 2))
            values.append(encode_record(partition_record(of, at, leader_epoch=epoch, node=NODE)))
            if draw(odd):
                values.append(encode_record(FeatureLevelRecord(name="f", feature_level=1)))
            if draw(st.booleans()):
                appended = AppendedBatches(first_offset=1, records=2, bytes=3) if draw(odd) else None
                other = draw(st.integers(-1, 9)) if draw(odd) else at
                values.append(encode_record(partition_state_record(of, other, draw(states), appended)))
    if draw(odd):
        at = draw(st.integers(0, len(values) - 1))
        value = bytearray(values[at])
        value[draw(st.integers(0, len(value) - 1))] ^= draw(st.integers(1, 255))
        values[at] = bytes(value[: draw(st.integers(0, len(value)))]) if draw(odd) else bytes(value)
    return values


def image_by(replay: Callable[[ImageDelta], None]) -> MetadataImage | None:
    """None if the records are refused."""
    delta = ImageDelta(MetadataImage(), commit_offset=7, timestamp_ms=5, is_snapshot=True)
    try:
        replay(delta)
    except KafkalogError:
        return None
    assert delta.records_applied >= 0
    return replace(delta.build(7), next_offset=delta.records_applied)


@settings(max_examples=examples(600))
@given(snapshots(), st.integers(1, 9))
def test_image_of_runs_of_partitions_equals_that_of_their_records(values: list[bytes], batch: int) -> None:
    def in_runs(delta: ImageDelta) -> None:
        runs = PartitionRuns()
        for at in range(0, len(values), batch):
            delta.replay_runs(runs.decode(values[at : at + batch], decode_record))

    expected = image_by(lambda delta: delta.replay(map(decode_record, values)))
    assert image_by(in_runs) == expected
    assert image_by(lambda delta: delta.replay_runs(PartitionRuns().decode(values, decode_record))) == expected


sized = st.binary(max_size=200)
records = st.lists(
    st.tuples(st.sampled_from([0] * 9 + [1]), st.sampled_from([None] * 9 + [b"k"]), st.none() | sized | sized | sized),
    min_size=1,
    max_size=80,
)


@settings(max_examples=examples(300))
@given(records, st.sampled_from([(), ((b"h", None),)]), st.lists(st.tuples(st.integers(0), st.integers(1, 255))))
def test_values_are_those_of_whole_records_also_of_damaged_batches(
    drawn: list[tuple[int, bytes | None, bytes | None]],
    headers: tuple[tuple[bytes, bytes | None], ...],
    flips: list[tuple[int, int]],
) -> None:
    whole = [
        Record(offset=5 + at, timestamp_ms=9 + later, key=key, value=value, headers=headers if later else ())
        for at, (later, key, value) in enumerate(drawn)
    ]
    data = encode_batch(whole)
    header, values = decode_values(data, 0, file="f", file_position=0)
    has_more = any(each.headers or each.key is not None or each.value is None for each in whole)
    is_plain = not has_more and len({each.timestamp_ms for each in whole}) == 1
    assert values == ([each.value for each in whole] if is_plain else None)
    body = bytearray(data[RECORDS_AT:])
    for at, mask in flips:
        body[at % len(body)] ^= mask
    damaged = seal(header, body)
    header, values = decode_values(damaged, 0, file="f", file_position=0)
    if values is not None:
        decoded = decode_batch(damaged, 0, file="f", file_position=0).records
        assert [(each.offset, each.value) for each in decoded] == list(enumerate(values, 5))


@settings(max_examples=examples(100))
@given(st.binary(max_size=200), st.integers(-1, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_stated_counts_of_records_are_not_believed(body: bytes, last_offset_delta: int, count: int) -> None:
    header = parse_header(
        encode_batch([Record(offset=5, timestamp_ms=9, key=None, value=b"v")]), 0, file="", file_position=0
    )
    size_bytes = RECORDS_AT + len(body)
    damaged = seal(
        replace(header, size_bytes=size_bytes, last_offset_delta=last_offset_delta, records_count=count), body
    )
    try:
        _, values = decode_values(damaged, 0, file="f", file_position=0)
    except DiskFormatError:
        return
    assert values is None or len(values) == count <= len(body)
