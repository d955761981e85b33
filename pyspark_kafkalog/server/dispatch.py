"""From the frame of a request to the pieces of its response: parse, check who asks, handle, encode.

    frame -> header -> API and version -> body -> handler -> response -> pieces

ApiVersions is answered in any version, so that a later client can learn what there is; any other API or version that is
not advertised ends the connection, as in Kafka. Until a client is authenticated, where that is required, only
ApiVersions and the SASL requests are handled.

Source of the rules: kafka.network.Processor.processCompletedReceives, kafka.server.KafkaApis.handle.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError, UnsupportedApiError
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.pieces import Piece
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.headers import ParsedRequest, parse_request
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.server.context import CloseConnection, Handler, Request, ServerContext, Session
from pyspark_kafkalog.server.error_codes import error_code_of
from pyspark_kafkalog.server.metadata.api_versions import unsupported_version

_LOG: Final = logging.getLogger(__name__)
_BEFORE_AUTHENTICATION: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


#: Told of each request that was handled: its API and version, the seconds that it took, its top-level error code.
Handled: TypeAlias = Callable[[ApiKey, int, float, int], None]


class Dispatcher:
    """Finds the handler of each request."""

    def __init__(self, context: ServerContext, handlers: Mapping[ApiKey, Handler], handled: Handled) -> None:
        self._context = context
        self._handlers = handlers
        self._handled = handled

    def open(self, frame: bytearray, session: Session) -> Exchange:
        """The exchange that the frame begins. Raises CloseConnection for one that is not answered."""
        try:
            parsed = parse_request(frame)
            handler = self._handlers.get(parsed.api.key)
            if handler is None:
                raise CloseConnection(f"{parsed.api.key.name} is not served here")
            if not session.is_authenticated and parsed.api.key not in _BEFORE_AUTHENTICATION:
                raise CloseConnection(f"{parsed.api.key.name} before the client was authenticated")
            body = parsed.body() if parsed.is_supported else None
        except (CorruptRecordError, UnsupportedApiError) as error:
            raise CloseConnection(str(error)) from None
        return Exchange(self._context, parsed, handler, body, session, self._handled)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that is to be handled and answered. `body` is None for ApiVersions of an unknown version."""

    context: ServerContext
    parsed: ParsedRequest
    handler: Handler
    body: Message | None
    session: Session
    handled: Handled

    @property
    def api_key(self) -> ApiKey:
        return self.parsed.api.key

    async def handle(self) -> Sequence[Piece] | None:
        """The pieces of the answer; None if there is none. Raises CloseConnection, and whatever is a defect."""
        began = time.perf_counter()
        response = unsupported_version() if self.body is None else await self._response(self.body)
        error_code = getattr(response, "error_code", 0)
        self.handled(self.api_key, self.parsed.api_version, time.perf_counter() - began, error_code)
        if response is None:
            return None
        return self.parsed.encode_response(cast("ApiMessage", response))

    async def _response(self, body: Message) -> Message | None:
        parsed = self.parsed
        request = Request(parsed.api.key, parsed.api_version, parsed.client_id, body, self.session)
        try:
            return await self.handler(self.context, request)
        except (KafkalogError, OSError) as error:
            _LOG.warning("%s failed: %s", parsed.api.key.name, error)
            return self._error_response(error)

    def _error_response(self, error: BaseException) -> Message:
        """A response that has an error code of its own says it. Raises CloseConnection for any other."""
        response = self.parsed.api.response
        names = {each.attribute for each in response.schema().spec.fields}
        if "error_code" not in names:
            raise CloseConnection(f"{self.api_key.name} failed: {error}")
        values: dict[str, object] = {"error_code": error_code_of(error)}
        if "error_message" in names:
            values["error_message"] = str(error)
        return response(**values)
