"""A client of one server: requests out, responses back, on one connection.

    with WireClient.connect("broker-1", 9092, client_id="copier", timeout_s=30) as client:
        client.negotiate()
        metadata = client.call(MetadataRequest(topics=None), MetadataResponse)

`call` sends a request and waits for its response. `send` and `receive` do the two apart, so that several requests are
under way at once; a server answers them in their order. Requests have the newest version that both sides know, as
`negotiate` has found out with ApiVersions, unless the caller names another.

After a NetworkError or CorruptRecordError it is unknown where in the stream the next response begins: the client is
closed. Not to be used by several threads at once.

*SASL.* PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, over the requests SaslHandshake and SaslAuthenticate.

    client-first:  n,,n=<user>,r=<client nonce>
    server-first:  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client-final:  c=biws,r=<both nonces>,p=<proof>
    server-final:  v=<signature>

With SCRAM the server shows too that it knows the password. The server decides how often the password is hashed, within
limits: too few rounds would make guessing cheap for an eavesdropper, too many would stop the client.

*TLS.* The context comes from a key store and a trust store: PEM files, PEM text in the settings, PKCS12 files. A trust
store holds the certificates of the authorities that sign the servers'; without one those of the system are trusted. A
key store holds the client's own key and certificate chain, for servers that ask for one. The first bytes of a file tell
its format: Java's type JKS is PKCS12 in many files. Java's own format of key stores (JKS) is refused, with the command
that converts it. A private key in PKCS12 is decrypted in memory; for OpenSSL it is written to a temporary file,
encrypted by a password that no other process has.

Source of the rules: org.apache.kafka.clients.NetworkClient, NodeApiVersions and ApiVersionsRequest, KIP-511; RFC 4616,
RFC 5802, SaslClientAuthenticator, ScramSaslClient of org.apache.kafka.common.security, KIP-368 (sessions that end);
SslConfigs of org.apache.kafka.common.config, DefaultSslEngineFactory of org.apache.kafka.common.security.ssl.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
import socket
import ssl
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

import numpy as np

from pyspark_kafkalog.errors import (
    AuthenticationError,
    CorruptRecordError,
    InvalidConfigError,
    NetworkError,
    UnsupportedApiError,
    missing_package,
)
from pyspark_kafkalog.metadata.users import ITERATIONS_MIN, MECHANISMS, ScramMechanism
from pyspark_kafkalog.protocol.api import APIS, FRAME_SIZE, Api, ApiKey, decode_response, encode_request, joined
from pyspark_kafkalog.protocol.client_settings import KeyStoreSettings, SaslClientSettings, TlsClientSettings
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from pyspark_kafkalog.protocol.messages.records import ProduceRequest
from pyspark_kafkalog.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pyspark_kafkalog.storage.filesystem import warn_if_others_read
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
        tls: ssl.SSLContext | None = None,
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
        except ssl.SSLCertVerificationError as error:
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


_PEM_BEGIN: Final = b"-----BEGIN "
_JKS_MAGIC: Final = bytes.fromhex("feedfeed")
_JCEKS_MAGIC: Final = bytes.fromhex("cececece")
_DER_SEQUENCE: Final = 0x30
_STORE_BYTES_MAX: Final = 16 << 20


def client_context(settings: TlsClientSettings) -> ssl.SSLContext:
    """The context of connections with these settings: TLS 1.2 and 1.3. Reads the files.

    Raises InvalidConfigError, also for files that cannot be read; MissingPackageError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.checks_host_name
    context.verify_mode = ssl.CERT_REQUIRED
    _trust(context, settings.trust_store)
    _show(context, settings)
    return context


