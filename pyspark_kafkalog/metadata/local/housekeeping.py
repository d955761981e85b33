"""Maintenance of the commit log after a commit: write a snapshot if one is due, remove old files, restore the reserve.

    __cluster_metadata-0/kafkalog-start     hint: the oldest commit that still exists (offset_hint.py)

The commit is already published, so an error here is only logged, and the next commit tries again. A crash leaves work
for the next commit too.

*Retention.* A commit file is removed when it is older than metadata.max.retention.ms and a snapshot contains its
records; the older snapshot that ends where the commit begins is removed before it. The newest snapshot is kept, and so
is the last commit in it: a reader whose last file no longer exists has to reload from a snapshot. Files are removed
oldest first, so a crash leaves no gaps. A snapshot must be on disk before: where commits do not wait for that, a thread
flushes it. Each commit removes at most a few files, found by name from one to the next, so the cost does not depend on
the length of the history. The hint is written after a file has been removed. After a crash in between, it names a file
that does not exist, and the directory is listed once.

A root at rest has no commits that could do this. So the retention job removes all that is due in one go, in the same
order, with a hint for each thousand files; it takes a snapshot before, if one is due, and flushes it in any case.

*Leftovers.* Files that killed processes left half-written are removed once they are an hour old by the clock of the
file system, since no process can still be writing them; nothing reads them. The search follows each snapshot and covers
the first few thousand names in the directory, so a long history costs no more than a short one.

    <name>.<hex>.tmp                                        a commit before its link, a small file before its rename
    00000000000000000194-0000000000-<hex>.checkpoint.part   a snapshot before its rename
"""

from __future__ import annotations

import logging
import os
import re
import threading
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.commit_log import KnownSnapshot, LoadedImage, OldCommits
from pyspark_kafkalog.metadata.local.log import CommitRange, LocalCommitLog
from pyspark_kafkalog.metadata.local.offset_hint import OffsetHint
from pyspark_kafkalog.metadata.local.snapshots import LocalSnapshots
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns
from pyspark_kafkalog.metadata.snapshots import CurrentMetadataLogConfig, snapshot_is_due
from pyspark_kafkalog.storage.below_root import scan
from pyspark_kafkalog.storage.filesystem import FileSystem, in_background

#: Minimum age of removed files, as in Kafka. It is much longer than a committer takes to reach its link, so the name
#: that it links to cannot have been used and removed meanwhile.
DELETE_DELAY_MS: Final = 60_000

START_FILE: Final = "kafkalog-start"

_LOG: Final = logging.getLogger(__name__)
_FILES_A_COMMIT: Final = 4
_FILES_A_HINT: Final = 1_000
_SOON_MS: Final = 1000
_LEFTOVER_NAMES_MAX: Final = 4_000
_LEFTOVER_AGE_NS: Final = 3_600_000_000_000
_LEFTOVER = re.compile(r".+\.[0-9a-f]{16}\.tmp|\d{20}-\d{10}-[0-9a-f]+\.checkpoint\.part")


def is_leftover(name: str) -> bool:
    """Whether a file in the metadata directory has a name that only a process that is writing it gives it."""
    return _LEFTOVER.fullmatch(name) is not None


