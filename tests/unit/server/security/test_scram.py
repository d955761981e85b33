"""SCRAM on the server's side: the RFC's examples, an independent client, and what a client must not get away with."""

from __future__ import annotations

import base64
import random

import pytest
from fakes.scram_client import ScramClient

from pyspark_kafkalog.errors import AuthenticationError
from pyspark_kafkalog.metadata.users import ScramCredential, ScramMechanism, credential_of
from pyspark_kafkalog.server.security.scram import Credentials, ScramExchange, saslname

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
NONCE = "server-nonce"


def credential(password: str, mechanism: ScramMechanism = SHA_256, salt: bytes = b"salt") -> ScramCredential:
    return credential_of(mechanism, mechanism.salted_password(password, salt, 4096), salt, 4096)


@pytest.fixture(scope="module")
def credentials() -> Credentials:
    stored = {
        ("ann", SHA_256): credential("secret"),
        ("bob", SHA_512): credential("secret5", SHA_512),
        ("a=b,c", SHA_256): credential("escaped"),
        ("old", SHA_256): ScramCredential(b"salt", b"k" * 32, b"k" * 32, 100),
    }
    return Credentials(lambda: stored, b"the root's secret")


def exchange(credentials: Credentials, mechanism: ScramMechanism = SHA_256) -> ScramExchange:
    return ScramExchange(mechanism, credentials, NONCE)


def test_answers_are_those_of_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored = {("user", SHA_256): credential("pencil", salt=salt)}
    server = ScramExchange(SHA_256, Credentials(lambda: stored, b""), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = server.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert not server.is_complete
    final = server.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.is_complete
    assert server.user == "user"


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [("ann", "secret", SHA_256), ("bob", "secret5", SHA_512), ("a=b,c", "escaped", SHA_256)],
)
def test_client_with_the_password_is_authenticated_and_trusts_the_server(
    credentials: Credentials, user: str, password: str, mechanism: ScramMechanism
) -> None:
    client = ScramClient(user, password, mechanism.hash_name)
    server = exchange(credentials, mechanism)
    assert client.accepts(server.evaluate(client.final(server.evaluate(client.first()))))
    assert server.is_complete
    assert server.user == user
    with pytest.raises(AuthenticationError):
        server.evaluate(client.first())


def test_client_that_repeats_its_nonce_is_authenticated_as_by_a_broker(credentials: Credentials) -> None:
    """librdkafka 2.0.2 does; ScramSaslServer compares the end of the nonce."""
    client = ScramClient("ann", "secret", nonce="once")
    server = exchange(credentials)
    assert client.accepts(server.evaluate(client.final(server.evaluate(client.first()), before_nonce="once")))
    assert server.is_complete


@pytest.mark.parametrize(
    ("user", "password"), [("ann", "wrong"), ("nobody", "secret"), ("bob", "secret5"), ("old", "x")]
)
def test_wrong_password_and_unknown_user_fail_at_the_same_message_with_the_same_error(
    credentials: Credentials, user: str, password: str
) -> None:
    client = ScramClient(user, password)
    server = exchange(credentials)
    final = client.final(server.evaluate(client.first()))
    with pytest.raises(AuthenticationError, match=r"^invalid credentials$"):
        server.evaluate(final)
    assert not server.is_complete


def test_salt_of_an_unknown_user_stays_the_same_and_looks_like_a_real_one(credentials: Credentials) -> None:
    answers = {exchange(credentials).evaluate(ScramClient("nobody", "").first()) for _ in range(3)}
    assert len(answers) == 1
    made, is_real = credentials.of("nobody", SHA_256)
    assert not is_real
    assert made.salt.decode().isalnum()
    assert len(made.salt) == len(b"salt")  # as of the users that there are
    assert 20 <= len(Credentials(dict, b"secret").of("nobody", SHA_256)[0].salt) <= 26
    assert made.salt != credentials.of("nobody2", SHA_256)[0].salt
    assert made.salt != Credentials(dict, b"another root").of("nobody", SHA_256)[0].salt


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"p=tls-unique,,n=ann,r=abc",
        b"n,,n=ann",
        b"n,,n=,r=abc",
        b"n,,n=a=nn,r=abc",
        b"n,,n=ann,r=a c",
        b"n,,m=ext,n=ann,r=abc",
        b"n,a=bob,n=ann,r=abc",
        b"n,,n=ann,r=abc\x00",
        b"n,,n=ann,r=" + b"a" * 5000,
    ],
)
def test_first_message_that_is_none_is_refused(credentials: Credentials, first: bytes) -> None:
    with pytest.raises(AuthenticationError):
        exchange(credentials).evaluate(first)


def test_final_message_of_another_exchange_or_with_another_binding_is_refused(credentials: Credentials) -> None:
    client = ScramClient("ann", "secret")
    first = exchange(credentials)
    recorded = client.final(first.evaluate(client.first()))
    other = ScramExchange(SHA_256, credentials, "other-nonce")
    other.evaluate(client.first())
    with pytest.raises(AuthenticationError):
        other.evaluate(recorded)
    bound = exchange(credentials)
    with pytest.raises(AuthenticationError):
        bound.evaluate(client.final(bound.evaluate(client.first()), binding=b"y,,"))


def test_random_changes_of_the_final_message_never_authenticate(credentials: Credentials) -> None:
    rng = random.Random(7)
    for _ in range(30):
        client = ScramClient("ann", "secret")
        server = exchange(credentials)
        final = bytearray(client.final(server.evaluate(client.first())))
        original = bytes(final)
        for _ in range(rng.randrange(1, 4)):
            final[rng.randrange(len(final))] = rng.randrange(256)
        if bytes(final) == original:
            continue
        with pytest.raises(AuthenticationError):
            server.evaluate(bytes(final))
        assert not server.is_complete


def test_password_is_checked_against_either_credential(credentials: Credentials) -> None:
    assert credentials.fits("ann", "secret")
    assert credentials.fits("bob", "secret5")
    assert not credentials.fits("ann", "secret5")
    assert not credentials.fits("nobody", "secret")


def test_escaped_names_are_read_and_other_equals_signs_refused() -> None:
    assert saslname("a=3Db=2Cc=3D2C") == "a=b,c=2C"
    for wrong in ("a=", "a=3d", "=20"):
        with pytest.raises(AuthenticationError):
            saslname(wrong)


def test_stand_ins_have_the_iterations_and_the_salts_that_users_have() -> None:
    def stored(each: int) -> ScramCredential:
        salt = bytes([each, 200]) * 8 if each % 2 else b"%024d" % each
        return ScramCredential(salt, b"k" * 32, b"k" * 32, 16384 if each % 4 else 8192)

    users = {(f"user{each}", SHA_256): stored(each) for each in range(40)}
    credentials = Credentials(lambda: users, b"secret")
    made = {name: credentials.of(name, SHA_256)[0] for name in map(str, range(400))}
    forms = {(each.iterations, len(each.salt) == 16) for each in made.values()}
    assert forms == {(8192, False), (16384, False), (16384, True)}
    assert 50 < sum(each.iterations == 8192 for each in made.values()) < 150
    # A user more changes the answers for few names.
    users = {**users, ("another", SHA_256): stored(4)}
    changed = sum(credentials.of(name, SHA_256)[0].iterations != each.iterations for name, each in made.items())
    assert changed < 20
