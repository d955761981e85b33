"""A root's metadata on a file system: the directory, its snapshots, and the maintenance that follows a commit.

    __cluster_metadata-0/
      <20 digits>-0000000000.checkpoint     a snapshot, by its end offset, in KRaft's format
      kafkalog-newest-snapshot              hint: the name of the newest snapshot
      kafkalog-start                        hint: the oldest commit that still exists (`OffsetHint` in log.py)

Stats tell whether the root and its commits are still there: of the marker file, which another root, or the same one
restored from a backup, has with another inode; and of the file that the image was last read from.

*Snapshots.* A snapshot is written under a name that ends in `.checkpoint.part`, fsynced and renamed, so it is complete
or does not exist; a `.part` file that a crash leaves is never read. The pointer is replaced by a rename after that.

*Maintenance* writes a snapshot if one is due, removes old files and restores the reserve. The commit is already
published, so an error here is only logged, and the next commit tries again. A crash leaves work for the next commit
too. Usual commits (messages/usual_commits.py) leave it to the others, of which there is one for each snapshot at least.

*Retention.* A commit file is removed when it is older than metadata.max.retention.ms and a snapshot contains its
records; the older snapshot that ends where the commit begins is removed before it. The newest snapshot is kept, and so
is the last commit in it: a reader whose last file no longer exists has to reload from a snapshot. Files are removed
oldest first, so a crash leaves no gaps. A snapshot must be on disk before: where commits do not wait for that, a thread
flushes it. Each commit removes at most a few files, found by name from one to the next, so the cost does not depend on
the length of the history. The hint is written after a file has been removed. After a crash in between, it names a file
that does not exist, and the directory is listed once.

A root at rest has no commits that could do this. So the retention job removes all that is due in one go, in the same
order, with a hint for each thousand files; it takes a snapshot before, if one is due, and flushes it in any case.

*Leftovers.* Files that killed processes left half-written are removed once they are an hour old by the clock of the
file system, since no process can still be writing them; nothing reads them. The search follows each snapshot and covers
the first few thousand names in the directory, so a long history costs no more than a short one.

    <name>.<hex>.tmp                                        a commit before its link, a small file before its rename
    00000000000000000194-0000000000-<hex>.checkpoint.part   a snapshot before its rename
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CommitStateUnknownError, InvalidRecordError, LogDirError
from pyspark_kafkalog.metadata.backend import LOGGING_FAILURES, MetadataBackend, MetadataLogConfig
from pyspark_kafkalog.metadata.commit_log import (
    LEADER_EPOCH,
    Commit,
    CommitPlace,
    KnownSnapshot,
    LoadedImage,
    OldCommits,
)
from pyspark_kafkalog.metadata.image import MetadataImage, image_records
from pyspark_kafkalog.metadata.invariants import image_with_states
from pyspark_kafkalog.metadata.local.log import CommitFile, End, HeldEnd, LocalCommitLog
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.messages.usual_commits import COMMIT_ID_BYTES, AppendedState, UsualCommits
from pyspark_kafkalog.metadata.root_format import (
    FORMAT_MARKER,
    METADATA_DIR,
    FileState,
    OffsetHint,
    check_marker,
    file_state,
    is_native_root,
    metadata_dir,
)
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns
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
from pyspark_kafkalog.metadata.store import Clock, MetadataStore
from pyspark_kafkalog.storage.artefacts.marker_files import another_root_error, readable_identity
from pyspark_kafkalog.storage.below_root import follow_root, keep_directories, scan
from pyspark_kafkalog.storage.filesystem import (
    LOCAL,
    FileSystem,
    flush_earlier,
    in_background,
    is_temporary,
    note_unflushed,
    open_to_read,
    time_ms,
)
from pyspark_kafkalog.storage.names import CHECKPOINT_SUFFIX, encode_uuid

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


#: Minimum age of removed files, as in Kafka. It is much longer than a committer takes to reach its link, so the name
#: that it links to cannot have been used and removed meanwhile.
DELETE_DELAY_MS: Final = 60_000

START_FILE: Final = "kafkalog-start"

_FILES_A_COMMIT: Final = 4
_FILES_A_HINT: Final = 1_000
_SOON_MS: Final = 1000
_LEFTOVER_NAMES_MAX: Final = 4_000
_LEFTOVER_AGE_NS: Final = 3_600_000_000_000
_SNAPSHOT_PART: Final = re.compile(r"\d{20}-\d{10}-[0-9a-f]+\.checkpoint\.part")


def is_leftover(name: str) -> bool:
    """Whether a file in the metadata directory has a name that only a process that is writing it gives it."""
    return is_temporary(name) or _SNAPSHOT_PART.fullmatch(name) is not None


class CommitRetention:
    """Removes the oldest commits of `log`, with their snapshots."""

    def __init__(self, log: LocalCommitLog, snapshots: LocalSnapshots, fs: FileSystem) -> None:
        self._log = log
        self._snapshots = snapshots
        self._fs = fs
        self._start = OffsetHint(log.directory / START_FILE, fs)
        self._oldest: CommitFile | None = None

    def remove_expired(self, *, snapshot_end_offset: int, older_than_ms: int) -> None:
        """Remove a few commits made before `older_than_ms` that the snapshot at `snapshot_end_offset` contains.

        Raises OSError, or CorruptRecordError for a commit file that is damaged.
        """
        for _ in range(_FILES_A_COMMIT):
            oldest = self._oldest = self._oldest or self._find_oldest()
            if oldest is None or not _is_expired(oldest, snapshot_end_offset, older_than_ms):
                return
            # It may have taken commits since it was read. If all are in the snapshot, there is a later file.
            oldest = self._oldest = self._log.read_range(oldest.base_offsets[0])
            if oldest is not None and _is_expired(oldest, snapshot_end_offset, older_than_ms):
                self._remove(oldest)

    def has_expired(self, snapshot_end_offset: int, older_than_ms: int) -> bool:
        """Whether there is a commit to remove. Raises as `remove_expired`."""
        oldest = self._find_oldest()
        return oldest is not None and _is_expired(oldest, snapshot_end_offset, older_than_ms)

    def remove_all_expired(self, snapshot_end_offset: int, older_than_ms: int, *, dry_run: bool = False) -> OldCommits:
        """As `remove_expired`, but all of them; with `dry_run` only say which. Raises as that does."""
        removed = OldCommits()
        files = 0
        oldest = self._find_oldest(with_hint=not dry_run)
        while oldest is not None and _is_expired(oldest, snapshot_end_offset, older_than_ms):
            count = removed.count + len(oldest.base_offsets)
            removed = OldCommits(count, removed.size_bytes + oldest.size_bytes, oldest.next_offset)
            files += 1
            if not dry_run:
                self._remove_snapshots(oldest)
                self._fs.unlink_if_there(self._log.path(oldest.base_offsets[0]))
                if files % _FILES_A_HINT == 0:
                    self._start.write(oldest.next_offset)
            # Another process may remove the next one first.
            oldest = self._log.read_range(oldest.next_offset) or self._find_oldest(with_hint=not dry_run)
        if files and not dry_run:
            self._start.write(removed.start_offset)
        return removed

    def _remove(self, oldest: CommitFile) -> None:
        self._oldest = None
        self._remove_snapshots(oldest)
        try:
            self._fs.unlink(self._log.path(oldest.base_offsets[0]))
        except FileNotFoundError:
            return  # another process removed it first, and writes the hint
        self._start.write(oldest.next_offset)
        self._oldest = self._log.read_range(oldest.next_offset)

    def _remove_snapshots(self, oldest: CommitFile) -> None:
        """Remove the snapshots that end where one of the file's commits begins."""
        for base_offset in oldest.base_offsets:
            self._fs.unlink_if_there(self._snapshots.path(base_offset))

    def _find_oldest(self, *, with_hint: bool = True) -> CommitFile | None:
        """The oldest file; if the directory had to be listed, the hint is written, unless without `with_hint`."""
        found = self._log.read_range(self._start.read() or 0)
        if found is None:
            first = min(self._log.listed_offsets(), default=None)
            if first is None:
                return None
            if with_hint:
                self._start.write(first)
            found = self._log.read_range(first)
        return found


