"""`LogExtents`: what a LogReader reads of a log whose older segments are in a store (remote_log.py).

Behind the segments in the store is the tail: local segments of a directory, or the runs of an object root. An offset
that the tail has is read there, also if the store has it too. Segments in a store are read by ranges of their objects,
their indexes as a whole, through a cache.

An object can be deleted while it is read: then the log is looked up again. If it does not name the segment any more,
retention or a merge has deleted it; otherwise the object is missing. In both cases its offsets are out of range. Local
retention deletes segments that are in the store, too: when the local segments no longer begin where the known remote
ones end, the log is looked up again.

For read_committed, transactions that were aborted are found in the transaction indexes of the segments from the first
one of the range on, as far as an entry says that all before it is decided, at last in the tail
(RemoteLogManager.collectAbortedTransactions). If a segment may have an index and none is there, or it is damaged, the
log is read instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

from pyspark_kafkalog.errors import CorruptIndexError, OffsetOutOfRangeError
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, collect_aborted
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions, confirmed
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader, PartitionExtents
from pyspark_kafkalog.storage.segment.reader import Extent, LocalExtent
from pyspark_kafkalog.tiered.remote_log import RemoteExtent, RemoteLog

_BASE_OFFSET: Final = attrgetter("base_offset")
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
