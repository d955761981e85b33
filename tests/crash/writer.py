"""The writer of the crash tests: commits of records that tell their number, through a file system that may fail."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from builders.controlled import open_or_create_log_dir

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.record.partitioner import Partitioner
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.commit.changes import CommitUnit, FollowerChange, LeaderAppend
from pyspark_kafkalog.root.commit.committer import FollowerWriter, LeaderWriter
from pyspark_kafkalog.root.native import begin_following
from pyspark_kafkalog.root.writes import CommitResult, WriteTransaction
from pyspark_kafkalog.storage.filesystem import FileSystem, FlushMode
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask
from pyspark_kafkalog.storage.stager import Rows, Selected, TopicStager, stage_table

T0_MS: Final = 1_700_000_000_000
#: One time for everything, after that of any file made here, so that equal runs leave equal bytes.
NOW_MS: Final = time.time_ns() // 1_000_000 + 3_600_000

Place = tuple[str, int]


@dataclass
class Writer:
    """A process that writes to `root` through `fs`."""

    root: Path
    fs: FileSystem
    _log_dir: LogDir | None = field(default=None, init=False)
    _leaders: dict[FlushMode, LeaderWriter] = field(default_factory=dict, init=False)
    _followers: dict[FlushMode, FollowerWriter] = field(default_factory=dict, init=False)

    @property
    def log_dir(self) -> LogDir:
        if self._log_dir is None:
            self._log_dir = open_or_create_log_dir(self.root, clock=lambda: NOW_MS, fs=self.fs)
        return self._log_dir

    def forget(self) -> None:
        """Open the root anew for what comes next."""
        self.close_logs()
        self._log_dir = None

    def close_logs(self) -> None:
        """Close the files that the server's writer keeps open between commits, and those of a follower."""
        leaders, self._leaders = self._leaders, {}
        for leader in leaders.values():
            leader.close()
        followers, self._followers = self._followers, {}
        for follower in followers.values():
            follower.close()

    def follow(self, *changes: Callable[[Writer], FollowerChange | None], flush: FlushMode = "fsync") -> None:
        """As a follower does: commit the changes, made from what the root has now; those that are None are done."""
        root = self.log_dir.root.native()
        follower = self._followers.get(flush)
        if follower is None:
            following_id = begin_following(root, leader="leader", cluster_id="leader", topics=".*")
            follower = self._followers[flush] = root.follower(following_id, flush=flush)
        made = [change for change in (make(self) for make in changes) if change is not None]
        for result in follower.commit(made):
            if isinstance(result, KafkalogError):
                raise result

    def followed(self, place: Place) -> tuple[TopicPartition, str, LogState]:
        """A partition, its topic's id and the state of its log."""
        image = self.log_dir.root.native().store.refresh()
        of = TopicPartition(*place)
        return of, image.topic(of.topic).topic_id, image.partition(of.topic, of.partition).state

    def serve(self, ranges: Mapping[Place, range], *, flush: FlushMode = "fsync") -> None:
        """As a server does: commit a producer's batch of the records with these numbers to each partition.

        The numbers are the producer's sequences, so the same again changes nothing.
        """
        root = self.log_dir.root.native()
        leader = self._leaders.get(flush)
        if leader is None:
            leader = self._leaders[flush] = root.committer(flush=flush)
        appends = [
            LeaderAppend(topic_partition=TopicPartition(*place), data=batch(numbers))
            for place, numbers in ranges.items()
        ]
        units = [CommitUnit.of(*appends)]
        (result,) = leader.commit_at_once(units) or leader.commit(units)
        if isinstance(result, KafkalogError):
            raise result

    def write(
        self,
        ranges: Mapping[Place, range],
        *,
        batch_bytes: int = 150,
        transaction: WriteTransaction | None = None,
        flush: FlushMode = "fsync",
    ) -> CommitResult:
        """Commit records with the numbers of each range to its partition, all in one commit."""
        staged = self.stage(ranges, batch_bytes=batch_bytes)
        return self.log_dir.commit_staged(staged, transaction=transaction, flush=flush)

    def stage(self, ranges: Mapping[Place, range], *, batch_bytes: int = 150) -> list[StagedFile]:
        """As LogDir.append and the Spark sink do: the topic is there, directories and all, before its records are."""
        write_id = uuid.uuid4().hex
        for topic in {topic for topic, _ in ranges}:
            self.log_dir.ensure_topic(topic)
        return [
            staged
            for task, ((topic, partition), numbers) in enumerate(ranges.items())
            for staged in stage_table(
                StagingTask(root=self.root, write_id=write_id, task=task),
                topic,
                records(numbers),
                partitions_count=len(self.log_dir.topic(topic).partitions),
                partition=partition,
                config=self.log_dir.log_config(topic),
                asked_compression=None,
                batch_size_bytes=batch_bytes,
                clock_ms=lambda: NOW_MS,
                fs=self.fs,
            )
        ]

    def stage_as_task(self, task: StagingTask, *ranges: tuple[int, range]) -> list[StagedFile]:
        """As a task of the Spark sink: stage records of partitions of the topic a, one range after the other."""
        count = len(self.log_dir.ensure_topic("a").partitions)
        stager = TopicStager(
            task,
            "a",
            count,
            self.log_dir.log_config("a"),
            partitioner=Partitioner(count, turn_bytes=1),
            asked_compression=None,
            batch_size_bytes=300,
            clock_ms=lambda: NOW_MS,
            fs=self.fs,
        )
        try:
            for partition, numbers in ranges:
                table = records(numbers)
                columns = {each: table[each].combine_chunks() for each in table.column_names}
                given = np.full(len(numbers), partition, np.int32)
                stager.add([Selected(Rows(columns, NOW_MS).columns, None, given)])
            return stager.finish()
        except BaseException:
            stager.discard()
            raise


def batch(numbers: range, *, offset: int = 0, leader_epoch: int = 0) -> bytes:
    """A batch of the records with these numbers, of a producer whose sequences they are."""
    rows = records(numbers)
    return encode_batch(
        [
            Record(offset=offset + at, timestamp_ms=T0_MS + number, key=key, value=value)
            for at, (number, key, value) in enumerate(
                zip(numbers, rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
            )
        ],
        producer_id=77,
        producer_epoch=0,
        base_sequence=numbers[0],
        leader_epoch=leader_epoch,
    )


def records(numbers: Iterable[int]) -> pa.Table:
    """Records that tell their number, with a time each."""
    numbers = list(numbers)
    return pa.table(
        {
            "key": pa.array([None if number % 3 == 0 else b"k%d" % (number % 7) for number in numbers], pa.binary()),
            "value": pa.array([b"record %06d" % number for number in numbers], pa.binary()),
            "timestamp": pa.array([(T0_MS + number) * 1000 for number in numbers], pa.timestamp("us", "UTC")),
        }
    )
