"""From the frame of a request to the pieces of its response: parse, authorize, handle, encode.

    frame -> header -> API and version -> body -> handler -> response -> pieces

ApiVersions is answered in any version, so that a later client can learn what there is; any other API or version that is
not advertised ends the connection, as in Kafka. Until a client is authenticated, where that is required, only
ApiVersions and the SASL requests are handled.

Requests run in the event loop's thread. One with many elements is read, and its answer encoded, in another one: it
takes up to a second, in which others are served. A few of them are handled at the same time.

Source of the rules: kafka.network.Processor.processCompletedReceives, kafka.server.KafkaApis.handle.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias, cast

from pyspark_kafkalog.errors import AuthenticationError, CorruptRecordError, KafkalogError, UnsupportedApiError
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import FieldSpec, Piece
from pyspark_kafkalog.metadata.users import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from pyspark_kafkalog.protocol.api import REQUEST_ELEMENTS_MAX, ApiKey, ParsedRequest, parse_request
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.server.connections.request_bytes import HeldRequest
from pyspark_kafkalog.server.context import CloseConnection, Handler, Request, ServerContext, Session
from pyspark_kafkalog.server.event_loop import Eager, RequestTime, Timed
from pyspark_kafkalog.server.metadata import unsupported_version
from pyspark_kafkalog.server.request_errors import error_code_of, text_for_client
from pyspark_kafkalog.server.roles import Roles
from pyspark_kafkalog.server.security.connection_policy import ConnectionPolicy
from pyspark_kafkalog.server.security.sasl import SaslAuthenticator
from pyspark_kafkalog.server.straight.fetch import parse_usual_fetch
from pyspark_kafkalog.server.straight.offsets import StraightCommit, parse_usual_commit, straight_commit
from pyspark_kafkalog.server.straight.produce import Handled, StraightProduce, parse_usual, straight_append
from pyspark_kafkalog.values import quick_dataclass

_LOG: Final = logging.getLogger(__name__)
_TOKEN_SIZE: Final = struct.Struct(">i")
_PERCENT: Final = 100
#: A request with more elements than this is read in a thread; so many are read within some milliseconds.
_FEW_ELEMENTS: Final = 2000
#: The elements of a request that only operators send: each of them costs more, and is work under the root's lock.
_ADMIN_ELEMENTS_MAX: Final = 20_000
#: APIs of clients, which may name all partitions that they know.
_OF_CLIENTS: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.TXN_OFFSET_COMMIT,
    }
)
#: Requests of many elements that are handled at the same time.
_LONG_REQUESTS_MAX: Final = 4
#: APIs whose requests wait for other clients: they are few, as each is of a member of a group, and have no limit.
_WAITING: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
#: APIs whose answers are long if there is much in the root, though the request is short.
_LONG_ANSWERS: Final = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.LIST_TRANSACTIONS,
    }
)

#: The APIs with a straight way, by the first bytes of their frames; a Fetch may wait for records.
BEGUN_APIS: Final = {each.to_bytes(2, "big"): each for each in (ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT)}
_STRAIGHT_APIS: Final = {**BEGUN_APIS, ApiKey.FETCH.to_bytes(2, "big"): ApiKey.FETCH}


class Dispatcher:
    """Finds the handler of each request."""

    def __init__(self, roles: Roles, policy: ConnectionPolicy, handled: Handled) -> None:
        self._roles = roles
        self._policy = policy
        self._handled = handled
        self._long_requests = asyncio.Semaphore(_LONG_REQUESTS_MAX)

    async def open(self, frame: bytearray, session: Session) -> AnyExchange:
        """The exchange of a frame that `straight` leaves. Raises CloseConnection for one that is not answered."""
        sasl = self._policy.sasl
        if sasl is not None and sasl.expects_token(session):
            return TokenExchange(sasl, session, bytes(frame))
        try:
            parsed = parse_request(frame, elements_max=_FEW_ELEMENTS)
            role = await self._roles.for_request()
            handler = role.handlers.get(parsed.api.key)
            if handler is None:
                raise CloseConnection(f"{parsed.api.key.name} is not served here")
            if sasl is not None and not sasl.admits(session, parsed.api.key):
                raise CloseConnection(f"{parsed.api.key.name} from a client that is not authenticated")
            body = self._body(parsed) if parsed.is_supported else None
        except (CorruptRecordError, UnsupportedApiError) as error:
            raise CloseConnection(str(error)) from None
        exchange = Exchange(role.context, self._policy, parsed, handler, body, session, len(frame), self._handled)
        return LongExchange(exchange, frame, self._long_requests) if parsed.has_many_elements else exchange

    def straight(self, frame: bytearray, session: Session) -> AnyExchange | None:
        """The exchange of a usual request of a client without quotas; None if the general way has to decide."""
        role, sasl, quotas = self._roles.current, self._policy.sasl, self._policy.quotas.names
        context = role.context
        if context.native is None or REQUEST_PERCENTAGE in quotas:
            return None
        api_key = _STRAIGHT_APIS.get(bytes(frame[:2]))
        if api_key is None or (sasl is not None and (sasl.expects_token(session) or not sasl.admits(session, api_key))):
            return None

        if api_key == ApiKey.FETCH:
            fetch = parse_usual_fetch(frame)
            if fetch is None:
                return None
            parsed, body = fetch
            handler = role.handlers[api_key]
            return Exchange(context, self._policy, parsed, handler, body, session, len(frame), self._handled)

        def answer(handler: Handler) -> Coroutine[Any, Any, Sequence[Piece] | None]:
            parsed = parse_request(frame)
            body, size_bytes = parsed.body(), len(frame)
            return Exchange(context, self._policy, parsed, handler, body, session, size_bytes, self._handled).handle()

        if api_key == ApiKey.OFFSET_COMMIT:
            commit = parse_usual_commit(frame)
            if commit is None:
                return None
            return straight_commit(context, role.groups, session, commit, self._handled, answer)
        request = None if PRODUCER_BYTE_RATE in quotas else parse_usual(frame)
        append = None if request is None else straight_append(context, session, frame, request)
        if request is None or append is None:
            return None
        return StraightProduce(context, request, append, self._handled, answer)

    def _body(self, parsed: ParsedRequest) -> Message | None:
        """The body of a request; None if it has too many elements to be read here."""
        try:
            return parsed.body()
        except CorruptRecordError:
            if not parsed.has_many_elements:
                raise
        return None


@quick_dataclass(frozen=True, slots=True)
class Exchange:
    """One request that is to be handled and answered. `body` is None for ApiVersions of an unknown version."""

    context: ServerContext
    policy: ConnectionPolicy
    parsed: ParsedRequest
    handler: Handler
    body: Message | None
    session: Session
    size_bytes: int
    handled: Handled

    @property
    def api_key(self) -> ApiKey:
        return self.parsed.api.key

    @property
    def is_long(self) -> bool:
        """Whether it has so many elements that others come first while it is handled."""
        return self.parsed.has_many_elements

    async def handle(self) -> Sequence[Piece] | None:
        """The pieces of the answer; None if there is none. Raises CloseConnection, and whatever is a defect."""
        began = time.perf_counter()
        throttle_ms = self._charge(PRODUCER_BYTE_RATE, self.size_bytes) if self.api_key == ApiKey.PRODUCE else 0
        spent = RequestTime()
        response = unsupported_version() if self.body is None else await self._timed_response(self.body, spent)
        error_code = getattr(response, "error_code", 0)
        self.handled(self.api_key, self.parsed.api_version, time.perf_counter() - began, error_code)
        if spent.seconds and self.session.is_authenticated:
            throttle_ms = max(throttle_ms, self._charge(REQUEST_PERCENTAGE, spent.seconds * _PERCENT))
        if response is None:
            return None
        if throttle_ms > getattr(response, "throttle_time_ms", throttle_ms):
            response = response.replace(throttle_time_ms=throttle_ms)
        if self.is_long or self.api_key in _LONG_ANSWERS:
            return await self.context.run(partial(self._pieces, response))
        return self._pieces(response)

    def _charge(self, quota: str, amount: float) -> int:
        """Charge bytes or time to the client's quota: the throttle_time_ms of the answer."""
        return self.policy.quotas.throttle(self.session, self.parsed.client_id, quota, amount)

    async def _timed_response(self, body: Message, spent: RequestTime) -> Message | None:
        """The response; the time that it took is added to `spent` if a quota for it exists."""
        if REQUEST_PERCENTAGE not in self.policy.quotas.names:
            return await self._response(body)
        return await Timed(self._response(body), spent)

    def _pieces(self, response: Message) -> list[Piece]:
        return self.parsed.encode_response(cast("ApiMessage", response))

    async def _response(self, body: Message) -> Message | None:
        parsed = self.parsed
        request = Request(parsed.api.key, parsed.api_version, parsed.client_id, body, self.session, self.is_long)
        try:
            return await self.handler(self.context, request)
        except CloseConnection:
            raise
        except (KafkalogError, OSError) as error:
            _LOG.warning("%s failed: %s", parsed.api.key.name, error)
            return self._error_response(body, error)
        except Exception as error:
            _LOG.exception("%s failed", parsed.api.key.name)
            return self._error_response(body, error)

    def _error_response(self, body: Message, error: BaseException) -> Message:
        """The response with the error for all that was asked for. Raises CloseConnection if it has no place for one."""
        text = text_for_client(error, is_logged=True)
        values = _ErrorValues(self.parsed.api_version, int(error_code_of(error)), text)
        response = self.parsed.api.response
        answer = response(**values.of(response, response.schema().spec.fields, body, body.schema().spec.fields))
        if not values.is_told or getattr(body, "acks", None) == 0:
            raise CloseConnection(f"{self.api_key.name} failed: {error}")
        return answer


