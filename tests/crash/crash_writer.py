"""The writer of the crash tests: commits of records that tell their number, through a file system that may fail."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.root.write_transaction import CommitResult, WriteTransaction
from pyspark_kafkalog.storage.filesystem import FileSystem, FlushMode
from pyspark_kafkalog.storage.staging.staged_file import StagedFile, StagingTask
from pyspark_kafkalog.storage.staging.stager import stage_table

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

    @property
    def log_dir(self) -> LogDir:
        if self._log_dir is None:
            self._log_dir = LogDir.open_or_create(self.root, clock=lambda: NOW_MS, fs=self.fs)
        return self._log_dir

    def forget(self) -> None:
        """Open the root anew for what comes next."""
        self._log_dir = None

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
