"""The name of the newest snapshot: a hint that saves listing the metadata directory when a root is opened.

    __cluster_metadata-0/kafkalog-newest-snapshot     the snapshot's file name and a line end

It is replaced by a rename after the snapshot is written. A crash in between leaves the name of the previous snapshot,
which costs reading more commits. If the file is missing, or names a missing or damaged snapshot, the directory is
listed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark_kafkalog.metadata.snapshot_file import SnapshotId
from pyspark_kafkalog.storage.filesystem import FileSystem, open_to_read

POINTER_FILE: Final = "kafkalog-newest-snapshot"
_MAX_BYTES: Final = 64


def read_pointer(directory: Path) -> SnapshotId | None:
    """The snapshot that the pointer names; None if it names none. Raises OSError if it cannot be read."""
    try:
        with open_to_read(directory / POINTER_FILE) as file:
            data = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return None
    return SnapshotId.parse(data.decode("ascii", errors="replace").removesuffix("\n"))


def write_pointer(directory: Path, snapshot: SnapshotId, fs: FileSystem) -> None:
    """Set the pointer to `snapshot`, durably. Raises OSError."""
    fs.write_file_atomic(directory / POINTER_FILE, f"{snapshot.file_name}\n".encode("ascii"))
