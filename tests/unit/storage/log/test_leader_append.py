"""Appends as leader: batches validated, offsets and timestamps assigned, producers fenced and deduplicated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from builders.leader_writers import append_as_leader
from builders.log_reads import Isolation, read

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import (
    CorruptRecordError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.record.codecs.codec import Codec, CompressionType
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, Buffer, TimestampType, parse_header
from pyspark_kafkalog.record.reference import Record, RecordBatch, decode_batch, encode_batch, seal
from pyspark_kafkalog.storage.log.follower import append_as_follower, check_batches, delete_records, truncated_state
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions, indexed_transactions
from pyspark_kafkalog.storage.log.leader_append import ProducerView, accept_together, validate_batches
from pyspark_kafkalog.storage.log.producers import (
    AppendedProducers,
    ProducerBatch,
    ProducerState,
    ProducerStateManager,
    java_hash_order,
)
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog

T0 = 1_700_000_000_000
MAX_SEQUENCE = 2**31 - 1


class OpenLogs:
    """Opens logs in one directory, and lets go of them at the end of a test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now_ms = T0
        self.opened: list[UnifiedLog] = []

    def __call__(self, *, clean: bool = True, expiration_ms: int = 86_400_000, **overrides: str) -> UnifiedLog:
        names = {name.replace("_", "."): value for name, value in overrides.items()}
        log = UnifiedLog.open(
            self.directory,
            LogConfig.from_properties(names),
            clean_shutdown=clean,
            producer_id_expiration_ms=expiration_ms,
            clock=lambda: self.now_ms,
        )
        self.opened.append(log)
        return log


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[OpenLogs]:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    opener = OpenLogs(directory)
    yield opener
    for log in opener.opened:
        log.suspend()


def batch(
    count: int = 3,
    *,
    key: bytes | None = b"k",
    at_ms: int = T0,
    codec: CompressionType = CompressionType.NONE,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    return encode_batch(
        [Record(offset=at, timestamp_ms=at_ms + at, key=key, value=b"v%d" % at) for at in range(count)],
        compression=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
        timestamp_type=timestamp_type,
        max_timestamp_ms=at_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else None,
    )


def marker(
    producer_id: int, epoch: int, kind: ControlRecordType = ControlRecordType.ABORT, coordinator_epoch: int = 0
) -> bytes:
    key, value = build_control_record(EndTransactionMarker(control_type=kind, coordinator_epoch=coordinator_epoch))
    return encode_batch(
        [Record(offset=0, timestamp_ms=T0, key=key, value=value)],
        producer_id=producer_id,
        producer_epoch=epoch,
        is_transactional=True,
        is_control=True,
    )


def stored(log: UnifiedLog, offset: int = 0) -> RecordBatch:
    fetched = read(log, offset, max_bytes=1)
    return decode_batch(fetched.data, 0, file="log", file_position=0)


def end_transaction(log: UnifiedLog, data: bytes) -> None:
    log.append_as_coordinator(data, leader_epoch=0)


def test_leader_append_assigns_offsets_and_epoch_and_keeps_crc_valid(logs: OpenLogs) -> None:
    log = logs()
    append_as_leader(log, batch(3), leader_epoch=5)
    info = append_as_leader(log, batch(2) + batch(4), leader_epoch=5)
    assert (info.first_offset, info.last_offset, log.log_end_offset) == (3, 8, 9)
    assert [record.offset for record in stored(log, 5).records] == [5, 6, 7, 8]
    assert stored(log, 3).header.leader_epoch == 5
    assert log.epochs.entries == ((5, 0),)


def test_log_append_time_replaces_the_timestamps_and_keeps_the_deltas(logs: OpenLogs) -> None:
    logs.now_ms = T0 + 77_000
    log = logs(message_timestamp_type="LogAppendTime")
    info = append_as_leader(log, batch(3), leader_epoch=0)
    found = stored(log)
    assert info.log_append_time_ms == found.header.max_timestamp_ms == T0 + 77_000
    assert found.header.base_timestamp_ms == T0
    assert {record.timestamp_ms for record in found.records} == {T0 + 77_000}


def test_batch_of_producer_with_log_append_time_is_refused(logs: OpenLogs) -> None:
    log = logs(message_timestamp_type="LogAppendTime")
    with pytest.raises(InvalidRecordError, match="LogAppendTime"):
        append_as_leader(log, batch(timestamp_type=TimestampType.LOG_APPEND_TIME), leader_epoch=0)


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP, CompressionType.LZ4])
def test_batch_with_other_codec_is_recompressed_with_codec_of_topic(codec: CompressionType, logs: OpenLogs) -> None:
    log = logs(compression_type="zstd")
    append_as_leader(log, batch(5, codec=codec, producer_id=9, epoch=1, sequence=0), leader_epoch=2)
    found = stored(log)
    assert found.header.compression_bits == CompressionType.ZSTD
    assert (found.header.producer_id, found.header.base_sequence, found.header.leader_epoch) == (9, 0, 2)
    assert [record.value for record in found.records] == [b"v%d" % at for at in range(5)]


