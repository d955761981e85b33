"""Walks a segment's `.log` to its end, whatever it contains: every header, every CRC, and the records.

Bytes are read into one reused buffer, and the compiled scan finds the headers. At a position where no batch can begin,
the walk skips to the next position in the offset index at which a batch begins. The compiled decoder checks the records
of uncompressed batches without output; those of compressed ones only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.maintenance.verify.findings import RESTORE, FindingSink, Severity
from pyspark_kafkalog.record.codecs.codec import CODECS
from pyspark_kafkalog.record.decode import decode_slices
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    COMPRESSION_MASK,
    CRC_AT,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    RECORD_BATCH_OVERHEAD_BYTES,
    crc32c,
    parse_header,
)
from pyspark_kafkalog.record.old_formats import convert_run, is_old
from pyspark_kafkalog.record.scan import BatchScan, first_bad_crc, scan_batches
from pyspark_kafkalog.storage.filesystem import pread, preadv
from pyspark_kafkalog.storage.segment.reader import BATCH_BYTES_MAX
from pyspark_kafkalog.units import INT64_MAX

CHUNK_BYTES: Final = 4 << 20
_NO_COLUMNS: Final[frozenset[str]] = frozenset()
_RECOVERY: Final = "nothing: the next writer, a broker that starts or kafkalog adopt truncates the log here"
_ROWS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WalkedRun:
    """Consecutive whole batches, with all fields of their headers, and those of them with a correct CRC.

    `data` starts at byte `position` of the file and is overwritten by the next run.
    """

    data: NDArray[np.uint8]
    position: int
    batches: NDArray[np.void]
    good: NDArray[np.void]


class BatchWalk:
    """One walk over bytes [0, `end`) of the `.log` open as `fd`.

    `severity` returns the severity of damage, given the offset reached before it. `next_start` returns the next
    position after a byte at which a batch may begin, or None.
    """

    def __init__(
        self,
        fd: int,
        file: str,
        end: int,
        sink: FindingSink,
        *,
        base_offset: int,
        limit_offset: int,
        severity: Callable[[int], Severity],
        next_start: Callable[[int], int | None],
        are_all_records_checked: bool,
    ) -> None:
        self._fd = fd
        self._file = file
        self._end = end
        self._sink = sink
        self._severity = severity
        self._next_start = next_start
        self._limit_offset = limit_offset
        self._are_all_records_checked = are_all_records_checked
        self.reached_offset = base_offset
        self.is_damaged = False
        self.inner_gaps = 0
        self.batches_count = 0
        self.records_count = 0
        self.end_position = 0
        self._is_old_reported = False

    def runs(self) -> Iterator[WalkedRun]:
        """All runs, in order; faults go to the sink."""
        position = 0
        buffer = np.empty(min(CHUNK_BYTES, max(self._end, 1)), dtype=np.uint8)
        while position < self._end:
            length = preadv(self._fd, buffer[: self._end - position].data, position)
            if not length:
                self._torn(position, "the end of the file")
                return
            data = buffer[:length]
            if is_old(data):
                old = convert_run(data, file=self._file, file_position=position)
                scan = BatchScan(old.stored, old.consumed_bytes, old.fault)
                if len(scan.batches):
                    yield self._checked_old(data, position, scan.batches)
            else:
                scan = scan_batches(data, file=self._file, file_position=position)
                if len(scan.batches):
                    yield self._checked(data, position, scan.batches)
                if is_old(data, scan.consumed_bytes):
                    scan = replace(scan, fault=None)  # the next turn reads it
            position += scan.consumed_bytes
            self.end_position = position
            if scan.fault is not None:
                following = self._after_fault(position, scan.fault, is_first=not scan.consumed_bytes)
                if following is None:
                    return
                position = following
            elif not scan.consumed_bytes:
                whole = self._whole_batch_bytes(data, position)
                if whole is None:
                    following = self._start_after(position)
                    if following is None:
                        return
                    position = following
                else:
                    buffer = np.empty(whole, dtype=np.uint8)  # bounded: by _whole_batch_bytes

    def _checked(self, data: NDArray[np.uint8], position: int, batches: NDArray[np.void]) -> WalkedRun:
        self._check_offsets(batches)
        good = self._check_crcs(data, position, batches)
        self._check_records(data, position, good)
        self.batches_count += len(batches)
        self.records_count += int(batches["records_count"].sum(dtype=np.int64))
        self.reached_offset = int(batches["last_offset"][-1]) + 1
        return WalkedRun(data, position, batches, good)

    def _checked_old(self, data: NDArray[np.uint8], position: int, messages: NDArray[np.void]) -> WalkedRun:
        """Messages of older formats, which have been read to be converted. They have no leader epochs."""
        self._check_offsets(messages)
        if not self._is_old_reported:
            self._is_old_reported = True
            self._sink.add(
                Severity.WARNING,
                "old-format",
                self._file,
                position=position,
                offset=int(messages["base_offset"][0]),
                expected="record batches (magic 2)",
                found="messages of a format from before Kafka 0.11 (magic 0 or 1), which are whole",
                advice="nothing: readers convert them; records that are copied to another topic have the present "
                "format",
            )
        self.batches_count += len(messages)
        self.records_count += int(messages["records_count"].sum(dtype=np.int64))
        self.reached_offset = int(messages["last_offset"][-1]) + 1
        return WalkedRun(data, position, messages, messages[:0])

    def _check_offsets(self, batches: NDArray[np.void]) -> None:
        """Check that offsets are above the previous ones and below the next segment's, and count gaps."""
        first = batches[0]
        if first["base_offset"] < self.reached_offset:
            self._damage(
                "offset-order",
                int(first["position"]),
                expected=f"a base offset of at least {self.reached_offset}",
                found=int(first["base_offset"]),
                offset=int(first["base_offset"]),
            )
        elif first["base_offset"] > self.reached_offset:
            self.inner_gaps += 1
        self.inner_gaps += int(np.count_nonzero(batches["base_offset"][1:] != batches["last_offset"][:-1] + 1))
        if batches["last_offset"][-1] >= self._limit_offset:
            outside = batches[int(np.searchsorted(batches["last_offset"], self._limit_offset))]
            self._damage(
                "offset-past-segment",
                int(outside["position"]),
                expected=f"offsets below {self._limit_offset}, where the segment ends",
                found=f"offsets {int(outside['base_offset'])} to {int(outside['last_offset'])}",
                offset=int(outside["base_offset"]),
            )

    def _check_crcs(self, data: NDArray[np.uint8], position: int, batches: NDArray[np.void]) -> NDArray[np.void]:
        """The batches with a correct CRC."""
        bad = first_bad_crc(data, batches, position)
        if bad < 0:
            return batches
        is_good = np.ones(len(batches), dtype=np.bool_)
        first = 0
        while bad >= 0:
            row = batches[first + bad]
            is_good[first + bad] = False
            start = int(row["position"]) - position
            computed = crc32c(data[start + ATTRIBUTES_AT : start + int(row["size_bytes"])])
            self._damage(
                "batch-crc",
                int(row["position"]) + CRC_AT,
                expected=f"CRC-32C {computed} for the batch at offset {int(row['base_offset'])}",
                found=int(row["crc"]),
                offset=int(row["base_offset"]),
            )
            first += bad + 1
            bad = first_bad_crc(data, batches[first:], position)
        return batches[is_good]

    def _check_records(self, data: NDArray[np.uint8], position: int, batches: NDArray[np.void]) -> None:
        """Check records against the headers, in batches with a correct CRC: a mismatch is a fault of the writer."""
        codecs = batches["attributes"] & COMPRESSION_MASK
        wrong = ~np.isin(codecs, list(CODECS))
        wrong |= batches["records_count"] > batches["last_offset"] - batches["base_offset"] + 1
        for row in batches[wrong]:
            self._sink.add(
                Severity.ERROR,
                "batch-header",
                self._file,
                position=int(row["position"]),
                offset=int(row["base_offset"]),
                expected="a codec of Kafka's, and no more records than offsets",
                found=f"codec {int(row['attributes']) & COMPRESSION_MASK}, {int(row['records_count'])} records in "
                f"offsets {int(row['base_offset'])} to {int(row['last_offset'])}",
                advice=RESTORE,
            )
        chosen = ~wrong if self._are_all_records_checked else ~wrong & (codecs == 0)
        batches = batches[chosen]
        while len(batches):
            try:
                for _ in decode_slices(
                    data,
                    batches,
                    data_position=position,
                    file=self._file,
                    columns=_NO_COLUMNS,
                    start_offset=0,
                    end_offset=INT64_MAX,
                    max_rows=_ROWS_MAX,
                ):
                    pass
                return
            except DiskFormatError as error:
                at = max(int(np.searchsorted(batches["position"], error.position, side="right")) - 1, 0)
                self._sink.add(
                    Severity.ERROR,
                    "record",
                    self._file,
                    position=error.position,
                    offset=int(batches["base_offset"][at]),
                    expected=error.expected,
                    found=error.found,
                    advice="restore the file from an earlier copy; the CRC is correct, so it was written like this",
                )
                batches = batches[at + 1 :]

    def _after_fault(self, position: int, fault: DiskFormatError, *, is_first: bool) -> int | None:
        """Report a header that the scan refused; return the position at which to continue, None at the end."""
        head = pread(self._fd, RECORD_BATCH_OVERHEAD_BYTES, position)
        try:
            parse_header(head, 0, file=self._file, file_position=position)
            if not is_first:
                return position  # its offset is too low; the check of the next run, which it begins, reports that
        except DiskFormatError:
            pass
        self._damage("batch-header", fault.position, expected=fault.expected, found=fault.found)
        return self._start_after(position)

    def _whole_batch_bytes(self, data: NDArray[np.uint8], position: int) -> int | None:
        """The length of the batch at `position`, which is longer than the buffer; None for a torn batch."""
        left = self._end - position
        if len(data) < LOG_OVERHEAD_BYTES or left < RECORD_BATCH_OVERHEAD_BYTES:
            self._torn(position, f"{left} bytes to the end")
            return None
        whole = LOG_OVERHEAD_BYTES + int.from_bytes(data[LENGTH_AT : LENGTH_AT + 4].tobytes(), "big", signed=True)
        if whole > min(left, BATCH_BYTES_MAX):
            self._torn(position, f"a batch of {whole} bytes, {left} bytes to the end")
            return None
        return whole

    def _torn(self, position: int, found: str) -> None:
        self._damage("torn-batch", position, expected="a whole batch", found=found)

    def _start_after(self, position: int) -> int | None:
        """The next position in the index at which a batch begins."""
        following = self._next_start(position)
        while following is not None and following < self._end:
            try:
                head = pread(self._fd, RECORD_BATCH_OVERHEAD_BYTES, following)
                if is_old(head):
                    return following
                parse_header(head, 0, file=self._file, file_position=following)
            except DiskFormatError:
                following = self._next_start(following)
                continue
            return following
        return None

    def _damage(self, what: str, position: int, *, expected: str, found: object, offset: int | None = None) -> None:
        self.is_damaged = True
        severity = self._severity(self.reached_offset)
        advice = RESTORE if severity is Severity.ERROR else _RECOVERY
        self._sink.add(
            severity,
            what,
            self._file,
            position=position,
            offset=self.reached_offset if offset is None else offset,
            expected=expected,
            found=found,
            advice=advice,
        )