class Housekeeping:
    """The maintenance of one commit log; thread-safe: while one thread does it, the others skip it."""

    def __init__(self, log: LocalCommitLog, snapshots: LocalSnapshots, fs: FileSystem) -> None:
        self._log = log
        self._directory = log.directory
        self._fs = fs
        self._snapshots = snapshots
        self._retention = CommitRetention(log, snapshots, fs)
        self._lock = threading.Lock()
        self._whole_end_offset = 0  # of the newest snapshot that is known to be whole
        self._durable_end_offset = 0  # of the newest one that is known to be on disk too
        self._config = CurrentMetadataLogConfig()

    def snapshot_follows(self, loaded: LoadedImage, *, next_bytes: int, now_ms: int) -> bool:
        """Whether a snapshot would follow a commit of at most `next_bytes` at `now_ms`, or soon after."""
        config = self._config.of(loaded.image)
        return snapshot_is_due(loaded.tail, config, now_ms=now_ms + _SOON_MS, next_bytes=next_bytes)

    def after_commit(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        """Do the work due as of `loaded`; return the snapshot that was written or found meanwhile, None if none."""
        if not self._lock.acquire(blocking=False):
            return None
        newer: KnownSnapshot | None = None
        try:
            config = self._config.of(loaded.image)
            # Independent steps: a full disk has no room for a snapshot, but removing files frees some.
            if snapshot_is_due(loaded.tail, config, now_ms=now_ms):
                with _LOGGING_FAILURES:
                    newer = self._snapshots.write_newer(loaded)
                with _LOGGING_FAILURES:
                    now_ns = file_system_time_ns(self._directory.parent, self._fs)
                    remove_leftovers(self._directory, now_ns=now_ns, fs=self._fs)
            for snapshot in (loaded.tail.snapshot, newer):
                if snapshot is not None and snapshot.is_sound and snapshot.end_offset > self._whole_end_offset:
                    self._make_durable(snapshot.end_offset)
            if config.max_retention_ms >= 0:
                kept_ms = max(config.max_retention_ms, DELETE_DELAY_MS)
                with _LOGGING_FAILURES:
                    self._retention.remove_expired(
                        snapshot_end_offset=self._durable_end_offset, older_than_ms=now_ms - kept_ms
                    )
            with _LOGGING_FAILURES:
                self._log.restore_reserve()
        finally:
            self._lock.release()
        return newer

    def write_due_snapshot(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        """See MetadataPlace.write_due_snapshot."""
        is_due = snapshot_is_due(loaded.tail, self._config.of(loaded.image), now_ms=now_ms)
        return self._snapshots.write_newer(loaded) if is_due else None

    def remove_old_commits(self, loaded: LoadedImage, *, now_ms: int, clock_ms: int, dry_run: bool) -> OldCommits:
        """See MetadataPlace.remove_old_commits. Beside commits, which may remove the same files meanwhile."""
        config = self._config.of(loaded.image)
        known = loaded.tail.snapshot
        end_offset = 0 if known is None else known.end_offset
        if dry_run and snapshot_is_due(loaded.tail, config, now_ms=clock_ms):
            end_offset = loaded.image.next_offset
        if config.max_retention_ms < 0 or not end_offset:
            return OldCommits()
        # A time ahead of the clock makes no commit old enough for the delay.
        older_than_ms = min(now_ms - config.max_retention_ms, clock_ms - DELETE_DELAY_MS)
        retention = CommitRetention(self._log, self._snapshots, self._fs)  # of its own: commits keep using theirs
        if dry_run:
            return retention.remove_all_expired(end_offset, older_than_ms, dry_run=True)
        if not retention.has_expired(end_offset, older_than_ms) or known is None:
            return OldCommits()
        if not known.is_sound:
            self._snapshots.check(end_offset)
        self._snapshots.flush(end_offset)
        return retention.remove_all_expired(end_offset, older_than_ms)

    def _make_durable(self, end_offset: int) -> None:
        """Have the snapshot flushed. A commit that waits for the disk has flushed all that was written before it."""
        self._whole_end_offset = end_offset
        if self._fs.waits_for_disk:
            self._durable_end_offset = end_offset
        else:
            in_background(partial(self._flush, end_offset))

    def _flush(self, end_offset: int) -> None:
        with _LOGGING_FAILURES:
            self._snapshots.flush(end_offset)
            self._durable_end_offset = max(self._durable_end_offset, end_offset)


class _LoggingFailures:
    """Logs an error of the block, which ends there."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, (OSError, KafkalogError)):
            return False
        _LOG.warning("metadata housekeeping failed after a successful commit, the next commit tries again: %s", error)
        return True


_LOGGING_FAILURES: Final = _LoggingFailures()


class CommitRetention:
    """Removes the oldest commits of `log`, with their snapshots."""

    def __init__(self, log: LocalCommitLog, snapshots: LocalSnapshots, fs: FileSystem) -> None:
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
            oldest = self._oldest = self._oldest or self._find_oldest()
            if oldest is None or not _is_expired(oldest, snapshot_end_offset, older_than_ms):
                return
            self._remove(oldest)

    def has_expired(self, snapshot_end_offset: int, older_than_ms: int) -> bool:
        """Whether there is a commit to remove. Raises as `remove_expired`."""
        oldest = self._find_oldest()
        return oldest is not None and _is_expired(oldest, snapshot_end_offset, older_than_ms)

    def remove_all_expired(self, snapshot_end_offset: int, older_than_ms: int, *, dry_run: bool = False) -> OldCommits:
        """As `remove_expired`, but all of them; with `dry_run` only say which. Raises as that does."""
        removed = OldCommits()
        oldest = self._find_oldest(with_hint=not dry_run)
        while oldest is not None and _is_expired(oldest, snapshot_end_offset, older_than_ms):
            removed = OldCommits(removed.count + 1, removed.size_bytes + oldest.size_bytes, oldest.next_offset)
            if not dry_run:
                self._fs.unlink_if_there(self._snapshots.path(oldest.base_offset))
                self._fs.unlink_if_there(self._log.path(oldest.base_offset))
                if removed.count % _FILES_A_HINT == 0:
                    self._start.write(oldest.next_offset)
            # Another process may remove the next one first.
            oldest = self._log.read_range(oldest.next_offset) or self._find_oldest(with_hint=not dry_run)
        if removed.count and not dry_run:
            self._start.write(removed.start_offset)
        return removed

    def _remove(self, oldest: CommitRange) -> None:
        self._oldest = None
        self._fs.unlink_if_there(self._snapshots.path(oldest.base_offset))
        try:
            self._fs.unlink(self._log.path(oldest.base_offset))
        except FileNotFoundError:
            return  # another process removed it first, and writes the hint
        self._start.write(oldest.next_offset)
        self._oldest = self._log.read_range(oldest.next_offset)

    def _find_oldest(self, *, with_hint: bool = True) -> CommitRange | None:
        """The oldest commit; if the directory had to be listed, the hint is written, unless without `with_hint`."""
        found = self._log.read_range(self._start.read() or 0)
        if found is None:
            first = min(self._log.listed_offsets(), default=None)
            if first is None:
                return None
            if with_hint:
                self._start.write(first)
            found = self._log.read_range(first)
        return found


def _is_expired(commit: CommitRange, snapshot_end_offset: int, older_than_ms: int) -> bool:
    return commit.next_offset < snapshot_end_offset and commit.timestamp_ms < older_than_ms


def remove_leftovers(directory: Path, *, now_ns: int, fs: FileSystem) -> None:
    """Remove leftovers last written more than an hour before `now_ns`, the file system's time. Raises OSError."""
    entries = islice(scan(directory), _LEFTOVER_NAMES_MAX)
    names = [entry.name for entry in entries if is_leftover(entry.name)]
    for name in names:
        path = directory / name
        try:
            written_ns = os.stat(path).st_mtime_ns
        except FileNotFoundError:
            continue  # its process still renamed it, or another process removed it first
        if now_ns - written_ns > _LEFTOVER_AGE_NS:
            fs.unlink_if_there(path)
