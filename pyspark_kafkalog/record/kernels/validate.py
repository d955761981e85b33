"""Compiled checks of the records that clients send: the structure of every record, timestamps, keys, offset deltas.

`accept_batches` does all that a leader does with the usual appends in one call: batches that are stored with the bytes
that came. It refuses to decide about any other; storage/log/leader_append.py does, by `check_sections`.

As in decode.py, a section is the decompressed bytes of a batch after its header, by address and length. Offset deltas
may be anything here: batches of old clients count wrongly, and `renumber_records` corrects them.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    COMPRESSION_MASK,
    CONTROL_MASK,
    LEADER_EPOCH_AT,
    NO_TIMESTAMP,
    RECORDS_AT,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.decode import BYTES_LEFT_IN_BATCH, NO_FAULT, note_fault, read_record
from pyspark_kafkalog.record.kernels.native import (
    INT64,
    INT64_IN,
    UINT8,
    call_crc32c,
    copy_bytes,
    load_byte,
    read_varint,
    read_varlong,
    store_byte,
    varlong_size,
    write_varlong,
)
from pyspark_kafkalog.record.kernels.scan import BATCH_TABLE, BATCH_TABLE_OUT, scan_headers, write_big_endian
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX

#: Most bytes that a record grows by in `renumber_records`: a longer offset delta, and a longer length.
RENUMBERED_RECORD_BYTES = 8

_MAX_OFFSET = np.int64(INT64_MAX)
_MIN_DELTA = np.int64(-INT32_MAX - 1)
_MAX_DELTA = np.int64(INT32_MAX)


@kernel(types.int64(INT64_IN, INT64_IN, BATCH_TABLE, INT64, UINT8, UINT8, INT64))
def check_sections(addresses, sizes, batches, timestamps, has_key, is_numbered, state):
    """Check every record of all sections; returns the fault, if any, whose position is in `state`.

    Fills timestamps[r] and has_key[r] for all records in order, and is_numbered[b] with whether the offset deltas of
    section b are 0, 1, 2 and so on. The arrays have room for the records that `batches` counts.
    """
    row = np.int64(0)
    for batch in range(len(batches)):
        header = batches[batch]
        section = addresses[batch]
        at = section
        end = at + sizes[batch]
        has_append_time = (header.attributes & TIMESTAMP_TYPE_MASK) != 0
        numbered = np.uint8(1)
        for record in range(header.records_count):
            start = at
            (
                fault, found, at, timestamp_delta, offset_delta,
                _, key_length, _, _, _, _,
            ) = read_record(at, end, _MIN_DELTA, _MAX_DELTA)  # fmt: skip
            if fault != NO_FAULT:
                note_fault(state, batch, record, start - section, found)
                return fault
            timestamps[row] = header.max_timestamp_ms if has_append_time else header.base_timestamp_ms + timestamp_delta
            has_key[row] = key_length >= 0
            if offset_delta != record:
                numbered = np.uint8(0)
            row += 1
        if at != end:
            note_fault(state, batch, header.records_count, at - section, end - at)
            return BYTES_LEFT_IN_BATCH
        is_numbered[batch] = numbered
    return NO_FAULT


#: Slots of the `rules` array of `place_batches`: where a log ends, and the producer whose batches may follow.
NEXT_OFFSET = 0
NEW_LEADER_EPOCH = 1
PRODUCER_ID = 2
PRODUCER_EPOCH = 3
NEXT_SEQUENCE = 4
#: The further ones of `accept_batches`.
BATCH_BYTES_LIMIT = 5
EARLIEST_TIMESTAMP = 6
LATEST_TIMESTAMP = 7
NEEDS_KEYS = 8
#: Of records of a compressed batch, with the length field.
RECORD_BYTES_LIMIT = 9
#: For PRODUCER_ID: of any producers, whose sequences are not looked at.
ANY_PRODUCER = -2


@njit(nogil=True)
def _follows(row, rules, sequence):
    """Whether the batch is of the producer of `rules`, its next one, and of no transaction."""
    producer_id = rules[PRODUCER_ID]
    return (
        row.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK) == 0
        and row.producer_id == producer_id
        and (producer_id < 0 or (row.producer_epoch == rules[PRODUCER_EPOCH] and row.base_sequence == sequence))
    )


#: Rows of size, address, size: see `accept_batches`.
_CONTENTS = types.Array(types.int64, 2, "C", readonly=True)


@kernel(types.boolean(types.int64, UINT8, _CONTENTS, INT64_IN, BATCH_TABLE_OUT))
def accept_batches(crc_function, data, contents, rules, table):
    """Accept the batches of clients that `data` consists of, as `rules` say, or decide nothing.

    `table` and `contents` have a row for each of them: its size, and the address and size of its decompressed records,
    or 0 if it is not compressed. Returns whether the headers and rows of the batches have their offsets and leader
    epoch now; False, with `data` unchanged, for anything unusual: a fault, batches of other sizes, a timestamp type or
    largest timestamp to be set, or what `place_batches` refuses, unless they may be of ANY_PRODUCER.
    """
    at, next_offset, sequence = np.int64(0), rules[NEXT_OFFSET], rules[NEXT_SEQUENCE]
    memory = np.int64(data.ctypes.data)
    for batch in range(len(table)):
        found, after, _, _ = scan_headers(data, at, 0, -1, table[batch : batch + 1])
        if found == 0:
            return False
        row = table[batch]
        count, address = row.records_count, contents[batch, 1]
        if (
            row.base_offset != 0
            or row.size_bytes != contents[batch, 0]
            or row.size_bytes > rules[BATCH_BYTES_LIMIT]
            or count <= 0
            or row.last_offset != count - 1
            or row.attributes & (TIMESTAMP_TYPE_MASK | CONTROL_MASK)
            or (row.attributes & COMPRESSION_MASK != 0) != (address != 0)
            or (row.producer_id >= 0 and row.base_sequence < 0)
            or (rules[PRODUCER_ID] != ANY_PRODUCER and not _follows(row, rules, sequence))
            or next_offset >= _MAX_OFFSET - count
            or call_crc32c(crc_function, memory + at + ATTRIBUTES_AT, row.size_bytes - ATTRIBUTES_AT) != row.crc
        ):
            return False
        record_at, end = memory + at + RECORDS_AT, memory + at + row.size_bytes
        if address:
            record_at, end = address, address + contents[batch, 2]
        largest = np.int64(NO_TIMESTAMP)
        for record in range(count):
            start = record_at
            (
                fault, _, record_at, timestamp_delta, _,
                _, key_length, _, _, _, _,
            ) = read_record(record_at, end, record, record)  # fmt: skip
            timestamp = row.base_timestamp_ms + timestamp_delta
            if (
                fault != NO_FAULT
                or (key_length < 0 and rules[NEEDS_KEYS])
                or (timestamp < rules[EARLIEST_TIMESTAMP] and timestamp != NO_TIMESTAMP)
                or timestamp > rules[LATEST_TIMESTAMP]
                or (address and record_at - start > rules[RECORD_BYTES_LIMIT])
            ):
                return False
            largest = max(largest, timestamp)
        if record_at != end or largest != row.max_timestamp_ms:
            return False
        row.position = at
        row.base_offset = next_offset
        row.last_offset = next_offset + count - 1
        row.leader_epoch = rules[NEW_LEADER_EPOCH]
        next_offset += count
        sequence = (sequence + count) & INT32_MAX
        at = after
    if at != len(data):
        return False
    for batch in range(len(table)):
        row = table[batch]
        write_big_endian(data, row.position + BASE_OFFSET_AT, 8, row.base_offset)
        write_big_endian(data, row.position + LEADER_EPOCH_AT, 4, row.leader_epoch)
    return True


@njit(nogil=True)
def _store_big_endian(address, size, value):
    """Store the low `size` bytes of `value` at `address`."""
    rest = np.uint64(value)
    for i in range(size):
        store_byte(address + size - 1 - i, np.uint8(rest & np.uint64(0xFF)))
        rest >>= np.uint64(8)


@kernel(types.int64(INT64_IN, INT64_IN, BATCH_TABLE_OUT))
def place_batches(addresses, rules, table):
    """Give the batches of `table` the offsets after each other, if they are those of one producer, in its sequence.

    Their base offsets count from 0, each is checked, and lies at its address. The producer id is -1 for batches without
    a producer. Their headers and rows get offsets and leader epoch, and the rows the positions that they have without
    what is between them. Returns the number of their bytes; -1, with nothing changed, for batches of several producers,
    of transactions, out of sequence or past the largest offset.
    """
    next_offset, sequence = rules[NEXT_OFFSET], rules[NEXT_SEQUENCE]
    for batch in range(len(table)):
        row = table[batch]
        if not _follows(row, rules, sequence) or next_offset >= _MAX_OFFSET - row.records_count:
            return -1
        next_offset += row.records_count
        sequence = (sequence + row.records_count) & INT32_MAX
    next_offset, size = rules[NEXT_OFFSET], np.int64(0)
    for batch in range(len(table)):
        row = table[batch]
        row.position = size
        row.base_offset = next_offset
        row.last_offset = next_offset + row.records_count - 1
        row.leader_epoch = rules[NEW_LEADER_EPOCH]
        _store_big_endian(addresses[batch] + BASE_OFFSET_AT, 8, row.base_offset)
        _store_big_endian(addresses[batch] + LEADER_EPOCH_AT, 4, row.leader_epoch)
        next_offset += row.records_count
        size += row.size_bytes
    return size


@kernel(types.int64(types.int64, types.int64, types.int64, types.int64))
def renumber_records(source, size, records, target):
    """Copy the records of a section, which `check_sections` has accepted, with offset deltas 0, 1, 2 and so on.

    `target` has room for size + records * RENUMBERED_RECORD_BYTES. Returns the number of bytes written.
    """
    at, end, out = source, source + size, target
    for record in range(records):
        length, body = read_varint(at, end)
        at = body + length
        _, delta_at = read_varlong(body + 1, at)
        _, rest = read_varint(delta_at, at)
        out = write_varlong(out, (delta_at - body) + varlong_size(record) + (at - rest))
        store_byte(out, load_byte(body))
        copy_bytes(out + 1, body + 1, delta_at - body - 1)
        out = write_varlong(out + delta_at - body, record)
        copy_bytes(out, rest, at - rest)
        out += at - rest
    return out - target