def test_codec_of_producer_is_kept_by_default(logs: OpenLogs) -> None:
    log = logs()
    data = batch(5, codec=CompressionType.SNAPPY)
    append_as_leader(log, data, leader_epoch=-1)
    assert read(log, 0).data.tobytes() == data


@pytest.mark.parametrize(
    ("data", "overrides", "match"),
    [
        (batch(50), {"max_message_bytes": "200"}, r"max\.message\.bytes=200"),
        (batch(50), {"internal_segment_bytes": "200"}, r"segment\.bytes=200"),
        (batch(key=None), {"cleanup_policy": "compact"}, "without a key"),
        (batch(at_ms=T0 - 5000), {"message_timestamp_before_max_ms": "1000"}, "timestamp"),
        (batch(at_ms=T0 + 5000), {"message_timestamp_after_max_ms": "1000"}, "timestamp"),
        (marker(1, 0), {}, "control"),
    ],
)
def test_refused_batch_leaves_log_unchanged(data: bytes, overrides: dict[str, str], match: str, logs: OpenLogs) -> None:
    log = logs(**overrides)
    with pytest.raises(InvalidRecordError, match=match):
        append_as_leader(log, data, leader_epoch=0)
    assert (log.log_end_offset, log.active_segment.size_bytes) == (0, 0)


@pytest.mark.parametrize("at", [0, 8, 12, 17, 25, 60, 70])
def test_damaged_batch_is_refused(at: int, logs: OpenLogs) -> None:
    log = logs()
    data = bytearray(batch())
    data[at] ^= 0x80
    whole = at not in (0, 12)  # base offset and leader epoch are assigned, whatever comes in
    if whole:
        with pytest.raises((CorruptRecordError, UnsupportedFormatError)):
            append_as_leader(log, bytes(data), leader_epoch=0)
        assert log.log_end_offset == 0
    with pytest.raises((CorruptRecordError, InvalidRecordError)):
        append_as_follower(log, check_batches(bytes(data) if whole else bytes(data)[:-1]))


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
def test_records_of_before_1970_are_stored_and_read(compression: CompressionType, logs: OpenLogs) -> None:
    data = encode_batch(
        [Record(offset=at, timestamp_ms=5 + at, key=b"k", value=b"v") for at in range(2)], compression=compression
    )
    header = parse_header(data, 0, file="", file_position=0)
    log = logs()
    for at, largest_ms in enumerate((-4999, 7)):
        early = replace(header, base_timestamp_ms=-5000, max_timestamp_ms=largest_ms)
        append_as_leader(log, seal(early, data[RECORD_BATCH_OVERHEAD_BYTES:]), leader_epoch=0)
        found = stored(log, 2 * at)
        assert [each.timestamp_ms for each in found.records] == [-5000, -4999]
        assert found.header.max_timestamp_ms == -1  # as a broker stores it


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
def test_records_that_a_client_has_made_wrongly_are_refused_for_good(
    compression: CompressionType, logs: OpenLogs
) -> None:
    data = encode_batch([Record(offset=0, timestamp_ms=T0, key=b"k", value=b"v")], compression=compression)
    header = replace(parse_header(data, 0, file="", file_position=0), records_count=2, last_offset_delta=1)
    with pytest.raises(InvalidRecordError):
        append_as_leader(logs(), seal(header, data[RECORD_BATCH_OVERHEAD_BYTES:]), leader_epoch=0)


