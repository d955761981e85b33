"""Reads a remote segment's `.log` in windows, some ahead of the reader, with memory for a few windows.

A reader asks for a few bytes (a batch header) or for chunks of some MiB, one after the other. Few bytes are one small
request, with some KiB behind them, since more headers follow. Once chunks follow each other, the next windows are
requested while the reader works on the present one: a request to an object store is slow to begin, and moves some tens
of MiB a second whatever its size, so several are under way at once.

A store that returns other than the requested bytes is not believed: the error names the object and the position. An
object that does not exist is FileNotFoundError, at the first read.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.threads import Workers

#: What is requested at once.
WINDOW_BYTES: Final = 4 << 20
#: What is requested ahead of the present window, which makes 16 MiB with it; one window at least.
AHEAD_BYTES: Final = 12 << 20
_AT_ONCE: Final = 3
_NEAR_BYTES: Final = 64 << 10


class LogContent(Protocol):
    """The bytes of a `.log`, however its object holds them. Used from several threads."""

    @property
    def name(self) -> str:
        """What error messages call it: the URL of the object."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def window_end(self, start: int) -> int:
        """Where a window that begins at `start` should end: at WINDOW_BYTES behind it, or some more."""
        ...

    def window(self, start: int, end: int) -> Window:
        """The bytes [start, end), 0 <= start < end <= size, perhaps with more around them.

        Raises FileNotFoundError if there is no such object, ObjectStoreError, DiskFormatError for wrong bytes.
        """
        ...


@dataclass(frozen=True, slots=True)
class Window:
    """The bytes of a `.log` from `start` on."""

    start: int
    data: memoryview

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def holds(self, start: int, end: int) -> bool:
        return self.start <= start and end <= self.end


_NOWHERE: Final = -1
_NOTHING: Final = Window(0, memoryview(b""))


class RemoteBytes:
    """A ByteSource over the content of one remote `.log`. For one thread; `close` ends its own."""

    __slots__ = ("_ahead", "_content", "_pool", "_reached", "_window", "name")

    def __init__(self, content: LogContent) -> None:
        self.name = content.name
        self._content = content
        self._window = _NOTHING
        self._ahead: deque[tuple[int, Future[Window]]] = deque()  # their ends, and their bytes
        self._pool: Workers | None = None
        self._reached = _NOWHERE  # the end of the last read of a chunk

    def size_bytes(self) -> int:
        """The size that the segment's metadata say."""
        return self._content.size_bytes

    def read(self, start: int, size_bytes: int) -> Buffer:
        """The bytes [start, start + size_bytes); fewer only at the end of the segment."""
        end = min(start + size_bytes, self._content.size_bytes)
        if start >= end:
            return b""
        if not self._window.holds(start, end):
            self._window = self._content.window(start, min(max(end, start + _NEAR_BYTES), self._content.size_bytes))
        return self._window.data[start - self._window.start : end - self._window.start]

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill `buffer` from `start` on, as far as the segment reaches; returns the number of bytes."""
        end = min(start + len(buffer), self._content.size_bytes)
        at = start
        follows, self._reached = start <= self._reached < end, end
        while at < end:
            if not self._window.start <= at < self._window.end:
                self._advance(at, end)
                if follows:
                    self._request_ahead()
            part = self._window.data[at - self._window.start : end - self._window.start]
            buffer[at - start : at - start + len(part)] = part
            at += len(part)
        return max(end - start, 0)

    def place(self, position: int) -> tuple[str, int]:
        return self.name, position

    def close(self) -> None:
        self._window = _NOTHING
        self._ahead.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _advance(self, at: int, end: int) -> None:
        """Make the window that holds `at` the present one."""
        self._window = _NOTHING  # before there is another one
        while self._ahead and not self._window.start <= at < self._window.end:
            self._window = self._ahead.popleft()[1].result()
        if not self._window.start <= at < self._window.end:
            self._ahead.clear()
            self._window = self._content.window(at, min(end, at + WINDOW_BYTES))

    def _request_ahead(self) -> None:
        """Request the windows behind the present one, in their order."""
        self._pool = self._pool or Workers(_AT_ONCE, thread_name_prefix="kafkalog-read-ahead")
        start = self._ahead[-1][0] if self._ahead else self._window.end
        until = min(self._window.end + AHEAD_BYTES, self._content.size_bytes)
        while start < until:
            end = self._content.window_end(start)
            self._ahead.append((end, self._pool.submit(self._content.window, start, end)))
            start = end
