"""Whole batches of a root's partitions by bytes, one partition after the other, as a follower reads them.

The extent at which a partition's last read has ended stays open, with its position, for the next read. A read returns
batches of one extent: of a local segment by one call of pread, of remote segments and of objects by ranges that are
requested ahead. Of the active segment of a native root, the bytes up to the committed size are read; of others all, and
the end offset decides.

Retention, the cleaner, merges and tiering may delete or replace an extent at any time. Its bytes stay as they are while
it is open. A local file that has lost its name is not read further, so a log that was truncated is not either. What is
gone is looked up again, as in LogReader.

`LocalLogs` are the follower's own logs as they are committed: where they end, in which leader epochs, and with which
batch.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, BatchHeader, Buffer
from pyspark_kafkalog.replication.partition_state import PartitionState, epochs_with_records
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.reads import epochs_of
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry
from pyspark_kafkalog.storage.log.extent_search import (
    LostExtentError,
    open_at,
    search_from,
    search_listed,
    whole_batches,
)
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, segment_file
from pyspark_kafkalog.storage.segment.extent import Extent, LocalExtent
from pyspark_kafkalog.storage.segment.reader import SegmentReader

_OPEN_EXTENTS_MAX: Final = 64
_NOTHING: Final = b""


class _Key(NamedTuple):
    topic_id: str
    partition: int


@dataclass(slots=True)
class _Open:
    """An open extent, and where its next batch begins, whose offsets are `next_offset` or above."""

    reader: SegmentReader
    inode: int
    position: int
    next_offset: int


class RootBatches:
    """Reads batches of one root's partitions. For one thread."""

    def __init__(self) -> None:
        self._open: OrderedDict[_Key, _Open] = OrderedDict()

    def read(self, of: PartitionSnapshot, offset: int, *, max_bytes: int, may_exceed: bool) -> Buffer:
        """Batches from the one that holds `offset` on, below the high watermark; empty if there is none.

        At most `max_bytes`; with `may_exceed`, a first batch that is larger is returned nevertheless. Raises
        OffsetOutOfRangeError if the offset is below all extents, CorruptRecordError, ObjectStoreError, OSError.
        """
        if offset >= of.high_watermark:
            return _NOTHING
        key = _Key(of.topic_id or of.topic, of.partition)
        kept = self._open.pop(key, None)
        if kept is not None:
            if kept.next_offset == offset and _is_current(kept, of):
                found = self._read_open(key, kept, of, offset, max_bytes, may_exceed)
                if found is not None:
                    return found
            else:
                kept.reader.close()
        found = search_from(
            of.extents(),
            offset,
            of.high_watermark,
            lambda extent: self._read_extent(key, extent, of, offset, max_bytes, may_exceed),
            partition=of.topic_partition,
            high_watermark=of.high_watermark,
        )
        return _NOTHING if found is None else found

    def close(self) -> None:
        for each in self._open.values():
            each.reader.close()
        self._open.clear()

    def _read_extent(
        self, key: _Key, extent: Extent, of: PartitionSnapshot, offset: int, max_bytes: int, may_exceed: bool
    ) -> Buffer | None:
        """None if the extent has no batch at or above the offset. Raises FileNotFoundError."""
        opened = open_at(extent, offset)
        if opened is None:
            return None
        reader, position = opened
        try:
            at = _Open(reader, _inode(extent), position, offset)
        except BaseException:
            reader.close()
            raise
        return self._read_open(key, at, of, offset, max_bytes, may_exceed)

    def _read_open(
        self, key: _Key, at: _Open, of: PartitionSnapshot, offset: int, max_bytes: int, may_exceed: bool
    ) -> Buffer | None:
        """None if the extent has no further batch; it is closed then, and also after an error."""
        is_kept = False
        try:
            found = _batches_at(at, of, offset, max_bytes=max_bytes, may_exceed=may_exceed)
            is_kept = found is not None
        except DiskFormatError as error:
            raise at.reader.placed(error) from None
        finally:
            if not is_kept:
                at.reader.close()
        if found is not None:
            self._open[key] = at
            while len(self._open) > _OPEN_EXTENTS_MAX:
                self._open.popitem(last=False)[1].reader.close()
        return found


def last_batch(of: PartitionSnapshot, end_offset: int) -> BatchHeader | None:
    """The header of the partition's last batch below `end_offset`; None if there is none.

    Raises CorruptRecordError, ObjectStoreError, OSError.
    """
    return search_listed(of.extents(), lambda current: _last_of(current, end_offset))


