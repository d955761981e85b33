"""A Kafka broker's own metadata log, batch by batch: every KRaft node has a copy.

    __cluster_metadata-0/<20 digit end offset>-<10 digit epoch>.checkpoint   snapshots, the newest whole one counts
    __cluster_metadata-0/<base offset>.log                                   the log after the snapshot

It is read up to the first damage. The broker may be running: an incomplete batch at the end is ignored, as after a
crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_type
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, BatchHeader, parse_header
from pyspark_kafkalog.record.reference import Record, check_crc, decode_batch
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.filesystem import open_to_read
from pyspark_kafkalog.storage.names import LOG_SUFFIX, parse_metadata_snapshot, segment_file

_FILE_BYTES_MAX: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class BrokerBatch:
    """Records of a batch in `file` at byte `position`, without those that a snapshot before it holds."""

    file: str
    position: int
    is_control: bool
    records: tuple[Record, ...]


class BrokerLog:
    """The newest whole snapshot in `directory` and the log after it; read once.

    `damage` describes the first damage, None if there is none; a torn batch at the end, which a crash leaves, is not
    damage. `end_offset` is the offset after the last batch read, `leader_epoch` the last epoch.
    """

    def __init__(self, directory: Path) -> None:
        self.damage: str | None = None
        self.end_offset = 0
        self.leader_epoch = 0
        self._directory = directory
        self._has_footer = False

    def snapshot(self, *, control_only: bool = False) -> list[BrokerBatch]:
        """The batches of the newest whole snapshot; newer, damaged ones are noted as damage. Raises OSError."""
        for end_offset, epoch, path in _snapshots(self._directory):
            self.end_offset = 0
            self._has_footer = False
            batches = list(self._batches(path, 0, control_only))
            if self._has_footer:
                self.end_offset, self.leader_epoch = end_offset, epoch
                return batches
            self.note(f"{path} has no snapshot footer")
        self.end_offset = self.leader_epoch = 0
        return []

    def after_snapshot(self, *, control_only: bool = False) -> Iterator[BrokerBatch]:
        """The batches of the log after the end of the snapshot. Raises OSError."""
        start_offset = self.end_offset
        for base_offset in list_base_offsets(self._directory):
            yield from self._batches(segment_file(self._directory, base_offset, LOG_SUFFIX), start_offset, control_only)

    def note(self, damage: str) -> None:
        """Set `damage`, unless it is already set."""
        if self.damage is None:
            self.damage = damage

    def _batches(self, path: Path, start_offset: int, control_only: bool) -> Iterator[BrokerBatch]:
        """The batches of a file that end at or after `start_offset`, up to the first damaged one.

        With `control_only`, batches of metadata records are checked but not decoded.
        """
        file = str(path)
        with open_to_read(path) as stream:
            data = stream.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            self.note(f"{path} has more than {_FILE_BYTES_MAX} bytes")
        at = 0
        try:
            while at + RECORD_BATCH_OVERHEAD_BYTES <= len(data):
                header = parse_header(data, at, file=file, file_position=at)
                if at + header.size_bytes > len(data):
                    break
                if header.last_offset >= start_offset:
                    self._check_follows(file, at, max(header.base_offset, start_offset))
                    if header.is_control or not control_only:
                        yield self._decode(data, at, header, file, start_offset)
                    else:
                        check_crc(memoryview(data)[at : at + header.size_bytes], header, file=file, file_position=at)
                    self.end_offset, self.leader_epoch = header.next_offset, header.leader_epoch
                at += header.size_bytes
        except DiskFormatError as error:
            self.note(str(error))

    def _decode(self, data: bytes, at: int, header: BatchHeader, file: str, start_offset: int) -> BrokerBatch:
        records = decode_batch(data, at, file=file, file_position=at).records
        if header.is_control:
            types = [parse_control_type(each.key, file=file, file_position=at) for each in records]
            self._has_footer |= ControlRecordType.SNAPSHOT_FOOTER in types
        kept = tuple(each for each in records if each.offset >= start_offset)
        return BrokerBatch(file, at, header.is_control, kept)

    def _check_follows(self, file: str, at: int, offset: int) -> None:
        if offset != self.end_offset:
            raise CorruptRecordError(
                file=file, position=at, expected=f"a batch at offset {self.end_offset}", found=str(offset)
            )


def _snapshots(directory: Path) -> list[tuple[int, int, Path]]:
    """End offsets, epochs and paths of the snapshots, the newest first."""
    found = []
    for name in os.listdir(directory):
        parsed = parse_metadata_snapshot(name)
        if parsed is not None:
            found.append((*parsed, directory / name))
    return sorted(found, reverse=True)
