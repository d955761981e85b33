"""Produce: the batches of one request, each partition's a unit of the next commit.

    checks of the request     acks, permission to write, topics by name or id, one batch for each partition
    checks of batches         only of those that take long to decompress (`BatchChecks`), before the commit
    units                     submitted in the order of the request, before anything else of the connection is read
    answer                    when all units are committed: base offset and append time, or the error of each partition

acks 1 and acks all are the same: an answer means a commit. With acks 0 there is no answer, and an error ends the
connection, which is all that such a client can notice. Batches are checked, and compared with what the producer has
written before, by the writer inside of the commit (root/commit).

The records of a batch are decompressed to be checked. Of a usual batch that takes the committer less than a
millisecond; but a batch of a few kilobytes can have 256 MiB of content, and the commits of all clients would wait for
it. So such batches are checked in threads:

    not costly      not compressed, or with little content for its size, to be stored as it is: the committer checks it
    quick check     content of some megabytes at most, no rewriting: a few at the same time
    check           content of 32 MiB at most: two at the same time
    long check      any other batch, as large as decompressed_limit_bytes allows: one at a time

Clients take turns: a principal, or a host of clients that are not authenticated, that sends many such batches waits for
itself. How much content a batch can have is found out without decompressing it: by the sizes of the blocks in its
frame, or for gzip by its own. Nothing outlives the request: a crash loses what was checked and not committed, and the
client sends it again.

A server that only reads its log directory refuses Produce and InitProducerId, but has them: from the versions of
Produce that a broker announces librdkafka tells the record formats and codecs that it may fetch, and without
InitProducerId it takes the server for a Kafka before 0.11. InitProducerId has no text for the reason. Its errors are
the two that all clients take as final: with others, librdkafka asks again for ever.

Source of the rules: kafka.server.KafkaApis.handleProduceRequest, ReplicaManager.appendRecords, ProduceRequest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import (
    CorruptRecordError,
    InvalidRecordError,
    KafkalogError,
    UnsupportedFormatError,
    without_frames,
)
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
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
from pyspark_kafkalog.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from pyspark_kafkalog.record.codecs import lz4, snappy
from pyspark_kafkalog.record.codecs.codec import CODECS, BadCompressedDataError, CompressionType
from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    COMPRESSION_MASK,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    RECORD_BATCH_OVERHEAD_BYTES,
    BatchHeader,
    parse_header,
)
from pyspark_kafkalog.record.kernels.zstd import UNKNOWN, bounds_of
from pyspark_kafkalog.record.scan import as_bytes_array
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit, LeaderAppend
from pyspark_kafkalog.server.context import (
    ANONYMOUS,
    READ_ONLY,
    AnyRequest,
    CloseConnection,
    Request,
    ServerContext,
    Session,
)
from pyspark_kafkalog.server.event_loop import YieldBudget, results_in_turns
from pyspark_kafkalog.server.metadata import current_topic_name
from pyspark_kafkalog.server.request_errors import error_code_of, text_for_client
from pyspark_kafkalog.server.transactions.units import TransactionAdmission
from pyspark_kafkalog.storage.log.leader_append import REQUEST, PreparedBatches, prepare_batches
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, TopicPartition
from pyspark_kafkalog.units import KIB, MIB

#: The content of a batch that is not costly: so much, or so many times its size. A client that makes others wait for
#: more content has to send more.
_CONTENT_BYTES_MAX: Final = MIB
_RATIO_MAX: Final = 4
#: gzip makes a thousand bytes of one.
_GZIP_BYTES_MAX: Final = 2 * KIB
#: A frame with more blocks is not of that content, or of blocks that clients do not make.
_BLOCKS_MAX: Final = 256
#: Compressing a larger batch takes the committer too long.
_REWRITTEN_BYTES_MAX: Final = 16 * KIB
#: What a quick check decompresses: so much, or so many times the size of the batch.
_QUICK_BYTES_MAX: Final = 4 * MIB
_QUICK_RATIO_MAX: Final = 8
_QUICK_TOGETHER: Final = 4
#: What a check decompresses that is not long.
_CHECK_BYTES_MAX: Final = 32 * MIB
_CHECKS_TOGETHER: Final = 2


def is_costly(batch: memoryview, codec: int) -> bool:
    """Whether the content of a batch with the codec bits `codec` takes too long to check inside of a commit.

    Takes some microseconds. `batch` is as long as a header at least.
    """
    if codec == CompressionType.NONE:
        return False
    if codec == CompressionType.GZIP:
        return len(batch) > _GZIP_BYTES_MAX
    frame = as_bytes_array(batch)[RECORD_BATCH_OVERHEAD_BYTES:]
    if codec == CompressionType.ZSTD:
        content = int(bounds_of(np.array([address_of(frame)]), np.array([len(frame)]))[0])
        most = None if content == UNKNOWN else content
    elif codec in (CompressionType.LZ4, CompressionType.SNAPPY):
        content_max_bytes = lz4.content_max_bytes if codec == CompressionType.LZ4 else snappy.content_max_bytes
        try:
            most = content_max_bytes(frame, blocks_max=_BLOCKS_MAX)
        except BadCompressedDataError:
            most = 0  # the committer finds that out as soon
    else:
        most = 0  # no codec
    return most is None or most > max(_CONTENT_BYTES_MAX, _RATIO_MAX * len(batch))


class Slots:
    """A number of slots, which owners who wait get in turn. Used in the event loop's thread."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next owner comes first

    @contextlib.asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Have a slot while the block runs."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(owner, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            owner = next(iter(self._waiting))
            turns = self._waiting.pop(owner)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def needs_check(context: ServerContext, topic: str, batch: memoryview, codec: int) -> bool:
    """Whether a batch is costly, or is too large to be compressed again inside of a commit. As of `is_costly`."""
    if is_costly(batch, codec):
        return True
    if codec == CompressionType.NONE or codec not in CODECS or len(batch) <= _REWRITTEN_BYTES_MAX:
        return False
    config = _topic_config(context, topic)
    return config is not None and config.stored_compression(CompressionType(codec)) != codec


