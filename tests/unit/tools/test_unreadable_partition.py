"""A partition whose directory cannot be listed: each command does the others, says why, and ends with status 1."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.storage import below_root
from pyspark_kafkalog.tools.main import main

TABLE = pa.table({"key": ["a"] * 4, "value": ["x" * 40] * 4})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    log_dir = LogDir.create(tmp_path / "log")
    for name in ("bad", "good"):
        log_dir.create_topic(name, partitions=1, configs={"internal.segment.bytes": "300", "cleanup.policy": "compact"})
        for _ in range(4):
            log_dir.append(name, TABLE)
    forget_images()
    opened = below_root._open_directory

    def open_directory(directory: str | Path, flags: int) -> int:  # root may open what its mode denies to others
        if str(directory).endswith("/bad-0"):
            raise PermissionError(errno.EACCES, "Permission denied", str(directory))
        return opened(directory, flags)

    monkeypatch.setattr(below_root, "_open_directory", open_directory)
    return log_dir.path


@pytest.mark.parametrize(
    "command", ["verify", "du", "log-dirs", "retention", "merge-segments", "log-cleaner", "reindex"]
)
def test_other_partitions_are_done_and_unreadable_one_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    arguments = {"log-dirs": ["--describe"], "du": []}.get(command, ["--local"])  # a Spark session has other processes
    assert main([command, "--path", str(root), *arguments]) == 1
    printed = capsys.readouterr()
    assert "good" in printed.out
    assert "bad-0" in printed.out + printed.err
    assert "Permission denied" in printed.out + printed.err
