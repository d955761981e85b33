"""The format of a data object: batches of many partitions, as one task of a write has encoded them.

    data/<write id>-<task>-<number>-<planned at>.batches

    run 0         record batches of one partition, back to back
    table of 0    16 bytes a batch: size in bytes (int32), last offset (int32), largest timestamp in ms (int64)
    run 1
    table of 1
    ...
    footer        56 bytes a run: topic id (16 bytes), partition (int32), number of batches (int32), position (int64),
                  size in bytes without the table (int32), number of records (int32), number of offsets (int64),
                  largest timestamp (int64)
    trailer       24 bytes: number of runs (int32), version (int32, 1), CRC-32C of the footer and of these 8 bytes
                  (uint32), four zero bytes, "KLOGDATA"

All big-endian. Offsets count from 0 in each run; the log's offsets and leader epochs are added when the run is read,
since neither is covered by a batch's CRC. The commit of the write names the object and repeats the footer's facts about
its runs, so a reader needs neither footer nor trailer. They serve checks of the store, and recovery.

The table follows its run, so that one request gets both. It says where the batches begin without looking at them.

`planned at` is the end of the metadata log when the write was planned: the clean-up of abandoned objects compares it
with the staging horizon (metadata/image.py). An object is created as a whole. A crash before the commit leaves it
unreferenced; the clean-up deletes it.

Beside the runs, a commit states each batch with a producer id, as one row of 51 bytes:

    baseOffset int64, lastOffset int64   in the partition's log
    producerId int64
    maxTimestamp int64
    transactionStart int64               of a batch in a transaction: the first offset of it in the partition; of a
                                         marker: that of the transaction which it ends; -1 without one
    coordinatorEpoch int32               of a marker, else -1
    baseSequence int32, producerEpoch int16
    kind int8                            0 data, 1 data in a transaction, 2 commit marker, 3 abort marker

The producers of a partition and the aborted transactions for its readers follow from the rows, without a request for
the batches. A merge makes producer snapshots and transaction indexes of the same batches, and the commit of its
segments drops their rows (metadata/extents.py).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, UnsupportedFormatError
from pyspark_kafkalog.object_store.store import ByteRange, ObjectStore
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, Buffer, crc32c
from pyspark_kafkalog.storage.names import decode_uuid, encode_uuid
from pyspark_kafkalog.units import INT32_MAX, content_text
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DATA_FOLDER: Final = "data"
_KEY: Final = re.compile(DATA_FOLDER + r"/([0-9a-zA-Z]+)-([0-9]{1,19})-([0-9]{1,9})-([0-9]{1,19})\.batches")

TABLE_ENTRY_BYTES: Final = 16

_FOOTER_ENTRY: Final = struct.Struct(">16siiqiiqq")
_TRAILER: Final = struct.Struct(">iiI4x8s")
_MAGIC: Final = b"KLOGDATA"
_VERSION: Final = 1
#: A footer of this size has room for the runs of 100,000 partitions.
_FOOTER_BYTES_MAX: Final = 6 << 20
_TAIL_BYTES: Final = 64 << 10
_ADVICE: Final = "the object is damaged, or it is not a data object: look at it, and restore it from a copy"


@dataclass(frozen=True, slots=True)
class DataKey:
    """The parts of a data object's key."""

    write_id: str
    task: int
    number: int
    planned_at: int

    def __str__(self) -> str:
        return f"{DATA_FOLDER}/{self.write_id}-{self.task}-{self.number}-{self.planned_at}.batches"

    @staticmethod
    def parse(key: str) -> DataKey | None:
        """The parts of `key`; None if it is not the key of a data object."""
        match = _KEY.fullmatch(key)
        return None if match is None else DataKey(match[1], int(match[2]), int(match[3]), int(match[4]))


@dataclass(frozen=True, slots=True)
class ObjectRun:
    """One run: `size_bytes` of batches at `position` of the object, then their table."""

    topic_id: str
    partition: int
    position: int
    size_bytes: int
    offsets_count: int
    records_count: int
    batches_count: int
    max_timestamp_ms: int

    @property
    def end(self) -> int:
        """The position after the run and its table."""
        return self.position + self.size_bytes + self.batches_count * TABLE_ENTRY_BYTES


