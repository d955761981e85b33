"""Explanations of lookups in a log, by offset and by time: the steps as text, and drawn as HTML.

By offset, the steps by which a reader, `LogReader` or a Kafka broker, finds the record at an offset:

    segment   the last one that begins at or below the offset; its name is its base offset
    index     the last entry of its offset index at or below the offset: a position in the .log file
    scan      batch headers from there on, up to the batch whose last offset is at or above the offset
    record    that batch, decompressed and decoded

By time, the steps by which a reader finds the first record at or after a point in time:

    segment       the first whose largest timestamp, the last of its time index, is late enough
    time index    its last entry at or before the point in time: no record before that batch
                  is late enough
    offset index  the position of that batch in the .log file
    scan          batch headers from there on, up to one whose largest timestamp is late enough
    record        the first of that batch that is late enough

An index entry is used only if the batch that it points at confirms it. The result of a lookup by time is the first
record in offset order: timestamps need not be in order.

The drawing has one row for each step, each to scale; each row enlarges a part of the row above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.notebook.html import (
    WIDTH,
    drawing,
    escaped,
    heading,
    label,
    line,
    polygon,
    rect,
    text_width,
    view,
)
from pyspark_kafkalog.notebook.tables import SegmentInfo, iso_text, max_timestamp_ms
from pyspark_kafkalog.record.reference import Record, decode_batch
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.artefacts.index_file import OFFSET_INDEX_DTYPE, TIME_INDEX_DTYPE, TimeIndex
from pyspark_kafkalog.storage.segment.reader import Extent, SegmentReader
from pyspark_kafkalog.units import plural, size_text

#: The number of batches of a scan that are kept for display, the last ones; the others are only counted.
_BATCHES_KEPT: Final = 48
_TEXT_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """A batch whose header was read in the scan."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    records_count: int
    max_timestamp_ms: int

    @property
    def end_position(self) -> int:
        return self.position + self.size_bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """`count` headers read in order from `position` on; `batches` are the last of them.

    `found` is the batch that ended the scan; None if the segment ended first.
    """

    position: int
    count: int
    batches: tuple[SeenBatch, ...]
    found: SeenBatch | None


def scan_until(segment: SegmentReader, position: int, is_match: Callable[[SeenBatch], bool]) -> Scan:
    """Read headers from `position` on up to the first batch for which `is_match`. Raises CorruptRecordError."""
    kept: deque[SeenBatch] = deque(maxlen=_BATCHES_KEPT)
    count = 0
    for at, header in segment.headers(position):
        batch = SeenBatch(
            at, header.size_bytes, header.base_offset, header.last_offset, header.records_count, header.max_timestamp_ms
        )
        kept.append(batch)
        count += 1
        if is_match(batch):
            return Scan(position, count, tuple(kept), batch)
    return Scan(position, count, tuple(kept), None)


def offset_index_entries(extent: Extent) -> NDArray[np.void]:
    """The entries of the segment's offset index (OFFSET_INDEX_DTYPE); none if it cannot be read."""
    index = extent.offset_index()
    if index is None:
        return np.empty(0, OFFSET_INDEX_DTYPE)
    try:
        return index.entries_array()
    finally:
        index.close_handler()


def time_index_entries(extent: Extent) -> NDArray[np.void]:
    """The entries of the segment's time index (TIME_INDEX_DTYPE); none if it cannot be read."""
    index = extent.time_index()
    if not isinstance(index, TimeIndex):
        return np.empty(0, TIME_INDEX_DTYPE)
    try:
        return index.entries_array()
    finally:
        index.close_handler()


def floor_slot(keys: NDArray[Any], key: int) -> int:
    """The number of the last entry at or below `key`, or -1."""
    return int(np.searchsorted(keys, key, side="right")) - 1


def record_text(record: Record) -> str:
    """A record in one line: offset, time, key and value, truncated if they are long."""
    when = iso_text(record.timestamp_ms)
    return f"offset {record.offset}, {when}, key {_short(record.key)}, value {_short(record.value)}"