class BatchChecks:
    """The checks of one server. Used in the event loop's thread."""

    def __init__(self) -> None:
        self._quick = Slots(_QUICK_TOGETHER)
        self._checks = Slots(_CHECKS_TOGETHER)
        self._long = Slots(1)

    async def check(self, context: ServerContext, session: Session, append: LeaderAppend) -> LeaderAppend:
        """The append with its batch checked, or as it was if its topic does not exist. Raises KafkalogError."""
        owner = session.host if session.principal == ANONYMOUS else session.principal
        if append.topic_partition.topic not in context.image().topics:
            return append
        content_max = max(_QUICK_BYTES_MAX, _QUICK_RATIO_MAX * len(append.data))
        async with self._quick.of(owner):
            prepared = await context.run(partial(_prepared, context, append, content_max))
        if prepared is None:
            async with self._checks.of(owner):
                prepared = await context.run(partial(_prepared_if_small, context, append))
        if prepared is None:
            async with self._long.of(owner):
                prepared = await context.run(partial(_prepared, context, append, None))
        return append if prepared is None else replace(append, prepared=prepared)


def _topic_config(context: ServerContext, topic: str) -> LogConfig | None:
    """The configuration of a topic; None if there is no such topic."""
    image = context.image()
    found = image.topics.get(topic)
    return None if found is None else context.root.native().configs.of(image, found)


def _prepared_if_small(context: ServerContext, append: LeaderAppend) -> PreparedBatches | None:
    """The batch, also rewritten; None if it has too much content, or is damaged."""
    batch = as_bytes_array(append.data)
    codec = int(batch[ATTRIBUTES_AT + 1]) & COMPRESSION_MASK
    try:
        CODECS[CompressionType(codec)].decompress(
            batch[RECORD_BATCH_OVERHEAD_BYTES:], file=REQUEST, file_position=0, max_bytes=_CHECK_BYTES_MAX
        )
    except CorruptRecordError:
        return None
    return _prepared(context, append, None)


