"""What cleaner and merge read of a log's files: closed segments, times, aborted transactions, active producers."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

from pyspark_kafkalog.maintenance.cleaner.plan import ClosedSegment
from pyspark_kafkalog.maintenance.retention.plan import StoredSegment
from pyspark_kafkalog.maintenance.segments import stored_segments
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, TransactionIndex
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import load_latest_snapshot, producer_state_at
from pyspark_kafkalog.storage.log.producers import ProducerStateManager
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file,
    segment_file,
)
from pyspark_kafkalog.storage.segment.reader import SegmentReader
from pyspark_kafkalog.units import NS_PER_MS


def closed_segments(directory: Path, state: LogState) -> list[ClosedSegment]:
    """The segments below the active one, in order; empty for a partition without a directory."""
    sizes: dict[int, dict[str, int]] = {}
    modified_ns: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_segment_file(entry.name)
            if parsed is None or parsed[0] >= state.active_base_offset:
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                sizes.setdefault(parsed[0], {})[parsed[1]] = status.st_size
                if parsed[1] == LOG_SUFFIX:
                    modified_ns[parsed[0]] = status.st_mtime_ns
    return [
        ClosedSegment(
            base_offset,
            next_base_offset,
            sizes[base_offset][LOG_SUFFIX],
            sizes[base_offset].get(INDEX_SUFFIX, 0),
            sizes[base_offset].get(TIME_INDEX_SUFFIX, 0),
            modified_ns[base_offset],
        )
        for base_offset, next_base_offset in itertools.pairwise([*sorted(modified_ns), state.active_base_offset])
    ]


def largest_timestamp_ms(directory: Path, segment: ClosedSegment) -> int:
    """The largest timestamp of the segment's batches; the file's modification time if none has a timestamp."""
    modified_ms = segment.modified_ns // NS_PER_MS
    stored = StoredSegment(segment.base_offset, segment.size_bytes, modified_ms)
    found_ms = stored_segments.closed_largest_timestamp_ms(directory, stored)
    return found_ms if found_ms >= 0 else modified_ms


def first_timestamp_ms(directory: Path, segment: ClosedSegment) -> int:
    """The largest timestamp of the segment's first batch, -1 without one."""
    with SegmentReader(directory, segment.base_offset) as reader:
        for _, header in reader.headers(0):
            return header.max_timestamp_ms
    return -1


def aborted_transactions(directory: Path, end_offset: int) -> list[AbortedTxn]:
    """The aborted transactions that begin below `end_offset`, from the `.txnindex` files. Raises CorruptIndexError."""
    found: list[AbortedTxn] = []
    with os.scandir(directory) as entries:
        parsed = [parse_segment_file(entry.name) for entry in entries]
    for base_offset in sorted(each[0] for each in parsed if each is not None and each[1] == TXN_INDEX_SUFFIX):
        with TransactionIndex.open(segment_file(directory, base_offset, TXN_INDEX_SUFFIX), base_offset) as index:
            found += index.collect_aborted(0, end_offset).transactions
    return found


def active_producers(
    directory: Path, state: LogState, *, now_ms: int, expiration_ms: int
) -> dict[int, ProducerStateEntry]:
    """The producers that a broker would know at the end of the log, by id.

    They come from the latest snapshot and, if a producer with an id has written since the log began, the batches after
    it.
    """
    if state.producer is not None:
        producers = producer_state_at(
            directory,
            state.log_end_offset,
            log_start_offset=state.log_start_offset,
            expiration_ms=expiration_ms,
            now_ms=now_ms,
        )
    else:
        producers = ProducerStateManager(directory, expiration_ms=expiration_ms)
        load_latest_snapshot(producers, state.log_start_offset, state.log_end_offset, now_ms)
    producers.remove_expired(now_ms)
    return {producer_id: each.entry() for producer_id, each in producers.producers.items()}
