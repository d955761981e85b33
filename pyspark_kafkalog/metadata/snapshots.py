"""The snapshots of one commit log: finds and loads the newest whole one, and writes the next.

    __cluster_metadata-0/
      kafkalog-newest-snapshot                          names the newest (snapshot_pointer.py)
      00000000000000000194-0000000000.checkpoint        a snapshot (snapshot_file.py)

A damaged snapshot does no harm as long as an older one, or the first commit, exists to start from.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH
from pyspark_kafkalog.metadata.delta import ImageDelta
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.image_records import image_records
from pyspark_kafkalog.metadata.log_tail import KnownSnapshot, LoadedImage, LogTail
from pyspark_kafkalog.metadata.snapshot_file import SnapshotId, read_snapshot, write_snapshot
from pyspark_kafkalog.metadata.snapshot_pointer import read_pointer, write_pointer
from pyspark_kafkalog.storage.filesystem import FileSystem

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """The start for reading a log: an image, empty without a snapshot, and the damage of newer snapshots, if any.

    With `damage`, the commits must reach at least `must_reach`, the end of the damaged snapshots.
    """

    loaded: LoadedImage
    damage: CorruptRecordError | None = None
    must_reach: int = 0


class Snapshots:
    """The snapshots in `directory` of the commit log's only leader epoch; others are ignored."""

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        self._directory = directory
        self._fs = fs

    def path(self, end_offset: int) -> Path:
        """The file of the snapshot at `end_offset`."""
        return self._directory / SnapshotId(end_offset, LEADER_EPOCH).file_name

    def pointed_to(self) -> tuple[int, int] | None:
        """End offset and size in bytes of the snapshot that the pointer names; None if it does not exist."""
        snapshot = read_pointer(self._directory)
        if snapshot is None or not _is_own(snapshot):
            return None
        try:
            return snapshot.end_offset, os.stat(self.path(snapshot.end_offset)).st_size
        except FileNotFoundError:
            return None

    def load_newest(self) -> Start:
        """The image of the newest whole snapshot. Raises OSError, or UnsupportedFormatError."""
        pointed = read_pointer(self._directory)
        if pointed is not None and _is_own(pointed):
            try:
                return Start(self._load(pointed.end_offset))
            except (FileNotFoundError, CorruptRecordError) as error:
                _LOG.warning("the newest metadata snapshot cannot be used, looking for another: %s", error)
        damage: CorruptRecordError | None = None
        must_reach = 0
        for end_offset in sorted(self._listed(), reverse=True):
            try:
                return Start(self._load(end_offset), damage, must_reach)
            except FileNotFoundError:
                continue  # removed meanwhile: the listing is older than a newer snapshot
            except CorruptRecordError as error:
                damage = damage or error
                must_reach = max(must_reach, end_offset)
        return Start(LoadedImage(MetadataImage(), LogTail(self._directory)), damage, must_reach)

    def _listed(self) -> Iterator[int]:
        for name in os.listdir(self._directory):
            snapshot = SnapshotId.parse(name)
            if snapshot is not None and _is_own(snapshot):
                yield snapshot.end_offset

    def _load(self, end_offset: int) -> LoadedImage:
        path = self.path(end_offset)
        snapshot = read_snapshot(path)
        timestamp_ms = snapshot.last_contained_timestamp_ms
        delta = ImageDelta(MetadataImage(), commit_offset=end_offset, timestamp_ms=timestamp_ms)
        try:
            delta.replay(snapshot.records)
        except InvalidRecordError as error:
            raise CorruptRecordError(
                file=str(path), position=0, expected="metadata records that go together", found=str(error)
            ) from error
        known = KnownSnapshot(end_offset, snapshot.size_bytes, timestamp_ms, is_sound=True)
        return LoadedImage(delta.build(end_offset), LogTail(path, known, timestamp_ms))

    def write(self, image: MetadataImage) -> KnownSnapshot:
        """Write the snapshot of `image`, durably, and set the pointer to it. Raises OSError."""
        size_bytes = write_snapshot(
            self.path(image.next_offset),
            image_records(image),
            last_contained_timestamp_ms=image.last_timestamp_ms,
            epoch=LEADER_EPOCH,
            fs=self._fs,
        )
        write_pointer(self._directory, SnapshotId(image.next_offset, LEADER_EPOCH), self._fs)
        return KnownSnapshot(image.next_offset, size_bytes, image.last_timestamp_ms, is_sound=self._fs.waits_for_disk)


def _is_own(snapshot: SnapshotId) -> bool:
    return snapshot.epoch == LEADER_EPOCH and snapshot.end_offset > 0