@cache
def run_dtype() -> np.dtype[np.void]:
    """One run as a partition's log knows it.

    Offsets [base_offset, end_offset) are the `size_bytes` at `position` of the data object with the id `object_id`.
    """
    import numpy as np

    return np.dtype(
        [
            ("base_offset", np.int64),
            ("end_offset", np.int64),
            ("object_id", np.int64),
            ("position", np.int64),
            ("max_timestamp_ms", np.int64),
            ("size_bytes", np.int32),
            ("records_count", np.int32),
            ("batches_count", np.int32),
            ("leader_epoch", np.int32),
        ]
    )


@cache
def _table_dtype() -> np.dtype[np.void]:
    """One batch in a run's table: TABLE_ENTRY_BYTES. `last_offset` counts from the run's first."""
    import numpy as np

    return np.dtype([("size_bytes", ">i4"), ("last_offset", ">i4"), ("max_timestamp_ms", ">i8")])


def encode_table(batches: NDArray[np.void]) -> bytes:
    """The table of a run with `batches` (BATCH_DTYPE, offsets from 0)."""
    import numpy as np

    table = np.empty(len(batches), _table_dtype())
    for name in _table_dtype().names or ():
        table[name] = batches[name]
    return table.tobytes()


def parse_table(
    data: Buffer, *, size_bytes: int, offsets_count: int, file: Callable[[], str], file_position: int
) -> NDArray[np.void]:
    """The table of a run of `size_bytes` and `offsets_count`, which is at byte `file_position` of the object `file()`.

    Raises CorruptRecordError unless the batches take exactly these bytes and rise within these offsets.
    """
    import numpy as np

    table = np.frombuffer(data, _table_dtype())
    sizes, last_offsets = table["size_bytes"].astype(np.int64), table["last_offset"]
    at = np.flatnonzero(sizes < RECORD_BATCH_OVERHEAD_BYTES)
    if len(at):
        raise _damage(
            file(),
            file_position + int(at[0]) * TABLE_ENTRY_BYTES,
            f"a batch of at least {RECORD_BATCH_OVERHEAD_BYTES} bytes",
            f"{sizes[at[0]]} bytes",
        )
    if sizes.sum() != size_bytes:
        raise _damage(file(), file_position, f"a table of batches of {size_bytes} bytes", f"{sizes.sum()} bytes")
    is_rising = bool((last_offsets[1:] > last_offsets[:-1]).all()) and last_offsets[0] >= 0
    if not is_rising or last_offsets[-1] >= offsets_count:
        raise _damage(
            file(),
            file_position,
            f"last offsets that rise from 0 to at most {offsets_count - 1}",
            f"{last_offsets[:4].tolist()} to {last_offsets[-1]}",
        )
    return table


