"""The metadata store: a root's image, refreshed from its commit log, and the retry loop that commits to it.

    <root>/
      .lock                                    one writer at a time (root_lock.py)
      meta.properties                          Kafka's: version, cluster.id, node.id, directory.id
      __cluster_metadata-0/partition.metadata
      __cluster_metadata-0/kafkalog-format     "version=1": marks a native root. Written before the first commit
      __cluster_metadata-0/0...0.log           the first commit: format, metadata.version, the node

root/bootstrap.py creates these files, in an order that is safe against crashes. Opening a root reads the newest
snapshot (snapshots.py) and the commits after it, by name. Each process caches the images of the roots that it has open,
so opening a root again reads only new commits. A commit and a refresh both apply a delta to the image. Work that
follows a commit is in backend.py, local/backend.py and objects/backend.py.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptRecordError,
    InvalidRecordError,
    KafkalogError,
)
from pyspark_kafkalog.metadata.backend import Look, MetadataBackend
from pyspark_kafkalog.metadata.commit_log import (
    Commit,
    CommitLog,
    CommitLogTail,
    CommitsRemovedError,
    KnownSnapshot,
    LoadedImage,
    OldCommits,
)
from pyspark_kafkalog.metadata.delta import apply, start_delta
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.invariants import (
    check_follower,
    check_invariants,
    check_unchanged_by_others,
    image_after_appends,
)
from pyspark_kafkalog.metadata.messages.metadata_records import CommitRecord, MetadataRecord
from pyspark_kafkalog.metadata.snapshots import LoadedSnapshot, Snapshots
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import encode_uuid
from pyspark_kafkalog.values import quick_dataclass

_MAX_ROOTS: Final = 32
_MAX_ATTEMPTS: Final = 100
_MAX_RELOADS: Final = 5
_NO_DOUBT: Final = nullcontext()

Clock = Callable[[], int]
Build = Callable[[MetadataImage], Sequence[MetadataRecord]]


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class NewCommit:
    """A commit to be made.

    - `build`: makes its records; called with the newest image on each attempt. If it returns none, nothing is
      published; an exception from it ends the commit
    - `operation`: one or two words for the history
    - `key`: identifies the work, if the caller may repeat it after an error; `find_commit` then finds the commit
    - `frees_space`: see `MetadataBackend.publish`
    - `following_id`: the commit is made by the follower that has it, which may change what others may not
    - `before_visible`: see `MetadataBackend.publish`; called on each attempt
    """

    build: Build
    operation: str
    key: str | None = None
    frees_space: bool = False
    following_id: str | None = None
    before_visible: Callable[[], None] | None = None
    max_attempts: int = _MAX_ATTEMPTS


@quick_dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The result of `MetadataStore.make`: the newest image, and the commit, None without records to commit."""

    image: MetadataImage
    commit: Commit | None


@quick_dataclass(frozen=True, slots=True)
class _Plan:
    """A commit to be published after `image`, which makes `after` of it."""

    image: MetadataImage
    records: tuple[MetadataRecord, ...]
    timestamp_ms: int
    after: MetadataImage


