"""Writes that go past the page cache, and the memory from which they copy nothing.

Direct writes (`write_blocks`, O_DIRECT) go past the page cache, for bytes that are not read soon. The page cache copies
each byte once more and takes a page for it, which costs ten times as much CPU as the transfer to the disk, and it drops
pages that others use. A direct write is over when the disk has the bytes; a flush makes them durable, as after any
other write. Memory, position and length are multiples of a block, so other bytes go through memory that each thread
keeps for it. Bytes that are copied from one file to the same place of another need not: `memory_for` says where to read
them to. The kernel drops blocks that are also in the page cache. Not all file systems have direct writes, and some only
with larger blocks: then `write_blocks` writes nothing, and the caller continues through the page cache. So do commits
that wait only for the kernel: a direct write waits for the disk.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.units import MIB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The unit of direct writes; also a whole page, so that no page has bytes of both kinds of writes.
BLOCK_BYTES: Final = max(4096, mmap.PAGESIZE)
_DIRECT_CHUNK_BYTES: Final = 2 * MIB
#: Systems without the flag write nothing directly.
_O_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_kept = threading.local()
#: Reads below this are small.
_LARGE_READ_BYTES: Final = 1 << 20


def memory_for(position: int, size_bytes: int) -> NDArray[np.uint8]:
    """New memory of so many bytes, which lies to blocks as `position` does: a direct write to there copies nothing."""
    import numpy as np  # loading it takes longer than what many processes do with files

    memory = np.empty(size_bytes + BLOCK_BYTES, np.uint8)  # bounded: chunks of constant size, in the callers
    begin = (position - _address(memory)) % BLOCK_BYTES
    return memory[begin : begin + size_bytes]


class LentMemory:
    """Memory of large reads, which is lent again when nothing refers to it: the kernel takes long to clear new pages.

    For one thread that reads. Any thread may drop the last reference.
    """

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque()

    def lend(self, position: int, size_bytes: int) -> NDArray[np.uint8]:
        """As `memory_for`. A small read, after which few are large, gives back what is free."""
        import numpy as np

        if size_bytes < _LARGE_READ_BYTES:
            self._free.clear()
            return memory_for(position, size_bytes)
        whole = self._free.popleft() if self._free else None
        if whole is None or len(whole) < size_bytes + BLOCK_BYTES:
            whole = np.empty(size_bytes + BLOCK_BYTES, np.uint8)  # bounded: chunks of constant size, in the callers
        begin = (position - _address(whole)) % BLOCK_BYTES
        lent = np.frombuffer(whole.data, np.uint8, size_bytes, begin)  # which all views of it refer to
        weakref.finalize(lent, self._free.append, whole).atexit = False
        return lent


def write_blocks(fd: int, data: memoryview, position: int) -> int:
    """Write as much of `data` as goes directly; returns the number of bytes, 0 if none does. Raises OSError.

    `position` and the length are multiples of BLOCK_BYTES. No other thread uses `fd` for reads or writes meanwhile, as
    the flag is one of the open file.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not _O_DIRECT or not _set_flags(fd, flags | _O_DIRECT):
        return 0
    try:
        return _write_chunks(fd, data, position)
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def _set_flags(fd: int, flags: int) -> bool:
    """Whether the file system knows the flags."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return False
    return True


def _write_chunks(fd: int, data: memoryview, position: int) -> int:
    import numpy as np

    is_aligned = _address(np.frombuffer(data, np.uint8)) % BLOCK_BYTES == 0
    chunk_bytes = len(data) if is_aligned else _DIRECT_CHUNK_BYTES
    done = 0
    while done < len(data):
        chunk = data[done : done + chunk_bytes]
        try:
            written = os.pwrite(fd, chunk if is_aligned else _aligned(chunk), position + done)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return done
        done += written
        if written < len(chunk):
            return done
    return done


def _address(memory: NDArray[np.uint8]) -> int:
    address: int = memory.__array_interface__["data"][0]
    return address


def _aligned(chunk: memoryview) -> memoryview:
    """The bytes in this thread's memory. A forked child gets a copy of that, as the pages are private."""
    if not hasattr(_kept, "memory"):
        _kept.memory = memoryview(mmap.mmap(-1, _DIRECT_CHUNK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    memory: memoryview = _kept.memory
    memory[: len(chunk)] = chunk
    return memory[: len(chunk)]
