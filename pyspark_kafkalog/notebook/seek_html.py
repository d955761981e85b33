"""Draws lookups in a log as HTML: from all segments to one, from its index to its bytes, from there to one batch.

Rows from top to bottom, each to scale; each enlarges a part of the row above it:

    segments      all of the log, by bytes; if there are very many, those around the one found
    time index    of that segment, entries by their timestamps                      (lookups by time)
    offset index  of that segment: its .log by bytes, a tick for each entry
    batches       those whose headers were read, by bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

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
from pyspark_kafkalog.notebook.points_in_time import iso_text
from pyspark_kafkalog.notebook.seek import OffsetSeek, Scan, SeenBatch, TimeSeek
from pyspark_kafkalog.notebook.segments import SegmentInfo
from pyspark_kafkalog.units import size_text

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
    wanted = (seek.timestamp_ms - low) * scale
    parts.append(line(wanted, y - 3, wanted, y + _BAR + 3, "pick"))
    parts.append(label(wanted, y + _BAR + 27, f"{iso_text(seek.timestamp_ms)[11:]} is asked for", "pick", "middle"))
    if seek.time_slot < 0:
        return parts
    found = (times[seek.time_slot] - low) * scale
    offset = int(seek.time_index[seek.time_slot]["offset"])
    parts.append(rect(found - 2, y, 4, _BAR, "active", f"entry {seek.time_slot}: offset {offset}"))
    text = f"entry {seek.time_slot}: {iso_text(int(times[seek.time_slot]))[11:]} → offset {offset:,}"
    return [*parts, label(found, y + _BAR + 13, text, "strong", "middle")]


def _file_row(
    y: float,
    segment: SegmentInfo,
    index: NDArray[np.void],
    slot: int,
    scan: Scan,
    box: _Box,
    *,
    zoomed: bool = True,
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


def _batches_row(y: float, segment: SegmentInfo, scan: Scan, wanted: str) -> list[str]:
    if not scan.batches:
        return [label(0, y + 14, "no batch there")]
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
        parts.append(label(x, y + _BAR + 27, wanted, "pick", "middle"))
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
