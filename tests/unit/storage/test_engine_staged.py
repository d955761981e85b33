"""The commit's append: staged files become part of the log, and crashes before the commit leave no trace."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_fixtures import files_of
from stopping_filesystem import Killed, StoppingFileSystem

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, ProducerFencedError
from pyspark_kafkalog.record.plain import Record, decode_batch, encode_batch
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.storage import staged_append
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.index_rebuild import rebuild_indexes
from pyspark_kafkalog.storage.log_config import LogConfig
from pyspark_kafkalog.storage.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.producer_snapshot import read_snapshot
from pyspark_kafkalog.storage.staging import StagedFile, StagedFileWriter
from pyspark_kafkalog.storage.unified_log import UnifiedLog

ORDERS = TopicPartition("orders", 0)
T0 = 1_700_000_000_000
NOW = T0 + 1_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    result = tmp_path / str(ORDERS)
    result.mkdir()
    return result


def config(**overrides: str) -> LogConfig:
    names = {name.replace("_", "."): value for name, value in overrides.items()}
    return LogConfig.from_properties({"internal.segment.bytes": "5000", "index.interval.bytes": "300", **names})


def staged(
    directory: Path,
    batches: int,
    *,
    task: int = 0,
    records: int = 5,
    producer_id: int = -1,
    epoch: int = -1,
    at_ms: int = T0,
) -> StagedFile:
    writer = StagedFileWriter(directory.parent, ORDERS, write_id="w", task=task)
    for batch in range(batches):
        first = batch * records
        data = encode_batch(
            [
                Record(offset=first + at, timestamp_ms=at_ms + first + at, key=b"k", value=b"value %d" % (first + at))
                for at in range(records)
            ],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=first if producer_id >= 0 else -1,
        )
        writer.append(data, scan_batches(data, file="staged").batches)
    return writer.finish()


def resumed(directory: Path, state: LogState, log_config: LogConfig, fs: FileSystem = LOCAL) -> UnifiedLog:
    return UnifiedLog.resume(directory, log_config, state, clock=lambda: NOW, fs=fs)


def committed(directory: Path, state: LogState, file: StagedFile, log_config: LogConfig, epoch: int = 0) -> LogState:
    with resumed(directory, state, log_config) as log:
        log.append_staged(file, leader_epoch=epoch)
        after = log.state()
    (directory / file.name).unlink()
    return after


def check_whole(directory: Path, log_config: LogConfig, end_offset: int) -> list[int]:
    """Every batch is valid, offsets have no gap, indexes are those of a rebuild; returns the base offsets."""
    next_offset = 0
    bases = []
    for path in sorted(directory.glob("*.log")):
        base_offset = int(path.stem)
        bases.append(base_offset)
        data = np.fromfile(path, dtype=np.uint8)
        scan = scan_batches(data, file=str(path))
        assert (scan.fault, scan.consumed_bytes) == (None, len(data))
        verify_crcs(data, scan.batches, data_position=0, file=str(path))
        for row in scan.batches:
            assert int(row["base_offset"]) == next_offset
            next_offset = int(row["last_offset"]) + 1
        before = files_of(directory)
        rebuild_indexes(directory, base_offset, log_config)
        after = files_of(directory)
        assert before[f"{base_offset:020d}.index"] == after[f"{base_offset:020d}.index"]
        # Between commits the active segment has no closing time index entry.
        assert after[f"{base_offset:020d}.timeindex"].startswith(before[f"{base_offset:020d}.timeindex"])
        (directory / f"{base_offset:020d}.timeindex").write_bytes(before[f"{base_offset:020d}.timeindex"])
    assert next_offset == end_offset
    return bases


def test_many_commits_make_the_log_that_one_would(directory: Path) -> None:
    state = LogState()
    for task in range(12):
        state = committed(directory, state, staged(directory, 4 + task, task=task), config())
    assert state.log_end_offset == sum(range(4, 16)) * 5
    assert len(check_whole(directory, config(), state.log_end_offset)) > 2


def test_one_staged_file_rolls_by_size_in_the_middle(directory: Path) -> None:
    segment_bytes = config().segment_bytes
    file = staged(directory, 80)
    state = committed(directory, LogState(), file, config(), epoch=3)
    bases = check_whole(directory, config(), 400)
    assert len(bases) == -(-file.size_bytes // segment_bytes)
    assert all(path.stat().st_size <= segment_bytes for path in directory.glob("*.log"))
    assert state.leader_epoch == 3
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"
    assert all((directory / f"{base:020d}.snapshot").exists() for base in bases[1:])


def test_a_large_staged_file_becomes_a_segment_by_itself(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 2), config())
    large = staged(directory, 20)
    assert config().segment_bytes // 2 <= large.size_bytes <= config().segment_bytes
    inode = (directory / large.name).stat().st_ino
    state = committed(directory, state, large, config())
    assert check_whole(directory, config(), 110) == [0, 10]
    assert (directory / "00000000000000000010.log").stat().st_ino == inode
    assert (state.active_base_offset, state.log_end_offset) == (10, 110)


def test_the_first_large_staged_file_takes_the_place_of_the_empty_segment(directory: Path) -> None:
    committed(directory, LogState(), staged(directory, 20), config())
    assert check_whole(directory, config(), 100) == [0]


def test_a_large_staged_file_that_has_to_roll_inside_is_copied(directory: Path) -> None:
    file = staged(directory, 40)
    assert file.size_bytes > config().segment_bytes
    committed(directory, LogState(), file, config())
    assert len(check_whole(directory, config(), 200)) == 2


def test_without_the_threshold_files_are_copied(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_append, "ADOPT_BYTES", 1 << 40)
    big = config(internal_segment_bytes="1000000")
    state = committed(directory, LogState(), staged(directory, 40), big)
    committed(directory, state, staged(directory, 40), big)
    assert check_whole(directory, big, 400) == [0]


def test_log_append_time_is_the_commits_and_every_crc_is_right(directory: Path) -> None:
    stamped = config(message_timestamp_type="LogAppendTime")
    with resumed(directory, LogState(), stamped) as log:
        info = log.append_staged(staged(directory, 40), leader_epoch=1)
        assert info.log_append_time_ms == NOW
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


def test_a_full_index_rolls(directory: Path) -> None:
    small = config(internal_segment_bytes="1000000", segment_index_bytes="40", index_interval_bytes="0")
    committed(directory, LogState(), staged(directory, 12), small)
    bases = check_whole(directory, small, 60)
    # 40 bytes hold 5 offset entries and 3 time entries, one of which is kept for the closing entry.
    assert bases == [0, 15, 30, 45]


def test_what_a_crashed_writer_left_is_cut_off(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 6), config())
    before = files_of(directory)
    with resumed(directory, state, config()) as log:
        file = staged(directory, 60)
        log.append_staged(file, leader_epoch=0)
    (directory / file.name).unlink()
    assert len(list(directory.glob("*.log"))) > 2
    resumed(directory, state, config()).suspend()
    after = files_of(directory)
    del after["00000000000000000030.snapshot"]  # the state at the committed end, which is still right
    assert after == before
    state = committed(directory, state, staged(directory, 3), config())
    assert check_whole(directory, config(), 45) == [0]
    assert state.log_end_offset == 45


def test_a_crash_after_adopting_into_the_empty_segment_is_cut_off(directory: Path) -> None:
    with resumed(directory, LogState(), config()) as log:
        log.append_staged(staged(directory, 20), leader_epoch=0)
    state = committed(directory, LogState(), staged(directory, 2, task=1), config())
    assert check_whole(directory, config(), 10) == [0]
    assert state.log_end_offset == 10


@pytest.mark.parametrize("keep", [0, 8, 10])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_lost_in_a_power_failure_is_rebuilt(directory: Path, suffix: str, keep: int) -> None:
    state = committed(directory, LogState(), staged(directory, 17), config())
    path = directory / f"00000000000000000000{suffix}"
    path.write_bytes(path.read_bytes()[:keep] + bytes(64))
    state = committed(directory, state, staged(directory, 3), config())
    if suffix == ".index":
        check_whole(directory, config(), 100)
    with resumed(directory, state, config()) as log:
        assert log.read(42).batches["base_offset"][0] == 40


def test_a_committed_segment_that_is_too_short_is_an_error(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 6), config())
    os.truncate(directory / "00000000000000000000.log", state.active_size_bytes - 1)
    with pytest.raises(CorruptRecordError, match="committed"):
        resumed(directory, state, config())


def test_a_staged_file_of_another_size_than_its_table_says_is_refused(directory: Path) -> None:
    file = staged(directory, 6)
    os.truncate(directory / file.name, file.size_bytes - 1)
    with resumed(directory, LogState(), config()) as log, pytest.raises(CorruptRecordError, match=file.name):
        log.append_staged(file, leader_epoch=0)


def test_a_batch_over_max_message_bytes_is_refused(directory: Path) -> None:
    small = config(max_message_bytes="100")
    with (
        resumed(directory, LogState(), small) as log,
        pytest.raises(InvalidRecordError, match=r"max\.message\.bytes=100"),
    ):
        log.append_staged(staged(directory, 6), leader_epoch=0)


def test_an_older_epoch_of_the_last_producer_is_fenced(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 3, producer_id=7, epoch=2), config())
    assert state.producer is not None
    assert (state.producer.producer_id, state.producer.producer_epoch, state.producer.last_sequence) == (7, 2, 14)
    with resumed(directory, state, config()) as log, pytest.raises(ProducerFencedError):
        log.append_staged(staged(directory, 3, task=1, producer_id=7, epoch=1), leader_epoch=0)


def test_the_snapshot_of_a_roll_holds_every_producer_that_has_written(directory: Path) -> None:
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


@pytest.mark.parametrize("batches", [40, 20], ids=["copied", "adopted"])
def test_a_kill_at_any_change_loses_and_doubles_nothing(directory: Path, batches: int, tmp_path: Path) -> None:
    committed_once = committed(directory, LogState(), staged(directory, 3), config())
    kept = tmp_path / "kept"
    shutil.copytree(directory, kept)
    for last in itertools.count():
        fs = StoppingFileSystem(last, torn=True)
        file = staged(directory, batches)
        try:
            with resumed(directory, committed_once, config(), fs) as log:
                log.append_staged(file, leader_epoch=0)
        except Killed:
            pass
        finished = not fs.has_stopped
        (directory / file.name).unlink(missing_ok=True)
        state = committed(directory, committed_once, staged(directory, 7, task=1), config())
        assert state.log_end_offset == 50
        assert check_whole(directory, config(), 50) == [0]
        shutil.rmtree(directory)
        shutil.copytree(kept, directory)
        if finished:
            assert last > 20
            return


@pytest.mark.parametrize("others", [0, 3], ids=["at the same offset", "at another offset"])
@pytest.mark.parametrize("before", [0, 3], ids=["empty", "not empty"])
@pytest.mark.parametrize("batches", [2, 20, 40], ids=["copied", "adopted", "rolled"])
def test_a_staged_file_is_damaged_by_an_append_that_was_killed(
    directory: Path, batches: int, before: int, others: int, tmp_path: Path
) -> None:
    state = LogState()
    if before:
        state = committed(directory, state, staged(directory, before), config())
    kept = tmp_path / "kept"
    shutil.copytree(directory, kept)
    for last in itertools.count():
        fs = StoppingFileSystem(last, torn=True)
        file = staged(directory, batches, task=1)
        with contextlib.suppress(Killed), resumed(directory, state, config(), fs) as log:
            log.append_staged(file, leader_epoch=0)
        after = state
        if others:
            after = committed(directory, after, staged(directory, others, task=2), config())
        after = committed(directory, after, file, config(), epoch=7)
        assert after.log_end_offset == 5 * (before + others + batches)
        check_whole(directory, config(), after.log_end_offset)
        after = committed(directory, after, staged(directory, 20, task=3), config(), epoch=7)
        check_whole(directory, config(), after.log_end_offset)
        shutil.rmtree(directory)
        shutil.copytree(kept, directory)
        if not fs.has_stopped:
            assert last > 5
            return


def test_resuming_removes_the_staged_name_of_a_committed_segment_only(directory: Path) -> None:
    large = staged(directory, 20)
    with resumed(directory, LogState(), config()) as log:
        log.append_staged(large, leader_epoch=0)
        state = log.state()
    waiting = staged(directory, 20, task=1)
    resumed(directory, LogState(), config()).suspend()
    assert (directory / large.name).exists()
    with resumed(directory, LogState(), config()) as log:
        assert set(log.staged) == {large.name, waiting.name}
        log.append_staged(large, leader_epoch=0)
    with resumed(directory, state, config()) as log:
        assert log.staged == (waiting.name,)
    assert not (directory / large.name).exists()
    committed(directory, state, waiting, config())
    assert check_whole(directory, config(), 200) == [0, 100]


def test_what_a_killed_write_of_a_small_file_left_stays(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 6), config())
    (directory / "leader-epoch-checkpoint.tmp").write_bytes(b"0\n")
    fs = Syncs()
    with resumed(directory, state, config(), fs) as log:
        assert not log.is_recovered
    assert not list(directory.glob("*.tmp"))


def test_the_name_of_an_index_that_was_cut_reaches_the_disk_after_the_commit(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 6), config())
    with resumed(directory, state, config()) as log:
        log.append_staged(staged(directory, 6, task=1), leader_epoch=0)
    fs = Syncs()
    with resumed(directory, state, config(), fs) as log:
        assert log.is_recovered
        log.append_staged(staged(directory, 1, task=2), leader_epoch=0, durable=False)
        log.flush(is_last=True)
    assert fs.names[-1] == directory.name


def test_a_damaged_log_leaves_its_files_open(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 6), config())
    os.truncate(directory / "00000000000000000000.log", 10)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(CorruptRecordError, match="committed"):
            resumed(directory, state, config())
    assert len(os.listdir("/proc/self/fd")) == before


class Syncs(FileSystem):
    """Notes what is waited for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def fsync(self, fd: int) -> None:
        self.names.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        super().fsync(fd)

    def fsync_dir(self, directory: Path) -> None:
        self.names.append(directory.name)
        super().fsync_dir(directory)


def test_an_index_reaches_the_disk_before_its_data(directory: Path) -> None:
    fs = Syncs()
    state = committed(directory, LogState(), staged(directory, 3), config())
    with resumed(directory, state, config(), fs) as log:
        log.append_staged(staged(directory, 3, task=1), leader_epoch=0, durable=False)
        log.append_staged(staged(directory, 3, task=2), leader_epoch=0, durable=False)
        assert fs.names == []
        log.flush(is_last=True)
    first = f"{0:020d}"
    assert fs.names == [f"{first}.log", f"{first}.index", f"{first}.timeindex"]


def test_names_of_new_segments_reach_the_disk_before_their_data(directory: Path) -> None:
    fs = Syncs()
    with resumed(directory, LogState(), config(), fs) as log:
        log.append_staged(staged(directory, 40), leader_epoch=0, durable=False)
        fs.names.clear()
        log.flush(is_last=True)
    kinds = [name[20:] for name in fs.names]
    assert kinds == [".log", ".index", ".timeindex"] * 2 + [""]
    assert fs.names[-1] == directory.name
