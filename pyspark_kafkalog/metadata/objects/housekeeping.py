"""Maintenance of an object root's commit log after a commit: write a snapshot if one is due, then remove old objects.

Most commits do nothing of it, and make no request for it. When a snapshot is due (after 64 KiB of commits, of which
inline data counts a sixteenth, or a sixteenth of the last snapshot's size, or an hour), the commit that finds so costs
some requests more: one to see whether another process has written a snapshot, two to write one and its pointer; and for
the removal of old objects one or more to list them and four to remove them. The commit is already published then: an
error is only logged, and the next commit tries again.

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
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH, KnownSnapshot, LoadedImage
from pyspark_kafkalog.metadata.objects.boundary import MIN_RETENTION_MS, Boundary
from pyspark_kafkalog.metadata.objects.layout import parse_commit_key, parse_snapshot_key, snapshot_key
from pyspark_kafkalog.metadata.objects.snapshots import ObjectSnapshots
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.snapshots import CurrentMetadataLogConfig, SnapshotId, snapshot_is_due
from pyspark_kafkalog.object_store.store import ObjectMetadata, ObjectStore

_LOG: Final = logging.getLogger(__name__)

#: Requests cost, bytes hardly: snapshots are written more often than on a file system, so that opening a root takes few
#: requests also while the image is large.
_SNAPSHOT_SHARE: Final = 16

#: Objects looked at in one run; a snapshot is due after fewer commits.
_OBJECTS_A_RUN: Final = 2_000


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
                kept_ms = max(config.max_retention_ms, MIN_RETENTION_MS)
                self._remove_expired(newer, loaded.image.objects.lowest_inline_commit, kept_ms=kept_ms)
        except (OSError, KafkalogError) as error:
            _LOG.warning("metadata housekeeping failed after a successful commit, a later one tries again: %s", error)
        finally:
            self._lock.release()
        return newer

    def _remove_expired(self, snapshot: KnownSnapshot, lowest_inline: int | None, *, kept_ms: int) -> None:
        """Remove the oldest commits, as far as `snapshot` contains them and they are older than `kept_ms`.

        `lowest_inline`: the oldest commit that holds data of its write which was not merged yet; None without one.
        """
        newest = self._store.head(snapshot_key(SnapshotId(snapshot.end_offset, LEADER_EPOCH)))
        listed = list(islice(self._store.list_objects(METADATA_DIR), _OBJECTS_A_RUN))
        older_than_ms = newest.last_modified_ms - kept_ms
        start = self._first_kept(listed, snapshot.end_offset, older_than_ms)
        commits_start = start if lowest_inline is None else min(start, lowest_inline)
        removed = [each.key for each in listed if _is_below(each.key, commits_start, start)]
        if removed or not self._boundary.is_stored:
            self._boundary.move(commits_start)
            self._store.delete(removed)

    def _first_kept(self, listed: Sequence[ObjectMetadata], snapshot_end_offset: int, older_than_ms: int) -> int:
        """The base offset of the oldest commit that stays."""
        commits = [(parse_commit_key(each.key), each.last_modified_ms) for each in listed]
        known = [(offset, modified_ms) for offset, modified_ms in commits if offset is not None]
        start = self._boundary.offset
        for (offset, modified_ms), (next_offset, _) in pairwise(known):
            if offset >= start:
                if modified_ms >= older_than_ms or next_offset >= snapshot_end_offset:
                    break
                start = next_offset
        return start


def _is_below(key: str, commits_start: int, snapshots_start: int) -> bool:
    offset = parse_commit_key(key)
    snapshot = parse_snapshot_key(key)
    is_old_commit = offset is not None and offset < commits_start
    return is_old_commit or (snapshot is not None and snapshot.end_offset < snapshots_start)
