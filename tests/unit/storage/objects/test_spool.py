"""Scratch directories: removed at the end, and those of killed processes after a day."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pyspark_kafkalog.storage.objects.spool import ScratchDirectory, remove_abandoned

DAY_S = 86_400.0
#: A process that leaves a scratch directory, with a file in a directory, as one that is killed.
KILLED = """
import os, sys
from pyspark_kafkalog.storage.objects.spool import ScratchDirectory
scratch = ScratchDirectory("stage")
(scratch.path / "orders-0").mkdir()
(scratch.path / "orders-0" / "a.staged").write_bytes(b"rows")
print(scratch.path, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TMPDIR of this process and of others that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_by_a_killed_process(age_s: float = 2 * DAY_S) -> Path:
    ended = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    left = Path(ended.stdout.strip())
    return aged(left, age_s)


def aged(path: Path, age_s: float = 2 * DAY_S) -> Path:
    at = path.stat().st_mtime - age_s
    os.utime(path, (at, at))
    return path


def test_a_directory_that_a_killed_process_left_is_removed_after_a_day(folder: Path) -> None:
    young, old = left_by_a_killed_process(DAY_S / 2), left_by_a_killed_process()
    assert remove_abandoned() == 1
    assert not old.exists()
    assert [each.name for each in young.iterdir()] == ["orders-0"]


def test_the_directory_of_a_process_that_works_for_days_stays(folder: Path) -> None:
    with ScratchDirectory("merge") as path:
        aged(path)
        assert remove_abandoned() == 0
        assert path.is_dir()
    assert not path.exists()


def test_nothing_but_own_directories_is_removed(folder: Path) -> None:
    outside = folder / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    kept = [folder / name for name in ("kafkalog-backup", "kafkalog-merge-old", "x-kafkalog-merge-abcdefgh")]
    for each in kept:
        each.mkdir(mode=0o700)
    shared = folder / "kafkalog-merge-shared00"
    shared.mkdir(mode=0o755)
    (folder / "kafkalog-clean-file0000").write_text("kept")
    (folder / "kafkalog-stage-link0000").symlink_to(outside, target_is_directory=True)
    within = folder / "kafkalog-reindex-abcdefgh"
    within.mkdir(mode=0o700)
    (within / "link").symlink_to(outside, target_is_directory=True)
    before = set(folder.iterdir()) - {within}
    for each in (*kept, shared, within, outside):
        aged(each)
    assert remove_abandoned() == 1
    assert set(folder.iterdir()) == before
    assert (outside / "file").read_text() == "kept"


def test_the_next_process_that_needs_space_removes_what_others_left(folder: Path) -> None:
    left = left_by_a_killed_process()
    left_by_a_killed_process()
    assert not left.exists()
