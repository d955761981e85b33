"""Batches of a produce request, valid and damaged: what a leader stores can be read, and equals what was sent.

The call that accepts the usual append is compared with the checks that decide about all others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import numpy as np
from builders.leader_writers import T0
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    NO_PRODUCER_ID,
    RECORDS_AT,
    TRANSACTIONAL_MASK,
    BatchHeader,
    crc32c,
    next_sequence,
)
from pyspark_kafkalog.record.reference import Record, decode_batch, encode_batch, encode_varint, encode_varlong
from pyspark_kafkalog.storage.log import leader_append
from pyspark_kafkalog.storage.log.leader_append import LeaderBatches, ProducerView, prepare_batches, validate_batches
from pyspark_kafkalog.storage.log.producers import BatchMetadata, ProducerState

NOW_MS = T0 + 60_000

_texts = st.none() | st.binary(max_size=40)
_timestamps = st.sampled_from([-1, 0, T0, T0 + 1, NOW_MS, NOW_MS + 3_600_001]) | st.integers(0, T0)
_records = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp_ms=_timestamps,
        key=_texts,
        value=_texts,
        headers=st.lists(st.tuples(st.binary(max_size=5), _texts), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=5,
)
_producers = st.sampled_from([(-1, -1, -1), (5, 0, 0), (5, 2, 2**31 - 2), (5, 0, -1)])
_configs = st.builds(
    lambda texts: LogConfig.from_properties(dict(texts)),
    st.lists(
        st.sampled_from(
            [
                ("cleanup.policy", "compact"),
                ("message.timestamp.type", "LogAppendTime"),
                ("message.timestamp.before.max.ms", "1000000"),
                ("compression.type", "zstd"),
                ("compression.type", "uncompressed"),
                ("max.message.bytes", "200"),
            ]
        ),
        max_size=2,
    ),
)


def sealed(header: BatchHeader, body: bytes) -> bytes:
    """A batch with a right length and CRC around whatever records."""
    header = replace(header, size_bytes=RECORDS_AT + len(body))
    return replace(header, crc=crc32c((header.pack() + body)[ATTRIBUTES_AT:])).pack() + body


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    records = [replace(record, offset=at) for at, record in enumerate(draw(_records))]
    producer_id, epoch, sequence = draw(_producers)
    codec = draw(st.sampled_from(list(CompressionType)) | st.just(CompressionType.NONE))
    data = encode_batch(records, compression=codec)
    header = replace(BatchHeader.unpack(data), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    change = draw(st.sampled_from(["none", "none", "header", "body"]))
    body = data[RECORDS_AT:]
    if change == "header":
        field, value = draw(
            st.sampled_from(
                [
                    ("records_count", 7), ("records_count", -1), ("last_offset_delta", 9), ("last_offset_delta", -1),
                    ("attributes", 0x20), ("attributes", 0x08), ("attributes", 7), ("max_timestamp_ms", 3),
                    ("base_timestamp_ms", 2**63 - 1), ("base_offset", 4), ("magic", 1), ("producer_id", -7),
                    ("attributes", 0x40), ("attributes", 0x10),
                ]
            )
        )  # fmt: skip
        header = replace(header, **{field: value})
    elif change == "body" and body:
        changed = bytearray(body)
        changed[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
        body = bytes(changed[: draw(st.integers(0, len(body)) | st.just(len(body)))])
    return sealed(header, body)


def before(data: bytes) -> ProducerView:
    """The producers of a log in which the batch is the next one of its producer."""
    header = BatchHeader.unpack(data)
    last = BatchMetadata(next_sequence(header.base_sequence, -1), last_offset=99, offset_delta=0, timestamp_ms=T0)
    state = ProducerState(header.producer_id, header.producer_epoch, batches=(last,))
    return ProducerView({header.producer_id: state} if header.producer_id >= 0 else {})


def outcome(
    data: bytes, config: LogConfig, *, in_one_call: bool, next_offset: int = 100
) -> LeaderBatches | type[Exception]:
    accepted = leader_append._accepted if in_one_call else lambda *_: None
    with mock.patch.object(leader_append, "_accepted", accepted):
        try:
            return validate_batches(data, next_offset=next_offset, leader_epoch=3, config=config, now_ms=NOW_MS)
        except (CorruptRecordError, InvalidRecordError) as error:
            return type(error)


@settings(max_examples=examples(1200), deadline=None)
@given(st.lists(batches() | st.tuples(batches(), batches()).map(b"".join), min_size=1, max_size=4), _configs)
def test_appends_accepted_in_one_call_equal_those_checked_step_by_step(
    sent: Sequence[bytes], config: LogConfig
) -> None:
    producers = before(sent[0])
    expected = producers.expected(BatchHeader.unpack(sent[0]).producer_id)
    together = leader_append.accept_together(sent, config, producers, next_offset=100, leader_epoch=3, now_ms=NOW_MS)
    stored, tables, next_offset, is_each_usual = b"", b"", 100, True
    for data in sent:
        quick, careful = (outcome(data, config, in_one_call=each, next_offset=next_offset) for each in (True, False))
        if isinstance(careful, type) or isinstance(quick, type):
            assert quick == careful
            assert together is None
            return
        assert quick.data.tobytes() == careful.data.tobytes()
        assert quick.batches.tobytes() == careful.batches.tobytes()
        is_each_usual &= leader_append.prepare_in_place(np.array(bytearray(data)), config, now_ms=NOW_MS) is not None
        for row in careful.batches:
            is_each_usual &= not row["attributes"] & TRANSACTIONAL_MASK
            is_each_usual &= expected == (row["producer_id"], row["producer_epoch"], row["base_sequence"])
            if expected is not None and expected[0] != NO_PRODUCER_ID:
                expected = *expected[:2], next_sequence(expected[2], int(row["records_count"]))
        careful.batches["position"] += len(stored)
        stored, tables = stored + careful.data.tobytes(), tables + careful.batches.tobytes()
        next_offset = careful.next_offset
    assert (together is not None) == is_each_usual
    assert together is None or (together.data.tobytes(), together.batches.tobytes()) == (stored, tables)


@settings(max_examples=examples(600), deadline=None)
@given(st.lists(batches(), min_size=1, max_size=3), _configs)
def test_what_is_stored_can_be_read_and_has_the_rows_that_were_sent(sent: Sequence[bytes], config: LogConfig) -> None:
    stored = outcome(b"".join(sent), config, in_one_call=True)
    if isinstance(stored, type):
        return
    at, offset = 0, 100
    for data in sent:
        batch = decode_batch(stored.data, at, file="stored", file_position=at)
        before = BatchHeader.unpack(data)
        assert batch.header.base_offset == offset
        assert [each.offset for each in batch.records] == list(range(offset, offset + len(batch.records)))
        assert batch.header.records_count == before.records_count == len(batch.records)
        assert batch.header.max_timestamp_ms == max(each.timestamp_ms for each in batch.records)
        assert batch.header.leader_epoch == 3
        assert (batch.header.producer_id, batch.header.base_sequence) == (before.producer_id, before.base_sequence)
        kept = config.stored_compression(CompressionType(before.compression_bits))
        assert batch.header.compression_bits == kept
        try:
            original = decode_batch(data, 0, file="sent", file_position=0).records
        except CorruptRecordError:  # offset deltas of an old client, which a leader corrects
            original = ()
        if original:
            assert [(each.key, each.value, each.headers) for each in batch.records] == [
                (each.key, each.value, each.headers) for each in original
            ]
        at += batch.header.size_bytes
        offset += len(batch.records)
    assert at == len(stored.data)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6),
    st.sampled_from([CompressionType.NONE, CompressionType.LZ4]),
    st.integers(-(2**40), 2**40),
)
def test_records_with_wrong_offset_deltas_are_renumbered(
    deltas: Sequence[int], codec: CompressionType, timestamp_delta: int
) -> None:
    body = b""
    for delta in deltas:
        record = b"\0" + encode_varlong(timestamp_delta) + encode_varint(delta) + encode_varint(1) + b"k"
        record += encode_varint(-1) + encode_varint(0)
        body += encode_varint(len(record)) + record
    plain = encode_batch(
        [Record(offset=at, timestamp_ms=2**41 + T0, key=b"k", value=None) for at in range(len(deltas))],
        compression=codec,
    )
    if codec is not CompressionType.NONE:
        body = CODECS[codec].compress(body)
    data = sealed(BatchHeader.unpack(plain), body)
    config = LogConfig.from_properties({"message.timestamp.after.max.ms": str(2**62)})
    stored = validate_batches(data, next_offset=7, leader_epoch=0, config=config, now_ms=NOW_MS)
    records = decode_batch(np.array(stored.data), 0, file="stored", file_position=0).records
    assert [each.offset for each in records] == list(range(7, 7 + len(deltas)))
    assert {(each.key, each.value, each.timestamp_ms) for each in records} == {
        (b"k", None, 2**41 + T0 + timestamp_delta)
    }


@settings(max_examples=examples(600), deadline=None)
@given(batches(), _configs, st.sampled_from([None, 10_000, 20]))
def test_batch_checked_before_the_commit_is_stored_like_one_checked_inside(
    data: bytes, config: LogConfig, content_max: int | None
) -> None:
    inside = outcome(data, config, in_one_call=True)
    if isinstance(inside, type):
        with contextlib.suppress(CorruptRecordError, InvalidRecordError):
            assert prepare_batches(data, config, now_ms=NOW_MS, decompressed_max_bytes=content_max) is None
        return
    prepared = prepare_batches(data, config, now_ms=NOW_MS, decompressed_max_bytes=content_max)
    if prepared is None:
        assert content_max is not None
        return
    for _ in range(2):  # a commit that has lost a race places them again
        placed = prepared.placed(100, 3)
        assert placed.data.tobytes() == inside.data.tobytes()
        assert placed.batches.tobytes() == inside.batches.tobytes()
