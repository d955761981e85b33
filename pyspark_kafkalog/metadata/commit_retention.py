"""Old commit files and old snapshots go, a few with each commit.

    __cluster_metadata-0/kafkalog-start     hint: the oldest commit that is still there (offset_hint.py)

A commit goes when it is older than metadata.max.retention.ms and a snapshot holds what it says; before it the snapshot
that ends where it begins, which is older. The newest snapshot stays, and so does the last commit in it: a reader knows
by the file it read last whether it was left behind. The oldest go first, so what is there has no gaps, whenever a crash
comes; at most a few files a commit, found by name from one to the next, so the cost does not depend on the history.

The hint is written after a file has gone. A crash in between leaves it pointing at nothing: then the directory is
listed, once.
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
        """Remove commits made before time `older_than_ms` that the snapshot at `snapshot_end_offset` holds; a few.

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
            return  # another process was first; its hint says how far it got
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
