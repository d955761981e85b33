"""Directories that real brokers left, `tests/data/broker-disks/`, and a stand-in for a broker that runs on one.

killed    SIGKILL half a second after the last write; `replication-offset-checkpoint` is older. Log ends and (high
          watermarks): orders-0 60 (20), orders-1 30 (30), paid-0 24 (10). Above the high watermark paid-0 holds a
          committed transaction, an aborted one, and one left open at offset 21; group billing committed again.
tiered    clean stop of a tiering broker: closed segments are in remote storage, some of tiered-overlap-0 here too
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_DISKS: Final = Path(__file__).parents[1] / "data" / "broker-disks"
_HOLD_LOCK: Final = (
    "import fcntl, sys; lock = open(sys.argv[1], 'r+'); fcntl.lockf(lock, fcntl.LOCK_EX); print('held', flush=True); "
    "sys.stdin.read()"
)

#: Local log starts and log starts of the partitions of `tiered`, as the broker's ListOffsets told them.
TIERED_STARTS: Final = {
    "local-only-0": (0, 0),
    "tiered-0": (552, 0),
    "tiered-1": (1158, 0),
    "tiered-2": (667, 0),
    "tiered-delete-records-0": (671, 319),
    "tiered-delete-records-1": (653, 653),
    "tiered-overlap-0": (314, 0),
    "tiered-retention-0": (635, 345),
}


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return Path(shutil.copytree(_DISKS / "killed", tmp_path / "killed"))


@pytest.fixture
def tiered(tmp_path: Path) -> Path:
    return Path(shutil.copytree(_DISKS / "tiered", tmp_path / "tiered"))


@contextlib.contextmanager
def broker_lock(root: Path) -> Iterator[None]:
    """Another process holds `.lock` as a running broker does."""
    command = [sys.executable, "-c", _HOLD_LOCK, str(root / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.stdin.close()


def cut_transaction_index(root: Path) -> None:
    """As if the broker had been killed between appending the abort marker and its entry in the transaction index."""
    (root / "paid-0" / "00000000000000000000.txnindex").write_bytes(b"")
