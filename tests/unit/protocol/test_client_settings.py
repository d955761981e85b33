"""The settings of a client's connections, from properties as Kafka's tools have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.protocol.client_settings import (
    ClientSettings,
    SaslClientSettings,
    parse_jaas,
    read_client_settings,
)

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def test_no_properties_are_a_plaintext_connection() -> None:
    settings = ClientSettings.from_properties({})
    assert settings == ClientSettings()
    assert (settings.tls, settings.sasl, settings.rack) == (None, None, "")


def test_properties_of_a_file_are_read_by_the_names_of_kafka(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\n"
        "ssl.truststore.type=PEM\nssl.truststore.location=/etc/ca.pem\n"
        "ssl.keystore.location=/etc/key.p12\nssl.keystore.password=secret\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM_MODULE} required \\\n  username="ann" \\\n  password="p;=\\\\"q";\n'
        "client.id=copier\nclient.rack=a\nrequest.timeout.ms=5000\nacks=all\n"
    )
    settings = read_client_settings(file)
    assert settings.sasl == SaslClientSettings("SCRAM-SHA-512", "ann", 'p;="q')
    assert settings.tls is not None
    assert settings.tls.trust_store.location == Path("/etc/ca.pem")
    assert settings.tls.key_store.password == "secret"
    assert settings.tls.checks_host_name
    assert (settings.client_id, settings.rack, settings.request_timeout_ms) == ("copier", "a", 5000)


def test_host_names_are_not_checked_if_the_algorithm_is_empty() -> None:
    settings = ClientSettings.from_properties({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""})
    assert settings.tls is not None
    assert not settings.tls.checks_host_name


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('required username="a" password="b";', {"username": "a", "password": "b"}),
        ("required username='a' password=b ;", {"username": "a", "password": "b"}),
        ('required\n username = "a;b" password="c\\\\\\"d";\n', {"username": "a;b", "password": 'c\\"d'}),
        ("required;", {}),
    ],
)
def test_options_of_jaas_are_parsed(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(f"{PLAIN_MODULE} {text}") == (PLAIN_MODULE, options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        PLAIN_MODULE,
        f'{PLAIN_MODULE} required username="a" password="secret"',
        f'{PLAIN_MODULE} required username="a" password="secret;',
        f"{PLAIN_MODULE} required username= password=secret;",
        f"{PLAIN_MODULE} always username=a password=secret;",
        f"{PLAIN_MODULE} required username=a password=secret; {PLAIN_MODULE} required password=secret;",
    ],
)
def test_jaas_without_its_form_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"sasl\.jaas\.config") as refused:
        parse_jaas(text)
    assert "secret" not in str(refused.value)


def sasl(mechanism: str, jaas: str) -> dict[str, str]:
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"security.protocol": "TLS"}, "expected one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism=GSSAPI"),
        (sasl("OAUTHBEARER", ""), "expected one of PLAIN"),
        (sasl("PLAIN", ""), "sasl.jaas.config is not set"),
        (sasl("PLAIN", f"{SCRAM_MODULE} required username=a password=b;"), f"the module {PLAIN_MODULE} for PLAIN"),
        (sasl("SCRAM-SHA-256", f"{PLAIN_MODULE} required username=a password=b;"), f"the module {SCRAM_MODULE}"),
        (sasl("PLAIN", f"{PLAIN_MODULE} required username=a;"), "options username and password"),
        (sasl("SCRAM-SHA-256", f"{SCRAM_MODULE} required tokenauth=true username=a password=b;"), "delegation tokens"),
        ({"sasl.client.callback.handler.class": "x.Y"}, "names a Java class"),
        ({"request.timeout.ms": "-1"}, "expected milliseconds"),
        ({"request.timeout.ms": "1e3"}, "expected milliseconds"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "x"}, "expected both, or none"),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "x", "ssl.truststore.certificates": "y"},
            "either a file",
        ),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"}, "expected https"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message.replace(".", r"\.")):
        ClientSettings.from_properties(properties)


def test_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        read_client_settings(tmp_path / "none")


def test_text_of_settings_shows_no_password() -> None:
    settings = ClientSettings.from_properties(
        {
            **sasl("PLAIN", f"{PLAIN_MODULE} required username=a password=secret;"),
            "security.protocol": "SASL_SSL",
            "ssl.key.password": "secret",
            "ssl.keystore.password": "secret",
        }
    )
    assert "secret" not in repr(settings)