@dataclass(slots=True)
class _ErrorValues:
    """Makes a response in which everything has failed (Kafka: AbstractRequest.getErrorResponse).

    A response has an error code of its own, or one for each element of an array, such as the partitions of a topic.
    The elements are those of the array of the request whose fields have the most of these names.
    """

    version: int
    error_code: int
    text: str
    is_told: bool = False

    def of(
        self, cls: type[Message], fields: Sequence[FieldSpec], asked: object, asked_fields: Sequence[FieldSpec]
    ) -> dict[str, Any]:
        """The values of a response or one of its elements, for what is `asked`."""
        fields = [each for each in fields if self.version in each.versions]
        asked_fields = [each for each in asked_fields if self.version in each.versions]
        known = {each.attribute for each in asked_fields}
        values: dict[str, Any] = {}
        for each in fields:
            if each.attribute.endswith("error_code"):
                values[each.attribute] = self.error_code
                self.is_told = True
            elif each.attribute == "error_message":
                values[each.attribute] = self.text
            elif each.struct is None and not each.is_array and each.attribute in known:
                value = getattr(asked, each.attribute)
                if value is not None:
                    values[each.attribute] = value
        if "error_code" in values:
            return values
        for each in fields:
            if each.is_array and each.struct is not None:
                struct = cls.structs()[each.attribute]
                values[each.attribute] = tuple(self._elements(struct, each.struct, asked, asked_fields))
        return values

    def _elements(
        self, cls: type[Message], fields: Sequence[FieldSpec], asked: object, asked_fields: Sequence[FieldSpec]
    ) -> Iterator[Message]:
        fields = [each for each in fields if self.version in each.versions]
        names = {each.attribute for each in fields}
        first = next((each for each in fields if not each.attribute.endswith(("error_code", "error_message"))), None)
        arrays = [each for each in asked_fields if each.is_array]
        of_structs = [each for each in arrays if each.struct is not None]
        if of_structs:
            chosen = max(of_structs, key=lambda each: len(names & {field.attribute for field in each.struct or ()}))
            for element in getattr(asked, chosen.attribute) or ():
                yield cls(**self.of(cls, fields, element, chosen.struct or ()))
            return
        of_values = [each for each in arrays if first is not None and each.element == first.element]
        for chosen in of_values[:1]:
            for element in getattr(asked, chosen.attribute) or ():
                named = {first.attribute: element} if first is not None else {}
                yield cls(**self.of(cls, fields, None, ()), **named)


