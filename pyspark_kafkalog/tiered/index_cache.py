"""Indexes and manifests of remote segments, kept in this process up to a number of bytes, those used last.

Objects of a remote segment never change, so that nothing has to be checked again. Indexes of deleted segments are
pushed out by others. Counterpart: org.apache.kafka.storage.internals.log.RemoteIndexCache, which keeps them as files.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

_Value = TypeVar("_Value")

#: Indexes take about 1/500 of the bytes of their segments: this is room for those of 30 GiB.
CACHE_BYTES: Final = 64 << 20


class BytesCache(Generic[_Value]):
    """Values by key, each with a size in bytes; the least recently used go when all are above `max_bytes`."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[Hashable, tuple[_Value, int]] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def get(self, key: Hashable, load: Callable[[], tuple[_Value, int]]) -> _Value:
        """The value of `key`; `load` gives it and its size if it is not there, and may be called by several threads.

        Errors of `load` are passed on, and nothing is kept.
        """
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found[0]
        value, size_bytes = load()
        with self._lock:
            if key not in self._held and size_bytes <= self._max_bytes:
                self._held[key] = value, size_bytes
                self._size_bytes += size_bytes
                while self._size_bytes > self._max_bytes:
                    self._size_bytes -= self._held.popitem(last=False)[1][1]
        return value


def process_cache() -> BytesCache[Any]:
    """This process's cache of indexes and manifests. Keys begin with the URL of their store."""
    return _cache(os.getpid())


@lru_cache(maxsize=1)
def _cache(process_id: int) -> BytesCache[Any]:
    """`process_id`: a forked process begins with a cache of its own."""
    return BytesCache()
