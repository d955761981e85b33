"""Objects of remote storage: how storage plugins lay segments out, and how a store or a directory is read.

`SegmentLayout` says where a storage plugin puts the objects of a remote segment, and how it writes them:

    local_layout.LocalLayout     Kafka's own LocalTieredStorage: plain copies of the files
    aiven_layout.AivenLayout     Aiven's plugin: chunks, perhaps compressed or encrypted, an object of indexes, and a
                                 manifest

*A directory* is what Kafka's LocalTieredStorage and file system backends of other plugins write to. Its files are read
like objects: whole or by ranges, by keys that are checked; links below it are not followed. A put is durable when it
returns. A crash during it leaves the file `<key>.<random>.tmp`, which listings show.

*A segment's `.log`* is read in windows (`RemoteBytes`), some ahead of the reader, with memory for a few of them. A
reader asks for a few bytes (a batch header) or for chunks of some MiB, one after the other. Few bytes are one small
request, with some KiB behind them, since more headers follow. Once chunks follow each other, the next windows are
requested while the reader works on the present one: a request to an object store is slow to begin, and moves some tens
of MiB a second whatever its size, so several are under way at once. A store that returns other than the requested bytes
is not believed: the error names the object and the position. An object that does not exist is FileNotFoundError, at the
first read.

*Indexes and manifests* are kept in this process (`process_cache`) up to a number of bytes, those used last. Objects of
a remote segment never change, so that nothing has to be checked again. Indexes of deleted segments are pushed out by
others. Counterpart: org.apache.kafka.storage.internals.log.RemoteIndexCache, which keeps them as files.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Generic, NoReturn, Protocol, TypeAlias, TypeVar

from pyspark_kafkalog.errors import CorruptRecordError, LogDirError
from pyspark_kafkalog.object_store.store import (
    ByteRange,
    ObjectMetadata,
    ObjectNotFoundError,
    ObjectStoreError,
    StoreAccessError,
    StoreNotFoundError,
    check_key,
)
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.below_root import follow_root, open_file, scan
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, pread
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition
from pyspark_kafkalog.units import NS_PER_MS
from pyspark_kafkalog.values import dataclass

_PUT_ATTEMPTS: Final = 10


class ReadableObjects(Protocol):
    """The reading half of an ObjectStore, which describes its methods."""

    @property
    def url(self) -> str: ...

    def get(self, key: str, *, max_bytes: int) -> bytes: ...

    def get_range(self, key: str, wanted: ByteRange) -> Buffer: ...

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectMetadata]: ...


class SegmentStore(ReadableObjects, Protocol):
    """What of an ObjectStore copies of segments need: reading, and the two requests that change something."""

    def head(self, key: str) -> ObjectMetadata: ...

    def put(self, key: str, body: Buffer) -> None: ...

    def delete(self, keys: Collection[str]) -> None: ...


class DirectoryObjects:
    """The files below a directory as objects; the keys are their paths in it."""

    def __init__(self, directory: Path, *, fs: FileSystem = LOCAL) -> None:
        follow_root(directory, has_folders=True)
        self._directory = directory
        self._fs = fs

    @property
    def url(self) -> str:
        return str(self._directory)

    def get(self, key: str, *, max_bytes: int) -> bytes:
        fd = self._open(key)
        try:
            size_bytes = os.fstat(fd).st_size
            if size_bytes > max_bytes:
                raise ObjectStoreError(f"{self.url}/{key}: expected at most {max_bytes} bytes, found {size_bytes}")
            return pread(fd, size_bytes, 0)
        finally:
            os.close(fd)

    def get_range(self, key: str, wanted: ByteRange) -> Buffer:
        fd = self._open(key)
        try:
            return pread(fd, wanted.size_bytes, wanted.start)
        finally:
            os.close(fd)

    def head(self, key: str) -> ObjectMetadata:
        fd = self._open(key)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        return ObjectMetadata(key, status.st_size, status.st_mtime_ns // NS_PER_MS)

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectMetadata]:
        top = self._directory / check_key(prefix) if prefix else self._directory
        if not prefix:
            self._check_directory()
        for each in self._files(str(top), f"{prefix}/" if prefix else ""):
            if after is None or each.key > after:
                yield each

    def put(self, key: str, body: Buffer) -> None:
        """Create or replace the file, and the folders above it, durably. Raises ObjectStoreError."""
        path = self._directory / check_key(key)
        if not self._directory.is_dir():
            raise StoreNotFoundError(f"{self._directory}: no such directory of remote storage: create it first")
        try:
            for _ in range(_PUT_ATTEMPTS):
                self._make_folders(path.parent)
                with contextlib.suppress(FileNotFoundError):  # a delete has removed the folder meanwhile
                    self._fs.write_file_atomic(path, body)
                    return
        except OSError as error:
            raise _write_error(error, path) from error
        raise ObjectStoreError(f"{path}: its folder is removed again and again by others")

    def _make_folders(self, folder: Path) -> None:
        if folder == self._directory or folder.is_dir():
            return
        self._make_folders(folder.parent)
        with contextlib.suppress(FileExistsError):
            self._fs.mkdir(folder)
            self._fs.fsync_dir(folder.parent)

    def delete(self, keys: Collection[str]) -> None:
        """Remove the files that exist, and folders that are empty then. Raises ObjectStoreError."""
        paths = [self._directory / check_key(key) for key in keys]
        for path in paths:
            try:
                self._fs.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _write_error(error, path) from error
        for folder in sorted({path.parent for path in paths}):
            with contextlib.suppress(OSError):  # mostly because it is not empty
                while folder != self._directory:
                    self._fs.rmdir(folder)
                    folder = folder.parent

    def _files(self, directory: str, prefix: str) -> Iterator[ObjectMetadata]:
        """The files below, by key: a folder sorts as its name with the `/` that follows."""
        try:
            listed = [entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in scan(directory)]
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise StoreAccessError(error.errno, f"cannot list remote storage: {error.strerror}", directory) from error
        for name in sorted(listed):
            path = os.path.join(directory, name)
            if name.endswith("/"):
                yield from self._files(path.removesuffix("/"), prefix + name)
                continue
            try:
                status = os.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield ObjectMetadata(prefix + name, status.st_size, status.st_mtime_ns // NS_PER_MS)

    def _check_directory(self) -> None:
        if not self._directory.is_dir():
            raise StoreNotFoundError(f"{self._directory}: no such directory of remote storage")

    def _open(self, key: str) -> int:
        path = self._directory / check_key(key)
        try:
            return open_file(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            self._check_directory()  # not mounted, say: that is no loss of objects
            raise ObjectNotFoundError(error.errno, "no such object in remote storage", str(path)) from error
        except PermissionError as error:
            raise StoreAccessError(error.errno, f"cannot read remote storage: {error.strerror}", str(path)) from error


def _write_error(error: OSError, path: Path) -> ObjectStoreError:
    if isinstance(error, LogDirError):
        return ObjectStoreError(f"cannot write to remote storage: {error}")
    kind = StoreAccessError if isinstance(error, PermissionError) else ObjectStoreError
    return kind(error.errno, f"cannot write to remote storage: {error.strerror}", str(path))


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


#: This much is held in memory. Indexes have at most `segment.index.bytes`, 10 MiB by default.
INDEX_BYTES_MAX: Final = 256 << 20
_REQUESTS_AT_ONCE: Final = 32

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class IndexKind(Enum):
    """The indexes of a remote segment (RemoteStorageManager.IndexType)."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producerSnapshot"
    LEADER_EPOCH = "leaderEpoch"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class IndexBytes:
    """The bytes of an index, and what error messages call it."""

    name: str
    data: Buffer


