"""Producer-state snapshot, `<20 digit offset>.snapshot`: the last writes of each live producer below that offset.

    0   version   int16   1
    2   crc       uint32  CRC-32C of every byte after this field
    6   count     int32
    10  count entries of 46 bytes:
        producerId int64, epoch int16, lastSequence int32, lastOffset int64, offsetDelta int32, timestamp int64,
        coordinatorEpoch int32, currentTxnFirstOffset int64 (-1: no open transaction)

All big-endian. Written as a whole on every roll and clean close. In a native log directory a crash leaves the snapshot
absent or complete (temporary file and rename); a broker may leave a torn one, which its CRC reveals. A missing or
damaged snapshot costs a replay of the log from the previous one, but no data. Source of the rules: ProducerStateManager
(readSnapshot, writeSnapshot) in org.apache.kafka.storage.internals.log and the ProducerSnapshot schema.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import astuple
from functools import cached_property
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.record.header import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, crc32c
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, open_to_read
from pyspark_kafkalog.storage.names import PRODUCER_SNAPSHOT_SUFFIX, segment_file
from pyspark_kafkalog.values import quick_dataclass

SNAPSHOT_VERSION: Final = 1
NO_OFFSET: Final = -1

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_AT: Final = 2
_COUNT_AT: Final = 6
# Room for 5.8 million producers; a larger file is taken for damaged, as reading it would take unbounded memory.
_MAX_SNAPSHOT_BYTES: Final = 256 << 20

assert _HEADER.size == 10
assert _ENTRY.size == 46


@quick_dataclass(frozen=True, slots=True)
class ProducerStateEntry:
    """The last write of one producer in a partition. Fields are in the order of the file.

    `last_sequence` and `last_offset` are -1 and `offset_delta` is 0 if no batch of the current epoch is remembered.
    `offset_delta` is last offset minus first offset of the last batch. `last_timestamp_ms` is that of the records.
    `current_txn_first_offset` is -1 if no transaction is open.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_sequence: int = NO_SEQUENCE
    last_offset: int = NO_OFFSET
    offset_delta: int = 0
    last_timestamp_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = -1
    current_txn_first_offset: int = NO_OFFSET


def encode_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    """The bytes of a snapshot file that holds `entries` in the given order."""
    packed = [_ENTRY.pack(*astuple(entry)) for entry in entries]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes, *, file: str) -> tuple[ProducerStateEntry, ...]:
    """The entries of a snapshot file's bytes. `file` is named in errors.

    Raises CorruptIndexError if the version is unknown, the CRC is wrong or the count does not match the length.
    """
    if len(data) < _HEADER.size:
        raise CorruptIndexError(
            file=file, position=0, expected=f"at least {_HEADER.size} bytes of snapshot", found=f"{len(data)} bytes"
        )
    version, crc, count = _HEADER.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptIndexError(
            file=file, position=0, expected=f"snapshot version {SNAPSHOT_VERSION}", found=f"version {version}"
        )
    computed = crc32c(memoryview(data)[_COUNT_AT:])
    if crc != computed:
        raise CorruptIndexError(file=file, position=_CRC_AT, expected=f"CRC-32C {computed}", found=str(crc))
    expected_bytes = _HEADER.size + count * _ENTRY.size
    if count < 0 or expected_bytes != len(data):
        raise CorruptIndexError(
            file=file,
            position=_COUNT_AT,
            expected=f"a count of entries that fills {len(data)} bytes",
            found=f"{count} entries of {_ENTRY.size} bytes",
        )
    fields = _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :])
    return tuple(ProducerStateEntry(*entry) for entry in fields)


def read_snapshot(path: Path) -> tuple[ProducerStateEntry, ...]:
    """The entries of the snapshot file at `path`. Raises CorruptIndexError as `decode_snapshot` does, or OSError."""
    return decode_snapshot(read_snapshot_bytes(path), file=str(path))


def read_snapshot_bytes(path: Path) -> bytes:
    """All bytes of the snapshot file at `path`. Raises CorruptIndexError if it is too long for one, or OSError."""
    with open_to_read(path) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes > _MAX_SNAPSHOT_BYTES:
            raise CorruptIndexError(
                file=str(path),
                position=_MAX_SNAPSHOT_BYTES,
                expected=f"a snapshot of at most {_MAX_SNAPSHOT_BYTES} bytes",
                found=f"{size_bytes} bytes",
            )
        return stream.read(size_bytes)  # bounded: _MAX_SNAPSHOT_BYTES, above


def write_snapshot(
    path: Path, entries: Iterable[ProducerStateEntry], *, fs: FileSystem = LOCAL, durable: bool = True
) -> None:
    """Write `entries` to `path`, byte for byte as Kafka does; `durable` waits until they are on disk."""
    fs.write_file_atomic(path, encode_snapshot(entries), durable=durable)


class ProducerSnapshotFiles:
    """The snapshot files of the partition in `directory`, which one process changes."""

    def __init__(self, directory: Path, fs: FileSystem = LOCAL) -> None:
        self.directory = directory
        self._fs = fs

    @cached_property
    def offsets(self) -> set[int]:
        """Offsets of the files, listed on first use: a scan of a long log segment by segment does not need them."""
        return set(PartitionListing.read(self.directory).snapshot_offsets)

    @property
    def latest_offset(self) -> int | None:
        return max(self.offsets, default=None)

    def read_latest(self) -> tuple[int, tuple[ProducerStateEntry, ...]] | None:
        """The latest usable snapshot: its offset and its entries. Damaged ones above it are removed."""
        while (offset := self.latest_offset) is not None:
            try:
                return offset, read_snapshot(self._path(offset))
            except (CorruptIndexError, FileNotFoundError):
                self.remove(offset)
        return None

    def write(self, offset: int, entries: Iterable[ProducerStateEntry], *, durable: bool) -> None:
        """Write the snapshot at `offset`; `durable` waits until it is on disk."""
        write_snapshot(self._path(offset), entries, fs=self._fs, durable=durable)
        if "offsets" in self.__dict__:
            self.offsets.add(offset)

    def remove(self, offset: int) -> None:
        """Remove the file at `offset`, if it exists."""
        self.offsets.discard(offset)
        self._fs.unlink_if_there(self._path(offset))

    def remove_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Keep only those in (log start, log end]."""
        for offset in sorted(self.offsets):
            if offset > log_end_offset or offset <= log_start_offset:
                self.remove(offset)

    def remove_all(self) -> None:
        for offset in sorted(self.offsets):
            self.remove(offset)

    def remove_strays(self, base_offsets: Iterable[int]) -> None:
        """Keep only those at base offsets of segments, and the largest other one if it is above them all."""
        bases = set(base_offsets)
        self.offsets = set(PartitionListing.read(self.directory).snapshot_offsets)
        strays = sorted(self.offsets - bases)
        if strays and (not bases or strays[-1] >= max(bases)):
            strays.pop()
        for offset in strays:
            self.remove(offset)

    def _path(self, offset: int) -> Path:
        return segment_file(self.directory, offset, PRODUCER_SNAPSHOT_SUFFIX)
