"""Kafka's checkpoint files: their text format, the offsets in a root's, the leader epochs in a partition's.

    0                 version
    <count>           number of lines that follow
    <fields>          one entry per line, fields separated by blanks

An empty file, or one with only the version, has no entries. Written as a whole under a temporary name and renamed, so a
crash leaves the old file or the new one. Source of the rules: org.apache.kafka.server.common.CheckpointFile.

The offset checkpoint files have one line `<topic> <partition> <offset>` per partition:

    recovery-point-offset-checkpoint   all records below it are flushed to disk: recovery starts there
    replication-offset-checkpoint      the high watermark: all records below it are committed
    log-start-offset-checkpoint        the log start offset, only if it is above the first segment's base offset
    cleaner-offset-checkpoint          the first offset that the cleaner has not cleaned

A crash leaves an old file: recovery points and high watermarks can only lag, which costs time, but no data. In a native
log directory the commit log decides, and these files are written only for brokers. Source of the rules:
OffsetCheckpointFile in org.apache.kafka.storage.internals.checkpoint.

`leader-epoch-checkpoint` of a partition has the first offset of each leader epoch, `<epoch> <start offset>` per line.
Both numbers strictly increase from line to line. A lagging follower uses the file to find the offset at which its log
diverges from the leader's. A crash leaves the old file, and recovery adds the epochs of the batches that it reads.
Source of the rules: org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, read_text_file
from pyspark_kafkalog.storage.names import TopicPartition, is_partition_name
from pyspark_kafkalog.units import content_text

_LOG: Final = logging.getLogger(__name__)

CHECKPOINT_VERSION: Final = 0

_ADVICE: Final = (
    "restore the file from a copy, or move it out of the directory: a broker and this package work without it"
)

# Room for 60,000 partitions with names of the maximum length; a larger file is not a checkpoint.
_MAX_CHECKPOINT_BYTES: Final = 16 << 20
_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = re.compile(r"[ \t\n\x0b\f\r]+")
_INTEGER = re.compile(r"[+-]?[0-9]{1,32}")

_Entry = TypeVar("_Entry")


def parse_checkpoint(data: bytes, parse_entry: Callable[[Sequence[str]], _Entry], *, file: str) -> list[_Entry]:
    """The entries of a checkpoint file's bytes, each built from its fields by `parse_entry`.

    `parse_entry` raises ValueError for fields that are not an entry. Raises CorruptIndexError, which names the line,
    for an unknown version, a malformed line, or a count that does not match the lines.
    """
    lines = _lines(data, file)
    if not lines:
        return []
    version = _header_number(lines[0], 1, 0, "the version", file)
    if version != CHECKPOINT_VERSION:
        raise _error(file, 0, f"checkpoint version {CHECKPOINT_VERSION} on line 1", f"version {version}")
    if len(lines) == 1:
        return []
    position = len(lines[0]) + 1
    count = _header_number(lines[1], 2, position, "the number of entries", file)
    entries = []
    position += len(lines[1]) + 1
    for number, line in enumerate(lines[2:], start=3):
        try:
            entries.append(parse_entry(_fields(line)))
        except ValueError as error:
            raise _error(file, position, f"on line {number} {error}", content_text(line)) from None
        position += len(line.encode()) + 1
    if len(entries) != count:
        raise _error(file, position, f"{count} entries, as line 2 says", f"{len(entries)}")
    return entries


def read_checkpoint(path: Path, parse_entry: Callable[[Sequence[str]], _Entry]) -> list[_Entry]:
    """`parse_checkpoint` of the file at `path`; no entries if it does not exist."""
    try:
        data = read_text_file(path, max_bytes=_MAX_CHECKPOINT_BYTES, kind=CorruptIndexError, advice=_ADVICE)
    except FileNotFoundError:
        return []
    return parse_checkpoint(data, parse_entry, file=str(path))


def format_checkpoint(lines: Sequence[str]) -> bytes:
    """The bytes of a checkpoint file with one entry per line."""
    return "".join(f"{line}\n" for line in (str(CHECKPOINT_VERSION), str(len(lines)), *lines)).encode()


def write_checkpoint(path: Path, lines: Iterable[str], *, fs: FileSystem = LOCAL, durable: bool = True) -> None:
    """Replace the file by one with these entries; `durable` waits until it is on disk."""
    fs.write_file_atomic(path, format_checkpoint(tuple(lines)), durable=durable)


def parse_int(text: str, bits: int) -> int:
    """A signed integer of at most `bits` bits, parsed as Java does. Raises ValueError."""
    if not _INTEGER.fullmatch(text) or not -(1 << bits - 1) <= int(text) < 1 << bits - 1:
        raise ValueError(f"an integer of {bits} bits")
    return int(text)


def _lines(data: bytes, file: str) -> list[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _error(file, error.start, "text in UTF-8", content_text(data[error.start : error.start + 8])) from None
    lines = _LINE_END.split(text)
    return lines[:-1] if lines[-1] == "" else lines


def _fields(line: str) -> list[str]:
    # As Java splits: a blank at the start gives an empty first field, one at the end gives no field.
    fields = _BLANKS.split(line)
    while len(fields) > 1 and not fields[-1]:
        fields.pop()
    return fields


def _header_number(line: str, number: int, position: int, what: str, file: str) -> int:
    try:
        return parse_int(line, 32)
    except ValueError:
        raise _error(file, position, f"{what} on line {number}", content_text(line)) from None


def _error(file: str, position: int, expected: str, found: str) -> CorruptIndexError:
    return CorruptIndexError(file=file, position=position, expected=expected, found=found, advice=_ADVICE)


RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT: Final = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT: Final = "cleaner-offset-checkpoint"
CHECKPOINTS: Final = (
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)


def read_offset_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Offsets by partition; empty if the file does not exist. Raises CorruptIndexError, which names the bad line."""
    return dict(read_checkpoint(path, _parse_entry))


