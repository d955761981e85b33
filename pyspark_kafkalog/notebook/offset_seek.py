"""The steps by which a reader, `LogReader` or a Kafka broker, finds the record at an offset.

    segment   the last one that begins at or below the offset; its name is its base offset
    index     the last entry of its offset index at or below the offset: a position in the .log file
    scan      batch headers from there on, up to the batch whose last offset is at or above the offset
    record    that batch, decompressed and decoded

An index entry is used only if the batch that it points at confirms it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.notebook.seek_parts import (
    Scan,
    floor_slot,
    offset_index_entries,
    record_text,
    scan_until,
)
from pyspark_kafkalog.notebook.segments import SegmentInfo
from pyspark_kafkalog.record.reference import Record, decode_batch
from pyspark_kafkalog.root.descriptions import PartitionDescription
from pyspark_kafkalog.storage.segment.reader import SegmentReader
from pyspark_kafkalog.units import plural


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OffsetSeek:
    """The lookup of `offset`: prints its steps, and is drawn in a notebook.

    `index` (OFFSET_INDEX_DTYPE): the entries of `segment`'s offset index. `slot`: the number of the entry found, or -1.
    `scan.position` is 0 if no entry can be used. `record`: the record at `offset`, or if there is none, the next one of
    the batch found; None if no record is left in the segment.
    """

    name: str
    offset: int
    segments: tuple[SegmentInfo, ...]
    segment: SegmentInfo
    index: NDArray[np.void]
    slot: int
    scan: Scan
    record: Record | None

    def steps(self) -> list[tuple[str, str]]:
        """A heading and a sentence for each step."""
        return [
            ("Segment", self._segment_step()),
            ("Index", self._index_step()),
            ("Scan", self._scan_step()),
            ("Record", self._record_step()),
        ]

    def _segment_step(self) -> str:
        of = f"Of {plural(len(self.segments), 'segment')}, " if len(self.segments) > 1 else ""
        return (
            f"{of}{self.segment.file} is the last that begins at or below offset {self.offset}. "
            f"It holds offsets {self.segment.base_offset} to {self.segment.end_offset - 1}."
        )

    def _index_step(self) -> str:
        entries = plural(len(self.index), "entry", "entries")
        if self.slot < 0:
            return f"None of the {entries} of its offset index is at or below {self.offset}: start at byte 0."
        offset, position = (int(each) for each in self.index[self.slot])
        text = f"Of the {entries} of its offset index, number {self.slot} is the last at or below {self.offset}: "
        text += f"the batch that ends with offset {offset} begins at byte {position:,}."
        if self.scan.position != position:
            text += " The batch there says otherwise, so the entry does not count: start at byte 0."
        return text

    def _scan_step(self) -> str:
        looked = f"From byte {self.scan.position:,} on, {plural(self.scan.count, 'batch header')} read"
        found = self.scan.found
        if found is None:
            return f"{looked}, none with offset {self.offset} or a later one: reading goes on in the next segment."
        return (
            f"{looked}, up to the batch whose last offset is at or above {self.offset}: "
            f"offsets {found.base_offset} to {found.last_offset}, at byte {found.position:,}."
        )

    def _record_step(self) -> str:
        if self.record is None:
            return "None in this segment any more."
        if self.record.offset != self.offset:
            return f"Offset {self.offset} has none, it lies in a gap. The next one: {record_text(self.record)}."
        return f"Decoded out of its batch: {record_text(self.record)}."

    def __repr__(self) -> str:
        lines = [f"offset {self.offset} of {self.name}"]
        lines += [f"{number}. {head}: {text}" for number, (head, text) in enumerate(self.steps(), 1)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from pyspark_kafkalog.notebook.seek_html import offset_seek_html

        return offset_seek_html(self)


def explain_offset(found: PartitionDescription, segments: Sequence[SegmentInfo], offset: int) -> OffsetSeek:
    """The lookup of `offset`, which must be in the partition's range. Raises CorruptRecordError for damage."""
    bases = np.array([each.base_offset for each in segments])
    segment = segments[max(floor_slot(bases, offset), 0)]
    index = offset_index_entries(found.directory, segment.base_offset)
    with SegmentReader(found.directory, segment.base_offset) as reader:
        position = reader.position_for_offset(offset)
        scan = scan_until(reader, position, lambda batch: batch.last_offset >= offset)
        record = None if scan.found is None else _record_at(reader, scan.found.position, offset)
    return OffsetSeek(
        name=f"{found.topic}-{found.partition}",
        offset=offset,
        segments=tuple(segments),
        segment=segment,
        index=index,
        slot=floor_slot(index["offset"], offset),
        scan=scan,
        record=record,
    )


def _record_at(reader: SegmentReader, position: int, offset: int) -> Record | None:
    data = reader.batch_at(position, reader.header_at(position))
    batch = decode_batch(data, 0, file=reader.file, file_position=position)
    if batch.header.is_control:
        return None
    return next((each for each in batch.records if each.offset >= offset), None)
