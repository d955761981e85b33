"""A metadata snapshot: one file with the records that rebuild an image, in KRaft's format.

    <20 digit end offset>-<10 digit epoch>.checkpoint     the image as of all commits below the end offset
      control batch    SnapshotHeader: time (ms) of the last commit in it
      batches          metadata records (image_records.py), offsets going on from the header's 0
      control batch    SnapshotFooter, the last record

It is written under a name that ends in `.checkpoint.part`, fsynced and renamed, so a snapshot is complete or does not
exist; a `.part` file that a crash leaves is never read. Any KRaft snapshot can be read, including the quorum's control
records in its first batch. Everything is checked: a snapshot without its footer is refused.

Source of the format: org.apache.kafka.snapshot.RecordsSnapshotWriter, RecordsSnapshotReader and Snapshots.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.metadata.messages.records import MetadataRecord, decode_record, encode_record
from pyspark_kafkalog.record.control import (
    ControlRecord,
    SnapshotFooter,
    SnapshotHeader,
    build_control_record,
    parse_control_record,
)
from pyspark_kafkalog.record.reference import Record, RecordBatch, decode_batch, encode_batch
from pyspark_kafkalog.storage.filesystem import FileSystem, open_to_read
from pyspark_kafkalog.storage.names import CHECKPOINT_SUFFIX

#: A larger snapshot is treated as damaged, to bound reads. It has room for a million partitions.
MAX_SNAPSHOT_BYTES: Final = 256 << 20

_RECORDS_A_BATCH: Final = 1000
_FILE_NAME = re.compile(r"(\d{20})-(\d{10})" + re.escape(CHECKPOINT_SUFFIX))
_ADVICE: Final = "remove the file when the commits from offset 0 on are there, else bring it back from a backup"


@dataclass(frozen=True, slots=True, order=True)
class SnapshotId:
    """The id of a snapshot: it contains the commits below `end_offset`; the last of them has leader epoch `epoch`."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}{CHECKPOINT_SUFFIX}"

    @staticmethod
    def parse(file_name: str) -> SnapshotId | None:
        """The id in a file's name; None if it is not a snapshot's name."""
        match = _FILE_NAME.fullmatch(file_name)
        return None if match is None else SnapshotId(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot file: the time (ms) of the last commit in it, its size in bytes, its records.

    `records` can be iterated once and are decoded lazily. The iteration raises errors for damage, and, after the last
    record, for a missing footer.
    """

    last_contained_timestamp_ms: int
    size_bytes: int
    records: Iterator[MetadataRecord]


def write_snapshot(
    path: Path, records: Iterable[MetadataRecord], *, last_contained_timestamp_ms: int, epoch: int, fs: FileSystem
) -> int:
    """Write the snapshot `path`, durably, and replace an existing one; return its size in bytes.

    Raises OSError, in which case no snapshot was written; InvalidRecordError for records that cannot be encoded.
    """
    batches = _encode_batches(records, last_contained_timestamp_ms, epoch)
    temporary = path.with_name(f"{path.name.removesuffix(CHECKPOINT_SUFFIX)}-{os.urandom(8).hex()}.checkpoint.part")
    fd = fs.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            size_bytes = 0
            for batch in batches:
                fs.pwrite_all(fd, batch, size_bytes)
                size_bytes += len(batch)
            fs.fsync(fd)
        finally:
            fs.close(fd)
        fs.rename(temporary, path)
    except Exception:
        with contextlib.suppress(OSError):
            fs.unlink_if_there(temporary)
        raise
    fs.fsync_dir(path.parent)
    return size_bytes


def _encode_batches(records: Iterable[MetadataRecord], timestamp_ms: int, epoch: int) -> Iterator[bytes]:
    yield _encode_control(SnapshotHeader(last_contained_log_timestamp_ms=timestamp_ms), 0, timestamp_ms, epoch)
    offset = 1
    values = map(encode_record, records)
    while chunk := tuple(islice(values, _RECORDS_A_BATCH)):
        batch = [
            Record(offset=offset + i, timestamp_ms=timestamp_ms, key=None, value=value) for i, value in enumerate(chunk)
        ]
        yield encode_batch(batch, leader_epoch=epoch)
        offset += len(batch)
    yield _encode_control(SnapshotFooter(), offset, timestamp_ms, epoch)


def _encode_control(control: ControlRecord, offset: int, timestamp_ms: int, epoch: int) -> bytes:
    key, value = build_control_record(control)
    record = Record(offset=offset, timestamp_ms=timestamp_ms, key=key, value=value)
    return encode_batch([record], leader_epoch=epoch, is_control=True)


def read_snapshot(path: Path) -> Snapshot:
    """Read the snapshot `path`. Raises CorruptRecordError, UnsupportedFormatError, or OSError if it is unreadable."""
    with open_to_read(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > MAX_SNAPSHOT_BYTES:
            raise _damage(path, 0, f"at most {MAX_SNAPSHOT_BYTES} bytes", f"{size_bytes} bytes")
        data = file.read(size_bytes)
    batches = _decode_batches(data, path)
    first_at, first = next(batches, (0, None))
    controls = [] if first is None else _controls(first, path, first_at)
    if not controls or not isinstance(controls[0], SnapshotHeader):
        raise _damage(path, 0, "a control batch that begins with a snapshot header", _describe(first))
    header = controls[0]
    return Snapshot(header.last_contained_log_timestamp_ms, size_bytes, _metadata_records(batches, path, size_bytes))


def _decode_batches(data: bytes, path: Path) -> Iterator[tuple[int, RecordBatch]]:
    """Position and content of each batch. Checks that the offsets begin at 0 and have no gaps."""
    at = offset = 0
    while at < len(data):
        batch = decode_batch(data, at, file=str(path), file_position=at)
        if [record.offset for record in batch.records] != list(range(offset, offset + len(batch.records))):
            raise _damage(path, at, f"a batch of records from offset {offset} on without gaps", _describe(batch))
        yield at, batch
        at += batch.header.size_bytes
        offset += len(batch.records)


def _metadata_records(
    batches: Iterator[tuple[int, RecordBatch]], path: Path, size_bytes: int
) -> Iterator[MetadataRecord]:
    """The records up to the footer, which must be the last one of the file."""
    is_ended = False
    for at, batch in batches:
        if is_ended:
            raise _damage(path, at, "the end of the file after the snapshot's footer", _describe(batch))
        if batch.header.is_control:
            is_ended = any(isinstance(control, SnapshotFooter) for control in _controls(batch, path, at))
            continue
        file = f"{path} (a record of the batch)"
        for record in batch.records:
            if record.value is None:
                raise _damage(path, at, f"a metadata record at offset {record.offset}", "null")
            yield decode_record(record.value, file=file, file_position=at)
    if not is_ended:
        raise _damage(path, size_bytes, "a snapshot's footer", "the end of the file")


def _controls(batch: RecordBatch, path: Path, at: int) -> list[ControlRecord | None]:
    if not batch.header.is_control:
        return []
    return [
        parse_control_record(record.key, record.value, file=str(path), file_position=at) for record in batch.records
    ]


def _describe(batch: RecordBatch | None) -> str:
    if batch is None:
        return "an empty file"
    kind = "control records" if batch.header.is_control else "records"
    return f"a batch of {len(batch.records)} {kind} with base offset {batch.header.base_offset}"


def _damage(path: Path, position: int, expected: str, found: str) -> CorruptRecordError:
    return CorruptRecordError(file=str(path), position=position, expected=expected, found=found, advice=_ADVICE)
