"""What happened to a log directory over time: its commits, and the results of its maintenance jobs.

Commits are the newest ones of a native log directory, added up over time and by topic.

Results of maintenance jobs come from the Delta table to which they append: its newest rows, read without Spark.

    <table>/_delta_log/<20 digit version>.json               actions: files added and removed
    <table>/_delta_log/<20 digit version>.checkpoint.parquet the same, of all versions up to it
    <table>/*.parquet                                        the rows

Only the features that such a table uses are supported: no deletion vectors, no column mapping. A table that requires
more is refused. Source of the rules: the Delta transaction log protocol.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata.history import HistoryEntry
from pyspark_kafkalog.report.facts import RETENTION, CommitFacts, Series, WriteHistory
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.units import SECOND_MS

#: Commits that are read, commits that are listed one by one, and topics with a series of their own.
COMMITS_MAX: Final = 5_000
_NEWEST_MAX: Final = 300
_TOPICS_APART: Final = 5
_BUCKETS_MAX: Final = 96

#: A short history is extended backwards with empty buckets to this many.
_BUCKETS_MIN: Final = 24
_MAINTENANCE: Final = (RETENTION, "delete records")
OTHER_TOPICS: Final = ""

#: Widths of a bucket: round ones, so that buckets begin at round times.
_WIDTHS_MS: Final = tuple(
    SECOND_MS * seconds
    for seconds in (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 28 * 86400, 364 * 86400)
)


def write_history(root: Root, *, commits_max: int = COMMITS_MAX) -> WriteHistory:
    """The newest `commits_max` commits of a native log directory. Raises DiskFormatError for a damaged commit."""
    entries = list(islice(root.history(limit=commits_max + 1), commits_max + 1))
    is_whole = len(entries) <= commits_max
    entries = entries[:commits_max]
    return WriteHistory(
        commits_read=len(entries),
        is_whole=is_whole,
        series=_series(entries),
        newest=tuple(_commit(each) for each in entries[:_NEWEST_MAX]),
        maintenance=tuple(_commit(each) for each in _of_maintenance(entries)),
    )


def _of_maintenance(entries: Iterable[HistoryEntry]) -> Iterable[HistoryEntry]:
    return islice((each for each in entries if each.operation in _MAINTENANCE), _NEWEST_MAX)


def _commit(entry: HistoryEntry) -> CommitFacts:
    return CommitFacts(**{each.name: getattr(entry, each.name) for each in fields(CommitFacts)})


def _series(entries: Sequence[HistoryEntry]) -> Series | None:
    """Commits, records and bytes for each bucket of time; None without commits."""
    if not entries:
        return None
    times_ms = np.array([each.timestamp_ms for each in entries], dtype=np.int64)
    width_ms = _width_ms(int(times_ms.max() - times_ms.min()))
    end_ms = int(times_ms.max()) // width_ms * width_ms + width_ms
    start_ms = min(int(times_ms.min()) // width_ms * width_ms, end_ms - _BUCKETS_MIN * width_ms)
    buckets = (end_ms - start_ms) // width_ms
    slots = ((times_ms - start_ms) // width_ms).tolist()
    topics = _largest_topics(entries)
    rows = {name: row for row, name in enumerate(topics)}
    commits = np.bincount(slots, minlength=buckets)
    records = np.zeros((len(topics), buckets), dtype=np.int64)
    sizes = np.zeros((len(topics), buckets), dtype=np.int64)
    for slot, entry in zip(slots, entries, strict=True):
        for each in entry.partitions:
            row = rows.get(each.topic, len(topics) - 1)
            records[row, slot] += each.records
            sizes[row, slot] += each.bytes
    return Series(
        start_ms=start_ms,
        bucket_ms=width_ms,
        buckets=buckets,
        commits=tuple(commits.tolist()),
        topics=topics,
        records=tuple(map(tuple, records.tolist())),
        bytes=tuple(map(tuple, sizes.tolist())),
    )


def _width_ms(span_ms: int) -> int:
    """The smallest usual width that divides the span into at most _BUCKETS_MAX buckets."""
    fitting = (width for width in _WIDTHS_MS if span_ms // width + 2 <= _BUCKETS_MAX)
    return next(fitting, -(-span_ms // (_BUCKETS_MAX - 2) or 1))


def _largest_topics(entries: Iterable[HistoryEntry]) -> tuple[str, ...]:
    """The topics with the most bytes written, followed by OTHER_TOPICS if there are more."""
    total: Counter[str] = Counter()
    for entry in entries:
        for each in entry.partitions:
            total[each.topic] += each.bytes
    names = tuple(name for name, _ in total.most_common())
    return names if len(names) <= _TOPICS_APART + 1 else (*names[:_TOPICS_APART], OTHER_TOPICS)


_ROWS_MAX: Final = 2_000
_FILES_MAX: Final = 2_000
_READER_VERSION: Final = 1
_VERSION = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")

#: Rows are ordered by this column: the time at which a run was done with a partition.
TIME_COLUMN: Final = "timestamp"


def read_runs(table: Path) -> tuple[Mapping[str, object], ...]:
    """The newest rows of the table at `table`, newest first. Raises LogDirError when it cannot be read."""
    log = table / "_delta_log"
    try:
        files = _live_files(log)
        rows = [row for name in files[-_FILES_MAX:] for row in _rows(table, name)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise LogDirError(f"{table} cannot be read as a Delta table: {error}") from error
    rows.sort(key=lambda row: str(row.get(TIME_COLUMN)), reverse=True)
    return tuple(rows[:_ROWS_MAX])


def _live_files(log: Path) -> list[str]:
    """Names of the data files of the newest version, in the order in which they were added."""
    names = sorted(each.name for each in log.iterdir())
    checkpoints = [match for name in names if (match := _CHECKPOINT.fullmatch(name))]
    first = int(checkpoints[-1][1]) + 1 if checkpoints else 0
    versions = [match for name in names if (match := _VERSION.fullmatch(name)) and int(match[1]) >= first]
    if not checkpoints and not versions:
        raise ValueError("no _delta_log/*.json in it")
    live: dict[str, None] = {}
    if checkpoints:
        with os.fdopen(open_file(log / checkpoints[-1][0]), "rb") as checkpoint:
            _apply(live, pq.read_table(checkpoint).to_pylist())
    for match in versions:
        with os.fdopen(open_file(log / match[0]), encoding="utf-8") as lines:
            _apply(live, (json.loads(line) for line in lines if line.strip()))
    return list(live)


def _apply(live: dict[str, None], actions: Iterable[Mapping[str, Any]]) -> None:
    for action in actions:
        if action.get("protocol") and action["protocol"]["minReaderVersion"] > _READER_VERSION:
            raise ValueError(f"it needs reader version {action['protocol']['minReaderVersion']}")
        if action.get("add"):
            live[action["add"]["path"]] = None
        if action.get("remove"):
            live.pop(action["remove"]["path"], None)


def _rows(table: Path, name: str) -> Iterator[dict[str, object]]:
    path = (table / urllib.parse.unquote(name)).resolve()
    if not path.is_relative_to(table.resolve()):
        raise ValueError(f"its file {name} is outside of it")
    if not path.is_file():
        raise ValueError(f"its file {name} is missing, or no regular file")
    # A partition column is stored only in the path, as text.
    inherited = dict(part.split("=", 1) for part in urllib.parse.unquote(name).split("/")[:-1] if "=" in part)
    for row in pq.read_table(path, partitioning=None).to_pylist():
        yield {**inherited, **row}
