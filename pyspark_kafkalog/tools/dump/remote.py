"""What `dump-log` shows of logs that are not in files of its own: objects by URL, and batches by partition and offset.

Their bytes are copied to a scratch file without a name, in the system's directory for such files, which needs room for
one segment. Nothing else is written; the file is gone when the command ends, however it ends.

An object is shown as it is stored. Compressed and encrypted segments of brokers can only be shown by offset, since then
they are read as any reader does; so can batches that are not merged yet, with the offsets that the log gives them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import KafkalogError, OffsetOutOfRangeError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.store import ByteRange
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.extent import Extent, LocalFile
from pyspark_kafkalog.units import INT32_MAX, MIB

_COPIED_BYTES: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class StoredLog:
    """Batches from `base_offset` on: of the file `name`, or copied from there to the open file `fd`."""

    name: str
    base_offset: int
    fd: int | None


def object_copy(url: str) -> int:
    """A file descriptor to read a copy of the object. Raises KafkalogError, OSError; OSError if it is too large."""
    folder, _, key = url.rpartition("/")
    store = StoreAddress.parse(folder, {}).open()
    size_bytes = store.head(key).size_bytes
    if size_bytes > INT32_MAX:
        raise OSError(f"{url}: expected at most {INT32_MAX} bytes, found {size_bytes}")
    return _copy(url, size_bytes, lambda start, count: store.get_ranges(key, [ByteRange(start, count)])[0])


def log_at(log_dir: LogDir, topic_partition: TopicPartition, offset: int, *, max_bytes: int) -> StoredLog:
    """The segment with `offset`, or the group of runs; what is not a file is copied up to `max_bytes`.

    Raises UnknownTopicError, OffsetOutOfRangeError, DiskFormatError, ObjectStoreError, OSError.
    """
    from pyspark_kafkalog.storage.log.extent_search import search_from  # loads compiled code

    partition = log_dir.partition(topic_partition.topic, topic_partition.partition)
    start_offset, end_offset = partition.readable_start_offset, partition.high_watermark
    if not start_offset <= offset < end_offset:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {topic_partition} cannot be shown: expected one in [{start_offset}, {end_offset})"
        )
    extents = log_dir.reader(topic_partition.topic, topic_partition.partition).extents
    found = search_from(
        extents,
        offset,
        end_offset,
        lambda extent: _stored(extent, max_bytes),
        partition=topic_partition,
        high_watermark=end_offset,
    )
    assert found is not None, "an extent with the offset is stored somewhere"
    return found


def _stored(extent: Extent, max_bytes: int) -> StoredLog:
    """Raises FileNotFoundError if the extent is gone."""
    with contextlib.closing(extent.open()) as source:
        if isinstance(source, LocalFile):
            return StoredLog(source.name, extent.base_offset, None)
        size_bytes = min(source.size_bytes(), max(max_bytes, 0))
        return StoredLog(source.name, extent.base_offset, _copy(source.name, size_bytes, source.read))


def _copy(name: str, size_bytes: int, read: Callable[[int, int], Buffer]) -> int:
    """A file descriptor of a scratch file with the bytes that `read` returns for positions and sizes."""
    with tempfile.TemporaryFile(prefix="kafkalog-dump-") as file:
        position = 0
        while position < size_bytes:
            data = memoryview(read(position, min(_COPIED_BYTES, size_bytes - position)))
            if not len(data):
                raise ShortSourceError(f"{name} at byte {position}: expected {size_bytes} bytes, found no more")
            file.write(data)
            position += len(data)
        file.flush()
        return os.dup(file.fileno())


class ShortSourceError(KafkalogError):
    """An object ended before its size."""
