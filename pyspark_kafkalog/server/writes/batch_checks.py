"""Checks compressed batches before they are submitted for a commit, in threads.

The records of a batch are decompressed to be checked. Of a usual batch that takes the committer less than a
millisecond; but a batch of a few kilobytes can have 256 MiB of content, and everybody's commits would wait for it.

    not costly      not compressed, or with little content for its size, to be stored as it is: the committer checks it
    quick check     content of some megabytes at most, no rewriting: a few at the same time
    long check      any other batch, as large as decompressed_limit_bytes allows: one at a time

How much content a batch can have is found out without decompressing it: by the sizes of the blocks in its frame, or for
gzip by its own. Nothing outlives the request: a crash loses what was checked and not committed, and the client sends it
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.record.codecs import lz4, snappy
from pyspark_kafkalog.record.codecs.codec import CODECS, BadCompressedDataError, CompressionType
from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, BatchHeader
from pyspark_kafkalog.record.kernels.zstd import UNKNOWN, bounds_of
from pyspark_kafkalog.record.scan import as_bytes_array
from pyspark_kafkalog.root.leader.units import LeaderAppend
from pyspark_kafkalog.server.context import ServerContext
from pyspark_kafkalog.storage.log.leader_append import PreparedBatches, prepare_batches
from pyspark_kafkalog.units import KIB, MIB

#: The content of a batch that is not costly: so much, or so many times its size. Whoever makes others wait for more
#: content has to send more.
_CONTENT_BYTES_MAX: Final = MIB
_RATIO_MAX: Final = 4
#: gzip makes a thousand bytes of one.
_GZIP_BYTES_MAX: Final = 2 * KIB
#: A frame with more blocks is not of that content, or of blocks that clients do not make.
_BLOCKS_MAX: Final = 256
#: Compressing a larger batch takes the committer too long.
_REWRITTEN_BYTES_MAX: Final = 16 * KIB
#: What a quick check decompresses: so much, or so many times the size of the batch.
_QUICK_BYTES_MAX: Final = 4 * MIB
_QUICK_RATIO_MAX: Final = 8
_QUICK_TOGETHER: Final = 4
_CONFIGS_KEPT: Final = 1024


def is_costly(batch: memoryview, header: BatchHeader) -> bool:
    """Whether the content of a batch takes too long to check inside of a commit. Takes some microseconds."""
    codec = header.compression_bits
    if codec == CompressionType.NONE:
        return False
    if codec == CompressionType.GZIP:
        return len(batch) > _GZIP_BYTES_MAX
    frame = as_bytes_array(batch)[RECORD_BATCH_OVERHEAD_BYTES:]
    if codec == CompressionType.ZSTD:
        content = int(bounds_of(np.array([address_of(frame)]), np.array([len(frame)]))[0])
        most = None if content == UNKNOWN else content
    elif codec in (CompressionType.LZ4, CompressionType.SNAPPY):
        content_max_bytes = lz4.content_max_bytes if codec == CompressionType.LZ4 else snappy.content_max_bytes
        try:
            most = content_max_bytes(frame, blocks_max=_BLOCKS_MAX)
        except BadCompressedDataError:
            most = 0  # the committer finds that out as soon
    else:
        most = 0  # no codec
    return most is None or most > max(_CONTENT_BYTES_MAX, _RATIO_MAX * len(batch))


@dataclass(frozen=True, slots=True)
class _TopicConfig:
    """A topic's configuration, and what it was parsed from."""

    of_topic: Mapping[str, str]
    of_brokers: Mapping[str, Mapping[str, str]]
    config: LogConfig


class BatchChecks:
    """The checks of one server. Used in the event loop's thread."""

    def __init__(self) -> None:
        self._quick = asyncio.Semaphore(_QUICK_TOGETHER)
        self._long = asyncio.Semaphore(1)
        self._configs: dict[str, _TopicConfig] = {}

    def is_needed(self, context: ServerContext, topic: str, batch: memoryview, header: BatchHeader) -> bool:
        """Whether a batch is costly, or is too large to be compressed again inside of a commit."""
        if is_costly(batch, header):
            return True
        codec = header.compression_bits
        if codec == CompressionType.NONE or codec not in CODECS or len(batch) <= _REWRITTEN_BYTES_MAX:
            return False
        config = self._config(context, topic)
        return config is not None and config.stored_compression(CompressionType(codec)) != codec

    def _config(self, context: ServerContext, topic: str) -> LogConfig | None:
        """The configuration of a topic, which is kept until it changes; None if there is no such topic."""
        image = context.image()
        found = image.topics.get(topic)
        if found is None:
            return None
        known = self._configs.get(topic)
        if known is None or known.of_topic is not found.configs or known.of_brokers is not image.broker_configs:
            config = context.broker_config().log_config(found.configs)
            known = _TopicConfig(found.configs, image.broker_configs, config)
            while len(self._configs) >= _CONFIGS_KEPT:
                del self._configs[next(iter(self._configs))]
            self._configs[topic] = known
        return known.config

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
