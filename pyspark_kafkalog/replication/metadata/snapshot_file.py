"""Whether the file of a metadata snapshot is whole: batches without a gap, with right checksums, a footer at the end.

Source of the rules: org.apache.kafka.snapshot.RecordsSnapshotReader, KIP-630.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_type
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.storage.filesystem import open_to_read
from pyspark_kafkalog.units import MIB

_CHUNK_BYTES: Final = 8 * MIB
#: More than a batch of the metadata log may have.
_BATCH_BYTES_MAX: Final = 64 * MIB


def check_snapshot(path: Path) -> None:
    """Raises DiskFormatError for a snapshot that is damaged or not whole, OSError."""
    position, last = 0, b""
    rest = b""
    with open_to_read(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            data = rest + chunk
            scan = scan_batches(data, file=str(path), file_position=position)
            if scan.fault is not None:
                raise scan.fault
            verify_crcs(data, scan.batches, data_position=position, file=str(path))
            if len(scan.batches):
                batch = scan.batches[-1]
                start = int(batch["position"]) - position
                last = data[start : start + int(batch["size_bytes"])]
            position += scan.consumed_bytes
            rest = data[scan.consumed_bytes :]
            if len(rest) > _BATCH_BYTES_MAX:
                raise _error(path, position, f"a batch of at most {_BATCH_BYTES_MAX} bytes", "a larger one")
    if rest:
        raise _error(path, position, "a whole batch", f"{len(rest)} bytes")
    if not _is_footer(last, path, position):
        raise _error(path, position, "a snapshot footer at the end", "none")


def _is_footer(batch: bytes, path: Path, position: int) -> bool:
    if not batch:
        return False
    decoded = decode_batch(batch, 0, file=str(path), file_position=position - len(batch))
    types = [parse_control_type(each.key, file=str(path), file_position=position) for each in decoded.records]
    return decoded.header.is_control and types == [ControlRecordType.SNAPSHOT_FOOTER]


def _error(path: Path, position: int, expected: str, found: str) -> DiskFormatError:
    return CorruptRecordError(file=str(path), position=position, expected=expected, found=found)
