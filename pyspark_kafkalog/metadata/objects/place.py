"""A root's place in an object store. For its objects see layout.py.

No object is looked at to see whether the root is still the same: its directory id is in the boundary, which is read
every ten minutes (boundary.py), and when the root is opened. So a process asks for the ids of a root only once: the
boundary confirms them when it opens the root again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from pyspark_kafkalog.errors import DiskFormatError, LogDirError
from pyspark_kafkalog.metadata.commit_log import Commit, KnownSnapshot, LoadedImage, OldCommits
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.objects.boundary import Boundary
from pyspark_kafkalog.metadata.objects.housekeeping import ObjectHousekeeping
from pyspark_kafkalog.metadata.objects.layout import MARKER_KEY, META_PROPERTIES_BYTES_MAX, name_of, read_if_there
from pyspark_kafkalog.metadata.objects.log import ObjectCommitLog
from pyspark_kafkalog.metadata.objects.snapshots import ObjectSnapshots
from pyspark_kafkalog.metadata.root_format import check_object_format_version, check_object_marker, other_kind
from pyspark_kafkalog.metadata.snapshots import LoadedSnapshot
from pyspark_kafkalog.object_store.repeat import Waiting
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity, parse_meta_properties
from pyspark_kafkalog.storage.names import META_PROPERTIES
from pyspark_kafkalog.threads import side_by_side

#: The roots that this process has opened, by the client of their store.
_IDENTITIES: Final[WeakKeyDictionary[ObjectStore, RootIdentity]] = WeakKeyDictionary()


class ObjectPlace:
    """The root with `identity` in `store`."""

    repeats_creates = True

    def __init__(self, store: ObjectStore, identity: RootIdentity, boundary: Boundary, *, waiting: Waiting) -> None:
        self.location = store.url
        self.identity: RootIdentity | None = identity
        self.opened: object = identity
        self._boundary = boundary
        self.log = ObjectCommitLog(store, boundary, waiting=waiting)
        self.snapshots = ObjectSnapshots(store, boundary)
        self._housekeeping = ObjectHousekeeping(store, boundary, self.snapshots)

    @staticmethod
    def open(store: ObjectStore, *, clock: Callable[[], int], waiting: Waiting) -> ObjectPlace:
        """The place of the root in `store`: two requests at once. Raises the errors of MetadataStore."""
        marker, properties = side_by_side(
            [
                partial(read_if_there, store, MARKER_KEY),
                partial(read_if_there, store, META_PROPERTIES, max_bytes=META_PROPERTIES_BYTES_MAX),
            ]
        )
        if marker is None:
            raise LogDirError(
                f"{store.url} is not a native log directory: expected the object {MARKER_KEY}, found no such object"
            )
        check_object_marker(marker, name_of(store, MARKER_KEY))
        if properties is None:
            raise LogDirError(f"creating the log directory {store.url} was not finished: create it again")
        identity = _IDENTITIES[store] = _identity(properties, name_of(store, META_PROPERTIES))
        return ObjectPlace._of(store, identity, clock=clock, waiting=waiting)

    @staticmethod
    def open_again(store: ObjectStore, *, clock: Callable[[], int], waiting: Waiting) -> ObjectPlace | None:
        """The place of the root that this process has opened in `store` before; None if it has not. No request.

        It holds only if `is_confirmed` is true after the log was read to its end.
        """
        identity = _IDENTITIES.get(store)
        return None if identity is None else ObjectPlace._of(store, identity, clock=clock, waiting=waiting)

    @staticmethod
    def _of(store: ObjectStore, identity: RootIdentity, *, clock: Callable[[], int], waiting: Waiting) -> ObjectPlace:
        boundary = Boundary(store, identity.directory_id or "", clock=clock, monotonic=waiting.monotonic)
        return ObjectPlace(store, identity, boundary, waiting=waiting)

    @property
    def is_confirmed(self) -> bool:
        """Whether the boundary, when it was read last, was that of the root with `identity`."""
        return self._boundary.is_stored

    def check_root(self, known: object) -> object:
        return known  # reading the boundary reports another root

    def cache_key(self, known: object) -> object:
        return (known, self.location)

    def check_format(self) -> None:
        """Does nothing: an upgrade is a commit, and the create of the next one decides."""

    def check_format_version(self, version: int, file: str, *, is_object_root: bool) -> None:
        check_object_format_version(version, file)
        if not is_object_root:
            raise other_kind(file, expected="a root in an object store", found="one on a file system")

    def state_of(self, loaded: LoadedImage) -> object:
        return self.identity  # reading the log reports what was removed

    def sees_end(self, loaded: LoadedImage) -> bool:
        return self.log.sees_end(loaded.image.next_offset)

    def load_newest(self) -> LoadedSnapshot:
        return self.snapshots.load_newest()

    def head(self) -> int | None:
        return None

    def publish(
        self,
        loaded: LoadedImage,
        records: Sequence[MetadataRecord],
        *,
        timestamp_ms: int,
        frees_space: bool,
        before_visible: Callable[[], None] | None = None,
    ) -> Commit:
        if before_visible is not None:
            before_visible()
        return self.log.publish(loaded, records, timestamp_ms=timestamp_ms)

    def after_commit(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        return self._housekeeping.after_commit(loaded, now_ms=now_ms)

    def write_due_snapshot(self, loaded: LoadedImage, *, now_ms: int) -> KnownSnapshot | None:
        return self._housekeeping.write_due_snapshot(loaded, now_ms=now_ms)

    def remove_old_commits(self, loaded: LoadedImage, *, now_ms: int, clock_ms: int, dry_run: bool) -> OldCommits:
        return self._housekeeping.remove_old_commits(loaded, now_ms=now_ms, clock_ms=clock_ms, dry_run=dry_run)


def _identity(data: bytes, file: str) -> RootIdentity:
    properties = parse_meta_properties(data, file)
    if properties.cluster_id is None or properties.directory_id is None:
        raise DiskFormatError(
            file=file,
            position=0,
            expected="properties cluster.id and directory.id",
            found="none",
            advice="restore the object, from an earlier version of it if the bucket keeps versions",
        )
    return RootIdentity(properties.cluster_id, properties.directory_id)
