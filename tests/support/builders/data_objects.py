"""Data objects of a few partitions in a store in memory, and the same batches as a local segment: the twin."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.object_store.store import ByteRange, ObjectStore
from pyspark_kafkalog.record.header import BatchHeader, Buffer
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.names import TopicPartition, encode_uuid, segment_file
from pyspark_kafkalog.storage.objects.data_object import run_dtype
from pyspark_kafkalog.storage.objects.upload import WrittenObject
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask, TaskFiles

TOPIC_IDS = {"orders": encode_uuid(bytes(15) + b"\x07"), "returns": encode_uuid(bytes(15) + b"\x08")}
WRITE_ID = "0123456789abcdef0123456789abcdef"
T0 = 1_700_000_000_000


def batch(first_offset: int, timestamps_ms: Sequence[int], *, value_bytes: int = 8, leader_epoch: int = 0) -> bytes:
    """A batch whose records tell their timestamps and nothing of their place in the log."""
    records = [
        Record(offset=first_offset + at, timestamp_ms=ms, key=b"%d" % ms, value=b"v" * value_bytes)
        for at, ms in enumerate(timestamps_ms)
    ]
    return encode_batch(records, leader_epoch=leader_epoch)


@dataclass(frozen=True)
class Plan:
    """One staged file: topic, partition, and the timestamps of each batch's records."""

    topic_partition: TopicPartition
    batches: Sequence[Sequence[int]]
    value_bytes: int = 8


def stage(scratch: Path, plan: Plan, *, task: int = 0) -> list[StagedFile]:
    """The finished staged file below `scratch`; none without batches."""
    scratch.mkdir(parents=True, exist_ok=True)
    staging = StagingTask(root=scratch, write_id=WRITE_ID, task=task, is_scratch=True)
    files = TaskFiles(staging, plan.topic_partition.topic, flushing_file_system(LOCAL, "os"))
    partition = plan.topic_partition.partition
    for timestamps_ms in plan.batches:
        data = batch(files.next_offset(partition), timestamps_ms, value_bytes=plan.value_bytes)
        files.append(partition, data, scan_batches(data, file="staged").batches)
    return files.finish()


def some_batches(rng: random.Random, count: int, *, records_max: int = 4) -> list[list[int]]:
    return [[T0 + rng.randrange(10_000) for _ in range(rng.randint(1, records_max))] for _ in range(count)]


@dataclass
class Objects:
    """An `ObjectBytes` over a store: ids are numbers of the committed objects."""

    store: ObjectStore
    committed: list[WrittenObject] = field(default_factory=list)

    def name(self, object_id: int) -> str:
        return f"{self.store.url}/{self.committed[object_id].key or object_id}"

    def read(self, object_id: int, start: int, size_bytes: int) -> Buffer:
        found = self.committed[object_id]
        if found.inline_data is not None:
            return memoryview(found.inline_data)[start : start + size_bytes]
        return self.store.get_range(found.key, ByteRange(start, size_bytes))


@dataclass
class Log:
    """The log of one partition: its runs, and its batches as a local segment would hold them."""

    topic_partition: TopicPartition
    base_offset: int = 0
    rows: list[tuple[int, ...]] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)

    @property
    def end_offset(self) -> int:
        return self.rows[-1][1] if self.rows else self.base_offset

    @property
    def end_of_batches(self) -> int:
        """Where the twin ends, also after runs were merged."""
        return self.base_offset + sum(BatchHeader.unpack(each).last_offset_delta + 1 for each in self.batches)

    @property
    def runs(self) -> NDArray[np.void]:
        return np.array(self.rows, run_dtype())

    def append(self, objects: Objects, object_ids: Sequence[int], plans: Sequence[Plan], *, leader_epoch: int) -> None:
        """Commit the runs of the objects, which were made of `plans`."""
        own = (TOPIC_IDS[self.topic_partition.topic], self.topic_partition.partition)
        offset = self.end_offset
        for object_id in object_ids:
            for run in objects.committed[object_id].runs:
                if (run.topic_id, run.partition) == own:
                    end = self.end_offset
                    self.rows.append(
                        (
                            end,
                            end + run.offsets_count,
                            object_id,
                            run.position,
                            run.max_timestamp_ms,
                            run.size_bytes,
                            run.records_count,
                            run.batches_count,
                            leader_epoch,
                        )
                    )
        self.append_batches(offset, plans, leader_epoch=leader_epoch)

    def append_batches(self, offset: int, plans: Sequence[Plan], *, leader_epoch: int) -> None:
        """Append those of this partition to the twin, from `offset` on; they end where the runs end."""
        for plan in plans:
            if plan.topic_partition != self.topic_partition:
                continue
            for timestamps_ms in plan.batches:
                data = batch(offset, timestamps_ms, value_bytes=plan.value_bytes, leader_epoch=leader_epoch)
                self.batches.append(data)
                offset += len(timestamps_ms)
        assert offset == self.end_offset or not self.rows

    def write_twin(self, root: Path) -> Path:
        """The partition's directory below `root` with all batches in one segment."""
        directory = root / str(self.topic_partition)
        directory.mkdir(parents=True)
        segment_file(directory, self.base_offset, ".log").write_bytes(b"".join(self.batches))
        return directory
