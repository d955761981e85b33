"""The copy of a metadata log on disk: a directory that is read as a broker's, with committed records only.

    <root>/meta.properties                      the cluster's id, without a node
    <root>/.lock                                held by the process that writes the copy
    __cluster_metadata-0/kafkalog-observer      "version=1": marks a copy
    __cluster_metadata-0/partition.metadata
    __cluster_metadata-0/quorum-state           who leads, and in which epoch
    __cluster_metadata-0/<base offset>.log      batches as the controllers have them
    __cluster_metadata-0/<end>-<epoch>.checkpoint        a snapshot, as a controller has it
    __cluster_metadata-0/<end>-<epoch>.checkpoint.<node>.part    one that is on its way from this controller

Nothing but these files says how far the copy is. When `append` returns, its batches are on disk. A crash while it
writes leaves an incomplete or damaged end, which opening cuts off; the controllers still have it. A snapshot gets its
name when it is whole and on disk; files that it replaces are removed afterwards, or when the copy is opened again. A
snapshot on its way is continued.

`check_snapshot` checks that the file of a snapshot is whole: batches without a gap, with right checksums, a footer at
the end.

Source of the rules: org.apache.kafka.raft.internals.KafkaRaftLog (truncateToEndOffset, truncateToLatestSnapshot),
org.apache.kafka.snapshot.RecordsSnapshotReader, KIP-630.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, LogDirError
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.metadata.root_format import COPY_MARKER, METADATA_DIR, is_metadata_copy
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE, root_lock
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_type
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.record.scan import first_bad_crc, scan_batches, verify_crcs
from pyspark_kafkalog.replication.leader import EpochEnd
from pyspark_kafkalog.root.bootstrap import METADATA_TOPIC_ID
from pyspark_kafkalog.root.brokers.quorum import QUORUM_STATE
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.artefacts.marker_files import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
    write_topic_id,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.below_root import follow_root, scan
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, open_to_read
from pyspark_kafkalog.storage.names import (
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    parse_metadata_snapshot,
    segment_file,
)
from pyspark_kafkalog.units import MIB

SEGMENT_BYTES: Final = 64 * MIB
#: A segment rolls before the batch that would make it larger than SEGMENT_BYTES; what is beyond this is none of ours.
_LOADED_BYTES_MAX: Final = 4 * SEGMENT_BYTES
_PART_SUFFIX: Final = ".part"
_LOCK_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, order=True)
class SnapshotName:
    """A snapshot: the offset after its last record, and the epoch of that record."""

    end_offset: int
    epoch: int


@dataclass(slots=True)
class _Segment:
    base_offset: int
    size_bytes: int


class MetadataLogCopy:
    """The copy below `root`, open for one writer, see the module.

    The log has the offsets from `start_offset` to `end_offset`; `last_epoch` is the leader epoch of the record before
    its end. `snapshot` is the newest one, None without any. `bytes_since_snapshot` of the log's files.
    """

    def __init__(self, root: Path, fs: FileSystem, lock: ExitStack, segment_bytes: int) -> None:
        self._root = root
        self._directory = root / METADATA_DIR
        self._fs = fs
        self._lock = lock
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._epochs: list[EpochEntry] = []
        self._part = self._directory / _PART_SUFFIX
        self.snapshot: SnapshotName | None = None
        self.start_offset = 0
        self.end_offset = 0

    @classmethod
    def open(
        cls, root: Path, cluster_id: str, *, fs: FileSystem = LOCAL, segment_bytes: int = SEGMENT_BYTES
    ) -> MetadataLogCopy:
        """Open the copy, or create it in a directory that is empty or missing.

        Raises LogDirError for another directory, another cluster's copy, or one that another process writes; OSError.
        """
        follow_root(root)
        if not root.exists():
            fs.mkdir(root)
        if not is_metadata_copy(root):
            _check_vacant(root)
        with ExitStack() as stack:
            stack.enter_context(root_lock(root, timeout_s=_LOCK_TIMEOUT_S, is_new=True, fs=fs))
            copy = cls(root, fs, ExitStack(), segment_bytes)
            copy._create_or_check(cluster_id)
            copy._recover()
            copy._lock = stack.pop_all()
            return copy

    def close(self) -> None:
        """Release the copy."""
        self._lock.close()

    @property
    def last_epoch(self) -> int:
        return self._epochs[-1].epoch if self._epochs else 0 if self.snapshot is None else self.snapshot.epoch

    @property
    def bytes_since_snapshot(self) -> int:
        return sum(each.size_bytes for each in self._segments)

    def _create_or_check(self, cluster_id: str) -> None:
        fs, properties = self._fs, self._root / META_PROPERTIES
        if properties.exists():
            found = read_meta_properties(properties).cluster_id
            if found != cluster_id:
                raise LogDirError(
                    f"{self._root} is a copy of the metadata log of cluster {found}, the controllers are of cluster "
                    f"{cluster_id}: expected another directory, or the controllers of that cluster"
                )
            return
        if not self._directory.exists():
            fs.mkdir(self._directory)
        fs.write_file_atomic(self._directory / COPY_MARKER, b"version=1\n")
        write_topic_id(self._directory / PARTITION_METADATA, METADATA_TOPIC_ID, fs=fs)
        write_meta_properties(properties, MetaProperties(version=0, cluster_id=cluster_id), fs=fs)

    # Opening

    def _recover(self) -> None:
        """Find out what is there, after cutting off what a crash has left incomplete."""
        names = [parsed for each in scan(self._directory) if (parsed := parse_metadata_snapshot(each.name))]
        self.snapshot = max((SnapshotName(end, epoch) for end, epoch in names), default=None)
        self.start_offset = self.end_offset = 0 if self.snapshot is None else self.snapshot.end_offset
        bases = list_base_offsets(self._directory)
        if bases and bases[0] <= self.end_offset:
            self.start_offset = self.end_offset = bases[0]
            for base_offset in bases:
                if base_offset != self.end_offset or not self._load(base_offset):
                    break
        if self.snapshot is not None and self.end_offset < self.snapshot.end_offset:
            self._begin_at(self.snapshot)  # a crash has come between a snapshot and what it replaces
        self._remove_beyond(bases)
        self._remove_contained()

    def _load(self, base_offset: int) -> bool:
        """Take a segment up to its last whole, undamaged batch; whether it is whole."""
        path = segment_file(self._directory, base_offset, LOG_SUFFIX)
        with open_to_read(path) as stream:
            file_bytes = os.fstat(stream.fileno()).st_size
            data = stream.read(min(file_bytes, _LOADED_BYTES_MAX))
        batches = scan_batches(data, file=str(path)).batches
        batches = batches[: self._follows(batches, base_offset)]
        bad = first_bad_crc(data, batches, 0)
        if bad >= 0:
            batches = batches[:bad]
        size_bytes = int(batches["size_bytes"].sum())
        self._segments.append(_Segment(base_offset, size_bytes))
        self._note(batches)
        if size_bytes < file_bytes:
            self._cut(path, size_bytes)
        return size_bytes == file_bytes

    @staticmethod
    def _follows(batches: NDArray[np.void], base_offset: int) -> int:
        """How many of the batches follow each other without a gap, from `base_offset` on."""
        expected = np.concatenate(([base_offset], batches["last_offset"] + 1))[:-1]
        wrong = np.flatnonzero(batches["base_offset"] != expected)
        return int(wrong[0]) if len(wrong) else len(batches)

    def _note(self, batches: NDArray[np.void]) -> None:
        """The log has these batches at its end now."""
        for base_offset, epoch in zip(batches["base_offset"].tolist(), batches["leader_epoch"].tolist(), strict=True):
            if not self._epochs or epoch > self._epochs[-1].epoch:
                self._epochs.append(EpochEntry(epoch, base_offset))
        if len(batches):
            self.end_offset = int(batches["last_offset"][-1]) + 1

    def _remove_beyond(self, bases: list[int]) -> None:
        """Remove segments that do not belong to the log."""
        kept = {each.base_offset for each in self._segments}
        for base_offset in bases:
            if base_offset not in kept:
                self._fs.unlink_if_there(segment_file(self._directory, base_offset, LOG_SUFFIX))

    def _remove_contained(self) -> None:
        """Remove what the newest snapshot makes superfluous: older snapshots, segments that end at or below it."""
        snapshot = self.snapshot
        for name in [each.name for each in scan(self._directory)]:
            parsed = parse_metadata_snapshot(name)
            if parsed is not None and snapshot is not None and parsed < (snapshot.end_offset, snapshot.epoch):
                self._fs.unlink(self._directory / name)
        while snapshot is not None and len(self._segments) > 1:
            if self._segments[1].base_offset > snapshot.end_offset:
                break
            self._fs.unlink(segment_file(self._directory, self._segments[0].base_offset, LOG_SUFFIX))
            del self._segments[0]
            self.start_offset = self._segments[0].base_offset
        self._fs.fsync_dir(self._directory)

    # Writing

    def append(self, data: Buffer, batches: NDArray[np.void]) -> None:
        """Append whole batches, which begin at the log end without a gap; on disk when this returns.

        `batches` are those of `data`, with positions from its beginning on. Raises ValueError for a gap, OSError.
        """
        if not len(batches):
            return
        if self._follows(batches, self.end_offset) != len(batches):
            raise ValueError(f"batches from offset {batches[0]['base_offset']} on do not follow {self.end_offset}")
        if not self._segments or self._segments[-1].size_bytes + len(data) > self._segment_bytes:
            self._roll()
        active = self._segments[-1]
        path = segment_file(self._directory, active.base_offset, LOG_SUFFIX)
        fd = self._fs.open(path, os.O_WRONLY)
        try:
            self._fs.truncate(fd, active.size_bytes)  # an earlier attempt may have failed in the middle
            self._fs.pwrite_all(fd, data, active.size_bytes)
            self._fs.fsync(fd)
        finally:
            self._fs.close(fd)
        active.size_bytes += len(data)
        self._note(batches)

    def _roll(self) -> None:
        if self._segments and self._segments[-1].base_offset == self.end_offset:
            return  # one batch is larger than a segment
        fd = self._fs.open(segment_file(self._directory, self.end_offset, LOG_SUFFIX), os.O_WRONLY | os.O_CREAT)
        self._fs.close(fd)
        self._fs.fsync_dir(self._directory)
        self._segments.append(_Segment(self.end_offset, 0))

    def _cut(self, path: Path, size_bytes: int) -> None:
        fd = self._fs.open(path, os.O_WRONLY)
        try:
            self._fs.truncate(fd, size_bytes)
            self._fs.fsync(fd)
        finally:
            self._fs.close(fd)

    def truncate_for(self, diverging: EpochEnd) -> None:
        """Cut the log where it no longer agrees with the leader's: in the largest epoch up to that of `diverging`.

        If that is within the snapshot, the copy begins again from nothing.
        """
        epochs = [each for each in self._epochs if each.epoch <= diverging.epoch]
        later = self._epochs[len(epochs) :]
        end_offset = min(diverging.end_offset, later[0].start_offset if later else self.end_offset)
        if end_offset < max(self.start_offset, 0 if self.snapshot is None else self.snapshot.end_offset):
            self._begin_at(None)
            return
        while self._segments and self._segments[-1].base_offset >= end_offset and len(self._segments) > 1:
            self._fs.unlink(segment_file(self._directory, self._segments.pop().base_offset, LOG_SUFFIX))
        self._epochs = [each for each in epochs if each.start_offset < end_offset]
        if self._segments:
            active = self._segments[-1]
            path = segment_file(self._directory, active.base_offset, LOG_SUFFIX)
            with open_to_read(path) as stream:
                # bounded: what was loaded or written
                batches = scan_batches(stream.read(active.size_bytes), file=str(path)).batches
            kept = batches[batches["last_offset"] < end_offset]
            active.size_bytes = int(kept["size_bytes"].sum())
            self._cut(path, active.size_bytes)
            self.end_offset = int(kept["last_offset"][-1]) + 1 if len(kept) else active.base_offset
        self._fs.fsync_dir(self._directory)

    def _begin_at(self, snapshot: SnapshotName | None) -> None:
        """Drop the log. Without a snapshot, drop those that there are."""
        for each in reversed(self._segments):
            self._fs.unlink(segment_file(self._directory, each.base_offset, LOG_SUFFIX))
        if snapshot is None:
            for name in [each.name for each in scan(self._directory)]:
                if parse_metadata_snapshot(name) is not None:
                    self._fs.unlink(self._directory / name)
        self._fs.fsync_dir(self._directory)
        self._segments, self._epochs, self.snapshot = [], [], snapshot
        self.start_offset = self.end_offset = 0 if snapshot is None else snapshot.end_offset

    # Snapshots

    def begin_snapshot(self, name: SnapshotName, leader_id: int) -> int:
        """A snapshot comes from this controller; how many bytes of it are here already.

        Each controller writes its snapshots itself, so what another one has sent is of no use, and is removed.
        """
        part = self._directory / f"{name.end_offset:020d}-{name.epoch:010d}.checkpoint.{leader_id}{_PART_SUFFIX}"
        for other in [each.name for each in scan(self._directory)]:
            if other.endswith(_PART_SUFFIX) and other != part.name:
                self._fs.unlink(self._directory / other)
        self._part = part
        return part.stat().st_size if part.exists() else 0

    def add_to_snapshot(self, position: int, data: Buffer) -> None:
        """Write a piece of the snapshot that has been begun."""
        fd = self._fs.open(self._part, os.O_WRONLY | os.O_CREAT)
        try:
            self._fs.pwrite_all(fd, data, position)
        finally:
            self._fs.close(fd)

    def drop_snapshot(self) -> None:
        """Remove what has come of the snapshot that has been begun."""
        self._fs.unlink_if_there(self._part)

    def finish_snapshot(self, name: SnapshotName) -> None:
        """Take the snapshot that has come whole; the log begins at its end if it ended before it.

        Raises DiskFormatError if it is damaged; it is removed then.
        """
        try:
            check_snapshot(self._part)
        except DiskFormatError:
            self.drop_snapshot()
            raise
        self._cut(self._part, self._part.stat().st_size)  # on disk
        self._fs.rename(self._part, self._directory / f"{name.end_offset:020d}-{name.epoch:010d}.checkpoint")
        self._fs.fsync_dir(self._directory)
        if name.end_offset > self.end_offset:
            self._begin_at(name)
        self.snapshot = name
        self._remove_contained()

    def write_leader(self, leader_id: int, leader_epoch: int) -> None:
        """Note who leads, in the form of Kafka's quorum-state."""
        state = {
            "leaderId": leader_id,
            "leaderEpoch": leader_epoch,
            "votedId": -1,
            "votedDirectoryId": ZERO_UUID,
            "data_version": 1,
        }
        text = json.dumps(state, separators=(",", ":"))
        self._fs.write_file_atomic(self._directory / QUORUM_STATE, text.encode())


def _check_vacant(root: Path) -> None:
    """Raises LogDirError unless the directory is empty, or as a crash while a copy is created leaves it."""
    for entry in root.iterdir():
        is_begun = entry.name == METADATA_DIR and all(each.name.startswith(COPY_MARKER) for each in scan(entry))
        if entry.name != LOCK_FILE and not is_begun:
            raise LogDirError(f"{root} has {entry.name} and is no copy of a metadata log: expected an empty directory")


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
