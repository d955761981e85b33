"""A partition's log whose older segments are remote: remote and local extents as one sequence, without a seam.

    BrokerRemoteLog   the remote segments that a broker copied; those of a native root are own_storage.OwnRemoteLog
    TieredExtents     the remote segments, then the local ones: what a LogReader reads

An offset that is local is read locally, also if it is remote too. Local retention deletes segments that are remote:
when the local segments no longer begin where the known remote ones end, the list of these is looked up again. Remote
segments are read by ranges of their objects, their indexes as a whole, through a cache. An object can be deleted while
it is read: then the list is looked up again, too, once for each object. If the segment is gone from the list as well,
retention has deleted it; if not, the object is missing. In both cases its offsets are out of range.

For read_committed, transactions that were aborted are found in the transaction indexes of the remote segments from the
first one of the range on, as far as an entry says that all before it is decided, at last in the local segments
(RemoteLogManager.collectAbortedTransactions). If a remote segment may have an index and none is there, or it is
damaged, the log is read instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Protocol, TypeVar, cast

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, OffsetOutOfRangeError
from pyspark_kafkalog.storage.artefacts.index_file import MappedIndex
from pyspark_kafkalog.storage.artefacts.offset_index import OffsetIndex
from pyspark_kafkalog.storage.artefacts.time_index import TimeIndex
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, collect_aborted, parse_aborted
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions, confirmed
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.segment.extent import Extent, LocalExtent
from pyspark_kafkalog.tiered.byte_source import RemoteBytes
from pyspark_kafkalog.tiered.index_cache import process_cache
from pyspark_kafkalog.tiered.layouts.segment_objects import IndexBytes, IndexKind
from pyspark_kafkalog.tiered.remote_storage import RemoteStorage
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

_Index = TypeVar("_Index", bound=MappedIndex)

#: Segments with transaction indexes behind a task's range that travel with its plan.
LATER_SEGMENTS_MAX: Final = 64
_BASE_OFFSET: Final = attrgetter("base_offset")
_NO_LOCAL: Final = 1 << 63


class RemoteSegmentExtent(Extent, Protocol):
    """A remote segment as an Extent."""

    @property
    def end_offset(self) -> int: ...

    @property
    def segment_id(self) -> str: ...

    def aborted_transactions(self) -> list[AbortedTxn] | None:
        """The entries of the transaction index, None if it is not there, and may never have been.

        Raises FileNotFoundError, CorruptIndexError.
        """
        ...


class RemotePiece(Protocol):
    """A segment in remote storage; `size_bytes` is that of its `.log`."""

    @property
    def size_bytes(self) -> int: ...


class RemoteLog(Protocol):
    """The remote part of one partition's log; can be pickled.

    `location`: what error messages call the storage. `highest_offset` is the last offset that was ever copied, -1 if
    none was. Of the offsets below `known_end_offset` no segment is missing that a reader needs. `is_whole` is False if
    there are more transaction indexes than those of the segments that it lists.
    """

    @property
    def location(self) -> str: ...

    @property
    def partition(self) -> TopicIdPartition: ...

    @property
    def segments(self) -> Sequence[RemotePiece]: ...

    @property
    def highest_offset(self) -> int: ...

    @property
    def known_end_offset(self) -> int: ...

    @property
    def is_whole(self) -> bool: ...

    def extents_below(self, offset: int) -> Sequence[RemoteSegmentExtent]:
        """The segments that begin below `offset`, in order. Makes no request."""
        ...

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> RemoteLog:
        """What a reader of the offsets [start_offset, end_offset) needs."""
        ...


@dataclass(frozen=True, slots=True)
class BrokerRemoteLog:
    """A RemoteLog of segments that a broker copied, as `lineage.readable_segments` returns them."""

    storage: RemoteStorage
    partition: TopicIdPartition
    segments: tuple[RemoteSegment, ...]
    highest_offset: int
    known_end_offset: int
    is_whole: bool = True

    @property
    def location(self) -> str:
        return self.storage.location

    def extents_below(self, offset: int) -> list[RemoteExtent]:
        return [
            RemoteExtent(self.storage, self.partition, each) for each in self.segments if each.start_offset < offset
        ]

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> BrokerRemoteLog:
        inside = tuple(
            each for each in self.segments if each.last_offset >= start_offset and each.start_offset < end_offset
        )
        later = [each for each in self.segments if each.start_offset >= end_offset and each.has_transaction_index]
        kept = later[:LATER_SEGMENTS_MAX] if committed else []
        return replace(self, segments=(*inside, *kept), is_whole=not committed or len(kept) == len(later))


@dataclass(frozen=True, slots=True)
class RemoteExtent:
    """A remote segment as an Extent."""

    storage: RemoteStorage
    partition: TopicIdPartition
    segment: RemoteSegment

    @property
    def base_offset(self) -> int:
        return self.segment.start_offset

    @property
    def end_offset(self) -> int:
        return self.segment.next_offset

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
        storage = self.storage
        return RemoteBytes(storage.layout.log_content(storage.store(), self.partition, self.segment))

    def offset_index(self) -> OffsetIndex | None:
        return self._hint(OffsetIndex, IndexKind.OFFSET)

    def time_index(self) -> TimeIndex | None:
        return self._hint(TimeIndex, IndexKind.TIMESTAMP)

    def aborted_transactions(self) -> list[AbortedTxn] | None:
        """The entries of the transaction index, None if it is not there, and may never have been.

        Raises FileNotFoundError, CorruptIndexError.
        """
        if not self.segment.has_transaction_index:
            return []
        index = self._index(IndexKind.TRANSACTION)
        if index is None:
            return None
        return parse_aborted(bytes(index.data), file=index.name, offsets=range(self.base_offset, self.end_offset))

    def _hint(self, kind: type[_Index], index_kind: IndexKind) -> _Index | None:
        """An index that readers confirm against the batches: a missing or damaged one only costs time."""
        try:
            index = self._index(index_kind)
            return None if index is None else kind.over(index.data, self.base_offset, name=index.name)
        except (FileNotFoundError, DiskFormatError):
            return None

    def _index(self, kind: IndexKind) -> IndexBytes | None:
        def load() -> tuple[IndexBytes | None, int]:
            found = self.storage.layout.index(self.storage.store(), self.partition, self.segment, kind)
            return found, 0 if found is None else len(found.data)

        found: IndexBytes | None = process_cache().get((self.storage.location, self.segment.segment_id, kind), load)
        return found


class TieredExtents:
    """A PartitionExtents of remote segments, and of local ones from `local_start_offset` on.

    `local` None: there are no local segments. `look_up` gives the newest remote part; it is called when an object turns
    out to be missing.
    """

    def __init__(
        self,
        remote: RemoteLog,
        local: LocalExtents | None,
        look_up: Callable[[], RemoteLog | None],
    ) -> None:
        self._remote = remote
        self._local = local
        self._look_up = look_up
        self._lost: set[str] = set()
        self._looked_up_for = -1  # the local start for which the remote part was looked up again
        self._listed: tuple[int, Sequence[RemoteSegmentExtent]] = (0, ())  # of the remote part, below that offset

    @property
    def name(self) -> str:
        return self._local.name if self._local is not None else f"{self._remote.location}: {self._remote.partition}"

    def current(self) -> list[Extent]:
        """Remote segments as they were looked up last, then the local ones as they are now."""
        local: list[Extent] = [] if self._local is None else list(self._local.current())
        if local and self._remote.known_end_offset < local[0].base_offset != self._looked_up_for:
            self._look_up_again()
            self._looked_up_for = local[0].base_offset  # not before: a failure is not the answer that nothing is remote
        return [*self._remote_extents(_local_start(local)), *local]

    def after_loss(self, extent: Extent) -> list[Extent]:
        """The extents after a remote object turned out to be missing, looked up again.

        Raises OffsetOutOfRangeError if its segment should still be there; later calls of `current` leave it out.
        """
        if not isinstance(extent, LocalExtent):
            self._lose(cast(RemoteSegmentExtent, extent))
        return self.current()

    def widen(self) -> None:
        """List the whole remote part, as of now."""
        self._look_up_again()

    def _lose(self, extent: RemoteSegmentExtent) -> None:
        self._look_up_again()
        self._lost.add(extent.segment_id)
        if any(each.segment_id == extent.segment_id for each in self._remote.extents_below(_NO_LOCAL)):
            raise OffsetOutOfRangeError(
                f"offsets {extent.base_offset} to {extent.end_offset - 1} of {self._remote.partition.topic_partition} "
                f"are in the remote segment {extent.segment_id}, and objects of it are missing in "
                f"{self._remote.location}"
            )

    def is_being_replaced(self, base_offset: int) -> bool:
        return self._local is not None and self._local.is_being_replaced(base_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """See PartitionExtents. A transaction may be aborted long after its records, in a later segment.

        A local segment that becomes a remote one meanwhile takes its transaction index along: then all are read again.
        """
        while True:
            extents = self.current()
            local_start = _local_start(extents)
            remote = self._remote_extents(local_start)
            try:
                found = self._aborted(remote, local_start, start_offset, end_offset)
            except _LookedUpAgain:
                continue
            except OffsetOutOfRangeError:
                if _local_start(self.current()) == local_start:
                    raise
                continue  # the first local segments were deleted before their markers were read
            except (_NoIndex, CorruptIndexError):
                self._look_up_again()  # a task's part may lack later segments without an index
                reader = LogReader(self, self._remote.partition.topic_partition)
                scanned = reader.transactions(start_offset, end_offset, open_before={})
                return AbortedTransactions(confirmed(scanned, ())[0])
            if _local_start(self.current()) == local_start:
                return AbortedTransactions(found, indexed_until=min(local_start, self._remote.highest_offset + 1))

    def _aborted(
        self, remote: Sequence[RemoteSegmentExtent], local_start: int, start_offset: int, end_offset: int
    ) -> Collection[AbortedTxn]:
        """From the remote segments in order, then from the local ones.

        Raises _LookedUpAgain, _NoIndex, CorruptIndexError.
        """
        found: dict[tuple[int, int], AbortedTxn] = {}
        at = len(remote) if start_offset >= local_start else bisect_right(remote, start_offset, key=_BASE_OFFSET) - 1
        for extent in remote[max(at, 0) :]:
            try:
                entries = extent.aborted_transactions()
            except FileNotFoundError:
                self._lose(extent)
                raise _LookedUpAgain from None
            if entries is None:
                raise _NoIndex
            result = collect_aborted(entries, start_offset, end_offset)
            found.update({(each.producer_id, each.last_offset): each for each in result.transactions})
            if result.is_complete:
                return found.values()
        if not self._remote.is_whole:
            self._look_up_again()
            raise _LookedUpAgain
        if self._local is not None:
            local = self._local.aborted_transactions(start_offset, end_offset)
            found.update({(each.producer_id, each.last_offset): each for each in local.transactions})
        return found.values()

    def _remote_extents(self, local_start: int) -> Sequence[RemoteSegmentExtent]:
        """The remote segments that begin below the local ones."""
        if self._listed[0] != local_start:
            self._listed = local_start, self._remote.extents_below(local_start)
        if not self._lost:
            return self._listed[1]
        return [each for each in self._listed[1] if each.segment_id not in self._lost]

    def _look_up_again(self) -> None:
        found = self._look_up()
        self._remote = self._remote.part(0, 0, committed=False) if found is None else found
        self._listed = 0, ()


class _LookedUpAgain(Exception):
    """The list of remote segments has changed."""


class _NoIndex(Exception):
    """A remote segment may have aborted transactions, and no index says so."""


def _local_start(extents: Sequence[Extent]) -> int:
    """The first local offset; above all offsets without local segments."""
    return next((each.base_offset for each in extents if isinstance(each, LocalExtent)), _NO_LOCAL)
