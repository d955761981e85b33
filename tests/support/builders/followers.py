"""A leader root, and a root that follows it without a fetch loop: tests decide what is copied, and when."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from left_open import close_at_the_end

from builders.controlled import create_log_dir, open_log_dir
from builders.leader_writers import T0, Served, append, batch, mark, marker
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.messages.metadata_records import PartitionChangeRecord
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.root.commit.changes import (
    FollowerAppend,
    FollowerChange,
    FollowerResult,
    PlanFollowerRecords,
    StartAt,
    Truncation,
    no_records,
)
from pyspark_kafkalog.root.native import NativeRoot, begin_following
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, FlushMode
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition

TOPIC = "a"
NOW_MS = T0 + 60_000
#: Many segments and index entries of little data.
SMALL = {"internal.segment.bytes": "1500", "index.interval.bytes": "300"}


@dataclass(frozen=True)
class StoredBatch:
    """A batch as a log has it."""

    data: bytes
    base_offset: int
    next_offset: int
    leader_epoch: int


def split_batches(data: bytes) -> list[StoredBatch]:
    """The batches of a log's bytes."""
    found = []
    for row in scan_batches(data, file="log").batches:
        at = int(row["position"])
        piece = data[at : at + int(row["size_bytes"])]
        next_offset = int(row["last_offset"]) + 1
        found.append(StoredBatch(piece, int(row["base_offset"]), next_offset, int(row["leader_epoch"])))
    return found


def log_bytes(directory: Path) -> bytes:
    """All `.log` files of a partition's directory."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def files_of(directory: Path) -> dict[str, bytes]:
    """The files of a partition that a broker knows, but for the topic's id and locks."""
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if not path.name.startswith(".") and path.name != "partition.metadata"
    }


class LeaderRoot(Served):
    """A root on a file system that producers write to, a new one unless it exists; `write` makes what they send."""

    def __init__(
        self, path: Path, rng: random.Random, *, partitions: int = 1, configs: Mapping[str, str] = SMALL
    ) -> None:
        if not path.exists():
            create_log_dir(path, clock=lambda: NOW_MS).create_topic(TOPIC, partitions=partitions, configs=configs)
        super().__init__(path)
        self.path = path
        self.partitions = partitions
        self._rng = rng
        self._sequences: dict[tuple[int, int], int] = {}
        self._open: set[tuple[int, int]] = set()
        self._written = 0

    def write(self, batches: int) -> None:
        """Append batches: plain, idempotent and transactional ones of several codecs and sizes, and markers."""
        for _ in range(batches):
            self._write_one()

    def _write_one(self) -> None:
        rng, partition = self._rng, self._rng.randrange(self.partitions)
        producer = rng.randrange(1, 6), partition
        self._written += 1
        values = [b"%d" % self._written * rng.choice((1, 1, 30)) for _ in range(rng.randint(1, 4))]
        at_ms = T0 + self._written * rng.choice((1, 7, 0))
        kind = rng.random()
        if producer[0] >= 4:
            if producer in self._open and kind < 0.4:
                data = marker(1000 + producer[0], 0, is_commit=kind < 0.2, at_ms=at_ms)
                result = self.append(mark(data, TOPIC, partition))
                self._open.discard(producer)
                assert not isinstance(result, KafkalogError), result
                return
            self._open.add(producer)
        codec = rng.choice((CompressionType.NONE, CompressionType.LZ4, CompressionType.GZIP))
        sequence = self._sequences.get(producer, 0)
        of_producer = (1000 + producer[0], 0, sequence) if producer[0] > 1 else (-1, -1, -1)
        data = batch(values, codec=codec, at_ms=at_ms, producer=of_producer, is_transactional=producer[0] >= 4)
        result = self.append(append(data, TOPIC, partition))
        assert not isinstance(result, KafkalogError), result
        self._sequences[producer] = sequence + len(values)

    def restored(self, path: Path, rng: random.Random) -> LeaderRoot:
        """A copy of this root as it is now, with producers that go on by themselves."""
        shutil.copytree(self.path, path)
        made = LeaderRoot(path, rng, partitions=self.partitions)
        made._sequences, made._open, made._written = dict(self._sequences), set(self._open), self._written
        return made

    def elect(self) -> None:
        """Begin a new leader epoch in all partitions."""
        topic_id = self.log_dir.topic(TOPIC).topic_id
        self.root.commit(
            lambda image: [
                PartitionChangeRecord(partition_id=number, topic_id=topic_id, leader=1)
                for number in range(self.partitions)
            ],
            operation="elect",
        )

    def batches(self, partition: int = 0) -> list[StoredBatch]:
        """All batches of a partition, in order."""
        return split_batches(log_bytes(self.path / f"{TOPIC}-{partition}"))


