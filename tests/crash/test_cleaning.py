"""The power fails while a partition is cleaned: no record is lost, and a later run cleans the partition."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir, open_log_dir
from tiers import rest_full

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.swap import has_unfinished
from tests.crash.power import LOSSES, Loss, PowerFileSystem, power_cuts

NOW_MS = 1_795_400_000_000
_POINTS = 25
_Rows = list[tuple[int, bytes, bytes | None]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some fourteen segments in three groups, a few keys over and over."""
    root = tmp_path_factory.mktemp("cleaning") / "root"
    log_dir = create_log_dir(root, clock=lambda: NOW_MS)
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": "600", "index.interval.bytes": "100"}
    log_dir.create_topic("orders", partitions=1, configs=configs)
    for number in range(15):
        keys = [str(number % 5), str(number * 7 % 10), "x"] * 3
        values = [f"{number}-{at}" + "." * 30 for at in range(9)]
        log_dir.append("orders", pa.table({"key": keys, "value": values}), partition=0)
    log_dir.alter_topic("orders", add={"internal.segment.bytes": "3000"})
    return root


def read(root: Path) -> _Rows:
    table = LogDir.open(root).read("orders", columns=["offset", "key", "value"])
    rows = zip(table["offset"].to_pylist(), table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    found = [(offset, key, value) for offset, key, value in rows]
    assert [each[0] for each in found] == sorted({each[0] for each in found})
    return found


def clean(root: Path, fs: PowerFileSystem | None = None) -> None:
    log_dir = open_log_dir(root, clock=lambda: NOW_MS, **({} if fs is None else {"fs": fs}))
    assert clean_partition(log_dir.root, "orders", 0).error is None


@pytest.mark.parametrize("loss", rest_full(LOSSES))
def test_power_cut_during_cleaning_keeps_records_and_next_run_cleans(root: Path, tmp_path: Path, loss: Loss) -> None:
    before = read(root)
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(root, undisturbed)
    clean(undisturbed)
    after = read(undisturbed)
    assert len(after) < len(before)
    for left in power_cuts(root, tmp_path, clean, loss, _POINTS):
        found = read(left)
        assert set(after) <= set(found) <= set(before)
        clean(left)
        assert read(left) == after
        assert not has_unfinished(left / "orders-0")
