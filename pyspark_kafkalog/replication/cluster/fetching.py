"""Fetch from one broker: the request for many partitions, and what its answer means for each of them.

The follower reads as a consumer: without a replica id, up to the high watermark, transactions that are open or aborted
included. There is no fetch session: each request names all its partitions. A broker fills the answer in the order of
the request, so the order is rotated from request to request, and no partition starves.

Source of the rules: org.apache.kafka.clients.consumer.internals.AbstractFetch and FetchCollector;
kafka.server.KafkaApis (handleFetchRequest); KIP-392, KIP-516, KIP-595.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, LeaderUnavailableError, UnsupportedFormatError
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.replication.leader import (
    EpochEnd,
    FetchOutcome,
    FetchPosition,
    LeaderAnswer,
    old_format_answer,
)
from pyspark_kafkalog.storage.names import TopicPartition

#: Since this version a request names topics by their ids.
TOPIC_IDS_FROM: Final = 13

_OUTCOMES: Final[Mapping[int, FetchOutcome]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: FetchOutcome.OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: FetchOutcome.TOPIC_CHANGED,
    ErrorCode.UNKNOWN_TOPIC_ID: FetchOutcome.TOPIC_CHANGED,
    ErrorCode.INCONSISTENT_TOPIC_ID: FetchOutcome.TOPIC_CHANGED,
    ErrorCode.LEADER_NOT_AVAILABLE: FetchOutcome.LEADER_MOVED,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: FetchOutcome.LEADER_MOVED,
    ErrorCode.REPLICA_NOT_AVAILABLE: FetchOutcome.LEADER_MOVED,
    ErrorCode.FENCED_LEADER_EPOCH: FetchOutcome.LEADER_MOVED,
    ErrorCode.KAFKA_STORAGE_ERROR: FetchOutcome.LEADER_MOVED,
}


def error_text(code: int) -> str:
    """An error of the protocol in messages: its name and what it says."""
    try:
        known = ErrorCode(code)  # type: ignore[call-arg]  # a lookup by value
    except ValueError:
        return f"error {code}, which Kafka 4.1 does not have"
    return f"{known.name}: {known.message}"


def fetch_request(
    positions: Sequence[FetchPosition],
    leader_epochs: Mapping[TopicPartition, int],
    *,
    version: int,
    wait_ms: int,
    max_bytes: int,
    partition_bytes: int,
    rack: str,
) -> FetchRequest:
    """The request for these positions, in this order. `leader_epochs` are the newest that the cluster has named."""
    topics = []
    for (topic, topic_id), group in groupby(positions, lambda each: (each.topic_partition.topic, each.topic_id)):
        partitions = tuple(
            FetchPartition(
                partition=each.topic_partition.partition,
                current_leader_epoch=max(each.leader_epoch, leader_epochs.get(each.topic_partition, -1)),
                fetch_offset=each.offset,
                last_fetched_epoch=each.last_epoch,
                partition_max_bytes=partition_bytes,
            )
            for each in group
        )
        topics.append(
            FetchTopic(topic_id=topic_id, partitions=partitions)
            if version >= TOPIC_IDS_FROM
            else FetchTopic(topic=topic, partitions=partitions)
        )
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, topics=tuple(topics), rack_id=rack)


def rotated(positions: Sequence[FetchPosition], turn: int) -> list[FetchPosition]:
    """The positions from another one on at each turn, with those of a topic together."""
    if not positions:
        return []
    start = turn % len(positions)
    topics: dict[tuple[str, str], list[FetchPosition]] = {}
    for each in (*positions[start:], *positions[:start]):
        topics.setdefault((each.topic_partition.topic, each.topic_id), []).append(each)
    return [each for group in topics.values() for each in group]


def answered(
    positions: Sequence[FetchPosition], response: FetchResponse, *, version: int, source: str
) -> Iterator[tuple[FetchPosition, PartitionData]]:
    """The position of each partition of the response, with what it says. Raises LeaderUnavailableError.

    Partitions that were not asked for are left out.
    """
    if response.error_code != ErrorCode.NONE:
        raise LeaderUnavailableError(f"{source} answered FETCH with {error_text(response.error_code)}")
    by_id = version >= TOPIC_IDS_FROM
    asked = {
        (each.topic_id if by_id else each.topic_partition.topic, each.topic_partition.partition): each
        for each in positions
    }
    for topic in response.responses:
        for partition in topic.partitions:
            position = asked.pop((topic.topic_id if by_id else topic.topic, partition.partition_index), None)
            if position is not None:
                yield position, partition


def fetched_partition(position: FetchPosition, partition: PartitionData, *, source: str) -> LeaderAnswer:
    """What the answer of a broker means for the partition."""
    topic_partition = position.topic_partition
    if partition.error_code != ErrorCode.NONE:
        return LeaderAnswer(
            topic_partition=topic_partition,
            outcome=_OUTCOMES.get(partition.error_code, FetchOutcome.FAILED),
            log_start_offset=partition.log_start_offset,
            error=f"{source} answered FETCH of {topic_partition} with {error_text(partition.error_code)}",
        )
    diverging = partition.diverging_epoch
    if diverging.end_offset >= 0:
        return LeaderAnswer(
            topic_partition=topic_partition,
            outcome=FetchOutcome.DIVERGING,
            high_watermark=partition.high_watermark,
            log_start_offset=partition.log_start_offset,
            diverging=EpochEnd(diverging.epoch, diverging.end_offset),
        )
    records = partition.records
    try:
        data = b"" if records is None else whole_batches(records, position.offset, partition.high_watermark)
    except UnsupportedFormatError as error:
        return old_format_answer(position, source, error)
    except DiskFormatError as error:
        return LeaderAnswer(
            topic_partition=topic_partition,
            outcome=FetchOutcome.FAILED,
            error=f"{source} sent a damaged batch of {topic_partition} at offset {position.offset}: {error}",
        )
    return LeaderAnswer(
        topic_partition=topic_partition,
        outcome=FetchOutcome.RECORDS,
        data=data,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
    )


def whole_batches(records: Buffer, offset: int, high_watermark: int) -> Buffer:
    """The whole batches of `records` that reach above `offset` and lie below the high watermark, as a view.

    A broker cuts what it sends at its limits, so the last batch may be incomplete. Raises DiskFormatError for a
    first batch with a damaged header.
    """
    if not len(records):
        return b""
    scan = scan_batches(records, file="<FETCH response>")
    batches = scan.batches
    first = int((batches["last_offset"] < offset).sum())
    end = int((batches["last_offset"] < high_watermark).sum())
    if first >= end:
        if scan.fault is not None:
            raise scan.fault
        return b""
    # A fault behind these batches is met again, as the first of the next answer.
    last = batches[end - 1]
    return memoryview(records)[int(batches[first]["position"]) : int(last["position"]) + int(last["size_bytes"])]
