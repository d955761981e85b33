"""Roots on a file system with a tiered topic of small segments, and the segments that are put for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.root.file_root import FileRoot, on_file_system
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, segment_file
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
    log_dir = LogDir.create(path, clock=clock)
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
