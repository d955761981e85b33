"""Finds the record batches in a run of bytes of a log file, and checks their CRCs.

A scan reads only headers. It ends before an incomplete batch (the caller decides whether that is a torn tail or only
the end of the bytes read), and at the first bad header, which it reports.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, CRC_AT, Buffer, crc32c, parse_header
from pyspark_kafkalog.record.kernels.native import crc32c_function
from pyspark_kafkalog.record.kernels.scan import BAD_HEADER, TABLE_FULL, find_bad_crc, scan_headers

_FIRST_TABLE_ROWS = 1024


@dataclass(frozen=True, slots=True)
class BatchScan:
    """The result of a scan.

    `batches` has BATCH_DTYPE, with positions in the file. `consumed_bytes` is the total length of those batches, i.e.
    the position in the data at which the scan stopped. `fault` is the error there, None at an incomplete batch or the
    end of the data.
    """

    batches: NDArray[np.void]
    consumed_bytes: int
    fault: DiskFormatError | None


def as_bytes_array(data: Buffer) -> NDArray[np.uint8]:
    """`data` as uint8[], without a copy."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).view(np.uint8)
    return np.frombuffer(data, dtype=np.uint8)


def scan_batches(data: Buffer, *, file: str, file_position: int = 0, max_batches: int | None = None) -> BatchScan:
    """Find the batches in `data`, which starts with a batch at byte `file_position` of `file`.

    Makes the checks of `parse_header`, and checks that offsets increase from batch to batch. Does not check CRCs or
    records.
    """
    view = as_bytes_array(data)
    tables: list[NDArray[np.void]] = []
    at, previous_offset, found = 0, -1, 0
    table_rows = _FIRST_TABLE_ROWS
    while True:
        if max_batches is not None:
            table_rows = min(table_rows, max_batches - found)
        table = np.empty(table_rows, dtype=BATCH_DTYPE)
        rows, at, previous_offset, reason = scan_headers(view, at, file_position, previous_offset, table)
        tables.append(table[:rows])
        found += rows
        if reason != TABLE_FULL or found == max_batches:
            break
        table_rows *= 4
    fault = None
    if reason == BAD_HEADER:
        fault = _header_fault(view, at, previous_offset, file=file, file_position=file_position + at)
    batches = tables[0] if len(tables) == 1 else np.concatenate(tables)
    return BatchScan(batches, at, fault)


def _header_fault(
    data: NDArray[np.uint8], at: int, previous_offset: int, *, file: str, file_position: int
) -> DiskFormatError:
    """The error for the header at data[at:], which the kernel rejected."""
    try:
        header = parse_header(data, at, file=file, file_position=file_position)
    except DiskFormatError as fault:
        return fault
    return CorruptRecordError(
        file=file,
        position=file_position,
        expected=f"a base offset above {previous_offset}, the last offset of the batch before",
        found=str(header.base_offset),
    )


def first_bad_crc(data: Buffer, batches: NDArray[np.void], data_position: int) -> int:
    """Index of the first batch whose CRC does not match its bytes, -1 if all match.

    `data` starts at byte `data_position` of the file that the positions in `batches` refer to, and holds all batches.
    """
    view = as_bytes_array(data)
    function = crc32c_function()
    if function:
        starts = batches["position"] - data_position
        sizes, crcs = np.ascontiguousarray(batches["size_bytes"]), np.ascontiguousarray(batches["crc"])
        return int(find_bad_crc(function, view, starts, sizes, crcs))
    rows = zip(
        (batches["position"] - data_position).tolist(),
        batches["size_bytes"].tolist(),
        batches["crc"].tolist(),
        strict=True,
    )
    for index, (start, size, crc) in enumerate(rows):
        if crc32c(view[start + ATTRIBUTES_AT : start + size]) != crc:
            return index
    return -1


def verify_crcs(data: Buffer, batches: NDArray[np.void], *, data_position: int, file: str) -> None:
    """Raise CorruptRecordError naming the first batch with a wrong CRC; arguments as for `first_bad_crc`."""
    index = first_bad_crc(data, batches, data_position)
    if index < 0:
        return
    batch = batches[index]
    start = int(batch["position"]) - data_position
    computed = crc32c(as_bytes_array(data)[start + ATTRIBUTES_AT : start + int(batch["size_bytes"])])
    raise CorruptRecordError(
        file=file,
        position=int(batch["position"]) + CRC_AT,
        expected=f"CRC-32C {computed} for the batch at offset {int(batch['base_offset'])}",
        found=str(int(batch["crc"])),
    )
