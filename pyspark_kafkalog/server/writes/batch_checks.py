"""Checks compressed batches before they are submitted for a commit, in threads.

The records of a batch are decompressed to be checked. Of a usual batch that takes the committer less than a
millisecond; but a batch of a few kilobytes can have 256 MiB of content, and everybody's commits would wait for it.

    not costly      not compressed, or small and of little content: the committer checks it
    quick check     content of some megabytes at most, no rewriting: a few at the same time
    long check      any other batch, as large as decompressed_limit_bytes allows: one at a time

Whether a batch is costly is decided by its size and, where a codec can make a lot of a few bytes, by what its frame
says. Nothing outlives the request: a crash loses what was checked and not committed, and the client sends it again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, BatchHeader
from pyspark_kafkalog.record.kernels.zstd import UNKNOWN, bounds_of
from pyspark_kafkalog.record.scan import as_bytes_array
from pyspark_kafkalog.root.leader.units import LeaderAppend
from pyspark_kafkalog.server.context import ServerContext
from pyspark_kafkalog.storage.log.leader_append import PreparedBatches, prepare_batches
from pyspark_kafkalog.units import KIB, MIB

#: Larger compressed batches are costly.
_SIZE_BYTES_MAX: Final = 16 * KIB
#: gzip makes a thousand bytes of one; lz4 at most 255, snappy 21.
_GZIP_BYTES_MAX: Final = 2 * KIB
#: The content of a small zstd batch that is not costly.
_ZSTD_CONTENT_BYTES_MAX: Final = MIB
#: What a quick check decompresses: so much, or so many times the size of the batch.
_QUICK_BYTES_MAX: Final = 4 * MIB
_QUICK_RATIO_MAX: Final = 8
_QUICK_TOGETHER: Final = 4


def is_costly(batch: memoryview, header: BatchHeader) -> bool:
    """Whether a batch may take too long to check inside of a commit. Takes some microseconds."""
    codec = header.compression_bits
    if codec == CompressionType.NONE:
        return False
    if len(batch) > _SIZE_BYTES_MAX or (codec == CompressionType.GZIP and len(batch) > _GZIP_BYTES_MAX):
        return True
    return codec == CompressionType.ZSTD and _zstd_content_bytes(batch) > _ZSTD_CONTENT_BYTES_MAX


def _zstd_content_bytes(batch: memoryview) -> int:
    """A bound of the content's size; a very large one if there is none."""
    frame = as_bytes_array(batch)[RECORD_BATCH_OVERHEAD_BYTES:]
    bound = int(bounds_of(np.array([address_of(frame)]), np.array([len(frame)]))[0])
    return 1 << 62 if bound == UNKNOWN else bound


class BatchChecks:
    """The checks of one server. Used in the event loop's thread."""

    def __init__(self) -> None:
        self._quick = asyncio.Semaphore(_QUICK_TOGETHER)
        self._long = asyncio.Semaphore(1)

    async def check(self, context: ServerContext, append: LeaderAppend) -> LeaderAppend:
        """The append with its batch checked, or as it was if its topic does not exist. Raises KafkalogError."""
        if append.topic_partition.topic not in context.image().topics:
            return append
        content_max = max(_QUICK_BYTES_MAX, _QUICK_RATIO_MAX * len(append.data))
        async with self._quick:
            prepared = await context.run(partial(_prepared, context, append, content_max))
        if prepared is None:
            async with self._long:
                prepared = await context.run(partial(_prepared, context, append, None))
        return append if prepared is None else replace(append, prepared=prepared)


def _prepared(context: ServerContext, append: LeaderAppend, content_max: int | None) -> PreparedBatches | None:
    topic = context.image().topics.get(append.topic_partition.topic)
    if topic is None:
        return None
    config = context.broker_config().log_config(topic.configs)
    return prepare_batches(append.data, config, now_ms=context.clock(), decompressed_max_bytes=content_max)