def broker_log_starts(root: Path) -> dict[TopicPartition, int]:
    """The log starts of a broker's directory. Without a file that can be read, logs start at their first segments.

    A damaged file is one line in the process's log. Source of the rule: loadLogs of kafka.log.LogManager.
    """
    try:
        return read_offset_checkpoint(root / LOG_START_OFFSET_CHECKPOINT)
    except CorruptIndexError as error:
        _warn_of_log_starts(str(error))
        return {}


@functools.lru_cache(maxsize=256)
def _warn_of_log_starts(error: str) -> None:
    _LOG.warning("logs start at their first segments, as at a broker that starts: %s", error)


def cleaned_offsets(root: Path) -> Mapping[TopicPartition, int]:
    """The offsets below which partitions are clean, by the cleaner's checkpoint. Raises CorruptIndexError."""
    return offsets_by_partition(root / CLEANER_OFFSET_CHECKPOINT)


def offsets_by_partition(path: Path) -> Mapping[TopicPartition, int]:
    """As `read_offset_checkpoint`, for callers that ask once a partition or task of a job.

    The lines are kept for as long as the file is the same one: every change replaces it.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return {}
    stamp = (str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    kept = _kept.get(path.name)
    if kept is None or kept[0] != stamp:
        kept = _kept[path.name] = (stamp, read_offset_checkpoint(path))
    return kept[1]


#: What `offsets_by_partition` has read last, with the identity of the file, by the file's name.
_kept: dict[str, tuple[tuple[str, int, int, int, int, int], dict[TopicPartition, int]]] = {}


def write_offset_checkpoint(
    path: Path, offsets: Mapping[TopicPartition, int], *, fs: FileSystem = LOCAL, durable: bool = True
) -> None:
    """Replace the file by one with `offsets`, ordered by topic and partition."""
    lines = (f"{each.topic} {each.partition} {offset}" for each, offset in sorted(offsets.items()))
    write_checkpoint(path, lines, fs=fs, durable=durable)


def forget_partitions(root: Path, partitions: Set[TopicPartition], *, fs: FileSystem = LOCAL) -> None:
    """Remove the lines of deleted logs from all these files; a damaged file is left unchanged for a repair.

    Source of the rule: asyncDelete of kafka.log.LogManager.
    """
    for name in CHECKPOINTS:
        with contextlib.suppress(CorruptIndexError):
            before = read_offset_checkpoint(root / name)
            after = {each: offset for each, offset in before.items() if each not in partitions}
            if after != before:
                write_offset_checkpoint(root / name, after, fs=fs)


def lower_cleaned_offset(root: Path, partition: TopicPartition, offset: int, *, fs: FileSystem = LOCAL) -> None:
    """Let the cleaner's checkpoint say that the partition, whose log was truncated to `offset`, is clean up to it.

    A damaged file is left unchanged. Source of the rule: maybeTruncateCheckpoint of kafka.log.LogCleanerManager.
    """
    with contextlib.suppress(CorruptIndexError):
        offsets = cleaned_offsets(root)
        if offsets.get(partition, -1) > offset:
            write_offset_checkpoint(root / CLEANER_OFFSET_CHECKPOINT, {**offsets, partition: offset}, fs=fs)


def _parse_entry(fields: Sequence[str]) -> tuple[TopicPartition, int]:
    if len(fields) != 3:
        raise ValueError("a topic, a partition and an offset")
    topic_partition = TopicPartition(fields[0], parse_int(fields[1], 32))
    if not is_partition_name(topic_partition):
        raise ValueError("a topic of a valid name and a partition of 0 or more")
    return topic_partition, parse_int(fields[2], 64)


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


class LeaderEpochCheckpoint:
    """The epochs of one partition's log and the file that stores them; only `note` does not write it immediately."""

    def __init__(
        self, path: Path, entries: Iterable[EpochEntry] = (), *, fs: FileSystem = LOCAL, durable: bool = True
    ) -> None:
        self._path = path
        self._fs = fs
        self._durable = durable
        self._is_noted = False
        self._entries: list[EpochEntry] = []
        for entry in entries:
            self._assign(entry)

    @classmethod
    def open(cls, path: Path, *, fs: FileSystem = LOCAL, durable: bool = True) -> LeaderEpochCheckpoint:
        """Read the file at `path`. Without a file there are no epochs, and the first change creates it.

        An entry that does not increase drops the earlier ones that it contradicts, as in `assign`. With `durable`,
        changes wait until they are on disk. Raises CorruptIndexError, which names the bad line.
        """
        return cls(path, read_epochs(path), fs=fs, durable=durable)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All epochs, in increasing order."""
        return tuple(self._entries)

    @property
    def latest(self) -> EpochEntry | None:
        """The entry of the last epoch."""
        return self._entries[-1] if self._entries else None

    @property
    def earliest(self) -> EpochEntry | None:
        """The entry of the earliest epoch still known."""
        return self._entries[0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` starts at `start_offset`; returns whether that changed anything.

        Entries with an epoch or a start offset at or above it are dropped: a later epoch with the same start offset
        replaces the earlier one. The latest epoch keeps its start offset unless a smaller one is given. Raises
        ValueError for negative numbers.
        """
        return self.assign_many((EpochEntry(epoch, start_offset),))

    def note(self, epoch: int, start_offset: int) -> None:
        """As `assign`, but the file is written by `flush`, or with the next change."""
        self._is_noted |= self._assign(EpochEntry(epoch, start_offset))

    @property
    def is_changed(self) -> bool:
        """Whether there is something for `flush` to write."""
        return self._is_noted

    def flush(self) -> None:
        """Write what was noted."""
        if self._is_noted:
            self._write()

    def assign_many(self, entries: Iterable[EpochEntry]) -> bool:
        """`assign` each in turn, then write once."""
        changed = [self._assign(EpochEntry(*entry)) for entry in entries]
        if any(changed):
            self._write()
        return any(changed)

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch in which `offset` was, or would be, written; None below the first epoch.

        For a server's OffsetsForLeaderEpoch and for a follower that finds where its log diverges from the leader's.
        """
        index = bisect_right(self._entries, offset, key=_start_offset)
        return self._entries[index - 1].epoch if index else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that start at or above `end_offset`, where the log now ends."""
        if end_offset < 0:
            return
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) != len(self._entries):
            self._entries = kept
            self._write()

    def truncate_above(self, epoch: int) -> None:
        """Drop the epochs above `epoch`, which is the last valid one."""
        kept = [entry for entry in self._entries if entry.epoch <= epoch]
        if len(kept) != len(self._entries):
            self._entries = kept
            self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that end below `start_offset`, the new start of the log; its own epoch then starts there."""
        index = bisect_right(self._entries, start_offset, key=_start_offset)
        if not index:
            return
        kept = [EpochEntry(self._entries[index - 1].epoch, start_offset), *self._entries[index:]]
        if kept != self._entries:
            self._entries = kept
            self._write()

    def clear(self) -> None:
        """Drop all epochs."""
        self._entries = []
        self._write()

    def _assign(self, entry: EpochEntry) -> bool:
        if entry.epoch < 0 or entry.start_offset < 0:
            raise ValueError(f"leader epoch {entry.epoch} at offset {entry.start_offset}: neither may be negative")
        latest = self.latest
        if latest is not None and entry.epoch == latest.epoch and entry.start_offset >= latest.start_offset:
            return False
        while self._entries and (
            self._entries[-1].epoch >= entry.epoch or self._entries[-1].start_offset >= entry.start_offset
        ):
            self._entries.pop()
        self._entries.append(entry)
        return True

    def _write(self) -> None:
        lines = (f"{entry.epoch} {entry.start_offset}" for entry in self._entries)
        write_checkpoint(self._path, lines, fs=self._fs, durable=self._durable)
        self._is_noted = False


def read_epochs(path: Path) -> tuple[EpochEntry, ...]:
    """The file's entries as written, including contradictory ones; empty if the file does not exist.

    Raises CorruptIndexError, which names the bad line.
    """
    return tuple(read_checkpoint(path, _parse_epoch))


def parse_epochs(data: bytes, *, file: str) -> tuple[EpochEntry, ...]:
    """As `read_epochs`, of the file's bytes; `file` names them in errors."""
    return tuple(parse_checkpoint(data, _parse_epoch, file=file))


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset


def _parse_epoch(fields: Sequence[str]) -> EpochEntry:
    if len(fields) != 2:
        raise ValueError("an epoch and a start offset")
    entry = EpochEntry(parse_int(fields[0], 32), parse_int(fields[1], 64))
    if min(entry) < 0:
        raise ValueError("an epoch and a start offset of 0 or more")
    return entry
