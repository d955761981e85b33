"""`leader-epoch-checkpoint` of a partition: the first offset of each leader epoch, `<epoch> <start offset>` per line.

Both numbers strictly increase from line to line. A lagging follower uses the file to find the offset at which its log
diverges from the leader's. It is written as a whole; a crash leaves the old file, and recovery adds the epochs of the
batches that it reads. Source of the rules: org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    parse_checkpoint,
    parse_int,
    read_checkpoint,
    write_checkpoint,
)
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem


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
    return tuple(read_checkpoint(path, _parse_entry))


def parse_epochs(data: bytes, *, file: str) -> tuple[EpochEntry, ...]:
    """As `read_epochs`, of the file's bytes; `file` names them in errors."""
    return tuple(parse_checkpoint(data, _parse_entry, file=file))


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset


def _parse_entry(fields: Sequence[str]) -> EpochEntry:
    if len(fields) != 2:
        raise ValueError("an epoch and a start offset")
    entry = EpochEntry(parse_int(fields[0], 32), parse_int(fields[1], 64))
    if min(entry) < 0:
        raise ValueError("an epoch and a start offset of 0 or more")
    return entry
