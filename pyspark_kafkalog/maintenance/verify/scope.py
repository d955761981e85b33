"""What a partition's files are verified against: the image of a native log directory, or a broker's checkpoints.

It is captured once, so that the whole partition is verified as of one moment, and small enough to send to a task.
Writers continue meanwhile: records that they append are above `log_end_offset` and ignored, and segments that
maintenance replaces are checked again, after `renewed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.verify.findings import Severity
from pyspark_kafkalog.root.file_root import FileRoot, on_file_system
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import BrokerProcess, broker_process, was_clean_shutdown
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition, partition_path
from pyspark_kafkalog.units import INT64_MAX

#: Above every offset.
NO_END: Final = INT64_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadOffsets:
    """A broker's partition with offsets that readers do not see, and the state of the broker process."""

    found: PartitionSnapshot
    process: BrokerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionScope:
    """One partition, as of the beginning of the verification.

    `state` is the image's, None for a broker's partition: there `log_end_offset` is the high watermark of its
    checkpoint (-1 without one), and `is_clean` says whether the broker was shut down cleanly. `has_gaps`: offsets may
    be missing, because the cleaner has processed the log, or may have; None if unknown. `unread` describes the offsets
    of a broker's partition that readers do not see. `is_tiered`: the broker has moved earlier segments to remote
    storage. `are_records_checked`: also check records of compressed batches, which requires decompression.
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
    is_tiered: bool = False
    are_records_checked: bool = False

    @property
    def directory(self) -> Path:
        return partition_path(self.root, self.topic_partition)

    @property
    def is_of_broker(self) -> bool:
        return self.state is None

    @property
    def local_start_offset(self) -> int:
        """The first offset whose segment the directory must have."""
        return self.log_start_offset if self.state is None else self.state.local_log_start_offset

    def end_of_segment(self, base_offset: int) -> int | None:
        """The bytes of the segment to check: the committed bytes of the active segment; None for all."""
        if self.state is None or base_offset != self.state.active_base_offset:
            return None
        return self.state.active_size_bytes

    def is_active(self, base_offset: int, next_base: int | None) -> bool:
        """Whether the segment is the one that writers append to."""
        if self.state is None:
            return next_base is None
        return base_offset == self.state.active_base_offset

    @property
    def visible_end(self) -> int:
        """Index entries at or above this offset are not committed yet."""
        return NO_END if self.state is None else self.state.log_end_offset

    def severity_at(self, reached_offset: int, next_base: int | None) -> Severity:
        """The severity of damage after `reached_offset`.

        After a crash a broker reads everything again that it had not flushed, and cuts the log off at the damage.
        Records below the high watermark are lost by that.
        """
        if self.state is not None or self.is_clean or (next_base is not None and next_base <= self.recovery_point):
            return Severity.ERROR
        return Severity.WARNING if reached_offset >= max(self.log_end_offset, 0) else Severity.ERROR

    def bases(self) -> list[int]:
        """The current base offsets of the segments, without uncommitted ones."""
        bases = list_base_offsets(self.directory)
        return bases if self.state is None else [base for base in bases if base <= self.state.active_base_offset]

    def live(self, bases: list[int]) -> dict[int, int | None]:
        """The segments at `bases` that are still part of the log, each with the next base.

        Segments entirely below the local log start offset are pending deletion.
        """
        following = [*bases[1:], None][: len(bases)]
        return {
            base: after
            for base, after in zip(bases, following, strict=True)
            if after is None or after > self.local_start_offset
        }

    def renewed(self) -> PartitionScope | None:
        """The partition as it is now; None if its topic is gone. Raises KafkalogError or OSError."""
        if self.state is None:
            return self if self.directory.is_dir() else None
        state = on_file_system(open_root(self.root)).store.image.state_of(self.topic_partition, self.topic_id)
        if state is None:
            return None
        return replace(self, state=state, log_start_offset=state.log_start_offset, log_end_offset=state.log_end_offset)


@dataclass(frozen=True, slots=True)
class ScopedUnit:
    """A unit of the partition of `scope`, in a directory; see Unit."""

    scope: PartitionScope

    @property
    def topic_partition(self) -> TopicPartition:
        return self.scope.topic_partition

    @property
    def place(self) -> Path:
        return self.scope.directory


def native_scopes(
    root: FileRoot, partitions: Sequence[TopicPartition], *, are_records_checked: bool
) -> list[PartitionScope]:
    """Scopes of partitions of a native log directory, from the image of its last refresh."""
    cleaned = checkpoint_or_empty(root.path / CLEANER_OFFSET_CHECKPOINT)
    configs: dict[str, LogConfig] = {}
    scopes = []
    for topic_partition in partitions:
        topic = root.store.image.topic(topic_partition.topic)
        config = configs.setdefault(topic_partition.topic, root.log_config(topic_partition.topic))
        state = topic.partitions[topic_partition.partition].state
        scopes.append(
            PartitionScope(
                root=root.path,
                topic_partition=topic_partition,
                state=state,
                topic_id=topic.topic_id,
                log_start_offset=state.log_start_offset,
                log_end_offset=state.log_end_offset,
                has_gaps=config.compact or topic_partition in cleaned or topic_partition.topic in INTERNAL_TOPICS,
                are_records_checked=are_records_checked,
            )
        )
    return scopes


def broker_scopes(
    root: Root,
    partitions: Sequence[TopicPartition],
    configs: Mapping[str, Mapping[str, str]],
    *,
    are_records_checked: bool,
) -> list[PartitionScope]:
    """Scopes of partitions of a broker's directory, from its checkpoint files; `configs` are known topic
    configurations.
    """
    [path] = root.directories
    process = broker_process(path)
    starts = checkpoint_or_empty(path / LOG_START_OFFSET_CHECKPOINT)
    ends = checkpoint_or_empty(path / REPLICATION_OFFSET_CHECKPOINT)
    recovery_points = checkpoint_or_empty(path / RECOVERY_POINT_CHECKPOINT)
    cleaned = checkpoint_or_empty(path / CLEANER_OFFSET_CHECKPOINT)
    is_clean = was_clean_shutdown(path)
    unread = {topic_partition: _unread(root, topic_partition, process) for topic_partition in partitions}
    return [
        PartitionScope(
            root=path,
            topic_partition=topic_partition,
            state=None,
            topic_id=None,
            log_start_offset=starts.get(topic_partition, 0),
            log_end_offset=ends.get(topic_partition, -1),
            recovery_point=recovery_points.get(topic_partition, 0),
            is_clean=is_clean,
            has_gaps=_has_gaps(topic_partition, configs, cleaned),
            unread=offsets,
            is_tiered=offsets is not None and offsets.found.remote_offsets_count > 0,
            are_records_checked=are_records_checked,
        )
        for topic_partition, offsets in unread.items()
    ]


def _unread(root: Root, topic_partition: TopicPartition, process: BrokerProcess) -> UnreadOffsets | None:
    """None if there are no such offsets, or if damage, which is reported elsewhere, hides them."""
    try:
        found = root.partition(topic_partition.topic, topic_partition.partition)
    except (KafkalogError, OSError):
        return None
    if not found.offsets_above_high_watermark and not found.remote_offsets_count:
        return None
    return UnreadOffsets(found=found, process=process)


def checkpoint_or_empty(path: Path) -> dict[TopicPartition, int]:
    """A checkpoint file's offsets, empty if it is damaged, which the check of the root reports."""
    try:
        return read_offset_checkpoint(path)
    except (KafkalogError, OSError):
        return {}


def _has_gaps(
    topic_partition: TopicPartition, configs: Mapping[str, Mapping[str, str]], cleaned: Mapping[TopicPartition, int]
) -> bool | None:
    if (
        topic_partition in cleaned
        or topic_partition.topic in INTERNAL_TOPICS
        or topic_partition.topic == CLUSTER_METADATA_TOPIC
    ):
        return True
    policy = configs.get(topic_partition.topic, {}).get("cleanup.policy")
    return None if policy is None else "compact" in policy
