"""The metadata store: a root's image, kept up to date from its commit log, and the loop that commits to it.

    <root>/
      .lock                                    one writer at a time (root_lock.py)
      meta.properties                          Kafka's: version, cluster.id, node.id, directory.id
      __cluster_metadata-0/partition.metadata
      __cluster_metadata-0/kafkalog-format     "version=1": this root is ours. Written before the first commit
      __cluster_metadata-0/0...0.log           the first commit: format, metadata.version, the node

bootstrap.py makes them, in an order that a crash cannot spoil. Every process caches the images of the roots it has
open.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptRecordError,
    InvalidRecordError,
    LogDirError,
)
from pyspark_kafkalog.metadata.bootstrap import (
    DEFAULT_NODE_ID,
    FORMAT_MARKER,
    METADATA_DIR,
    check_marker,
    create_root,
    is_ours,
    metadata_dir,
    unknown_format_error,
)
from pyspark_kafkalog.metadata.commit_log import Commit, CommitLog
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.image_delta import apply, start_delta
from pyspark_kafkalog.metadata.invariants import check_invariants
from pyspark_kafkalog.metadata.records import FORMAT_VERSION, MetadataRecord, record
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.names import encode_uuid

__all__ = ["CommitOutcome", "MetadataStore", "is_ours", "time_ms"]

_MAX_ATTEMPTS: Final = 100
_FIRST_BACKOFF_S: Final = 0.002
_LONGEST_BACKOFF_S: Final = 0.25
_MAX_CACHED_IMAGES: Final = 32

Clock = Callable[[], int]
Build = Callable[[MetadataImage], Sequence[MetadataRecord]]


def time_ms() -> int:
    """Wall clock in ms."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What `MetadataStore.commit` ended with: the newest image, and the commit made, None when there was none to
    make."""

    image: MetadataImage
    commit: Commit | None


class _ImageCache:
    """Images of the roots this process has open, so that opening one again reads only what is new."""

    def __init__(self) -> None:
        self._images: dict[object, MetadataImage] = {}
        self._lock = threading.Lock()

    def get(self, key: object) -> MetadataImage | None:
        with self._lock:
            return self._images.get(key)

    def put(self, key: object, image: MetadataImage) -> None:
        with self._lock:
            newest = self._images.pop(key, None)
            if newest is None or newest.next_offset < image.next_offset:
                newest = image
            self._images[key] = newest
            while len(self._images) > _MAX_CACHED_IMAGES:
                del self._images[next(iter(self._images))]


_CACHE: Final = _ImageCache()


def _identity(root: Path) -> object:
    """Tells one root from another that was made later under the same path: its marker file is never written again."""
    marker = os.stat(metadata_dir(root) / FORMAT_MARKER)
    return (marker.st_dev, marker.st_ino, marker.st_mtime_ns, os.path.realpath(root))


class MetadataStore:
    """One root's metadata. Get it with `open` or `create`. Threads may share it."""

    def __init__(
        self, root: Path, *, clock: Clock = time_ms, rng: random.Random | None = None, fs: FileSystem = LOCAL
    ) -> None:
        self.root = root
        self.log = CommitLog(metadata_dir(root), fs=fs)
        self._clock = clock
        self._rng = rng if rng is not None else random.SystemRandom()
        self._identity = _identity(root)
        self._refresh_lock = threading.Lock()
        self._image = _CACHE.get(self._identity) or self._replay()

    @staticmethod
    def create(
        root: Path,
        *,
        cluster_id: str | None = None,
        node_id: int = DEFAULT_NODE_ID,
        clock: Clock = time_ms,
        rng: random.Random | None = None,
        fs: FileSystem = LOCAL,
    ) -> MetadataStore:
        """Make `root` a log directory of ours, or finish making one, and open it; ids left out are random.

        Raises LogDirError when it is one already, ReadOnlyLogDirError when it is a Kafka broker's.
        """
        rng = rng if rng is not None else random.SystemRandom()
        create_root(root, cluster_id=cluster_id, node_id=node_id, timestamp_ms=clock(), rng=rng, fs=fs)
        return MetadataStore.open(root, clock=clock, rng=rng, fs=fs)

    @staticmethod
    def open(
        root: Path, *, clock: Clock = time_ms, rng: random.Random | None = None, fs: FileSystem = LOCAL
    ) -> MetadataStore:
        """The store of `root`, with the image as of now.

        Raises LogDirError when `root` is not ours or its creation was not finished, CorruptRecordError for a damaged
        commit, UnsupportedFormatError when a later version of this package made it.
        """
        if not is_ours(root):
            raise LogDirError(f"{root} has no metadata log of this package ({METADATA_DIR}/{FORMAT_MARKER})")
        check_marker(root)
        store = MetadataStore(root, clock=clock, rng=rng, fs=fs)
        if store.refresh().format_version is None:
            raise LogDirError(f"creating the log directory {root} was not finished: create it again")
        return store

    @property
    def image(self) -> MetadataImage:
        """The image as of the last refresh or commit."""
        return self._image

    def refresh(self) -> MetadataImage:
        """Take in the commits made since; the newest image. One failed open when there are none."""
        with self._refresh_lock:
            image = self._image
            for commit in self.log.read_from(image.next_offset):
                image = self._apply(image, commit)
            self._set_image(image)
            return image

    def _replay(self) -> MetadataImage:
        image = MetadataImage()
        for commit in self.log.replay():
            image = self._apply(image, commit)
        return image

    def _set_image(self, image: MetadataImage) -> None:
        if image is not self._image:
            self._image = image
            _CACHE.put(self._identity, image)

    def _apply(self, image: MetadataImage, commit: Commit) -> MetadataImage:
        file = str(self.log.path(commit.base_offset))
        try:
            after = apply(image, commit)
        except InvalidRecordError as error:
            raise CorruptRecordError(
                file=file, position=0, expected="a commit that fits the ones before it", found=str(error)
            ) from error
        if after.format_version is not None and after.format_version != FORMAT_VERSION:
            raise unknown_format_error(file, str(after.format_version))
        return after

    def commit(self, build: Build, *, operation: str, max_attempts: int = _MAX_ATTEMPTS) -> CommitOutcome:
        """Publish the records that `build` makes from the newest image; again from a newer one when another was first.

        `build` may return no records: then nothing is published. What it raises ends the commit. `operation` is one
        or two words for the history. Invariants are checked first (InvalidRecordError).

        Raises CommitConflictError after `max_attempts` lost races, and CommitStateUnknownError when publishing failed
        and it cannot be told whether the commit is there.
        """
        # Never from `rng`: writers with the same seed must not take each other's commits for their own.
        commit_id = encode_uuid(os.urandom(16))
        failure: CommitConflictError | CommitStateUnknownError | None = None
        unsure_since: int | None = None
        for attempt in range(max_attempts):
            image = self.refresh()
            records = build(image)
            if not records:
                return CommitOutcome(image, None)
            header = record("CommitRecord", commitId=commit_id, operation=operation)
            try:
                return self._publish(image, (header, *records))
            except CommitConflictError as error:
                failure = error
            except CommitStateUnknownError as error:
                failure = error
                unsure_since = image.next_offset if unsure_since is None else unsure_since
            if unsure_since is not None:
                own = self._find_own(commit_id, unsure_since)
                if own is not None:
                    return CommitOutcome(self.refresh(), own)
            self._back_off(attempt)
        raise failure if failure is not None else ValueError("max_attempts must be 1 or more")

    def _find_own(self, commit_id: str, since: int) -> Commit | None:
        """Our commit, made durable, if it is among those from offset `since` on.

        Asked after every attempt that follows one whose end is unknown: its link may come through late, and then the
        next attempt, at the same name, loses the race to it. The image says nothing here: another thread may have
        taken the commit in.
        """
        try:
            own = next((commit for commit in self.log.read_from(since) if _commit_id(commit) == commit_id), None)
            if own is not None:
                self.log.sync()
        except OSError as error:
            raise CommitStateUnknownError(
                f"a commit at offset {since} or later may be there or not: looking for it failed: {error}"
            ) from error
        return own

    def _publish(self, image: MetadataImage, records: tuple[MetadataRecord, ...]) -> CommitOutcome:
        timestamp_ms = self._clock()
        next_offset = image.next_offset + len(records)
        delta = start_delta(image, base_offset=image.next_offset, timestamp_ms=timestamp_ms)
        delta.replay(records)
        after = delta.build(next_offset)
        check_invariants(image, after, delta.touched)
        commit = self.log.publish(image.next_offset, records, timestamp_ms=timestamp_ms)
        with self._refresh_lock:
            if self._image is image:
                self._set_image(after)
        return CommitOutcome(after, commit)

    def _back_off(self, attempt: int) -> None:
        ceiling = min(_FIRST_BACKOFF_S * 2 ** min(attempt, 16), _LONGEST_BACKOFF_S)
        time.sleep(ceiling * self._rng.random())


def _commit_id(commit: Commit) -> str | None:
    first = commit.records[0]
    return first.fields["commitId"] if first.type == "CommitRecord" else None
