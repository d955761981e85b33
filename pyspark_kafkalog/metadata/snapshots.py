"""Metadata snapshots: when one is due, its file, the pointer to the newest, and loading an image from it.

    __cluster_metadata-0/
      kafkalog-newest-snapshot                          hint: the newest snapshot's file name and a line end
      <20 digit end offset>-<10 digit epoch>.checkpoint the image as of the commits below it, in KRaft's format
        control batch    SnapshotHeader: time (ms) of the last commit in it
        batches          metadata records (image.image_records), offsets going on from the header's 0
        control batch    SnapshotFooter, the last record

A snapshot is due once the commits since the last one take as many bytes as it does, 64 KiB at least and
metadata.log.max.record.bytes.between.snapshots at most; or, with a new commit, once
metadata.log.max.snapshot.interval.ms has passed. So reading a root's commits never takes much longer than reading its
snapshot, and snapshots are at most half of what is written to the metadata log.

A snapshot is written under a name that ends in `.checkpoint.part`, fsynced and renamed, so it is complete or does not
exist; a `.part` file that a crash leaves is never read. Any KRaft snapshot can be read, including the quorum's control
records in its first batch. Everything is checked: a snapshot without its footer is refused. A damaged snapshot does no
harm as long as an older one, or the first commit, exists to start from.

The pointer saves listing the directory when a root is opened. It is replaced by a rename after the snapshot is written.
A crash in between leaves the name of the previous snapshot, which costs reading more commits. If the file is missing,
or names a missing or damaged snapshot, the directory is listed.

Source of the format: org.apache.kafka.snapshot.RecordsSnapshotWriter, RecordsSnapshotReader and Snapshots.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.broker import BROKER_CONFIGS
from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH, KnownSnapshot, LoadedImage, LogTail
from pyspark_kafkalog.metadata.delta import ImageDelta
from pyspark_kafkalog.metadata.image import MetadataImage, image_records
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.messages.records import decode_record, encode_record
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

POINTER_FILE: Final = "kafkalog-newest-snapshot"
_POINTER_MAX_BYTES: Final = 64
_MIN_BYTES_BETWEEN_SNAPSHOTS: Final = 64 << 10

#: A larger snapshot is treated as damaged, to bound reads. It has room for a million partitions.
MAX_SNAPSHOT_BYTES: Final = 256 << 20

_LOG: Final = logging.getLogger(__name__)
_RECORDS_A_BATCH: Final = 1000
_FILE_NAME = re.compile(r"(\d{20})-(\d{10})" + re.escape(CHECKPOINT_SUFFIX))
_ADVICE: Final = "remove the file if the commits from offset 0 on exist, otherwise restore it from a backup"


@dataclass(frozen=True, slots=True)
class LoadedSnapshot:
    """The start for reading a log: an image, empty without a snapshot, and the damage of newer snapshots, if any.

    With `damage`, the commits must reach at least `must_reach`, the end of the damaged snapshots.
    """

    loaded: LoadedImage
    damage: CorruptRecordError | None = None
    must_reach: int = 0


class Snapshots:
    """The snapshots in `directory` of the commit log's only leader epoch; others are ignored."""

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        self._directory = directory
        self._fs = fs

    def path(self, end_offset: int) -> Path:
        """The file of the snapshot at `end_offset`."""
        return self._directory / SnapshotId(end_offset, LEADER_EPOCH).file_name

    def pointed_to(self) -> tuple[int, int] | None:
        """End offset and size in bytes of the snapshot that the pointer names; None if it does not exist."""
        snapshot = read_pointer(self._directory)
        if snapshot is None or not _is_native(snapshot):
            return None
        try:
            return snapshot.end_offset, os.stat(self.path(snapshot.end_offset)).st_size
        except FileNotFoundError:
            return None

    def load_newest(self) -> LoadedSnapshot:
        """The image of the newest whole snapshot. Raises OSError, or UnsupportedFormatError."""
        pointed = read_pointer(self._directory)
        if pointed is not None and _is_native(pointed):
            try:
                return LoadedSnapshot(self._load(pointed.end_offset))
            except (FileNotFoundError, CorruptRecordError) as error:
                _LOG.warning("the newest metadata snapshot cannot be used, trying an older one: %s", error)
        damage: CorruptRecordError | None = None
        must_reach = 0
        for end_offset in sorted((each.end_offset for each in list_snapshots(self._directory)), reverse=True):
            try:
                return LoadedSnapshot(self._load(end_offset), damage, must_reach)
            except FileNotFoundError:
                continue  # removed meanwhile: the listing is older than a newer snapshot
            except CorruptRecordError as error:
                damage = damage or error
                must_reach = max(must_reach, end_offset)
        return LoadedSnapshot(LoadedImage(MetadataImage(), LogTail(self._directory)), damage, must_reach)

    def _load(self, end_offset: int) -> LoadedImage:
        path = self.path(end_offset)
        snapshot = read_snapshot(path)
        timestamp_ms = snapshot.last_contained_timestamp_ms
        delta = ImageDelta(MetadataImage(), commit_offset=end_offset, timestamp_ms=timestamp_ms)
        try:
            delta.replay(snapshot.records)
        except InvalidRecordError as error:
            raise CorruptRecordError(
                file=str(path), position=0, expected="metadata records that fit together", found=str(error)
            ) from error
        known = KnownSnapshot(end_offset, snapshot.size_bytes, timestamp_ms, is_sound=True)
        return LoadedImage(delta.build(end_offset), LogTail(path, known, timestamp_ms))

    def write(self, image: MetadataImage) -> KnownSnapshot:
        """Write the snapshot of `image`, durably, and set the pointer to it. Raises OSError."""
        size_bytes = write_snapshot(
            self.path(image.next_offset),
            image_records(image),
            last_contained_timestamp_ms=image.last_timestamp_ms,
            epoch=LEADER_EPOCH,
            fs=self._fs,
        )
        write_pointer(self._directory, SnapshotId(image.next_offset, LEADER_EPOCH), self._fs)
        return KnownSnapshot(image.next_offset, size_bytes, image.last_timestamp_ms, is_sound=self._fs.waits_for_disk)


