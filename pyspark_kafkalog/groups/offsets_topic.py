"""Writes to `__consumer_offsets`. The first commit creates the topic; each change of a group is one append and commit.

Batches are encoded without the compiled encoder: a change has few records, and loading the encoder takes a second and
50 MB, also in the planner of a streaming query, which commits its progress here.

A writer holds the lock of the group's partition from reading the group's state to appending the change. A deletion and
a concurrent commit therefore leave the group either deleted as a whole or with all offsets of the commit.

A crash leaves a whole change or none of it, as with any append. A crash between creating the topic and the append
leaves the topic empty.
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
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.header import BATCH_DTYPE, TimestampType, parse_header
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.filesystem import FlushMode, flushing_file_system
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staging.staged_file import StagedFileWriter, discard_staged

if TYPE_CHECKING:
    from pyspark_kafkalog.config.log_config import LogConfig
    from pyspark_kafkalog.root.protocol import Root

#: Bytes of keys and values in one batch; a typical commit is one batch.
_BATCH_BYTES: Final = 256 << 10
#: Name of the lock file in the partition's directory; Kafka ignores it.
_LOCK_FILE: Final = ".group-lock"

_Records = Mapping[bytes, "bytes | None"]


@contextlib.contextmanager
def group_lock(root: Root, group: str) -> Iterator[None]:
    """Lock the group against changes for the block, and refresh the root. Readers do not need the lock.

    Raises LogDirError if another process holds the lock for too long.
    """
    native = root.native()
    path = root.path / str(_partition_of(group, _ensure_topic(root))) / _LOCK_FILE
    try:
        fd = native.fs.open(path, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:  # the topic's creator was killed before it created the directories
        native.ensure_topic(OFFSETS_TOPIC)
        fd = native.fs.open(path, os.O_RDWR | os.O_CREAT)
    try:
        acquire_flock(fd, path)
        try:
            root.refresh()
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        with contextlib.suppress(OSError):
            native.fs.close(fd)


def append_records(root: Root, group: str, records: _Records, *, flush: FlushMode = "fsync") -> None:
    """Append a group's records, value by key, None for a tombstone. All become visible at once.

    The caller holds the group's lock.
    """
    if not records:
        return
    native = root.native()
    fs = flushing_file_system(native.fs, flush)
    topic_partition = _partition_of(group, _ensure_topic(root))
    writer = StagedFileWriter(root.path, topic_partition, write_id=uuid.uuid4().hex, task=0, fs=fs)
    try:
        codec = CompressionType(native.broker_config().offsets_topic_compression_codec)
        for batch in _encode(records, root.log_config(OFFSETS_TOPIC), codec, now_ms=native.clock()):
            _append(writer, batch)
        staged = [writer.finish()]
    except BaseException:
        writer.discard()
        raise
    try:
        root.commit_staged(staged, flush=flush)
    except BaseException:
        discard_staged(root.path, staged, fs)
        raise


def _partition_of(group: str, partitions_count: int) -> TopicPartition:
    return TopicPartition(OFFSETS_TOPIC, group_partition(group, partitions_count))


def _ensure_topic(root: Root) -> int:
    """The topic's number of partitions; creates the topic, with Kafka's settings for it, if it does not exist."""
    if OFFSETS_TOPIC not in root.topics():
        config = root.native().broker_config()
        with contextlib.suppress(TopicExistsError):  # another process created it meanwhile
            root.create_topic(
                OFFSETS_TOPIC,
                config.offsets_topic_num_partitions,
                {
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                },
            )
        root.refresh()
    return len(root.topic(OFFSETS_TOPIC).partitions)


def _encode(records: _Records, config: LogConfig, codec: CompressionType, *, now_ms: int) -> Iterator[bytes]:
    """The records as batches, encoded as a leader would by the topic's configuration."""
    codec = config.stored_compression(codec)
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
