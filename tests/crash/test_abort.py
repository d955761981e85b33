"""Aborting a transaction fails or loses power at any call: the transaction is then either open or aborted."""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.adopted_roots import transactions_with_coordinator
from builders.controlled import open_log_dir

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.root.transactions.end_transaction import abort_transaction
from pyspark_kafkalog.root.transactions.states import transaction_states_of
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.isolation import indexed_transactions
from pyspark_kafkalog.storage.names import TopicPartition
from tests.crash.faults import CountingFileSystem, FailingFileSystem
from tests.crash.power import LOSSES, Loss, power_cuts

TOPIC = "transactions"
OPEN_SINCE = 162
_POINTS = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = transactions_with_coordinator(tmp_path_factory.mktemp("abort"))
    LogDir.adopt(root)
    return root


def abort(root: Path, fs: FileSystem) -> None:
    abort_transaction(open_log_dir(root, fs=fs).root.native(), TopicPartition(TOPIC, 0), OPEN_SINCE)


def check(root: Path, end: int) -> bool:
    """Whether it is aborted; then writes go on, and it can be aborted if it was not."""
    log_dir = LogDir.open(root)
    stable = log_dir.last_stable_offset(TOPIC, 0)
    is_aborted = stable == end + 1
    assert transaction_states_of(log_dir.root.native())["tx-0"].is_open != is_aborted
    assert is_aborted or (stable, log_dir.partition(TOPIC, 0).high_watermark) == (OPEN_SINCE, end)
    log_dir.append(TOPIC, pa.table({"value": ["after"]}), partition=0)
    if not is_aborted:
        abort(root, FileSystem())
    log_dir.refresh()
    rows = log_dir.read(TOPIC, partition=0, start_offset=OPEN_SINCE, isolation="read_committed")
    assert rows["value"].to_pylist()[-1] == b"after"
    assert rows["offset"].to_pylist() == [164, end + 1 if is_aborted else end]
    aborted = indexed_transactions(root / f"{TOPIC}-0", OPEN_SINCE, end + 2)
    assert [(each.first_offset, each.last_offset) for each in aborted] == [(OPEN_SINCE, end + (not is_aborted))]
    return is_aborted


def test_error_at_any_call_leaves_transaction_open_or_aborted(root: Path, tmp_path: Path) -> None:
    end = LogDir.open(root).partition(TOPIC, 0).high_watermark
    whole = tmp_path / "whole"
    shutil.copytree(root, whole)
    counting = CountingFileSystem()
    abort(whole, counting)
    assert check(whole, end)
    came_through = []
    for number in range(1, counting.calls + 1):
        tried = tmp_path / str(number)
        shutil.copytree(root, tried)
        with contextlib.suppress(KafkalogError, OSError):
            abort(tried, FailingFileSystem(number, errno.EIO, torn=bool(number % 2)))
        came_through.append(check(tried, end))
        shutil.rmtree(tried)
    assert not came_through[0]
    assert True in came_through


@pytest.mark.parametrize("loss", LOSSES)
def test_power_cut_at_any_call_leaves_transaction_open_or_aborted(root: Path, tmp_path: Path, loss: Loss) -> None:
    end = LogDir.open(root).partition(TOPIC, 0).high_watermark
    came_through = [check(left, end) for left in power_cuts(root, tmp_path, abort, loss, _POINTS)]
    assert came_through == sorted(came_through)
    assert came_through[0] is False
    assert came_through[-1] is True
