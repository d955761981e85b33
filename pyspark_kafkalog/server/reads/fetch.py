"""Fetch: records of many partitions, at once or when there are enough of them.

Steps of a request: find its partitions (FetchPlan.evaluate), answer if it is satisfied, else wait for one of them to
change, at most `max_wait_ms`, and look again. After a wait, permissions are checked again.

    OpenedFetch            a request with its session, if it has one
    OpenedFetch.answer     the response for the partitions that were read; the session notes what it says

A full request names its partitions, and its response holds exactly these. One that continues a session
(fetch_sessions) reads the partitions of the session, and its response holds those that have news. Requests of a session
come one after the other. If one overtakes another, on a second connection, the later epoch counts: the session is as if
the earlier request had not been answered, and it gets INVALID_FETCH_SESSION_EPOCH.

A replica that fetches (`replica_id` of 0 or more) needs CLUSTER_ACTION in place of READ, and reads up to the high
watermark, as everything below it is all that is committed.

Source of the rules: KafkaApis.handleFetchRequest, DelayedFetch, FetchManager.newContext, FullFetchContext,
IncrementalFetchContext, SessionlessFetchContext.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.metadata.acl import AclOperation
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.metadata.users import CONSUMER_BYTE_RATE
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    PartitionData,
)
from pyspark_kafkalog.root.reads import RootPartitions
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext
from pyspark_kafkalog.server.reads.fetch_plan import FetchedPartition, FetchPlan
from pyspark_kafkalog.server.reads.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    FetchSessions,
    PartitionKey,
    SessionPartition,
)
from pyspark_kafkalog.server.reads.log_slices import LogSlices
from pyspark_kafkalog.server.reads.offsets import may, may_act_for_cluster, run_with
from pyspark_kafkalog.units import MIB

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


_TOPIC_IDS_FROM_VERSION: Final = 13
_READ_COMMITTED: Final = 1


@dataclass(frozen=True, slots=True)
class OpenedFetch:
    """One request: the partitions that it reads, in their order, and what becomes of its session.

    `session` is the one that it continues, whose next epoch is then `next_epoch`. `begins`: it asks for a new one.
    """

    sessions: FetchSessions
    request: Request[FetchRequest]
    partitions: Mapping[PartitionKey, SessionPartition]
    begins: bool = False
    session: FetchSession | None = None
    next_epoch: int = FINAL_EPOCH

    @property
    def is_committed(self) -> bool:
        return self.request.body.isolation_level == _READ_COMMITTED

    @property
    def _is_overtaken(self) -> bool:
        return self.session is not None and self.session.epoch != self.next_epoch

    def answer(self, fetched: Iterable[FetchedPartition]) -> FetchResponse:
        """The response for the partitions that were read; the others of the session have no news."""
        if self._is_overtaken:
            return self.empty_answer()
        answered = [(each, partition_data(each, is_committed=self.is_committed)) for each in fetched]
        if self.begins or self.session is not None:
            for each, _ in answered:
                each.kept.quiet_at = each.quiet_at
        by_id = _is_by_id(self.request)
        if self.session is None:
            session_id = self._begin(answered) if self.begins else NO_SESSION
            return fetch_response(answered, by_id=by_id, session_id=session_id)
        news = []
        for each, data in answered:
            if each.kept.tell(data, has_records=each.size_bytes > 0):
                news.append((each, data))
            if each.size_bytes:
                self.session.move_to_end(each.kept)
        return fetch_response(news, by_id=by_id, session_id=self.session.session_id)

    def empty_answer(self, throttle_time_ms: int = 0) -> FetchResponse:
        """Says nothing of any partition: the session is as before, and a new one does not begin."""
        return FetchResponse(
            error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH if self._is_overtaken else ErrorCode.NONE,
            session_id=NO_SESSION if self.session is None else self.session.session_id,
            throttle_time_ms=throttle_time_ms,
        )

    def _begin(self, answered: Iterable[tuple[FetchedPartition, PartitionData]]) -> int:
        for each, data in answered:
            each.kept.topic = each.topic
            each.kept.tell(data, has_records=each.size_bytes > 0)
        return self.sessions.begin(
            self.partitions,
            principal=self.request.session.principal,
            uses_topic_ids=_is_by_id(self.request),
            is_committed=self.is_committed,
        )


def open_fetch(sessions: FetchSessions, request: Request[FetchRequest]) -> OpenedFetch | ErrorCode:
    """The request with its session; an error for one that continues a session in a way that it cannot be continued."""
    body, principal = request.body, request.session.principal
    wanted = _wanted(request)
    if body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        sessions.close(body.session_id, principal)
        return OpenedFetch(sessions, request, wanted, begins=body.session_epoch == INITIAL_EPOCH)
    found = sessions.advance(
        body.session_id,
        body.session_epoch,
        wanted,
        _forgotten(request),
        principal=principal,
        uses_topic_ids=_is_by_id(request),
        is_committed=body.isolation_level == _READ_COMMITTED,
    )
    if isinstance(found, ErrorCode):
        return found
    if found is None:
        return OpenedFetch(sessions, request, wanted)
    return OpenedFetch(sessions, request, found.partitions, session=found, next_epoch=found.epoch)


def _is_by_id(request: Request[FetchRequest]) -> bool:
    return request.api_version >= _TOPIC_IDS_FROM_VERSION


def _wanted(request: Request[FetchRequest]) -> dict[PartitionKey, SessionPartition]:
    """The partitions of the request in its order; of one that it names twice, the last."""
    by_id = _is_by_id(request)
    found: dict[PartitionKey, SessionPartition] = {}
    for topic in request.body.topics:
        name, topic_id = (None, topic.topic_id) if by_id else (topic.topic, ZERO_UUID)
        for each in topic.partitions:
            key = topic_id if name is None else name, each.partition
            # What a session keeps has a known size.
            wanted = each.replace(unknown_tags=()) if each.unknown_tags else each
            found[key] = SessionPartition(key, wanted, topic_id, name)
    return found


def _forgotten(request: Request[FetchRequest]) -> Iterable[PartitionKey]:
    by_id = _is_by_id(request)
    for topic in request.body.forgotten_topics_data:
        for partition in topic.partitions:
            yield topic.topic_id if by_id else topic.topic, partition


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
        await plan.budget.step()
        await self._authorize(context, request, plan)
        await plan.budget.step()
        await plan.evaluate()
        if not plan.is_satisfied and body.max_wait_ms > 0:
            await _wait(
                context, plan, min(body.max_wait_ms, _LONG_WAIT_MAX_MS) if request.is_long else body.max_wait_ms
            )
            # The records may be newer than the end of the permission to read them. A broker answers with them.
            await self._authorize(context, request, plan)
        await plan.budget.step()
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
        await plan.budget.step()
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
            await plan.budget.step()
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
            if await _is_late(event, left_ms):
                return
    finally:
        context.waiters.unsubscribe(event)


async def _is_late(event: asyncio.Event, wait_ms: int) -> bool:
    """Wait for the event, at most so long; whether the time was over. Unlike asyncio.wait_for it makes no task."""
    late: list[bool] = []

    def end() -> None:
        late.append(True)
        event.set()

    timer = asyncio.get_running_loop().call_later(wait_ms / 1000, end)
    try:
        await event.wait()
    finally:
        timer.cancel()
    return bool(late)


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
