"""Writes past the page cache: the same bytes as through it, wherever they begin and whatever the system refuses."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.page_cache import cached_bytes

from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.storage import direct_io
from pyspark_kafkalog.storage.direct_io import BLOCK_BYTES, LentMemory, memory_for, write_blocks
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.units import MIB


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "segment.log", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def require_direct_writes(fd: int) -> None:
    """Skip the test where the file system, or the system, has none. The file gets a block of zeros."""
    if not write_blocks(fd, memoryview(bytes(BLOCK_BYTES)), 0):
        pytest.skip("this file system has no direct writes")


def content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def append(fd: int, sizes: list[int]) -> bytes:
    """Append pieces of so many random bytes; returns all of them."""
    rng, whole = random.Random(5), b""
    for size in sizes:
        piece = rng.randbytes(size)
        LOCAL.pwrite_uncached(fd, memoryview(piece), len(whole))
        whole += piece
    return whole


SIZES = [1, BLOCK_BYTES - 1, BLOCK_BYTES, 100, 3 * BLOCK_BYTES + 7, 5 * MIB + 1, 0, BLOCK_BYTES - 1, 2 * MIB]


def test_appends_of_any_size_write_exactly_their_bytes(fd: int) -> None:
    assert append(fd, SIZES) == content(fd)


def test_bytes_around_a_range_that_is_overwritten_stay(fd: int) -> None:
    before = bytearray(append(fd, [MIB]))
    LOCAL.pwrite_uncached(fd, b"\xff" * (5 * BLOCK_BYTES), 1000)
    before[1000 : 1000 + 5 * BLOCK_BYTES] = b"\xff" * (5 * BLOCK_BYTES)
    assert content(fd) == before


def test_bytes_in_the_page_cache_are_not_read_again_after_a_direct_write(fd: int) -> None:
    LOCAL.pwrite_all(fd, b"old" * MIB, 0)
    assert content(fd)[:3] == b"old"
    LOCAL.pwrite_uncached(fd, b"new" * MIB, 0)
    assert content(fd) == b"new" * MIB


def test_only_the_ends_of_large_writes_take_the_page_cache(fd: int, tmp_path: Path) -> None:
    require_direct_writes(fd)
    append(fd, [100, 4 * MIB, 4 * MIB])
    assert cached_bytes(tmp_path / "segment.log") <= 3 * BLOCK_BYTES


def test_flags_of_the_file_are_as_before(fd: int) -> None:
    before = fcntl.fcntl(fd, fcntl.F_GETFL)
    append(fd, [MIB])
    assert fcntl.fcntl(fd, fcntl.F_GETFL) == before


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_file_system_without_direct_writes_gets_all_through_the_page_cache(
    fd: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(fd: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL:
            raise OSError(code, os.strerror(code))
        return 0

    monkeypatch.setattr("pyspark_kafkalog.storage.direct_io.fcntl.fcntl", refuse)
    assert append(fd, SIZES) == content(fd)


def test_file_system_with_larger_blocks_gets_all_through_the_page_cache(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    pwrite = os.pwrite

    def write(fd: int, data: Any, position: int) -> int:
        nonlocal refused
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused += 1
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return pwrite(fd, data, position)

    require_direct_writes(fd)
    monkeypatch.setattr(os, "pwrite", write)
    assert append(fd, SIZES) == content(fd)
    assert refused


def test_short_direct_write_is_completed(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[: max(1, len(data) // 2)], position))
    assert append(fd, SIZES) == content(fd)


def test_error_of_the_disk_names_the_file_and_leaves_the_flags(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    require_direct_writes(fd)
    before, pwrite = fcntl.fcntl(fd, fcntl.F_GETFL), os.pwrite

    def fail(fd: int, data: Any, position: int) -> int:
        if len(data) >= BLOCK_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match=r"segment\.log") as raised:
        append(fd, [100, MIB])
    assert raised.value.errno == errno.ENOSPC
    assert fcntl.fcntl(fd, fcntl.F_GETFL) == before


@pytest.mark.parametrize("position", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * MIB + 77])
def test_memory_for_a_position_is_written_there_without_a_copy(
    fd: int, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_direct_writes(fd)
    os.truncate(fd, position)
    memory = memory_for(position, 5 * MIB)
    memory[:] = np.frombuffer(random.Random(7).randbytes(5 * MIB), np.uint8)
    monkeypatch.setattr(direct_io, "_aligned", lambda chunk: pytest.fail("the bytes were copied"))
    LOCAL.pwrite_uncached(fd, memory.data, position)
    assert os.pread(fd, 6 * MIB, position) == memory.tobytes()


def test_memory_is_lent_again_when_no_view_of_it_is_left() -> None:
    memory = LentMemory()
    first = memory.lend(BLOCK_BYTES + 5, 2 * MIB)
    at, kept = address_of(first), first[7:].data
    assert at % BLOCK_BYTES == 5
    del first
    second = memory.lend(5, MIB)
    assert not np.shares_memory(second, np.frombuffer(kept, np.uint8))
    del kept
    assert address_of(memory.lend(5, 2 * MIB)) == at
    assert len(memory.lend(0, 3 * MIB)) == 3 * MIB


def test_child_of_a_fork_has_memory_of_its_own(fd: int) -> None:
    whole = append(fd, [BLOCK_BYTES * 4])
    child = os.fork()
    if not child:
        write_blocks(fd, memoryview(b"c" * BLOCK_BYTES), BLOCK_BYTES * 8)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    if hasattr(direct_io._kept, "memory"):
        assert bytes(direct_io._kept.memory[: len(whole)]) == whole
