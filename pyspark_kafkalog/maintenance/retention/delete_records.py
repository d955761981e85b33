"""Deletes records below an offset, as Kafka's DeleteRecords request does, by increasing the log start offset.

The offset may be inside a segment, and inside a batch: readers begin at it. Whole segments below it are removed by the
next retention run, whatever the cleanup policy. The offsets of any number of partitions change in one commit. Source of
the rules: deleteRecordsOnLeader of kafka.cluster.Partition and deleteRecordsOnLocalLog of kafka.server.ReplicaManager.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from pyspark_kafkalog.errors import InvalidTopicError, KafkalogError, OffsetOutOfRangeError, PolicyViolationError
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report
from pyspark_kafkalog.maintenance.retention.log_start import cut_epochs, write_log_start_checkpoint
from pyspark_kafkalog.root.log_starts import LogStartMove, MovedLogStart, move_log_starts, preview_log_starts
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, TopicPartition

_LOG: Final = logging.getLogger(__name__)

ACTION: Final = "delete-records"
#: Stands for the high watermark.
HIGH_WATERMARK: Final = -1


def delete_records(
    root: Root, offsets: Mapping[TopicPartition, int], *, dry_run: bool = False
) -> list[PartitionReport]:
    """Increase the log start offset of each partition to the given offset, -1 for the high watermark, in one commit.

    Returns one report for each partition, with the resulting log start offset; one that is already above the given
    offset is unchanged. As in a broker's response, each partition has its own error, and the others continue: an offset
    below -1 or above the high watermark, an internal topic, a topic whose cleanup.policy does not include delete, an
    unknown topic. With `dry_run` nothing changes. Raises ReadOnlyLogDirError for a broker's directory, and the errors
    of the commit.
    """
    native = root.native()
    native.refresh()
    began = time.perf_counter()
    results: dict[TopicPartition, MovedLogStart] = {}
    moves = []
    for topic_partition, offset in sorted(offsets.items()):
        try:
            moves.append(_move(native, topic_partition, offset))
        except KafkalogError as error:
            results[topic_partition] = MovedLogStart(topic_partition=topic_partition, error=error)
    moved = preview_log_starts(native, moves) if dry_run else move_log_starts(native, moves, operation="delete records")
    results |= {each.topic_partition: each for each in moved}
    if not dry_run:
        _update_kafka_files(native, moved)
    seconds = time.perf_counter() - began
    return [_report(results[topic_partition], seconds) for topic_partition in sorted(offsets)]


def _move(root: NativeRoot, topic_partition: TopicPartition, offset: int) -> LogStartMove:
    if topic_partition.topic in INTERNAL_TOPICS:
        raise InvalidTopicError(f"cannot delete records of internal topic {topic_partition.topic}")
    if not root.log_config(topic_partition.topic).delete:
        raise PolicyViolationError(
            f"records of {topic_partition} cannot be deleted: the topic's cleanup.policy does not have delete"
        )
    if offset < HIGH_WATERMARK:
        raise OffsetOutOfRangeError(f"offset {offset} of {topic_partition} is not valid: expected 0 or more, or -1")
    return LogStartMove(
        topic_partition=topic_partition, log_start_offset=offset, to_high_watermark=offset == HIGH_WATERMARK
    )


def _update_kafka_files(root: NativeRoot, moved: Iterable[MovedLogStart]) -> None:
    """Update Kafka's own files; the next retention run repairs what fails here."""
    first_bases = {}
    try:
        for each in moved:
            if each.error is None:
                first_base = cut_epochs(root, each.topic_partition, each.topic_id)
                if first_base is not None:
                    first_bases[each.topic_partition] = first_base
        write_log_start_checkpoint(root, first_bases)
    except (KafkalogError, OSError) as error:
        _LOG.warning("records are deleted, but the files for Kafka are left to the next retention run: %s", error)


def _report(each: MovedLogStart, seconds: float) -> PartitionReport:
    return replace(
        empty_report(each.topic_partition, ACTION),
        log_start_offset=None if each.after is None else each.after.log_start_offset,
        seconds=seconds,
        error=None if each.error is None else str(each.error),
    )