def test_wrong_record_count_is_refused(logs: OpenLogs) -> None:
    data = encode_batch([Record(offset=0, timestamp_ms=T0, key=b"k", value=b"v")], last_offset=2)
    with pytest.raises(InvalidRecordError, match="1 records spans 3 offsets"):
        append_as_leader(logs(), data, leader_epoch=0)


def test_follower_append_below_log_end_is_refused(logs: OpenLogs) -> None:
    log = logs()
    append_as_follower(log, check_batches(batch(3)))
    with pytest.raises(InvalidRecordError, match="below the log end 3"):
        append_as_follower(log, check_batches(batch(3)))


def test_offset_out_of_reach_of_segment_rolls_the_log(logs: OpenLogs) -> None:
    log = logs()
    far = 2**31 + 5
    data = encode_batch([Record(offset=far, timestamp_ms=T0, key=b"k", value=b"v")])
    append_as_follower(log, check_batches(data))
    assert log.segments.base_offsets == (0, far)
    assert read(log, 0).batches["base_offset"].tolist() == [far]


def test_read_and_delete_outside_of_log_raise_offset_out_of_range(logs: OpenLogs) -> None:
    log = logs()
    append_as_leader(log, batch(10), leader_epoch=0)
    delete_records(log, 4)
    for offset in (3, 11):
        with pytest.raises(OffsetOutOfRangeError):
            read(log, offset)
    with pytest.raises(OffsetOutOfRangeError):
        delete_records(log, 11)
    # The batch is handed out whole: its reader leaves out what lies below the log start.
    assert read(log, 4).batches["base_offset"].tolist() == [0]


def test_segment_ms_without_timestamps_rolls_by_clock(logs: OpenLogs) -> None:
    log = logs(segment_ms="1000")
    data = encode_batch([Record(offset=0, timestamp_ms=-1, key=None, value=b"v")])
    append_as_leader(log, data, leader_epoch=0)
    logs.now_ms += 1000
    append_as_leader(log, data, leader_epoch=0)
    assert len(log.segments) == 1
    logs.now_ms += 1
    append_as_leader(log, data, leader_epoch=0)
    assert log.segments.base_offsets == (0, 2)


# Producers


def test_duplicate_of_one_of_last_five_batches_is_not_stored_again(logs: OpenLogs) -> None:
    log = logs()
    for number in range(6):
        append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=number * 2), leader_epoch=0)
    for number in range(1, 6):
        info = append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=number * 2), leader_epoch=0)
        assert (info.is_duplicate, info.first_offset, info.last_offset) == (True, number * 2, number * 2 + 1)
    with pytest.raises(OutOfOrderSequenceError):
        append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=0), leader_epoch=0)
    assert log.log_end_offset == 12


def test_gap_in_sequence_is_refused(logs: OpenLogs) -> None:
    log = logs()
    append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=0), leader_epoch=0)
    with pytest.raises(OutOfOrderSequenceError, match="sent sequence 3, expected 2"):
        append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=3), leader_epoch=0)


