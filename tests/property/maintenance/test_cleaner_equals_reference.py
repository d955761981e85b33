"""The compiled cleaner leaves of any log what Kafka's rules, written in plain Python, leave of it, byte for byte."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from simulations.cleaner_reference import (
    Pass,
    clean_directory,
    clean_directory_by_tasks,
    decode,
    reference,
    stored_batches,
    write_segment,
)
from tiers import examples

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.cleaner import copy, record_chunks
from pyspark_kafkalog.maintenance.swap import has_unfinished
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.header import TimestampType
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.log.isolation import indexed_transactions
from pyspark_kafkalog.storage.log.producer_replay import producer_state_at

_FAR_MS = 1 << 60
_TRANSACTIONAL = (100, 101, 102)
_IDEMPOTENT = (200, 201)


@dataclass(frozen=True)
class Batch:
    """What a drawn batch is: data of a producer (None: without id), or the marker that ends its transaction."""

    producer_id: int | None
    records: tuple[Record, ...]
    ends: ControlRecordType | None
    compression: CompressionType
    append_time_ms: int | None


_keys = st.one_of(
    st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"a-key-of-more-than-eight-bytes"]), st.binary(max_size=20)
)
_values = st.one_of(st.none(), st.binary(max_size=30))
_headers = st.lists(st.tuples(st.binary(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=2).map(
    tuple
)
_records = st.builds(
    Record, offset=st.just(0), timestamp_ms=st.integers(0, 5000), key=_keys, value=_values, headers=_headers
)
_batches = st.builds(
    Batch,
    producer_id=st.sampled_from([None, None, *_TRANSACTIONAL, *_IDEMPOTENT]),
    records=st.lists(_records, min_size=1, max_size=6).map(tuple),
    ends=st.sampled_from([None, None, ControlRecordType.ABORT, ControlRecordType.COMMIT]),
    compression=st.sampled_from(CompressionType),
    append_time_ms=st.one_of(st.none(), st.integers(0, 5000)),
)


def _plain(batch: Batch) -> Batch:
    """The batch outside of transactions."""
    return replace(batch, producer_id=None) if batch.producer_id in _TRANSACTIONAL else batch


_segments = st.lists(st.lists(_batches, max_size=8), min_size=1, max_size=6)


@dataclass
class _Writer:
    """Gives drawn batches offsets and sequence numbers and writes them as segments."""

    directory: Path
    config: LogConfig
    next_offset: int = 0
    open_transactions: set[int] = field(default_factory=set)
    sequences: dict[int, int] = field(default_factory=dict)

    def write(self, batches: Sequence[Batch], gap: int) -> None:
        base_offset = self.next_offset
        write_segment(self.directory, base_offset, [self._encode(each) for each in batches], self.config)
        self.next_offset = max(self.next_offset, base_offset + 1) + gap

    def end_transactions(self) -> None:
        """A segment of markers, so that the last stable offset reaches the end."""
        ends = [
            Batch(each, (), ControlRecordType.ABORT, CompressionType.NONE, None) for each in [*self.open_transactions]
        ]
        if ends:
            self.write(ends, 0)

    def _encode(self, batch: Batch) -> bytes:
        producer_id = batch.producer_id
        if producer_id in _TRANSACTIONAL and batch.ends is not None and producer_id in self.open_transactions:
            return self._marker(producer_id, batch.ends)
        offset = self.next_offset
        records = [
            Record(
                offset=offset + i, timestamp_ms=each.timestamp_ms, key=each.key, value=each.value, headers=each.headers
            )
            for i, each in enumerate(batch.records)
        ]
        self.next_offset += len(records)
        sequence = -1
        if producer_id is not None:
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + len(records)
        if producer_id in _TRANSACTIONAL:
            self.open_transactions.add(producer_id)
        is_append_time = batch.append_time_ms is not None
        return encode_batch(
            records,
            compression=batch.compression,
            timestamp_type=TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME,
            max_timestamp_ms=batch.append_time_ms,
            leader_epoch=3,
            producer_id=-1 if producer_id is None else producer_id,
            producer_epoch=-1 if producer_id is None else 0,
            base_sequence=sequence,
            is_transactional=producer_id in _TRANSACTIONAL,
        )

    def _marker(self, producer_id: int, kind: ControlRecordType) -> bytes:
        key, value = build_control_record(EndTransactionMarker(control_type=kind, coordinator_epoch=0))
        self.open_transactions.discard(producer_id)
        self.next_offset += 1
        return encode_batch(
            [Record(offset=self.next_offset - 1, timestamp_ms=1000, key=key, value=value)],
            leader_epoch=3,
            producer_id=producer_id,
            producer_epoch=0,
            is_transactional=True,
            is_control=True,
        )

    def producers(self) -> dict[int, ProducerStateEntry]:
        state = producer_state_at(self.directory, self.next_offset, log_start_offset=0, expiration_ms=_FAR_MS, now_ms=0)
        return {producer_id: each.entry() for producer_id, each in state.producers.items()}


@settings(max_examples=examples(50), deadline=None)
@given(
    first=_segments,
    second=_segments,
    gap=st.integers(0, 2),
    segment_bytes=st.sampled_from([200, 1000, 10_000]),
    retention_ms=st.sampled_from([0, 1000]),
    later_ms=st.sampled_from([0, 500, 2000]),
    map_keys=st.sampled_from([3, 10, 1000]),
    piece_bytes=st.sampled_from([1, 300, 1 << 22]),
    chunk_bytes=st.sampled_from([100, 1 << 23]),
    tail_bytes=st.sampled_from([0, 500, 1 << 26]),
    has_transactions=st.booleans(),
    forgets_producers=st.booleans(),
    by_tasks=st.booleans(),
)
def test_cleaned_log_equals_reference_byte_for_byte(
    first: list[list[Batch]],
    second: list[list[Batch]],
    gap: int,
    segment_bytes: int,
    retention_ms: int,
    later_ms: int,
    map_keys: int,
    piece_bytes: int,
    chunk_bytes: int,
    tail_bytes: int,
    has_transactions: bool,
    forgets_producers: bool,
    by_tasks: bool,
) -> None:
    config = LogConfig(segment_bytes=segment_bytes, delete_retention_ms=retention_ms, index_interval_bytes=50)
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(record_chunks, "_PIECE_WEIGHT", piece_bytes),
        mock.patch.object(record_chunks, "CHUNK_BYTES", chunk_bytes),
        mock.patch.object(copy, "_TAIL_BYTES", tail_bytes),
    ):
        directory = Path(name)
        writer = _Writer(directory, config)
        now_ms, cleaned_to = 10_000, 0
        for segments in (first, second):
            for batches in segments:
                writer.write(batches if has_transactions else [_plain(each) for each in batches], gap)
            writer.end_transactions()
            run = Pass(
                first_dirty_offset=cleaned_to,
                end_offset=writer.next_offset,
                now_ms=now_ms,
                config=config,
                producers={} if forgets_producers else writer.producers(),
            )
            before = stored_batches(directory)
            expected = reference(before, indexed_transactions(directory, 0, run.end_offset), run)
            clean = clean_directory_by_tasks if by_tasks else clean_directory
            clean(directory, run, map_bytes=24 * map_keys)
            assert not has_unfinished(directory)
            found = stored_batches(directory)
            assert [decode(each) for each in found] == [decode(each) for each in expected]
            assert found == expected
            now_ms, cleaned_to = now_ms + later_ms, writer.next_offset
