"""Maintenance of the commit log after a commit: write a snapshot if one is due, remove old files, restore the reserve.

The commit is already published, so an error here is only logged, and the next commit tries again. A crash leaves work
for the next commit too.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.commit_log import CommitLog
from pyspark_kafkalog.metadata.commit_retention import CommitRetention
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.log_tail import KnownSnapshot, LoadedImage
from pyspark_kafkalog.metadata.metadata_leftovers import remove_leftovers
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns
from pyspark_kafkalog.metadata.snapshot_schedule import MetadataLogConfig, snapshot_is_due
from pyspark_kafkalog.metadata.snapshots import Snapshots
from pyspark_kafkalog.root.broker_settings import broker_configs
from pyspark_kafkalog.storage.filesystem import FileSystem

#: Minimum age of removed files, as in Kafka. It is much longer than a committer takes to reach its link, so the name
#: that it links to cannot have been used and removed meanwhile.
DELETE_DELAY_MS: Final = 60_000

_LOG: Final = logging.getLogger(__name__)


class Housekeeping:
    """The maintenance of one commit log; thread-safe: while one thread does it, the others skip it."""

    def __init__(self, log: CommitLog, snapshots: Snapshots, fs: FileSystem) -> None:
        self._log = log
        self._directory = log.directory
        self._fs = fs
        self._snapshots = snapshots
        self._retention = CommitRetention(log, snapshots, fs)
        self._lock = threading.Lock()
        self._sound_end_offset = 0  # of the newest snapshot that is known to be whole
        self._properties: Mapping[str, str] | None = None
        self._config: MetadataLogConfig | None = None

    def after_commit(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        """Do the work due as of `loaded`; return the snapshot that was written or found meanwhile, None if none."""
        if not self._lock.acquire(blocking=False):
            return None
        newer: KnownSnapshot | None = None
        try:
            config = self._config_of(loaded.image)
            # Independent steps: a full disk has no room for a snapshot, but removing files frees some.
            if snapshot_is_due(loaded.tail, config, now_ms=now_ms):
                with _noting_failures():
                    newer = self._newer_snapshot(loaded)
                with _noting_failures():
                    now_ns = file_system_time_ns(self._directory.parent, self._fs)
                    remove_leftovers(self._directory, now_ns=now_ns, fs=self._fs)
            for snapshot in (loaded.tail.snapshot, newer):
                if snapshot is not None and snapshot.is_sound:
                    self._sound_end_offset = max(self._sound_end_offset, snapshot.end_offset)
            if config.max_retention_ms >= 0:
                kept_ms = max(config.max_retention_ms, DELETE_DELAY_MS)
                with _noting_failures():
                    self._retention.remove_expired(
                        snapshot_end_offset=self._sound_end_offset, older_than_ms=now_ms - kept_ms
                    )
            with _noting_failures():
                self._log.restore_reserve()
        finally:
            self._lock.release()
        return newer

    def _config_of(self, image: MetadataImage) -> MetadataLogConfig:
        properties = broker_configs(image)
        if self._config is None or properties is not self._properties:
            self._properties, self._config = properties, MetadataLogConfig.from_properties(properties)
        return self._config

    def _newer_snapshot(self, loaded: LoadedImage) -> KnownSnapshot | None:
        """A snapshot that another process has written since the last known one, else a new one.

        The size of the commits after another process's snapshot is unknown and counts as 0, which only delays the next
        snapshot.
        """
        known = loaded.tail.snapshot
        pointed = self._snapshots.pointed_to()
        if pointed is None or pointed[0] <= (0 if known is None else known.end_offset):
            return self._snapshots.write(loaded.image)
        end_offset, size_bytes = pointed
        if end_offset > loaded.image.next_offset:
            return None  # it contains commits that this process has not read
        return KnownSnapshot(end_offset, size_bytes, loaded.image.last_timestamp_ms, is_sound=False)


@contextlib.contextmanager
def _noting_failures() -> Iterator[None]:
    try:
        yield
    except (OSError, KafkalogError) as error:
        _LOG.warning("after a commit, which is made, looking after the metadata log failed: %s", error)
