"""`SegmentLayout`: where a storage plugin puts the objects of a remote segment, and how it writes them.

layouts.local.LocalLayout     Kafka's own LocalTieredStorage: plain copies of the files
layouts.aiven.AivenLayout     Aiven's plugin: chunks, perhaps compressed or encrypted, one object of indexes, a manifest
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NoReturn, Protocol, TypeAlias, TypeVar

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.object_store.store import ByteRange, ObjectMetadata
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.tiered.objects import LogContent, ReadableObjects
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

#: This much is held in memory. Indexes have at most `segment.index.bytes`, 10 MiB by default.
INDEX_BYTES_MAX: Final = 256 << 20
_REQUESTS_AT_ONCE: Final = 32

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class IndexKind(Enum):
    """The indexes of a remote segment (RemoteStorageManager.IndexType)."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producerSnapshot"
    LEADER_EPOCH = "leaderEpoch"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class IndexBytes:
    """The bytes of an index, and what error messages call it."""

    name: str
    data: Buffer


#: The start offset and the id of a copy, as its objects are named.
Copy: TypeAlias = tuple[int, str]


class SegmentLayout(Protocol):
    """Finds and reads the objects of remote segments. Immutable; reads through the store that it is given."""

    @property
    def name(self) -> str:
        """The value of the option remoteStorageLayout."""
        ...

    @property
    def keeps_indexes(self) -> bool:
        """False: `index` makes a request each time."""
        ...

    def log_content(self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment) -> LogContent:
        """The segment's `.log`. May make a request."""
        ...

    def index(
        self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment, kind: IndexKind
    ) -> IndexBytes | None:
        """An index; None if the segment has no such index.

        Raises FileNotFoundError, ObjectStoreError, DiskFormatError.
        """
        ...

    def partitions(self, store: ReadableObjects) -> dict[TopicIdPartition, list[ObjectMetadata]]:
        """The objects of each partition, from one listing of the store. Other objects are left out."""
        ...

    def objects_of(self, store: ReadableObjects, of: TopicIdPartition) -> list[ObjectMetadata]:
        """The objects of one partition, from a listing of its folder."""
        ...

    @property
    def required(self) -> frozenset[str]:
        """The suffixes of the objects that every whole copy of a segment has."""
        ...

    def copies(self, objects: Sequence[ObjectMetadata]) -> dict[Copy, dict[str, int]]:
        """The sizes of the objects of each copy by suffix, among the objects of a partition."""
        ...

    def segments(
        self, store: ReadableObjects, of: TopicIdPartition, objects: Sequence[ObjectMetadata]
    ) -> list[RemoteSegment]:
        """The complete copies among the objects of a partition, in order of their offsets.

        Raises ObjectStoreError, DiskFormatError. A copy that is deleted meanwhile is left out.
        """
        ...


def wrong_bytes(name: str, position: int, expected: str, found: str) -> NoReturn:
    """Raise CorruptRecordError for bytes of an object that are not what they must be."""
    raise CorruptRecordError(
        file=name,
        position=position,
        expected=expected,
        found=found,
        advice="the object was damaged or replaced: restore it from a copy",
    )


def read_ranges(store: ReadableObjects, key: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
    """The bytes of the ranges, all of them. Raises FileNotFoundError, CorruptRecordError for fewer or more bytes."""
    parts = store.get_ranges(key, ranges)
    for wanted, part in zip(ranges, parts, strict=True):
        if len(part) != wanted.size_bytes:
            wrong_bytes(object_name(store, key), wanted.start, f"{wanted.size_bytes} bytes", f"{len(part)} bytes")
    return parts


def object_name(store: ReadableObjects, key: str) -> str:
    """What error messages call an object."""
    return f"{store.url.rstrip('/')}/{key}"


def for_each(do: Callable[[_Item], _Result | None], items: Iterable[_Item]) -> list[_Result]:
    """The results of small requests, many at once, in order, without None."""
    with Workers(_REQUESTS_AT_ONCE, thread_name_prefix="kafkalog-remote") as pool:
        return [each for each in pool.map(do, items) if each is not None]