def test_sequence_after_maximum_continues_at_0(logs: OpenLogs) -> None:
    log = logs()
    append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=MAX_SEQUENCE - 1), leader_epoch=0)
    append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=0), leader_epoch=0)
    assert append_as_leader(
        log, batch(2, producer_id=1, epoch=0, sequence=MAX_SEQUENCE - 1), leader_epoch=0
    ).is_duplicate
    append_as_leader(log, batch(3, producer_id=2, epoch=0, sequence=MAX_SEQUENCE - 1), leader_epoch=0)
    append_as_leader(log, batch(1, producer_id=2, epoch=0, sequence=1), leader_epoch=0)
    assert log.producers.producers[2].last_sequence == 1


def test_new_producer_epoch_starts_at_sequence_0_and_fences_the_old_one(logs: OpenLogs) -> None:
    log = logs()
    append_as_leader(log, batch(2, producer_id=1, epoch=3, sequence=0), leader_epoch=0)
    with pytest.raises(OutOfOrderSequenceError, match="begins its epoch 4"):
        append_as_leader(log, batch(2, producer_id=1, epoch=4, sequence=2), leader_epoch=0)
    append_as_leader(log, batch(2, producer_id=1, epoch=4, sequence=0), leader_epoch=0)
    with pytest.raises(ProducerFencedError, match="epoch 4 has written"):
        append_as_leader(log, batch(2, producer_id=1, epoch=3, sequence=2), leader_epoch=0)


def test_append_with_one_bad_batch_stores_no_batch(logs: OpenLogs) -> None:
    log = logs()
    good, bad = batch(2, producer_id=1, epoch=0, sequence=0), batch(2, producer_id=1, epoch=0, sequence=7)
    with pytest.raises(OutOfOrderSequenceError):
        append_as_leader(log, good + bad, leader_epoch=0)
    assert log.log_end_offset == 0
    assert not log.producers.producers


def test_last_stable_offset_is_first_offset_of_open_transactions(logs: OpenLogs) -> None:
    log = logs()
    append_as_leader(log, batch(2), leader_epoch=0)
    append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=0, transactional=True), leader_epoch=0)
    append_as_leader(log, batch(2, producer_id=2, epoch=0, sequence=0, transactional=True), leader_epoch=0)
    assert log.last_stable_offset == 2
    end_transaction(log, marker(1, 0))
    assert log.last_stable_offset == 4
    with pytest.raises(InvalidRecordError, match="not transactional"):
        append_as_leader(log, batch(2, producer_id=2, epoch=0, sequence=2), leader_epoch=0)
    end_transaction(log, marker(2, 0, ControlRecordType.COMMIT))
    assert log.last_stable_offset == log.log_end_offset == 8
    aborted = indexed_transactions(logs.directory, 0, 8)
    assert [(each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset) for each in aborted] == [
        (1, 2, 6, 4)
    ]
    assert read(log, 0, isolation=Isolation.COMMITTED).batches["base_offset"].tolist() == [0, 4, 6, 7]


def test_marker_of_older_coordinator_epoch_is_fenced(logs: OpenLogs) -> None:
    log = logs()
    end_transaction(log, marker(1, 0, coordinator_epoch=5))
    with pytest.raises(ProducerFencedError, match="coordinator epoch"):
        end_transaction(log, marker(1, 0, coordinator_epoch=4))


def test_marker_of_higher_producer_epoch_clears_batches_of_producer(logs: OpenLogs) -> None:
    log = logs()
    append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=0, transactional=True), leader_epoch=0)
    end_transaction(log, marker(1, 1))
    state = log.producers.producers[1]
    assert (state.producer_epoch, state.last_sequence, state.entry().last_offset) == (1, -1, -1)