def encode_footer(runs: Iterable[ObjectRun]) -> bytes:
    """Footer and trailer of an object with `runs`."""
    footer = b"".join(
        _FOOTER_ENTRY.pack(
            decode_uuid(each.topic_id),
            each.partition,
            each.batches_count,
            each.position,
            each.size_bytes,
            each.records_count,
            each.offsets_count,
            each.max_timestamp_ms,
        )
        for each in runs
    )
    head = struct.pack(">ii", len(footer) // _FOOTER_ENTRY.size, _VERSION)
    return footer + _TRAILER.pack(len(footer) // _FOOTER_ENTRY.size, _VERSION, crc32c(footer + head), _MAGIC)


def footer_bytes(runs_count: int) -> int:
    """The size of footer and trailer of an object with that many runs."""
    return runs_count * _FOOTER_ENTRY.size + _TRAILER.size


def read_footer(store: ObjectStore, key: str, size_bytes: int) -> tuple[ObjectRun, ...]:
    """The runs of the data object `key` of `size_bytes`, by its footer; one or two requests.

    Raises ObjectNotFoundError, CorruptRecordError, UnsupportedFormatError for a later version.
    """
    file = f"{store.url}/{key}"
    tail_bytes = min(size_bytes, _TAIL_BYTES)
    tail = _tail(store, key, size_bytes, tail_bytes)
    wanted_bytes = _footer_length(tail, size_bytes, file)
    if wanted_bytes > tail_bytes:
        tail = _tail(store, key, size_bytes, wanted_bytes)
    return parse_footer(tail, size_bytes, file=file)


def _tail(store: ObjectStore, key: str, size_bytes: int, tail_bytes: int) -> Buffer:
    if tail_bytes <= 0:
        raise _damage(f"{store.url}/{key}", 0, f"a trailer of {_TRAILER.size} bytes", "an empty object")
    tail = store.get_range(key, ByteRange(size_bytes - tail_bytes, tail_bytes))
    if len(tail) != tail_bytes:
        raise _damage(
            f"{store.url}/{key}", size_bytes - tail_bytes, f"{tail_bytes} bytes", f"{len(tail)} bytes from the store"
        )
    return tail


def _footer_length(tail: Buffer, size_bytes: int, file: str) -> int:
    """The size of footer and trailer, from the last bytes of the object."""
    trailer_at = size_bytes - _TRAILER.size
    if len(tail) < _TRAILER.size:
        raise _damage(file, 0, f"a trailer of {_TRAILER.size} bytes", f"{len(tail)} bytes in all")
    runs_count, version, _, magic = _TRAILER.unpack_from(tail, len(tail) - _TRAILER.size)
    if magic != _MAGIC:
        raise _damage(file, size_bytes - len(_MAGIC), f"the last bytes {_MAGIC!r}", content_text(magic))
    if version != _VERSION:
        raise UnsupportedFormatError(
            file=file,
            position=trailer_at + 4,
            expected=f"version {_VERSION} of data objects",
            found=f"version {version}",
            advice="a later version of pyspark_kafkalog wrote it: upgrade pyspark_kafkalog",
        )
    if runs_count < 0 or footer_bytes(runs_count) > min(size_bytes, _FOOTER_BYTES_MAX):
        raise _damage(file, trailer_at, "a number of runs that fits the object", str(runs_count))
    return footer_bytes(runs_count)


def parse_footer(tail: Buffer, size_bytes: int, *, file: str) -> tuple[ObjectRun, ...]:
    """The runs of an object of `size_bytes`, of which `tail` are the last bytes, footer and trailer among them.

    Raises CorruptRecordError, with the position in the object, for any number that cannot be.
    """
    length = _footer_length(tail, size_bytes, file)
    if length > len(tail):
        raise _damage(file, size_bytes - len(tail), f"the {length} bytes of the footer", f"{len(tail)} bytes")
    data = bytes(memoryview(tail)[len(tail) - length :])
    runs_count, _, crc, _ = _TRAILER.unpack_from(data, length - _TRAILER.size)
    footer_at = size_bytes - length
    found_crc = crc32c(data[: length - _TRAILER.size + 8])
    if found_crc != crc:
        raise _damage(file, footer_at, f"a footer with CRC {crc:#010x}", f"{found_crc:#010x}")
    runs: list[ObjectRun] = []
    end = 0
    for number in range(runs_count):
        at = number * _FOOTER_ENTRY.size
        topic_id, partition, batches, position, size, records, offsets, max_ms = _FOOTER_ENTRY.unpack_from(data, at)
        run = ObjectRun(encode_uuid(topic_id), partition, position, size, offsets, records, batches, max_ms)
        if not _is_possible(run) or run.position != end or run.end > footer_at:
            raise _damage(file, footer_at + at, f"a run at {end} that ends by {footer_at}", str(run))
        end = run.end
        runs.append(run)
    if end != footer_at:
        raise _damage(file, footer_at, f"runs and tables that end at {footer_at}", f"at {end}")
    return tuple(runs)


def _is_possible(run: ObjectRun) -> bool:
    return (
        run.partition >= 0
        and run.batches_count > 0
        and run.size_bytes >= run.batches_count * RECORD_BATCH_OVERHEAD_BYTES
        and 0 <= run.records_count <= run.offsets_count
        and run.batches_count <= run.offsets_count <= INT32_MAX + 1
    )


def combine_bodies(bodies: Sequence[tuple[Buffer, Sequence[ObjectRun]]]) -> tuple[bytes, tuple[ObjectRun, ...]]:
    """One body of several, sorted by partition: the runs with their tables, and a new footer."""
    pieces = [(run, memoryview(body)[run.position : run.end]) for body, runs in bodies for run in runs]
    pieces.sort(key=lambda piece: (piece[0].topic_id, piece[0].partition))  # stable: tasks in their order
    moved: list[ObjectRun] = []
    position = 0
    for run, data in pieces:
        moved.append(replace(run, position=position))
        position += len(data)
    return b"".join([*(data for _, data in pieces), encode_footer(moved)]), tuple(moved)


def _damage(file: str, position: int, expected: str, found: str) -> CorruptRecordError:
    return CorruptRecordError(file=file, position=position, expected=expected, found=found, advice=_ADVICE)


@cache
def producer_batch_dtype() -> np.dtype[np.void]:
    """One batch with a producer id."""
    import numpy as np

    return np.dtype(
        [
            ("base_offset", np.int64),
            ("last_offset", np.int64),
            ("producer_id", np.int64),
            ("max_timestamp_ms", np.int64),
            ("transaction_start", np.int64),
            ("coordinator_epoch", np.int32),
            ("base_sequence", np.int32),
            ("producer_epoch", np.int16),
            ("kind", np.int8),
        ]
    )


@cache
def _stored_dtype() -> np.dtype[np.void]:
    stored: np.dtype[np.void] = producer_batch_dtype().newbyteorder(">")
    return stored


class ProducerBatchKind(IntEnum):
    """What a batch is to its producer's transactions."""

    DATA = 0
    TRANSACTIONAL = 1
    COMMIT = 2
    ABORT = 3


def encode_rows(rows: NDArray[np.void]) -> bytes:
    """The rows (`producer_batch_dtype`) as they are stored."""
    return rows.astype(_stored_dtype()).tobytes()


def parse_rows(data: bytes, *, start_offset: int, end_offset: int) -> NDArray[np.void]:
    """The stored rows of batches in [start_offset, end_offset). Raises InvalidRecordError for any that cannot be."""
    import numpy as np

    stored = _stored_dtype()
    if len(data) % stored.itemsize:
        raise InvalidRecordError(f"the batches of producers take {len(data)} bytes, not a number of whole rows")
    rows = np.frombuffer(data, stored).astype(producer_batch_dtype())
    bases, lasts = rows["base_offset"], rows["last_offset"]
    is_wrong = (
        (lasts < bases) | (rows["producer_id"] < 0) | (rows["kind"] < 0) | (rows["kind"] > max(ProducerBatchKind))
    )
    is_wrong |= (bases < start_offset) | (lasts >= end_offset) | (rows["transaction_start"] > bases)
    is_wrong[1:] |= bases[1:] <= lasts[:-1]
    if is_wrong.any():
        raise InvalidRecordError(
            f"a batch of a producer in the offsets {start_offset} to {end_offset - 1} cannot be "
            f"{rows[int(np.argmax(is_wrong))]}"
        )
    return rows


def last_of_each_producer(rows: NDArray[np.void]) -> NDArray[np.void]:
    """The last row of each producer: what is kept when the batches themselves are deleted."""
    import numpy as np

    _, firsts = np.unique(rows["producer_id"][::-1], return_index=True)
    return rows[np.sort(len(rows) - 1 - firsts)]


def aborted_rows(rows: NDArray[np.void], start_offset: int, end_offset: int) -> NDArray[np.void]:
    """The abort markers whose transactions overlap [start_offset, end_offset)."""
    is_marker = (rows["kind"] == ProducerBatchKind.ABORT) & (rows["transaction_start"] >= 0)
    is_overlapping = (rows["last_offset"] >= start_offset) & (rows["transaction_start"] < end_offset)
    found: NDArray[np.void] = rows[is_marker & is_overlapping]
    return found
