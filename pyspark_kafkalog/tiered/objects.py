"""The objects of remote storage: those of an object store, or the files below a directory.

A directory is what Kafka's LocalTieredStorage and file system backends of other plugins write to. Its files are read
like objects: whole or by ranges, by keys that are checked; links below it are not followed. A put is durable when it
returns. A crash during it leaves the file `<key>.<random>.tmp`, which listings show.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from pyspark_kafkalog.errors import LogDirError
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
from pyspark_kafkalog.units import NS_PER_MS

_PUT_ATTEMPTS: Final = 10


class ReadableObjects(Protocol):
    """The reading half of an ObjectStore, which describes its methods."""

    @property
    def url(self) -> str: ...

    def get(self, key: str, *, max_bytes: int) -> bytes: ...

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[Buffer]: ...

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

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        fd = self._open(key)
        try:
            return [pread(fd, each.size_bytes, each.start) for each in ranges]
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
