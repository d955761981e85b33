"""Compiled parts of the cleaner: the records of a run of batches, the offset map, and the rewriting of batches.

    index_records                               the location, offset, time and hash of the key of each record
    put_rows, drop_rows, narrow                 insert keys into the offset map, judge records by it, shrink it
    put_and_drop                                the same in one step for records that come from the log's end
    mark_latest, find_unmarked                  the batches of which no record stays
    summarize, rewrite                          write the batches that lose some of their records

An entry of the map is three uint64: both halves of the key's hash, then its latest offset plus 1 (0: the slot is
empty). Slots are chosen by the first half of the hash and probed linearly.

The hash is SipHash-1-3 with 128 bits of output under a random seed. Of two colliding keys one would lose records, so
writers of keys must not be able to find a collision. The map never reaches the disk, so the hash need not be Kafka's,
which is MD5, many times slower for short keys.

Rewriting keeps offsets, so a surviving record keeps its bytes except for the timestamp delta, which is relative to a
base that may have moved, and the length in front. Layout of a record: record/kernels/decode.py.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg, misc, var-annotated"

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from pyspark_kafkalog.record.header import CONTROL_MASK, NO_TIMESTAMP, RECORD_BATCH_OVERHEAD_BYTES, TIMESTAMP_TYPE_MASK
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.decode import BYTES_LEFT_IN_BATCH, NO_FAULT, note_fault, read_record
from pyspark_kafkalog.record.kernels.native import (
    INT16,
    INT64,
    INT64_IN,
    UINT8,
    UINT8_IN,
    UINT64,
    UINT64_IN,
    copy_with_slack,
    load_byte,
    prefetch,
    read_varint,
    read_varlong,
    store_byte,
    varlong_size,
    write_varlong,
)
from pyspark_kafkalog.record.kernels.scan import BATCH_TABLE

#: Bits of a record's flags.
HAS_KEY = 1
HAS_VALUE = 2

#: Values in `control_types` other than a control record's type: the batch has no record, its key is not that of a
#: control record, it is not a control batch.
EMPTY_BATCH = -3
BAD_CONTROL_KEY = -2
NO_CONTROL = -1

#: uint64 words of an entry.
ENTRY_WORDS = 3


_WORD_BYTES = 8
_PREFETCH_BYTES = 1024
_PREFETCH_ROWS = 24
_ENTRY_BYTES = ENTRY_WORDS * _WORD_BYTES


@intrinsic
def _load_word(typing_context: Any, address: Any) -> Any:
    """The 8 bytes at `address` as a native uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), generate


@njit(nogil=True)
def _rotate(value, bits):
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@njit(nogil=True)
def _sip_round(v0, v1, v2, v3):
    v0 += v1
    v2 += v3
    v1 = _rotate(v1, 13) ^ v0
    v3 = _rotate(v3, 16) ^ v2
    v0 = _rotate(v0, 32)
    v2 += v1
    v0 += v3
    v1 = _rotate(v1, 17) ^ v2
    v3 = _rotate(v3, 21) ^ v0
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@njit(nogil=True)
def _tail(at, left, end):
    """The last `left` (below 8) bytes at `at`, lowest first; no byte at or past `end` is read."""
    if left == 0:
        return np.uint64(0)
    if end - at >= _WORD_BYTES:
        return _load_word(at) & ((np.uint64(1) << np.uint64(8 * left)) - np.uint64(1))
    word = np.uint64(0)
    for i in range(left):
        word |= np.uint64(load_byte(at + i)) << np.uint64(8 * i)
    return word


@njit(nogil=True)
def _hash(at, size, end, seed0, seed1):
    """SipHash-1-3-128 of `size` bytes at `at`, as two words. Words are read as the machine has them (little-endian)."""
    v0 = seed0 ^ np.uint64(0x736F6D6570736575)
    v1 = seed1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = seed0 ^ np.uint64(0x6C7967656E657261)
    v3 = seed1 ^ np.uint64(0x7465646279746573)
    words_end = at + (size & ~(_WORD_BYTES - 1))
    left = size & (_WORD_BYTES - 1)
    while at < words_end:
        word = _load_word(at)
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
        at += _WORD_BYTES
    word = _tail(at, left, end) | (np.uint64(size) << np.uint64(56))
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(3):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(3):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@kernel(types.UniTuple(types.uint64, 2)(UINT8_IN, UINT64_IN))
def hash_key(key, seed):
    """The hash of one key under the two words of `seed`."""
    at = key.ctypes.data
    return _hash(at, len(key), at + len(key), seed[0], seed[1])


