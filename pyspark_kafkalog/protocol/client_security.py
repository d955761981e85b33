"""SASL and TLS of a client.

SASL: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, over the requests SaslHandshake and SaslAuthenticate.

    client-first:  n,,n=<user>,r=<client nonce>
    server-first:  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client-final:  c=biws,r=<both nonces>,p=<proof>
    server-final:  v=<signature>

With SCRAM the server shows too that it knows the password. The server decides how often the password is hashed, within
limits: too few rounds would make guessing cheap for an eavesdropper, too many would stop the client.

TLS: the context comes from a key store and a trust store: PEM files, PEM text in the settings, PKCS12 files. A trust
store holds the certificates of the authorities that sign the servers'; without one those of the system are trusted. A
key store holds the client's own key and certificate chain, for servers that ask for one. The first bytes of a file tell
its format: Java's type JKS is PKCS12 in many files. Java's own format of key stores (JKS) is refused, with the command
that converts it. A private key in PKCS12 is decrypted in memory; for OpenSSL it is written to a temporary file,
encrypted by a password that no other process has.

Source of the rules: RFC 4616, RFC 5802; SaslClientAuthenticator, ScramSaslClient of org.apache.kafka.common.security;
KIP-368 (sessions that end); SslConfigs of org.apache.kafka.common.config, DefaultSslEngineFactory of
org.apache.kafka.common.security.ssl.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
import ssl
import tempfile
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import AuthenticationError, InvalidConfigError, missing_package
from pyspark_kafkalog.metadata.users import ITERATIONS_MIN, MECHANISMS, ScramMechanism
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.client_settings import KeyStoreSettings, SaslClientSettings, TlsClientSettings
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pyspark_kafkalog.storage.filesystem import warn_if_others_read

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