def _is_expired(file: CommitFile, snapshot_end_offset: int, older_than_ms: int) -> bool:
    return file.next_offset < snapshot_end_offset and file.timestamp_ms < older_than_ms


def remove_leftovers(directory: Path, *, now_ns: int, fs: FileSystem) -> None:
    """Remove leftovers last written more than an hour before `now_ns`, the file system's time. Raises OSError."""
    entries = islice(scan(directory), _LEFTOVER_NAMES_MAX)
    names = [entry.name for entry in entries if is_leftover(entry.name)]
    for name in names:
        path = directory / name
        try:
            written_ns = os.stat(path).st_mtime_ns
        except FileNotFoundError:
            continue  # its process still renamed it, or another process removed it first
        if now_ns - written_ns > _LEFTOVER_AGE_NS:
            fs.unlink_if_there(path)


def _is_in_snapshot(place: CommitPlace, loaded: LoadedImage) -> bool:
    """Whether a snapshot contains commits of the file, which then takes no more, so that it can soon be removed."""
    snapshot = loaded.tail.snapshot
    return snapshot is not None and snapshot.end_offset > place.file_offset


class LocalBackend(MetadataBackend):
    """The directory `root`."""

    repeats_creates = False
    maintains_each_commit = True

    log: LocalCommitLog
    snapshots: LocalSnapshots

    def __init__(self, root: Path, *, fs: FileSystem = LOCAL) -> None:
        log = LocalCommitLog(metadata_dir(root), fs=fs)
        super().__init__(log, LocalSnapshots(log.directory, fs))
        self.root = root
        self.location = str(root)
        self._real_path = os.path.realpath(root)
        self._marker = metadata_dir(root) / FORMAT_MARKER
        self.opened = file_state(self._marker)
        self.identity = readable_identity(root)
        self._checked_marker: FileState | None = None
        self._fs = fs
        self._retention = CommitRetention(self.log, self.snapshots, fs)
        self._whole_end_offset = 0  # of the newest snapshot that is known to be whole
        self._durable_end_offset = 0  # of the newest one that is known to be on disk too

    def check_root(self, known: object) -> object:
        marker = file_state(self._marker)
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

    def check_format(self, known: object) -> bool:
        # A marker that is remembered for too long does no harm: the commit of an upgrade comes before its marker.
        marker = file_state(self._marker)
        if marker is None or marker != self._checked_marker:
            check_marker(self.log.directory)
            self._checked_marker = marker
        return marker == known

    def check_image(self, image: MetadataImage, file: str) -> None:
        image.format.check(file, in_object_store=False)

    def state_of(self, loaded: LoadedImage) -> object:
        return self.log.state_of(loaded.tail.last_file)

    def join_host(self, directory: Path) -> None:
        """Shares nothing: reading commits is cheap, and the root has a lock."""

    def sees_end(self, loaded: LoadedImage) -> bool:
        return False  # a refresh costs less than a commit that loses the race

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
        self.prepare()
        place = self.log.end_of(loaded)
        return self.log.publish(
            loaded.image.next_offset,
            records,
            timestamp_ms=timestamp_ms,
            end=None if place is None else End(place, is_full=_is_in_snapshot(place, loaded)),
            frees_space=frees_space,
            before_visible=before_visible,
        )

    def prepare(self) -> None:
        """What comes before a commit: one that waits for the disk needs all before it there, another one is noted."""
        if self._fs.waits_for_disk:
            flush_earlier(self.root, self._fs)
        else:
            note_unflushed(self.root, self._fs)

    def snapshot_follows(self, loaded: LoadedImage, *, next_bytes: int, now_ms: int) -> bool:
        """Whether a snapshot would follow a commit of at most `next_bytes` at `now_ms`, or soon after."""
        return self._snapshot_is_due(loaded, now_ms + _SOON_MS, next_bytes=next_bytes)

    def _maintain(
        self,
        loaded: LoadedImage,
        newer: KnownSnapshot | None,
        config: MetadataLogConfig,
        *,
        snapshot_was_due: bool,
        now_ms: int,
    ) -> None:
        if snapshot_was_due:
            with LOGGING_FAILURES:
                now_ns = file_system_time_ns(self.root, self._fs)
                remove_leftovers(self.log.directory, now_ns=now_ns, fs=self._fs)
        for snapshot in (loaded.tail.snapshot, newer):
            if snapshot is not None and snapshot.is_sound and snapshot.end_offset > self._whole_end_offset:
                self._make_durable(snapshot.end_offset)
        if config.max_retention_ms >= 0:
            kept_ms = max(config.max_retention_ms, DELETE_DELAY_MS)
            with LOGGING_FAILURES:
                self._retention.remove_expired(
                    snapshot_end_offset=self._durable_end_offset, older_than_ms=now_ms - kept_ms
                )
        with LOGGING_FAILURES:
            self.log.restore_reserve()

    def _make_durable(self, end_offset: int) -> None:
        """Have the snapshot flushed. A commit that waits for the disk has flushed all that was written before it."""
        self._whole_end_offset = end_offset
        if self._fs.waits_for_disk:
            self._durable_end_offset = end_offset
        else:
            in_background(partial(self._flush, end_offset))

    def _flush(self, end_offset: int) -> None:
        with LOGGING_FAILURES:
            self.snapshots.flush(end_offset)
            self._durable_end_offset = max(self._durable_end_offset, end_offset)

    def _find_old_commits(
        self, loaded: LoadedImage, end_offset: int, config: MetadataLogConfig, *, now_ms: int, clock_ms: int
    ) -> OldCommits:
        retention, older_than_ms = self._retention_of_job(config, now_ms, clock_ms)
        return retention.remove_all_expired(end_offset, older_than_ms, dry_run=True)

    def _remove_old_commits(
        self, loaded: LoadedImage, known: KnownSnapshot, config: MetadataLogConfig, *, now_ms: int, clock_ms: int
    ) -> OldCommits:
        retention, older_than_ms = self._retention_of_job(config, now_ms, clock_ms)
        if not retention.has_expired(known.end_offset, older_than_ms):
            return OldCommits()
        if not known.is_sound:
            self.snapshots.check(known.end_offset)
        self.snapshots.flush(known.end_offset)
        return retention.remove_all_expired(known.end_offset, older_than_ms)

    def _retention_of_job(self, config: MetadataLogConfig, now_ms: int, clock_ms: int) -> tuple[CommitRetention, int]:
        """A retention of its own, as commits keep using theirs and may remove the same files; and its time.

        A time ahead of the clock makes no commit old enough for the delay.
        """
        older_than_ms = min(now_ms - config.max_retention_ms, clock_ms - DELETE_DELAY_MS)
        return CommitRetention(self.log, self.snapshots, self._fs), older_than_ms