@njit(nogil=True)
def _control_type(key_at, key_length):
    """The type in a control record's key: int16 version, int16 type."""
    if key_length < 4:
        return np.int16(BAD_CONTROL_KEY)
    version = (np.int64(load_byte(key_at)) << 8) | np.int64(load_byte(key_at + 1))
    if version >= 0x8000:
        return np.int16(BAD_CONTROL_KEY)
    found = (np.int64(load_byte(key_at + 2)) << 8) | np.int64(load_byte(key_at + 3))
    return np.int16(found) if found < 0x8000 else np.int16(0x7FFF)


@kernel(
    types.int64(
        INT64_IN, INT64_IN, BATCH_TABLE, UINT64_IN,
        INT64, INT64, INT64, INT64, UINT64, UINT64, UINT8, INT16, INT64,
    )
)  # fmt: skip
def index_records(
    addresses, sizes, batches, seed,
    record_starts, record_ends, offsets, timestamps, hashes, second_hashes, flags, control_types, state,
):  # fmt: skip
    """Check every record of some sections; output its start and end, offset, time, flags and the hash of its key.

    Sections as for `kernels_decode.decode_sections`, with the same faults. Outputs have one row for each record
    (`control_types` one for each batch).
    """
    seed0, seed1 = seed[0], seed[1]
    row = np.int64(0)
    for batch in range(len(batches)):
        header = batches[batch]
        section = addresses[batch]
        at = section
        end = at + sizes[batch]
        base_offset, last_offset = header.base_offset, header.last_offset
        base_timestamp, max_timestamp = header.base_timestamp_ms, header.max_timestamp_ms
        is_control = (header.attributes & CONTROL_MASK) != 0
        is_append_time = (header.attributes & TIMESTAMP_TYPE_MASK) != 0
        control_types[batch] = np.int16(EMPTY_BATCH) if is_control else np.int16(NO_CONTROL)
        offset_delta = np.int64(-1)
        for record in range(header.records_count):
            start = at
            prefetch(at + _PREFETCH_BYTES)
            fault, found, at, timestamp_delta, offset_delta, key_at, key_length, _, value_length, _, _ = read_record(
                at, end, offset_delta + 1, last_offset - base_offset
            )
            if fault != NO_FAULT:
                note_fault(state, batch, record, start - section, found)
                return fault
            record_starts[row] = start
            record_ends[row] = at
            offsets[row] = base_offset + offset_delta
            timestamps[row] = max_timestamp if is_append_time else base_timestamp + timestamp_delta
            found_flags = np.uint8(0)
            if value_length >= 0:
                found_flags |= np.uint8(HAS_VALUE)
            if key_length >= 0:
                found_flags |= np.uint8(HAS_KEY)
                hashes[row], second_hashes[row] = _hash(key_at, key_length, end, seed0, seed1)
            flags[row] = found_flags
            if is_control and record == 0:
                control_types[batch] = _control_type(key_at, key_length)
            row += 1
        if at != end:
            note_fault(state, batch, header.records_count, at - section, end - at)
            return BYTES_LEFT_IN_BATCH
    return NO_FAULT


@njit(nogil=True)
def _home(first, slots):
    """The home slot of a hash: its upper half scaled to the number of slots (below 2^32)."""
    return np.int64(((first >> np.uint64(32)) * np.uint64(slots)) >> np.uint64(32))


@njit(nogil=True)
def _find(table, slots, first, second):
    """The slot with the hash, or the empty slot where it belongs."""
    slot = _home(first, slots)
    while True:
        at = slot * ENTRY_WORDS
        if table[at + 2] == np.uint64(0) or (table[at] == first and table[at + 1] == second):
            return slot
        slot += 1
        if slot == slots:
            slot = np.int64(0)


