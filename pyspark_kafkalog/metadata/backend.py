"""What the metadata store needs of the place that a root is at: a directory (local/), or an object store (objects/).

A backend reads and publishes commits, loads the newest snapshot, knows whether the root at its location is still the
one that was opened, and maintains the commit log after a commit: it writes a snapshot if one is due, then removes old
files or objects. The commit is already published then, so an error is only logged, and a later commit tries again. A
backend keeps no image.

A snapshot is due once the commits since the last one take as many bytes as it does, 64 KiB at least and
metadata.log.max.record.bytes.between.snapshots at most; or, with a new commit, once
metadata.log.max.snapshot.interval.ms has passed. So reading a root's commits never takes much longer than reading its
snapshot, and snapshots are at most half of the bytes of the metadata log.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, auto
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from pyspark_kafkalog.config.broker import BROKER_CONFIGS
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.commit_log import (
    Commit,
    CommitLog,
    CommitLogTail,
    KnownSnapshot,
    LoadedImage,
    OldCommits,
)
from pyspark_kafkalog.metadata.image import MetadataImage, broker_configs
from pyspark_kafkalog.metadata.messages.metadata_records import CommitRecord, MetadataRecord
from pyspark_kafkalog.metadata.snapshots import LoadedSnapshot, Snapshots
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
from pyspark_kafkalog.values import dataclass

_LOG: Final = logging.getLogger(__name__)


class Look(Enum):
    """How a writer looks at the log before it commits: the cheaper, the less it finds."""

    #: Not at all.
    NONE = auto()
    #: It takes what the lost race has shown.
    KNOWN = auto()
    #: It asks for the next commit.
    NEXT = auto()
    #: It reads the later commits, and lists them if that is quicker.
    FAR = auto()
    #: It lists the later commits, and the claims of other writers.
    LISTED = auto()


class Pause(NamedTuple):
    """A writer waits so long, then looks at the log."""

    seconds: float
    look: Look


_MIN_BYTES_BETWEEN_SNAPSHOTS: Final = 64 << 10
_FIRST_BACK_OFF_SECONDS: Final = 0.002
_LONGEST_BACK_OFF_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class MetadataLogConfig:
    """The metadata.* settings: bytes and ms between snapshots, ms that old files are kept."""

    max_bytes_between_snapshots: int
    max_snapshot_interval_ms: int
    max_retention_ms: int

    @staticmethod
    def from_properties(properties: Mapping[str, str]) -> MetadataLogConfig:
        """Parse the three of a broker's `properties`. Raises InvalidConfigError."""
        return MetadataLogConfig(
            _setting(properties, "metadata.log.max.record.bytes.between.snapshots"),
            _setting(properties, "metadata.log.max.snapshot.interval.ms"),
            _setting(properties, "metadata.max.retention.ms"),
        )


class CurrentMetadataLogConfig:
    """The metadata.* settings as of an image, parsed again only after they were changed."""

    def __init__(self) -> None:
        self._parsed: tuple[Mapping[str, Mapping[str, str]], MetadataLogConfig] | None = None

    def of(self, image: MetadataImage) -> MetadataLogConfig:
        """The settings in `image`. Raises InvalidConfigError."""
        if self._parsed is None or image.broker_configs is not self._parsed[0]:
            self._parsed = image.broker_configs, MetadataLogConfig.from_properties(broker_configs(image))
        return self._parsed[1]


def _setting(properties: Mapping[str, str], name: str) -> int:
    definition = BROKER_CONFIGS[name]
    value = definition.parse(properties[name]) if name in properties else definition.default
    assert isinstance(value, int)
    return value


