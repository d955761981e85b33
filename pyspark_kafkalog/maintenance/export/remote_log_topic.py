"""Writes the partitions of `__remote_log_metadata` of a new broker: what of its topics is in remote storage.

    <target>/
      __remote_log_metadata-0/ … -49/     as many as the broker's own setting says, most of them empty
        00000000000000000000.log          two records for each segment, in the order of the partitions' offsets

A crash leaves partitions of an unfinished copy, which the next export removes (file_copy.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.export.file_copy import ExportedPartition
from pyspark_kafkalog.metadata.image import PartitionImage, TopicImage
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.artefacts.marker_files import write_topic_id
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import PARTITION_METADATA, TopicPartition, partition_path
from pyspark_kafkalog.tiered.metadata_topic import METADATA_TOPIC_CONFIGS, copied_records, metadata_partition
from pyspark_kafkalog.tiered.remote_log_metadata import REMOTE_LOG_METADATA_TOPIC
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

_LEADER_EPOCH: Final = 0
_BATCH_BYTES_MAX: Final = 256 << 10


def write_remote_log_topic(
    target: Path,
    tiered: Mapping[TopicIdPartition, Sequence[RemoteSegment]],
    *,
    topic_id: str,
    partitions_count: int,
    broker_id: int,
    clock: Callable[[], int],
    fs: FileSystem,
) -> tuple[TopicImage, list[ExportedPartition]]:
    """Make the topic's partition directories in `target`, durably; the topic, and its partitions' offsets."""
    values: dict[int, list[bytes]] = defaultdict(list)
    now_ms = clock()
    for of, segments in sorted(tiered.items()):
        number = metadata_partition(of, partitions_count)
        for segment in segments:
            values[number] += copied_records(of, segment, broker_id=broker_id, now_ms=now_ms)
    partitions, exported = [], []
    for number in range(partitions_count):
        topic_partition = TopicPartition(REMOTE_LOG_METADATA_TOPIC, number)
        directory = partition_path(target, topic_partition)
        fs.mkdir(directory)
        write_topic_id(directory / PARTITION_METADATA, topic_id, fs=fs, durable=False)
        state = _write_log(directory, values[number], clock, fs)
        fs.fsync_dir(directory)
        partitions.append(PartitionImage(number, state))
        exported.append(
            ExportedPartition(topic_partition=topic_partition, log_start_offset=0, high_watermark=state.log_end_offset)
        )
    return TopicImage(REMOTE_LOG_METADATA_TOPIC, topic_id, tuple(partitions), METADATA_TOPIC_CONFIGS), exported


def _write_log(directory: Path, values: Sequence[bytes], clock: Callable[[], int], fs: FileSystem) -> LogState:
    config = LogConfig.from_properties(METADATA_TOPIC_CONFIGS)
    with UnifiedLog.open(directory, config, clean_shutdown=True, clock=clock, fs=fs) as log:
        for batch in _batches(values, clock()):
            log.append_as_coordinator(batch, leader_epoch=_LEADER_EPOCH)
        state = log.state()
        log.close()
    return state


def _batches(values: Iterable[bytes], now_ms: int) -> Iterator[bytes]:
    """Batches of at most _BATCH_BYTES_MAX bytes of values, or of one value."""
    waiting: list[bytes] = []
    for value in values:
        if waiting and sum(map(len, waiting)) + len(value) > _BATCH_BYTES_MAX:
            yield _batch(waiting, now_ms)
            waiting = []
        waiting.append(value)
    if waiting:
        yield _batch(waiting, now_ms)


def _batch(values: Sequence[bytes], now_ms: int) -> bytes:
    return encode_batch(
        [Record(offset=number, timestamp_ms=now_ms, key=None, value=value) for number, value in enumerate(values)]
    )
