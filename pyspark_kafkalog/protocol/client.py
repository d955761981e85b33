"""A client of one server: requests out, responses back, on one connection.

    with WireClient.connect("broker-1", 9092, client_id="copier", timeout_s=30) as client:
        client.negotiate()
        metadata = client.call(MetadataRequest(topics=None), MetadataResponse)

`call` sends a request and waits for its response. `send` and `receive` do the two apart, so that several requests are
under way at once; a server answers them in their order. Requests have the newest version that both sides know, as
`negotiate` has found out with ApiVersions, unless the caller names another.

After a NetworkError or CorruptRecordError it is unknown where in the stream the next response begins: the client is
closed. Not to be used by several threads at once.

Source of the rules: org.apache.kafka.clients.NetworkClient, NodeApiVersions and ApiVersionsRequest; KIP-511.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from ssl import SSLCertVerificationError, SSLContext
from types import TracebackType
from typing import Final, TypeVar

import numpy as np

from pyspark_kafkalog.errors import AuthenticationError, CorruptRecordError, NetworkError, UnsupportedApiError
from pyspark_kafkalog.protocol.api import APIS, FRAME_SIZE, Api, ApiKey, decode_response, encode_request, joined
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from pyspark_kafkalog.protocol.messages.records import ProduceRequest
from pyspark_kafkalog.units import INT32_MAX
from pyspark_kafkalog.version import __version__

_R = TypeVar("_R", bound=ApiMessage)

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
_SOFTWARE_NAME: Final = "pyspark-kafkalog"


@dataclass(frozen=True, slots=True)
class _Pending:
    """A request whose response has not come yet."""

    api: Api
    version: int
    correlation_id: int


#: A server ends a connection that begins with a handshake which it does not expect.
_NO_TLS: Final = (
    "; if the listener takes no TLS, set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or name a listener with TLS"
)


class WireClient:
    """One connection, see the module. `timeout_s` bounds each call as a whole, `frame_bytes_max` each response."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        client_id: str,
        timeout_s: float,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = connection
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._frame_bytes_max = frame_bytes_max
        self._monotonic_s = monotonic_s
        self._pending: deque[_Pending] = deque()
        self._next_correlation_id = 0
        self._server_versions: Mapping[int, range] = {}

    @classmethod
    def connect(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float,
        tls: SSLContext | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> WireClient:
        """A client of the server at this address. Raises NetworkError, or AuthenticationError for its certificate."""
        try:
            connection = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise NetworkError(f"cannot connect to {host}:{port}: {error}") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connection = tls.wrap_socket(connection, server_hostname=host)
        except SSLCertVerificationError as error:
            connection.close()
            raise AuthenticationError(f"the certificate of {host}:{port} is not accepted: {error}") from error
        except OSError as error:  # among them what TLS refuses
            connection.close()
            hint = "" if tls is None or isinstance(error, TimeoutError) else _NO_TLS
            raise NetworkError(f"cannot connect to {host}:{port}: {error}{hint}") from error
        return cls(connection, client_id=client_id, timeout_s=timeout_s, frame_bytes_max=frame_bytes_max)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._pending.clear()
        self._socket.close()

    def negotiate(self) -> ApiVersionsResponse:
        """Ask the server for its versions, which later requests then use. Raises NetworkError, CorruptRecordError.

        A server that does not know the newest ApiVersions states which one it knows, or only that it does not.
        """
        newest = APIS[ApiKey.API_VERSIONS].versions[-1]
        response = self._api_versions(newest)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = [each.max_version for each in response.api_keys if each.api_key == ApiKey.API_VERSIONS]
            response = self._api_versions(min(max(known[0], 0), newest) if known else 0)
        self._server_versions = {
            each.api_key: range(each.min_version, each.max_version + 1) for each in response.api_keys
        }
        return response

    def _api_versions(self, version: int) -> ApiVersionsResponse:
        request = ApiVersionsRequest(
            client_software_name=_SOFTWARE_NAME if version >= 3 else "",
            client_software_version=__version__ if version >= 3 else "",
        )
        return self.call(request, ApiVersionsResponse, version=version)

    def version(self, key: ApiKey) -> int:
        """The newest version of an API that both sides know. Raises UnsupportedApiError if there is none."""
        own, server = APIS[key].versions, self._server_versions.get(key, range(0))
        version = min(own[-1], server.stop - 1)
        if version not in server or version not in own:
            raise UnsupportedApiError(f"the server has no version of {key.name} from {own[0]} to {own[-1]}")
        return version

    def call(self, request: ApiMessage, response: type[_R], *, version: int | None = None) -> _R:
        """The response to `request`, of the class `response`. No other response may be due.

        Raises NetworkError, CorruptRecordError, UnsupportedApiError, or InvalidRecordError for a request that the
        version cannot hold.
        """
        if self._pending:
            raise ValueError(f"{len(self._pending)} responses are to be received first")
        self.send(request, version=version)
        return self.receive(response)

    def send(self, request: ApiMessage, *, version: int | None = None) -> None:
        """Send a request; its response is to be received. Raises as `call`.

        No response comes to a Produce with acks 0.
        """
        api = _api_of(type(request))
        if version is None:
            version = self.version(api.key)
        correlation_id = self._next_correlation_id
        frame = joined(encode_request(api, version, correlation_id, self._client_id, request))
        self._next_correlation_id = (correlation_id + 1) & INT32_MAX
        if not (isinstance(request, ProduceRequest) and request.acks == 0):
            self._pending.append(_Pending(api, version, correlation_id))
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(frame)
        except OSError as error:
            self.close()
            raise NetworkError(f"the request {api.key.name} could not be sent: {error}") from error

    def receive(self, response: type[_R]) -> _R:
        """The response to the oldest request without one. Its records are views. Raises as `call`."""
        if not self._pending:
            raise ValueError("no response is due")
        pending = self._pending[0]
        if pending.api.response is not response:
            raise ValueError(f"the next response is that of {pending.api.key.name}")
        self._pending.popleft()
        try:
            return self._receive(pending, response)
        except (OSError, CorruptRecordError):
            self.close()
            raise

    def _receive(self, pending: _Pending, response: type[_R]) -> _R:
        frame = self._read_frame(pending)
        version = pending.version
        if pending.api.key == ApiKey.API_VERSIONS and _error_of_api_versions(frame) == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
        correlation_id, message = decode_response(pending.api, version, frame, response)
        if correlation_id != pending.correlation_id:
            raise CorruptRecordError(
                file=f"<{pending.api.key.name} response>",
                position=0,
                expected=f"the correlation id {pending.correlation_id}",
                found=str(correlation_id),
                advice="the server does not keep to Kafka's protocol",
            )
        return message

    def _read_frame(self, pending: _Pending) -> memoryview:
        deadline_s = self._monotonic_s() + self._timeout_s
        size_bytes = FRAME_SIZE.unpack(self._read(FRAME_SIZE.size, deadline_s, pending))[0]
        if not 0 <= size_bytes <= self._frame_bytes_max:
            raise CorruptRecordError(
                file=f"<{pending.api.key.name} response>",
                position=0,
                expected=f"a frame of at most {self._frame_bytes_max} bytes",
                found=f"the size {size_bytes}",
                advice="the answer is too large, or the server speaks TLS or another protocol",
            )
        return self._read(size_bytes, deadline_s, pending)

    def _read(self, size_bytes: int, deadline_s: float, pending: _Pending) -> memoryview:
        # bounded: _frame_bytes_max, in the caller
        data = np.empty(size_bytes, np.uint8).data  # bytearray would write zeros first
        rest = data
        while rest:
            self._socket.settimeout(max(deadline_s - self._monotonic_s(), 1e-3))
            try:
                count = self._socket.recv_into(rest)
            except OSError as error:
                raise NetworkError(f"no response to {pending.api.key.name}: {error}") from error
            if count == 0:
                raise NetworkError(f"the server closed the connection instead of answering {pending.api.key.name}")
            rest = rest[count:]
            if rest and self._monotonic_s() > deadline_s:
                raise NetworkError(f"no whole response to {pending.api.key.name} in {self._timeout_s} s")
        return data


@cache
def _api_of(request: type[ApiMessage]) -> Api:
    return APIS[ApiKey(request.schema().api_key)]


def _error_of_api_versions(frame: memoryview) -> int:
    """The error code of a response of ApiVersions, which stands in one place in all versions."""
    return int.from_bytes(frame[4:6], "big", signed=True)