def _prepared(context: ServerContext, append: LeaderAppend, content_max: int | None) -> PreparedBatches | None:
    config = _topic_config(context, append.topic_partition.topic)
    if config is None:
        return None
    return prepare_batches(append.data, config, now_ms=context.clock(), decompressed_max_bytes=content_max)


async def refuse_produce(context: ServerContext, request: Request[ProduceRequest]) -> ProduceResponse:
    """Versions 3 to 13. Raises CloseConnection if the client expects no answer."""
    body = request.body
    if body.acks == 0:
        raise CloseConnection(READ_ONLY)
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    PartitionProduceResponse(
                        index=each.index, error_code=ErrorCode.POLICY_VIOLATION, base_offset=-1, error_message=READ_ONLY
                    )
                    for each in topic.partition_data
                ),
            )
            for topic in body.topic_data
        )
    )


async def refuse_producer_id(context: ServerContext, request: Request[InitProducerIdRequest]) -> InitProducerIdResponse:
    """For idempotent producers and transactional ones."""
    body = request.body
    error = (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if body.transactional_id is None
        else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)


_ACKS: Final = (-1, 0, 1)
TOPIC_IDS_FROM: Final = 13
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
SUBMITTING: Final = "produce submission"
#: Kafka's admin client: the only one that may write to internal topics.
_ADMIN_CLIENT: Final = "__admin_client"


@dataclass(slots=True)
class _Batch:
    """The batch for one partition of a request. `append` is None once it is refused; then it has its `answer`.

    `topic` is "" if the request states an id that no topic has.
    """

    topic: str
    index: int
    append: LeaderAppend | None = None
    header: BatchHeader | None = None
    is_costly: bool = False
    answer: PartitionProduceResponse | None = None

    @property
    def is_transactional(self) -> bool:
        return self.header is not None and self.header.is_transactional

    def refuse(self, answer: PartitionProduceResponse) -> None:
        self.append, self.answer = None, answer


