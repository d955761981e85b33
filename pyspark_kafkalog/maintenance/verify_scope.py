"""What a verification holds a partition's files against: the image of a root of ours, the checkpoints of a broker's.

It is taken once, so that all of a partition is seen as of one moment, and small enough to travel to a task. Writers go
on meanwhile: what they append lies above `log_end_offset` and is not looked at, and what maintenance replaces is looked
at anew, after `renewed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.verify_findings import Severity
from pyspark_kafkalog.metadata.own_root import OwnRoot
from pyspark_kafkalog.storage.broker_process import BrokerProcess, broker_process
from pyspark_kafkalog.storage.clean_shutdown import was_clean_shutdown
from pyspark_kafkalog.storage.descriptions import PartitionDescription
from pyspark_kafkalog.storage.listing import list_base_offsets
from pyspark_kafkalog.storage.log_config import LogConfig
from pyspark_kafkalog.storage.log_state import LogState
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition
from pyspark_kafkalog.storage.offset_checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)

#: Above every offset.
NO_END: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadOffsets:
    """Of a broker's partition: how it was described, and what became of the broker."""

    found: PartitionDescription
    process: BrokerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionScope:
    """One partition, as of when the verification began.

    `state` is the image's, None for a broker's partition: there `log_end_offset` is the high watermark that its
    checkpoint tells (-1: it tells none), and `is_clean` whether the broker stopped in good order. `has_gaps`: offsets
    may be missing, as the cleaner has been, or may have been, at the log; None where that is not known. `unread` is
    what readers of a broker's partition are not shown.
    `are_records_checked`: in compressed batches too, where each has to be decompressed for it.
    """

    root: Path
    topic_partition: TopicPartition
    state: LogState | None
    topic_id: str | None
    log_start_offset: int
    log_end_offset: int
    recovery_point: int = 0
    is_clean: bool = True
    has_gaps: bool | None = None
    unread: UnreadOffsets | None = None
    are_records_checked: bool = False

    @property
    def directory(self) -> Path:
        return self.root / str(self.topic_partition)

    @property
    def is_foreign(self) -> bool:
        return self.state is None

    def end_of_segment(self, base_offset: int) -> int | None:
        """How many bytes of the segment count: those of the active one that are committed; None: all."""
        if self.state is None or base_offset != self.state.active_base_offset:
            return None
        return self.state.active_size_bytes

    def is_active(self, base_offset: int, next_base: int | None) -> bool:
        """Whether the segment is the one that is written to."""
        if self.state is None:
            return next_base is None
        return base_offset == self.state.active_base_offset

    @property
    def visible_end(self) -> int:
        """Index entries at or above this offset are of what is not committed yet."""
        return NO_END if self.state is None else self.state.log_end_offset

    def severity_at(self, reached_offset: int, next_base: int | None) -> Severity:
        """How bad damage is that comes after `reached_offset`.

        After a crash a broker reads again what it had not flushed, and ends the log before the damage. What lies below
        the high watermark is lost by that.
        """
        if self.state is not None or self.is_clean or (next_base is not None and next_base <= self.recovery_point):
            return Severity.ERROR
        return Severity.WARNING if reached_offset >= max(self.log_end_offset, 0) else Severity.ERROR

    def bases(self) -> list[int]:
        """Base offsets of the segments as they are now, without what is not committed."""
        bases = list_base_offsets(self.directory)
        return bases if self.state is None else [base for base in bases if base <= self.state.active_base_offset]

    def live(self, bases: list[int]) -> dict[int, int | None]:
        """Of the segments at `bases` those that are still part of the log, with the base that follows each.

        What lies wholly below the log start is on its way out.
        """
        following = [*bases[1:], None][: len(bases)]
        return {
            base: after
            for base, after in zip(bases, following, strict=True)
            if after is None or after > self.log_start_offset
        }

    def renewed(self) -> PartitionScope | None:
        """The partition as it is now; None when its topic is gone. Raises KafkalogError or OSError."""
        if self.state is None:
            return self if self.directory.is_dir() else None
        log_dir = LogDir.open(self.root)
        topic = log_dir.own_root().store.image.topics.get(self.topic_partition.topic)
        if topic is None or topic.topic_id != self.topic_id:
            return None
        state = topic.partitions[self.topic_partition.partition].state
        return replace(self, state=state, log_start_offset=state.log_start_offset, log_end_offset=state.log_end_offset)


