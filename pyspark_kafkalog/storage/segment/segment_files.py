"""The files of one segment, opened by their writer on first use.

<base offset>.log .index .timeindex [.txnindex], each with an additional suffix while it is being deleted or swapped in
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.storage.artefacts.offset_index import OffsetIndex
from pyspark_kafkalog.storage.artefacts.time_index import TimeIndex
from pyspark_kafkalog.storage.artefacts.transaction_index import TransactionIndex
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_file_name,
)

_CLOSED: Final = -1
_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class SegmentFiles:
    """Files of the segment at `base_offset`; `suffix` follows the usual suffixes, '' for a segment in use."""

    def __init__(
        self, directory: Path, base_offset: int, config: LogConfig, *, fs: FileSystem, suffix: str = ""
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.config = config
        self.fs = fs
        self._fd = _CLOSED
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None

    def path(self, suffix: str) -> Path:
        """Path of the segment's file with `suffix`."""
        return self.directory / (offset_file_name(self.base_offset, suffix) + self.suffix)

    @property
    def log_path(self) -> Path:
        return self.path(LOG_SUFFIX)

    @property
    def fd(self) -> int:
        """Descriptor of the `.log` file, which is created if it does not exist."""
        if self._fd == _CLOSED:
            self._fd = self.fs.open(self.log_path, os.O_RDWR | os.O_CREAT)
        return self._fd

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._offset_index = OffsetIndex.open(
                self.path(INDEX_SUFFIX),
                self.base_offset,
                max_index_bytes=self.config.segment_index_bytes,
                writable=True,
                fs=self.fs,
            )
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._time_index = TimeIndex.open(
                self.path(TIME_INDEX_SUFFIX),
                self.base_offset,
                max_index_bytes=self.config.segment_index_bytes,
                writable=True,
                fs=self.fs,
            )
        return self._time_index

    @property
    def txn_index(self) -> TransactionIndex:
        if self._txn_index is None:
            self._txn_index = TransactionIndex.open(
                self.path(TXN_INDEX_SUFFIX), self.base_offset, writable=True, fs=self.fs
            )
        return self._txn_index

    @property
    def is_open(self) -> bool:
        """Whether any of the files is open."""
        indexes = (self._offset_index, self._time_index, self._txn_index)
        return self._fd != _CLOSED or any(index is not None for index in indexes)

    def create(self) -> None:
        """Create the `.log` and the preallocated indexes, after removing existing files of these names."""
        self.delete()
        assert self.fd >= 0
        self.make_room()

    def make_room(self) -> None:
        """Preallocate the indexes to `segment.index.bytes`, as for the active segment."""
        self.offset_index.resize(self.config.segment_index_bytes)
        self.time_index.resize(self.config.segment_index_bytes)

    def reserve_room(self) -> None:
        """As `make_room`, for a writer that trims the indexes soon: the files grow with their appends."""
        self.offset_index.reserve(self.config.segment_index_bytes)
        self.time_index.reserve(self.config.segment_index_bytes)

    def clear_indexes(self) -> None:
        """Empty and preallocate all indexes, before they are rebuilt from the `.log`."""
        self.offset_index.reset()
        self.time_index.reset()
        self.txn_index.reset()

    def flush(self) -> None:
        """Wait until the `.log` is on disk, then the indexes, so that an index on disk never ends past the log."""
        self.fs.fsync(self.fd)
        for index in (self._offset_index, self._time_index, self._txn_index):
            if index is not None:
                index.flush()

    def trim_indexes(self) -> None:
        """Shorten the indexes to their entries; the next append has to make room again."""
        self.offset_index.trim()
        self.time_index.trim()

    def take_log(self, path: Path, fd: int) -> None:
        """Replace the segment's `.log` by the file at `path`, open as `fd`, which keeps both names."""
        self.fs.unlink_if_there(self.log_path)
        self.fs.link(path, self.log_path)
        self._close_log()
        self._fd = fd

    def begin_log_anew(self) -> None:
        """Replace the `.log` by an empty file. It is not truncated, as a staged file may share its bytes."""
        self._close_log()
        self.fs.unlink(self.log_path)
        assert self.fd >= 0

    def close_files(self) -> None:
        """Trim the indexes and close all files."""
        indexes = (self._offset_index, self._time_index, self._txn_index)
        self._offset_index = self._time_index = self._txn_index = None
        with contextlib.ExitStack() as closing:
            closing.callback(self._close_log)
            for index in indexes:
                if index is not None:
                    closing.callback(index.close)

    def delete(self) -> None:
        """Close and remove the files, the `.log` first: the next load removes indexes without a `.log`."""
        self.close_files()
        for kind in _SUFFIXES:
            self.fs.unlink_if_there(self.path(kind))

    def _close_log(self) -> None:
        if self._fd != _CLOSED:
            fd, self._fd = self._fd, _CLOSED
            self.fs.close(fd)
