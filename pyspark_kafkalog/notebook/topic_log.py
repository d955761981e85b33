"""A topic for use from Python: the logs of its partitions, and all of their records.

    topic = log_dir["orders"]
    topic[0]                                        a partition's log
    topic["2024-01-15T10:00":]                      all partitions from then on
    topic.to_pandas(text=True)                      all records

A TopicLog keeps its set of partitions; to include partitions added later, get `log_dir["orders"]` again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, overload

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidOptionError, UnknownTopicError
from pyspark_kafkalog.notebook.partition_log import PartitionLog
from pyspark_kafkalog.notebook.points_in_time import PointInTime
from pyspark_kafkalog.notebook.records import Records
from pyspark_kafkalog.root.snapshot import TopicDescription
from pyspark_kafkalog.units import plural

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TopicLog(Records):
    """A topic's partitions, or a slice by time of each. Records come partition by partition, each in offset order."""

    root: Root
    name: str
    logs: tuple[PartitionLog, ...]

    @classmethod
    def open(cls, root: Root, name: str) -> TopicLog:
        """The whole topic. Raises UnknownTopicError, which lists the existing topics."""
        numbers = root.partition_numbers(name)
        return cls(root, name, tuple(PartitionLog(root, name, number) for number in numbers))

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions' numbers; a broker's directory may have only some of them."""
        return tuple(log.partition for log in self.logs)

    def describe(self) -> TopicDescription:
        """Id, configuration overrides and partitions."""
        return self.root.topic(self.name)

    def refresh(self) -> TopicLog:
        """Read new commits, for all objects of the same log directory."""
        self.root.refresh()
        return self

    def committed(self) -> TopicLog:
        """The same, read as read_committed: without aborted transactions, up to the last stable offsets."""
        return replace(self, logs=tuple(log.committed() for log in self.logs))

    @overload
    def __getitem__(self, item: int) -> PartitionLog: ...

    @overload
    def __getitem__(self, item: slice) -> TopicLog: ...

    def __getitem__(self, item: int | slice) -> PartitionLog | TopicLog:
        """A partition's log by its number, or a slice of all partitions by points in time.

        Raises UnknownTopicError if the partition does not exist.
        """
        if isinstance(item, slice):
            bounds = [each for each in (item.start, item.stop) if each is not None]
            if item.step is not None or not all(isinstance(each, str | date) for each in bounds):
                raise InvalidOptionError(
                    f"a topic is sliced by points in time; offsets are a partition's: "
                    f'log_dir["{self.name}", 0][100:200]'
                )
            return replace(self, logs=tuple(log[item] for log in self.logs))
        for log in self.logs:
            if log.partition == item:
                return log
        numbers = ", ".join(map(str, self.partitions[:20]))
        raise UnknownTopicError(f"topic {self.name!r} has no partition {item}; there are: {numbers}")

    def __len__(self) -> int:
        """The number of partitions in this directory; `count` is the number of records."""
        return len(self.logs)

    def _record_batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for log in self.logs:
            yield from log._record_batches(schema)

    def tail(
        self,
        start: PointInTime | None = None,
        *,
        timeout_seconds: float | None = None,
        stop: Callable[[], bool] | None = None,
        columns: Sequence[str] | None = None,
        text: bool = False,
        poll_seconds: float = 0.1,
    ) -> Iterator[pa.RecordBatch]:
        """Records of all partitions as they are committed: see `PartitionLog.tail`."""
        from pyspark_kafkalog.notebook.tail import follow

        return follow(
            self.logs,
            [log.tail_start(start) for log in self.logs],
            timeout_seconds=timeout_seconds,
            stop=stop,
            columns=columns,
            text=text,
            poll_seconds=poll_seconds,
        )

    def __repr__(self) -> str:
        return f"TopicLog({self.name}, {plural(len(self.logs), 'partition')})"

    def _repr_html_(self) -> str:
        from pyspark_kafkalog.notebook.log_html import topic_log_html

        return topic_log_html(self.root, self.name, self.logs)
