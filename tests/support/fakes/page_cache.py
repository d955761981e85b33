"""What of a file is in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Final

import numpy as np

LIBC: Final = ctypes.CDLL(None, use_errno=True)
LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def cached_bytes(path: Path) -> int:
    """How much of a file is in the page cache (mincore)."""
    size_bytes = path.stat().st_size
    pages = -(-size_bytes // mmap.PAGESIZE)
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), size_bytes, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        found = np.zeros(pages, np.uint8)
        failed = LIBC.mincore(view.ctypes.data, size_bytes, found.ctypes.data)
        del view
    assert not failed, os.strerror(ctypes.get_errno())
    return int((found & 1).sum()) * mmap.PAGESIZE