def _trust(context: ssl.SSLContext, store: KeyStoreSettings) -> None:
    data = _read("ssl.truststore", store)
    if data is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    if not data.lstrip().startswith(_PEM_BEGIN):
        data = _pem_of_trusted("ssl.truststore", data, store.password)
    try:
        context.load_verify_locations(cadata=data.decode("ascii", errors="replace"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidConfigError(f"ssl.truststore has no certificate that can be read: {error}") from None


def _show(context: ssl.SSLContext, settings: TlsClientSettings) -> None:
    """Load the client's own certificate, if there is one."""
    data = _read("ssl.keystore", settings.key_store)
    if data is None:
        return
    if settings.key_store.location is not None and not settings.key_store.pem:
        warn_if_others_read(settings.key_store.location, "the key of ssl.keystore.location")
    password = settings.key_password
    if not data.lstrip().startswith(_PEM_BEGIN):
        password = secrets.token_urlsafe()
        data = _pem_of_key("ssl.keystore", data, settings.key_store.password, written_password=password)
    with tempfile.TemporaryDirectory(prefix="kafkalog-tls-") as directory:  # readable by this user alone
        file = Path(directory) / "keystore.pem"
        file.touch(0o600)
        file.write_bytes(data)
        try:
            # The text prevents that OpenSSL asks for a password on the terminal.
            context.load_cert_chain(file, password=password or "")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise InvalidConfigError(
                f"ssl.keystore has no key with its certificate that can be read: {error}; "
                "expected PEM with both, and ssl.key.password if the key is encrypted"
            ) from None


def _read(prefix: str, store: KeyStoreSettings) -> bytes | None:
    """The bytes of a store; None if there is none. Raises InvalidConfigError."""
    if store.pem:
        return store.pem.encode()
    if store.location is None:
        return None
    try:
        with store.location.open("rb") as file:
            data = file.read(_STORE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfigError(f"{prefix}.location cannot be read: {error}") from None
    if data[:4] in (_JKS_MAGIC, _JCEKS_MAGIC):
        raise InvalidConfigError(
            f"{prefix}.location={store.location} is in Java's own format: convert it with keytool -importkeystore "
            f"-srckeystore {store.location} -destkeystore {store.location.stem}.p12 -deststoretype PKCS12"
        )
    is_pem = data.lstrip().startswith(_PEM_BEGIN)
    if len(data) > _STORE_BYTES_MAX or not (is_pem or data[:1] == bytes([_DER_SEQUENCE])):
        raise InvalidConfigError(f"{prefix}.location={store.location}: expected a file in PEM or PKCS12")
    if store.type == "PEM" and not is_pem:
        raise InvalidConfigError(f"{prefix}.location={store.location}: expected PEM, as {prefix}.type says")
    return data


def _pem_of_trusted(prefix: str, data: bytes, password: str | None) -> bytes:
    """The certificates of a PKCS12 file."""
    contents = _open_pkcs12(prefix, data, password)
    from cryptography.hazmat.primitives.serialization import Encoding

    found = [each.certificate for each in (contents.cert, *contents.additional_certs) if each is not None]
    return b"".join(each.public_bytes(Encoding.PEM) for each in found)


def _pem_of_key(prefix: str, data: bytes, password: str | None, *, written_password: str) -> bytes:
    """The key of a PKCS12 file, encrypted by `written_password`, and its certificate chain."""
    contents = _open_pkcs12(prefix, data, password)
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    if contents.key is None or contents.cert is None:
        raise InvalidConfigError(f"{prefix}.location: expected a key with its certificate in the PKCS12 file")
    key = contents.key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(written_password.encode())
    )
    chain = [each.certificate.public_bytes(Encoding.PEM) for each in (contents.cert, *contents.additional_certs)]
    return b"".join((key, *chain))


def _open_pkcs12(prefix: str, data: bytes, password: str | None):  # type: ignore[no-untyped-def]
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ImportError:
        raise missing_package("cryptography", "PKCS12 files, unlike PEM files, need") from None
    try:
        return load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        raise InvalidConfigError(
            f"{prefix}.location cannot be opened as PKCS12 with {prefix}.password: {error}"
        ) from None


_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[1-9][0-9]{0,8})(?:,[A-Za-z]+=[^\0,]*)*"
)
_SERVER_FINAL: Final = re.compile(r"(?:v=(?P<signature>[A-Za-z0-9+/=]+)|e=(?P<error>[^\0,]+))(?:,[A-Za-z]+=[^\0,]*)*")
_NO_BINDING: Final = "n,,"
_NONCE_BYTES: Final = 24
_TOKEN_BYTES_MAX: Final = 4096
#: A second or so of hashing; Kafka's own controllers allow 16,384.
_ITERATIONS_MAX: Final = 1_000_000


