"""The settings of a client's connections, by the names that Kafka's clients have for them.

    bootstrap.servers is an argument of each command; everything else comes from a properties file
    (`--command-config FILE`), which may be one of Kafka's own tools or clients

Settings that do not concern connections (acks, group.id) are ignored, as Kafka's clients ignore what they do not know.
What would make a connection less secure than the file says, or is needed and not supported, is refused.

Source of the names, defaults and limits: org.apache.kafka.clients.CommonClientConfigs, SslConfigs and SaslConfigs of
org.apache.kafka.common.config, org.apache.kafka.common.security.JaasConfig.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.properties_file import parse_properties
from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.units import INT32_MAX

_BYTES_MAX: Final = 1 << 20

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"

_MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": (PLAIN,),
    "org.apache.kafka.common.security.scram.ScramLoginModule": (SCRAM_SHA_256, SCRAM_SHA_512),
}
#: security.protocol: whether there is TLS, and SASL.
_PROTOCOLS: Final = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
#: Java classes that a connection would depend on.
_CALLBACKS: Final = (
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "ssl.engine.factory.class",
)
#: A quoted text with escapes, a word, or a sign of a JAAS configuration.
_JAAS_TOKEN = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"'=;]+)|([=;]))""", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStoreSettings:
    """A key store or trust store: a file, or PEM text. `type` "" means that the content tells it."""

    location: Path | None = None
    type: str = ""
    password: str | None = field(default=None, repr=False)
    pem: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsClientSettings:
    """TLS of a client. Without a trust store, the authorities of the system are trusted.

    `key_store.pem` holds the certificate chain and the key. `key_password` decrypts the key.
    """

    trust_store: KeyStoreSettings = KeyStoreSettings()
    key_store: KeyStoreSettings = KeyStoreSettings()
    key_password: str | None = field(default=None, repr=False)
    checks_host_name: bool = True


@dataclass(frozen=True, slots=True)
class SaslClientSettings:
    """SASL of a client: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""

    mechanism: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings of a client. `rack` is client.rack: replicas in it are preferred for fetching (KIP-392)."""

    tls: TlsClientSettings | None = None
    sasl: SaslClientSettings | None = None
    client_id: str = "kafkalog"
    rack: str = ""
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    metadata_max_age_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ClientSettings:
        """The settings of a properties file. Raises InvalidConfigError."""
        for name in _CALLBACKS:
            if properties.get(name):
                raise InvalidConfigError(f"{name} names a Java class: expected no such setting")
        protocol = properties.get("security.protocol", "PLAINTEXT")
        if protocol not in _PROTOCOLS:
            raise InvalidConfigError(f"security.protocol={protocol}: expected one of {', '.join(_PROTOCOLS)}")
        has_tls, has_sasl = _PROTOCOLS[protocol]
        default = cls()
        return cls(
            tls=_tls(properties) if has_tls else None,
            sasl=_sasl(properties) if has_sasl else None,
            client_id=properties.get("client.id") or default.client_id,
            rack=properties.get("client.rack", ""),
            request_timeout_ms=_milliseconds(properties, "request.timeout.ms", default.request_timeout_ms),
            default_api_timeout_ms=_milliseconds(properties, "default.api.timeout.ms", default.default_api_timeout_ms),
            metadata_max_age_ms=_milliseconds(properties, "metadata.max.age.ms", default.metadata_max_age_ms),
            retry_backoff_ms=_milliseconds(properties, "retry.backoff.ms", default.retry_backoff_ms),
            retry_backoff_max_ms=_milliseconds(properties, "retry.backoff.max.ms", default.retry_backoff_max_ms),
            reconnect_backoff_ms=_milliseconds(properties, "reconnect.backoff.ms", default.reconnect_backoff_ms),
            reconnect_backoff_max_ms=_milliseconds(
                properties, "reconnect.backoff.max.ms", default.reconnect_backoff_max_ms
            ),
        )


