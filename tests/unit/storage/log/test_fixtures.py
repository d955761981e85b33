"""The log engine against directories of real brokers: equal files from equal batches, equal answers to lookups."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from builders.engine_fixtures import (
    LATE_MS,
    FixturePartition,
    expected_records,
    files_of,
    manifest,
    partitions,
    partitions_with_offsets,
)
from builders.indexes import rebuild_indexes
from builders.log_reads import Isolation, read
from numpy.typing import NDArray

from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.log.follower import append_as_follower, check_batches, delete_records
from pyspark_kafkalog.storage.log.isolation import indexed_transactions
from pyspark_kafkalog.storage.log.read_only import last_stable_offset, load_read_only
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import segment_file

INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")

#: Segments that a broker went on with after a clean restart: its count of bytes since the last index entry began anew.
CONTINUED_AFTER_RESTART = {
    ("leader-epochs/leader-epochs-0", 0),
    ("leader-epochs/leader-epochs-0", 110),
    ("cluster-metadata/__cluster_metadata-0", 0),
    ("compacted-3-dirty/compacted-plain-0", 205),
    ("compacted-3-dirty/compacted-idempotent-0", 205),
    ("compacted-3-dirty/compacted-txn-0", 240),
}
#: Segments that the broker was killed over: indexes not trimmed, or removed by hand.
KILLED = {
    ("unclean/unclean-killed-0", 665),
    ("unclean/unclean-torn-0", 291),
    ("unclean/unclean-badcrc-0", 294),
    ("unclean/unclean-garbage-0", 297),
    ("unclean/unclean-noindex-0", 0),
    ("unclean/unclean-noindex-0", 295),
}
#: Fixtures whose rolls are not those of an append: the cleaner has grouped segments, or the KRaft quorum rolls by its
#: own rules, or files were cut by hand.
NOT_APPENDED_TO_ONLY = {
    "cluster-metadata",
    "compacted-2-cleaned",
    "compacted-3-dirty",
    "compacted-4-cleaned",
    "unclean",
}

#: The cleaner keeps index entries of transactions whose data it has just removed, and no log tells of those.
CLEANED = {"compacted-2-cleaned", "compacted-3-dirty", "compacted-4-cleaned"}

#: Where brokers were restarted with nothing but a clean stop.
RESTARTS = {"leader-epochs/leader-epochs-0": (60, 120, 180)}


def stored_batches(part: FixturePartition) -> list[tuple[int, NDArray[np.uint8], NDArray[np.void]]]:
    """Base offset, bytes and table row of each batch."""
    result = []
    for base_offset in part.base_offsets:
        data = np.fromfile(segment_file(part.directory, base_offset, ".log"), dtype=np.uint8)
        batches = scan_batches(data, file=str(part)).batches
        for at in range(len(batches)):
            row = batches[at : at + 1]
            start = int(row["position"][0])
            result.append((int(row["base_offset"][0]), data[start : start + int(row["size_bytes"][0])], row))
    return result


def kafka_files(part: FixturePartition) -> dict[str, bytes]:
    return {name: data for name, data in files_of(part.directory).items() if not name.endswith(".deleted")}


def fresh_log(directory: Path, part: FixturePartition, start_offset: int, *, now_ms: int = 0) -> UnifiedLog:
    return UnifiedLog.open(
        directory, part.config, log_start_offset=start_offset, clean_shutdown=True, clock=lambda: now_ms
    )


@pytest.mark.parametrize("part", partitions(), ids=str)
def test_indexes_rebuilt_from_log_equal_kafkas_byte_for_byte(part: FixturePartition, tmp_path: Path) -> None:
    directory = tmp_path / part.directory.name
    shutil.copytree(part.directory, directory)
    wanted = files_of(part.directory)
    for base_offset in part.base_offsets:
        key = (str(part), base_offset)
        if key in KILLED or key in CONTINUED_AFTER_RESTART:
            continue
        for suffix in INDEX_SUFFIXES:
            segment_file(directory, base_offset, suffix).unlink(missing_ok=True)
        rebuild_indexes(directory, base_offset, part.config)
    found = files_of(directory)
    for name in wanted.keys() | found.keys():
        if not (name.endswith(".txnindex") and part.fixture in CLEANED):
            assert found.get(name) == wanted.get(name), name


@pytest.mark.parametrize("part", [each for each in partitions() if each.fixture not in NOT_APPENDED_TO_ONLY], ids=str)
def test_batches_appended_again_produce_kafkas_files_byte_for_byte(part: FixturePartition, tmp_path: Path) -> None:
    directory = tmp_path / part.directory.name
    directory.mkdir()
    wanted = kafka_files(part)
    first_base = part.base_offsets[0]
    log = fresh_log(directory, part, first_base)
    epochs = LeaderEpochCheckpoint.open(part.directory / "leader-epoch-checkpoint").entries
    if not log.log_start_offset:
        log.assign_epoch(epochs[0].epoch, epochs[0].start_offset)
    restarts = RESTARTS.get(str(part), ())
    for base_offset, data, _ in stored_batches(part):
        if base_offset in restarts:
            log.close()
            log = fresh_log(directory, part, first_base)
        append_as_follower(log, check_batches(data))
    if log.log_end_offset in restarts:
        log.close()
    delete_records(log, part.log_start_offset)
    for epoch, start_offset in epochs:
        if start_offset >= log.log_end_offset:
            log.assign_epoch(epoch, start_offset)
    log.close()
    found = files_of(directory)
    del wanted["partition.metadata"]  # not the log's to write
    if first_base:
        # Written by the roll that ended a segment which is gone.
        del wanted[f"{first_base:020d}.snapshot"], found[f"{first_base:020d}.snapshot"]
    assert sorted(found) == sorted(wanted)
    assert [name for name in wanted if found[name] != wanted[name]] == []


@pytest.mark.parametrize("part", partitions_with_offsets(), ids=str)
def test_offsets_equal_those_a_broker_answered(part: FixturePartition, tmp_path: Path) -> None:
    directory = tmp_path / part.directory.name
    shutil.copytree(part.directory, directory)
    offsets = part.offsets
    now_ms = max(offsets["max_timestamp"]["timestamp"], 0) + 1000
    log = UnifiedLog.open(
        directory,
        part.config,
        log_start_offset=part.log_start_offset,
        clean_shutdown=part.fixture != "unclean",
        clock=lambda: now_ms,
    )
    assert log.log_start_offset == offsets["earliest"]
    assert log.log_end_offset == offsets["latest"]
    assert log.last_stable_offset == offsets["last_stable"]
    log.suspend()


@pytest.mark.parametrize("part", partitions_with_offsets(), ids=str)
def test_read_only_state_equals_offsets_of_broker_and_changes_no_file(part: FixturePartition) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in part.directory.iterdir()}
    state = load_read_only(part.directory, log_start_offset=part.log_start_offset)
    assert (state.local_log_start_offset, state.log_end_offset) == (part.offsets["earliest"], part.offsets["latest"])
    assert list(state.base_offsets) == part.base_offsets
    stable = last_stable_offset(
        part.directory,
        log_start_offset=state.local_log_start_offset,
        high_watermark=state.log_end_offset,
        now_ms=LATE_MS,
    )
    assert stable == part.offsets["last_stable"]
    assert {path.name: path.stat().st_mtime_ns for path in part.directory.iterdir()} == before


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("part", partitions_with_offsets(), ids=str)
def test_reads_return_records_that_a_consumer_received(part: FixturePartition, isolation: str, tmp_path: Path) -> None:
    wanted = [record["offset"] for record in expected_records(part, isolation)]
    if not wanted and part.offsets["latest"] > part.offsets["earliest"]:
        pytest.skip("no consumer has read this partition")
    directory = tmp_path / part.directory.name
    shutil.copytree(part.directory, directory)
    now_ms = max(part.offsets["max_timestamp"]["timestamp"], 0) + 1000
    log = UnifiedLog.open(
        directory, part.config, log_start_offset=part.log_start_offset, clean_shutdown=True, clock=lambda: now_ms
    )
    level = Isolation.COMMITTED if isolation == "read_committed" else Isolation.LOG_END
    found = []
    position = log.log_start_offset
    while True:
        fetched = read(log, position, isolation=level, max_bytes=1000)
        if fetched.next_offset == position:
            break
        position = fetched.next_offset
        for row in fetched.batches:
            if int(row["attributes"]) & 0x20:
                continue
            at = int(row["position"]) - fetched.position
            batch = decode_batch(fetched.data, at, file=fetched.file, file_position=int(row["position"]))
            found.extend(record.offset for record in batch.records if record.offset >= log.log_start_offset)
    log.suspend()
    assert found == wanted


@pytest.mark.parametrize("partition", [0, 1])
def test_producer_state_equals_that_described_by_broker(partition: int, tmp_path: Path) -> None:
    for fixture in ("idempotent", "transactions"):
        part = FixturePartition(fixture, fixture, partition)
        directory = tmp_path / part.directory.name
        shutil.copytree(part.directory, directory)
        for path in directory.glob("*.snapshot"):
            path.unlink()
        log = UnifiedLog.open(directory, part.config, clock=lambda: 0)
        found = {
            state.producer_id: (state.producer_epoch, state.last_sequence, state.last_timestamp_ms)
            for state in log.producers.producers.values()
        }
        described = _described_producers(part)
        assert found == described
        log.suspend()


def _described_producers(part: FixturePartition) -> dict[int, tuple[int, int, int]]:
    rows = manifest(part.fixture)["producers"][f"{part.topic}-{part.partition}"]
    return {row["producerId"]: (row["producerEpoch"], row["lastSequence"], row["lastTimestamp"]) for row in rows}


def test_aborted_transactions_are_found_across_segments() -> None:
    part = FixturePartition("transactions", "transactions", 1)
    whole = indexed_transactions(part.directory, 0, part.offsets["last_stable"])
    assert whole
    for one in whole:
        # A transaction counts for every range that it overlaps, also one that ends before its marker's segment.
        for start, end in ((one.first_offset, one.first_offset + 1), (one.last_offset, one.last_offset + 1)):
            assert one in indexed_transactions(part.directory, start, end)
