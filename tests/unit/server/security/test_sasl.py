"""SASL on a connection: what may be asked when, failures, session lifetime, bare tokens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes.scram_client import ScramClient

from pyspark_kafkalog.errors import AuthenticationError, UnsupportedMechanismError
from pyspark_kafkalog.metadata.users import ScramMechanism, credential_of
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.context import ANONYMOUS, Session
from pyspark_kafkalog.server.security.sasl import PLAIN, SaslAuthenticator, SaslSettings, parse_plain
from pyspark_kafkalog.server.security.scram import Credentials

SHA_256 = ScramMechanism.SCRAM_SHA_256
ANN_PLAIN = b"\0ann\0secret"


class Surroundings:
    """A clock, and a list of the delays."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.slept_s: list[float] = []
        self.refreshed = 0

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)

    async def refresh(self) -> None:
        self.refreshed += 1


@pytest.fixture
def around() -> Surroundings:
    return Surroundings()


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def authenticator(around: Surroundings, executor: ThreadPoolExecutor, max_reauth_ms: int = 0) -> SaslAuthenticator:
    stored = {
        (user, SHA_256): credential_of(SHA_256, SHA_256.salted_password(password, b"salt", 4096), b"salt", 4096)
        for user, password in (("ann", "secret"), ("bob", "other"))
    }
    return SaslAuthenticator(
        SaslSettings(("SCRAM-SHA-256", PLAIN), max_reauth_ms=max_reauth_ms),
        Credentials(lambda: stored, b"secret of the root"),
        executor=executor,
        refresh=around.refresh,
        monotonic_ms=lambda: around.now_ms,
        sleep=around.sleep,
    )


async def log_in(sasl: SaslAuthenticator, session: Session, user: str = "ann", password: str = "secret") -> int:
    """By SCRAM; the lifetime of the session."""
    client = ScramClient(user, password)
    await sasl.begin(session, "SCRAM-SHA-256", has_raw_tokens=False)
    first = await sasl.authenticate(session, client.first(), version=2)
    last = await sasl.authenticate(session, client.final(first.token), version=2)
    assert client.accepts(last.token)
    return last.session_lifetime_ms


async def test_only_sasl_is_admitted_until_the_client_is_authenticated(
    around: Surroundings, executor: ThreadPoolExecutor
) -> None:
    sasl, session = authenticator(around, executor), Session("10.0.0.1", 1)
    admitted = [key for key in ApiKey if sasl.admits(session, key)]
    assert admitted == [ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS]
    await sasl.begin(session, "SCRAM-SHA-256", has_raw_tokens=False)
    assert [key for key in ApiKey if sasl.admits(session, key)] == [ApiKey.SASL_AUTHENTICATE]
    assert not sasl.expects_token(session)
    client = ScramClient("ann", "secret")
    first = await sasl.authenticate(session, client.first(), version=2)
    assert not session.is_authenticated
    assert session.principal == ANONYMOUS
    await sasl.authenticate(session, client.final(first.token), version=2)
    assert session.is_authenticated
    assert session.principal == "User:ann"
    assert all(sasl.admits(session, key) for key in ApiKey)
    assert around.refreshed == 1


@pytest.mark.parametrize("token", [b"\0ann\0wrong", b"\0nobody\0secret", b"bob\0ann\0secret", b"ann\0secret", b"\xff"])
async def test_failure_is_answered_late_in_one_wording_and_ends_the_connection(
    around: Surroundings, executor: ThreadPoolExecutor, token: bytes
) -> None:
    sasl, session = authenticator(around, executor), Session("10.0.0.1", 1)
    await sasl.begin(session, PLAIN, has_raw_tokens=False)
    expected = "^Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN$"
    with pytest.raises(AuthenticationError, match=expected):
        await sasl.authenticate(session, token, version=1)
    assert around.slept_s == [0.1]
    assert session.is_closing
    assert not session.is_authenticated
    assert not any(sasl.admits(session, key) for key in ApiKey)
    with pytest.raises(AuthenticationError):
        await sasl.authenticate(session, ANN_PLAIN, version=1)
    assert not session.is_authenticated


async def test_plain_password_is_checked_against_the_scram_credential(
    around: Surroundings, executor: ThreadPoolExecutor
) -> None:
    sasl, session = authenticator(around, executor), Session("10.0.0.1", 1)
    await sasl.begin(session, PLAIN, has_raw_tokens=False)
    assert (await sasl.authenticate(session, ANN_PLAIN, version=0)).token == b""
    assert session.principal == "User:ann"


