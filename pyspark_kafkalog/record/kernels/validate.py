"""Compiled checks of the records that clients send: the structure of every record, timestamps, keys, offset deltas.

As in decode.py, a section is the decompressed bytes of a batch after its header, by address and length. Offset deltas
may be anything here: batches of old clients count wrongly, and `renumber_records` corrects them.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

import numpy as np
from numba import types

from pyspark_kafkalog.record.header import TIMESTAMP_TYPE_MASK
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.layout import BYTES_LEFT_IN_BATCH, NO_FAULT, note_fault, read_record
from pyspark_kafkalog.record.kernels.memory import (
    INT64,
    INT64_IN,
    UINT8,
    copy_bytes,
    load_byte,
    read_varint,
    read_varlong,
    store_byte,
    varlong_size,
    write_varlong,
)
from pyspark_kafkalog.record.kernels.scan import BATCH_TABLE
from pyspark_kafkalog.units import INT32_MAX

#: Most bytes that a record grows by in `renumber_records`: a longer offset delta, and a longer length.
RENUMBERED_RECORD_BYTES = 8

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