def list_snapshots(directory: Path) -> list[SnapshotId]:
    """The snapshots of the commit log in `directory`, oldest first. Raises OSError."""
    found = map(SnapshotId.parse, os.listdir(directory))
    return sorted(snapshot for snapshot in found if snapshot is not None and _is_native(snapshot))


def _is_native(snapshot: SnapshotId) -> bool:
    """Whether a native root wrote it; a broker's first one ends at offset 0."""
    return snapshot.epoch == LEADER_EPOCH and snapshot.end_offset > 0


def read_pointer(directory: Path) -> SnapshotId | None:
    """The snapshot that the pointer names; None if it names none. Raises OSError if it cannot be read."""
    try:
        with open_to_read(directory / POINTER_FILE) as file:
            data = file.read(_POINTER_MAX_BYTES)
    except FileNotFoundError:
        return None
    return SnapshotId.parse(data.decode("ascii", errors="replace").removesuffix("\n"))


def write_pointer(directory: Path, snapshot: SnapshotId, fs: FileSystem) -> None:
    """Set the pointer to `snapshot`, durably. Raises OSError."""
    fs.write_file_atomic(directory / POINTER_FILE, f"{snapshot.file_name}\n".encode("ascii"))


@dataclass(frozen=True, slots=True)
class MetadataLogConfig:
    """The metadata.* settings: bytes and ms between snapshots, ms that old files are kept."""

    max_bytes_between_snapshots: int
    max_snapshot_interval_ms: int
    max_retention_ms: int

    @staticmethod
    def from_properties(properties: Mapping[str, str]) -> MetadataLogConfig:
        """Parse the three of a broker's `properties`. Raises InvalidConfigError."""
        return MetadataLogConfig(
            _setting(properties, "metadata.log.max.record.bytes.between.snapshots"),
            _setting(properties, "metadata.log.max.snapshot.interval.ms"),
            _setting(properties, "metadata.max.retention.ms"),
        )


def _setting(properties: Mapping[str, str], name: str) -> int:
    definition = BROKER_CONFIGS[name]
    value = definition.parse(properties[name]) if name in properties else definition.default
    assert isinstance(value, int)
    return value


def snapshot_is_due(tail: LogTail, config: MetadataLogConfig, *, now_ms: int) -> bool:
    """Whether the log behind `tail`, which ends with a commit, calls for a snapshot at time `now_ms`."""
    if not tail.bytes_since:
        return False
    last_bytes = 0 if tail.snapshot is None else tail.snapshot.size_bytes
    if tail.bytes_since >= min(config.max_bytes_between_snapshots, max(_MIN_BYTES_BETWEEN_SNAPSHOTS, last_bytes)):
        return True
    return 0 < config.max_snapshot_interval_ms <= now_ms - tail.since_ms


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
