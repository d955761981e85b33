"""Log directories, topics and partitions' logs as HTML and SVG for notebooks, bounded in size.

A log directory is a table of its topics. Only the first partitions are shown with offsets, segments and sizes, because
each requires a listing of its directory.

A log is a bar whose width is its bytes on disk; its parts are segments, drawn to scale and coloured by state. Marks
show the log start offset and the end of reading. Of many segments, neighbours are drawn as one, and of many partitions
only the first ones are shown.

Names of topics, keys and values are untrusted text: all text is passed through `escaped`, and attributes contain only
numbers. The style follows the theme of Jupyter or VS Code if that is known, else the preference of the reader's system.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from html import escape
from itertools import groupby
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.notebook.tables import CleanerMarks, LogRange, SegmentInfo, iso_text, list_segments, with_times
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.units import plural, size_text

WIDTH: Final = 760
_CHARACTER_WIDTH: Final = 6.2  # slightly above the average of the 11 px sans-serif of labels

_LIGHT: Final = (
    "--fg:#1f2328;--soft:#59636e;--line:#c3cad1;--bg:#ffffff;--remote:#8f77c6;--clean:#3d8bd4;--dirty:#c97a14;--closed:#84909d;"
    "--active:#2f9e62;--pick:#c2255c;--weak:#eceff2;"
)
_DARK: Final = (
    "--fg:#e6edf3;--soft:#9da7b1;--line:#474f58;--bg:#14181d;--remote:#8f7cc0;--clean:#4f9fe6;--dirty:#e29a3b;--closed:#77828d;"
    "--active:#3fb477;--pick:#f0668f;--weak:#252b32;"
)
_STYLE: Final = (
    f".kafkalog{{{_LIGHT}color:var(--fg);background:var(--bg);font:13px/1.45 system-ui,sans-serif;padding:10px 12px;"
    "border-radius:6px;max-width:800px;overflow-x:auto}"
    f"@media (prefers-color-scheme:dark){{.kafkalog{{{_DARK}}}}}"
    f"body[data-jp-theme-light=true] .kafkalog,body.vscode-light .kafkalog{{{_LIGHT}}}"
    f"body[data-jp-theme-light=false] .kafkalog,body.vscode-dark .kafkalog{{{_DARK}}}"
    ".kafkalog b.name{font-size:15px;overflow-wrap:anywhere}.kafkalog .soft{color:var(--soft)}"
    ".kafkalog table{border-collapse:collapse;margin:8px 0;color:var(--fg);font-size:13px}"
    ".kafkalog th,.kafkalog td{text-align:right;white-space:nowrap;padding:2px 10px 2px 0;border:0;background:none;"
    "color:var(--fg)}"
    ".kafkalog th{color:var(--soft);font-weight:normal;border-bottom:1px solid var(--line)}"
    ".kafkalog th:first-child,.kafkalog td:first-child{text-align:left;white-space:normal;overflow-wrap:break-word}"
    ".kafkalog ol{margin:6px 0 2px;padding-left:22px}.kafkalog svg{display:block;margin:8px 0 2px;"
    "max-width:100%;min-width:560px;height:auto}"
    ".kafkalog svg text{fill:var(--soft);font:11px system-ui,sans-serif}.kafkalog svg text.strong{fill:var(--fg)}"
    ".kafkalog svg text.pick{fill:var(--pick);font-weight:600}.kafkalog .clean{fill:var(--clean)}"
    ".kafkalog .remote{fill:var(--remote)}"
    ".kafkalog .dirty{fill:var(--dirty)}.kafkalog .closed{fill:var(--closed)}.kafkalog .active{fill:var(--active)}"
    ".kafkalog .weak{fill:var(--weak);stroke:var(--line)}.kafkalog .pick{fill:var(--pick)}"
    ".kafkalog .zoom{fill:var(--weak);fill-opacity:.75}.kafkalog .seen{fill:var(--pick);fill-opacity:.4}"
    ".kafkalog line{stroke:var(--line)}"
    ".kafkalog line.pick{stroke:var(--pick);stroke-width:1.6}.kafkalog line.mark{stroke:var(--fg);stroke-width:1.4}"
)


def escaped(text: object) -> str:
    """`text` as HTML text; control characters, which no document may contain, become U+FFFD."""
    shown = "".join(each if each.isprintable() or each == " " else "\ufffd" for each in str(text))
    return escape(shown, quote=True)


def view(*parts: str) -> str:
    """The parts, which are HTML, together with the style."""
    return f'<div class="kafkalog"><style>{_STYLE}</style>{"".join(parts)}</div>'


def heading(name: str, facts: str) -> str:
    """A name and, in a muted colour, facts about it; both plain text."""
    return f'<div><b class="name">{escaped(name)}</b> <span class="soft">{escaped(facts)}</span></div>'


def note(text: str) -> str:
    """A line in a muted colour; plain text."""
    return f'<div class="soft">{escaped(text)}</div>'


def table(columns: list[str], rows: list[list[object]]) -> str:
    """A table; plain text."""
    head = "".join(f"<th>{escaped(each)}</th>" for each in columns)
    body = "".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def drawing(height: float, label: str, *parts: str) -> str:
    """An SVG of WIDTH by `height`; `label` is the text for screen readers."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img" '
        f'aria-label="{escaped(label)}">{"".join(parts)}</svg>'
    )


def rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    """A rectangle; `kind` is one of the style's classes, `title` is shown on hover."""
    tip = f"<title>{escaped(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" class="{kind}">{tip}</rect>'
    )


def line(x: float, y: float, to_x: float, to_y: float, kind: str = "") -> str:
    """A straight line."""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="{kind}"/>'


def polygon(points: list[tuple[float, float]], kind: str) -> str:
    """A filled polygon."""
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon points="{text}" class="{kind}"/>'


def label(x: float, y: float, text: object, kind: str = "", anchor: str = "start") -> str:
    """A piece of text; kept inside the drawing if it is anchored in its middle."""
    if anchor == "middle":
        half = text_width(text) / 2
        x = min(max(x, half), WIDTH - half)
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escaped(text)}</text>'


def text_width(text: object) -> float:
    """The approximate width of a label."""
    return len(str(text)) * _CHARACTER_WIDTH


#: The maximum numbers of topics listed, and of partitions whose offsets and sizes are read.
TOPICS_SHOWN: Final = 40
_PARTITIONS_READ: Final = 300
_NOT_READ: Final = "…"


def log_dir_html(root: Root) -> str:
    """HTML with the directory's topics, their partitions, offsets, segments and sizes."""
    topics = root.topics()
    shown = topics[:TOPICS_SHOWN]
    whose = "a Kafka broker's log directory, read-only" if root.version is None else f"version {root.version}"
    rows: list[list[object]] = []
    left = _PARTITIONS_READ
    marks = CleanerMarks(root)
    for name in shown:
        numbers = root.partition_numbers(name)
        left -= len(numbers)
        details: list[object] = [_NOT_READ] * 3
        if left >= 0:
            try:
                details = _details(root, name, numbers, marks)
            except (KafkalogError, OSError):  # an error in one topic does not affect the others
                details = ["cannot be read", "", ""]
        rows.append([name, f"{len(numbers):,}", *details])
    parts = [heading(root.path.name, f"{whose}, {plural(len(topics), 'topic')}")]
    if rows:
        parts.append(table(["topic", "partitions", "offsets", "segments", "size"], rows))
    if len(shown) < len(topics):
        parts.append(note(f"and {len(topics) - len(shown):,} topics more"))
    if left < 0:
        parts.append(note(f"{_NOT_READ}: not read, because there are many partitions; log_dir[topic] shows a topic"))
    return view(*parts)


def _details(root: Root, name: str, numbers: tuple[int, ...], marks: CleanerMarks) -> list[object]:
    offsets = segments = size_bytes = 0
    for number in numbers:
        found = root.partition(name, number)
        offsets += found.high_watermark - found.readable_start_offset
        listed = list_segments(root, found, marks=marks)
        segments += len(listed)
        size_bytes += sum(each.size_bytes for each in listed)
    return [f"{offsets:,}", f"{segments:,}", size_text(size_bytes)]