class FollowerRoot:
    """A root that follows; opening it again takes over from the one before."""

    def __init__(
        self,
        path: Path | str | StoreAddress,
        *,
        flush: FlushMode = "os",
        fs: FileSystem = LOCAL,
        root: NativeRoot | None = None,
        topic: str = TOPIC,
    ) -> None:
        self.log_dir = open_log_dir(path, clock=lambda: NOW_MS, fs=fs) if root is None else LogDir(root)
        self.root = self.log_dir.root.native()
        self.topic = topic
        self.following_id = begin_following(self.root, leader="a:9092", cluster_id="the leader's", topics=".*")
        self.writer = self.root.follower(self.following_id, flush=flush)
        close_at_the_end(self.writer.close)

    @classmethod
    def create(
        cls, path: Path | str, *, partitions: int = 1, configs: Mapping[str, str] = SMALL, flush: FlushMode = "os"
    ) -> FollowerRoot:
        create_log_dir(path, clock=lambda: NOW_MS).create_topic(TOPIC, partitions=partitions, configs=configs)
        return cls(path, flush=flush)

    def commit(self, *changes: FollowerChange, records: PlanFollowerRecords = no_records) -> list[FollowerResult]:
        return self.writer.commit(changes, records)

    def state(self, partition: int = 0) -> LogState:
        return self.root.store.refresh().partition(self.topic, partition).state

    @property
    def topic_id(self) -> str:
        return self.root.store.refresh().topic(self.topic).topic_id

    def append(
        self,
        batches: Sequence[StoredBatch] | bytes,
        partition: int = 0,
        *,
        log_start_offset: int = -1,
        leader_epoch: int = -1,
        at: int | None = None,
    ) -> FollowerAppend:
        """The change that appends the batches at `at`, by default at the log end."""
        data = batches if isinstance(batches, bytes) else b"".join(each.data for each in batches)
        return FollowerAppend(
            topic_partition=TopicPartition(self.topic, partition),
            topic_id=self.topic_id,
            data=data,
            expected_end_offset=self.state(partition).log_end_offset if at is None else at,
            log_start_offset=log_start_offset,
            leader_epoch=leader_epoch,
        )

    def truncation(self, end_offset: int, partition: int = 0) -> Truncation:
        return Truncation(
            topic_partition=TopicPartition(self.topic, partition),
            topic_id=self.topic_id,
            expected_end_offset=self.state(partition).log_end_offset,
            end_offset=end_offset,
        )

    def start_at(self, start_offset: int, partition: int = 0) -> StartAt:
        return StartAt(
            topic_partition=TopicPartition(self.topic, partition),
            topic_id=self.topic_id,
            expected_end_offset=self.state(partition).log_end_offset,
            start_offset=start_offset,
        )

    def make(self, *changes: FollowerChange, records: PlanFollowerRecords = no_records) -> list[LogState]:
        """Commit changes none of which is refused."""
        results = self.commit(*changes, records=records)
        states = [each for each in results if isinstance(each, LogState)]
        assert len(states) == len(results), results
        return states

    def follow(self, leader: LeaderRoot, rng: random.Random) -> None:
        """Copy all that the leader has, in pieces of random sizes; partitions share commits."""
        waiting = {}
        for number in range(leader.partitions):
            end_offset = self.state(number).log_end_offset
            waiting[number] = [each for each in leader.batches(number) if each.base_offset >= end_offset]
        while any(waiting.values()):
            changes = []
            for number, batches in waiting.items():
                count = rng.choice((0, 1, 2, 5, 20))
                if batches and count:
                    changes.append(self.append(batches[:count], number))
                    del batches[:count]
            self.make(*changes)
        states = [leader.state(TOPIC, number) for number in range(leader.partitions)]
        self.make(
            *(
                self.append(b"", number, log_start_offset=state.log_start_offset, leader_epoch=state.leader_epoch)
                for number, state in enumerate(states)
            )
        )
