"""Which closed segments of a partition are copied to remote storage, by the rules of Kafka's brokers.

In order, from the end of what is copied on, or from the segment with the log start offset: each segment that is closed
and whose end is at or below the last stable offset, so that remote storage holds decided transactions only. The active
segment is never copied. Topics are left out without remote.storage.enable, with remote.log.copy.disable, if they are
internal, and if they are compacted.

Source of the rules: RLMCopyTask and candidateLogSegments of org.apache.kafka.server.log.remote.storage.
RemoteLogManager, RemoteLogManager.onLeadershipChange.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS
from pyspark_kafkalog.storage.segment.stored import StoredSegment


def why_not(topic: str, config: LogConfig) -> str | None:
    """Why segments of a topic with this configuration are not copied; None if they are."""
    if topic in INTERNAL_TOPICS:
        return "the topic is internal"
    if not config.remote_storage_enable:
        return "remote.storage.enable is not true"
    if config.remote_log_copy_disable:
        return "remote.log.copy.disable is true"
    return "the topic is compacted" if config.compact else None


def remote_end(partition: PartitionImage) -> int | None:
    """The offset after the last one in remote storage; None if nothing is there."""
    return partition.segments[-1].end_offset if partition.segments else None


def only_local(partition: PartitionImage, closed: Sequence[StoredSegment]) -> list[StoredSegment]:
    """Those of the `closed` segments with offsets of the log that remote storage does not have."""
    end = remote_end(partition)
    start = max(partition.state.log_start_offset, -1 if end is None else end)
    return [each for each in closed if each.end_offset > start]


def due(partition: PartitionImage, closed: Sequence[StoredSegment]) -> list[StoredSegment]:
    """Those of the `closed` segments that are to be copied, in order."""
    stable = partition.state.last_stable_offset
    return [each for each in only_local(partition, closed) if each.end_offset <= stable]


def check_follows(name: str, partition: PartitionImage, segments: Sequence[StoredSegment]) -> None:
    """Raise LogDirError if the due `segments` of the partition called `name` do not follow what remote storage has.

    Files are missing then. Only true while no other run can change the files.
    """
    end, start = remote_end(partition), partition.state.log_start_offset
    if segments and (segments[0].base_offset > start if end is None else segments[0].base_offset != end):
        raise LogDirError(
            f"{name}: expected a closed segment with offset {start if end is None else end}, where its copies end, "
            f"found one at {segments[0].base_offset}: run kafkalog verify"
        )
