"""The TLS context of a client, from a key store and a trust store: PEM files, PEM text in the settings, PKCS12 files.

A trust store holds the certificates of the authorities that sign the servers'; without one those of the system are
trusted. A key store holds the client's own key and certificate chain, for servers that ask for one. What kind of file
it is, its first bytes tell: Java's type JKS is PKCS12 in many files. Java's own format of key stores (JKS) is refused,
with the command that converts it.

A private key in PKCS12 is decrypted in memory; for OpenSSL it is written encrypted, by a password that no other process
has, to a file that exists only meanwhile.

Source of the names: org.apache.kafka.common.config.SslConfigs, DefaultSslEngineFactory of
org.apache.kafka.common.security.ssl.
"""

from __future__ import annotations

import secrets
import ssl
import tempfile
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import InvalidConfigError, missing_package
from pyspark_kafkalog.protocol.client_settings import StoreSettings, TlsClientSettings
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


def _trust(context: ssl.SSLContext, store: StoreSettings) -> None:
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


def _read(prefix: str, store: StoreSettings) -> bytes | None:
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
