"""Checks compressed batches before they are submitted for a commit, in threads.

The records of a batch are decompressed to be checked. Of a usual batch that takes the committer less than a
millisecond; but a batch of a few kilobytes can have 256 MiB of content, and everybody's commits would wait for it.

    not costly      not compressed, or with little content for its size, to be stored as it is: the committer checks it
    quick check     content of some megabytes at most, no rewriting: a few at the same time
    check           content of 32 MiB at most: two at the same time
    long check      any other batch, as large as decompressed_limit_bytes allows: one at a time

Clients take turns: a principal, or a host of clients that are not authenticated, that sends many such batches waits for
itself.

How much content a batch can have is found out without decompressing it: by the sizes of the blocks in its frame, or for
gzip by its own. Nothing outlives the request: a crash loses what was checked and not committed, and the client sends it
again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record.codecs import lz4, snappy
from pyspark_kafkalog.record.codecs.codec import CODECS, BadCompressedDataError, CompressionType
from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, COMPRESSION_MASK, RECORD_BATCH_OVERHEAD_BYTES, BatchHeader
from pyspark_kafkalog.record.kernels.zstd import UNKNOWN, bounds_of
from pyspark_kafkalog.record.scan import as_bytes_array
from pyspark_kafkalog.root.commit.changes import LeaderAppend
from pyspark_kafkalog.server.context import ANONYMOUS, ServerContext, Session
from pyspark_kafkalog.storage.log.leader_append import REQUEST, PreparedBatches, prepare_batches
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
#: What a check decompresses that is not long.
_CHECK_BYTES_MAX: Final = 32 * MIB
_CHECKS_TOGETHER: Final = 2


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


class Slots:
    """A number of slots, which owners who wait get in turn. Used in the event loop's thread."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next owner comes first

    @contextlib.asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Have a slot while the block runs."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(owner, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            owner = next(iter(self._waiting))
            turns = self._waiting.pop(owner)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class BatchChecks:
    """The checks of one server. Used in the event loop's thread."""

    def __init__(self) -> None:
        self._quick = Slots(_QUICK_TOGETHER)
        self._checks = Slots(_CHECKS_TOGETHER)
        self._long = Slots(1)

    def is_needed(self, context: ServerContext, topic: str, batch: memoryview, header: BatchHeader) -> bool:
        """Whether a batch is costly, or is too large to be compressed again inside of a commit."""
        if is_costly(batch, header):
            return True
        codec = header.compression_bits
        if codec == CompressionType.NONE or codec not in CODECS or len(batch) <= _REWRITTEN_BYTES_MAX:
            return False
        config = _config(context, topic)
        return config is not None and config.stored_compression(CompressionType(codec)) != codec

    async def check(self, context: ServerContext, session: Session, append: LeaderAppend) -> LeaderAppend:
        """The append with its batch checked, or as it was if its topic does not exist. Raises KafkalogError."""
        owner = session.host if session.principal == ANONYMOUS else session.principal
        if append.topic_partition.topic not in context.image().topics:
            return append
        content_max = max(_QUICK_BYTES_MAX, _QUICK_RATIO_MAX * len(append.data))
        async with self._quick.of(owner):
            prepared = await context.run(partial(_prepared, context, append, content_max))
        if prepared is None:
            async with self._checks.of(owner):
                prepared = await context.run(partial(_prepared_if_small, context, append))
        if prepared is None:
            async with self._long.of(owner):
                prepared = await context.run(partial(_prepared, context, append, None))
        return append if prepared is None else replace(append, prepared=prepared)


def _config(context: ServerContext, topic: str) -> LogConfig | None:
    """The configuration of a topic; None if there is no such topic."""
    image = context.image()
    found = image.topics.get(topic)
    return None if found is None else context.root.native().configs.of(image, found)


def _prepared_if_small(context: ServerContext, append: LeaderAppend) -> PreparedBatches | None:
    """The batch, also rewritten; None if it has too much content, or is damaged."""
    batch = as_bytes_array(append.data)
    codec = int(batch[ATTRIBUTES_AT + 1]) & COMPRESSION_MASK
    try:
        CODECS[CompressionType(codec)].decompress(
            batch[RECORD_BATCH_OVERHEAD_BYTES:], file=REQUEST, file_position=0, max_bytes=_CHECK_BYTES_MAX
        )
    except CorruptRecordError:
        return None
    return _prepared(context, append, None)


def _prepared(context: ServerContext, append: LeaderAppend, content_max: int | None) -> PreparedBatches | None:
    config = _config(context, append.topic_partition.topic)
    if config is None:
        return None
    return prepare_batches(append.data, config, now_ms=context.clock(), decompressed_max_bytes=content_max)
