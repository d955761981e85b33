"""A root with remote storage at a time that tests set: a directory or a bucket in memory, and what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from faulty_store import VirtualClock
from tiered_roots import TOPIC, file_root

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.tier.copy import tier_segments
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.objects import SegmentStore
from pyspark_kafkalog.tiered.own_storage import OwnStorage
from pyspark_kafkalog.tiered.segments import TopicIdPartition

T0: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
ORDERS: Final = TopicPartition(TOPIC, 0)
#: Records of a commit.
ROWS: Final = 20


@dataclass(frozen=True)
class Tiered:
    """A root with the topic orders, whose remote storage is `objects`."""

    log_dir: LogDir
    clock: VirtualClock
    objects: SegmentStore

    def append(self, count: int, *, step_ms: int = HOUR_MS) -> None:
        """`count` commits of ROWS records, `step_ms` apart."""
        for _ in range(count):
            stamps = pa.array([self.clock.now_ms() * 1000] * ROWS, pa.timestamp("us", "UTC"))
            self.log_dir.append(TOPIC, pa.table({"value": [b"." * 60] * ROWS, "timestamp": stamps}), partition=0)
            self.clock.advance(step_ms)

    def tier(self) -> None:
        for report in tier_segments(self.log_dir.root):
            assert report.error is None

    def retain(self) -> PartitionReport:
        [report] = apply_retention(self.log_dir.root, topics=[TOPIC])
        assert report.error is None
        return report

    def alter(self, **configs: str) -> None:
        self.log_dir.alter_topic(TOPIC, add={name.replace("_", "."): value for name, value in configs.items()})

    @property
    def image(self) -> PartitionImage:
        return file_root(self.log_dir).store.refresh().partition(TOPIC, 0)

    @property
    def starts(self) -> tuple[int, int]:
        """The log start offset and that of the local log."""
        state = self.image.state
        return state.log_start_offset, state.local_log_start_offset

    @property
    def directory(self) -> Path:
        return file_root(self.log_dir).path / str(ORDERS)

    @property
    def local_bases(self) -> list[int]:
        return list_base_offsets(self.directory)

    @property
    def remote_bases(self) -> list[int]:
        return [each.base_offset for each in self.image.segments]

    @property
    def storage(self) -> OwnStorage:
        storage = file_root(self.log_dir).remote_storage
        assert storage is not None
        return storage

    @property
    def id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(TOPIC, file_root(self.log_dir).store.refresh().topic(TOPIC).topic_id, 0)

    @property
    def keys(self) -> list[str]:
        """The keys of all objects."""
        return [each.key for each in self.objects.list_objects("")]

    @property
    def named_keys(self) -> list[str]:
        """Those of `keys` that belong to segments of the image."""
        possible = {key for each in self.image.segments for key in self.storage.keys(self.id_partition, each)}
        return [each for each in self.keys if each in possible]

    def offsets(self) -> Sequence[int]:
        """The offsets of all records of the log."""
        self.log_dir.refresh()
        found: Sequence[int] = self.log_dir.read(TOPIC)["offset"].to_pylist()
        return found
