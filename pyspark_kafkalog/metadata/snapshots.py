"""Metadata snapshots: their format, and loading an image from the newest.

    __cluster_metadata-0/
      kafkalog-newest-snapshot                          hint: the newest snapshot's file name and a line end
      <20 digit end offset>-<10 digit epoch>.checkpoint the image as of the commits below it, in KRaft's format
        control batch    SnapshotHeader: time (ms) of the last commit in it
        batches          metadata records (image.image_records), offsets going on from the header's 0
        control batch    SnapshotFooter, the last record

Any KRaft snapshot can be read, including the quorum's control records in its first batch. Everything is checked: a
snapshot without its footer is refused. A damaged snapshot does no harm as long as an older one, or the first commit,
exists to start from.

The pointer saves listing the snapshots when a root is opened. It is replaced after a snapshot is written. A crash in
between leaves the name of the previous snapshot, which costs reading more commits. If the pointer is missing, or names
a missing or damaged snapshot, the snapshots are listed. How they are written: local/backend.py.

Source of the format: org.apache.kafka.snapshot.RecordsSnapshotWriter, RecordsSnapshotReader and Snapshots.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH, CommitLogTail, KnownSnapshot, LoadedImage
from pyspark_kafkalog.metadata.delta import ImageDelta
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.messages.records import decode_record, encode_record
from pyspark_kafkalog.metadata.stored_partitions import Decode, PartitionRuns, StoredPartitions
from pyspark_kafkalog.record.control import (
    ControlRecord,
    SnapshotFooter,
    SnapshotHeader,
    build_control_record,
    parse_control_record,
)
from pyspark_kafkalog.record.reference import Record, decode_batch, decode_values, encode_batch
from pyspark_kafkalog.storage.names import CHECKPOINT_SUFFIX
from pyspark_kafkalog.values import dataclass

POINTER_FILE: Final = "kafkalog-newest-snapshot"

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


class Snapshots(Protocol):
    """The snapshots of a commit log: files of a directory (LocalSnapshots), or objects of a store.

    Only those of the commit log's only leader epoch; others are ignored.
    """

    @property
    def location(self) -> str:
        """The directory or folder that they are in, for messages."""
        ...

    def name_of(self, end_offset: int) -> str:
        """What messages call the snapshot at `end_offset`: its path or URL."""
        ...

    def pointed_to(self) -> SnapshotId | None:
        """The snapshot that the pointer names; None if it names none. Raises OSError if it cannot be read."""
        ...

    def listed(self) -> list[SnapshotId]:
        """The snapshots, oldest first. Raises OSError."""
        ...

    def read(self, end_offset: int) -> Snapshot:
        """Raises FileNotFoundError, CorruptRecordError, UnsupportedFormatError, or OSError if it is unreadable."""
        ...

    def pointed_to_with_size(self) -> tuple[SnapshotId, int] | None:
        """The snapshot of a native root that the pointer names, and its size in bytes; None without one.

        Raises OSError.
        """
        ...

    def write(self, image: MetadataImage) -> KnownSnapshot:
        """Write the snapshot of `image`, durably, and set the pointer to it. Raises OSError."""
        ...

    def write_newer(self, loaded: LoadedImage) -> KnownSnapshot | None:
        """A snapshot that another process has written since that of `loaded`, else a new one.

        None if the other's contains commits that are not in `loaded`. The size of the commits after it is unknown and
        counts as 0, which only delays the next snapshot. Raises OSError.
        """
        known = loaded.tail.snapshot
        pointed = self.pointed_to_with_size()
        if pointed is None or pointed[0].end_offset <= (0 if known is None else known.end_offset):
            return self.write(loaded.image)
        snapshot, size_bytes = pointed
        if snapshot.end_offset > loaded.image.next_offset:
            return None
        return KnownSnapshot(snapshot.end_offset, size_bytes, loaded.image.last_timestamp_ms, is_sound=False)

    def check(self, end_offset: int) -> None:
        """Read the snapshot to its end. Raises as `read` and the iteration of its records do."""
        for _ in self.read(end_offset).records:
            pass

    def load_newest(self) -> LoadedSnapshot:
        """The image of the newest whole snapshot. Raises OSError, or UnsupportedFormatError."""
        pointed = self.pointed_to()
        if pointed is not None and is_native(pointed):
            try:
                return LoadedSnapshot(self._load(pointed.end_offset))
            except (FileNotFoundError, CorruptRecordError) as error:
                _LOG.warning("the newest metadata snapshot cannot be used, trying an older one: %s", error)
        damage: CorruptRecordError | None = None
        must_reach = 0
        for end_offset in reversed([each.end_offset for each in self.listed()]):
            try:
                return LoadedSnapshot(self._load(end_offset), damage, must_reach)
            except FileNotFoundError:
                continue  # removed meanwhile: the listing is older than a newer snapshot
            except CorruptRecordError as error:
                damage = damage or error
                must_reach = max(must_reach, end_offset)
        return LoadedSnapshot(LoadedImage(MetadataImage(), CommitLogTail(self.location)), damage, must_reach)

    def _load(self, end_offset: int) -> LoadedImage:
        name = self.name_of(end_offset)
        snapshot = self.read(end_offset)
        image = image_of(snapshot, end_offset, name)
        timestamp_ms = snapshot.last_contained_timestamp_ms
        known = KnownSnapshot(end_offset, snapshot.size_bytes, timestamp_ms, is_sound=True)
        return LoadedImage(image, CommitLogTail(name, known, timestamp_ms))


def image_of(snapshot: Snapshot, end_offset: int, file: str) -> MetadataImage:
    """The image that the records of `snapshot`, which is in `file`, add up to.

    Raises CorruptRecordError, UnsupportedFormatError.
    """
    delta = ImageDelta(
        MetadataImage(), commit_offset=end_offset, timestamp_ms=snapshot.last_contained_timestamp_ms, is_snapshot=True
    )
    try:
        delta.replay_runs(snapshot.runs())
    except InvalidRecordError as error:
        found = f"{error} (metadata record {delta.records_applied} of the snapshot)"
        raise _damage(file, 0, "metadata records that fit together", found) from error
    return delta.build(end_offset)


def is_native(snapshot: SnapshotId) -> bool:
    """Whether a native root wrote it; a broker's first one ends at offset 0."""
    return snapshot.epoch == LEADER_EPOCH and snapshot.end_offset > 0


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

    The records can be iterated once and are decoded lazily. The iteration raises errors for damage, and, after the last
    record, for a missing footer.
    """

    last_contained_timestamp_ms: int
    size_bytes: int
    batches: Iterator[_Values]

    @property
    def records(self) -> Iterator[MetadataRecord]:
        """Each record."""
        return (batch.decode(value) for batch in self.batches for value in batch.values)

    def runs(self) -> Iterator[MetadataRecord | StoredPartitions]:
        """The records, those of neighbouring partitions in runs."""
        runs = PartitionRuns()
        return (each for batch in self.batches for each in runs.decode(batch.values, batch.decode))


class _Values(NamedTuple):
    """The values of the metadata records of a batch, and their decoder."""

    values: Sequence[bytes]
    decode: Decode


def encode_snapshot(
    records: Iterable[MetadataRecord], *, last_contained_timestamp_ms: int, epoch: int
) -> Iterator[bytes]:
    """The batches of a snapshot, in order. Raises InvalidRecordError for records that cannot be encoded."""
    timestamp_ms = last_contained_timestamp_ms
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


def decode_snapshot(data: bytes, file: str) -> Snapshot:
    """The snapshot that `data`, read from `file`, consists of. Raises CorruptRecordError, UnsupportedFormatError."""
    batches = _decode_batches(data, file)
    first = next(batches, None)
    controls = [] if first is None else _controls(first, file)
    if not controls or not isinstance(controls[0], SnapshotHeader):
        raise _damage(file, 0, "a control batch that begins with a snapshot header", _describe(first))
    header = controls[0]
    return Snapshot(header.last_contained_log_timestamp_ms, len(data), _metadata_values(batches, file, len(data)))


def too_large(file: str, size_bytes: int) -> CorruptRecordError:
    """The error for a snapshot of more than MAX_SNAPSHOT_BYTES."""
    return _damage(file, 0, f"at most {MAX_SNAPSHOT_BYTES} bytes", f"{size_bytes} bytes")


class _Batch(NamedTuple):
    """A batch at byte `at`: the offsets and values of its records, and their keys if it is a control batch."""

    at: int
    is_control: bool
    offsets: Sequence[int]
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] = ()


def _decode_batches(data: bytes, file: str) -> Iterator[_Batch]:
    """The batches. Checks that the offsets begin at 0 and have no gaps."""
    at = offset = 0
    while at < len(data):
        header, values = decode_values(data, at, file=file, file_position=at)
        if values is not None:
            batch = _Batch(at, False, range(header.base_offset, header.next_offset), values)
        else:
            records = decode_batch(data, at, file=file, file_position=at).records
            offsets, keys = [each.offset for each in records], [each.key for each in records]
            batch = _Batch(at, header.is_control, offsets, [each.value for each in records], keys)
        if list(batch.offsets) != list(range(offset, offset + len(batch.offsets))):
            raise _damage(file, at, f"a batch of records from offset {offset} on without gaps", _describe(batch))
        yield batch
        at += header.size_bytes
        offset += len(batch.offsets)


def _metadata_values(batches: Iterator[_Batch], file: str, size_bytes: int) -> Iterator[_Values]:
    """The records up to the footer, which must be the last one of the file."""
    is_ended = False
    for batch in batches:
        if is_ended:
            raise _damage(file, batch.at, "the end of the file after the snapshot's footer", _describe(batch))
        if batch.is_control:
            is_ended = any(isinstance(control, SnapshotFooter) for control in _controls(batch, file))
            continue
        values = [value for value in batch.values if value is not None]
        if len(values) < len(batch.values):
            offset = batch.offsets[batch.values.index(None)]
            raise _damage(file, batch.at, f"a metadata record at offset {offset}", "null")
        location = f"{file} (a record of the batch)"
        yield _Values(values, partial(decode_record, file=location, file_position=batch.at))
    if not is_ended:
        raise _damage(file, size_bytes, "a snapshot's footer", "the end of the file")


def _controls(batch: _Batch, file: str) -> list[ControlRecord | None]:
    if not batch.is_control:
        return []
    pairs = zip(batch.keys, batch.values, strict=True)
    return [parse_control_record(key, value, file=file, file_position=batch.at) for key, value in pairs]


def _describe(batch: _Batch | None) -> str:
    if batch is None:
        return "an empty file"
    kind = "control records" if batch.is_control else "records"
    return f"a batch of {len(batch.offsets)} {kind} from offset {batch.offsets[0] if batch.offsets else None} on"


def _damage(file: str, position: int, expected: str, found: str) -> CorruptRecordError:
    return CorruptRecordError(file=file, position=position, expected=expected, found=found, advice=_ADVICE)
