"""Fetch: records of many partitions, at once or when there are enough of them.

Steps of a request: find its partitions (FetchPlan.evaluate), answer if it is satisfied, else wait for one of them to
change, at most `max_wait_ms`, and look again.

Fetch sessions are not kept: the session id is always 0, as that of a broker whose cache of sessions is full, and the
client sends full requests. The response to one holds exactly the partitions of the request. A request that continues a
session is told that it does not exist (KIP-227).

A replica that fetches (`replica_id` of 0 or more) needs CLUSTER_ACTION in place of READ, and reads up to the high
watermark, as everything below it is all that is committed.

Source of the rules: KafkaApis.handleFetchRequest, FetchManager.newContext, DelayedFetch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

from pyspark_kafkalog.metadata.access.acl import AclOperation
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    PartitionData,
)
from pyspark_kafkalog.server.context import Request, ServerContext
from pyspark_kafkalog.server.reads.fetch_plan import FetchedPartition, FetchPlan
from pyspark_kafkalog.server.reads.log_slices import LogSlices
from pyspark_kafkalog.server.reads.partitions import Partitions, may, may_act_for_cluster
from pyspark_kafkalog.units import MIB

#: Kafka's default of fetch.max.bytes.
FETCH_MAX_BYTES: Final = 55 * MIB
_TOPIC_IDS_FROM_VERSION: Final = 13
_REPLICA_STATE_FROM_VERSION: Final = 15
_READ_COMMITTED: Final = 1
#: The epochs of a request that names all partitions: it begins a session, or has none.
_FULL_REQUEST_EPOCHS: Final = (0, -1)
_UNKNOWN: Final = -1
#: A request of thousands of partitions waits no longer: few of them are handled at the same time.
_LONG_WAIT_MAX_MS: Final = 1000


class Fetches:
    """Answers Fetch."""

    def __init__(self, partitions: Partitions, slices: LogSlices) -> None:
        self._partitions = partitions
        self._slices = slices

    async def handle(self, context: ServerContext, request: Request) -> Message:
        """Versions 4 to 18."""
        body = request.body
        assert isinstance(body, FetchRequest)
        if body.session_epoch not in _FULL_REQUEST_EPOCHS:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        plan = FetchPlan(
            context,
            self._partitions,
            self._slices,
            _named(body, request.api_version),
            max_bytes=max(min(body.max_bytes, FETCH_MAX_BYTES), 0),
            min_bytes=body.min_bytes,
            is_committed=body.isolation_level == _READ_COMMITTED,
        )
        await plan.turn.step()
        await self._authorize(context, request, plan)
        await plan.turn.step()
        _refuse_replicas(request, plan)
        await plan.evaluate()
        if not plan.is_satisfied and body.max_wait_ms > 0:
            await _wait(
                context, plan, min(body.max_wait_ms, _LONG_WAIT_MAX_MS) if request.is_long else body.max_wait_ms
            )
        await plan.turn.step()
        _count(context, plan)
        return _response(plan, by_id=request.api_version >= _TOPIC_IDS_FROM_VERSION)

    async def _authorize(self, context: ServerContext, request: Request, plan: FetchPlan) -> None:
        """Give the partitions that the client may not read their error."""
        if _replica_id(request) >= 0:
            is_allowed = may_act_for_cluster(context, request.session)
            for each in plan.fetched if not is_allowed else ():
                each.fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return
        await self._resolve_ids(context, plan)
        await plan.turn.step()
        allowed: dict[str, bool] = {}
        for each in plan.fetched:
            if each.topic is None:
                continue
            if each.topic not in allowed:
                allowed[each.topic] = may(context, request.session, AclOperation.READ, each.topic)
            if not allowed[each.topic]:
                each.fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    async def _resolve_ids(self, context: ServerContext, plan: FetchPlan) -> None:
        """Find the names of topics that are named by id. An unknown id is not known after a refresh either."""

        def work() -> bool:
            names: dict[str, str | None] = {}
            for each in plan.fetched:
                if each.topic is None:
                    if each.topic_id not in names:
                        names[each.topic_id] = self._partitions.topic_name(context, each.topic_id)
                    each.topic = names[each.topic_id]
            return None in names.values()

        if any(each.topic is None for each in plan.fetched) and await self._partitions.run(context, work):
            await self._partitions.refresh(context)
            await self._partitions.run(context, work)
            await plan.turn.step()
            for each in plan.fetched:
                if each.topic is None:
                    each.fail(ErrorCode.UNKNOWN_TOPIC_ID)


def _refuse_replicas(request: Request, plan: FetchPlan) -> None:
    """No partition has replicas elsewhere: to one that says it is a follower, this is not its leader."""
    if _replica_id(request) >= 0:
        for each in plan.fetched:
            if each.error is None:
                each.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _replica_id(request: Request) -> int:
    body = request.body
    assert isinstance(body, FetchRequest)
    return body.replica_state.replica_id if request.api_version >= _REPLICA_STATE_FROM_VERSION else body.replica_id


def _named(body: FetchRequest, version: int) -> list[FetchedPartition]:
    """The partitions of the request in its order; of one that it names twice, the last."""
    by_id = version >= _TOPIC_IDS_FROM_VERSION
    found: dict[tuple[str, int], tuple[FetchPartition, str, str | None]] = {}
    for topic in body.topics:
        name, topic_id = (None, topic.topic_id) if by_id else (topic.topic, ZERO_UUID)
        for each in topic.partitions:
            found[name or topic_id, each.partition] = (each, topic_id, name)
    return [FetchedPartition(*each) for each in found.values()]


async def _wait(context: ServerContext, plan: FetchPlan, max_wait_ms: int) -> None:
    """Evaluate again whenever a partition changes, until the plan is satisfied or the time is over."""
    deadline_ms = context.monotonic_ms() + max_wait_ms
    event = context.waiters.subscribe(plan.names())
    try:
        while True:
            event.clear()
            # First look again: between the last look and the subscription something may have changed.
            await plan.evaluate()
            left_ms = deadline_ms - context.monotonic_ms()
            if plan.is_satisfied or left_ms <= 0:
                return
            try:
                await asyncio.wait_for(event.wait(), left_ms / 1000)
            except (asyncio.TimeoutError, TimeoutError):
                return
    finally:
        context.waiters.unsubscribe(event)


def _count(context: ServerContext, plan: FetchPlan) -> None:
    sizes: Counter[str] = Counter()
    for each in plan.fetched:
        sizes[each.topic or ""] += each.size_bytes
    for topic, size_bytes in sizes.items():
        if size_bytes:
            context.traffic.fetched(topic, size_bytes=size_bytes)


def _response(plan: FetchPlan, *, by_id: bool) -> FetchResponse:
    topics: dict[str, list[FetchedPartition]] = {}
    for each in plan.fetched:
        topics.setdefault(each.topic_id if by_id else each.topic or "", []).append(each)
    return FetchResponse(
        responses=tuple(
            FetchableTopicResponse(
                topic="" if by_id else name,
                topic_id=name if by_id else ZERO_UUID,
                partitions=tuple(_partition_data(fetched, plan.is_committed)),
            )
            for name, fetched in (topics.items())
        )
    )


def _partition_data(fetched: Iterable[FetchedPartition], is_committed: bool) -> Iterable[PartitionData]:
    for each in fetched:
        found = each.snapshot
        if each.error is not None or found is None:
            yield PartitionData(
                partition_index=each.wanted.partition,
                error_code=each.error or ErrorCode.UNKNOWN_SERVER_ERROR,
                high_watermark=_UNKNOWN,
                aborted_transactions=() if each.error in _NOT_FOUND else None,
                records=b"",
            )
            continue
        yield PartitionData(
            partition_index=each.wanted.partition,
            high_watermark=found.high_watermark,
            last_stable_offset=each.last_stable_offset,
            log_start_offset=found.readable_start_offset,
            diverging_epoch=_diverging(each),
            aborted_transactions=_aborted(each) if is_committed else None,
            records=b"" if each.records is None else each.records.records,
        )


_NOT_FOUND: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
#: The very object of the class: the encoder leaves it out without comparing its fields.
_NOT_DIVERGING: Final = PartitionData().diverging_epoch


def _diverging(each: FetchedPartition) -> FetchResponseEpochEndOffset:
    if each.diverging is None:
        return _NOT_DIVERGING
    return FetchResponseEpochEndOffset(epoch=each.diverging.epoch, end_offset=each.diverging.start_offset)


def _aborted(each: FetchedPartition) -> tuple[AbortedTransaction, ...]:
    return tuple(AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset) for txn in each.aborted)