def test_mechanism_that_is_not_enabled_is_refused_and_logged(
    around: Surroundings, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        sasl, session = authenticator(around, executor), Session("10.0.0.1", 1)
        with pytest.raises(UnsupportedMechanismError):
            await sasl.begin(session, "SCRAM-SHA-512", has_raw_tokens=False)
        assert session.is_closing

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert "10.0.0.1:1 wants the SASL mechanism 'SCRAM-SHA-512': expected " in caplog.text
    with pytest.raises(UnsupportedMechanismError):
        SaslSettings(("GSSAPI",))


async def test_session_ends_unless_the_client_authenticates_again_as_the_same_user(
    around: Surroundings, executor: ThreadPoolExecutor
) -> None:
    sasl, session = authenticator(around, executor, max_reauth_ms=5_000), Session("10.0.0.1", 1)
    assert await log_in(sasl, session) == 5_000
    around.now_ms += 4_999
    assert sasl.admits(session, ApiKey.FETCH)
    around.now_ms += 1
    assert not sasl.admits(session, ApiKey.FETCH)
    assert sasl.admits(session, ApiKey.SASL_HANDSHAKE)
    assert await log_in(sasl, session) == 5_000
    assert sasl.admits(session, ApiKey.FETCH)
    with pytest.raises(AuthenticationError):
        await log_in(sasl, session, "bob", "other")
    assert session.is_closing
    assert not sasl.admits(session, ApiKey.FETCH)


async def test_second_handshake_without_session_lifetime_or_with_another_mechanism_is_refused(
    around: Surroundings, executor: ThreadPoolExecutor
) -> None:
    sasl, session = authenticator(around, executor), Session("10.0.0.1", 1)
    await log_in(sasl, session)
    with pytest.raises(AuthenticationError, match="already"):
        await sasl.begin(session, "SCRAM-SHA-256", has_raw_tokens=False)
    assert session.is_authenticated
    sasl, session = authenticator(around, executor, max_reauth_ms=5_000), Session("10.0.0.1", 1)
    await log_in(sasl, session)
    with pytest.raises(UnsupportedMechanismError):
        await sasl.begin(session, PLAIN, has_raw_tokens=False)
    assert session.is_closing


async def test_bare_tokens_follow_a_handshake_of_version_0_until_the_client_is_authenticated(
    around: Surroundings, executor: ThreadPoolExecutor
) -> None:
    sasl, session = authenticator(around, executor), Session("10.0.0.1", 1)
    assert not sasl.expects_token(session)
    await sasl.begin(session, PLAIN, has_raw_tokens=True)
    assert sasl.expects_token(session)
    await sasl.authenticate(session, ANN_PLAIN)
    assert not sasl.expects_token(session)
    assert session.is_authenticated


def test_plain_message_has_three_parts_and_no_other_identity() -> None:
    assert parse_plain(b"\0ann\0se\xc3\xa9") == ("ann", "seé")
    assert parse_plain(b"ann\0ann\0s") == ("ann", "s")
    for wrong in (b"", b"\0\0s", b"\0ann\0", b"\0ann\0s\0", b"\0ann\0" + b"s" * 5_000):
        with pytest.raises(AuthenticationError):
            parse_plain(wrong)


def test_passwords_that_one_host_tries_keep_no_other_host_waiting(
    around: Surroundings, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def fits(self: Credentials, user: str, password: str) -> bool:
        checked.append(user)
        return user == "ann"

    monkeypatch.setattr(Credentials, "fits", fits)

    async def attempt(sasl: SaslAuthenticator, host: str, token: bytes) -> None:
        session = Session(host, 1)
        await sasl.begin(session, PLAIN, has_raw_tokens=False)
        with contextlib.suppress(AuthenticationError):
            await sasl.authenticate(session, token)

    async def run() -> None:
        sasl = authenticator(around, executor)
        tries = [attempt(sasl, "10.0.0.9", b"\0eve\0guess") for _ in range(50)]
        await asyncio.gather(*tries, attempt(sasl, "10.0.0.1", ANN_PLAIN))

    asyncio.run(run())
    assert len(checked) == 51
    assert checked.index("ann") < 10