#: The start offset and the id of a copy, as its objects are named.
Copy: TypeAlias = tuple[int, str]


class SegmentLayout(Protocol):
    """Finds and reads the objects of remote segments. Immutable; reads through the store that it is given."""

    @property
    def name(self) -> str:
        """The value of the option remoteStorageLayout."""
        ...

    @property
    def keeps_indexes(self) -> bool:
        """False: `index` makes a request each time."""
        ...

    def log_content(self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment) -> LogContent:
        """The segment's `.log`. May make a request."""
        ...

    def index(
        self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment, kind: IndexKind
    ) -> IndexBytes | None:
        """An index; None if the segment has no such index.

        Raises FileNotFoundError, ObjectStoreError, DiskFormatError.
        """
        ...

    def partitions(self, store: ReadableObjects) -> dict[TopicIdPartition, list[ObjectMetadata]]:
        """The objects of each partition, from one listing of the store. Other objects are left out."""
        ...

    def objects_of(self, store: ReadableObjects, of: TopicIdPartition) -> list[ObjectMetadata]:
        """The objects of one partition, from a listing of its folder."""
        ...

    @property
    def required(self) -> frozenset[str]:
        """The suffixes of the objects that every whole copy of a segment has."""
        ...

    def copies(self, objects: Sequence[ObjectMetadata]) -> dict[Copy, dict[str, int]]:
        """The sizes of the objects of each copy by suffix, among the objects of a partition."""
        ...

    def segments(
        self, store: ReadableObjects, of: TopicIdPartition, objects: Sequence[ObjectMetadata]
    ) -> list[RemoteSegment]:
        """The complete copies among the objects of a partition, in order of their offsets.

        Raises ObjectStoreError, DiskFormatError. A copy that is deleted meanwhile is left out.
        """
        ...


def wrong_bytes(name: str, position: int, expected: str, found: str) -> NoReturn:
    """Raise CorruptRecordError for bytes of an object that are not what they must be."""
    raise CorruptRecordError(
        file=name,
        position=position,
        expected=expected,
        found=found,
        advice="the object was damaged or replaced: restore it from a copy",
    )


def read_range(store: ReadableObjects, key: str, wanted: ByteRange) -> Buffer:
    """The bytes of the range, all of them. Raises FileNotFoundError, CorruptRecordError for fewer or more bytes."""
    found = store.get_range(key, wanted)
    if len(found) != wanted.size_bytes:
        wrong_bytes(object_name(store, key), wanted.start, f"{wanted.size_bytes} bytes", f"{len(found)} bytes")
    return found


def object_name(store: ReadableObjects, key: str) -> str:
    """What error messages call an object."""
    return f"{store.url.rstrip('/')}/{key}"


def for_each(do: Callable[[_Item], _Result | None], items: Iterable[_Item]) -> list[_Result]:
    """The results of small requests, many at once, in order, without None."""
    with Workers(_REQUESTS_AT_ONCE, thread_name_prefix="kafkalog-remote") as pool:
        return [each for each in pool.map(do, items) if each is not None]