def snapshot_is_due(
    tail: CommitLogTail, config: MetadataLogConfig, *, now_ms: int, snapshot_share: int = 1, next_bytes: int = 0
) -> bool:
    """Whether the log behind `tail`, which ends with a commit, calls for a snapshot at time `now_ms`.

    The commits since the last snapshot may take 1 / `snapshot_share` of its bytes. With `next_bytes` it is asked about
    the log after another commit of this size.
    """
    bytes_since = tail.bytes_since + next_bytes
    if not bytes_since:
        return False
    last_bytes = 0 if tail.snapshot is None else tail.snapshot.size_bytes // snapshot_share
    if bytes_since >= min(config.max_bytes_between_snapshots, max(_MIN_BYTES_BETWEEN_SNAPSHOTS, last_bytes)):
        return True
    return 0 < config.max_snapshot_interval_ms <= now_ms - tail.since_ms


_NO_TURN: Final = nullcontext()


class _LoggingFailures:
    """Logs an error of the block, which ends there."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, (OSError, KafkalogError)):
            return False
        _LOG.warning("metadata housekeeping failed after a successful commit, the next commit tries again: %s", error)
        return True


LOGGING_FAILURES: Final = _LoggingFailures()


class MetadataBackend(ABC):
    """One root's backend; thread-safe: while one thread maintains the commit log, the others skip that.

    - `location`: the path or URL of the root, for messages
    - `identity`: the identity of the root when it was opened, None if meta.properties is missing or damaged
    - `opened`: what identified the root when it was opened; see `check_root`
    """

    #: Whether `publish` itself tries again until the store's answer is certain, as long as it makes sense.
    repeats_creates: ClassVar[bool]
    #: The commits since the last snapshot may take this part of its bytes.
    snapshot_share: ClassVar[int] = 1
    #: Whether there is work after commits behind which no snapshot is due.
    maintains_each_commit: ClassVar[bool]

    location: str
    identity: RootIdentity | None
    opened: object

    def __init__(self, log: CommitLog, snapshots: Snapshots) -> None:
        self.log = log
        self.snapshots = snapshots
        self._maintaining = threading.Lock()
        self._config = CurrentMetadataLogConfig()

    @abstractmethod
    def check_root(self, known: object) -> object:
        """What identifies the root that is at the place now.

        Anything but `known` means that the root was remounted or restored from a backup: its image has to be
        reloaded. Raises LogDirError if another root, or none, is at the place.
        """

    @abstractmethod
    def cache_key(self, known: object) -> object:
        """Identifies, within this process, the root for which `check_root` returned `known`."""

    @abstractmethod
    def check_format(self, known: object) -> bool:
        """Check the format's marker before a commit; returns whether it is that of the root `known`: see `check_root`.

        Raises UnsupportedFormatError, DiskFormatError, LogDirError.
        """

    @abstractmethod
    def check_image(self, image: MetadataImage, file: str) -> None:
        """Raise an error with the name of `file` unless roots at such a place may have the format of `image`.

        Raises UnsupportedFormatError, CorruptRecordError for a root of the other kind.
        """

    @abstractmethod
    def state_of(self, loaded: LoadedImage) -> object:
        """What identifies the file that `loaded` was last read from.

        None if it was removed, so that newer commits may have been, too, without an error of reading them.
        """

    @abstractmethod
    def sees_end(self, loaded: LoadedImage) -> bool:
        """Whether `loaded` is so surely the newest image that a commit should be tried on it without a refresh."""

    def load_newest(self) -> LoadedSnapshot:
        """The image of the newest whole snapshot. Raises OSError, or UnsupportedFormatError."""
        return self.snapshots.load_newest()

    @abstractmethod
    def join_host(self, directory: Path) -> None:
        """Share with the other processes of this host, in `directory`, what spares them requests and lost races."""

    def host_turn(self) -> AbstractContextManager[None]:
        """Held by a writer from before its first look at the log until its commit is made."""
        return _NO_TURN

    def pauses(self, lost: int, jitter: Callable[[], float]) -> Iterator[Pause]:
        """The pauses of a writer before the attempt that follows `lost` lost races.

        After each pause the writer looks at the log as it says. `jitter` gives numbers from 0 to 1.
        """
        if lost:
            longest: float = min(_FIRST_BACK_OFF_SECONDS * 2 ** min(lost - 1, 16), _LONGEST_BACK_OFF_SECONDS)
            yield Pause(longest * jitter(), Look.NONE)

    def look(self, offset: int, look: Look) -> Iterable[Commit]:
        """The commits from `offset` on that a look finds, perhaps not all: `publish` decides."""
        return ()

    def header(self, commit_id: str, operation: str) -> CommitRecord:
        """The first record of a commit."""
        return CommitRecord(commit_id=commit_id, operation=operation)

    @abstractmethod
    def head(self) -> int | None:
        """An offset that the commit log has certainly reached; None if that is unknown."""

    @abstractmethod
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

    # Maintenance of the commit log

    def _snapshot_is_due(self, loaded: LoadedImage, now_ms: int, *, next_bytes: int = 0) -> bool:
        return snapshot_is_due(
            loaded.tail,
            self._config.of(loaded.image),
            now_ms=now_ms,
            snapshot_share=self.snapshot_share,
            next_bytes=next_bytes,
        )

    def after_commit(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        """Do the work due as of `loaded`; return the snapshot that was written or found meanwhile, None if none."""
        is_due = self._snapshot_is_due(loaded, now_ms)
        if not (is_due or self.maintains_each_commit) or not self._maintaining.acquire(blocking=False):
            return None
        newer: KnownSnapshot | None = None
        try:
            # Independent steps: a full disk has no room for a snapshot, but removing files frees some.
            if is_due:
                with LOGGING_FAILURES:
                    newer = self.snapshots.write_newer(loaded)
            self._maintain(loaded, newer, self._config.of(loaded.image), snapshot_was_due=is_due, now_ms=now_ms)
        finally:
            self._maintaining.release()
        return newer

    @abstractmethod
    def _maintain(
        self,
        loaded: LoadedImage,
        newer: KnownSnapshot | None,
        config: MetadataLogConfig,
        *,
        snapshot_was_due: bool,
        now_ms: int,
    ) -> None:
        """Do the rest of the work after a commit; `newer`: the snapshot that was written or found. Logs its errors."""

    def write_due_snapshot(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        """Write a snapshot if one is due as of `loaded`; as after a commit, but errors are raised."""
        return self.snapshots.write_newer(loaded) if self._snapshot_is_due(loaded, now_ms) else None

    def remove_old_commits(self, loaded: LoadedImage, *, now_ms: int, clock_ms: int, dry_run: bool) -> OldCommits:
        """Remove all commits that are older than the settings say and that a snapshot contains, with their snapshots.

        `now_ms` is the time to use, `clock_ms` that of the clock. With `dry_run` nothing changes: the result says what
        would be removed. Raises OSError, KafkalogError.
        """
        config = self._config.of(loaded.image)
        known = loaded.tail.snapshot
        if dry_run and self._snapshot_is_due(loaded, clock_ms):
            end_offset = loaded.image.next_offset
        else:
            end_offset = 0 if known is None else known.end_offset
        if config.max_retention_ms < 0 or not end_offset:
            return OldCommits()
        if dry_run:
            return self._find_old_commits(loaded, end_offset, config, now_ms=now_ms, clock_ms=clock_ms)
        assert known is not None
        return self._remove_old_commits(loaded, known, config, now_ms=now_ms, clock_ms=clock_ms)

    @abstractmethod
    def _find_old_commits(
        self, loaded: LoadedImage, end_offset: int, config: MetadataLogConfig, *, now_ms: int, clock_ms: int
    ) -> OldCommits:
        """What `_remove_old_commits` would remove with a snapshot at `end_offset`."""

    @abstractmethod
    def _remove_old_commits(
        self, loaded: LoadedImage, known: KnownSnapshot, config: MetadataLogConfig, *, now_ms: int, clock_ms: int
    ) -> OldCommits:
        """Remove the old commits that the snapshot `known` contains, once it is known to be whole and durable."""