class MetadataStore:
    """One root's metadata; thread-safe. Use `open` to get one."""

    def __init__(
        self,
        backend: MetadataBackend,
        *,
        clock: Clock = time_ms,
        rng: random.Random | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._sleep = sleep
        self._rng = rng if rng is not None else random.SystemRandom()
        self._root_state = backend.opened
        self._file_state: object = None  # of the image's last file; None: not read yet
        self._refresh_lock = threading.Lock()
        self._refreshes_begun = self._last_refresh = 0  # the last one that ended well, by its number
        #: By the key of a commit that may have been published: its commit id, and the first offset that it may have.
        self._unknown_outcomes: dict[str | None, tuple[str, int]] = {}
        cached = _CACHE.get(self._cache_key())
        self.is_from_cache = cached is not None  # so that it may be behind
        self._loaded = self._load() if cached is None else cached

    def join_host(self, directory: Path) -> None:
        """Share with the other processes of this host, in `directory`, what spares them requests and lost races."""
        self._backend.join_host(directory)

    def remember(self) -> None:
        """Let this process open the root from the present image again."""
        _CACHE.put(self._cache_key(), self._loaded)

    @property
    def location(self) -> str:
        """The path or URL of the root."""
        return self._backend.location

    @property
    def identity(self) -> RootIdentity | None:
        """The identity of the root when it was opened, None if meta.properties is missing or damaged."""
        return self._backend.identity

    @property
    def log(self) -> CommitLog:
        """The commits."""
        return self._backend.log

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots of the commits."""
        return self._backend.snapshots

    @property
    def sees_end(self) -> bool:
        """Whether `image` was found to be the newest so recently that a commit is tried on it without a refresh."""
        return self._backend.sees_end(self._loaded)

    @property
    def image(self) -> MetadataImage:
        """The image as of the last refresh or commit."""
        return self._loaded.image

    def refresh(self) -> MetadataImage:
        """Read the commits since the last refresh and return the newest image.

        Without new commits this costs one failed open and one stat, or a request to an object store. If the commits
        after the image have been removed, the image is loaded from the newest snapshot. Threads that wait for another
        one's refresh share the next: what began after their call is as new as what each of them would find.

        Raises LogDirError if another root, or none, is at the path now.
        """
        return self._refreshed()

    def _refreshed(self, *, is_same_root: bool = False) -> MetadataImage:
        """As `refresh`. `is_same_root`: that the root is the same was found a moment ago."""
        begun_before = self._refreshes_begun
        with self._refresh_lock:
            if self._last_refresh > begun_before:
                return self._loaded.image
            self._refreshes_begun += 1
            try:
                loaded = self._read_on(self._loaded)
            except CommitsRemovedError:
                loaded = self._reload(self._loaded)
            except KafkalogError:
                self._same_root()  # if another root is at the path, its commits do not fit: report that instead
                raise
            state = self._backend.state_of(loaded)
            is_known = state == self._file_state or is_same_root  # the last file may be a commit of this process
            if loaded is not self._loaded or state is None or not is_known:
                loaded = self._checked(loaded)
            else:
                self._file_state = state
            self._set_loaded(loaded)
            self._last_refresh = self._refreshes_begun
            return loaded.image

    def sync(self) -> None:
        """Make the commits up to the last one that was read or made durable."""
        self.log.sync(self._loaded.tail.last_file)

    def follow(self, other: MetadataStore) -> None:
        """Take over the image of `other`, a store of this process for the same root, which has made a commit.

        So the commit is not read and decoded again.
        """
        with self._refresh_lock:
            loaded = other._loaded
            if loaded.image.next_offset > self._loaded.image.next_offset:
                self._set_loaded(loaded)

    def _checked(self, loaded: LoadedImage) -> LoadedImage:
        """`loaded` if it is of this root and its files still exist, else a reloaded image. Raises LogDirError."""
        same = self._same_root()
        loaded = loaded if same is self._loaded else same
        for _ in range(_MAX_RELOADS):
            self._file_state = self._backend.state_of(loaded)
            if self._file_state is not None:
                break
            loaded = self._reload(loaded)
        return loaded

    def check_root(self) -> None:
        """Raise LogDirError if another root, or none, is at the path now. Costs one stat if it is the same root."""
        with self._refresh_lock:
            self._set_loaded(self._same_root())

    def _same_root(self) -> LoadedImage:
        """The image as of the last refresh; reloaded if the root was remounted or restored from a backup."""
        state = self._backend.check_root(self._root_state)
        if state == self._root_state:
            return self._loaded
        loaded = self._reload(self._loaded)
        self._root_state = state
        return loaded

    def _cache_key(self) -> object:
        return self._backend.cache_key(self._root_state)

    def refresh_to_head(self) -> MetadataImage:
        """As `refresh`. Raises CorruptRecordError if the log was once longer, which means that a commit file was lost.

        Raises UnsupportedFormatError if a later version of this package has upgraded the root since it was opened.
        """
        is_same_root = self._backend.check_format(self._root_state)
        image = self._refreshed(is_same_root=is_same_root)
        head = self._backend.head()
        if head is not None and head > image.next_offset:  # or another writer has committed since the refresh
            image = self.refresh()
            if head > image.next_offset:
                raise self.log.lost_commit(image.next_offset, reached=head)
        return image

    def _load(self) -> LoadedImage:
        failure: KafkalogError | None = None
        for _ in range(_MAX_RELOADS):
            newest = self._backend.load_newest()
            try:
                return self._read_after(newest)
            except CommitsRemovedError as error:  # meanwhile, so there is a newer snapshot
                failure = newest.damage or error
        assert failure is not None
        raise failure

    def _read_after(self, newest: LoadedSnapshot) -> LoadedImage:
        self._check_format(newest.loaded.image, newest.loaded.tail.last_file)
        loaded = self._read_on(newest.loaded, many=True)
        if newest.damage is not None and loaded.image.next_offset < newest.must_reach:
            raise newest.damage
        return loaded

    def _reload(self, behind: LoadedImage) -> LoadedImage:
        loaded = self._load()
        if loaded.image.next_offset < behind.image.next_offset:
            raise CorruptRecordError(
                file=behind.tail.last_file,
                position=0,
                expected=f"this file, or a snapshot of the commits up to offset {behind.image.next_offset}",
                found="no such file",
                advice="restore the file from a backup",
            )
        return loaded

    def _read_on(self, loaded: LoadedImage, *, many: bool = False) -> LoadedImage:
        return self._with(loaded, self.log.read_after(loaded, many=many))

    def _with(self, loaded: LoadedImage, commits: Iterable[Commit]) -> LoadedImage:
        image, tail = loaded.image, loaded.tail
        for commit in commits:
            image = self._apply(image, commit)
            tail = tail.after_commit(commit, self.log.file_of(commit))
        return loaded if image is loaded.image else LoadedImage(image, tail)

    def _set_loaded(self, loaded: LoadedImage) -> None:
        if loaded is not self._loaded:
            self._loaded = loaded
            _CACHE.put(self._cache_key(), loaded)

    def _apply(self, image: MetadataImage, commit: Commit) -> MetadataImage:
        file = self.log.file_of(commit)
        try:
            after = apply(image, commit)
        except InvalidRecordError as error:
            raise CorruptRecordError(
                file=file, position=commit.position, expected="a commit that fits the ones before it", found=str(error)
            ) from error
        self._check_format(after, file)
        return after

    def _check_format(self, image: MetadataImage, file: str) -> None:
        self._backend.check_image(image, file)

    def commit(self, build: Build, *, operation: str, frees_space: bool = False) -> CommitOutcome:
        """As `make`, of a commit without more to it."""
        return self.make(NewCommit(build=build, operation=operation, frees_space=frees_space))

    def make(self, new: NewCommit, *, newest: MetadataImage | None = None) -> CommitOutcome:
        """Publish the records that `new.build` makes from the newest image; retry if another writer commits first.

        `newest` is what `refresh_to_head` has returned to the caller, which has held the root's lock since: the first
        attempt is made on it. If it is not the newest image after all, that attempt loses the race.

        Raises InvalidRecordError if the commit would violate an invariant, FollowingRootError if the root follows a
        leader and the commit changes what is copied, FollowingEndedError if it does not follow with the commit's
        following id, CommitConflictError after `max_attempts` lost races, CommitStateUnknownError if publishing failed
        and it is unknown whether the commit was made, CorruptRecordError if a commit file was lost.
        """
        with self._backend.host_turn():
            return self._make(new, newest)

    def _make(self, new: NewCommit, newest: MetadataImage | None) -> CommitOutcome:
        key = new.key
        commit_id, unsure_since = self._unknown_outcomes.get(key, (None, None))
        if commit_id is None:
            # Never from `rng`: writers with the same seed would mistake each other's commits for their own.
            commit_id = encode_uuid(os.urandom(16))
        failure: CommitConflictError | CommitStateUnknownError | None = None
        for attempt in range(new.max_attempts):
            with _in_doubt(unsure_since):
                self._await_turn(attempt)
                known = self._loaded.image
                may_be_behind = (attempt > 0 or newest is not known) and not self.sees_end
                is_newest = unsure_since is not None or may_be_behind
                image = self.refresh_to_head() if is_newest else known
                own = self._find_own(commit_id, unsure_since)
            if own is not None:
                self._unknown_outcomes.pop(key, None)
                return CommitOutcome(self.refresh(), own)
            header = self._backend.header(commit_id, new.operation)
            plan_commit = self._plan if is_newest else self._plan_first
            plan = plan_commit(image, new, header)
            if plan is None:
                return CommitOutcome(self.image, None)
            if key is not None:
                self._unknown_outcomes[key] = (commit_id, plan.image.next_offset)
            try:
                with _in_doubt(unsure_since):
                    outcome = self._publish(plan, new)
                self._unknown_outcomes.pop(key, None)
                return outcome
            except CommitConflictError as error:
                failure = error
                if unsure_since is None:
                    self._unknown_outcomes.pop(key, None)
            except CommitStateUnknownError as error:
                failure = error
                unsure_since = plan.image.next_offset if unsure_since is None else unsure_since
                if self._backend.repeats_creates:
                    break
        with _in_doubt(unsure_since):
            own = self._find_own(commit_id, unsure_since)
        if own is not None:
            self._unknown_outcomes.pop(key, None)
            return CommitOutcome(self.refresh(), own)
        raise failure if failure is not None else ValueError("max_attempts must be 1 or more")

    def _await_turn(self, lost: int) -> None:
        """Wait until other writers of the root have had their turns, after `lost` lost races."""
        for seconds, look in self._backend.pauses(lost, self._rng.random):
            if seconds:
                self._sleep(seconds)
            if look is not Look.NONE:
                self._look(look)

    def _look(self, look: Look) -> None:
        with self._refresh_lock:
            loaded = self._loaded
            try:
                self._set_loaded(self._with(loaded, self._backend.look(loaded.image.next_offset, look)))
                return
            except CommitsRemovedError:
                pass
        self.refresh()

    def find_commit(self, key: str) -> Commit | None:
        """The commit that an earlier call of `make` with `key` published although it raised an error; None if none.

        The commit is durable then. Raises CommitStateUnknownError if the commit log cannot be read.
        """
        commit_id, since = self._unknown_outcomes.get(key, ("", None))
        with _in_doubt(since):
            own = self._find_own(commit_id, since)
        if own is not None:
            self._unknown_outcomes.pop(key, None)
        return own

    def _find_own(self, commit_id: str, unsure_since: int | None) -> Commit | None:
        """The commit with `commit_id`, made durable, if an attempt at `unsure_since` or later published it.

        The result of those attempts is unknown; None for `unsure_since` means that there was no such attempt.
        Called before each further attempt, since a link may take effect late: either the image then has the commit, or
        the next attempt, at the same name, loses the race to it. The image alone does not answer the question, because
        another thread may have applied the commit.
        """
        if unsure_since is None:
            return None
        try:
            own = next((each for each in list(self.log.read_from(unsure_since)) if _commit_id(each) == commit_id), None)
        except CommitsRemovedError as error:
            raise CommitStateUnknownError(
                f"it is unknown whether a commit at offset {unsure_since} was made, and cannot be found out: {error}"
            ) from error
        if own is not None:
            self.log.sync(self.log.file_of(own))
        return own

    def _plan_first(self, image: MetadataImage, new: NewCommit, header: CommitRecord) -> _Plan | None:
        """The plan on an image that may no longer be the newest, which is for the publishing to decide.

        Only a plan can be decided so: an error of `build`, or nothing to commit, has to come from the newest image.
        """
        try:
            plan = self._plan(image, new, header)
        except Exception:
            newest = self.refresh_to_head()
            if newest is image:
                raise
        else:
            if plan is not None:
                return plan
            newest = self.refresh_to_head()
            if newest is image:
                return None
        return self._plan(newest, new, header)

    def _plan(self, image: MetadataImage, new: NewCommit, header: CommitRecord) -> _Plan | None:
        """The commit of what `new.build` makes of `image`; None if that is nothing. Raises as `make` does."""
        following_id = new.following_id
        if following_id is not None:
            check_follower(image, following_id)
        built = new.build(image)
        if not built:
            return None
        records = (header, *built)
        timestamp_ms = self._clock()
        after = image_after_appends(image, records, timestamp_ms=timestamp_ms)
        if after is None:
            delta = start_delta(image, base_offset=image.next_offset, timestamp_ms=timestamp_ms)
            delta.replay(records)
            after = delta.build(image.next_offset + len(records))
            if following_id is None:
                check_unchanged_by_others(image, after, delta.changes)
            check_invariants(image, after, delta.changes, is_follower=following_id is not None)
        return _Plan(image, records, timestamp_ms, after)

    def _publish(self, plan: _Plan, new: NewCommit) -> CommitOutcome:
        image, after, timestamp_ms = plan.image, plan.after, plan.timestamp_ms
        loaded = self._loaded
        base = loaded if loaded.image is image else LoadedImage(image, CommitLogTail(""))
        commit = self._backend.publish(
            base,
            plan.records,
            timestamp_ms=timestamp_ms,
            frees_space=new.frees_space,
            before_visible=new.before_visible,
        )
        with self._refresh_lock:
            loaded = self._loaded
            if loaded.image is image:
                loaded = LoadedImage(after, loaded.tail.after_commit(commit, self.log.file_of(commit)))
                self._set_loaded(loaded)
        self._note_snapshot(loaded, self._backend.after_commit(loaded, now_ms=timestamp_ms))
        return CommitOutcome(after, commit)

    def _note_snapshot(self, loaded: LoadedImage, snapshot: KnownSnapshot | None) -> None:
        """Note the snapshot that was written, or found, when the log was as in `loaded`."""
        if snapshot is not None:
            with self._refresh_lock:
                tail = self._loaded.tail.after_snapshot(snapshot, bytes_before=loaded.tail.bytes_since)
                self._set_loaded(LoadedImage(self._loaded.image, tail))

    def remove_old_commits(self, *, now_ms: int | None = None, dry_run: bool = False) -> OldCommits:
        """Remove, in bulk, the commits of which each later commit would remove a few; before, write a snapshot if due.

        So a root at rest shrinks too. `now_ms` is the time to use, by default the clock's. With `dry_run` nothing
        changes. A process that is killed meanwhile leaves the rest to the next one. Raises OSError, KafkalogError.
        """
        self.refresh()
        loaded, clock_ms = self._loaded, self._clock()
        if not dry_run:
            self._note_snapshot(loaded, self._backend.write_due_snapshot(loaded, now_ms=clock_ms))
        now_ms = clock_ms if now_ms is None else now_ms
        return self._backend.remove_old_commits(self._loaded, now_ms=now_ms, clock_ms=clock_ms, dry_run=dry_run)


def _in_doubt(unsure_since: int | None) -> AbstractContextManager[None]:
    """Raises CommitStateUnknownError for an OSError in the block, unless `unsure_since` is None."""
    return _NO_DOUBT if unsure_since is None else _doubting(unsure_since)


@contextmanager
def _doubting(unsure_since: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommitStateUnknownError(
            f"it is unknown whether a commit at offset {unsure_since} or later was made: reading the commit log "
            f"failed: {error}"
        ) from error


def _commit_id(commit: Commit) -> str | None:
    first = commit.records[0]
    return first.commit_id if isinstance(first, CommitRecord) else None


class ImageCache:
    """The newest known image of each root; keeps the most recently used roots."""

    def __init__(self) -> None:
        self._images: dict[object, LoadedImage] = {}
        self._lock = threading.Lock()

    def get(self, root: object) -> LoadedImage | None:
        with self._lock:
            return self._images.get(root)

    def put(self, root: object, loaded: LoadedImage) -> None:
        with self._lock:
            newest = self._images.pop(root, None)
            if newest is None or newest.image.next_offset <= loaded.image.next_offset:
                newest = loaded
            self._images[root] = newest
            while len(self._images) > _MAX_ROOTS:
                del self._images[next(iter(self._images))]


_CACHE: Final = ImageCache()