@kernel(
    types.UniTuple(types.int64, 2)(
        UINT64, types.int64, types.int64, types.uint64, types.uint64,
        UINT64_IN, UINT64_IN, INT64_IN, UINT8_IN, types.int64,
    )
)  # fmt: skip
def put_rows(table, entries, entries_max, shard_mask, shard, hashes, second_hashes, offsets, flags, first_row):
    """Put the offsets of the records with a key of the shard into the map, in any order: the latest of a key counts.

    A hash is in the shard when the bits `shard_mask` of its second half are `shard`. Stops before the record that would
    become entry number `entries_max` + 1. Returns (row at which it stopped, number of entries).
    """
    slots = np.int64(len(table) // ENTRY_WORDS)
    start = np.int64(table.ctypes.data)
    rows = np.int64(len(offsets))
    for row in range(first_row, rows):
        if row + _PREFETCH_ROWS < rows:
            prefetch(start + _home(hashes[row + _PREFETCH_ROWS], slots) * _ENTRY_BYTES)
        if not flags[row] & HAS_KEY or second_hashes[row] & shard_mask != shard:
            continue
        at = _find(table, slots, hashes[row], second_hashes[row]) * ENTRY_WORDS
        if table[at + 2] == np.uint64(0):
            if entries >= entries_max:
                return row, entries
            table[at] = hashes[row]
            table[at + 1] = second_hashes[row]
            entries += 1
        table[at + 2] = max(table[at + 2], np.uint64(offsets[row] + 1))
    return rows, entries


@kernel(
    types.void(
        UINT64_IN, types.uint64, types.uint64, types.int64,
        UINT64_IN, UINT64_IN, INT64_IN, UINT8_IN, INT64_IN, UINT8_IN, UINT8,
    )
)  # fmt: skip
def drop_rows(
    table, shard_mask, shard, latest_offset, hashes, second_hashes, offsets, flags, firsts, keeps_tombstones, keep
):
    """Set keep[i] to 0 for records replaced by a later one of their key, records without a key and expired tombstones.

    `firsts` is the first row of each batch (one more at the end); `keeps_tombstones` has one value for each batch.
    Records above `latest_offset`, and keys of other shards, are left unchanged.
    """
    slots = np.int64(len(table) // ENTRY_WORDS)
    start = np.int64(table.ctypes.data)
    rows = np.int64(len(offsets))
    for batch in range(len(firsts) - 1):
        for row in range(firsts[batch], firsts[batch + 1]):
            if row + _PREFETCH_ROWS < rows:
                prefetch(start + _home(hashes[row + _PREFETCH_ROWS], slots) * _ENTRY_BYTES)
            offset = offsets[row]
            if offset > latest_offset:
                continue
            if not flags[row] & HAS_KEY:
                keep[row] = np.uint8(0)
                continue
            if second_hashes[row] & shard_mask != shard:
                continue
            found = table[_find(table, slots, hashes[row], second_hashes[row]) * ENTRY_WORDS + 2]
            is_replaced = np.uint64(offset + 1) < found
            if is_replaced or not (flags[row] & HAS_VALUE or keeps_tombstones[batch]):
                keep[row] = np.uint8(0)


@kernel(
    types.UniTuple(types.int64, 2)(
        UINT64, types.int64, types.int64,
        UINT64_IN, UINT64_IN, INT64_IN, UINT8_IN, INT64_IN, UINT8_IN, UINT8,
    )
)  # fmt: skip
def put_and_drop(
    table, entries, entries_max, hashes, second_hashes, offsets, flags, firsts, keeps_tombstones, keep
):  # fmt: skip
    """`put_rows` and then `drop_rows` of the same records, the last one first, where the map has all keys after them.

    Stops before a record for which the map has no room. Returns (rows that are left, number of entries).
    """
    slots = np.int64(len(table) // ENTRY_WORDS)
    start = np.int64(table.ctypes.data)
    for batch in range(len(firsts) - 2, -1, -1):
        for row in range(firsts[batch + 1] - 1, firsts[batch] - 1, -1):
            if row >= _PREFETCH_ROWS:
                prefetch(start + _home(hashes[row - _PREFETCH_ROWS], slots) * _ENTRY_BYTES)
            if not flags[row] & HAS_KEY:
                keep[row] = np.uint8(0)
                continue
            at = _find(table, slots, hashes[row], second_hashes[row]) * ENTRY_WORDS
            if table[at + 2] != np.uint64(0):
                keep[row] = np.uint8(0)
                continue
            if entries >= entries_max:
                return row + 1, entries
            table[at] = hashes[row]
            table[at + 1] = second_hashes[row]
            table[at + 2] = np.uint64(offsets[row] + 1)
            entries += 1
            if not (flags[row] & HAS_VALUE or keeps_tombstones[batch]):
                keep[row] = np.uint8(0)
    return np.int64(0), entries


@kernel(types.void(UINT64_IN, types.int64, types.int64, UINT8))
def mark_latest(table, first_offset, shift, marks):
    """Set marks[i] to 1 if a latest offset is in the i-th range (from 0) of 2^shift offsets, beginning at
    `first_offset`.
    """
    for at in range(0, len(table), ENTRY_WORDS):
        if table[at + 2] != np.uint64(0):
            mark = (np.int64(table[at + 2]) - 1 - first_offset) >> shift
            if mark >= 0 and mark < len(marks):
                marks[mark] = np.uint8(1)


@kernel(types.void(UINT8_IN, types.int64, types.int64, BATCH_TABLE, UINT8))
def find_unmarked(marks, first_offset, shift, batches, unmarked):
    """Set unmarked[i] to 1 for batches from `first_offset` on without a mark, and without an offset past the marks."""
    for batch in range(len(batches)):
        header = batches[batch]
        first = (header.base_offset - first_offset) >> shift
        last = (header.last_offset - first_offset) >> shift
        if first < 0 or last >= len(marks):
            continue
        at = first
        while at <= last and marks[at] == 0:
            at += 1
        if at > last:
            unmarked[batch] = np.uint8(1)


@kernel(types.int64(UINT64, types.uint64, types.uint64))
def narrow(table, shard_mask, shard):
    """Remove, in place, every entry whose key is not in the shard; return the number of entries left.

    Starts after an empty slot, of which there must be one, so that each entry is put back at or before its old slot.
    """
    slots = np.int64(len(table) // ENTRY_WORDS)
    first_empty = np.int64(0)
    while table[first_empty * ENTRY_WORDS + 2] != np.uint64(0):
        first_empty += 1
    left = np.int64(0)
    for step in range(1, slots + 1):
        at = ((first_empty + step) % slots) * ENTRY_WORDS
        value = table[at + 2]
        if value == np.uint64(0):
            continue
        first, second = table[at], table[at + 1]
        table[at + 2] = np.uint64(0)
        if second & shard_mask != shard:
            continue
        to = _find(table, slots, first, second) * ENTRY_WORDS
        table[to] = first
        table[to + 1] = second
        table[to + 2] = value
        left += 1
    return left


#: The most bytes by which a record can grow: 10 for the timestamp delta, and 5 for its length.
RECORD_GROWTH_BYTES = 15


@kernel(types.void(INT64_IN, UINT8_IN, UINT8_IN, INT64_IN, INT64, INT64, INT64, INT64))
def summarize(firsts, keep, flags, timestamps, kept, kept_tombstones, max_timestamps, first_timestamps):
    """For each batch: the records and tombstones that stay, their largest timestamp and the timestamp of the first."""
    for batch in range(len(firsts) - 1):
        count, tombstones = np.int64(0), np.int64(0)
        largest, first = np.int64(NO_TIMESTAMP), np.int64(NO_TIMESTAMP)
        for row in range(firsts[batch], firsts[batch + 1]):
            if not keep[row]:
                continue
            if count == 0:
                first = timestamps[row]
            count += 1
            tombstones += not flags[row] & HAS_VALUE
            largest = max(largest, timestamps[row])
        kept[batch] = count
        kept_tombstones[batch] = tombstones
        max_timestamps[batch] = largest
        first_timestamps[batch] = first


@kernel(types.void(INT64_IN, INT64_IN, UINT8_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, UINT8, INT64))
def rewrite(chosen, firsts, keep, record_starts, record_ends, timestamps, section_ends, base_timestamps, out, sizes):
    """Write the surviving records of the batches `chosen`, batch after batch, each after room for its header.

    Timestamp deltas are relative to base_timestamps[i] for chosen[i]. `out` needs COPY_SLACK_BYTES more than is
    written. Sets sizes[i] to the bytes of batch chosen[i], including its header.
    """
    at = np.int64(out.ctypes.data)
    for i in range(len(chosen)):
        batch = chosen[i]
        base_timestamp = base_timestamps[i]
        section_end = section_ends[batch]
        batch_at = at
        at += RECORD_BATCH_OVERHEAD_BYTES
        for row in range(firsts[batch], firsts[batch + 1]):
            if not keep[row]:
                continue
            start, end = record_starts[row], record_ends[row]
            delta = timestamps[row] - base_timestamp
            _, body = read_varint(start, end)
            old_delta, rest = read_varlong(body + 1, end)
            if delta == old_delta:
                copy_with_slack(at, start, end - start, section_end)
                at += end - start
                continue
            at = write_varlong(at, 1 + varlong_size(delta) + (end - rest))
            store_byte(at, np.uint8(0))
            at = write_varlong(at + 1, delta)
            copy_with_slack(at, rest, end - rest, section_end)
            at += end - rest
        sizes[i] = at - batch_at
