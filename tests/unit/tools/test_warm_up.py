"""`kafkalog warm-up` compiles all kernels into the cache, and fails if it cannot write there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

IMPORT_ALL = """
from numba.core import event
with event.install_recorder("numba:compile") as compiled:
    import pyspark_kafkalog.record.encode, pyspark_kafkalog.record.decode, pyspark_kafkalog.record.partitioner
    import pyspark_kafkalog.maintenance.cleaner.kernels_cleaner, pyspark_kafkalog.maintenance.cleaner.kernels_cleaner
print(len(compiled.buffer))
"""


@pytest.mark.full
def test_warm_up_leaves_nothing_to_compile_for_later_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert f"30 kernels are ready in {tmp_path}/kernels-" in run("-m", "pyspark_kafkalog", "warm-up")
    assert run("-c", IMPORT_ALL).strip() == "0"


@pytest.mark.full
def test_warm_up_fails_if_machine_code_cannot_be_cached(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    command = [sys.executable, "-m", "pyspark_kafkalog", "warm-up"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(in_the_way)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "set NUMBA_CACHE_DIR" in done.stdout
