"""A commit of staged files does not list the directory of a log that its process has left, unless it was changed."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from builders.engine_fixtures import files_of
from builders.staged_writes import (
    NOW,
    append_staged,
    check_whole,
    config,
    make_directory,
    make_log_dir,
    resumed,
    staged,
)
from fakes.stopping_filesystem import Killed, StoppingFileSystem
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.storage.artefacts import partition_listing
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.log import loader
from pyspark_kafkalog.storage.log.loader import LeftLog, ListedNames
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.segment.segment import LogSegment
from pyspark_kafkalog.storage.staged_file import StagedFile


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


@pytest.fixture(autouse=True)
def as_if_long(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every directory counts as one with many names."""
    monkeypatch.setattr(loader, "_NAMES_A_COMMIT", 0)
    loader._left.clear()
    yield
    loader._left.clear()


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the directories of partitions that are listed."""
    names: list[str] = []
    list_names = partition_listing.list_names

    def noting(directory: str | Path) -> list[tuple[str, int]]:
        names.append(Path(directory).name)
        return list_names(directory)

    monkeypatch.setattr(partition_listing, "list_names", noting)
    return names


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offsets of the segments that are opened for writing."""
    bases: list[int] = []
    init = LogSegment.__init__

    def noting(self: LogSegment, directory: Path, base_offset: int, *arguments: object, **options: object) -> None:
        bases.append(base_offset)
        init(self, directory, base_offset, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LogSegment, "__init__", noting)
    return bases


def commit(
    directory: Path, state: LogState, file: StagedFile, fs: FileSystem = LOCAL, *, epoch: int = 0, is_left: bool = True
) -> LogState:
    """As a commit of a write does it, by a process that has left the log, or by another one."""
    names = [file.name] if is_left else None
    with UnifiedLog.resume(directory, config(), state, clock=lambda: NOW, fs=fs, staged=names) as log:
        assert file.name in log.staged
        append_staged(log, file, leader_epoch=epoch)
        log.flush()
        left, after = log.as_left(), log.state()
    if is_left:
        assert left is not None
        loader.leave(left, after)
    (directory / file.name).unlink(missing_ok=True)
    return after


def test_later_commits_list_nothing_and_make_the_segments_they_append_to(
    directory: Path, listed: list[str], made: list[int]
) -> None:
    state = commit(directory, LogState(), staged(directory, 40))
    bases = sorted(int(each.stem) for each in directory.glob("*.log"))
    assert len(bases) > 1
    listed.clear()
    for task in range(12):
        made.clear()
        before, state = state, commit(directory, state, staged(directory, 9, task=task))
        assert set(made) == {before.active_base_offset, state.active_base_offset}
    assert not listed
    assert len(check_whole(directory, config(), state.log_end_offset)) > len(bases)


def test_commits_of_a_process_list_a_long_log_once(tmp_path: Path, listed: list[str], made: list[int]) -> None:
    log_dir = make_log_dir(tmp_path / "root")
    value = "x" * 3000
    for number in range(6):  # each rolls
        log_dir.append("orders", pa.table({"key": ["k"], "value": [f"{number} {value}"]}), partition=0)
    assert listed.count("orders-0") == 2  # and once for a producer snapshot, which the first segment has none of
    assert len(list((tmp_path / "root" / "orders-0").glob("*.log"))) == 6
    made.clear()
    log_dir.append("orders", pa.table({"key": ["k"], "value": [value]}), partition=0)
    assert made == [5, 6]
    assert listed.count("orders-0") == 2
    assert log_dir.read("orders", partition=0)["offset"].to_pylist() == list(range(7))


def test_short_directory_is_always_listed_and_a_long_one_by_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_NAMES_A_COMMIT", 100)
    assert ListedNames(100).is_due
    commits = [ListedNames(1050, each).is_due for each in range(12)]
    assert commits == [False] * 10 + [True] * 2


def _leave_a_tail(directory: Path, state: LogState) -> None:
    with (directory / f"{state.active_base_offset:020d}.log").open("ab") as log:
        log.write(bytes(7))


def _leave_a_segment(directory: Path, state: LogState) -> None:
    for suffix in (".log", ".index"):
        (directory / f"{state.log_end_offset:020d}{suffix}").touch()


def _replace_the_log(directory: Path, state: LogState) -> None:
    log = directory / f"{state.active_base_offset:020d}.log"
    shutil.copyfile(log, directory / "copy")
    (directory / "copy").rename(log)


