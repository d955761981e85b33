"""A log directory as HTML for a notebook: a table of its topics, bounded in size.

Only the first partitions are shown with offsets, segments and sizes, because each requires a listing of its directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.notebook.cleaner_marks import CleanerMarks
from pyspark_kafkalog.notebook.segments import list_segments
from pyspark_kafkalog.notebook.svg import heading, note, table, view
from pyspark_kafkalog.units import plural, size_text

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir

#: The maximum numbers of topics listed, and of partitions whose offsets and sizes are read.
TOPICS_SHOWN: Final = 40
_PARTITIONS_LOOKED_AT: Final = 300
_NOT_LOOKED_AT: Final = "…"


def log_dir_html(log_dir: LogDir) -> str:
    """HTML with the directory's topics, their partitions, offsets, segments and sizes."""
    topics = log_dir.topics()
    shown = topics[:TOPICS_SHOWN]
    whose = "a Kafka broker's log directory, read-only" if log_dir.is_foreign else f"version {log_dir.version}"
    rows: list[list[object]] = []
    left = _PARTITIONS_LOOKED_AT
    marks = CleanerMarks(log_dir)
    for name in shown:
        numbers = log_dir.partition_numbers(name)
        left -= len(numbers)
        details: list[object] = [_NOT_LOOKED_AT] * 3
        if left >= 0:
            try:
                details = _details(log_dir, name, numbers, marks)
            except (KafkalogError, OSError):  # an error in one topic does not affect the others
                details = ["cannot be read", "", ""]
        rows.append([name, f"{len(numbers):,}", *details])
    parts = [heading(str(log_dir.path.name), f"{whose}, {plural(len(topics), 'topic')}")]
    if rows:
        parts.append(table(["topic", "partitions", "offsets", "segments", "size"], rows))
    if len(shown) < len(topics):
        parts.append(note(f"and {len(topics) - len(shown):,} topics more"))
    if left < 0:
        parts.append(note(f"{_NOT_LOOKED_AT}: many partitions, not looked at; log_dir[topic] shows a topic"))
    return view(*parts)


def _details(log_dir: LogDir, name: str, numbers: tuple[int, ...], marks: CleanerMarks) -> list[object]:
    offsets = segments = size_bytes = 0
    for number in numbers:
        found = log_dir.partition(name, number)
        offsets += found.high_watermark - found.local_log_start_offset
        listed = list_segments(log_dir, found, marks=marks)
        segments += len(listed)
        size_bytes += sum(each.size_bytes for each in listed)
    return [f"{offsets:,}", f"{segments:,}", size_text(size_bytes)]
