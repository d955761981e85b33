"""Staged appends of a commit: staged files become part of the log, whose files reach the disk in order."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from builders.staged_writes import (
    NOW,
    Syncs,
    append_staged,
    check_whole,
    committed,
    config,
    make_directory,
    resumed,
    staged,
)

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, ProducerFencedError
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.storage.artefacts.producer_snapshot import read_snapshot
from pyspark_kafkalog.storage.log import unified_log
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


def test_log_of_many_commits_is_whole_and_rolled(directory: Path) -> None:
    state = LogState()
    for task in range(12):
        state = committed(directory, state, staged(directory, 4 + task, task=task), config())
    assert state.log_end_offset == sum(range(4, 16)) * 5
    assert len(check_whole(directory, config(), state.log_end_offset)) > 2


def test_staged_file_above_segment_bytes_rolls_by_size(directory: Path) -> None:
    segment_bytes = config().segment_bytes
    file = staged(directory, 80)
    state = committed(directory, LogState(), file, config(), epoch=3)
    bases = check_whole(directory, config(), 400)
    assert len(bases) == -(-file.size_bytes // segment_bytes)
    assert all(path.stat().st_size <= segment_bytes for path in directory.glob("*.log"))
    assert state.leader_epoch == 3
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"
    assert all((directory / f"{base:020d}.snapshot").exists() for base in bases[1:])


def test_large_staged_file_becomes_a_segment(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 2), config())
    large = staged(directory, 20)
    assert config().segment_bytes // 2 <= large.size_bytes <= config().segment_bytes
    inode = (directory / large.name).stat().st_ino
    state = committed(directory, state, large, config())
    assert check_whole(directory, config(), 110) == [0, 10]
    assert (directory / "00000000000000000010.log").stat().st_ino == inode
    assert (state.active_base_offset, state.log_end_offset) == (10, 110)


def test_first_large_staged_file_replaces_empty_segment(directory: Path) -> None:
    committed(directory, LogState(), staged(directory, 20), config())
    assert check_whole(directory, config(), 100) == [0]


def test_large_staged_file_above_segment_bytes_is_copied_and_rolled(directory: Path) -> None:
    file = staged(directory, 40)
    assert file.size_bytes > config().segment_bytes
    committed(directory, LogState(), file, config())
    assert len(check_whole(directory, config(), 200)) == 2


def test_staged_files_below_splice_threshold_are_copied(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unified_log, "SPLICE_BYTES", 1 << 40)
    big = config(internal_segment_bytes="1000000")
    state = committed(directory, LogState(), staged(directory, 40), big)
    committed(directory, state, staged(directory, 40), big)
    assert check_whole(directory, big, 400) == [0]


def test_log_append_time_is_time_of_commit_and_crcs_stay_valid(directory: Path) -> None:
    stamped = config(message_timestamp_type="LogAppendTime")
    with resumed(directory, LogState(), stamped) as log:
        append_staged(log, staged(directory, 40), leader_epoch=1)
        state = log.state()
    assert state.active_max_timestamp_ms == NOW
    check_whole(directory, stamped, 200)
    data = (directory / "00000000000000000000.log").read_bytes()
    batch = decode_batch(data, 0, file="log", file_position=0)
    assert batch.header.leader_epoch == 1
    assert {record.timestamp_ms for record in batch.records} == {NOW}
    assert [record.value for record in batch.records] == [b"value %d" % at for at in range(5)]


def test_segment_ms_rolls_by_record_time(directory: Path) -> None:
    timed = config(internal_segment_bytes="1000000", segment_ms="12")
    committed(directory, LogState(), staged(directory, 10), timed)
    # Batches end at 4, 9, 14, 19 … ms: the fourth is 15 ms after the first.
    assert check_whole(directory, timed, 50) == [0, 15, 30, 45]


def test_full_index_rolls_the_segment(directory: Path) -> None:
    small = config(internal_segment_bytes="1000000", segment_index_bytes="40", index_interval_bytes="0")
    committed(directory, LogState(), staged(directory, 12), small)
    bases = check_whole(directory, small, 60)
    # 40 bytes hold 5 offset entries and 3 time entries, one of which is kept for the closing entry.
    assert bases == [0, 15, 30, 45]


def test_staged_file_with_wrong_size_is_refused(directory: Path) -> None:
    file = staged(directory, 6)
    os.truncate(directory / file.name, file.size_bytes - 1)
    with resumed(directory, LogState(), config()) as log, pytest.raises(CorruptRecordError, match=file.name):
        append_staged(log, file, leader_epoch=0)


def test_batch_over_max_message_bytes_is_refused(directory: Path) -> None:
    small = config(max_message_bytes="100")
    with (
        resumed(directory, LogState(), small) as log,
        pytest.raises(InvalidRecordError, match=r"max\.message\.bytes=100"),
    ):
        append_staged(log, staged(directory, 6), leader_epoch=0)


def test_older_epoch_of_last_producer_is_fenced(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 3, producer_id=7, epoch=2), config())
    assert state.producer is not None
    assert (state.producer.producer_id, state.producer.producer_epoch, state.producer.last_sequence) == (7, 2, 14)
    with resumed(directory, state, config()) as log, pytest.raises(ProducerFencedError):
        append_staged(log, staged(directory, 3, task=1, producer_id=7, epoch=1), leader_epoch=0)


def test_snapshot_at_roll_has_every_producer(directory: Path) -> None:
    state = LogState()
    for task in range(8):
        state = committed(directory, state, staged(directory, 5, task=task, producer_id=task % 3, epoch=0), config())
    bases = check_whole(directory, config(), 200)
    assert len(bases) > 1
    entries = read_snapshot(directory / f"{bases[-1]:020d}.snapshot")
    assert {entry.producer_id for entry in entries} == {0, 1, 2}
    log = UnifiedLog.open(directory, config(), clean_shutdown=True, clock=lambda: NOW)
    assert log.state() == replace(state, bytes_since_last_index_entry=0)
    log.suspend()


def test_flush_after_recovery_ends_with_fsync_of_directory(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 6), config())
    with resumed(directory, state, config()) as log:
        append_staged(log, staged(directory, 6, task=1), leader_epoch=0)
    fs = Syncs()
    with resumed(directory, state, config(), fs) as log:
        assert log.is_recovered
        append_staged(log, staged(directory, 1, task=2), leader_epoch=0)
        log.flush(is_last=True)
    assert fs.names[-1] == directory.name


def test_flush_syncs_log_before_its_indexes(directory: Path) -> None:
    fs = Syncs()
    state = committed(directory, LogState(), staged(directory, 3), config())
    with resumed(directory, state, config(), fs) as log:
        append_staged(log, staged(directory, 3, task=1), leader_epoch=0)
        append_staged(log, staged(directory, 3, task=2), leader_epoch=0)
        assert fs.names == []
        log.flush(is_last=True)
    first = f"{0:020d}"
    assert fs.names == [f"{first}.log", f"{first}.index", f"{first}.timeindex"]


def test_flush_of_new_segments_syncs_files_before_directory(directory: Path) -> None:
    fs = Syncs()
    with resumed(directory, LogState(), config(), fs) as log:
        append_staged(log, staged(directory, 40), leader_epoch=0)
        fs.names.clear()
        log.flush(is_last=True)
    kinds = [name[20:] for name in fs.names]
    assert kinds == [".log", ".index", ".timeindex"] * 2 + [""]
    assert fs.names[-1] == directory.name


def test_append_and_roll_keep_local_log_start(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 80), config())
    assert state.local_log_start_offset == 0 < state.active_base_offset
    tiered = replace(state, local_log_start_offset=state.active_base_offset)
    after = committed(directory, tiered, staged(directory, 80, task=1), config())
    assert after.active_base_offset > tiered.active_base_offset
    assert (after.log_start_offset, after.local_log_start_offset) == (0, tiered.local_log_start_offset)
