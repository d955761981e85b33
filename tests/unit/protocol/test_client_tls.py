"""TLS of a client: key stores and trust stores of every kind, at a server that asks for certificates."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest
from builders.certificates import Authority, Certificate, common_name
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from patience import PATIENCE_S

from pyspark_kafkalog.errors import InvalidConfigError, NetworkError
from pyspark_kafkalog.protocol.client import WireClient, client_context
from pyspark_kafkalog.protocol.client_settings import KeyStoreSettings, TlsClientSettings

PASSWORD = "pass"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    return authority.sign("server", common_name("broker"))


@pytest.fixture(scope="module")
def own(authority: Authority) -> Certificate:
    return authority.sign("own", common_name("follower"))


def subject_seen(context: ssl.SSLContext, authority: Authority, server: Certificate, host: str = "localhost") -> str:
    """The common name of the client, as a server sees it that asks for a certificate; "" for none."""
    side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    side.load_cert_chain(server.certificate, server.key)
    side.load_verify_locations(authority.certificate)
    side.verify_mode = ssl.CERT_OPTIONAL
    ours, theirs = socket.socketpair()
    seen = [""]

    def accept() -> None:
        try:
            with side.wrap_socket(theirs, server_side=True) as connection:
                names = connection.getpeercert() or {}
                connection.recv(1)
                found = [value for part in names.get("subject", ()) for key, value in part if key == "commonName"]
                seen[0] = found[0] if found else ""
        except OSError:
            theirs.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with ours, context.wrap_socket(ours, server_hostname=host) as connection:
            connection.sendall(b"x")
    finally:
        ours.close()
        thread.join(PATIENCE_S)
    return seen[0]


def pkcs12_file(directory: Path, own: Certificate) -> Path:
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    certificate = x509.load_der_x509_certificate(own.der)
    data = pkcs12.serialize_key_and_certificates(
        b"own",
        key,  # type: ignore[arg-type]
        certificate,
        None,
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    )
    file = directory / "own.p12"
    file.write_bytes(data)
    return file


def key_stores(directory: Path, own: Certificate) -> dict[str, TlsClientSettings]:
    pem = directory / "own-both.pem"
    pem.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    )
    return {
        "pem file": TlsClientSettings(key_store=KeyStoreSettings(location=pem, type="PEM")),
        "pem text, encrypted": TlsClientSettings(
            key_store=KeyStoreSettings(pem=encrypted.decode() + "\n" + own.certificate.read_text()),
            key_password=PASSWORD,
        ),
        "pkcs12": TlsClientSettings(
            key_store=KeyStoreSettings(location=pkcs12_file(directory, own), type="JKS", password=PASSWORD)
        ),
        "none": TlsClientSettings(),
    }


@pytest.mark.parametrize("kind", ["pem file", "pem text, encrypted", "pkcs12", "none"])
def test_client_shows_the_certificate_of_its_key_store(
    tmp_path: Path, authority: Authority, server: Certificate, own: Certificate, kind: str
) -> None:
    store = key_stores(tmp_path, own)[kind]
    settings = TlsClientSettings(
        trust_store=KeyStoreSettings(location=authority.certificate),
        key_store=store.key_store,
        key_password=store.key_password,
    )
    expected = "" if kind == "none" else "follower"
    assert subject_seen(client_context(settings), authority, server) == expected


@pytest.mark.parametrize("kind", ["text", "pkcs12"])
def test_authorities_of_the_trust_store_are_trusted(
    tmp_path: Path, authority: Authority, server: Certificate, kind: str
) -> None:
    certificate = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    file = tmp_path / "trust.p12"
    data = pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(certificate, b"ca")], serialization.BestAvailableEncryption(PASSWORD.encode())
    )
    file.write_bytes(data)
    store = (
        KeyStoreSettings(pem=authority.certificate.read_text())
        if kind == "text"
        else KeyStoreSettings(location=file, password=PASSWORD)
    )
    subject_seen(client_context(TlsClientSettings(trust_store=store)), authority, server)


def test_server_of_another_authority_or_name_is_refused(
    tmp_path: Path, authority: Authority, server: Certificate
) -> None:
    other = TlsClientSettings(trust_store=KeyStoreSettings(location=Authority(tmp_path).certificate))
    with pytest.raises(ssl.SSLCertVerificationError):
        subject_seen(client_context(other), authority, server)
    right = KeyStoreSettings(location=authority.certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        subject_seen(client_context(TlsClientSettings(trust_store=right)), authority, server, host="elsewhere")
    unchecked = TlsClientSettings(trust_store=right, checks_host_name=False)
    subject_seen(client_context(unchecked), authority, server, host="elsewhere")


def test_stores_that_cannot_be_used_are_refused(tmp_path: Path, own: Certificate) -> None:
    jks, text, damaged = tmp_path / "a.jks", tmp_path / "a.txt", tmp_path / "damaged.pem"
    jks.write_bytes(bytes.fromhex("feedfeed00000002"))
    text.write_text("hello")
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    p12 = pkcs12_file(tmp_path, own)
    for settings, message in [
        (TlsClientSettings(trust_store=KeyStoreSettings(location=jks)), "keytool -importkeystore"),
        (TlsClientSettings(trust_store=KeyStoreSettings(location=text)), "expected a file in PEM or PKCS12"),
        (TlsClientSettings(trust_store=KeyStoreSettings(location=tmp_path / "none")), "cannot be read"),
        (TlsClientSettings(trust_store=KeyStoreSettings(location=damaged)), "no certificate that can be read"),
        (TlsClientSettings(key_store=KeyStoreSettings(location=p12, type="PEM")), "expected PEM"),
        (TlsClientSettings(key_store=KeyStoreSettings(location=p12, password="wrong")), "cannot be opened as PKCS12"),
        (TlsClientSettings(key_store=KeyStoreSettings(location=own.certificate)), "no key with its certificate"),
    ]:
        with pytest.raises(InvalidConfigError, match=message):
            client_context(settings)


def test_error_of_handshake_with_listener_without_tls_names_the_setting() -> None:
    context = ssl.create_default_context()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1)

        thread = threading.Thread(target=refuse)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(NetworkError, match=r"takes no TLS, set security\.protocol to PLAINTEXT"):
            WireClient.connect("127.0.0.1", port, client_id="x", timeout_s=PATIENCE_S, tls=context)
        thread.join(PATIENCE_S)