def own_scopes(root: OwnRoot, partitions: list[TopicPartition], *, are_records_checked: bool) -> list[PartitionScope]:
    """Scopes of partitions of a root of ours, from its image as it was last refreshed."""
    cleaned = checkpoint_or_empty(root.path / CLEANER_OFFSET_CHECKPOINT)
    configs: dict[str, LogConfig] = {}
    scopes = []
    for where in partitions:
        topic = root.store.image.topic(where.topic)
        config = configs.setdefault(where.topic, root.log_config(where.topic))
        state = topic.partitions[where.partition].state
        scopes.append(
            PartitionScope(
                root=root.path,
                topic_partition=where,
                state=state,
                topic_id=topic.topic_id,
                log_start_offset=state.log_start_offset,
                log_end_offset=state.log_end_offset,
                has_gaps=config.compact or where in cleaned or where.topic in INTERNAL_TOPICS,
                are_records_checked=are_records_checked,
            )
        )
    return scopes


def foreign_scopes(
    log_dir: LogDir,
    partitions: list[TopicPartition],
    configs: Mapping[str, Mapping[str, str]],
    *,
    are_records_checked: bool,
) -> list[PartitionScope]:
    """Scopes of partitions of a broker's root, from its checkpoint files; `configs` is what is known of its topics."""
    root = log_dir.path
    process = broker_process(root)
    starts = checkpoint_or_empty(root / LOG_START_OFFSET_CHECKPOINT)
    ends = checkpoint_or_empty(root / REPLICATION_OFFSET_CHECKPOINT)
    recovery_points = checkpoint_or_empty(root / RECOVERY_POINT_CHECKPOINT)
    cleaned = checkpoint_or_empty(root / CLEANER_OFFSET_CHECKPOINT)
    is_clean = was_clean_shutdown(root)
    return [
        PartitionScope(
            root=root,
            topic_partition=where,
            state=None,
            topic_id=None,
            log_start_offset=starts.get(where, 0),
            log_end_offset=ends.get(where, -1),
            recovery_point=recovery_points.get(where, 0),
            is_clean=is_clean,
            has_gaps=_has_gaps(where, configs, cleaned),
            unread=_unread(log_dir, where, process),
            are_records_checked=are_records_checked,
        )
        for where in partitions
    ]


def _unread(log_dir: LogDir, where: TopicPartition, process: BrokerProcess) -> UnreadOffsets | None:
    """None where there is nothing of that kind, or damage keeps it from being told, which is found otherwise."""
    try:
        found = log_dir.partition(where.topic, where.partition)
    except (KafkalogError, OSError):
        return None
    if not found.offsets_above_high_watermark and not found.remote_offsets_count:
        return None
    return UnreadOffsets(found=found, process=process)


def checkpoint_or_empty(path: Path) -> dict[TopicPartition, int]:
    """A checkpoint file's offsets, none when it is damaged: that is told of where the root is looked at."""
    try:
        return read_offset_checkpoint(path)
    except (KafkalogError, OSError):
        return {}


def _has_gaps(
    where: TopicPartition, configs: Mapping[str, Mapping[str, str]], cleaned: Mapping[TopicPartition, int]
) -> bool | None:
    if where in cleaned or where.topic in INTERNAL_TOPICS or where.topic == CLUSTER_METADATA_TOPIC:
        return True
    policy = configs.get(where.topic, {}).get("cleanup.policy")
    return None if policy is None else "compact" in policy
