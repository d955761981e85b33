"""Connections to the nodes of a cluster: opened when they are first used, and again after a failure.

A `NodeConnection` belongs to one thread at a time. After a failure the next call opens a new connection, at first after
`reconnect_backoff_ms`, then after twice as long each time, up to `reconnect_backoff_max_ms`. A broker that throttles
the client does not read from its connection for a while (KIP-219), so the next call waits that long. Each call ends by
`request_timeout_ms`, and so does each attempt to connect.

Source of the rules: org.apache.kafka.clients.NetworkClient, ClusterConnectionStates and ClientUtils.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark_kafkalog.errors import (
    AuthenticationError,
    CorruptRecordError,
    InvalidConfigError,
    LeaderUnavailableError,
    NetworkError,
    UnsupportedApiError,
)
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.client import FRAME_BYTES_MAX, WireClient, authenticate, client_context
from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.units import SECOND_MS, is_host

_R = TypeVar("_R", bound=ApiMessage)

_PORT_MAX: Final = 65_535
#: The least version of Fetch with the epoch of the last record, by which diverging logs are noticed: Kafka 2.7.
FETCH_VERSION_MIN: Final = 12
_JITTER: Final = 0.2
#: The part of an authenticated session's lifetime (KIP-368) after which a new connection takes over.
_LIFETIME_USED: Final = 0.85


@dataclass(frozen=True, slots=True, order=True)
class NodeAddress:
    """Where a node listens; `str()` is host:port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> list[NodeAddress]:
    """The addresses of host:port,host:port. Raises InvalidConfigError."""
    found = [_parse_address(each.strip()) for each in text.split(",") if each.strip()]
    if not found:
        raise InvalidConfigError(f"{text!r}: expected the addresses of servers, as host:port,host:port")
    return list(dict.fromkeys(found))


def _parse_address(text: str) -> NodeAddress:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidConfigError(f"{text!r}: expected brackets around an IPv6 address, as [::1]:9092")
    if not (is_host(host) and colon and port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
        raise InvalidConfigError(f"{text!r}: expected the address of a server, as host:port, such as broker1:9092")
    return NodeAddress(host, int(port))


@dataclass(frozen=True, slots=True)
class OpenedClient:
    """A connection that is negotiated and authenticated. The server closes it after `lifetime_ms`; 0: never."""

    client: WireClient
    lifetime_ms: int = 0


#: Opens a connection. Raises NetworkError, CorruptRecordError, AuthenticationError.
OpenClient = Callable[[NodeAddress], OpenedClient]


def client_opener(settings: ClientSettings, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> OpenClient:
    """Opens connections with these settings, which accept responses of at most `frame_bytes_max`.

    The files of TLS are read for each connection, so certificates may be renewed meanwhile. Raises InvalidConfigError
    and MissingPackageError for files that cannot be used now. Once a node has accepted the client, files that cannot
    be used and nodes that refuse it are NetworkErrors: files may be half renewed, and a node that starts may not know
    its users yet.
    """
    if settings.tls is not None:
        client_context(settings.tls)
    has_been_accepted = threading.Event()

    def open_client(address: NodeAddress) -> OpenedClient:
        try:
            opened = connect(address)
        except (AuthenticationError, InvalidConfigError) as error:
            if has_been_accepted.is_set():
                raise NetworkError(str(error)) from error
            raise
        has_been_accepted.set()
        return opened

    def connect(address: NodeAddress) -> OpenedClient:
        client = WireClient.connect(
            address.host,
            address.port,
            client_id=settings.client_id,
            timeout_s=settings.request_timeout_ms / SECOND_MS,
            tls=None if settings.tls is None else client_context(settings.tls),
            frame_bytes_max=frame_bytes_max,
        )
        try:
            client.negotiate()
            lifetime_ms = 0 if settings.sasl is None else authenticate(client, settings.sasl)
        except BaseException:
            client.close()
            raise
        return OpenedClient(client, lifetime_ms)

    return open_client


class NodeConnection:
    """A connection to the node at `address`. `name` says in errors which node it is."""

    def __init__(
        self,
        name: str,
        address: NodeAddress,
        open_client: OpenClient,
        settings: ClientSettings,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self._open_client = open_client
        self._settings = settings
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._client: WireClient | None = None
        self._failures = 0
        self._not_before_s = 0.0
        self._expires_s = math.inf

    def version(self, key: ApiKey) -> int:
        """The newest version of an API that both sides know. Raises as `call`."""
        client = self._connected(key)
        try:
            return client.version(key)
        except UnsupportedApiError as error:
            raise UnsupportedApiError(f"{self.name}: {error}") from None

    def call(self, request: ApiMessage, response: type[_R], *, version: int | None = None) -> _R:
        """The response to `request`.

        Raises LeaderUnavailableError if there is none, AuthenticationError if the node or this client is not accepted,
        UnsupportedApiError if the node has no version of the API.
        """
        key = ApiKey(request.schema().api_key)
        client = self._connected(key)
        try:
            answer = client.call(request, response, version=version)
        except UnsupportedApiError as error:
            raise UnsupportedApiError(f"{self.name}: {error}") from None
        except (NetworkError, CorruptRecordError) as error:
            raise self._failed(key, error) from error
        self._failures = 0
        throttle_ms = getattr(answer, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._wait_for(min(throttle_ms, self._settings.request_timeout_ms) / SECOND_MS)
        return answer

    def _connected(self, key: ApiKey) -> WireClient:
        self._sleep_until_allowed()
        if self._client is not None and self._monotonic_s() >= self._expires_s:
            self.close()
        if self._client is None:
            try:
                opened = self._open_client(self.address)
            except AuthenticationError as error:
                raise AuthenticationError(f"{self.name}: {error}") from error
            except (NetworkError, CorruptRecordError) as error:
                raise self._failed(key, error) from error
            self._client = opened.client
            used_s = opened.lifetime_ms * _LIFETIME_USED / SECOND_MS
            self._expires_s = self._monotonic_s() + used_s if opened.lifetime_ms else math.inf
        return self._client

    def _sleep_until_allowed(self) -> None:
        rest_s = self._not_before_s - self._monotonic_s()
        if rest_s > 0:
            self._sleep(rest_s)

    def _wait_for(self, seconds: float) -> None:
        self._not_before_s = self._monotonic_s() + seconds

    def _failed(self, key: ApiKey, error: Exception) -> LeaderUnavailableError:
        self.close()
        settings = self._settings
        backoff_ms = min(settings.reconnect_backoff_ms << min(self._failures, 16), settings.reconnect_backoff_max_ms)
        self._failures += 1
        self._wait_for(backoff_ms / SECOND_MS * self._rng.uniform(1 - _JITTER, 1 + _JITTER))
        return LeaderUnavailableError(f"{self.name} does not answer {key.name}: {error}")

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
        if self._client is not None:
            self._client.close()
            self._client = None
