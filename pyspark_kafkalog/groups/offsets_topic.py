"""Writing to `__consumer_offsets`: created by the first commit, each change of a group one append and one commit.

Batches are encoded without the compiled encoder: there are few records in a change, and it would take a second and
50 MB to load it, in the planner of a streaming query too, which commits its progress here.

Who changes groups holds the lock of their partition, so that what a change was made from is still so when it is
appended: a group that is deleted beside a commit is gone as a whole, or there with all that was committed.

A crash leaves a whole change or none, as with any append; one between creating the topic and the append leaves the
topic empty.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from pyspark_kafkalog.errors import TopicExistsError
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, group_partition
from pyspark_kafkalog.metadata.root_lock import acquire_flock
from pyspark_kafkalog.record.header import BATCH_DTYPE, CompressionType, TimestampType, parse_header
from pyspark_kafkalog.record.plain import Record, encode_batch
from pyspark_kafkalog.storage.flush_mode import FlushMode, flushing_file_system
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staging import StagedFileWriter, discard_staged

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir
    from pyspark_kafkalog.storage.log_config import LogConfig

#: Bytes of keys and values in one batch; a usual commit is one batch.
_BATCH_BYTES: Final = 256 << 10
#: In the partition's directory; Kafka passes over it.
_LOCK_FILE: Final = ".group-lock"

_Records = Mapping[bytes, "bytes | None"]


@contextlib.contextmanager
def group_lock(log_dir: LogDir, group: str) -> Iterator[None]:
    """Keep others from changing the group, and see what they have changed, for the block; who only reads needs it not.

    Raises LogDirError when another holder keeps it too long.
    """
    root = log_dir.own_root()
    path = log_dir.path / str(_partition_of(group, _ensure_topic(log_dir))) / _LOCK_FILE
    try:
        fd = root.fs.open(path, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:  # who created the topic was killed before it made the directories
        root.ensure_topic(OFFSETS_TOPIC)
        fd = root.fs.open(path, os.O_RDWR | os.O_CREAT)
    try:
        acquire_flock(fd, path)
        try:
            log_dir.refresh()
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        with contextlib.suppress(OSError):
            root.fs.close(fd)


def append_records(log_dir: LogDir, group: str, records: _Records, *, flush: FlushMode = "fsync") -> None:
    """Append a group's records, value by key, None for a tombstone; all of them become visible at once.

    The caller holds the group's lock.
    """
    if not records:
        return
    root = log_dir.own_root()
    fs = flushing_file_system(root.fs, flush)
    topic_partition = _partition_of(group, _ensure_topic(log_dir))
    writer = StagedFileWriter(log_dir.path, topic_partition, write_id=uuid.uuid4().hex, task=0, fs=fs)
    try:
        codec = CompressionType(root.broker_config().offsets_topic_compression_codec)
        for batch in _encode(records, log_dir.log_config(OFFSETS_TOPIC), codec, now_ms=root.clock()):
            _append(writer, batch)
        staged = [writer.finish()]
    except BaseException:
        writer.discard()
        raise
    try:
        log_dir.commit_staged(staged, flush=flush)
    except BaseException:
        discard_staged(log_dir.path, staged, fs)
        raise


def _partition_of(group: str, partitions_count: int) -> TopicPartition:
    return TopicPartition(OFFSETS_TOPIC, group_partition(group, partitions_count))


def _ensure_topic(log_dir: LogDir) -> int:
    """The number of partitions of the topic, made with Kafka's settings for it where it is not there."""
    if OFFSETS_TOPIC not in log_dir.topics():
        config = log_dir.own_root().broker_config()
        with contextlib.suppress(TopicExistsError):  # another process made it meanwhile
            log_dir.create_topic(
                OFFSETS_TOPIC,
                config.offsets_topic_num_partitions,
                {
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                },
            )
        log_dir.refresh()
    return len(log_dir.topic(OFFSETS_TOPIC).partitions)


def _encode(records: _Records, config: LogConfig, codec: CompressionType, *, now_ms: int) -> Iterator[bytes]:
    """Batches with the records, by the topic's configuration as a leader goes by it."""
    if not config.keeps_producer_compression:
        codec = CompressionType[config.compression_type.replace("uncompressed", "none").upper()]
    timestamp_type = config.message_timestamp_type
    offset = 0
    for together in _in_batches(records.items()):
        yield encode_batch(
            [
                Record(offset=offset + at, timestamp_ms=now_ms, key=key, value=value)
                for at, (key, value) in enumerate(together)
            ],
            compression=codec,
            timestamp_type=timestamp_type,
            max_timestamp_ms=now_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else None,
        )
        offset += len(together)


def _in_batches(records: Iterable[tuple[bytes, bytes | None]]) -> Iterator[list[tuple[bytes, bytes | None]]]:
    together: list[tuple[bytes, bytes | None]] = []
    size_bytes = 0
    for key, value in records:
        together.append((key, value))
        size_bytes += len(key) + len(value or b"")
        if size_bytes >= _BATCH_BYTES:
            yield together
            together, size_bytes = [], 0
    if together:
        yield together


def _append(writer: StagedFileWriter, batch: bytes) -> None:
    header = parse_header(batch, 0, file=OFFSETS_TOPIC, file_position=0)
    table = np.zeros(1, dtype=BATCH_DTYPE)
    for name in table.dtype.names or ():
        if name != "position":
            table[name] = getattr(header, name)
    writer.append(batch, table)
