"""What a follower that is far behind leaves in the page cache, and one that is not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from builders.following_roots import check_equal, make_follower
from fakes.page_cache import LIBC, cached_bytes

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, FlushMode
from pyspark_kafkalog.units import MIB

MEGABYTES: Final = 12


def require_dropping(directory: Path) -> None:
    """Skip the test where the file system has nothing but memory, or the system keeps what it is told to drop."""
    path = directory / "probe"
    path.write_bytes(bytes(MIB))
    fd = LOCAL.open(path, os.O_RDWR)
    LIBC.fdatasync(fd)
    LOCAL.drop_cached(fd, 0, MIB)
    LOCAL.close(fd)
    if cached_bytes(path):
        pytest.skip("this file system does not drop pages")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where to copy a leader with a partition of twelve megabytes, of which a fetch takes one.

    Here a flush waits for the disk, other than in all other tests (conftest.py).
    """
    monkeypatch.setattr(FileSystem, "fsync", lambda _, fd: LIBC.fdatasync(fd))
    monkeypatch.setattr("pyspark_kafkalog.replication.fetch_loop._FETCH_BYTES_MAX", MIB)
    monkeypatch.setattr("pyspark_kafkalog.root.commit.file_engine._CACHED_BYTES", 2 * MIB)
    leader = LogDir.create(tmp_path / "leader")
    leader.create_topic("orders", 1)
    for _ in range(MEGABYTES):
        leader.append("orders", pa.table({"value": [os.urandom(4096) for _ in range(256)]}))
    return tmp_path / "copy"


def follow(copy: Path, *, flush: FlushMode = "fsync") -> Path:
    """Copy all; returns the segment."""
    leader = RootLeader(open_root(copy.parent / "leader"))
    make_follower(leader, copy, [], is_once=True, flush=flush).run()
    leader.close()
    check_equal(copy.parent / "leader", copy)
    return copy / "orders-0" / f"{0:020d}.log"


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs posix_fadvise")
def test_back_fill_leaves_only_its_end_in_the_page_cache(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_dropping(copy.parent)
    monkeypatch.setattr("pyspark_kafkalog.replication.partition_state._FAR_BEHIND_BYTES", MIB)
    cached: list[int] = []
    drop = FileSystem.drop_cached

    def note(self: FileSystem, fd: int, position: int, length: int) -> None:
        drop(self, fd, position, length)
        cached.append(cached_bytes(Path(f"/proc/self/fd/{fd}")))

    monkeypatch.setattr(FileSystem, "drop_cached", note)
    follow(copy)
    assert len(cached) >= MEGABYTES / 2
    # A commit takes what has waited, so a few megabytes are not on disk yet.
    assert max(cached) < MEGABYTES * MIB * 2 / 3


def test_back_fill_goes_past_the_page_cache(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_dropping(copy.parent)
    monkeypatch.setattr("pyspark_kafkalog.replication.partition_state._FAR_BEHIND_BYTES", MIB)
    written: list[int] = []
    pwrite_direct = FileSystem.pwrite_direct

    def note(self: FileSystem, fd: int, data: Buffer, position: int) -> int:
        written.append(pwrite_direct(self, fd, data, position))
        return written[-1]

    monkeypatch.setattr(FileSystem, "pwrite_direct", note)
    follow(copy)
    assert sum(written) >= MEGABYTES * MIB * 2 / 3


@pytest.mark.parametrize(("far_behind_bytes", "flush"), [(32 * MIB, "fsync"), (MIB, "os")])
def test_follower_that_is_not_far_behind_or_does_not_wait_for_the_disk_drops_nothing(
    copy: Path, monkeypatch: pytest.MonkeyPatch, far_behind_bytes: int, flush: FlushMode
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.replication.partition_state._FAR_BEHIND_BYTES", far_behind_bytes)
    monkeypatch.setattr(FileSystem, "pwrite_direct", lambda *_: pytest.fail("pages were passed over"))
    monkeypatch.setattr(FileSystem, "drop_cached", lambda *_: pytest.fail("pages were dropped"))
    follow(copy, flush=flush)