def test_producers_expire_by_record_time_unless_transaction_is_open(logs: OpenLogs) -> None:
    log = logs()
    append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=0), leader_epoch=0)
    append_as_leader(log, batch(2, producer_id=2, epoch=0, sequence=0, transactional=True), leader_epoch=0)
    append_as_leader(log, batch(2, producer_id=3, epoch=0, sequence=0, at_ms=T0 + 900), leader_epoch=0)
    log.close()
    logs.now_ms = T0 + 1500
    assert set(logs(expiration_ms=1000).producers.producers) == {2, 3}
    log = logs()
    log.producers.remove_expired(T0 + 86_400_000 + 500)
    assert set(log.producers.producers) == {2, 3}


def test_truncated_marker_reopens_its_transaction(logs: OpenLogs) -> None:
    log = logs()
    append_as_leader(log, batch(2, producer_id=1, epoch=0, sequence=0, transactional=True), leader_epoch=0)
    log.roll()
    end_transaction(log, marker(1, 0))
    assert log.last_stable_offset == 3
    state = truncated_state(log, 2, producer_id_expiration_ms=86_400_000)
    log.suspend()
    log = UnifiedLog.resume(logs.directory, log.config, state, clock=lambda: logs.now_ms)
    logs.opened.append(log)
    assert (log.log_end_offset, log.last_stable_offset) == (2, 0)
    assert not indexed_transactions(logs.directory, 0, 3)


def test_snapshot_entries_are_in_order_of_java_hash_map(tmp_path: Path) -> None:
    manager = ProducerStateManager(tmp_path, expiration_ms=1)
    for producer_id in (33, 1, 16, 4000, 1 << 33, 2):
        manager.producers[producer_id] = ProducerState(producer_id)
    # Buckets of 16: 33 and 1 share 1, in the order they came in; 1 << 33 folds to 2.
    assert [state.producer_id for state in java_hash_order(manager.producers)] == [16, 4000, 33, 1, 1 << 33, 2]


def test_states_of_a_whole_append_equal_those_of_its_batches_one_by_one(tmp_path: Path) -> None:
    # Two epochs of one producer, more batches than are remembered, and a producer that the log has not seen.
    rows = [(7, 0, at * 3) for at in range(7)] + [(9, 1, 0), (7, 1, 0), (9, 1, 3), (5, 0, 40), (7, 1, 3)]
    batches = [
        ProducerBatch(
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            base_offset=at * 3,
            last_offset=at * 3 + 2,
            max_timestamp_ms=T0 + at,
            is_transactional=False,
            is_control=False,
        )
        for at, (producer_id, epoch, sequence) in enumerate(rows)
    ]
    before, after = batches[:4], batches[4:]
    replayed, taken = (ProducerStateManager(tmp_path, expiration_ms=1) for _ in range(2))
    for manager in (replayed, taken):
        manager.replay(before, lambda transaction, last_stable_offset: None)
    replayed.replay(after, lambda transaction, last_stable_offset: None)
    view = ProducerView(taken.producers)
    for each in after:
        assert view.add([each]) is None
    appended = AppendedProducers.of(after, view.changed)
    assert appended.is_plain
    taken.take(appended, after[-1].last_offset + 1)
    assert list(taken.producers.items()) == list(replayed.producers.items())
    assert taken.last_entry == replayed.last_entry
    assert taken.end_offset == replayed.end_offset == len(batches) * 3


def test_table_without_aborted_transactions_is_returned_unchanged() -> None:
    empty = AbortedTransactions(())
    table = np.zeros(3, dtype=[("attributes", "i2"), ("producer_id", "i8"), ("base_offset", "i8")])
    assert empty.keep(table) is table


