"""Follows partitions as records arrive: the consumer of console-consumer and perf-test.

    consumer = Consumer(log_dir, selects, ...)
    for chunk in consumer.poll():      the batches available now, partition by partition
        ...
        consumer.seen(chunk)           moves the position behind the records that were used

A position that is no longer in the log is reset according to `reset`, as with auto.offset.reset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.log_dir import IsolationLevel, LogDir
from pyspark_kafkalog.root.brokers.notices import remote_offsets
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, TopicPartition
from pyspark_kafkalog.tools.command import include_pattern
from pyspark_kafkalog.tools.running import first_since

if TYPE_CHECKING:
    import pyarrow as pa

Reset = Literal["earliest", "latest"]

#: The wait before the next poll: the first one, and the maximum. A poll of a native log directory costs one failed
#: open; in a broker's directory all partitions are opened again.
_FIRST_WAIT_S: Final = 0.01
_LONGEST_WAIT_S: Final = 0.2
_BROKERS_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one partition; `next_offset` is the position after all of them."""

    topic_partition: TopicPartition
    batch: pa.RecordBatch
    next_offset: int


def selection(topic: str | None, include: str | None) -> Callable[[str], bool]:
    """What `--topic` selects, or else `--include`, which never selects internal topics. Raises UsageError."""
    if topic is not None or include is None:
        return lambda name: name == topic
    pattern = include_pattern(include)
    return lambda name: name not in INTERNAL_TOPICS and pattern.matches(name)


class Consumer:
    """Reads the topics that `selects` names, or the partitions `only`; those created later are read from the start.

    `keep` filters each batch of records; positions pass the records that it drops. `start` gives starting positions,
    `since_ms` the time of the first record; without either, `reset` applies. `schema` is a subset of KAFKA_SCHEMA's
    columns that includes offset. Positions in remote storage raise OffsetOutOfRangeError; with `local_only` reading
    continues at the first offset in the directory.
    """

    def __init__(
        self,
        log_dir: LogDir,
        selects: Callable[[str], bool],
        *,
        schema: pa.Schema,
        reset: Reset,
        isolation: IsolationLevel,
        only: Collection[TopicPartition] = (),
        keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
        start: Mapping[TopicPartition, int] | None = None,
        local_only: bool = False,
        since_ms: int | None = None,
    ) -> None:
        self._log_dir = log_dir
        self._selects = selects
        self._schema = schema
        self._reset = reset
        self._is_committed = isolation == "read_committed"
        self._only = only
        self._keep = keep
        self._local_only = local_only
        self._start = dict(start or {})
        self.positions: dict[TopicPartition, int] = {}
        for name, found in self._partitions():
            if since_ms is not None:
                self._start[name] = self._first_since(found, since_ms)
            self.positions[name] = self._local(found, self._in_range(found, self._start.get(name, -1)))

    def poll(self) -> Iterator[Chunk]:
        """The batches available now. Raises the errors of LogReader.read."""
        for name, found in self._partitions():
            if name not in self.positions:
                self.positions[name] = self._local(found, found.log_start_offset)
            position = self.positions[name]
            end = found.readable_end("read_committed" if self._is_committed else "read_uncommitted")
            if not found.log_start_offset <= position <= found.high_watermark:
                position = self._in_range(found, position)
            position = self.positions[name] = self._local(found, position)
            if position < end:
                yield from self._read(name, position, end)

    def seen(self, chunk: Chunk, count: int | None = None) -> None:
        """Move the position behind the first `count` records of the chunk, or behind all of them."""
        if count is None or count >= len(chunk.batch):
            self.positions[chunk.topic_partition] = chunk.next_offset
        elif count:
            self.positions[chunk.topic_partition] = chunk.batch.column("offset")[count - 1].as_py() + 1

    def wait(self, until_s: float) -> None:
        """Wait until there may be new records, at most until the monotonic time `until_s`."""
        wait_s = _BROKERS_WAIT_S if self._log_dir.is_broker_directory else _FIRST_WAIT_S
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(wait_s, left_s))
            wait_s = min(wait_s * 1.5, max(_LONGEST_WAIT_S, wait_s))
            before = self._log_dir.version
            self._log_dir.refresh()
            if before is None or before != self._log_dir.version:
                return

    def _read(self, name: TopicPartition, start: int, end: int) -> Iterator[Chunk]:
        reader = self._log_dir.reader(*_pair(name))
        try:
            for batch in reader.read(start, end, schema=self._schema, committed=self._is_committed):
                if len(batch):
                    next_offset = batch.column("offset")[-1].as_py() + 1
                    yield Chunk(name, batch if self._keep is None else self._keep(batch), next_offset)
        except OffsetOutOfRangeError:
            # Retention deleted the records first. The next poll applies `reset`.
            self._log_dir.refresh()
            if self.positions[name] >= self._log_dir.partition(*_pair(name)).log_start_offset:
                raise
            return
        # The position also passes control records and gaps that compaction left at the end.
        if self.positions[name] >= start:
            self.positions[name] = max(self.positions[name], end)

    def _partitions(self) -> Iterator[tuple[TopicPartition, PartitionSnapshot]]:
        if self._only:
            for each in self._only:
                yield each, self._log_dir.partition(*_pair(each))
            return
        for topic in self._log_dir.topics():
            if self._selects(topic):
                for found in self._log_dir.topic(topic).partitions:
                    yield TopicPartition(topic, found.partition), found

    def _first_since(self, found: PartitionSnapshot, since_ms: int) -> int:
        """The offset of the first record with that timestamp or a later one; the end where there is none yet."""
        first = first_since(self._log_dir, found, since_ms, local_only=self._local_only)
        return found.high_watermark if first is None else first.offset

    def _local(self, found: PartitionSnapshot, position: int) -> int:
        """`position`; if it is in remote storage and `local_only` is set, the first offset in the directory."""
        if position >= found.readable_start_offset:
            return position
        if not self._local_only:
            raise OffsetOutOfRangeError(f"{remote_offsets(found)}; --local-only starts there")
        return found.readable_start_offset

    def _in_range(self, found: PartitionSnapshot, position: int) -> int:
        if found.log_start_offset <= position <= found.high_watermark:
            return position
        return found.log_start_offset if self._reset == "earliest" else found.high_watermark


def _pair(name: TopicPartition) -> tuple[str, int]:
    return name.topic, name.partition
