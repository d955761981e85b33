"""The offset checkpoint files in the root of a log directory, one line `<topic> <partition> <offset>` per partition.

    recovery-point-offset-checkpoint   all records below it are flushed to disk: recovery starts there
    replication-offset-checkpoint      the high watermark: all records below it are committed
    log-start-offset-checkpoint        the log start offset, only if it is above the first segment's base offset
    cleaner-offset-checkpoint          the first offset that the cleaner has not cleaned

A crash leaves an old file: recovery points and high watermarks can only lag, which costs time, but no data. In a native
log directory the commit log decides, and these files are written only for brokers. Source of the rules:
OffsetCheckpointFile in org.apache.kafka.storage.internals.checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.storage.artefacts.checkpoint_file import parse_int, read_checkpoint, write_checkpoint
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.names import TopicPartition

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT: Final = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT: Final = "cleaner-offset-checkpoint"
CHECKPOINTS: Final = (
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)


def read_offset_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Offsets by partition; empty if the file does not exist. Raises CorruptIndexError, which names the bad line."""
    return dict(read_checkpoint(path, _parse_entry))


def write_offset_checkpoint(
    path: Path, offsets: Mapping[TopicPartition, int], *, fs: FileSystem = LOCAL, durable: bool = True
) -> None:
    """Replace the file by one with `offsets`, ordered by topic and partition."""
    lines = (f"{where.topic} {where.partition} {offset}" for where, offset in sorted(offsets.items()))
    write_checkpoint(path, lines, fs=fs, durable=durable)


def forget_partitions(root: Path, partitions: Set[TopicPartition], *, fs: FileSystem = LOCAL) -> None:
    """Remove the lines of deleted logs from all these files; a damaged file is left unchanged for a repair.

    Source of the rule: asyncDelete of kafka.log.LogManager.
    """
    for name in CHECKPOINTS:
        with contextlib.suppress(CorruptIndexError):
            before = read_offset_checkpoint(root / name)
            after = {where: offset for where, offset in before.items() if where not in partitions}
            if after != before:
                write_offset_checkpoint(root / name, after, fs=fs)


def _parse_entry(fields: Sequence[str]) -> tuple[TopicPartition, int]:
    if len(fields) != 3:
        raise ValueError("a topic, a partition and an offset")
    return TopicPartition(fields[0], parse_int(fields[1], 32)), parse_int(fields[2], 64)