class Produces:
    """The handler of a server that writes. `admission` makes the units of batches with a transactional id."""

    def __init__(self, admission: TransactionAdmission) -> None:
        self._admission = admission
        self._checks = BatchChecks()

    async def handle(self, context: ServerContext, request: Request[ProduceRequest]) -> ProduceResponse | None:
        """Submit the batches of a request, and answer when they are committed; None with acks 0.

        The batches of a short request are submitted before anything else of the connection is read, or checked first:
        then later requests wait until they are submitted.
        """
        body, session = request.body, request.session
        budget = YieldBudget(is_whole=not request.is_long)
        if request.is_long:
            await context.run(context.root.refresh)
        batches: list[_Batch] = []
        for topic in body.topic_data:
            await budget.step()
            error, name, topic_id = _check_topic(context, request, body, topic)
            for data in topic.partition_data:
                if error is ErrorCode.NONE:
                    batches.append(self._batch(context, request, name, topic_id, data))
                else:
                    batches.append(_Batch(name, data.index, answer=_refusal(data.index, error)))
                await budget.step()
        if body.transactional_id is None and any(each.is_transactional for each in batches):
            for batch in batches:
                batch.refuse(_refusal(batch.index, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
                await budget.step()
        if SUBMITTING in session.attachments or any(each.is_costly for each in batches):
            async with _after_earlier(session):
                for batch in batches:
                    if batch.is_costly and batch.append is not None:
                        await self._check(context, session, batch, batch.append)
                submitted = await self._submitted(context, request, batches, budget)
        else:
            submitted = await self._submitted(context, request, batches, budget)
        results = await results_in_turns(submitted)
        following = iter(results)
        answers: list[PartitionProduceResponse] = []
        for batch in batches:
            answer = batch.answer or _committed(context, batch, next(following))
            answers.append(answer)
            _count(context, batch, answer)
            await budget.step()
        if body.acks == 0:
            failed = next((each.error_code for each in answers if each.error_code), 0)
            if failed:
                raise CloseConnection(f"a Produce with acks 0 failed: {failed}")
            return None
        return _response(body, answers)

    def _batch(
        self, context: ServerContext, request: AnyRequest, topic: str, topic_id: str | None, data: PartitionProduceData
    ) -> _Batch:
        if request.is_long and context.image().find(topic, data.index) is None:
            # A commit would say the same of a thousand partitions as slowly as it writes to them.
            return _Batch(topic, data.index, answer=_refusal(data.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        try:
            view, header = _one_batch(data)
        except KafkalogError as problem:
            return _Batch(topic, data.index, answer=_answer(data.index, problem))
        if header.compression_bits == CompressionType.ZSTD and request.api_version < _ZSTD_FROM:
            return _Batch(topic, data.index, answer=_refusal(data.index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
        append = LeaderAppend(topic_partition=TopicPartition(topic, data.index), data=view, topic_id=topic_id)
        is_costly = needs_check(context, topic, view, header.compression_bits)
        return _Batch(topic, data.index, append, header, is_costly)

    async def _check(self, context: ServerContext, session: Session, batch: _Batch, append: LeaderAppend) -> None:
        """Check a costly batch, which may be refused."""
        try:
            batch.append = await self._checks.check(context, session, append)
        except KafkalogError as problem:
            batch.refuse(_committed(context, batch, without_frames(problem)))

    async def _submitted(
        self, context: ServerContext, request: Request[ProduceRequest], batches: Sequence[_Batch], budget: YieldBudget
    ) -> list[asyncio.Future[tuple[AppendedRange, ...]]]:
        """The batches that are not refused, submitted in their order."""
        transactional_id = request.body.transactional_id
        submitted = []
        for batch in batches:
            if batch.append is not None:
                if transactional_id is not None and batch.is_transactional:
                    unit = self._admission.produce_unit(request.api_version, transactional_id, batch.append)
                else:
                    unit = CommitUnit.of(batch.append)
                submitted.append(context.committer.submit(unit))
            await budget.step()
        return submitted


def _response(body: ProduceRequest, answers: Iterable[PartitionProduceResponse]) -> ProduceResponse:
    """The response with the answers for all partitions, in their order."""
    remaining = iter(answers)
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(islice(remaining, len(topic.partition_data))),
            )
            for topic in body.topic_data
        )
    )


def failed_response(
    context: ServerContext, topic: str, body: ProduceRequest, failure: BaseException
) -> ProduceResponse:
    """The response to a request with one batch, for `topic`, whose unit failed. Raises `failure` if it is a defect."""
    batch = _Batch(topic, body.topic_data[0].partition_data[0].index)
    answer = _committed(context, batch, failure)
    _count(context, batch, answer)
    return _response(body, (answer,))


@contextlib.asynccontextmanager
async def _after_earlier(session: Session) -> AsyncIterator[None]:
    """Submits a request of the connection in the block, after the earlier ones: the next one waits until it ends."""
    earlier = session.attachments.get(SUBMITTING)
    submitted = asyncio.get_running_loop().create_future()
    session.attachments[SUBMITTING] = submitted
    try:
        if isinstance(earlier, asyncio.Future):
            await asyncio.wait((earlier,))
        yield
    finally:
        submitted.set_result(None)
        if session.attachments[SUBMITTING] is submitted:
            del session.attachments[SUBMITTING]


def _count(context: ServerContext, batch: _Batch, answer: PartitionProduceResponse) -> None:
    if answer.error_code:
        # What does not exist has no metrics: clients may name as many topics as they like.
        if batch.topic in context.image().topics:
            context.traffic.produce_failed(batch.topic)
    elif batch.header is not None:
        header = batch.header
        context.traffic.produced(batch.topic, records=header.records_count, size_bytes=header.size_bytes)


def _check_topic(
    context: ServerContext, request: AnyRequest, body: ProduceRequest, topic: TopicProduceData
) -> tuple[ErrorCode, str, str | None]:
    """An error for all of the topic's partitions, its name and, if the request has it, its id."""
    name, topic_id = topic.name, None
    if request.api_version >= TOPIC_IDS_FROM:
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
    context: ServerContext, batch: _Batch, result: tuple[AppendedRange, ...] | BaseException
) -> PartitionProduceResponse:
    """The answer for a batch that the commit took or refused."""
    answer = _answer(batch.index, result)
    found = context.image().topics.get(batch.topic) if answer.error_code in _TELLS_LOG_START else None
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
