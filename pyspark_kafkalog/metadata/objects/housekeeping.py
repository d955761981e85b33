"""Maintenance of an object root's commit log after a commit: write a snapshot if one is due, then remove old objects.

Most commits do nothing of it, and make no request for it. When a snapshot is due (after 64 KiB of commits, of which
inline data counts a sixteenth, or a sixteenth of the last snapshot's size, or an hour), the commit that finds so costs
some requests more: one to see whether another process has written a snapshot, two to write one and its pointer; and for
the removal of old objects one or more to list them and four to remove them. The commit is already published then: an
error is only logged, and the next commit tries again.

The retention job removes all that is due at once, since a root at rest has no commits that could do it. There the time
is that of the newest commit or snapshot: the job's own commits, one in staging.retention.ms, move it on.

*Retention.* A commit is removed once it is older than metadata.max.retention.ms, an hour at least, and a snapshot
contains its records, unless it, or one before it, holds data of its write that was not merged yet (inline data,
metadata/extents.py); older snapshots with it. Ages are differences of times that the store gave. The newest snapshot
and the last commit in it are kept. The boundary moves first (boundary.py), then the objects are deleted; each run
begins with the first name in the folder, and so removes what a crash in between has left, and commits that do not
count.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH, KnownSnapshot, LoadedImage, OldCommits
from pyspark_kafkalog.metadata.objects.boundary import MIN_RETENTION_MS, Boundary
from pyspark_kafkalog.metadata.objects.layout import parse_commit_key, parse_snapshot_key, snapshot_key
from pyspark_kafkalog.metadata.objects.snapshots import ObjectSnapshots
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.snapshots import CurrentMetadataLogConfig, MetadataLogConfig, SnapshotId, snapshot_is_due
from pyspark_kafkalog.object_store.store import ObjectMetadata, ObjectStore

_LOG: Final = logging.getLogger(__name__)

#: Requests cost, bytes hardly: snapshots are written more often than on a file system, so that opening a root takes few
#: requests also while the image is large.
_SNAPSHOT_SHARE: Final = 16

#: Objects looked at in one run; a snapshot is due after fewer commits.
_OBJECTS_A_RUN: Final = 2_000
#: Objects that are deleted after one move of the boundary.
_DELETED_AT_ONCE: Final = 10_000


class ObjectHousekeeping:
    """The maintenance of one commit log; thread-safe: while one thread does it, the others skip it."""

    def __init__(self, store: ObjectStore, boundary: Boundary, snapshots: ObjectSnapshots) -> None:
        self._store = store
        self._boundary = boundary
        self._snapshots = snapshots
        self._lock = threading.Lock()
        self._config = CurrentMetadataLogConfig()

    def after_commit(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        """Do the work due as of `loaded`; return the snapshot that was written or found meanwhile, None if none."""
        config = self._config.of(loaded.image)
        is_due = snapshot_is_due(loaded.tail, config, now_ms=now_ms, snapshot_share=_SNAPSHOT_SHARE)
        if not is_due or not self._lock.acquire(blocking=False):
            return None
        newer: KnownSnapshot | None = None
        try:
            newer = self._snapshots.write_newer(loaded)
            if newer is not None and newer.is_sound and config.max_retention_ms >= 0:
                newest = self._store.head(snapshot_key(SnapshotId(newer.end_offset, LEADER_EPOCH)))
                older_than_ms = newest.last_modified_ms - _kept_ms(config)
                listed = islice(self._store.list_objects(METADATA_DIR), _OBJECTS_A_RUN)
                self._remove(self._expired(listed, newer.end_offset, older_than_ms), _lowest_inline(loaded))
        except (OSError, KafkalogError) as error:
            _LOG.warning("metadata housekeeping failed after a successful commit, a later one tries again: %s", error)
        finally:
            self._lock.release()
        return newer

    def write_due_snapshot(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        """See MetadataPlace.write_due_snapshot."""
        config = self._config.of(loaded.image)
        is_due = snapshot_is_due(loaded.tail, config, now_ms=now_ms, snapshot_share=_SNAPSHOT_SHARE)
        return self._snapshots.write_newer(loaded) if is_due else None

    def remove_old_commits(self, loaded: LoadedImage, *, now_ms: int, clock_ms: int, dry_run: bool) -> OldCommits:
        """See MetadataPlace.remove_old_commits: 1 HEAD and 1 LIST if there is nothing to remove.

        Only a dry run, which changes nothing, goes by the time given: it says what the next commit would allow.
        """
        config = self._config.of(loaded.image)
        known = loaded.tail.snapshot
        end_offset = 0 if known is None else known.end_offset
        if dry_run and snapshot_is_due(loaded.tail, config, now_ms=clock_ms, snapshot_share=_SNAPSHOT_SHARE):
            end_offset = loaded.image.next_offset
        if config.max_retention_ms < 0 or not end_offset:
            return OldCommits()
        time_ms = now_ms if dry_run else self._written_ms(loaded, end_offset)
        expired = self._expired(self._store.list_objects(METADATA_DIR), end_offset, time_ms - _kept_ms(config))
        first = next(expired, None)
        if first is not None and known is not None and not known.is_sound and not dry_run:
            self._snapshots.check(end_offset)
        return self._remove(chain([] if first is None else [first], expired), _lowest_inline(loaded), dry_run=dry_run)

    def _written_ms(self, loaded: LoadedImage, snapshot_end_offset: int) -> int:
        """When the last commit, or the snapshot that contains it, was put, by the store's clock."""
        key = loaded.tail.last_file.removeprefix(f"{self._store.url}/")
        if parse_commit_key(key) is None:
            key = snapshot_key(SnapshotId(snapshot_end_offset, LEADER_EPOCH))
        return self._store.head(key).last_modified_ms

    def _remove(self, expired: Iterator[_Expired], lowest_inline: int | None, *, dry_run: bool = False) -> OldCommits:
        """Remove the objects, some at a time; the boundary moves first.

        `lowest_inline`: the oldest commit that holds data of its write which was not merged yet; None without one.
        """
        removed = OldCommits()
        while some := list(islice(expired, _DELETED_AT_ONCE)):
            start = some[-1].start if lowest_inline is None else min(some[-1].start, lowest_inline)
            gone = [each for each in some if each.commit is None or each.commit < start]
            commits = [each for each in gone if each.commit is not None]
            size_bytes = sum(each.size_bytes for each in commits)
            removed = OldCommits(removed.count + len(commits), removed.size_bytes + size_bytes, start)
            if gone and not dry_run:
                self._boundary.move(start)
                self._store.delete([each.key for each in gone])
        if not dry_run and not self._boundary.is_stored:
            self._boundary.move(self._boundary.offset)
        return removed

    def _expired(
        self, listed: Iterable[ObjectMetadata], snapshot_end_offset: int, older_than_ms: int
    ) -> Iterator[_Expired]:
        """The commits that the snapshot contains and that are older, up to the first that is not, and their snapshots.

        `listed` are objects in the order of their keys: a snapshot comes before the commit that begins where it ends.
        """
        start = self._boundary.offset
        last: tuple[int, ObjectMetadata] | None = None
        snapshots: list[tuple[int, ObjectMetadata]] = []
        for each in listed:
            offset, snapshot = parse_commit_key(each.key), parse_snapshot_key(each.key)
            if snapshot is not None:
                snapshots.append((snapshot.end_offset, each))
            if offset is None:
                continue
            if last is not None:
                if last[0] >= start:
                    if last[1].last_modified_ms >= older_than_ms or offset >= snapshot_end_offset:
                        return
                    start = offset
                yield _Expired(last[1].key, last[1].size_bytes, last[0], start)
                old = [known for end, known in snapshots if end < start]
                snapshots = [known for known in snapshots if known[0] >= start]
                yield from (_Expired(known.key, known.size_bytes, None, start) for known in old)
            last = offset, each


@dataclass(frozen=True, slots=True)
class _Expired:
    """An object to remove, if `start` becomes the oldest commit: the commit at that offset, None for a snapshot."""

    key: str
    size_bytes: int
    commit: int | None
    start: int


def _kept_ms(config: MetadataLogConfig) -> int:
    return max(config.max_retention_ms, MIN_RETENTION_MS)


def _lowest_inline(loaded: LoadedImage) -> int | None:
    return loaded.image.objects.lowest_inline_commit