def _short(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = data[: 4 * _TEXT_MAX].decode(errors="replace")
    return repr(text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…")


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
            text += " The batch at that position does not confirm it, so the entry is ignored: start at byte 0."
        return text

    def _scan_step(self) -> str:
        looked = f"From byte {self.scan.position:,} on, {plural(self.scan.count, 'batch header')} read"
        found = self.scan.found
        if found is None:
            return f"{looked}, none with offset {self.offset} or a later one: reading continues in the next segment."
        return (
            f"{looked}, up to the batch whose last offset is at or above {self.offset}: "
            f"offsets {found.base_offset} to {found.last_offset}, at byte {found.position:,}."
        )

    def _record_step(self) -> str:
        if self.record is None:
            return "None in this segment any more."
        if self.record.offset != self.offset:
            return f"Offset {self.offset} has none, it is in a gap. The next one: {record_text(self.record)}."
        return f"Decoded out of its batch: {record_text(self.record)}."

    def __repr__(self) -> str:
        lines = [f"offset {self.offset} of {self.name}"]
        lines += [f"{number}. {head}: {text}" for number, (head, text) in enumerate(self.steps(), 1)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return offset_seek_html(self)


def explain_offset(found: PartitionSnapshot, segments: Sequence[SegmentInfo], offset: int) -> OffsetSeek:
    """The lookup of `offset`, which must be in the partition's range. Raises CorruptRecordError for damage."""
    bases = np.array([each.base_offset for each in segments])
    segment = segments[max(floor_slot(bases, offset), 0)]
    extent = segment.extent(found.local_directory)
    index = offset_index_entries(extent)
    with SegmentReader(extent) as reader:
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TimeSeek:
    """The lookup of `timestamp_ms`: prints its steps, and is drawn in a notebook.

    `passed`: segments whose largest timestamps are too early, or in which no record was found. `segment` None: no
    record is late enough. `time_index` (TIME_INDEX_DTYPE) and `index` (OFFSET_INDEX_DTYPE) are the entries of its
    indexes; `time_slot` and `slot` are the numbers of the entries found, or -1.
    """

    name: str
    timestamp_ms: int
    segments: tuple[SegmentInfo, ...]
    passed: tuple[SegmentInfo, ...]
    segment: SegmentInfo | None
    largest_ms: int
    time_index: NDArray[np.void]
    time_slot: int
    index: NDArray[np.void]
    slot: int
    scan: Scan | None
    record: Record | None

    @property
    def offset(self) -> int | None:
        """The offset of the record found; None if no record is late enough."""
        return None if self.record is None else self.record.offset

    def steps(self) -> list[tuple[str, str]]:
        """A heading and a sentence for each step."""
        when = iso_text(self.timestamp_ms)
        if self.segment is None or self.scan is None:
            return [("Segment", f"None of {plural(len(self.passed), 'segment')} has a record at or after {when}.")]
        return [
            ("Segment", self._segment_step(when)),
            ("Time index", self._time_index_step(when)),
            ("Offset index", self._index_step()),
            ("Scan", self._scan_step(when)),
            (
                "Record",
                "None." if self.record is None else f"The first at or after {when}: {record_text(self.record)}.",
            ),
        ]

    def _segment_step(self, when: str) -> str:
        assert self.segment is not None
        before = f"{plural(len(self.passed), 'segment')} passed over: nothing that late in it. " if self.passed else ""
        return (
            f"{before}{self.segment.file} is the first whose largest timestamp, {iso_text(self.largest_ms)}, "
            f"is at or after {when}."
        )

    def _time_index_step(self, when: str) -> str:
        entries = plural(len(self.time_index), "entry", "entries")
        if self.time_slot < 0:
            return f"None of the {entries} of its time index is at or before {when}: start at its first batch."
        found_ms, offset = (int(each) for each in self.time_index[self.time_slot])
        return (
            f"Of the {entries} of its time index, number {self.time_slot} is the last at or before {when}: "
            f"{iso_text(found_ms)}, first reached by the batch that ends with offset {offset}."
        )

    def _index_step(self) -> str:
        assert self.scan is not None
        if self.slot < 0:
            return "No entry of the offset index helps: start at byte 0."
        offset, position = (int(each) for each in self.index[self.slot])
        entry = (
            f"Entry number {self.slot} of {len(self.index):,}: the batch that ends with offset {offset} begins at byte"
        )
        if self.scan.position == position:
            return f"{entry} {position:,}. Start there."
        return f"{entry} {position:,}. From there a few headers on, start at byte {self.scan.position:,}."

    def _scan_step(self, when: str) -> str:
        assert self.scan is not None
        looked = f"From byte {self.scan.position:,} on, {plural(self.scan.count, 'batch header')} read"
        found = self.scan.found
        if found is None:
            return f"{looked}, none of them late enough."
        return (
            f"{looked}, up to the batch with a timestamp at or after {when}: offsets {found.base_offset} to "
            f"{found.last_offset}, at byte {found.position:,}."
        )

    def __repr__(self) -> str:
        lines = [f"{iso_text(self.timestamp_ms)} in {self.name}"]
        lines += [f"{number}. {head}: {text}" for number, (head, text) in enumerate(self.steps(), 1)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return time_seek_html(self)


def explain_timestamp(
    found: PartitionSnapshot, segments: Sequence[SegmentInfo], timestamp_ms: int, start_offset: int, end_offset: int
) -> TimeSeek:
    """The lookup of the first record of [start_offset, end_offset) at or after `timestamp_ms`.

    Raises CorruptRecordError for damage in the data read.
    """
    passed: list[SegmentInfo] = []
    for segment in segments:
        if segment.end_offset <= start_offset or segment.base_offset >= end_offset:
            continue
        largest_ms = max_timestamp_ms(found.local_directory, segment)
        if largest_ms >= timestamp_ms:
            extent = segment.extent(found.local_directory)
            scan, record = _search(extent, timestamp_ms, start_offset, end_offset)
            if record is not None:
                break
        passed.append(segment)
    else:
        return _nothing(found, timestamp_ms, segments, passed)
    time_index, index = time_index_entries(extent), offset_index_entries(extent)
    return TimeSeek(
        name=f"{found.topic}-{found.partition}",
        timestamp_ms=timestamp_ms,
        segments=tuple(segments),
        passed=tuple(passed),
        segment=segment,
        largest_ms=largest_ms,
        time_index=time_index,
        time_slot=floor_slot(time_index["timestamp_ms"], timestamp_ms),
        index=index,
        slot=floor_slot(index["position"], scan.position),
        scan=scan,
        record=record,
    )


def _nothing(
    found: PartitionSnapshot, timestamp_ms: int, segments: Sequence[SegmentInfo], passed: list[SegmentInfo]
) -> TimeSeek:
    return TimeSeek(
        name=f"{found.topic}-{found.partition}",
        timestamp_ms=timestamp_ms,
        segments=tuple(segments),
        passed=tuple(passed),
        segment=None,
        largest_ms=-1,
        time_index=np.empty(0, TIME_INDEX_DTYPE),
        time_slot=-1,
        index=np.empty(0, OFFSET_INDEX_DTYPE),
        slot=-1,
        scan=None,
        record=None,
    )


def _search(extent: Extent, timestamp_ms: int, start_offset: int, end_offset: int) -> tuple[Scan, Record | None]:
    """The scan of a segment up to the batch with the record, and the record."""
    records: list[Record] = []

    with SegmentReader(extent) as reader:

        def is_match(batch: SeenBatch) -> bool:
            if batch.max_timestamp_ms >= timestamp_ms and batch.last_offset >= start_offset:
                data = reader.batch_at(batch.position, reader.header_at(batch.position))
                decoded = decode_batch(data, 0, file=reader.file, file_position=batch.position)
                records.extend(
                    each
                    for each in decoded.records
                    if each.timestamp_ms >= timestamp_ms and start_offset <= each.offset < end_offset
                )
            return bool(records) or batch.last_offset >= end_offset - 1

        position = max(reader.position_for_offset(start_offset), reader.position_for_timestamp(timestamp_ms))
        scan = scan_until(reader, position, is_match)
    return scan, records[0] if records else None


_BAR: Final = 22.0
_STEP: Final = 84.0  # the distance between rows
_TICKS_DRAWN: Final = 300
_NEIGHBOURS: Final = 12  # segments on either side of the one found


def offset_seek_html(seek: OffsetSeek) -> str:
    """The lookup of an offset: three rows and the steps as text."""
    parts, box = _segments_row(18, seek.segments, seek.segment)
    parts += _file_row(18 + _STEP, seek.segment, seek.index, seek.slot, seek.scan, box)
    parts += _batches_row(18 + 2 * _STEP, seek.segment, seek.scan, f"offset {seek.offset}")
    height = 18 + 2 * _STEP + _BAR + 34
    text = f"offset {seek.offset}: segment, index, scan, record"
    return view(heading(seek.name, text), drawing(height, text, *_shades_first(parts)), _steps(seek.steps()))


def time_seek_html(seek: TimeSeek) -> str:
    """The lookup of a point in time: four rows and the steps as text."""
    when = iso_text(seek.timestamp_ms)
    text = f"{when}: segment, time index, offset index, scan, record"
    if seek.segment is None or seek.scan is None:
        return view(heading(seek.name, f"{when}: no record is late enough"), _steps(seek.steps()))
    parts, box = _segments_row(18, seek.segments, seek.segment)
    parts += _time_row(18 + _STEP, seek, box)
    whole = (0.0, float(WIDTH), 18 + _STEP + _BAR)
    parts += _file_row(18 + 2 * _STEP, seek.segment, seek.index, seek.slot, seek.scan, whole, zoomed=False)
    parts += _batches_row(18 + 3 * _STEP, seek.segment, seek.scan, f"at or after {when}")
    height = 18 + 3 * _STEP + _BAR + 34
    return view(heading(seek.name, text), drawing(height, text, *_shades_first(parts)), _steps(seek.steps()))


#: The part of a row that the next row enlarges: left edge, right edge, lower edge.
_Box = tuple[float, float, float]


def _segments_row(y: float, segments: Sequence[SegmentInfo], chosen: SegmentInfo) -> tuple[list[str], _Box]:
    at = next(number for number, each in enumerate(segments) if each.base_offset == chosen.base_offset)
    shown = segments[max(at - _NEIGHBOURS, 0) : at + _NEIGHBOURS + 1]
    of = f"{len(shown)} of {len(segments):,} segments" if len(shown) < len(segments) else "segments"
    parts = [label(0, y - 6, of)]
    scale = WIDTH / max(sum(each.size_bytes for each in shown), 1)
    x, box = 0.0, (0.0, float(WIDTH), y + _BAR)
    free_from = 0.0
    for each in shown:
        width = each.size_bytes * scale
        is_chosen = each is chosen or each.base_offset == chosen.base_offset
        title = f"offsets {each.base_offset:,} to {each.end_offset - 1:,}, {size_text(each.size_bytes)}"
        parts.append(rect(x, y, max(width - 1, 0.5), _BAR, "pick" if is_chosen else each.state, title))
        text = f"{each.base_offset:,}"
        if is_chosen or (x >= free_from and x + text_width(text) <= WIDTH):
            parts.append(label(min(x, WIDTH - text_width(text)), y + _BAR + 13, text, "pick" if is_chosen else ""))
            free_from = x + text_width(text) + 8
        if is_chosen:
            box = (x, x + width, y + _BAR)
        x += width
    return parts, box


def _time_row(y: float, seek: TimeSeek, box: _Box) -> list[str]:
    times = seek.time_index["timestamp_ms"].astype(np.float64)
    low = min([*times[:1], float(seek.timestamp_ms)])
    high = max([*times[-1:], float(seek.timestamp_ms), low + 1])
    scale = WIDTH / (high - low)
    parts = [
        *_zoom(box, y, 0.0, float(WIDTH)),
        label(0, y - 6, "time index: its entries by their timestamps", "strong"),
    ]
    parts.append(rect(0, y, WIDTH, _BAR, "weak"))
    parts += [line(x, y + 5, x, y + _BAR - 5, "mark") for x in _sampled((times - low) * scale)]
    x = (seek.timestamp_ms - low) * scale
    parts.append(line(x, y - 3, x, y + _BAR + 3, "pick"))
    parts.append(label(x, y + _BAR + 27, f"{iso_text(seek.timestamp_ms)[11:]} is requested", "pick", "middle"))
    if seek.time_slot < 0:
        return parts
    found = (times[seek.time_slot] - low) * scale
    offset = int(seek.time_index[seek.time_slot]["offset"])
    parts.append(rect(found - 2, y, 4, _BAR, "active", f"entry {seek.time_slot}: offset {offset}"))
    text = f"entry {seek.time_slot}: {iso_text(int(times[seek.time_slot]))[11:]} → offset {offset:,}"
    return [*parts, label(found, y + _BAR + 13, text, "strong", "middle")]


def _file_row(
    y: float, segment: SegmentInfo, index: NDArray[np.void], slot: int, scan: Scan, box: _Box, *, zoomed: bool = True
) -> list[str]:
    scale = WIDTH / max(segment.size_bytes, 1)
    parts = _zoom(box, y, 0.0, float(WIDTH)) if zoomed else []
    parts.append(
        label(
            0, y - 6, f"{segment.file}, {size_text(segment.size_bytes)}: a tick for each entry of its index", "strong"
        )
    )
    parts.append(rect(0, y, WIDTH, _BAR, "weak"))
    first, end = _scanned_bytes(scan)
    parts.append(rect(first * scale, y, max((end - first) * scale, 1.5), _BAR, "seen", "headers read here"))
    if scan.found is not None:
        found = scan.found
        parts.append(
            rect(found.position * scale, y, max(found.size_bytes * scale, 1.5), _BAR, "pick", "the batch found")
        )
    parts += [line(x, y + 5, x, y + _BAR - 5, "mark") for x in _sampled(index["position"] * scale)]
    if slot >= 0:
        entry = index[slot]
        x = float(entry["position"]) * scale
        parts.append(rect(x - 2, y, 4, _BAR, "active", f"entry {slot}"))
        text = f"entry {slot}: offset {int(entry['offset']):,} → byte {int(entry['position']):,}"
        parts.append(label(x, y + _BAR + 13, text, "strong", "middle"))
    return parts


def _batches_row(y: float, segment: SegmentInfo, scan: Scan, caption: str) -> list[str]:
    if not scan.batches:
        return [label(0, y + 14, "no batch")]
    file_scale = WIDTH / max(segment.size_bytes, 1)
    first, end = _scanned_bytes(scan)
    box = (first * file_scale, end * file_scale, y - _STEP + _BAR)
    scale = WIDTH / max(end - first, 1)
    left = "" if scan.count == len(scan.batches) else f", the last {len(scan.batches)}"
    parts = [*_zoom(box, y, 0.0, float(WIDTH)), label(0, y - 6, f"batches whose headers were read{left}", "strong")]
    for each in scan.batches:
        x, width = (each.position - first) * scale, each.size_bytes * scale
        is_found = each is scan.found
        text = _offsets_text(each)
        title = f"offsets {text}, byte {each.position:,}, {size_text(each.size_bytes)}"
        parts.append(rect(x, y, max(width - 1, 0.5), _BAR, "pick" if is_found else "seen", title))
        if text_width(text) <= width or is_found:
            parts.append(label(x + width / 2, y + _BAR + 13, text, "pick" if is_found else "", "middle"))
    if scan.found is not None:
        x = (scan.found.position - first + scan.found.size_bytes / 2) * scale
        parts.append(label(x, y + _BAR + 27, caption, "pick", "middle"))
    return parts


def _offsets_text(batch: SeenBatch) -> str:
    if batch.base_offset == batch.last_offset:
        return f"{batch.base_offset}"
    return f"{batch.base_offset}-{batch.last_offset}"


def _scanned_bytes(scan: Scan) -> tuple[int, int]:
    """The range of bytes of the displayed batches."""
    if not scan.batches:
        return scan.position, scan.position
    return scan.batches[0].position, scan.batches[-1].end_position


def _zoom(box: _Box, y: float, left: float, right: float) -> list[str]:
    """A shade from a part of the row above to all of this one."""
    from_left, from_right, from_y = box
    corners = [(from_left, from_y), (max(from_right, from_left + 1), from_y), (right, y), (left, y)]
    return [polygon(corners, "zoom")]


def _shades_first(parts: Sequence[str]) -> list[str]:
    """The parts, with the shades between rows first, so that they are behind everything else."""
    return sorted(parts, key=lambda part: not part.startswith("<polygon"))


def _sampled(places: NDArray[np.float64]) -> Iterable[float]:
    """An evenly spaced sample of very many places."""
    if len(places) > _TICKS_DRAWN:
        places = places[np.linspace(0, len(places) - 1, _TICKS_DRAWN).astype(np.int64)]
    return [float(each) for each in places]


def _steps(steps: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<li><b>{escaped(head)}.</b> {escaped(text)}</li>" for head, text in steps)
    return f"<ol>{items}</ol>"
