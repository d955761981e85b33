"""The straight way of the usual Produce: one batch for one partition, read at fixed places, answered by one structure.

    request      version 9 or later, acks 1 or all, no transaction, one topic that exists, one partition
    client       authenticated if it has to be, may write to the topic, and no quota is set
    batch        a whole one of format v2; if it is compressed, one that takes the committer no time to check

Everything else, and every error, is for the general way (`connections/dispatch.py`, `produce.py`), which parses, checks
and encodes any request. Both submit the same unit, count the same metrics and answer with the same bytes; a property
test sends arbitrary requests both ways. Nothing here changes the frame or outlives the request.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias

from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.schema import Piece
from pyspark_kafkalog.metadata.messages.struct_codec import encode_uuid
from pyspark_kafkalog.protocol.api import FRAME_SIZE, ApiKey
from pyspark_kafkalog.protocol.messages.records import ProduceRequest, ProduceResponse
from pyspark_kafkalog.record.header import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD_BYTES,
    TRANSACTIONAL_MASK,
)
from pyspark_kafkalog.root.commit.changes import CommitUnit, LeaderAppend, UnitResult
from pyspark_kafkalog.server.connections.request_bytes import HeldRequest
from pyspark_kafkalog.server.context import Handler, Request, ServerContext, Session
from pyspark_kafkalog.server.event_loop import Eager
from pyspark_kafkalog.server.produce import SUBMITTING, TOPIC_IDS_FROM, failed_response, needs_check
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, TopicPartition
from pyspark_kafkalog.values import quick_dataclass

_VERSIONS: Final = range(9, 14)
#: API key, version, correlation id, length of the client id.
_HEAD: Final = struct.Struct(">hhih")
#: After the client id: no tagged fields of the header, no transactional id, acks, timeout, one topic.
_BODY: Final = struct.Struct(">BBhiB")
#: After the topic: one partition, and its number.
_PARTITION: Final = struct.Struct(">Bi")
#: Of a batch: base offset, length, leader epoch, magic, CRC, attributes, last offset delta; and the number of records.
_BATCH: Final = struct.Struct(">qiibIhi30xi")
_ONE: Final = 2  # the length of a compact array is one more
_UUID_BYTES: Final = 16
_TEXT_MAX: Final = 0x7F
_VARINT_SHIFTS: Final = range(0, 35, 7)
_NO_TAGS: Final = bytes(3)  # of the partition, the topic, the request
_OFFSET_MAX: Final = 1 << 62

#: Size, correlation id, no tagged fields of the header, one topic; then its id or name.
_ANSWER_HEAD: Final = struct.Struct(">iiBB")
#: One partition: its number, error code, base offset, append time, log start; no errors of records, no message, no
#: tagged fields, also of the topic; the throttle time, no tagged fields.
_ANSWER: Final = struct.Struct(">BihqqqBBBBiB")
_NOTHING_MORE: Final = 1, 0, 0, 0, 0, 0

#: Has a handler answer the request in the general way.
Answer: TypeAlias = Callable[[Handler], Coroutine[Any, Any, "Sequence[Piece] | None"]]
#: Counts a handled request: its API and version, the seconds that it took, its top-level error code.
Handled: TypeAlias = Callable[[ApiKey, int, float, int], None]


@quick_dataclass(frozen=True, slots=True)
class UsualProduce:
    """A Produce of the usual form: `topic` is its id or name as in the frame, the batch is in frame[begin:end]."""

    api_version: int
    correlation_id: int
    topic: bytes
    partition: int
    begin: int
    end: int
    compression_bits: int
    records_count: int


def parse_usual(frame: bytearray) -> UsualProduce | None:
    """The request in a frame; None if it is not of the usual form, or damaged."""
    try:
        api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
        if api_key != ApiKey.PRODUCE or version not in _VERSIONS:
            return None
        at = _HEAD.size + max(length, 0)
        tags, transactional_id, acks, _, topics = _BODY.unpack_from(frame, at)
        if tags or transactional_id or acks not in (-1, 1) or topics != _ONE:
            return None
        at += _BODY.size
        size = _UUID_BYTES if version >= TOPIC_IDS_FROM else frame[at]
        if size > _TEXT_MAX:
            return None
        topic = bytes(frame[at : at + size])
        partitions, index = _PARTITION.unpack_from(frame, at + size)
        at += size + _PARTITION.size
        size = 0
        for shift in _VARINT_SHIFTS:
            byte = frame[at]
            at += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            return None
        end = at + size - 1
        if partitions != _ONE or len(frame) != end + len(_NO_TAGS) or not frame.endswith(_NO_TAGS):
            return None
        base_offset, length, _, magic, _, attributes, last_delta, count = _BATCH.unpack_from(frame, at)
    except (struct.error, IndexError):
        return None
    is_whole = magic == MAGIC_V2 and length + LOG_OVERHEAD_BYTES == end - at >= RECORD_BATCH_OVERHEAD_BYTES
    is_numbered = 0 <= base_offset < _OFFSET_MAX and last_delta >= 0 and count >= 0
    if not is_whole or not is_numbered or attributes & (TRANSACTIONAL_MASK | CONTROL_MASK):
        return None
    return UsualProduce(version, correlation_id, topic, index, at, end, attributes & COMPRESSION_MASK, count)


@quick_dataclass(frozen=True, slots=True)
class StraightProduce:
    """A usual Produce that is to be committed and answered, by `StraightProduces`."""

    context: ServerContext
    request: UsualProduce
    append: LeaderAppend
    handled: Handled
    answer: Answer
    api_key = ApiKey.PRODUCE

    def pieces(self, result: UnitResult | BaseException, seconds: float) -> Sequence[Piece]:
        """The answer to the result of the commit, `seconds` after the request has begun."""
        request, topic = self.request, self.append.topic_partition.topic
        if isinstance(result, BaseException):
            failure = result.with_traceback(None)  # its frames would keep the batch

            async def failed(context: ServerContext, general: Request[ProduceRequest]) -> ProduceResponse:
                return failed_response(context, topic, general.body, failure)

            general = Eager(self.answer(failed), lambda ended: None)
            assert general.is_done, "to answer with an error waits for nothing"
            return general.result() or ()
        (appended,) = result
        self.context.traffic.produced(topic, records=request.records_count, size_bytes=len(self.append.data))
        self.handled(ApiKey.PRODUCE, request.api_version, seconds, 0)
        size = _ANSWER_HEAD.size - FRAME_SIZE.size + len(request.topic) + _ANSWER.size
        offset, time_ms, start = appended.first_offset, appended.log_append_time_ms, appended.log_start_offset
        answer = _ANSWER.pack(_ONE, request.partition, 0, offset, time_ms, start, *_NOTHING_MORE)
        return (_ANSWER_HEAD.pack(size, request.correlation_id, 0, _ONE) + request.topic + answer,)


class StraightProduces:
    """Usual Produce requests of a connection that have arrived together: they are committed and answered together.

    No coroutine waits for the commit. `done` is called with this object at the end.
    """

    __slots__ = ("_began_s", "_done", "_error", "_exchanges", "_held", "_pieces", "count", "is_done")

    api_key = ApiKey.PRODUCE

    def __init__(
        self, exchanges: list[StraightProduce], held: HeldRequest, done: Callable[[StraightProduces], None]
    ) -> None:
        self._exchanges, self._held, self._done = exchanges, held, done
        self.count, self.is_done = len(exchanges), False
        self._pieces: list[Piece] = []
        self._error: Exception | None = None
        self._began_s = time.perf_counter()
        units = [CommitUnit(appends=(each.append,), size_bytes=len(each.append.data)) for each in exchanges]
        exchanges[0].context.committer.submit_together(units, self._delivered)

    def _delivered(self, results: Sequence[UnitResult | BaseException]) -> None:
        seconds = time.perf_counter() - self._began_s
        exchanges, self._exchanges = self._exchanges, []
        try:
            for exchange, result in zip(exchanges, results, strict=True):
                self._pieces += exchange.pieces(result, seconds)
        except Exception as error:
            self._error = error
        self.is_done = True
        self._held.release()
        self._done(self)

    def pieces(self) -> Sequence[Piece]:
        """The answers of all requests. Raises what has failed while they were made."""
        if self._error is not None:
            raise self._error
        return self._pieces


def straight_append(
    context: ServerContext, session: Session, frame: bytearray, request: UsualProduce
) -> LeaderAppend | None:
    """The append of a usual request to a server that writes; None if the general way has to decide."""
    if SUBMITTING in session.attachments:
        return None
    assert context.native is not None  # as this server writes
    image = context.native.store.image
    topic_id, name = None, None
    if request.api_version >= TOPIC_IDS_FROM:
        topic_id = encode_uuid(request.topic)
        name = image.topic_names.get(topic_id)
    else:
        name = request.topic[1:].decode(errors="replace")
    if name is None or name in INTERNAL_TOPICS or name not in image.topics:
        return None
    if not context.guard.allows(session, AclOperation.WRITE, ResourceType.TOPIC, name, logs_denial=False):
        return None
    batch = memoryview(frame)[request.begin : request.end]
    if request.compression_bits and needs_check(context, name, batch, request.compression_bits):
        return None
    return LeaderAppend(topic_partition=TopicPartition(name, request.partition), data=batch, topic_id=topic_id)
