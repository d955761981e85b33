"""The response to a Fetch request, from what was read of each partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    FetchResponseEpochEndOffset,
    PartitionData,
)
from pyspark_kafkalog.server.reads.fetch_plan import FetchedPartition

_UNKNOWN: Final = -1
_NOT_FOUND: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
#: The very object of the class: the encoder leaves it out without comparing its fields.
_NOT_DIVERGING: Final = PartitionData().diverging_epoch


def fetch_response(
    answered: Iterable[tuple[FetchedPartition, PartitionData]], *, by_id: bool, session_id: int
) -> FetchResponse:
    """The partitions by their topics, which the client has named by id or by name."""
    topics: dict[str, list[PartitionData]] = {}
    for each, data in answered:
        topics.setdefault(each.topic_id if by_id else each.topic or "", []).append(data)
    return FetchResponse(
        session_id=session_id,
        responses=tuple(
            FetchableTopicResponse(
                topic="" if by_id else name, topic_id=name if by_id else ZERO_UUID, partitions=tuple(found)
            )
            for name, found in topics.items()
        ),
    )


def partition_data(each: FetchedPartition, *, is_committed: bool) -> PartitionData:
    """One partition of the response."""
    found = each.snapshot
    if each.error is not None or found is None:
        return PartitionData(
            partition_index=each.wanted.partition,
            error_code=each.error or ErrorCode.UNKNOWN_SERVER_ERROR,
            high_watermark=_UNKNOWN,
            aborted_transactions=() if each.error in _NOT_FOUND else None,
            records=b"",
        )
    return PartitionData(
        partition_index=each.wanted.partition,
        high_watermark=found.high_watermark,
        last_stable_offset=each.last_stable_offset,
        log_start_offset=found.readable_start_offset,
        diverging_epoch=_diverging(each),
        aborted_transactions=_aborted(each) if is_committed else None,
        records=b"" if each.records is None else each.records.records,
    )


def _diverging(each: FetchedPartition) -> FetchResponseEpochEndOffset:
    if each.diverging is None:
        return _NOT_DIVERGING
    return FetchResponseEpochEndOffset(epoch=each.diverging.epoch, end_offset=each.diverging.start_offset)


def _aborted(each: FetchedPartition) -> tuple[AbortedTransaction, ...]:
    return tuple(AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset) for txn in each.aborted)
