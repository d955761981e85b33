"""The commit log: `__cluster_metadata-0/`, one commit = one record batch, in a file or object created if absent.

    00000000000000000000.log     the first commit: a v2 batch of KRaft records with offsets from 0
    00000000000000000005.log     the next one, when the first has 5 records

A file or object is named by the offset that it begins with, and the name can be created only once: this is the
compare-and-set. An object is one commit and never changes. A file of a root on a file system may take further commits.
Readers derive the next name from the last commit. Where the names are, how a file takes commits, and what a crash
leaves, is described in local/log.py.

`LoadedImage` is an image with its position in the log (`CommitLogTail`), which each commit updates. Checking whether a
snapshot is due, or whether the image's files were removed, therefore reads nothing of the history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Final, Protocol

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import DataObjectRecord, MetadataRecord
from pyspark_kafkalog.metadata.messages.records import decode_record, encode_record
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    RECORD_BATCH_OVERHEAD_BYTES,
    RECORDS_AT,
    BatchHeader,
    crc32c,
    parse_header,
)
from pyspark_kafkalog.record.reference import Record, RecordBatch, decode_batch, encode_pairs
from pyspark_kafkalog.values import dataclass, quick_dataclass

#: A larger commit is treated as damaged, to bound reads. It has room for the states of 100,000 partitions.
MAX_COMMIT_BYTES: Final = 16 << 20

#: The commit log has only one leader epoch: there are no elections.
LEADER_EPOCH: Final = 0
_INLINE_SHARE: Final = 16


@quick_dataclass(frozen=True, slots=True)
class CommitPlace:
    """Where a commit begins, or the next one would: a byte position in the file that is named by `file_offset`."""

    file_offset: int
    position: int


@quick_dataclass(frozen=True, slots=True)
class Commit:
    """One commit: its offsets [base_offset, next_offset), time (ms), records, and the size of its batch in bytes.

    `carried_by_next`: what the object of the next commit holds of this one's, in an object store (objects/log.py).
    `place`: where it is, on a file system.
    """

    base_offset: int
    next_offset: int
    timestamp_ms: int
    records: tuple[MetadataRecord, ...]
    size_bytes: int
    carried_by_next: bytes = field(default=b"", repr=False, compare=False)
    place: CommitPlace | None = field(default=None, repr=False, compare=False)

    @property
    def position(self) -> int:
        """The byte at which it begins in its file or object."""
        return 0 if self.place is None else self.place.position

    @property
    def listed_offset(self) -> int:
        """The offset that its file or object is named by."""
        return self.base_offset if self.place is None else self.place.file_offset


class CommitsRemovedError(KafkalogError):
    """Commits that a reader still needs were removed: a snapshot contains them."""


class CommitLog(Protocol):
    """Reads the commits of one root: files of a directory (LocalCommitLog), or objects of a store."""

    def name_of(self, base_offset: int) -> str:
        """What messages call the commit at `base_offset` that begins a file or object: its path or URL."""
        ...

    def file_of(self, commit: Commit) -> str:
        """The path or URL of what `commit` is in."""
        return self.name_of(commit.listed_offset)

    def read(self, base_offset: int) -> Commit | None:
        """The commit at `base_offset`; None if it does not exist.

        Raises CorruptRecordError or UnsupportedFormatError with the name of the commit, OSError.
        """
        ...

    def read_file(self, base_offset: int) -> Iterator[Commit]:
        """The commits in the file or object that begins with `base_offset`, none if there is none. Raises as `read`."""
        commit = self.read(base_offset)
        return iter(()) if commit is None else iter((commit,))

    def read_after(self, loaded: LoadedImage, *, many: bool = False) -> Iterator[Commit]:
        """As `read_from`, the commits after `loaded`: what it knows of the log spares a search."""
        return self.read_from(loaded.image.next_offset, many=many)

    def read_from(self, offset: int, *, many: bool = False) -> Iterator[Commit]:
        """The commits from the one at `offset` to the end of the log.

        `many`: many are expected, so that listing them costs less than asking for one after the other.

        Raises CommitsRemovedError if it is known that commits from `offset` on were removed; what was read until then
        does not count.
        """
        ...

    def listed_offsets(self) -> Iterator[int]:
        """The offsets that the files or objects of retained commits begin with, unordered. Its cost grows with them."""
        ...

    def newest_first(self) -> Iterator[Commit]:
        """The retained commits, except those that are removed meanwhile. Lists them once. Raises as `read`."""
        for offset in sorted(self.listed_offsets(), reverse=True):
            yield from reversed(list(self.read_file(offset)))

    def oldest_first(self, first_offset: int = 0) -> Iterator[Commit]:
        """The retained commits from `first_offset` on, as `newest_first`."""
        for offset in self.listed_from(first_offset):
            yield from (each for each in self.read_file(offset) if each.base_offset >= first_offset)

    def listed_from(self, first_offset: int) -> Sequence[int]:
        """`listed_offsets` of what may hold commits from `first_offset` on, in order."""
        listed = sorted(self.listed_offsets())
        return listed[max(bisect_right(listed, first_offset) - 1, 0) :]

    def sync(self, file: str) -> None:
        """Make the commits in `file`, a path or URL, durable, and the names of all."""
        ...

    def lost_commit(self, offset: int, *, reached: int) -> CorruptRecordError:
        """The error for a log that ends at `offset` although it has reached the offset `reached`."""
        ...

    def replay(self) -> Iterator[Commit]:
        """All retained commits, oldest first: the history. Lists them once.

        Raises CorruptRecordError with the name of a missing commit.
        """
        listed = sorted(self.listed_offsets())
        offset = listed[0] if listed else 0
        for commit in self.read_from(offset, many=True):
            yield commit
            offset = commit.next_offset
        if listed and listed[-1] >= offset:
            raise self.lost_commit(offset, reached=listed[-1])


def encode_commit(base_offset: int, records: Sequence[MetadataRecord], timestamp_ms: int) -> bytes:
    """The batch of a commit. Raises InvalidRecordError for no records, or records that cannot be encoded."""
    if not records:
        raise InvalidRecordError("a commit needs at least one record, found none")
    pairs = [(None, encode_record(each)) for each in records]
    data = encode_pairs(pairs, base_offset=base_offset, timestamp_ms=timestamp_ms, leader_epoch=LEADER_EPOCH)
    if len(data) > MAX_COMMIT_BYTES:
        raise InvalidRecordError(f"the commit takes {len(data)} bytes, at most {MAX_COMMIT_BYTES} are allowed")
    return data


def decode_commit(
    data: bytes,
    base_offset: int,
    file: str,
    *,
    position: int = 0,
    carried_by_next: bytes = b"",
    place: CommitPlace | None = None,
) -> Commit:
    """The commit at `base_offset` that `data`, read from `file` at `position`, consists of.

    Raises CorruptRecordError or UnsupportedFormatError.
    """
    batch = decode_batch(data, 0, file=file, file_position=position)
    _check_batch(batch, base_offset, len(data), file, position)
    records = tuple(_decode_commit_record(record, file, position) for record in batch.records)
    header = batch.header
    return Commit(base_offset, header.next_offset, header.max_timestamp_ms, records, len(data), carried_by_next, place)


def whole_commit(data: bytes, at: int, offset: int, file: str, position: int) -> BatchHeader | None:
    """The header of the commit at `offset`, which is at `data[at:]` and at byte `position` of `file`.

    None if no commit follows there, or part of one, whose writer was killed or is still writing it. The first commit of
    a file is always whole. Raises CorruptRecordError for anything else.
    """
    left = len(data) - at
    if position and left < RECORD_BATCH_OVERHEAD_BYTES:
        begun = offset.to_bytes(8, "big")
        if data[at : at + 8] == begun[:left]:
            return None
    header = parse_header(data, at, file=file, file_position=position)
    if header.base_offset != offset or header.next_offset <= offset:
        found = f"offsets {header.base_offset} to {header.last_offset}"
        raise CorruptRecordError(file=file, position=position, expected=f"offsets from {offset} on", found=found)
    if header.size_bytes <= left:
        return header
    if position and header.size_bytes <= MAX_COMMIT_BYTES and not _has_wrong_length(data, at, header):
        return None
    raise CorruptRecordError(
        file=file,
        position=position + LENGTH_AT,
        expected=f"a batch of at most {left} bytes, which the file has",
        found=f"a batch of {header.size_bytes} bytes",
    )


def _has_wrong_length(data: bytes, at: int, header: BatchHeader) -> bool:
    """Whether the batch at `data[at:]`, by its header longer than the rest, is there whole.

    Other commits follow it then, or its CRC is that of the rest.
    """
    if crc32c(data[at + ATTRIBUTES_AT :]) == header.crc:
        return True
    begun = header.next_offset.to_bytes(8, "big")
    following = data.find(begun, at + RECORD_BATCH_OVERHEAD_BYTES)
    while following >= 0 and not has_valid_crc(data, following):
        following = data.find(begun, following + 1)
    return following >= 0


def has_valid_crc(data: bytes, at: int) -> bool:
    """Whether a whole batch is at `data[at:]`, as it was written."""
    if len(data) - at < RECORD_BATCH_OVERHEAD_BYTES:
        return False
    header = BatchHeader.unpack(data, at)
    end = at + header.size_bytes
    is_there = header.size_bytes >= RECORD_BATCH_OVERHEAD_BYTES and end <= len(data)
    return is_there and crc32c(data[at + ATTRIBUTES_AT : end]) == header.crc


def headers_of_commits(data: bytes, offset: int, file: str) -> Iterator[tuple[int, BatchHeader]]:
    """The headers of the commits in a file that begins with the one at `offset`, and where each is."""
    at = 0
    while (header := whole_commit(data, at, offset, file, at)) is not None:
        yield at, header
        at += header.size_bytes
        offset = header.next_offset


def _decode_commit_record(record: Record, file: str, position: int) -> MetadataRecord:
    location = f"{file} (value of the record at offset {record.offset})"
    if record.value is None:
        raise CorruptRecordError(file=location, position=position, expected="a metadata record", found="null")
    return decode_record(record.value, file=location, file_position=position)


def _check_batch(batch: RecordBatch, base_offset: int, size_bytes: int, file: str, position: int) -> None:
    header = batch.header
    if header.base_offset != base_offset:
        raise CorruptRecordError(
            file=file,
            position=position,
            expected=f"base offset {base_offset} by the name",
            found=str(header.base_offset),
        )
    if header.size_bytes != size_bytes:
        raise CorruptRecordError(
            file=file,
            position=position + LENGTH_AT,
            expected=f"one batch that fills the file's {size_bytes} bytes",
            found=f"a batch of {header.size_bytes} bytes",
        )
    count, stated = len(batch.records), header.last_offset_delta + 1
    if header.is_control:
        at, expected, found = ATTRIBUTES_AT, "a batch of metadata records", "a control batch"
    elif not count or count != stated:
        at, expected, found = LAST_OFFSET_DELTA_AT, f"{stated} records up to offset {header.last_offset}", f"{count}"
    elif any(record.offset != base_offset + delta for delta, record in enumerate(batch.records)):
        at, expected = RECORDS_AT, "metadata records without gaps"
        found = f"offsets {[record.offset for record in batch.records[:8]]}"
    else:
        return
    raise CorruptRecordError(file=file, position=position + at, expected=expected, found=found)


@dataclass(frozen=True, slots=True)
class KnownSnapshot:
    """An existing snapshot: its end offset, its size in bytes, the time (ms) of the last commit in it.

    `is_sound` means that this process has read it completely, or has written it. The commits that it contains may be
    removed once it is on disk.
    """

    end_offset: int
    size_bytes: int
    timestamp_ms: int
    is_sound: bool


@quick_dataclass(frozen=True, slots=True)
class CommitLogTail:
    """The log behind an image.

    `last_file` is the path or URL that the image was last read from or published as, a commit's or a snapshot's: when
    it is gone, a newer snapshot has replaced it. `snapshot` is the newest that is known. `since_ms` is the time of the
    last commit in it, or of the first of all (-1: none); `bytes_since` the size of the commits after it, of inline data
    (extents.py) a sixteenth: it says nothing of the image, but is read with the commits. `carried` is
    what the object of the next commit holds of earlier ones; `end` is where the last commit ends, on a file system, if
    that is known.
    """

    last_file: str
    snapshot: KnownSnapshot | None = None
    since_ms: int = -1
    bytes_since: int = 0
    carried: bytes = field(default=b"", repr=False)
    end: CommitPlace | None = None

    def after_commit(self, commit: Commit, file: str) -> CommitLogTail:
        """The tail with `commit`, whose file is `file`, as the last one."""
        since_ms = commit.timestamp_ms if self.since_ms < 0 else self.since_ms
        bytes_since = self.bytes_since + commit.size_bytes - _discount_bytes(commit)
        place = commit.place
        end = None if place is None else CommitPlace(place.file_offset, place.position + commit.size_bytes)
        return CommitLogTail(file, self.snapshot, since_ms, bytes_since, commit.carried_by_next, end)

    def after_snapshot(self, snapshot: KnownSnapshot, *, bytes_before: int) -> CommitLogTail:
        """The tail with a newer snapshot, which holds `bytes_before` bytes of the commits since the one before."""
        if self.snapshot is not None and self.snapshot.end_offset >= snapshot.end_offset:
            return self
        bytes_since = max(self.bytes_since - bytes_before, 0)
        return CommitLogTail(self.last_file, snapshot, snapshot.timestamp_ms, bytes_since, self.carried, self.end)


@dataclass(frozen=True, slots=True)
class OldCommits:
    """Commits that retention removed, or would remove: their number and bytes, and the first offset that is kept."""

    count: int = 0
    size_bytes: int = 0
    start_offset: int = 0


@quick_dataclass(frozen=True, slots=True)
class LoadedImage:
    """An image and the tail of the log behind it."""

    image: MetadataImage
    tail: CommitLogTail


def _discount_bytes(commit: Commit) -> int:
    """The bytes of a commit that do not count for the next snapshot."""
    inline = (each.inline_data for each in commit.records if isinstance(each, DataObjectRecord))
    size_bytes = sum(len(data) for data in inline if data is not None)
    return size_bytes - size_bytes // _INLINE_SHARE
