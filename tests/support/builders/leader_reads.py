"""Reads a leader as a follower does, without storing anything: the bytes of each partition up to its high watermark."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path

from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.replication.leader import FetchOutcome, FetchPosition, LeaderAnswer, LeaderEndPoint
from pyspark_kafkalog.storage.names import TopicPartition

_SECONDS_MAX = 60


def read_topics(
    leader: LeaderEndPoint, topics: Collection[str], *, max_bytes: int = 1 << 20, partition_bytes: int = 1 << 18
) -> dict[TopicPartition, bytes]:
    """The batches of all partitions, from the log start up to the first answer at the high watermark."""
    description = leader.describe(lambda name: name in topics)
    positions = {}
    for topic in description.topics.values():
        for number, epoch in enumerate(topic.leader_epochs):
            partition = TopicPartition(topic.name, number)
            position = FetchPosition(topic_partition=partition, topic_id=topic.topic_id, offset=0, leader_epoch=epoch)
            start, _ = leader.range_of(position)
            positions[partition] = next_position(position, start, position.last_epoch)
    found = {each: bytearray() for each in positions}
    deadline = time.monotonic() + _SECONDS_MAX
    while positions:
        assert time.monotonic() < deadline, f"no end of {list(positions)}"
        for source, partitions in leader.sources(list(positions)).items():
            answers = leader.fetch(
                source,
                [positions[each] for each in partitions],
                wait_ms=100,
                max_bytes=max_bytes,
                partition_bytes=partition_bytes,
            )
            for answer in answers:
                _take(answer, positions, found)
    return {partition: bytes(data) for partition, data in found.items()}


def _take(
    answer: LeaderAnswer, positions: dict[TopicPartition, FetchPosition], found: dict[TopicPartition, bytearray]
) -> None:
    if answer.outcome == FetchOutcome.LEADER_MOVED:
        return
    assert answer.outcome == FetchOutcome.RECORDS, answer
    partition = answer.topic_partition
    position = positions[partition]
    scan = scan_batches(answer.data, file=str(partition))
    assert scan.fault is None
    assert scan.consumed_bytes == len(answer.data)
    verify_crcs(answer.data, scan.batches, data_position=0, file=str(partition))
    found[partition] += answer.data
    if len(scan.batches):
        last = scan.batches[-1]
        position = next_position(position, int(last["last_offset"]) + 1, int(last["leader_epoch"]))
        positions[partition] = position
    if position.offset >= answer.high_watermark:
        del positions[partition]


def next_position(position: FetchPosition, offset: int, last_epoch: int) -> FetchPosition:
    """The position that follows in the same partition."""
    return FetchPosition(
        topic_partition=position.topic_partition,
        topic_id=position.topic_id,
        offset=offset,
        last_epoch=last_epoch,
        leader_epoch=position.leader_epoch,
    )


def log_bytes(directories: Iterable[Path], partition: TopicPartition) -> bytes:
    """All segments of a partition in the first of these directories that has it."""
    directory = next(each / str(partition) for each in directories if (each / str(partition)).is_dir())
    return b"".join(each.read_bytes() for each in sorted(directory.glob("*.log")))
