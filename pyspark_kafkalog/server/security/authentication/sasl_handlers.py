"""SaslHandshake and SaslAuthenticate.

A listener without SASL answers both with ILLEGAL_SASL_STATE, as does one on which the client is authenticated already
and may not be again.
"""

from __future__ import annotations

from pyspark_kafkalog.errors import AuthenticationError, UnsupportedMechanismError
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pyspark_kafkalog.server.context import Request, ServerContext
from pyspark_kafkalog.server.security.authentication.sasl import SaslAuthenticator

_NO_SASL = "SASL is not enabled on this listener"


class SaslHandlers:
    """The handlers of a listener that authenticates by `sasl`, None: of one that does not."""

    def __init__(self, sasl: SaslAuthenticator | None) -> None:
        self._sasl = sasl

    async def handshake(self, context: ServerContext, request: Request[SaslHandshakeRequest]) -> Message:
        """SaslHandshake: the client names a mechanism, and learns of those that there are."""
        if self._sasl is None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        mechanisms = tuple(self._sasl.settings.mechanisms)
        mechanism = request.body.mechanism
        error = ErrorCode.NONE
        try:
            await self._sasl.begin(request.session, mechanism, has_raw_tokens=request.api_version == 0)
        except UnsupportedMechanismError:
            error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        except AuthenticationError:
            error = ErrorCode.ILLEGAL_SASL_STATE
        return SaslHandshakeResponse(error_code=error, mechanisms=mechanisms)

    async def authenticate(self, context: ServerContext, request: Request[SaslAuthenticateRequest]) -> Message:
        """SaslAuthenticate: a message of the mechanism."""
        if self._sasl is None:
            return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_NO_SASL)
        # bounded: the frame that was read
        token = bytes(request.body.auth_bytes)
        try:
            answer = await self._sasl.authenticate(request.session, token, version=request.api_version)
        except AuthenticationError as error:
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error))
        return SaslAuthenticateResponse(
            error_message=None,
            auth_bytes=answer.token,
            session_lifetime_ms=answer.session_lifetime_ms if request.api_version >= 1 else 0,
        )
