"""`kafkalog history`: list the commits of a log directory: when, what was done, by whom, to which partitions.

One line for each partition that a commit wrote to, with the offset of its first record there, and records and bytes.
Commits that did not write have one line for each topic they touched. COMMIT is the commit's offset in the metadata log,
VERSION the transactional id's (a streaming query's batch id). The newest commit comes first; commits older than
metadata.max.retention.ms are removed once a snapshot covers them. What goes wrong is said in one line; exit code 1.

examples:
  kafkalog history --path /data/log --limit 20
  kafkalog history --path /data/log --topic orders --oldest-first
  kafkalog history --path /data/log --output json | jq 'select(.transactionalId != null)'
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import KafkalogError, UnknownTopicError
from pyspark_kafkalog.tools.one_line import one_line

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.history import HistoryEntry

_HEADER: Final = (
    "COMMIT",
    "TIME",
    "OPERATION",
    "TRANSACTIONAL-ID",
    "VERSION",
    "TOPIC",
    "PARTITION",
    "FIRST-OFFSET",
    "RECORDS",
    "BYTES",
)
_NONE: Final = "-"
#: Columns are made wide enough for this many lines at a time, so that a long history is printed as it is read.
_LINES_TOGETHER: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, which commits, and in which form."""
    parser.add_argument("--path", required=True, metavar="ROOT", type=Path, help="the log directory (no default)")
    parser.add_argument("--topic", metavar="NAME", help="only commits that touched this topic, which may be deleted")
    parser.add_argument("--limit", type=_positive, metavar="N", help="only the newest N commits")
    parser.add_argument("--oldest-first", action="store_true", help="print them in the order they were made")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="json: one object a line, by commit")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """List the commits on sys.stdout; says what went wrong in one line on sys.stderr."""
    from pyspark_kafkalog.log_dir import LogDir

    try:
        log_dir = LogDir.open(options.path)
        entries = log_dir.history(topic=options.topic, limit=options.limit, newest_first=not options.oldest_first)
        found = _print_json(entries) if options.output == "json" else _print_table(entries)
        if not found and options.topic is not None and options.topic not in log_dir.topics():
            raise UnknownTopicError(f"there is no topic {options.topic!r}, nor a commit to one that there was")
    except (KafkalogError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        sys.stdout.flush()
        sys.stderr.write(f"kafkalog history: {one_line(error)}\n")
        return 1
    return 0


def _print_json(entries: Iterable[HistoryEntry]) -> bool:
    found = False
    for entry in entries:
        found = True
        sys.stdout.write(json.dumps(_tree(entry), ensure_ascii=False) + "\n")
    return found


def _tree(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "offset": entry.offset,
        "timestamp": entry.timestamp_ms,
        "time": _time(entry.timestamp_ms),
        "operation": entry.operation,
        "transactionalId": entry.transactional_id,
        "version": entry.version,
        "incarnation": entry.incarnation,
        "writeId": entry.write_id,
        "topics": list(entry.topics),
        "records": entry.records,
        "bytes": entry.bytes,
        "partitions": [
            {
                "topic": each.topic,
                "topicId": each.topic_id,
                "partition": each.partition,
                "firstOffset": each.first_offset,
                "records": each.records,
                "bytes": each.bytes,
            }
            for each in entry.partitions
        ],
    }


def _print_table(entries: Iterable[HistoryEntry]) -> bool:
    lines = _lines(entries)
    widths = [len(name) for name in _HEADER]
    is_first = True
    while together := list(islice(lines, _LINES_TOGETHER)):
        widths = [
            max(width, *map(len, column)) for width, column in zip(widths, zip(*together, strict=True), strict=True)
        ]
        if is_first:
            _print_line(_HEADER, widths)
        is_first = False
        for line in together:
            _print_line(line, widths)
    return not is_first


def _print_line(line: Sequence[str], widths: Sequence[int]) -> None:
    sys.stdout.write(" ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + "\n")


def _lines(entries: Iterable[HistoryEntry]) -> Iterator[tuple[str, ...]]:
    for entry in entries:
        commit = (
            str(entry.offset),
            _time(entry.timestamp_ms),
            entry.operation or _NONE,
            entry.transactional_id or _NONE,
            _NONE if entry.version is None else str(entry.version),
        )
        for each in entry.partitions:
            yield *commit, each.topic, *map(str, (each.partition, each.first_offset, each.records, each.bytes))
        if not entry.partitions:
            for topic in entry.topics or (_NONE,):
                yield *commit, topic, _NONE, _NONE, _NONE, _NONE


def _time(timestamp_ms: int) -> str:
    """The time in UTC, to the millisecond; the number where no calendar goes that far."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