#: The maximum numbers of partitions drawn per topic, and of segments per log.
PARTITIONS_SHOWN: Final = 24
_SEGMENTS_DRAWN: Final = 160
_ROW: Final = 24.0
_BAR: Final = 16.0
_GAP: Final = 1.0
_LEGEND: Final = (
    ("remote", "remote: only in remote storage"),
    ("clean", "clean: the cleaner has been there"),
    ("dirty", "dirty: to be cleaned"),
    ("closed", "closed"),
    ("active", "active: appended to"),
)


def partition_log_html(log: LogRange) -> str:
    """The log with its segments, watermarks and times."""
    found = log.describe()
    segments = list_segments(log.root, found)
    total = sum(each.size_bytes for each in segments)
    start, end = log.start_offset, log.end_offset
    stable = _last_stable_offset(log)
    facts = f"offsets [{start:,}, {end:,}), {plural(len(segments), 'segment')}, {size_text(total)}"
    if log.isolation == "read_committed":
        facts += ", read committed"
    facts += log.past_end
    parts = [heading(log.name, facts)]
    if segments:
        first = "local log start" if found.remote_offsets_count else "log start"
        marks = [(first, found.readable_start_offset), ("high watermark", found.high_watermark)]
        if found.readable_start_offset < found.local_log_start_offset < found.high_watermark:
            marks.insert(1, ("local log start", found.local_log_start_offset))
        if stable is not None and stable < found.high_watermark:
            marks.insert(-1, ("last stable offset", stable))
        if (start, end) != (found.log_start_offset, found.high_watermark):
            marks += [("slice from", start), ("to", end)]
        parts.append(_log_drawing(segments, marks, log.name))
        parts.append(note(_times_text(log, segments)))
    else:
        parts.append(note("nothing was ever written to it"))
    return view(*parts)


def topic_log_html(root: Root, name: str, logs: Sequence[LogRange]) -> str:
    """The topic with a bar for each of its first partitions that is not empty, all to one scale."""
    shown = logs[:PARTITIONS_SHOWN]
    marks = CleanerMarks(root)
    rows = [(log, list_segments(root, log.describe(), marks=marks)) for log in shown]
    rows = [row for row in rows if row[0].end_offset > row[0].start_offset or any(each.size_bytes for each in row[1])]
    records = sum(log.end_offset - log.start_offset for log in shown)
    size = size_text(sum(each.size_bytes for _, segments in rows for each in segments))
    of = f" in the first {len(shown)}" if len(shown) < len(logs) else ""
    facts = f"{plural(len(logs), 'partition')}, {plural(records, 'offset')}, {size}{of}"
    parts = [heading(name, facts)]
    if rows:
        parts.append(_topic_drawing(rows, name))
    if len(rows) < len(shown):
        parts.append(note(f"not drawn: {plural(len(shown) - len(rows), 'empty partition')}"))
    if len(shown) < len(logs):
        parts.append(note(f"and {len(logs) - len(shown):,} partitions more"))
    return view(*parts)


def _last_stable_offset(log: LogRange) -> int | None:
    try:
        return log.describe().last_stable_offset
    except DiskFormatError:
        return None  # the log is damaged, but is drawn nevertheless


def _times_text(log: LogRange, segments: Sequence[SegmentInfo]) -> str:
    directory = log.describe().local_directory
    first, last = with_times(directory, segments[0]), with_times(directory, segments[-1])
    if first.first_timestamp_ms is None or last.max_timestamp_ms is None:
        return ""
    latest = iso_text(last.max_timestamp_ms)
    return f"first record {iso_text(first.first_timestamp_ms)}, latest of the last segment {latest} UTC"


