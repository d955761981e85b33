"""The stream reader without Spark: a root to read, readers of it, and what Spark does with one from batch to batch."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.spark.data_source import KafkalogDataSource, read_schema
from pyspark_kafkalog.spark.stream.reader import KafkalogStreamReader

Offsets = dict[str, dict[str, int]]
COLUMNS = ("topic", "partition", "offset")


def stream(root: Path, columns: Sequence[str] = COLUMNS, **options: object) -> KafkalogStreamReader:
    source = KafkalogDataSource({"path": str(root), **{name: str(value) for name, value in options.items()}})
    made = source.streamReader(StructType([read_schema(include_headers=True)[name] for name in columns]))
    assert isinstance(made, KafkalogStreamReader)
    return made


def plain(offsets: str | Offsets) -> Offsets:
    """The offsets alone, without the ids of the log directory and the topics that they are of."""
    given: Offsets = json.loads(offsets) if isinstance(offsets, str) else offsets
    return {topic: partitions for topic, partitions in given.items() if ":" not in topic}


class Query:
    """What Spark does with a reader: offsets to a checkpoint first, then the batch, then the next."""

    def __init__(self, make: Callable[[], KafkalogStreamReader]) -> None:
        self._make = make
        self.offsets: list[str] = []  # the checkpoint's offset log
        self.rows: list[list[tuple[str, int, int]]] = []
        self._is_committed = True
        self.restart()

    def restart(self, *, available_now: bool = False) -> None:
        """As after a kill: whatever the reader knew is gone."""
        self.reader = self._make()
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def _start(self, number: int) -> Offsets:
        start: Offsets = json.loads(self.offsets[number - 1]) if number else self.reader.initialOffset()
        return start

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Write the next end to the checkpoint; False when it is the start again, which Spark makes no batch of."""
        limit = limit if limit is not None else self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(self._start(len(self.offsets)), limit))
        if self.offsets and end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def read(self) -> list[tuple[str, int, int]]:
        """The rows of the last planned batch, also again."""
        number = len(self.offsets) - 1
        planned = self.reader.partitions(self._start(number), json.loads(self.offsets[number]))
        rows = []
        for each in pickle.loads(pickle.dumps(list(planned))):
            for batch in pickle.loads(pickle.dumps(self._make())).read(each):
                rows.extend(tuple(row.values()) for row in batch.to_pylist())
        return rows

    def run(self, limit: ReadLimit | None = None) -> list[tuple[str, int, int]]:
        """All batches there are to make; the rows of all."""
        rows = []
        while self.plan(limit):
            batch = self.read()
            self.rows.append(batch)
            rows.extend(batch)
        return rows


def append(root: Path, topic: str, count: int, partition: int = 0) -> None:
    LogDir.open(root).append(topic, pa.table({"value": [b"x" * 50] * count}), partition=partition)


def rows_of(topic: str, partition: int, start: int, end: int) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for offset in range(start, end)]


def make_root(root: Path) -> Path:
    """Topic t: 100 and 20 records. Topic u: one empty partition."""
    log_dir = LogDir.create(root)
    log_dir.create_topic("t", partitions=2)
    log_dir.create_topic("u", partitions=1)
    append(log_dir.path, "t", 100)
    append(log_dir.path, "t", 20, 1)
    return root
