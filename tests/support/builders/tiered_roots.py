"""Roots with a tiered topic of small segments at a time that tests set, and the segments that are put for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from fakes.faulty_store import VirtualClock

from builders.controlled import create_log_dir
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.root.file_root import FileRoot, on_file_system
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing, list_base_offsets
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, segment_file
from pyspark_kafkalog.tiered.objects import SegmentStore
from pyspark_kafkalog.tiered.remote_storage import OwnStorage
from pyspark_kafkalog.tiered.segments import TopicIdPartition

TOPIC: Final = "orders"
SMALL_SEGMENTS: Final = {"internal.segment.bytes": "2000", "index.interval.bytes": "300"}


def tiered_root(
    path: Path,
    location: Path | str,
    *,
    layout: str = "aiven",
    partitions: int = 1,
    clock: Callable[[], int] = time_ms,
    **configs: str,
) -> LogDir:
    """A root at `path` that tiers to `location`, with the topic orders; `configs` with `_` for `.`."""
    log_dir = create_log_dir(path, clock=clock)
    log_dir.alter_broker_configs(
        add={
            "rsm.config.location": str(location),
            "rsm.config.layout": layout,
            "remote.log.storage.system.enable": "true",
        }
    )
    topic_configs = {name.replace("_", "."): value for name, value in configs.items()}
    log_dir.create_topic(
        TOPIC, partitions=partitions, configs={**SMALL_SEGMENTS, "remote.storage.enable": "true", **topic_configs}
    )
    return log_dir


def append_rounds(log_dir: LogDir, count: int, *, partition: int = 0, records: int = 20, topic: str = TOPIC) -> None:
    """`count` commits of `records` records of some 40 bytes each."""
    log_dir.refresh()
    end = log_dir.partition(topic, partition).high_watermark
    for number in range(count):
        first = end + number * records
        values = [f"record {first + each} of partition {partition}" for each in range(records)]
        log_dir.append(topic, pa.table({"value": values}), partition=partition, flush="os")


def file_root(log_dir: LogDir) -> FileRoot:
    return on_file_system(log_dir.root)


def remote_bytes(log_dir: LogDir, of: TopicPartition) -> bytes:
    """The `.log`s of all segments in remote storage, one after the other."""
    root = file_root(log_dir)
    storage, image = root.remote_storage, root.store.refresh()
    assert storage is not None
    found = []
    for segment in image.partition(of.topic, of.partition).segments:
        id_partition = TopicIdPartition(of.topic, image.topic(of.topic).topic_id, of.partition)
        with contextlib.closing(storage.extent(id_partition, segment).open()) as source:
            found.append(bytes(source.read(0, segment.size_bytes)))
    return b"".join(found)


def log_bytes(log_dir: LogDir, of: TopicPartition, end_offset: int) -> bytes:
    """The `.log`s of the local segments below `end_offset`, one after the other."""
    directory = file_root(log_dir).path / str(of)
    bases = [each for each in PartitionListing.read(directory).base_offsets if each < end_offset]
    return b"".join(segment_file(directory, each, LOG_SUFFIX).read_bytes() for each in bases)


def no_lock(*args: object, **named: object) -> contextlib.nullcontext[bool]:
    """Stands for partition_lock, so that two runs work on one partition at once."""
    return contextlib.nullcontext(True)


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
