"""The objects of an object root's metadata, what a commit's object holds, and requests for small objects.

    <url>/
      meta.properties                                   as on a file system: the ids of the root               (create)
      __cluster_metadata-0/
        kafkalog-format                                 "version=2", "store=object" (root_format.py)           (create)
        <20 digits>.log                                 a commit, named by its base offset                     (create)
        <20 digits>-0000000000.checkpoint               a snapshot, by its end offset, in KRaft's format       (create)
        kafkalog-newest-snapshot                        hint: its file name and size in bytes                  (put)
        kafkalog-start                                  commits below this offset are removed (boundary.py)    (put)

A commit's object begins with its own record batch. The batches of the commits before it follow, the newest first: the
object is its batch and the whole object of the commit before, as long as that one has less than 64 KiB. So few objects
hold many commits, and a process that is far behind reads these few. Sizes rise within such a chain, so a listing shows
where each ends: at an object whose successor is not larger. A reader of a commit by its name needs the first batch
only.

Objects are created or replaced as a whole, so a crash leaves no partial ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.metadata.commit_log import MAX_COMMIT_BYTES, Commit, decode_commit
from pyspark_kafkalog.metadata.root_format import FORMAT_MARKER, METADATA_DIR
from pyspark_kafkalog.metadata.snapshots import SnapshotId
from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStore
from pyspark_kafkalog.record.header import parse_header
from pyspark_kafkalog.storage.names import LOG_SUFFIX

#: An object of this size or more is not carried by the next commit. Equal to the least distance of snapshots, so that
#: a chain ends about where a snapshot is due.
CARRIED_BYTES_MAX: Final = 64 << 10

MAX_OBJECT_BYTES: Final = MAX_COMMIT_BYTES + CARRIED_BYTES_MAX

_SMALL_BYTES_MAX: Final = 1 << 10

MARKER_KEY: Final = f"{METADATA_DIR}/{FORMAT_MARKER}"
META_PROPERTIES_BYTES_MAX: Final = 1 << 20

_COMMIT: Final = re.compile(re.escape(METADATA_DIR) + r"/(\d{20})" + re.escape(LOG_SUFFIX))


def carried_by_next(data: bytes) -> bytes:
    """What the next commit's object holds of a commit's object with the content `data`."""
    return data if len(data) < CARRIED_BYTES_MAX else b""


def commit_key(base_offset: int) -> str:
    """The key of the commit at `base_offset`."""
    return f"{METADATA_DIR}/{base_offset:020d}{LOG_SUFFIX}"


def snapshot_key(snapshot: SnapshotId) -> str:
    """The key of a snapshot."""
    return f"{METADATA_DIR}/{snapshot.file_name}"


def metadata_key(name: str) -> str:
    """The key of the small object `name` beside the commits."""
    return f"{METADATA_DIR}/{name}"


def parse_commit_key(key: str) -> int | None:
    """The base offset of the commit with that key; None if it is not a commit's."""
    match = _COMMIT.fullmatch(key)
    return None if match is None else int(match[1])


def parse_snapshot_key(key: str) -> SnapshotId | None:
    """The snapshot with that key; None if it is not a snapshot's."""
    folder, _, name = key.rpartition("/")
    return SnapshotId.parse(name) if folder == METADATA_DIR else None


@dataclass(frozen=True, slots=True)
class _Slice:
    base_offset: int
    position: int
    size_bytes: int


class CommitObject:
    """The content of one commit's object: its own commit, and those that it carries.

    Raises CorruptRecordError, which names `file`, unless the batches' headers are those of consecutive commits up to
    the one at `base_offset`. The batches themselves are checked when they are decoded.
    """

    def __init__(self, data: bytes, base_offset: int, file: str) -> None:
        self.base_offset = base_offset
        self._data = data
        self._file = file
        self._slices = {each.base_offset: each for each in _slices(data, base_offset, file)}

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    @property
    def first_offset(self) -> int:
        """The base offset of the oldest commit in the object."""
        return min(self._slices)

    def offsets(self) -> list[int]:
        """The base offsets of the commits in the object, oldest first."""
        return sorted(self._slices)

    def __contains__(self, base_offset: int) -> bool:
        return base_offset in self._slices

    def commit(self, base_offset: int) -> Commit:
        """One of the commits. Raises CorruptRecordError or UnsupportedFormatError."""
        found = self._slices[base_offset]
        is_own = base_offset == self.base_offset
        return decode_commit(
            self._data[found.position : found.position + found.size_bytes],
            base_offset,
            self._file,
            position=found.position,
            carried_by_next=carried_by_next(self._data) if is_own else b"",
        )


def _slices(data: bytes, base_offset: int, file: str) -> Iterator[_Slice]:
    expected, position = base_offset, 0
    while position < len(data) or position == 0:
        header = parse_header(data, position, file=file, file_position=position)
        size_bytes = min(header.size_bytes, len(data) - position)  # decoding reports that it is too short
        if position == 0:
            found, is_next = header.base_offset, header.base_offset == expected
        else:
            found, is_next = header.next_offset, header.base_offset < header.next_offset == expected
        if not is_next or header.base_offset < 0:
            what = "base offset" if position == 0 else "a batch that ends at offset"
            raise CorruptRecordError(
                file=file, position=position, expected=f"{what} {expected} by the name", found=str(found)
            )
        yield _Slice(header.base_offset, position, size_bytes)
        expected = header.base_offset
        position += size_bytes


def name_of(store: ObjectStore, key: str) -> str:
    """What messages call the object: its URL."""
    return f"{store.url}/{key}"


def read_if_there(store: ObjectStore, key: str, *, max_bytes: int = _SMALL_BYTES_MAX) -> bytes | None:
    """The content of a small object; None if it does not exist. Raises ObjectStoreError."""
    try:
        return store.get(key, max_bytes=max_bytes)
    except ObjectNotFoundError:
        return None
