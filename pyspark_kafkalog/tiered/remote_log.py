"""Segments of one partition in a store: copied by a broker or by the root, or merged runs of an object root.

    RemoteExtent   one such segment, as an Extent
    SegmentRange   some of a partition's, or all; a plan carries those that its tasks read
    RemoteLog      the same, with the storage that they are in

Nothing is listed or requested here before a segment is read. Source of the terms: RemoteLogManager of Kafka.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.storage.artefacts.index_file import MappedIndex, OffsetIndex, TimeIndex
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, parse_aborted
from pyspark_kafkalog.tiered.layouts.segment_objects import IndexBytes, IndexKind
from pyspark_kafkalog.tiered.objects import LogContent, ReadableObjects, RemoteBytes, process_cache
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Self

#: A segment as brokers describe it, or as a commit does.
AnySegment: TypeAlias = RemoteSegment | SegmentObject
_Segment = TypeVar("_Segment", RemoteSegment, SegmentObject)
_Index = TypeVar("_Index", bound=MappedIndex)

#: Segments with transaction indexes behind a task's range that travel with its plan.
LATER_SEGMENTS_MAX: Final = 64
NO_REMOTE_OFFSET: Final = -1
_BASE_OFFSET: Final = attrgetter("base_offset")
_END_OFFSET: Final = attrgetter("end_offset")


class ReadableLayout(Protocol):
    """How the objects of a segment are read: a SegmentLayout, which describes the methods, or an OwnLayout."""

    @property
    def keeps_indexes(self) -> bool:
        """Whether `index` keeps what it returns in this process; else the extent does."""
        ...

    def log_content(self, store: ReadableObjects, of: TopicIdPartition, segment: Any) -> LogContent: ...

    def index(
        self, store: ReadableObjects, of: TopicIdPartition, segment: Any, kind: IndexKind
    ) -> IndexBytes | None: ...


class SegmentStorage(Protocol):
    """Where segments are, and their layout: a RemoteStorage, an OwnStorage, or the store of an object root."""

    @property
    def location(self) -> str:
        """What error messages call it."""
        ...

    @property
    def layout(self) -> ReadableLayout: ...

    def store(self) -> ReadableObjects: ...


@dataclass(frozen=True, slots=True)
class RemoteExtent(Generic[_Segment]):
    """A segment in a store as an Extent."""

    store: ReadableObjects
    partition: TopicIdPartition
    segment: _Segment
    layout: ReadableLayout

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def end_offset(self) -> int:
        return self.segment.end_offset

    @property
    def segment_id(self) -> str:
        return self.segment.segment_id

    @property
    def known_size_bytes(self) -> int:
        return self.segment.size_bytes

    @property
    def known_max_timestamp_ms(self) -> int | None:
        return self.segment.max_timestamp_ms

    def open(self) -> RemoteBytes:
        """Open the `.log`; a missing object is found by the first read."""
        return RemoteBytes(self.layout.log_content(self.store, self.partition, self.segment))

    def offset_index(self) -> OffsetIndex | None:
        return self._hint(OffsetIndex, IndexKind.OFFSET)

    def time_index(self) -> TimeIndex | None:
        return self._hint(TimeIndex, IndexKind.TIMESTAMP)

    def aborted_transactions(self) -> list[AbortedTxn] | None:
        """The entries of the transaction index, None if it is not there, and may never have been.

        Raises FileNotFoundError, CorruptIndexError.
        """
        if not has_transaction_index(self.segment):
            return []
        index = self.index(IndexKind.TRANSACTION)
        if index is None:
            return None
        return parse_aborted(bytes(index.data), file=index.name, offsets=range(self.base_offset, self.end_offset))

    def index(self, kind: IndexKind) -> IndexBytes | None:
        """An index, kept in this process; None if the segment has no such index.

        Raises FileNotFoundError, ObjectStoreError, DiskFormatError.
        """

        def load() -> tuple[IndexBytes | None, int]:
            found = self.layout.index(self.store, self.partition, self.segment, kind)
            return found, 0 if found is None else len(found.data)

        if self.layout.keeps_indexes:
            return load()[0]
        kept: IndexBytes | None = process_cache().get((self.store.url, self.segment_id, kind), load)
        return kept

    def index_bytes(self, kind: IndexKind) -> bytes:
        """The bytes of an index, none if the segment has no such index. Raises as `index`."""
        index = self.index(kind)
        return b"" if index is None else bytes(index.data)

    def _hint(self, kind: type[_Index], index_kind: IndexKind) -> _Index | None:
        """An index that readers confirm against the batches: a missing or damaged one only costs time."""
        try:
            index = self.index(index_kind)
            return None if index is None else kind.over(index.data, self.base_offset, name=index.name)
        except (FileNotFoundError, DiskFormatError):
            return None


def has_transaction_index(segment: AnySegment) -> bool:
    """Whether the segment may have aborted transactions."""
    if isinstance(segment, SegmentObject):
        return segment.transaction_index_bytes > 0
    return segment.has_transaction_index


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRange:
    """Segments of one partition in order of their offsets, none inside another.

    `indexed` are those with a transaction index; a part has none, as it is not divided further. `is_whole` is False if
    there are more transaction indexes behind a part than those of `segments`.
    """

    segments: tuple[AnySegment, ...]
    indexed: tuple[AnySegment, ...] = ()
    is_whole: bool = True

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> Self:
        """What a reader of the offsets [start_offset, end_offset) needs, without anything else.

        `committed`: it leaves out aborted transactions, whose markers may be in later segments.
        """
        first = bisect_right(self.segments, start_offset, key=_END_OFFSET)
        inside = self.segments[first : bisect_left(self.segments, end_offset, lo=first, key=_BASE_OFFSET)]
        if not committed:
            return replace(self, segments=inside, indexed=())
        at = bisect_left(self.indexed, end_offset, key=_BASE_OFFSET)
        later = self.indexed[at : at + LATER_SEGMENTS_MAX]
        is_whole = at + len(later) == len(self.indexed)
        return replace(self, segments=(*inside, *later), indexed=(), is_whole=is_whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLog(SegmentRange):
    """The part of a partition's log that is in a store; can be pickled if the storage can.

    `highest_offset` is the last offset that was ever copied, -1 if none was. Of the offsets below `known_end_offset` no
    segment is missing that a reader needs.
    """

    storage: SegmentStorage
    partition: TopicIdPartition
    highest_offset: int
    known_end_offset: int

    @property
    def location(self) -> str:
        """What error messages call the storage."""
        return self.storage.location

    @property
    def copies(self) -> tuple[RemoteSegment, ...]:
        """The segments that a broker has copied; none if the root has."""
        return tuple(each for each in self.segments if isinstance(each, RemoteSegment))

    def extents_below(self, offset: int) -> list[RemoteExtent[Any]]:
        """The segments that begin below `offset`, in order. Makes no request."""
        segments = self.segments[: bisect_left(self.segments, offset, key=_BASE_OFFSET)]
        if not segments:
            return []  # without opening the store
        store, layout = self.storage.store(), self.storage.layout
        return [RemoteExtent(store, self.partition, each, layout) for each in segments]


def broker_log(
    storage: SegmentStorage,
    partition: TopicIdPartition,
    segments: tuple[RemoteSegment, ...],
    highest_offset: int,
    known_end_offset: int,
) -> RemoteLog:
    """The remote log of segments that a broker has copied, as `readable_segments` returns them."""
    return RemoteLog(
        segments=segments,
        indexed=tuple(filter(has_transaction_index, segments)),
        storage=storage,
        partition=partition,
        highest_offset=highest_offset,
        known_end_offset=known_end_offset,
    )
