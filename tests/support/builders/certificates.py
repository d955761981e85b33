"""Certificates for tests of TLS: an authority, and what it signs, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

#: A relative name: its attributes, by object identifier.
RelativeName = Sequence[tuple[x509.ObjectIdentifier, str]]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key."""

    certificate: Path
    key: Path
    der: bytes


def name_of(*relative: RelativeName) -> x509.Name:
    return x509.Name([x509.RelativeDistinguishedName([x509.NameAttribute(*each) for each in one]) for one in relative])


def common_name(name: str) -> x509.Name:
    return name_of([(NameOID.COMMON_NAME, name)])


class Authority:
    """An authority whose certificate is `ca.pem` in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = common_name("Test authority")
        self.certificate = self._write(
            "ca", self._build(self._name, self._key, is_authority=True), self._key
        ).certificate

    def sign(self, file: str, subject: x509.Name) -> Certificate:
        """`file`.pem and `file`.key of a certificate that is also good for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._write(file, self._build(subject, key), key)

    def _build(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if not is_authority:
            authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(authority, critical=False)
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Certificate:
        pem, key_pem = self._directory / f"{file}.pem", self._directory / f"{file}.key"
        pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_pem.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return Certificate(pem, key_pem, certificate.public_bytes(serialization.Encoding.DER))
