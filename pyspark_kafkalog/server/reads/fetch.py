"""Fetch: records of many partitions, at once or when there are enough of them.

Steps of a request: find its partitions (FetchPlan.evaluate), answer if it is satisfied, else wait for one of them to
change, at most `max_wait_ms`, and look again. After a wait, permissions are checked again.

A full request names its partitions, and its response holds exactly these. One that continues a session
(fetch_sessions) reads the partitions of the session, and its response holds those that have news.

A replica that fetches (`replica_id` of 0 or more) needs CLUSTER_ACTION in place of READ, and reads up to the high
watermark, as everything below it is all that is committed.

Source of the rules: KafkaApis.handleFetchRequest, DelayedFetch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from pyspark_kafkalog.metadata.access.acl import AclOperation
from pyspark_kafkalog.metadata.access.client_quotas import CONSUMER_BYTE_RATE
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import FetchRequest, FetchResponse
from pyspark_kafkalog.root.reads import RootPartitions
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext
from pyspark_kafkalog.server.reads.fetch_plan import FetchedPartition, FetchPlan
from pyspark_kafkalog.server.reads.fetch_requests import OpenedFetch, open_fetch
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSessions
from pyspark_kafkalog.server.reads.log_slices import LogSlices
from pyspark_kafkalog.server.reads.partitions import may, may_act_for_cluster, run_with
from pyspark_kafkalog.units import MIB

#: Kafka's default of fetch.max.bytes.
FETCH_MAX_BYTES: Final = 55 * MIB
_REPLICA_STATE_FROM_VERSION: Final = 15
#: What a response has of a partition besides its records.
_PARTITION_BYTES: Final = 40
#: A request that has more than this in memory waits for further records for two seconds at most.
_HELD_BYTES_MAX: Final = MIB
_HELD_MS_MAX: Final = 2000
#: A request of thousands of partitions waits no longer: few of them are handled at the same time.
_LONG_WAIT_MAX_MS: Final = 1000


class Fetches:
    """Answers Fetch."""

    def __init__(self, partitions: RootPartitions, slices: LogSlices, sessions: FetchSessions) -> None:
        self._partitions = partitions
        self._slices = slices
        self._sessions = sessions

    async def handle(self, context: ServerContext, request: Request[FetchRequest]) -> Message:
        """Versions 4 to 18."""
        body = request.body
        opened = open_fetch(self._sessions, request)
        if not isinstance(opened, OpenedFetch):
            return FetchResponse(error_code=opened)
        plan = self._plan(context, body, opened, request.session.owners)
        await plan.turn.step()
        await self._authorize(context, request, plan)
        await plan.turn.step()
        await plan.evaluate()
        if not plan.is_satisfied and body.max_wait_ms > 0:
            await _wait(
                context, plan, min(body.max_wait_ms, _LONG_WAIT_MAX_MS) if request.is_long else body.max_wait_ms
            )
            # The records may be newer than the end of the permission to read them. A broker answers with them.
            await self._authorize(context, request, plan)
        await plan.turn.step()
        throttle_ms = _throttle_ms(context, request, plan)
        if throttle_ms:
            return opened.empty_answer(throttle_ms)
        _count(context, plan)
        return opened.answer(plan.fetched)

    def _plan(
        self, context: ServerContext, body: FetchRequest, opened: OpenedFetch, owners: tuple[str, ...]
    ) -> FetchPlan:
        """The partitions of a session are quiet, until it is found that they have news, or that they cannot be read."""
        partitions = opened.partitions.values()
        is_full = opened.session is None
        return FetchPlan(
            context,
            self._partitions,
            self._slices,
            [FetchedPartition.of(each) for each in partitions if is_full or each.topic is None],
            max_bytes=max(min(body.max_bytes, FETCH_MAX_BYTES), 0),
            min_bytes=body.min_bytes,
            is_committed=opened.is_committed,
            owners=owners,
            session=opened.session,
            quiet=[] if is_full else [each for each in partitions if each.topic is not None],
        )

    async def _authorize(self, context: ServerContext, request: Request[FetchRequest], plan: FetchPlan) -> None:
        """Give the partitions that the client may not read their error."""
        if _replica_id(request) >= 0:
            # No partition has replicas elsewhere: to one that says it is a follower, this is not its leader.
            is_allowed = may_act_for_cluster(context, request.session)
            plan.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return
        await self._resolve_ids(context, plan)
        await plan.turn.step()
        denied = {each for each in plan.topics() if not may(context, request.session, AclOperation.READ, each)}
        plan.refuse(denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    async def _resolve_ids(self, context: ServerContext, plan: FetchPlan) -> None:
        """Find the names of topics that are named by id. An unknown id is not known after a refresh either."""

        def work() -> bool:
            names: dict[str, str | None] = {}
            for each in nameless:
                if each.topic is None:
                    if each.topic_id not in names:
                        names[each.topic_id] = self._partitions.topic_name(each.topic_id)
                    each.topic = names[each.topic_id]
            return None in names.values()

        nameless = [each for each in plan.fetched if each.topic is None]
        if not nameless:
            return
        if await run_with(self._partitions, context, work):
            await context.run(self._partitions.refresh)
            await run_with(self._partitions, context, work)
            await plan.turn.step()
        for each in nameless:
            if each.topic is None:
                each.fail(ErrorCode.UNKNOWN_TOPIC_ID)
            elif plan.session is not None:
                plan.session.resolve(each.kept, each.topic)


def _replica_id(request: Request[FetchRequest]) -> int:
    body = request.body
    return body.replica_state.replica_id if request.api_version >= _REPLICA_STATE_FROM_VERSION else body.replica_id


async def _wait(context: ServerContext, plan: FetchPlan, max_wait_ms: int) -> None:
    """Evaluate again whenever a partition changes, until the plan is satisfied or the time is over."""
    deadline_ms = context.monotonic_ms() + max_wait_ms
    began_ms: int | None = None  # to hold much in memory
    event = context.waiters.subscribe(plan.names())
    try:
        while True:
            event.clear()
            # First look again: between the last look and the subscription something may have changed.
            await plan.evaluate()
            left_ms = deadline_ms - context.monotonic_ms()
            if plan.is_satisfied or left_ms <= 0:
                return
            if plan.memory_bytes > _HELD_BYTES_MAX:
                if began_ms is None:
                    began_ms = context.monotonic_ms()
                left_ms = min(left_ms, began_ms + _HELD_MS_MAX - context.monotonic_ms())
                if left_ms <= 0 or context.record_memory.is_short:
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
        if each.size_bytes:
            sizes[each.topic or ""] += each.size_bytes
    for topic, size_bytes in sizes.items():
        context.traffic.fetched(topic, size_bytes=size_bytes)


def _throttle_ms(context: ServerContext, request: AnyRequest, plan: FetchPlan) -> int:
    """Charge the response to the client's quota: above 0 it gets nothing now, as in Kafka, and asks again."""
    size_bytes = plan.size_bytes + _PARTITION_BYTES * len(plan.fetched)
    client = request.session, request.client_id, CONSUMER_BYTE_RATE
    throttle_ms = context.quotas.throttle(*client, size_bytes)
    if throttle_ms:
        context.quotas.give_back(*client, size_bytes)
    return throttle_ms
