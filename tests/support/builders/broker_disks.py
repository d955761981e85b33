"""Directories that real brokers left, `tests/data/broker-disks/`, and a stand-in for a broker that runs on one.

killed    SIGKILL half a second after the last write; `replication-offset-checkpoint` is older. Log ends and (high
          watermarks): orders-0 60 (20), orders-1 30 (30), paid-0 24 (10). Above the high watermark paid-0 holds a
          committed transaction, an aborted one, and one left open at offset 21; group billing committed again.
tiered    clean stop of a tiering broker: closed segments are in remote storage, some of tiered-overlap-0 here too
cluster   three brokers' disks, 1, 2 and 3, and what consumers got (`cluster_rows`). Node 2 was killed, elected-0 got 30
          more records in node 1, which was killed then. Node 2, back again, was elected the unclean leader of
          elected-0 and wrote others from offset 40 on. Both partitions of orders got more records in nodes 2 and 3;
          topic again was deleted and created again there. Nodes 2 and 3 were stopped cleanly. Node 1 was never back.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from repository import DATA

_DISKS: Final = DATA / "broker-disks"
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


@pytest.fixture
def cluster(tmp_path: Path) -> list[Path]:
    """The disks of nodes 1, 2 and 3."""
    root = Path(shutil.copytree(_DISKS / "cluster", tmp_path / "cluster"))
    return [root / name for name in ("1", "2", "3")]


def set_property(root: Path, name: str, value: str) -> None:
    """Change a line of meta.properties."""
    path = root / "meta.properties"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{name}=")]
    path.write_text("\n".join([*lines, f"{name}={value}", ""]))


@pytest.fixture
def log_dirs(killed: Path, tmp_path: Path) -> list[Path]:
    """The killed broker's partitions in two log.dirs, the metadata log and the groups in the second one."""
    first, second = tmp_path / "disk-1", Path(shutil.copytree(killed, tmp_path / "disk-2"))
    shutil.copytree(killed, first)
    set_property(second, "directory.id", "AAAAAAAAAAAAAAAAAAAAAw")
    for directory, names in (
        (first, ("orders-1", "__cluster_metadata-0", "__consumer_offsets-0", "__transaction_state-0")),
        (second, ("orders-0", "paid-0")),
    ):
        for name in names:
            shutil.rmtree(directory / name)
        for path in directory.glob("*-offset-checkpoint"):
            kept = [line for line in path.read_text().splitlines()[2:] if "-".join(line.split()[:2]) not in names]
            path.write_text("\n".join(["0", str(len(kept)), *kept, ""]))
    return [first, second]


def cluster_rows(topic: str) -> list[tuple[int, int, int, str]]:
    """Partition, offset, timestamp in ms and value of the records of a topic of `cluster`, in order."""
    rows = json.loads((_DISKS / "cluster" / "expected.json").read_text())[topic]
    return [(partition, offset, timestamp_ms, value) for partition, offset, timestamp_ms, value in rows]


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
