"""The straight way of the usual OffsetCommit: read at fixed places, its records made of these bytes, answered at once.

    request      version 8 or later, some topics that exist, with some of their partitions; short names and metadata
    client       authenticated if it has to be, may read the group and the topics, and request_percentage has no quota
    group        of a partition of `__consumer_offsets` that is loaded, and coordinated here

Everything else is for the general way (`connections/dispatch.py`, `groups/offsets.py`), which parses, checks and
encodes any request. Both write the same records, in the same way (`groups/shard.py`), and answer with the same bytes; a
property test sends arbitrary requests both ways. The general way reads what others have written to the partition before
it decides. Here that is done only for a request that would be refused: the commit of one that is not finds it out.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from pyspark_kafkalog.groups.offset_records import METADATA_BYTES_MAX, usual_keys, usual_values
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, Piece
from pyspark_kafkalog.metadata.messages.struct_codec import encode_uuid
from pyspark_kafkalog.protocol.api import FRAME_SIZE, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.server.context import Request, ServerContext, Session
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator
from pyspark_kafkalog.server.groups.offsets import TOPIC_IDS_FROM, CommittingMember, commit_plan
from pyspark_kafkalog.server.groups.shard import Planned, Shard
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.server.straight.produce import Answer, Handled
from pyspark_kafkalog.storage.names import decode_uuid
from pyspark_kafkalog.values import quick_dataclass

_VERSIONS: Final = range(8, 11)
#: API key, version, correlation id, length of the client id.
_HEAD: Final = struct.Struct(">hhih")
_INT32: Final = struct.Struct(">i")
#: Of a partition: its number, offset, leader epoch; the length of the metadata, which is one more.
_PARTITION: Final = struct.Struct(">iqiB")
#: The same without metadata, of which the length is 0 if they are null, and with no tagged fields.
_BARE_PARTITION: Final = struct.Struct(">iqiBB")
_UUID_BYTES: Final = 16
_LENGTH_MAX: Final = 0x7F

#: Size, correlation id, no tagged fields of the header, the throttle time, the number of topics.
_ANSWER_HEAD: Final = struct.Struct(">iiBiB")
#: A partition: its number, error code, no tagged fields.
_ANSWER: Final = struct.Struct(">ihB")

#: A partition's number, offset, leader epoch and metadata.
_Row: TypeAlias = tuple[int, int, int, bytes]


@quick_dataclass(frozen=True, slots=True)
class UsualCommit:
    """An OffsetCommit of the usual form: of each topic its id or name as in the frame, and its partitions."""

    api_version: int
    correlation_id: int
    group_id: str
    member: CommittingMember
    topics: tuple[tuple[bytes, list[_Row]], ...]


def parse_usual_commit(frame: bytearray) -> UsualCommit | None:
    """The request in a frame; None if it is not of the usual form, or damaged."""
    try:
        api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
        at = _HEAD.size + max(length, 0)
        if api_key != ApiKey.OFFSET_COMMIT or version not in _VERSIONS or frame[at]:
            return None
        group_id, at = _text(frame, at + 1)
        (generation,) = _INT32.unpack_from(frame, at)
        member_id, at = _text(frame, at + _INT32.size)
        instance_id, at = _text(frame, at)
        topics_count = frame[at]
        at += 1
        if group_id is None or member_id is None or not 1 < topics_count <= _LENGTH_MAX:
            return None
        topics = []
        for _ in range(topics_count - 1):
            size = _UUID_BYTES if version >= TOPIC_IDS_FROM else frame[at]
            count = frame[at + size]
            if not 1 < size <= _LENGTH_MAX or not 1 < count <= _LENGTH_MAX:
                return None
            rows, end = _rows(frame, at + size + 1, count - 1)
            if frame[end]:
                return None
            topics.append((bytes(frame[at : at + size]), rows))
            at = end + 1
        if frame[at] or len(frame) != at + 1:
            return None
    except (struct.error, IndexError, ValueError):  # among the last an error of UTF-8
        return None
    return UsualCommit(
        version, correlation_id, group_id, CommittingMember(member_id, instance_id, generation), tuple(topics)
    )


def _text(frame: bytearray, at: int) -> tuple[str | None, int]:
    """A text of which the length is in one byte, and where it ends. Raises IndexError, ValueError."""
    length = frame[at]
    end = at + max(length, 1)
    if length > _LENGTH_MAX or end > len(frame):
        raise ValueError
    return (frame[at + 1 : end].decode() if length else None), end


def _rows(frame: bytearray, at: int, count: int) -> tuple[list[_Row], int]:
    """So many partitions, and where they end. Raises struct.error, IndexError, ValueError."""
    end = at + count * _BARE_PARTITION.size
    if end <= len(frame):
        bare = list(_BARE_PARTITION.iter_unpack(memoryview(frame)[at:end]))
        if all(length <= 1 and not tags for *_, length, tags in bare):
            return [(number, offset, epoch, b"") for number, offset, epoch, *_ in bare], end
    rows = []
    for _ in range(count):
        number, offset, epoch, length = _PARTITION.unpack_from(frame, at)
        at += _PARTITION.size
        metadata = bytes(frame[at : at + max(length - 1, 0)])
        at += len(metadata)
        if length > METADATA_BYTES_MAX + 1 or frame[at] or not metadata.isascii():
            raise ValueError
        rows.append((number, offset, epoch, metadata))
        at += 1
    return rows, at


class StraightCommit:
    """A usual OffsetCommit that is to be handled and answered, as an Exchange (connections/dispatch.py)."""

    __slots__ = ("_answer", "_handled", "_plan", "_request", "_shard")

    api_key = ApiKey.OFFSET_COMMIT
    is_long = False

    def __init__(
        self, request: UsualCommit, shard: Shard, plan: Callable[[], Planned], handled: Handled, answer: Answer
    ) -> None:
        self._request = request
        self._shard = shard
        self._plan = plan
        self._handled = handled
        self._answer = answer

    async def handle(self) -> Sequence[Piece] | None:
        """As Exchange.handle."""
        began_s = time.perf_counter()
        request, error = self._request, ErrorCode.NONE
        try:
            await self._shard.write(request.group_id, self._plan, may_be_behind=True)
        except RequestError as refused:
            error = refused.code
        except Exception as raised:
            failure = raised.with_traceback(None)

            def failed(context: ServerContext, general: Request[ApiMessage]) -> Awaitable[None]:
                raise failure

            return await self._answer(failed)
        self._handled(ApiKey.OFFSET_COMMIT, request.api_version, time.perf_counter() - began_s, 0)
        return (_packed_answer(request, error),)


def straight_commit(
    context: ServerContext,
    groups: GroupCoordinator,
    session: Session,
    request: UsualCommit,
    handled: Handled,
    answer: Answer,
) -> StraightCommit | None:
    """The exchange of a usual request to a server that writes; None if the general way has to decide."""
    shard = groups.loaded_shard_of(request.group_id)
    allows = context.guard.allows
    if shard is None or not allows(session, AclOperation.READ, ResourceType.GROUP, request.group_id, logs_denial=False):
        return None
    if context.broker_config().offset_metadata_max_bytes < METADATA_BYTES_MAX:
        return None
    image, has_ids = context.image(), request.api_version >= TOPIC_IDS_FROM
    now_ms = context.clock()
    changes: dict[bytes, bytes | None] = {}
    topic_ids: dict[str, str | None] = {}
    for named, rows in request.topics:
        name = image.topic_names.get(encode_uuid(named)) if has_ids else named[1:].decode(errors="replace")
        topic = None if name is None else image.topics.get(name)
        if name is None or topic is None or topic.topic_id == ZERO_UUID:
            return None
        numbers = [row[0] for row in rows]
        if min(numbers) < 0 or max(numbers) >= len(topic.partitions):
            return None
        if not allows(session, AclOperation.READ, ResourceType.TOPIC, name, logs_denial=False):
            return None
        key, value = usual_keys(request.group_id, name), usual_values(decode_uuid(topic.topic_id), now_ms)
        for number, offset, leader_epoch, metadata in rows:
            changes[key(number)] = value(offset, leader_epoch, metadata)
        if has_ids:
            topic_ids[name] = topic.topic_id
    plan = commit_plan(
        context, shard, request.group_id, request.member, changes, topic_ids, api_version=request.api_version
    )
    return StraightCommit(request, shard, plan, handled, answer)


def _packed_answer(request: UsualCommit, error: ErrorCode) -> bytes:
    parts = [b""]
    for named, rows in request.topics:
        parts += (named, bytes((len(rows) + 1,)), *[_ANSWER.pack(row[0], error, 0) for row in rows], b"\0")
    content = b"".join(parts)
    size = _ANSWER_HEAD.size - FRAME_SIZE.size + len(content) + 1
    return _ANSWER_HEAD.pack(size, request.correlation_id, 0, 0, len(request.topics) + 1) + content + b"\0"
