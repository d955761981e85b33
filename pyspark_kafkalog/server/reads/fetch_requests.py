"""The partitions that a Fetch request reads, which it names or which its session continues, and its response.

    OpenedFetch            a request with its session, if it has one
    OpenedFetch.answer     the response for the partitions that were read; the session notes what it says

Requests of a session come one after the other. If one overtakes another, on a second connection, the later epoch
counts: the session is as if the earlier request had not been answered, and it gets INVALID_FETCH_SESSION_EPOCH.

Source of the rules: FetchManager.newContext, FullFetchContext, IncrementalFetchContext, SessionlessFetchContext.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    PartitionData,
)
from pyspark_kafkalog.server.context import Request
from pyspark_kafkalog.server.reads.fetch_plan import FetchedPartition
from pyspark_kafkalog.server.reads.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    FetchSessions,
    PartitionKey,
    SessionPartition,
)

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