@pytest.mark.parametrize("change", [_leave_a_tail, _leave_a_segment, _replace_the_log])
def test_changed_log_is_listed(directory: Path, listed: list[str], change: Callable[[Path, LogState], None]) -> None:
    state = commit(directory, LogState(), staged(directory, 3))
    listed.clear()
    change(directory, state)
    state = commit(directory, state, staged(directory, 3, task=1))
    assert len(listed) == 1
    assert check_whole(directory, config(), 30) == [0]


def test_log_to_which_another_process_has_committed_is_listed(directory: Path, listed: list[str]) -> None:
    state = commit(directory, LogState(), staged(directory, 3))
    known = dict(loader._left)
    state = commit(directory, state, staged(directory, 3), is_left=False)
    loader._left.update(known)
    listed.clear()
    commit(directory, state, staged(directory, 3, task=1))
    assert len(listed) == 1


def test_resume_that_is_not_committed_is_followed_by_a_listing(directory: Path, listed: list[str]) -> None:
    state = commit(directory, LogState(), staged(directory, 3))
    resumed(directory, state, config()).suspend()
    listed.clear()
    commit(directory, state, staged(directory, 3, task=1))
    assert len(listed) == 1


def test_staged_file_that_became_a_segment_is_not_committed_again(directory: Path) -> None:
    """Its first name remains if its writer is killed right after the commit."""
    state = commit(directory, LogState(), staged(directory, 2))
    large = staged(directory, 20, task=1)
    os.link(directory / large.name, directory.parent / "kept")
    os.rename(directory.parent / "kept", directory / "another.name")
    with UnifiedLog.resume(directory, config(), state, clock=lambda: NOW, staged=[large.name]) as log:
        assert log.staged == (large.name,)
    (directory / "another.name").unlink()
    state = commit(directory, state, large)
    os.link(directory / f"{state.active_base_offset:020d}.log", directory / large.name)
    with UnifiedLog.resume(directory, config(), state, clock=lambda: NOW, staged=[large.name]) as log:
        assert log.staged == ()
    assert not (directory / large.name).exists()


@pytest.mark.slow
@pytest.mark.parametrize("is_cleaning", [False, True], ids=["appends", "cleans up"])
@pytest.mark.parametrize("batches", [[20], [40], [12, 12, 12]], ids=["spliced", "rolled", "copied and rolled"])
def test_kill_of_another_writer_is_seen(batches: list[int], is_cleaning: bool, tmp_path: Path) -> None:
    for last in itertools.count():
        directory = make_directory(tmp_path)
        state = commit(directory, LogState(), staged(directory, 3))
        known = dict(loader._left)
        files = [staged(directory, each, task=task) for task, each in enumerate(batches)]
        if is_cleaning:
            with resumed(directory, state, config()) as log:
                for file in files:
                    append_staged(log, file, leader_epoch=0)
        fs = StoppingFileSystem(last, torn=True)
        with contextlib.suppress(Killed), resumed(directory, state, config(), fs) as log:
            for file in () if is_cleaning else files:
                append_staged(log, file, leader_epoch=0)
        for file in files:
            (directory / file.name).unlink(missing_ok=True)
        loader._left.update(known)
        state = commit(directory, state, staged(directory, 7, task=9))
        assert state.log_end_offset == 50
        assert check_whole(directory, config(), 50) == [0]
        assert {each.stem for each in directory.glob("0*index")} == {f"{0:020d}"}
        shutil.rmtree(directory)
        if not fs.has_stopped:
            assert last > 3
            return


Appends = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([-1, 7, 8])), min_size=1, max_size=6)


@given(appends=Appends)
def test_files_are_those_of_commits_that_list(
    appends: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    twins = []
    for is_left in (True, False):
        directory, state = make_directory(tmp_path_factory.mktemp("twin")), LogState()
        for task, (batches, producer_id) in enumerate(appends):
            file = staged(directory, batches, task=task, producer_id=producer_id, epoch=0 if producer_id >= 0 else -1)
            state = commit(directory, state, file, is_left=is_left)
        twins.append((state, files_of(directory)))
    assert twins[0] == twins[1]


def test_logs_that_are_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_LEFT_LOGS_MAX", 3)
    for number in range(9):
        loader.leave(LeftLog(tmp_path / str(number), (0, number), ListedNames(9)), LogState())
    assert [Path(each).name for each in loader._left] == ["6", "7", "8"]
