"""Staged appends after a crash: the log is that of the committed appends, without a trace of killed writers."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from pathlib import Path

import pytest
from builders.engine_fixtures import files_of
from builders.log_reads import read
from builders.staged_writes import Syncs, append_staged, check_whole, committed, config, make_directory, resumed, staged
from fakes.stopping_filesystem import Killed, StoppingFileSystem
from open_files import descriptors, descriptors_before
from tiers import rest_full

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.storage.log.log_state import LogState


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


def test_uncommitted_data_of_crashed_writer_is_truncated(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 6), config())
    before = files_of(directory)
    with resumed(directory, state, config()) as log:
        file = staged(directory, 60)
        append_staged(log, file, leader_epoch=0)
    (directory / file.name).unlink()
    assert len(list(directory.glob("*.log"))) > 2
    resumed(directory, state, config()).suspend()
    after = files_of(directory)
    del after["00000000000000000030.snapshot"]  # the state at the committed end, which is still right
    assert after == before
    state = committed(directory, state, staged(directory, 3), config())
    assert check_whole(directory, config(), 45) == [0]
    assert state.log_end_offset == 45


def test_uncommitted_file_spliced_into_empty_segment_is_removed(directory: Path) -> None:
    with resumed(directory, LogState(), config()) as log:
        append_staged(log, staged(directory, 20), leader_epoch=0)
    state = committed(directory, LogState(), staged(directory, 2, task=1), config())
    assert check_whole(directory, config(), 10) == [0]
    assert state.log_end_offset == 10


@pytest.mark.parametrize("keep", [0, 8, 10])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_lost_in_power_failure_is_rebuilt(directory: Path, suffix: str, keep: int) -> None:
    state = committed(directory, LogState(), staged(directory, 17), config())
    path = directory / f"00000000000000000000{suffix}"
    path.write_bytes(path.read_bytes()[:keep] + bytes(64))
    state = committed(directory, state, staged(directory, 3), config())
    if suffix == ".index":
        check_whole(directory, config(), 100)
    with resumed(directory, state, config()) as log:
        assert read(log, 42).batches["base_offset"][0] == 40


def test_time_index_whose_last_entry_is_half_written_is_rebuilt(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 17), config())
    path = directory / "00000000000000000000.timeindex"
    whole = path.read_bytes()
    assert len(whole) >= 24
    path.write_bytes(whole[:-12] + whole[-12:-8] + bytes(8))  # as two sectors of which one was lost
    resumed(directory, state, config()).suspend()
    assert path.read_bytes() == whole


def test_committed_segment_that_is_too_short_is_reported(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 6), config())
    os.truncate(directory / "00000000000000000000.log", state.active_size_bytes - 1)
    with pytest.raises(CorruptRecordError, match="committed"):
        resumed(directory, state, config())


@pytest.mark.slow
@pytest.mark.parametrize("batches", [40, 20], ids=["copied", "spliced"])
def test_kill_at_any_change_keeps_each_committed_batch_once(directory: Path, batches: int, tmp_path: Path) -> None:
    committed_once = committed(directory, LogState(), staged(directory, 3), config())
    kept = tmp_path / "kept"
    shutil.copytree(directory, kept)
    for last in itertools.count():
        fs = StoppingFileSystem(last, torn=True)
        file = staged(directory, batches)
        try:
            with resumed(directory, committed_once, config(), fs) as log:
                append_staged(log, file, leader_epoch=0)
                log.flush()
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


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 3], ids=["at the same offset", "at another offset"])
@pytest.mark.parametrize("before", [0, 3], ids=["empty", "not empty"])
@pytest.mark.parametrize("batches", rest_full([2, 20, 40], 2), ids=["copied", "spliced", "rolled"])
def test_staged_file_of_killed_append_is_committed_whole_on_retry(
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
            append_staged(log, file, leader_epoch=0)
            log.flush()
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


def test_resume_removes_staged_name_of_committed_segment_only(directory: Path) -> None:
    large = staged(directory, 20)
    with resumed(directory, LogState(), config()) as log:
        append_staged(log, large, leader_epoch=0)
        state = log.state()
    waiting = staged(directory, 20, task=1)
    resumed(directory, LogState(), config()).suspend()
    assert (directory / large.name).exists()
    with resumed(directory, LogState(), config()) as log:
        assert set(log.staged) == {large.name, waiting.name}
        append_staged(log, large, leader_epoch=0)
    with resumed(directory, state, config()) as log:
        assert log.staged == (waiting.name,)
    assert not (directory / large.name).exists()
    committed(directory, state, waiting, config())
    assert check_whole(directory, config(), 200) == [0, 100]


def test_temporary_file_of_killed_checkpoint_write_is_deleted(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 6), config())
    (directory / "leader-epoch-checkpoint.tmp").write_bytes(b"0\n")
    fs = Syncs()
    with resumed(directory, state, config(), fs) as log:
        assert not log.is_recovered
    assert not list(directory.glob("*.tmp"))


def test_failed_resume_of_damaged_log_closes_its_files(directory: Path) -> None:
    state = committed(directory, LogState(), staged(directory, 6), config())
    os.truncate(directory / "00000000000000000000.log", 10)
    before = descriptors_before()
    for _ in range(3):
        with pytest.raises(CorruptRecordError, match="committed"):
            resumed(directory, state, config())
    assert descriptors() == before