def authenticate(client: WireClient, settings: SaslClientSettings) -> int:
    """Authenticate a connection that has negotiated. Returns the lifetime of the session in ms, 0 for no end.

    Raises AuthenticationError, and what `WireClient.call` raises.
    """
    handshake = client.call(SaslHandshakeRequest(mechanism=settings.mechanism), SaslHandshakeResponse, version=1)
    if handshake.error_code != ErrorCode.NONE:
        raise AuthenticationError(
            f"sasl.mechanism={settings.mechanism}: the server has {', '.join(handshake.mechanisms) or 'none'}"
        )
    if settings.mechanism not in MECHANISMS:
        token = f"\0{settings.user}\0{settings.password}".encode()
        return _send(client, settings, token).session_lifetime_ms
    scram = ScramClient(
        MECHANISMS[settings.mechanism], settings.user, settings.password, secrets.token_hex(_NONCE_BYTES)
    )
    first = _send(client, settings, scram.first())
    final = _send(client, settings, scram.final(first.auth_bytes))
    scram.check(final.auth_bytes)
    return final.session_lifetime_ms


def _send(client: WireClient, settings: SaslClientSettings, token: bytes) -> SaslAuthenticateResponse:
    response = client.call(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
    if response.error_code != ErrorCode.NONE:
        raise AuthenticationError(
            f"user {settings.user} is not accepted with {settings.mechanism}: "
            f"{response.error_message or 'no reason is given'}"
        )
    return response


class ScramClient:
    """One exchange of SCRAM: `first`, then `final`, then `check`. Each raises AuthenticationError."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The client's first message."""
        return f"{_NO_BINDING}{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The answer to the server's first message. Takes milliseconds."""
        text = _text(server_first)
        match = _SERVER_FIRST.fullmatch(text)
        if match is None or not match["nonce"].startswith(self._nonce) or match["nonce"] == self._nonce:
            raise AuthenticationError("the server's first message of SCRAM is not one for this client")
        iterations = int(match["iterations"])
        if not ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
            raise AuthenticationError(
                f"the server demands {iterations} iterations: expected {ITERATIONS_MIN} to {_ITERATIONS_MAX}"
            )
        mechanism = self._mechanism
        salted = mechanism.salted_password(self._password, _decoded(match["salt"]), iterations)
        binding = base64.b64encode(_NO_BINDING.encode()).decode()
        without_proof = f"c={binding},r={match['nonce']}"
        messages = f"{self._bare},{text},{without_proof}".encode()
        client_key = mechanism.hmac(salted, b"Client Key")
        mask = mechanism.hmac(mechanism.hash(client_key), messages)
        proof = bytes(one ^ other for one, other in zip(client_key, mask, strict=True))
        self._signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), messages)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """The server's last message: it must show that the server knows the password."""
        match = _SERVER_FINAL.fullmatch(_text(server_final))
        if match is not None and match["error"] is not None:
            raise AuthenticationError(f"the server refuses the client: {match['error']}")
        if match is None or not hmac.compare_digest(_decoded(match["signature"]), self._signature):
            raise AuthenticationError("the server does not know the user's password: it may be another one's")


def _text(token: bytes) -> str:
    try:
        if len(token) <= _TOKEN_BYTES_MAX:
            return bytes(token).decode()
    except UnicodeDecodeError:
        pass
    raise AuthenticationError("a message of the server is no text of SCRAM")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationError("a message of the server has bad base64") from None
