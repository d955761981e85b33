"""The position of an image in the commit log, and its distance from the newest snapshot.

It is stored with the image and updated by each commit. Checking whether a snapshot is due, or whether the image's files
were removed, therefore reads nothing of the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.metadata.commit_log import Commit
from pyspark_kafkalog.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True)
class KnownSnapshot:
    """An existing snapshot: its end offset, its size in bytes, the time (ms) of the last commit in it.

    `is_sound` means that this process has read it completely, or has written it durably, so the commits that it
    contains may be removed.
    """

    end_offset: int
    size_bytes: int
    timestamp_ms: int
    is_sound: bool


@dataclass(frozen=True, slots=True)
class LogTail:
    """The log behind an image.

    `last_file` is the file that the image was last read from or published as, a commit's or a snapshot's: when it is
    gone, a newer snapshot has taken its place. `snapshot` is the newest that is known. `since_ms` is the time of the
    last commit in it, or of the first of all (-1: there is none); `bytes_since` the size of the commits after it.
    """

    last_file: Path
    snapshot: KnownSnapshot | None = None
    since_ms: int = -1
    bytes_since: int = 0

    def after_commit(self, commit: Commit, file: Path) -> LogTail:
        """The tail with `commit`, whose file is `file`, as the last one."""
        since_ms = commit.timestamp_ms if self.since_ms < 0 else self.since_ms
        return LogTail(file, self.snapshot, since_ms, self.bytes_since + commit.size_bytes)

    def after_snapshot(self, snapshot: KnownSnapshot, *, bytes_before: int) -> LogTail:
        """The tail with a newer snapshot, which holds `bytes_before` bytes of the commits since the one before."""
        if self.snapshot is not None and self.snapshot.end_offset >= snapshot.end_offset:
            return self
        return LogTail(self.last_file, snapshot, snapshot.timestamp_ms, max(self.bytes_since - bytes_before, 0))


@dataclass(frozen=True, slots=True)
class LoadedImage:
    """An image and the tail of the log behind it."""

    image: MetadataImage
    tail: LogTail
