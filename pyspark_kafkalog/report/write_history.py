"""How much was written, and when: the newest commits of a native log directory, added up over time and by topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import numpy as np

from pyspark_kafkalog.metadata.history import HistoryEntry
from pyspark_kafkalog.report.facts import CommitFacts, Series, WriteHistory
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.units import SECOND_MS

#: Commits that are read, commits that are listed one by one, and topics with a series of their own.
COMMITS_MAX: Final = 5_000
_NEWEST_MAX: Final = 300
_TOPICS_APART: Final = 5
_BUCKETS_MAX: Final = 96
#: A short history is extended backwards with empty buckets to this many.
_BUCKETS_MIN: Final = 24
_MAINTENANCE: Final = ("retention", "delete records")
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
    return CommitFacts(
        offset=entry.offset,
        timestamp_ms=entry.timestamp_ms,
        operation=entry.operation,
        topics=entry.topics,
        records=entry.records,
        bytes=entry.bytes,
        transactional_id=entry.transactional_id,
        version=entry.version,
    )


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
