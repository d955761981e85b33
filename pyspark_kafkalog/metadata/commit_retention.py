"""Retention of commit files and snapshots: each commit removes a few old ones.

    __cluster_metadata-0/kafkalog-start     hint: the oldest commit that still exists (offset_hint.py)

A commit file is removed when it is older than metadata.max.retention.ms and a snapshot contains its records; the older
snapshot that ends where the commit begins is removed before it. The newest snapshot is kept, and so is the last commit
in it: a reader whose last file no longer exists has to reload from a snapshot. Files are removed oldest first, so a
crash leaves no gaps. Each commit removes at most a few files, found by name from one to the next, so the cost does not
depend on the length of the history.

The hint is written after a file has been removed. After a crash in between, it names a file that does not exist, and
the directory is listed once.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.metadata.commit_log import CommitLog, CommitRange
from pyspark_kafkalog.metadata.offset_hint import OffsetHint
from pyspark_kafkalog.metadata.snapshots import Snapshots
from pyspark_kafkalog.storage.filesystem import FileSystem

START_FILE: Final = "kafkalog-start"

_FILES_A_COMMIT: Final = 4


class CommitRetention:
    """Removes the oldest commits of `log`, with their snapshots."""

    def __init__(self, log: CommitLog, snapshots: Snapshots, fs: FileSystem) -> None:
        self._log = log
        self._snapshots = snapshots
        self._fs = fs
        self._start = OffsetHint(log.directory / START_FILE, fs)
        self._oldest: CommitRange | None = None

    def remove_expired(self, *, snapshot_end_offset: int, older_than_ms: int) -> None:
        """Remove a few commits made before `older_than_ms` that the snapshot at `snapshot_end_offset` contains.

        Raises OSError, or CorruptRecordError for a commit file that is damaged.
        """
        for _ in range(_FILES_A_COMMIT):
            oldest = self._oldest or self._find_oldest()
            if oldest is None or oldest.next_offset >= snapshot_end_offset or oldest.timestamp_ms >= older_than_ms:
                self._oldest = oldest
                return
            self._remove(oldest)

    def _remove(self, oldest: CommitRange) -> None:
        self._oldest = None
        self._fs.unlink_if_there(self._snapshots.path(oldest.base_offset))
        try:
            self._fs.unlink(self._log.path(oldest.base_offset))
        except FileNotFoundError:
            return  # another process removed it first, and writes the hint
        self._start.write(oldest.next_offset)
        self._oldest = self._log.read_range(oldest.next_offset)

    def _find_oldest(self) -> CommitRange | None:
        found = self._log.read_range(self._start.read() or 0)
        if found is None:
            first = min(self._log.listed_offsets(), default=None)
            if first is None:
                return None
            self._start.write(first)
            found = self._log.read_range(first)
        return found