@dataclass(frozen=True, slots=True)
class LongExchange:
    """A request of many elements, which is read and handled when others of this kind have made room for it.

    Its elements take fifty times the memory of its frame, which is all that is counted of a request.
    """

    exchange: Exchange
    frame: bytearray
    room: asyncio.Semaphore

    @property
    def api_key(self) -> ApiKey:
        return self.exchange.api_key

    @property
    def is_long(self) -> bool:
        return True

    async def handle(self) -> Sequence[Piece] | None:
        """As of Exchange."""
        elements_max = REQUEST_ELEMENTS_MAX if self.api_key in _OF_CLIENTS else _ADMIN_ELEMENTS_MAX
        parse = partial(_parsed_body, self.frame, elements_max)
        if self.api_key in _WAITING:
            return await replace(self.exchange, body=await self._parsed(parse)).handle()
        async with self.room:
            return await replace(self.exchange, body=await self._parsed(parse)).handle()

    async def _parsed(self, parse: Callable[[], Message]) -> Message:
        try:
            return await self.exchange.context.run(parse)
        except CorruptRecordError as error:
            raise CloseConnection(str(error)) from None


def _parsed_body(frame: bytearray, elements_max: int) -> Message:
    return parse_request(frame, elements_max=elements_max).body()


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """A bare message of a SASL mechanism, after a SaslHandshake of version 0, and the answer to it."""

    sasl: SaslAuthenticator
    session: Session
    token: bytes

    @property
    def api_key(self) -> ApiKey:
        return ApiKey.SASL_AUTHENTICATE

    @property
    def is_long(self) -> bool:
        return False

    async def handle(self) -> Sequence[Piece] | None:
        """The answer with its size. Raises CloseConnection: there is no form for an error."""
        try:
            answer = await self.sasl.authenticate(self.session, self.token)
        except AuthenticationError as error:
            raise CloseConnection(str(error)) from None
        return [_TOKEN_SIZE.pack(len(answer.token)) + answer.token]


HandledExchange: TypeAlias = Exchange | LongExchange | StraightCommit | TokenExchange
AnyExchange: TypeAlias = HandledExchange | StraightProduce


class BegunExchange:
    """A request that is being handled, whether its client stays or not: what was read is committed.

    Its bytes are counted until then. `handled` is called at the end.
    """

    __slots__ = ("_handled", "_handling", "_held", "api_key", "is_done")
    count = 1

    def __init__(self, exchange: HandledExchange, held: HeldRequest, handled: Callable[[BegunExchange], None]) -> None:
        self.api_key = exchange.api_key
        self._held = held
        self._handled = handled
        self.is_done = False
        self._handling = Eager(exchange.handle(), self._end)

    def _end(self, handling: Eager[Sequence[Piece] | None]) -> None:
        self.is_done = True
        self._held.release()
        self._handled(self)

    def pieces(self) -> Sequence[Piece] | None:
        """The answer of a request that is handled; None if it has none. Raises what the handler has raised."""
        return self._handling.result()
