"""Whole batches of any partition at an offset: what a fetch returns, wherever the log lies.

    LogSlices.cached    a consumer that reads on in a local segment: one stat and what is in the page cache. The event
                        loop's thread may call it; BlockingIOError says that a thread has to call `waiting`
    LogSlices.waiting   lists the partition's extents, opens the one of the offset, or asks a store

A fetch gets batches of one extent, as a broker returns those of one segment. Of the active segment of a native root the
bytes up to the committed size are read; of others all, and the end offset decides.

Remote segments and runs of object stores are read by ranges, into memory. The reader of an extent is kept for the fetch
that continues where this one ends, with what it has requested ahead; `_REMOTE_READERS_MAX` bounds them. Bytes of a kept
extent are right for ever; whether its offsets still belong to the log is for the caller, who knows the log start.

An extent that is deleted or replaced meanwhile is looked up again, as in LogReader.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record.header import TRANSACTIONAL_MASK
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.server.reads.segment_slices import (
    OpenSegment,
    OpenSegments,
    Positions,
    Read,
    RecentlyUsed,
    SegmentSlicer,
    Slice,
    SliceLimits,
    nothing,
    read_cached,
    read_waiting,
)
from pyspark_kafkalog.server.sending import FileSlice
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.log.extent_search import open_at, search_from, whole_batches
from pyspark_kafkalog.storage.log.isolation import CommittedBatches
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.segment.reader import BatchRun, Extent, LocalExtent, SegmentReader
from pyspark_kafkalog.units import MIB

#: A fetch gets at most so much of a remote extent, unless one batch is larger.
REMOTE_BYTES_MAX: Final = 8 * MIB
_REMOTE_READERS_MAX: Final = 32


class _RemoteKey(NamedTuple):
    topic: str
    partition: int
    offset: int


class _KeptReader(NamedTuple):
    reader: SegmentReader
    position: int


class LogSlices:
    """Reads slices of all partitions of one root; used by several threads."""

    def __init__(self) -> None:
        self._files = OpenSegments()
        self._positions = Positions()
        self._remote: RecentlyUsed[_RemoteKey, _KeptReader] = RecentlyUsed(_REMOTE_READERS_MAX)

    def cached(self, snapshot: PartitionSnapshot, offset: int, limits: SliceLimits) -> Slice:
        """The batches from the one that holds `offset` on, without waiting for a disk.

        Raises BlockingIOError if that cannot be told at once, CorruptRecordError.
        """
        directory = snapshot.local_directory
        noted = None if directory is None else self._positions.get(str(directory), offset)
        kept = None if noted is None else self._files.kept(noted.path)
        if noted is None or kept is None:
            raise BlockingIOError("the position of the offset is not known")
        segment, size_bytes = kept
        if (segment.device, segment.inode) != (noted.device, noted.inode):
            raise BlockingIOError("the segment was replaced")
        end_position = _end_position(snapshot, segment, size_bytes)
        if noted.position >= end_position:
            raise BlockingIOError("the batch is in the next segment")
        return self._slice(snapshot, segment, end_position, noted.position, offset, limits, read_cached)

    def waiting(self, snapshot: PartitionSnapshot, offset: int, limits: SliceLimits) -> Slice:
        """The batches from the one that holds `offset` on; none if the log has no batch from there to the end offset.

        Raises OffsetOutOfRangeError if the offset is below all extents, or an object of its extent is missing,
        CorruptRecordError, ObjectStoreError, OSError.
        """
        kept = self._remote.pop(_remote_key(snapshot, offset))
        if kept is not None:
            try:
                return self._read_on(snapshot, kept, offset, limits)
            except FileNotFoundError:
                pass  # replaced since, by extents that are looked up now
        found = search_from(
            snapshot.extents(),
            offset,
            limits.end_offset,
            lambda extent: self._of_extent(snapshot, extent, offset, limits),
            partition=snapshot.topic_partition,
            high_watermark=snapshot.high_watermark,
        )
        return nothing(offset) if found is None else found

    def aborted(self, snapshot: PartitionSnapshot, offset: int, found: Slice) -> list[AbortedTxn]:
        """The aborted transactions that overlap the slice from `offset` on, by first offset.

        Raises CorruptIndexError, ObjectStoreError, OSError.
        """
        if not found.may_be_transactional:
            return []
        extents = snapshot.extents()
        aborted = extents.aborted_transactions(offset, found.next_offset)
        if aborted.indexed_until > offset and not isinstance(found.records, FileSlice):
            data = np.frombuffer(found.records, np.uint8)
            batches = scan_batches(data, file=extents.name).batches
            run = BatchRun(extents.name, data, 0, batches)
            reader = LogReader(extents, snapshot.topic_partition)
            read = CommittedBatches(lambda _: aborted, reader, found.next_offset, is_whole=True)
            read.keep(run)
            read.finish()
        return sorted(aborted.transactions, key=attrgetter("first_offset", "producer_id"))

    def _of_extent(self, snapshot: PartitionSnapshot, extent: Extent, offset: int, limits: SliceLimits) -> Slice | None:
        """None if the extent has no batch at or above the offset. Raises FileNotFoundError."""
        if not isinstance(extent, LocalExtent):
            return self._remote_slice(snapshot, extent, offset, limits)
        segment, size_bytes = self._files.open(extent.directory, extent.base_offset)
        end_position = _end_position(snapshot, segment, size_bytes)
        position = SegmentSlicer(segment, end_position, read_waiting).locate(offset)
        if position is None:
            return None
        return self._slice(snapshot, segment, end_position, position, offset, limits, read_waiting)

    def _slice(
        self,
        snapshot: PartitionSnapshot,
        segment: OpenSegment,
        end_position: int,
        position: int,
        offset: int,
        limits: SliceLimits,
        read: Read,
    ) -> Slice:
        found = SegmentSlicer(segment, end_position, read).slice(position, offset, limits)
        self._positions.note(str(snapshot.local_directory), found.next_offset, segment, position + found.size_bytes)
        return found

    def _remote_slice(
        self, snapshot: PartitionSnapshot, extent: Extent, offset: int, limits: SliceLimits
    ) -> Slice | None:
        opened = open_at(extent, offset)
        return None if opened is None else self._read_on(snapshot, _KeptReader(*opened), offset, limits)

    def _read_on(self, snapshot: PartitionSnapshot, kept: _KeptReader, offset: int, limits: SliceLimits) -> Slice:
        """The batches from the reader's position on; caches the reader for the next fetch, or closes it."""
        reader, position = kept
        is_kept = False
        try:
            found = _remote_batches(reader, position, offset, limits)
            end = position + found.size_bytes
            if found.size_bytes and end < reader.size_bytes:
                is_kept = True
                for dropped in self._remote.put(_remote_key(snapshot, found.next_offset), _KeptReader(reader, end)):
                    dropped.reader.close()
            return found
        except DiskFormatError as error:
            raise reader.placed(error) from None
        finally:
            if not is_kept:
                reader.close()


def _remote_key(snapshot: PartitionSnapshot, offset: int) -> _RemoteKey:
    return _RemoteKey(snapshot.topic_id or snapshot.topic, snapshot.partition, offset)


def _end_position(snapshot: PartitionSnapshot, segment: OpenSegment, size_bytes: int) -> int:
    """Where the segment's committed bytes end. Behind them a crashed writer, or one at work, may have left others.

    Of a broker's directory the size is that of the file, whose tail may be torn: the end offset is below it then.
    """
    if segment.base_offset == snapshot.active_base_offset and snapshot.active_size_bytes >= 0:
        return min(snapshot.active_size_bytes, size_bytes)
    return size_bytes


def _remote_batches(reader: SegmentReader, position: int, offset: int, limits: SliceLimits) -> Slice:
    found = whole_batches(
        reader,
        position,
        offset,
        end_position=reader.size_bytes,
        end_offset=limits.end_offset,
        piece_bytes=REMOTE_BYTES_MAX,
        max_bytes=limits.max_bytes,
        may_exceed=limits.may_exceed,
    )
    if not len(found.data):
        return nothing(offset, is_cut=found.is_cut)
    return Slice(found.data, found.last_offset + 1, bool(found.attributes & TRANSACTIONAL_MASK))
