"""Produce: the batches of one request, each partition's a unit of the next commit.

    checks of the request     acks, permission to write, topics by name or id, one batch for each partition
    checks of batches         only of those that take long to decompress (batch_checks.py)
    units                     submitted in the order of the request, before anything else of the connection is read
    answer                    when all units are committed: base offset and append time, or the error of each partition

acks 1 and acks all are the same: an answer means a commit. With acks 0 there is no answer, and an error ends the
connection, which is all that such a client can notice. Batches are checked, and compared with what the producer has
written before, by the writer inside of the commit (root/commit).

Source of the rules: kafka.server.KafkaApis.handleProduceRequest, ReplicaManager.appendRecords, ProduceRequest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Final

from pyspark_kafkalog.errors import (
    InvalidRecordError,
    KafkalogError,
    UnsupportedFormatError,
    without_frames,
)
from pyspark_kafkalog.metadata.access.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, BatchHeader, parse_header
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit, LeaderAppend
from pyspark_kafkalog.server.context import AnyRequest, CloseConnection, Handler, Request, ServerContext, Session
from pyspark_kafkalog.server.event_loop import Turn, results_in_turns
from pyspark_kafkalog.server.metadata.known_topics import current_topic_name
from pyspark_kafkalog.server.request_errors import error_code_of, text_for_client
from pyspark_kafkalog.server.transactions.gate import TransactionGate
from pyspark_kafkalog.server.writes.batch_checks import BatchChecks
from pyspark_kafkalog.storage.log.leader_append import REQUEST
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, TopicPartition
from pyspark_kafkalog.values import quick_dataclass

_ACKS: Final = (-1, 0, 1)
_TOPIC_IDS_FROM: Final = 13
_ZSTD_FROM: Final = 7
#: Errors of batches that a partition has looked at: the answer tells where its log starts.
_TELLS_LOG_START: Final = frozenset(
    {
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
#: The attachment of a session with the submission of the last request, while that lasts.
_SUBMITTING: Final = "produce submission"
#: Kafka's admin client: the only one that may write to internal topics.
_ADMIN_CLIENT: Final = "__admin_client"


@quick_dataclass(frozen=True, slots=True)
class _Batch:
    """The batch for one partition of a request, and its answer if it was refused."""

    index: int
    append: LeaderAppend | None = None
    header: BatchHeader | None = None
    refused: PartitionProduceResponse | None = None
    is_costly: bool = False

    @property
    def is_transactional(self) -> bool:
        return self.header is not None and self.header.is_transactional


@quick_dataclass(frozen=True, slots=True)
class _Topic:
    """One topic of a request. `name` is "" if the request has its id, and no topic has that."""

    data: TopicProduceData
    name: str
    batches: Sequence[_Batch]
    is_transactional: bool = False
    is_costly: bool = False


def produce_handler(gate: TransactionGate) -> Handler:
    """The handler; `gate` is asked about batches with a transactional id."""
    checks = BatchChecks()

    async def handle(context: ServerContext, request: Request[ProduceRequest]) -> ProduceResponse | None:
        body = request.body
        # The batches of a short request are submitted before anything else of the connection is read, or checked first:
        # then later requests wait until they are submitted.
        turn = Turn(is_whole=not request.is_long)
        if request.is_long:
            await context.run(context.root.refresh)
        topics = [await _topic(context, checks, request, body, each, turn) for each in body.topic_data]
        if body.transactional_id is None and any(each.is_transactional for each in topics):
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            topics = [await _refused_topic(each.data, each.name, error, turn) for each in topics]
        async with _submitting(request.session, is_check=any(each.is_costly for each in topics)) as is_checking:
            if is_checking:
                topics = [await _checked(context, checks, request.session, each) for each in topics]
            submitted = []
            for topic in topics:
                for each in topic.batches:
                    if each.append is not None:
                        submitted.append(context.committer.submit(_unit(gate, request, body, each)))
                    await turn.step()
        results = await results_in_turns(submitted)
        remaining = iter(results)
        answers = [await _answered(context, each, remaining, turn) for each in topics]
        if body.acks == 0:
            failed = next((each.error_code for of in answers for each in of.partition_responses if each.error_code), 0)
            if failed:
                raise CloseConnection(f"a Produce with acks 0 failed: {failed}")
            return None
        return ProduceResponse(responses=tuple(answers))

    return handle


@contextlib.asynccontextmanager
async def _submitting(session: Session, *, is_check: bool) -> AsyncIterator[bool]:
    """Submits a request of the connection in the block, after the earlier ones; the value is `is_check`.

    The block may only wait if `is_check`: then the next request waits until it ends.
    """
    earlier = session.attachments.get(_SUBMITTING)
    if earlier is None and not is_check:
        yield False
        return
    submitted = asyncio.get_running_loop().create_future()
    session.attachments[_SUBMITTING] = submitted
    try:
        if isinstance(earlier, asyncio.Future):
            await asyncio.wait((earlier,))
        yield is_check
    finally:
        submitted.set_result(None)
        if session.attachments[_SUBMITTING] is submitted:
            del session.attachments[_SUBMITTING]


async def _checked(context: ServerContext, checks: BatchChecks, session: Session, topic: _Topic) -> _Topic:
    """The topic, whose costly batches are checked."""
    if not topic.is_costly:
        return topic
    batches = []
    for each in topic.batches:
        if each.append is None or not each.is_costly:
            batches.append(each)
            continue
        try:
            batches.append(replace(each, append=await checks.check(context, session, each.append)))
        except KafkalogError as problem:
            error = without_frames(problem)
            batches.append(_Batch(each.index, header=each.header, refused=_committed(context, topic, each, error)))
    return replace(topic, batches=batches)


def _unit(gate: TransactionGate, request: AnyRequest, body: ProduceRequest, batch: _Batch) -> CommitUnit:
    assert batch.append is not None
    assert batch.header is not None
    if body.transactional_id is not None and batch.header.is_transactional:
        return gate.produce_unit(request.api_version, body.transactional_id, batch.append)
    return CommitUnit.of(batch.append)


async def _answered(
    context: ServerContext,
    topic: _Topic,
    results: Iterator[tuple[AppendedRange, ...] | BaseException],
    turn: Turn,
) -> TopicProduceResponse:
    """The answer for a topic, whose batches are counted."""
    answers = []
    for each in topic.batches:
        answer = each.refused or _committed(context, topic, each, next(results))
        answers.append(answer)
        _count(context, topic, each, answer)
        await turn.step()
    return TopicProduceResponse(name=topic.data.name, topic_id=topic.data.topic_id, partition_responses=tuple(answers))


def _count(context: ServerContext, topic: _Topic, batch: _Batch, answer: PartitionProduceResponse) -> None:
    if answer.error_code:
        # What does not exist has no metrics: clients may name as many topics as they like.
        if topic.name in context.image().topics:
            context.traffic.produce_failed(topic.name)
    elif batch.header is not None:
        header = batch.header
        context.traffic.produced(topic.name, records=header.records_count, size_bytes=header.size_bytes)


async def _topic(
    context: ServerContext,
    checks: BatchChecks,
    request: AnyRequest,
    body: ProduceRequest,
    data: TopicProduceData,
    turn: Turn,
) -> _Topic:
    """One topic of the request with its batches, in their order."""
    await turn.step()
    error, name, topic_id = _check_topic(context, request, body, data)
    if error is not ErrorCode.NONE:
        return await _refused_topic(data, name, error, turn)
    batches = []
    for each in data.partition_data:
        if request.is_long and context.image().find(name, each.index) is None:
            # A commit would say the same of a thousand partitions as slowly as it writes to them.
            batches.append(_Batch(each.index, refused=_refusal(each.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        else:
            batches.append(_batch(context, checks, request, name, topic_id, each))
        await turn.step()
    return _Topic(
        data,
        name,
        batches,
        is_transactional=any(each.is_transactional for each in batches),
        is_costly=any(each.is_costly for each in batches),
    )


def _batch(
    context: ServerContext,
    checks: BatchChecks,
    request: AnyRequest,
    name: str,
    topic_id: str | None,
    data: PartitionProduceData,
) -> _Batch:
    try:
        view, header = _one_batch(data)
    except KafkalogError as problem:
        return _Batch(data.index, refused=_answer(data.index, problem))
    if header.compression_bits == CompressionType.ZSTD and request.api_version < _ZSTD_FROM:
        return _Batch(data.index, refused=_refusal(data.index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
    append = LeaderAppend(topic_partition=TopicPartition(name, data.index), data=view, topic_id=topic_id)
    return _Batch(data.index, append, header, is_costly=checks.is_needed(context, name, view, header))


def _check_topic(
    context: ServerContext, request: AnyRequest, body: ProduceRequest, topic: TopicProduceData
) -> tuple[ErrorCode, str, str | None]:
    """An error for all of the topic's partitions, its name and, if the request has it, its id."""
    name, topic_id = topic.name, None
    if request.api_version >= _TOPIC_IDS_FROM:
        topic_id = topic.topic_id
        found = current_topic_name(context, topic_id)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_ID, "", None
        name = found
    if body.acks not in _ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS, name, topic_id
    if not context.guard.allows(request.session, AclOperation.WRITE, ResourceType.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, topic_id
    if body.transactional_id is not None and not context.guard.allows(
        request.session, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id
    ):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, name, topic_id
    if name in INTERNAL_TOPICS and request.client_id != _ADMIN_CLIENT:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, name, topic_id
    return ErrorCode.NONE, name, topic_id


def _one_batch(data: PartitionProduceData) -> tuple[memoryview, BatchHeader]:
    """The partition's batch and its header.

    Raises InvalidRecordError unless there is exactly one, CorruptRecordError for damage.
    """
    records = data.records
    if not isinstance(records, (bytes, memoryview)) or len(records) < RECORD_BATCH_OVERHEAD_BYTES:
        raise InvalidRecordError(f"partition {data.index}: expected one record batch, found none")
    view = memoryview(records)
    try:
        header = parse_header(view, 0, file=REQUEST, file_position=0)
    except UnsupportedFormatError as error:  # magic 0 or 1, which no version of the request allows
        raise InvalidRecordError(str(error)) from error
    if header.size_bytes != len(view):
        raise InvalidRecordError(
            f"partition {data.index}: expected one record batch of {len(view)} bytes, found one of {header.size_bytes}"
        )
    return view, header


def _committed(
    context: ServerContext, topic: _Topic, batch: _Batch, result: tuple[AppendedRange, ...] | BaseException
) -> PartitionProduceResponse:
    """The answer for a batch that the commit took or refused."""
    answer = _answer(batch.index, result)
    found = context.image().topics.get(topic.name) if answer.error_code in _TELLS_LOG_START else None
    if found is None or not 0 <= batch.index < len(found.partitions):
        return answer
    return PartitionProduceResponse(
        index=batch.index,
        error_code=answer.error_code,
        base_offset=-1,
        log_start_offset=found.partitions[batch.index].state.log_start_offset,
        record_errors=answer.record_errors,
        error_message=answer.error_message,
    )


def _answer(index: int, result: tuple[AppendedRange, ...] | BaseException) -> PartitionProduceResponse:
    if isinstance(result, BaseException):
        if not isinstance(result, (KafkalogError, OSError)):
            raise result
        record_errors = getattr(result, "record_errors", ())
        return _refusal(index, error_code_of(result), text_for_client(result), record_errors)
    appended = result[-1]  # before it may come records of the transaction that the batch is a part of
    return PartitionProduceResponse(
        index=index,
        base_offset=appended.first_offset,
        log_append_time_ms=appended.log_append_time_ms,
        log_start_offset=appended.log_start_offset,
    )


async def _refused_topic(data: TopicProduceData, name: str, error: ErrorCode, turn: Turn) -> _Topic:
    refused = []
    for each in data.partition_data:
        refused.append(_Batch(each.index, refused=_refusal(each.index, error)))
        await turn.step()
    return _Topic(data, name, refused)


def _refusal(
    index: int, error_code: ErrorCode, message: str | None = None, record_errors: Sequence[tuple[int, str]] = ()
) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=error_code,
        base_offset=-1,
        log_start_offset=-1,
        record_errors=tuple(
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=text) for at, text in record_errors
        ),
        error_message=message,
    )
