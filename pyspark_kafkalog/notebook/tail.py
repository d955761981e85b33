"""Follows logs: yields records as they are committed.

A poll is cheap: in a native log directory it costs one failed open and one stat, in a broker's directory some stats
(the checkpoint of high watermarks, the partitions' directories and active segments). The root is read again only if
there is something new.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.notebook.records import LogRange, schema_of
from pyspark_kafkalog.storage.artefacts.checkpoint_file import REPLICATION_OFFSET_CHECKPOINT
from pyspark_kafkalog.storage.names import LOG_SUFFIX, segment_file

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root


def follow(
    logs: Sequence[LogRange],
    start_offsets: Sequence[int],
    *,
    timeout_seconds: float | None,
    stop: Callable[[], bool] | None,
    columns: Sequence[str] | None,
    text: bool,
    poll_seconds: float,
) -> Iterator[pa.RecordBatch]:
    """The records of each log from its start offset on: see `PartitionLog.tail`. Raises InvalidOptionError at once."""
    schema_of(columns)
    return _follow(
        list(logs), list(start_offsets), timeout_seconds, stop or (lambda: False), columns, text, poll_seconds
    )


def _follow(
    logs: list[LogRange],
    positions: list[int],
    timeout_seconds: float | None,
    stop: Callable[[], bool],
    columns: Sequence[str] | None,
    text: bool,
    poll_seconds: float,
) -> Iterator[pa.RecordBatch]:
    news = _News(logs)
    last_seen = time.monotonic()
    while True:
        for number, log in enumerate(logs):
            _check_not_gone(log, positions[number])
            end = log.end_offset
            if end <= positions[number]:
                continue
            for batch in log.between(positions[number], end).batches_of_records(columns, text=text):
                yield batch
                last_seen = time.monotonic()
                if stop():
                    return
            positions[number] = end
        is_done = all(log.fixed_end_offset == at for log, at in zip(logs, positions, strict=True))
        if is_done:
            return
        while not news.take():
            is_late = timeout_seconds is not None and time.monotonic() - last_seen >= timeout_seconds
            if is_late or stop():
                return
            time.sleep(poll_seconds)


def _check_not_gone(log: LogRange, position: int) -> None:
    found = log.describe()
    if not found.log_start_offset <= position <= found.high_watermark:
        raise OffsetOutOfRangeError(
            f"offset {position} of {log.name}, which is next, is not in [{found.log_start_offset}, "
            f"{found.high_watermark}] any more: retention deleted it, or the topic was re-created"
        )


class _News:
    """Detects new commits, and then refreshes the root."""

    def __init__(self, logs: Sequence[LogRange]) -> None:
        self._root: Root = logs[0].root
        self._logs = logs
        self._seen = self._stamp()

    def take(self) -> bool:
        """Whether there are new commits since the last call."""
        if not self._root.is_broker_directory:
            self._root.refresh()
        now = self._stamp()
        if now == self._seen:
            return False
        if self._root.is_broker_directory:
            self._root.refresh()
            now = self._stamp()  # partitions may have rolled
        self._seen = now
        return True

    def _stamp(self) -> object:
        if not self._root.is_broker_directory:
            return self._root.version
        paths = [self._root.path / REPLICATION_OFFSET_CHECKPOINT]
        for log in self._logs:
            found = log.describe()
            paths += [found.directory, segment_file(found.directory, max(found.active_base_offset, 0), LOG_SUFFIX)]
        return [_file_stamp(path) for path in paths]


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
