"""Segments of one partition in a store, and the log that they are the older part of.

    RemoteExtent   one segment, as an Extent: copied by a broker or by the root, or merged runs of an object root
    SegmentRange   some of a partition's segments, or all; a plan carries those that its tasks read
    RemoteLog      the same, with the storage that they are in
    LogExtents     these segments, then the tail: local segments of a directory, or the runs of an object root

Nothing is listed or requested here before a segment is read. An offset that the tail has is read there, also if the
store has it too. Segments in a store are read by ranges of their objects, their indexes as a whole, through a cache.

An object can be deleted while it is read: then the log is looked up again. If it does not name the segment any more,
retention or a merge has deleted it; otherwise the object is missing. In both cases its offsets are out of range. Local
retention deletes segments that are in the store, too: when the local segments no longer begin where the known remote
ones end, the log is looked up again.

For read_committed, transactions that were aborted are found in the transaction indexes of the segments from the first
one of the range on, as far as an entry says that all before it is decided, at last in the tail
(RemoteLogManager.collectAbortedTransactions). If a segment may have an index and none is there, or it is damaged, the
log is read instead. Source of the terms: RemoteLogManager of Kafka.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, OffsetOutOfRangeError
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.storage.artefacts.index_file import MappedIndex, OffsetIndex, TimeIndex
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, collect_aborted, parse_aborted
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions, confirmed
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader, PartitionExtents
from pyspark_kafkalog.storage.segment.reader import Extent, LocalExtent
from pyspark_kafkalog.tiered.objects import (
    IndexBytes,
    IndexKind,
    LogContent,
    ReadableObjects,
    RemoteBytes,
    process_cache,
)
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition
from pyspark_kafkalog.values import dataclass

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


_NO_TAIL: Final = 1 << 63
#: The segments in the store, and the tail; None without one.
SegmentsAndTail: TypeAlias = tuple[RemoteLog, PartitionExtents | None]


def tiered_extents(
    remote: RemoteLog, local: LocalExtents | None, look_up: Callable[[], RemoteLog | None]
) -> LogExtents:
    """The extents of a log with local segments, if it has any. `look_up` returns the newest remote part."""
    return LogExtents(remote, local, lambda: (look_up() or remote.part(0, 0, committed=False), local))


class LogExtents:
    """A PartitionExtents of segments in a store, and of a tail from its first offset on.

    `look_up` returns the newest of both; it is called when an object turns out to be missing.
    """

    def __init__(
        self, remote: RemoteLog, tail: PartitionExtents | None, look_up: Callable[[], SegmentsAndTail]
    ) -> None:
        self._remote = remote
        self._tail = tail
        self._look_up = look_up
        self._lost: set[str] = set()
        self._looked_up_for = -1  # the tail's start for which the log was looked up again
        self._listed: tuple[int, Sequence[RemoteExtent[Any]]] = (0, ())  # of the segments, below that offset

    @property
    def name(self) -> str:
        return self._tail.name if self._tail is not None else f"{self._remote.location}: {self._remote.partition}"

    def current(self) -> list[Extent]:
        """The segments as they were looked up last, then the tail as it is now."""
        tail: Sequence[Extent] = () if self._tail is None else self._tail.current()
        if tail and self._remote.known_end_offset < tail[0].base_offset != self._looked_up_for:
            self._look_up_again()
            self._looked_up_for = tail[0].base_offset  # not before: a failure is not the answer that nothing is remote
        return [*self._segments_below(_tail_start(tail)), *tail]

    def after_loss(self, extent: Extent) -> list[Extent]:
        """The extents after an object turned out to be missing, looked up again.

        Raises OffsetOutOfRangeError if it should still be there; later calls of `current` leave its segment out.
        """
        if isinstance(extent, RemoteExtent):
            self._look_up_again()
            self._lost.add(extent.segment_id)
            if self._has(extent):
                raise OffsetOutOfRangeError(
                    f"offsets {extent.base_offset} to {extent.end_offset - 1} of "
                    f"{self._remote.partition.topic_partition} are in the remote segment {extent.segment_id}, and an "
                    f"object of it is missing in {self._remote.location}"
                )
        elif not isinstance(extent, LocalExtent) and self._tail is not None:
            self._look_up_again()
            self._tail.after_loss(extent)
        return self.current()

    def widen(self) -> None:
        """List the whole log, as of now."""
        self._look_up_again()

    def is_being_replaced(self, base_offset: int) -> bool:
        return self._tail is not None and self._tail.is_being_replaced(base_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """See PartitionExtents. A transaction may be aborted long after its records, in a later segment or run.

        A local segment that becomes a remote one meanwhile takes its transaction index along: then all are read again.
        """
        while True:
            tail_start = _tail_start(self.current())
            try:
                found = self._aborted(self._segments_below(tail_start), tail_start, start_offset, end_offset)
            except _LookedUpAgain:
                continue
            except OffsetOutOfRangeError:
                if _tail_start(self.current()) == tail_start:
                    raise
                continue  # the first local segments were deleted before their markers were read
            except (_NoIndex, CorruptIndexError):
                self._look_up_again()  # a task's part may lack later segments without an index, and later markers
                reader = LogReader(self, self._remote.partition.topic_partition)
                scanned = reader.transactions(start_offset, end_offset, open_before={})
                return AbortedTransactions(confirmed(scanned, ())[0])
            if _tail_start(self.current()) == tail_start:
                return AbortedTransactions(found, indexed_until=min(tail_start, self._remote.highest_offset + 1))

    def _aborted(
        self, segments: Sequence[RemoteExtent[Any]], tail_start: int, start_offset: int, end_offset: int
    ) -> Collection[AbortedTxn]:
        """From the segments in order, then from the tail. Raises _LookedUpAgain, _NoIndex, CorruptIndexError."""
        found: dict[tuple[int, int], AbortedTxn] = {}
        at = len(segments) if start_offset >= tail_start else bisect_right(segments, start_offset, key=_BASE_OFFSET) - 1
        for extent in segments[max(at, 0) :]:
            try:
                entries = extent.aborted_transactions()
            except FileNotFoundError:
                self._look_up_again()
                raise _NoIndex if self._has(extent) else _LookedUpAgain from None
            if entries is None:
                raise _NoIndex
            result = collect_aborted(entries, start_offset, end_offset)
            found.update({(each.producer_id, each.last_offset): each for each in result.transactions})
            if result.is_complete:
                return found.values()
        if not self._remote.is_whole:
            self._look_up_again()
            raise _LookedUpAgain
        if self._tail is not None:
            in_tail = self._tail.aborted_transactions(start_offset, end_offset)
            found.update({(each.producer_id, each.last_offset): each for each in in_tail.transactions})
        return found.values()

    def _segments_below(self, tail_start: int) -> Sequence[RemoteExtent[Any]]:
        """The segments that begin below the tail."""
        if self._listed[0] != tail_start:
            self._listed = tail_start, self._remote.extents_below(tail_start)
        if not self._lost:
            return self._listed[1]
        return [each for each in self._listed[1] if each.segment_id not in self._lost]

    def _has(self, extent: RemoteExtent[Any]) -> bool:
        """Whether the log still has the segment."""
        return any(each.segment_id == extent.segment_id for each in self._remote.segments)

    def _look_up_again(self) -> None:
        self._remote, self._tail = self._look_up()
        self._listed = 0, ()


class _LookedUpAgain(Exception):
    """The list of segments has changed."""


class _NoIndex(Exception):
    """A segment may have aborted transactions, and no index says so."""


def _tail_start(extents: Sequence[Extent]) -> int:
    """The first offset of the tail; above all offsets without a tail."""
    return next((each.base_offset for each in extents if not isinstance(each, RemoteExtent)), _NO_TAIL)