class LocalMetadataStore(MetadataStore):
    """The metadata of a root on a file system, in the directory `root`."""

    _backend: LocalBackend

    def __init__(
        self, root: Path, *, clock: Clock = time_ms, rng: random.Random | None = None, fs: FileSystem = LOCAL
    ) -> None:
        super().__init__(LocalBackend(root, fs=fs), clock=clock, rng=rng)
        self.root = root

    @staticmethod
    def open(
        root: Path, *, clock: Clock = time_ms, rng: random.Random | None = None, fs: FileSystem = LOCAL
    ) -> LocalMetadataStore:
        """The store of the root in the directory `root`, with the current image.

        Raises LogDirError if `root` is not a native log directory or its creation was interrupted, CorruptRecordError
        for a damaged or lost commit, UnsupportedFormatError for a format version that this package does not read.
        """
        follow_root(root)
        if not is_native_root(root):
            raise LogDirError(
                f"{root} is not a native log directory: expected {METADATA_DIR}/{FORMAT_MARKER}, found no such file"
            )
        with keep_directories():
            check_marker(metadata_dir(root))
            store = LocalMetadataStore(root, clock=clock, rng=rng, fs=fs)
            if store.log.head() is None:
                highest = store.log.highest_listed()
                store.log.check_reaches(store.refresh().next_offset, highest)
            if store.refresh_to_head().format_version is None:
                raise LogDirError(f"creating the log directory {root} was not finished: create it again")
        store.remember()
        return store

    @property
    def log(self) -> LocalCommitLog:
        return self._backend.log

    def snapshot_follows(self, next_bytes: int) -> bool:
        """Whether a commit of at most `next_bytes`, made now, would be followed by a snapshot."""
        return self._backend.snapshot_follows(self._loaded, next_bytes=next_bytes, now_ms=self._clock())

    def next_commit(self, size_bytes: int) -> NextCommit | None:
        """The next commit, of at most so many bytes, at the end of the log; None if it has to be made in general.

        That is so if it begins a file, if a snapshot would follow it, or if another root may be at the path. So no
        maintenance follows other ones: it can wait until then. Raises as `refresh_to_head` for another format.
        """
        is_same_root = self._backend.check_format(self._root_state)
        loaded = self._loaded
        image, place = loaded.image, loaded.tail.end
        if image.following is not None or len(image.topics) != len(image.topic_names):
            return None
        if place is None or not image.format.shares_commit_files or _is_in_snapshot(place, loaded):
            return None
        if not self.log.has_room(place, size_bytes) or self.snapshot_follows(size_bytes):
            return None
        if not is_same_root or (self.log.head() or 0) > image.next_offset:
            return None
        return NextCommit(self, loaded, self.log.hold_end(place, image.next_offset))

    def publish_usual(
        self, loaded: LoadedImage, end: HeldEnd, commits: UsualCommits, states: Sequence[AppendedState]
    ) -> MetadataImage:
        """See NextCommit.publish."""
        image, now_ms = loaded.image, self._clock()
        next_offset = image.next_offset + 1 + len(states)
        changed = [(each.topic, each.partition, each.state) for each in states]
        after = image_with_states(image, changed, next_offset=next_offset, timestamp_ms=now_ms)
        if after is None:
            raise InvalidRecordError("the logs of a usual commit have not just grown: it has to be made in general")
        commit_id = os.urandom(COMMIT_ID_BYTES)
        data = commits.encode(image.next_offset, now_ms, commit_id, states)
        self._backend.prepare()
        try:
            end.write(data)
        except CommitStateUnknownError:
            if self._find_own(encode_uuid(commit_id), image.next_offset) is None:
                raise
            return self.refresh()
        self.log.note_head(next_offset)
        commit = Commit(image.next_offset, next_offset, now_ms, (), len(data), place=end.place)
        made = LoadedImage(after, loaded.tail.after_commit(commit, self.log.file_of(commit)))
        with self._refresh_lock:
            if self._loaded is loaded:
                self._set_loaded(made)
        return after

    def next_places(self) -> tuple[str, int, str]:
        """Where a later commit than those of `image` would be: the last file and its end, or the file that it begins.

        The end is -1 if the last file takes no further commits.
        """
        loaded = self._loaded
        place = self.log.end_of(loaded)
        last_file, end = loaded.tail.last_file, -1
        if place is not None:
            last_file, end = self.log.name_of(place.file_offset), place.position
        return last_file, end, self.log.name_of(loaded.image.next_offset)


class NextCommit:
    """The next commit of a root, for a block in which the end of its log is held: `image` is the newest.

    To enter it raises CommitConflictError if it is not.
    """

    __slots__ = ("_end", "_loaded", "_store", "image")

    def __init__(self, store: LocalMetadataStore, loaded: LoadedImage, end: HeldEnd) -> None:
        self.image = loaded.image
        self._store = store
        self._loaded = loaded
        self._end = end

    def __enter__(self) -> NextCommit:
        self._end.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.__exit__()

    def publish(self, commits: UsualCommits, states: Sequence[AppendedState]) -> MetadataImage:
        """Make the commit that gives these states to partitions; returns the image after it.

        Raises as MetadataStore.make.
        """
        return self._store.publish_usual(self._loaded, self._end, commits, states)