def read_client_settings(file: Path) -> ClientSettings:
    """The settings of a properties file. Raises InvalidConfigError, also if it cannot be read, and DiskFormatError."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfigError(f"the client's settings cannot be read: {error}") from None
    if len(data) > _BYTES_MAX:
        raise InvalidConfigError(f"{file}: expected a client's settings of at most {_BYTES_MAX} bytes, found more")
    return ClientSettings.from_properties(parse_properties(data, file=str(file)))


def _milliseconds(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, str(default)).strip()
    if not (text.isascii() and text.isdigit()) or int(text) > INT32_MAX:
        raise InvalidConfigError(f"{name}={text}: expected milliseconds from 0 to {INT32_MAX}")
    return int(text)


def _tls(properties: Mapping[str, str]) -> TlsClientSettings:
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm.lower() not in ("", "https"):
        raise InvalidConfigError(f"ssl.endpoint.identification.algorithm={algorithm}: expected https, or nothing")
    chain, key = properties.get("ssl.keystore.certificate.chain", ""), properties.get("ssl.keystore.key", "")
    if bool(chain) != bool(key):
        raise InvalidConfigError("ssl.keystore.certificate.chain and ssl.keystore.key: expected both, or none")
    return TlsClientSettings(
        trust_store=_store(properties, "ssl.truststore", properties.get("ssl.truststore.certificates", "")),
        key_store=_store(properties, "ssl.keystore", f"{key}\n{chain}" if chain else ""),
        key_password=properties.get("ssl.key.password"),
        checks_host_name=bool(algorithm),
    )


def _store(properties: Mapping[str, str], prefix: str, pem: str) -> KeyStoreSettings:
    location = properties.get(f"{prefix}.location", "")
    if location and pem:
        raise InvalidConfigError(f"{prefix}.location: expected either a file, or PEM text in the settings")
    return KeyStoreSettings(
        location=Path(location) if location else None,
        type=properties.get(f"{prefix}.type", "").upper(),
        password=properties.get(f"{prefix}.password"),
        pem=pem,
    )


def _sasl(properties: Mapping[str, str]) -> SaslClientSettings:
    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    expected = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)
    if mechanism not in expected:
        raise InvalidConfigError(f"sasl.mechanism={mechanism}: expected one of {', '.join(expected)}")
    if not properties.get("sasl.jaas.config"):
        raise InvalidConfigError(f"sasl.jaas.config is not set: it holds user and password for {mechanism}")
    module, options = parse_jaas(properties["sasl.jaas.config"])
    if mechanism not in _MODULES.get(module, ()):
        modules = " or ".join(name for name, mechanisms in _MODULES.items() if mechanism in mechanisms)
        raise InvalidConfigError(f"sasl.jaas.config: expected the module {modules} for {mechanism}, found {module}")
    if options.get("tokenauth", "").lower() == "true":
        raise InvalidConfigError("sasl.jaas.config: delegation tokens are not supported")
    if not options.get("username") or "password" not in options:
        raise InvalidConfigError("sasl.jaas.config: expected the options username and password")
    return SaslClientSettings(mechanism, options["username"], options["password"])


def parse_jaas(text: str) -> tuple[str, Mapping[str, str]]:
    """The login module and the options of `text`: MODULE required name="value" ...; Raises InvalidConfigError.

    Errors do not repeat the text, as it holds a password.
    """
    tokens = list(_jaas_tokens(text))
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise InvalidConfigError("sasl.jaas.config: expected MODULE required name=value ...; with its semicolon")
    if tokens[1][0].lower() not in ("required", "requisite", "sufficient", "optional"):
        raise InvalidConfigError("sasl.jaas.config: expected the word required after the module")
    rest = tokens[2:-1]
    options = {}
    for at in range(0, len(rest), 3):
        entry = rest[at : at + 3]
        if len(entry) < 3 or [is_sign for _, is_sign in entry] != [False, True, False] or entry[1][0] != "=":
            raise InvalidConfigError(f"sasl.jaas.config: expected name=value as option {at // 3 + 1} of one module")
        options[entry[0][0]] = entry[2][0]
    return tokens[0][0], options


def _jaas_tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Words and signs; the second of each: whether it is a sign."""
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _JAAS_TOKEN.match(text, at)
        if match is None:
            raise InvalidConfigError(f"sasl.jaas.config: a quotation mark at character {at} has no counterpart")
        quoted = match[1] if match[1] is not None else match[2]
        if quoted is not None:
            yield re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL), False
        else:
            yield match[3] or match[4], match[4] is not None
        at = match.end()
