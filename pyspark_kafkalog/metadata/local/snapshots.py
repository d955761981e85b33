"""The snapshots of a commit log on a file system, and the pointer to the newest.

A snapshot is written under a name that ends in `.checkpoint.part`, fsynced and renamed, so it is complete or does not
exist; a `.part` file that a crash leaves is never read. The pointer is replaced by a rename after that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH, KnownSnapshot
from pyspark_kafkalog.metadata.image import MetadataImage, image_records
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.snapshots import (
    MAX_SNAPSHOT_BYTES,
    POINTER_FILE,
    Snapshot,
    SnapshotId,
    Snapshots,
    decode_snapshot,
    encode_snapshot,
    is_native,
    too_large,
)
from pyspark_kafkalog.storage.below_root import scan
from pyspark_kafkalog.storage.filesystem import FileSystem, open_to_read
from pyspark_kafkalog.storage.names import CHECKPOINT_SUFFIX

_POINTER_MAX_BYTES: Final = 64


class LocalSnapshots(Snapshots):
    """The snapshots in `directory`."""

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        self._directory = directory
        self._fs = fs

    @property
    def location(self) -> str:
        return str(self._directory)

    def path(self, end_offset: int) -> Path:
        """The file of the snapshot at `end_offset`."""
        return self._directory / SnapshotId(end_offset, LEADER_EPOCH).file_name

    def name_of(self, end_offset: int) -> str:
        return str(self.path(end_offset))

    def pointed_to(self) -> SnapshotId | None:
        return read_pointer(self._directory)

    def pointed_to_with_size(self) -> tuple[SnapshotId, int] | None:
        pointed = self.pointed_to()
        if pointed is None or not is_native(pointed):
            return None
        try:
            return pointed, os.stat(self._directory / pointed.file_name).st_size
        except FileNotFoundError:
            return None

    def listed(self) -> list[SnapshotId]:
        return list_snapshots(self._directory)

    def read(self, end_offset: int) -> Snapshot:
        return read_snapshot(self.path(end_offset))

    def write(self, image: MetadataImage) -> KnownSnapshot:
        size_bytes = write_snapshot(
            self.path(image.next_offset),
            image_records(image),
            last_contained_timestamp_ms=image.last_timestamp_ms,
            epoch=LEADER_EPOCH,
            fs=self._fs,
        )
        write_pointer(self._directory, SnapshotId(image.next_offset, LEADER_EPOCH), self._fs)
        return KnownSnapshot(image.next_offset, size_bytes, image.last_timestamp_ms, is_sound=True)

    def flush(self, end_offset: int) -> None:
        """Wait until the snapshot at `end_offset`, whichever process has written it, and the pointer are on disk.

        A pointer that a crash left out is written. Raises OSError.
        """
        fs = self._fs.waiting
        _flush(self.path(end_offset), fs)
        try:
            _flush(self._directory / POINTER_FILE, fs)
        except FileNotFoundError:
            write_pointer(self._directory, SnapshotId(end_offset, LEADER_EPOCH), fs)
        fs.fsync_dir(self._directory)


def _flush(path: Path, fs: FileSystem) -> None:
    fd = fs.open(path, os.O_RDONLY)
    try:
        fs.fsync(fd)
    finally:
        fs.close(fd, path)


def list_snapshots(directory: Path) -> list[SnapshotId]:
    """The snapshots of the commit log in `directory`, oldest first. Raises OSError."""
    found = (SnapshotId.parse(entry.name) for entry in scan(directory))
    return sorted(snapshot for snapshot in found if snapshot is not None and is_native(snapshot))


def read_pointer(directory: Path) -> SnapshotId | None:
    """The snapshot that the pointer names; None if it names none. Raises OSError if it cannot be read."""
    try:
        with open_to_read(directory / POINTER_FILE) as file:
            data = file.read(_POINTER_MAX_BYTES)
    except FileNotFoundError:
        return None
    return SnapshotId.parse(data.decode("ascii", errors="replace").removesuffix("\n"))


def write_pointer(directory: Path, snapshot: SnapshotId, fs: FileSystem) -> None:
    """Set the pointer to `snapshot`, durably. Raises OSError."""
    fs.write_file_atomic(directory / POINTER_FILE, f"{snapshot.file_name}\n".encode("ascii"))


def write_snapshot(
    path: Path, records: Iterable[MetadataRecord], *, last_contained_timestamp_ms: int, epoch: int, fs: FileSystem
) -> int:
    """Write the snapshot `path`, durably, and replace an existing one; return its size in bytes.

    Raises OSError, in which case no snapshot was written; InvalidRecordError for records that cannot be encoded.
    """
    batches = encode_snapshot(records, last_contained_timestamp_ms=last_contained_timestamp_ms, epoch=epoch)
    temporary = path.with_name(f"{path.name.removesuffix(CHECKPOINT_SUFFIX)}-{os.urandom(8).hex()}.checkpoint.part")
    fd = fs.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            size_bytes = 0
            for batch in batches:
                fs.pwrite_all(fd, batch, size_bytes)
                size_bytes += len(batch)
            fs.fsync(fd)
        finally:
            fs.close(fd)
        fs.rename(temporary, path)
    except Exception:
        with contextlib.suppress(OSError):
            fs.unlink_if_there(temporary)
        raise
    fs.fsync_dir(path.parent)
    return size_bytes


def read_snapshot(path: Path) -> Snapshot:
    """Read the snapshot `path`. Raises CorruptRecordError, UnsupportedFormatError, or OSError if it is unreadable."""
    with open_to_read(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > MAX_SNAPSHOT_BYTES:
            raise too_large(str(path), size_bytes)
        data = file.read(size_bytes)  # bounded: MAX_SNAPSHOT_BYTES, above
    return decode_snapshot(data, str(path))
