"""What a committer does for the metadata log after its commit: a snapshot when one is due, old files, the reserve.

The commit is published by then. An error here is logged and ends nothing: whoever commits next tries again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.broker_configs import broker_configs
from pyspark_kafkalog.metadata.commit_log import CommitLog
from pyspark_kafkalog.metadata.commit_retention import CommitRetention
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.log_tail import KnownSnapshot, LoadedImage
from pyspark_kafkalog.metadata.metadata_leftovers import remove_leftovers
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns
from pyspark_kafkalog.metadata.snapshot_schedule import MetadataLogConfig, snapshot_is_due
from pyspark_kafkalog.metadata.snapshots import Snapshots
from pyspark_kafkalog.storage.filesystem import FileSystem

#: No file goes younger than this, as with Kafka. A committer has long come to its link by then: the name it links to
#: must not have been taken and become free again meanwhile.
DELETE_DELAY_MS: Final = 60_000

_LOG: Final = logging.getLogger(__name__)


class Housekeeping:
    """Of one commit log. Threads may share it: while one is at it, the others go on without."""

    def __init__(self, log: CommitLog, snapshots: Snapshots, fs: FileSystem) -> None:
        self._log = log
        self._directory = log.directory
        self._fs = fs
        self._snapshots = snapshots
        self._retention = CommitRetention(log, snapshots, fs)
        self._lock = threading.Lock()
        self._sound_end_offset = 0  # of the newest snapshot that is sure to be there whole
        self._properties: Mapping[str, str] | None = None
        self._config: MetadataLogConfig | None = None

    def after_commit(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        """Do what is due as of `loaded`; the snapshot that was made or found meanwhile, None when there was none."""
        if not self._lock.acquire(blocking=False):
            return None
        newer: KnownSnapshot | None = None
        try:
            config = self._config_of(loaded.image)
            # Each by itself: a full disk has no room for a snapshot, and what is removed makes some.
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
        """One that another process has written since this process last knew of one, else a new one.

        How much was committed after another's is not known here: that counts as nothing, and the next one comes later.
        """
        known = loaded.tail.snapshot
        pointed = self._snapshots.pointed_to()
        if pointed is None or pointed[0] <= (0 if known is None else known.end_offset):
            return self._snapshots.write(loaded.image)
        end_offset, size_bytes = pointed
        if end_offset > loaded.image.next_offset:
            return None  # of commits that this process has not seen
        return KnownSnapshot(end_offset, size_bytes, loaded.image.last_timestamp_ms, is_sound=False)


@contextlib.contextmanager
def _noting_failures() -> Iterator[None]:
    try:
        yield
    except (OSError, KafkalogError) as error:
        _LOG.warning("after a commit, which is made, looking after the metadata log failed: %s", error)
