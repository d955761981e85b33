"""A root's place on a file system: a directory. For its files see log.py, snapshots.py and housekeeping.py.

Stats tell whether the root and its commits are still there: of the marker file, which another root, or the same one
restored from a backup, has with another inode; and of the file that the image was last read from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata.commit_log import Commit, KnownSnapshot, LoadedImage, OldCommits
from pyspark_kafkalog.metadata.local.housekeeping import Housekeeping
from pyspark_kafkalog.metadata.local.log import LocalCommitLog
from pyspark_kafkalog.metadata.local.snapshots import LocalSnapshots
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.root_format import (
    FORMAT_MARKER,
    check_format_version,
    check_marker,
    metadata_dir,
    other_kind,
    read_marker,
)
from pyspark_kafkalog.metadata.snapshots import LoadedSnapshot
from pyspark_kafkalog.storage.artefacts.marker_files import another_root_error, readable_identity
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, flush_earlier, note_unflushed

_FileState: TypeAlias = tuple[int, int, int]


def _file_state(path: str | Path) -> _FileState | None:
    """Identifies the file at a path, to detect its replacement by another; None if there is no file.

    For files that are never written again. It includes the time of the inode's last change, since inode numbers are
    reused and a copy may preserve the other times.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (found.st_dev, found.st_ino, found.st_ctime_ns)


class LocalPlace:
    """The directory `root`."""

    repeats_creates = False

    def __init__(self, root: Path, *, fs: FileSystem = LOCAL) -> None:
        self.root = root
        self.location = str(root)
        self._real_path = os.path.realpath(root)
        self._marker = metadata_dir(root) / FORMAT_MARKER
        self.opened: object = _file_state(self._marker)
        self.identity = readable_identity(root)
        self.log = LocalCommitLog(metadata_dir(root), fs=fs)
        self._checked_marker: bytes | None = None
        self._fs = fs
        self.snapshots = LocalSnapshots(self.log.directory, fs)
        self._housekeeping = Housekeeping(self.log, self.snapshots, fs)

    def check_root(self, known: object) -> object:
        marker = _file_state(self._marker)
        if marker is not None and marker == known:
            return known
        found = readable_identity(self.root)
        if self.identity is not None and not self.identity.fits(found):
            raise another_root_error(self.root, self.identity, found)
        if self.identity is None or marker is None:
            raise LogDirError(
                f"{self.root} is not the log directory that was opened: "
                "it, or its commit log, was removed or replaced; open it again"
            )
        return marker

    def cache_key(self, known: object) -> object:
        return (known, self._real_path)

    def check_format(self) -> None:
        marker = read_marker(self.log.directory)
        if marker != self._checked_marker:
            check_marker(self.log.directory)
            self._checked_marker = marker

    def check_format_version(self, version: int, file: str, *, is_object_root: bool) -> None:
        check_format_version(version, file)
        if is_object_root:
            raise other_kind(file, expected="a root on a file system", found="one in an object store")

    def state_of(self, loaded: LoadedImage) -> object:
        return _file_state(loaded.tail.last_file)

    def sees_end(self, loaded: LoadedImage) -> bool:
        return False  # a refresh costs less than a commit that loses the race

    def load_newest(self) -> LoadedSnapshot:
        return self.snapshots.load_newest()

    def head(self) -> int | None:
        return self.log.head()

    def publish(
        self,
        loaded: LoadedImage,
        records: Sequence[MetadataRecord],
        *,
        timestamp_ms: int,
        frees_space: bool,
        before_visible: Callable[[], None] | None = None,
    ) -> Commit:
        if self._fs.waits_for_disk:
            flush_earlier(self.root, self._fs)  # a durable commit needs all commits before it on disk
        else:
            note_unflushed(self.root, self._fs)
        base_offset = loaded.image.next_offset
        return self.log.publish(
            base_offset, records, timestamp_ms=timestamp_ms, frees_space=frees_space, before_link=before_visible
        )

    def snapshot_follows(self, loaded: LoadedImage, *, next_bytes: int, now_ms: int) -> bool:
        """See Housekeeping.snapshot_follows."""
        return self._housekeeping.snapshot_follows(loaded, next_bytes=next_bytes, now_ms=now_ms)

    def after_commit(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        return self._housekeeping.after_commit(loaded, now_ms=now_ms)

    def write_due_snapshot(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        return self._housekeeping.write_due_snapshot(loaded, now_ms=now_ms)

    def remove_old_commits(self, loaded: LoadedImage, *, now_ms: int, clock_ms: int, dry_run: bool) -> OldCommits:
        return self._housekeeping.remove_old_commits(loaded, now_ms=now_ms, clock_ms=clock_ms, dry_run=dry_run)