def _topic_drawing(rows: Sequence[tuple[LogRange, Sequence[SegmentInfo]]], name: str) -> str:
    sizes = [sum(each.size_bytes for each in segments) for _, segments in rows]
    left = max([text_width(log.partition) for log, _ in rows] + [20]) + 8
    right = 210.0
    room = WIDTH - left - right
    scale = room / max([*sizes, 1])
    parts = []
    for number, ((log, segments), size) in enumerate(zip(rows, sizes, strict=True)):
        y = number * _ROW
        parts.append(label(left - 8, y + 12, log.partition, "strong", "end"))
        parts += _bars(merged(segments), left, y, scale, _BAR)
        if not size:
            parts.append(line(left, y, left, y + _BAR))
        text = f"[{log.start_offset:,}, {log.end_offset:,})  {size_text(size)}"
        parts.append(label(left + size * scale + 8, y + 12, text))
    height = len(rows) * _ROW
    states = {each.state for _, segments in rows for each in segments}
    return drawing(height + 22, f"segments of {name}", *parts, *_legend(states, height + 14))


def _log_drawing(segments: Sequence[SegmentInfo], marks: Sequence[tuple[str, int]], name: str) -> str:
    total = sum(each.size_bytes for each in segments)
    scale = WIDTH / max(total, 1)
    bar, tall = 6.0, 30.0
    parts = _bars(merged(segments), 0, bar, scale, tall)
    parts += _base_labels(segments, scale, bar + tall + 13)
    y = bar + tall + 32
    for text, offset in marks:
        x = _place(segments, offset) * scale
        parts.append(line(x, bar - 4, x, y - 10, "mark"))
        parts.append(_mark_label(x, y, f"{text} {offset:,}"))
        y += 15
    states = {each.state for each in segments}
    return drawing(y + 16, f"segments of {name}", *parts, *_legend(states, y + 8))


def _mark_label(x: float, y: float, text: str) -> str:
    if x + text_width(text) > WIDTH:
        return label(min(x, WIDTH), y, text, "strong", "end")
    return label(x, y, text, "strong")


def merged(segments: Sequence[SegmentInfo], most: int = _SEGMENTS_DRAWN) -> list[SegmentInfo]:
    """The segments; if there are more than `most`, neighbours of one state are merged, to about `most` segments."""
    if len(segments) <= most:
        return list(segments)
    width = -(-len(segments) // most)
    numbered = groupby(enumerate(segments), key=lambda each: (each[0] // width, each[1].state))
    runs = [[segment for _, segment in group] for _, group in numbered]
    return [
        replace(run[0], end_offset=run[-1].end_offset, size_bytes=sum(each.size_bytes for each in run)) for run in runs
    ]


def _bars(segments: Sequence[SegmentInfo], x: float, y: float, scale: float, height: float) -> list[str]:
    parts = []
    for each in segments:
        width = each.size_bytes * scale
        title = f"{each.state}: offsets {each.base_offset:,} to {each.end_offset - 1:,}, {size_text(each.size_bytes)}"
        gap = _GAP if width > 3 * _GAP else 0
        parts.append(rect(x, y, max(width - gap, 0.5), height, each.state, title))
        x += width
    return parts


def _base_labels(segments: Sequence[SegmentInfo], scale: float, y: float) -> list[str]:
    """Base offsets below the segments, as many as fit."""
    parts, x, free_from = [], 0.0, 0.0
    for each in segments:
        text = f"{each.base_offset:,}"
        if x >= free_from and x + text_width(text) <= WIDTH:
            parts.append(label(x + 3, y, text))
            free_from = x + text_width(text) + 12
        x += each.size_bytes * scale
    return parts


def _place(segments: Sequence[SegmentInfo], offset: int) -> float:
    """The position of an offset, in bytes after the start of the first segment; interpolated within a segment."""
    before = 0
    for each in segments:
        if offset < each.end_offset:
            span = each.end_offset - each.base_offset
            return before + each.size_bytes * max(offset - each.base_offset, 0) / max(span, 1)
        before += each.size_bytes
    return float(before)


def _legend(states: Collection[str], y: float) -> list[str]:
    parts, x = [], 0.0
    for state, text in _LEGEND:
        if state in states:
            parts += [rect(x, y - 8, 9, 9, state), label(x + 13, y, text)]
            x += 13 + text_width(text) + 14
    return parts