def test_first_undecided_offset_is_the_smallest_one_in_whatever_order_transactions_begin_and_end(
    tmp_path: Path,
) -> None:
    random, expected = Random(7), dict[int, int]()
    manager = ProducerStateManager(tmp_path, expiration_ms=1)
    # A snapshot is in the order of a hash map; one that is wrong may even name offsets that lie above the next batches.
    found = [ProducerState(each, 0, current_txn_first_offset=first) for each, first in ((1, 40), (2, 7), (3, 90))]
    manager.begin_at(50, [each.entry() for each in found], T0)
    expected = {each.producer_id: each.current_txn_first_offset for each in found}
    assert manager.first_undecided_offset == 7
    stable: list[int] = []
    for offset in range(50, 400):
        producer_id = random.randrange(20)
        ends = producer_id in expected
        marker = EndTransactionMarker(control_type=ControlRecordType.COMMIT, coordinator_epoch=0) if ends else None
        written = ProducerBatch(
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=-1 if ends else 0,
            base_offset=offset,
            last_offset=offset,
            max_timestamp_ms=T0,
            is_transactional=True,
            is_control=ends,
            marker=marker,
        )
        if ends:
            del expected[producer_id]
        else:
            expected[producer_id] = offset
        manager.replay([written], lambda transaction, last_stable_offset: stable.append(last_stable_offset))
        first = min(expected.values(), default=None)
        assert manager.first_undecided_offset == first
        assert not ends or stable[-1] == (offset + 1 if first is None else first)
    assert stable


def validated(data: bytes, **overrides: str) -> int:
    """How many batches a leader accepts."""
    config = LogConfig.from_properties({name.replace("_", "."): value for name, value in overrides.items()})
    return len(validate_batches(data, next_offset=0, leader_epoch=0, config=config, now_ms=T0))


def sized_batch(codec: CompressionType, *sizes: int) -> bytes:
    """A batch with values of these sizes."""
    records = [Record(offset=at, timestamp_ms=T0, key=b"k", value=b"v" * size) for at, size in enumerate(sizes)]
    return encode_batch(records, compression=codec)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", list(CompressionType))
def test_record_of_a_compressed_batch_is_no_larger_than_the_topic_allows(
    codec: CompressionType, timestamp_type: str
) -> None:
    """LogAppendTime takes the way of batches that no kernel accepts at once."""
    data = sized_batch(codec, 10, 200, 30)
    largest = len(sized_batch(CompressionType.NONE, 200)) - RECORD_BATCH_OVERHEAD_BYTES - 2
    for limit, is_accepted in ((largest, True), (largest - 1, codec is CompressionType.NONE)):
        settings = {"max_decompressed_message_bytes": str(limit), "message_timestamp_type": timestamp_type}
        if is_accepted:  # whatever is not compressed, as by a broker
            assert validated(data, **settings) == 1
        else:
            with pytest.raises(InvalidRecordError, match=f"max.decompressed.message.bytes={limit}"):
                validated(data, **settings)


def test_compressed_batches_are_accepted_together_up_to_a_limit_of_their_content() -> None:
    zeros = sized_batch(CompressionType.LZ4, (1 << 20) - 100)
    for count in (2, 32, 33):
        producers, config = ProducerView({}), LogConfig.from_properties({})
        found = accept_together([zeros] * count, config, producers, next_offset=7, leader_epoch=0, now_ms=T0)
        assert (0 if found is None else len(found)) == (count if count <= 32 else 0)


@pytest.mark.parametrize("codec", list(CompressionType)[1:])
def test_batch_is_decompressed_no_further_than_its_records_may_be_large(
    codec: CompressionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, decompress = [], Codec.decompress

    def noting(self: Codec, data: Buffer, **options: Any) -> Any:
        limits.append(options["max_bytes"])
        return decompress(self, data, **options)

    data = sized_batch(codec, 10, 1_000_000)
    monkeypatch.setattr(Codec, "decompress", noting)
    with pytest.raises(InvalidRecordError, match=r"a batch of 2 records .* 2010 bytes that .*bytes=1000"):
        validated(data, max_decompressed_message_bytes="1000")
    assert set(limits) == {2010}

    limits.clear()
    small = sized_batch(codec, 10, 200)
    assert validated(small, max_decompressed_message_bytes="1000", message_timestamp_type="LogAppendTime") == 1
    assert limits == [2010], "no kernel accepts it at once, and it is decompressed once all the same"
