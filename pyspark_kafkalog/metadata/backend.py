"""What the metadata store needs of the place that a root is at: a directory (local/), or an object store (objects/).

A backend reads and publishes commits, loads the newest snapshot, knows whether the root at its location is still the
one that was opened, and maintains the commit log after a commit. It keeps no image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyspark_kafkalog.metadata.commit_log import Commit, CommitLog, KnownSnapshot, LoadedImage, OldCommits
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.snapshots import LoadedSnapshot, Snapshots
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity


class MetadataBackend(Protocol):
    """One root's place; thread-safe."""

    @property
    def location(self) -> str:
        """The path or URL of the root, for messages."""
        ...

    @property
    def identity(self) -> RootIdentity | None:
        """The identity of the root when it was opened, None if meta.properties is missing or damaged."""
        ...

    @property
    def log(self) -> CommitLog:
        """The commits."""
        ...

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots."""
        ...

    @property
    def opened(self) -> object:
        """What identified the root when it was opened; see `check_root`."""
        ...

    def check_root(self, known: object) -> object:
        """What identifies the root that is at the place now.

        Anything but `known` means that the root was remounted or restored from a backup: its image has to be
        reloaded. Raises LogDirError if another root, or none, is at the place.
        """
        ...

    def cache_key(self, known: object) -> object:
        """Identifies, within this process, the root for which `check_root` returned `known`."""
        ...

    def check_format(self) -> None:
        """Check the format's marker before a commit. Raises UnsupportedFormatError, DiskFormatError, LogDirError."""
        ...

    def check_format_version(self, version: int, file: str, *, is_object_root: bool) -> None:
        """Raise an error with the name of `file` unless roots at such a place may have `version` and be of this kind.

        Raises UnsupportedFormatError, CorruptRecordError for a root of the other kind.
        """
        ...

    def state_of(self, loaded: LoadedImage) -> object:
        """What identifies the file that `loaded` was last read from.

        None if it was removed, so that newer commits may have been, too, without an error of reading them.
        """
        ...

    def sees_end(self, loaded: LoadedImage) -> bool:
        """Whether `loaded` is so surely the newest image that a commit should be tried on it without a refresh."""
        ...

    @property
    def repeats_creates(self) -> bool:
        """Whether `publish` itself tries again until the store's answer is certain, as long as it makes sense."""
        ...

    def load_newest(self) -> LoadedSnapshot:
        """The image of the newest whole snapshot. Raises OSError, or UnsupportedFormatError."""
        ...

    def head(self) -> int | None:
        """An offset that the commit log has certainly reached; None if that is unknown."""
        ...

    def publish(
        self,
        loaded: LoadedImage,
        records: Sequence[MetadataRecord],
        *,
        timestamp_ms: int,
        frees_space: bool,
        before_visible: Callable[[], None] | None = None,
    ) -> Commit:
        """Publish `records` as the commit after `loaded`, with the time `timestamp_ms`, durably.

        `frees_space`: it frees space, so it may use what is reserved for such commits. `before_visible` waits until
        what the commit refers to is on disk; its errors are raised, and no commit is made.

        Raises CommitConflictError if another commit has the offset, OSError if no commit was made,
        CommitStateUnknownError if it may have been made, which reading the log decides, InvalidRecordError for records
        that cannot be encoded.
        """
        ...

    def after_commit(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        """Do the work due as of `loaded`; return the snapshot that was written or found meanwhile, None if none."""
        ...

    def write_due_snapshot(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        """Write a snapshot if one is due as of `loaded`; as after a commit, but errors are raised."""
        ...

    def remove_old_commits(self, loaded: LoadedImage, *, now_ms: int, clock_ms: int, dry_run: bool) -> OldCommits:
        """Remove all commits that are older than the settings say and that a snapshot contains, with their snapshots.

        `now_ms` is the time to use, `clock_ms` that of the clock. With `dry_run` nothing changes: the result says what
        would be removed. Raises OSError, KafkalogError.
        """
        ...