def _last_of(current: Sequence[Extent], end_offset: int) -> BatchHeader | None:
    for extent in reversed(current):
        if extent.base_offset >= end_offset:
            continue
        found: BatchHeader | None = None
        try:
            with SegmentReader(extent) as reader:
                for _, header in reader.headers(reader.position_for_offset(end_offset - 1)):
                    if header.base_offset >= end_offset:
                        break
                    found = header
        except FileNotFoundError:
            raise LostExtentError(extent) from None
        if found is not None:
            return found
    return None


def _inode(extent: Extent) -> int:
    """The inode behind the name of a local extent, 0 for others. Raises FileNotFoundError."""
    if not isinstance(extent, LocalExtent):
        return 0
    return os.stat(segment_file(extent.directory, extent.base_offset, LOG_SUFFIX), follow_symlinks=False).st_ino


def _is_current(kept: _Open, of: PartitionSnapshot) -> bool:
    """Whether the extent can be read further: a local one is still the file of its name."""
    extent = kept.reader.extent
    if isinstance(extent, LocalExtent) and extent.directory != of.local_directory:
        return False
    try:
        return _inode(extent) == kept.inode
    except OSError:
        return False


def _end_position(reader: SegmentReader, of: PartitionSnapshot) -> int:
    """Where the committed bytes of the extent end: of a segment that was active when it was opened, as far as known."""
    if reader.base_offset == of.active_base_offset and of.active_size_bytes >= 0:
        return of.active_size_bytes
    return reader.size_bytes


def _batches_at(at: _Open, of: PartitionSnapshot, offset: int, *, max_bytes: int, may_exceed: bool) -> Buffer | None:
    """The batches from the position on, which then is behind them; None at the end of the extent."""
    end_position = _end_position(at.reader, of)
    if end_position <= at.position:
        return None
    if max_bytes <= 0:
        return _NOTHING
    found = whole_batches(
        at.reader,
        at.position,
        offset,
        end_position=end_position,
        end_offset=of.high_watermark,
        piece_bytes=max_bytes,
        max_bytes=max_bytes,
        may_exceed=may_exceed,
    )
    if len(found.data):
        at.position += len(found.data)
        at.next_offset = found.last_offset + 1
    return found.data


@dataclass(frozen=True, slots=True)
class LocalLog:
    """A partition's log: its state to fetch from, its leader epochs with records, and the state as committed."""

    state: PartitionState
    epochs: tuple[EpochEntry, ...]
    committed: LogState


class LocalLogs:
    """The logs of the follower's root."""

    def __init__(self, root: NativeRoot) -> None:
        self._root = root

    def refresh(self) -> MetadataImage:
        """The newest image. Raises as NativeRoot.refresh."""
        self._root.refresh()
        return self._root.store.image

    def batch_at(self, topic_partition: TopicPartition, offset: int) -> BatchHeader | None:
        """The header of the first committed batch that ends above `offset`, as of the last refresh; None without one.

        Raises as `load`.
        """
        batches = RootBatches()
        try:
            of = self._root.partition(topic_partition.topic, topic_partition.partition)
            data = batches.read(of, offset, max_bytes=RECORD_BATCH_OVERHEAD_BYTES, may_exceed=True)
        finally:
            batches.close()
        return BatchHeader.unpack(data) if len(data) else None

    def load(self, topic_partition: TopicPartition, topic_id: str, *, is_verified: bool) -> LocalLog:
        """The log as of the last refresh. Unless `is_verified`, its last batch is to be compared with the leader's.

        Raises UnknownTopicError, CorruptIndexError, CorruptRecordError, ObjectStoreError, OSError.
        """
        committed = self._root.store.image.partition(topic_partition.topic, topic_partition.partition).state
        of = self._root.partition(topic_partition.topic, topic_partition.partition)
        end_offset = of.log_end_offset
        is_empty = of.log_start_offset == end_offset
        epochs = () if is_empty else epochs_with_records(epochs_of(self._root, of), end_offset)
        state = PartitionState(
            topic_partition=topic_partition,
            topic_id=topic_id,
            log_start_offset=of.log_start_offset,
            end_offset=end_offset,
            last_epoch=epochs[-1].epoch if epochs else -1,
            unverified=None if is_verified or is_empty else last_batch(of, end_offset),
        )
        return LocalLog(state, epochs, committed)
