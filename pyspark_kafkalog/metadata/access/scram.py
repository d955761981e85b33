"""SCRAM credentials of users: what a server needs to check a password without knowing it.

The commit log stores them as Kafka's metadata log does, one UserScramCredentialRecord for a user and a mechanism. A
credential is made of the salted password, which is not stored:

    SaltedPassword = PBKDF2-HMAC(password, salt, iterations)
    StoredKey      = H(HMAC(SaltedPassword, "Client Key"))
    ServerKey      = HMAC(SaltedPassword, "Server Key")

A reader of StoredKey and ServerKey can try passwords, and an owner of ServerKey can pose as a server: the files of a
root with credentials must be readable by those only who may act for all of its users.

Source of the rules: RFC 5802, org.apache.kafka.controller.ScramControlManager, ScramFormatter of
org.apache.kafka.common.security.scram.internals.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import (
    DuplicateCredentialError,
    InvalidCredentialError,
    InvalidRecordError,
    KafkalogError,
    UnknownCredentialError,
    UnsupportedMechanismError,
)
from pyspark_kafkalog.metadata.messages.metadata_records import (
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384

_SALT_BITS: Final = 130
_DIGITS: Final = string.digits + string.ascii_lowercase


class ScramMechanism(IntEnum):
    """A SCRAM mechanism, by its number in Kafka's records and requests."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The name in SASL: SCRAM-SHA-256."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """The name of its hash in hashlib."""
        return "sha256" if self == ScramMechanism.SCRAM_SHA_256 else "sha512"

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash_name)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Takes a millisecond or more: PBKDF2 is meant to be slow. Other threads run meanwhile."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


MECHANISMS: Final[Mapping[str, ScramMechanism]] = {each.sasl_name: each for each in ScramMechanism}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """One user's credential for one mechanism. Its text shows no keys."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


#: Credentials by user and mechanism.
ScramCredentials: TypeAlias = Mapping[tuple[str, ScramMechanism], ScramCredential]


@dataclass(frozen=True, slots=True)
class CredentialUpsertion:
    """A credential to be set, as AlterUserScramCredentials carries it: the client has salted the password."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CredentialDeletion:
    """A credential to be removed."""

    user: str
    mechanism: int


def salt_of_bits(bits: int) -> bytes:
    """A salt as Kafka makes them: the low 130 of the random `bits` as a number with letters for digits."""
    bits &= (1 << _SALT_BITS) - 1
    digits = []
    while bits:
        bits, digit = divmod(bits, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)).encode() or b"0"


def upsertion(
    user: str, mechanism: ScramMechanism, password: str, *, iterations: int, rng: random.Random
) -> CredentialUpsertion:
    """The credential of `password` with a random salt, as a client of Kafka makes it."""
    salt = salt_of_bits(rng.getrandbits(_SALT_BITS))
    salted = mechanism.salted_password(password, salt, iterations)
    return CredentialUpsertion(user, mechanism, iterations, salt, salted)


def credential_of(mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password."""
    client_key = mechanism.hmac(salted_password, b"Client Key")
    return ScramCredential(salt, mechanism.hash(client_key), mechanism.hmac(salted_password, b"Server Key"), iterations)


def alter_credentials(
    existing: ScramCredentials,
    deletions: Sequence[CredentialDeletion],
    upsertions: Sequence[CredentialUpsertion],
) -> tuple[list[MetadataRecord], dict[str, KafkalogError | None]]:
    """The records of the changes that are allowed, and for each user the error of what is not.

    Each user can be named once; a second time is an error for both.
    """
    results: dict[str, KafkalogError | None] = {}
    records: dict[str, MetadataRecord] = {}
    changes: list[CredentialDeletion | CredentialUpsertion] = [*deletions, *upsertions]
    for each in changes:
        if each.user in results:
            if results[each.user] is None:
                results[each.user] = DuplicateCredentialError(
                    "A user credential cannot be altered twice in the same request"
                )
                del records[each.user]
            continue
        try:
            records[each.user] = _deletion(existing, each) if isinstance(each, CredentialDeletion) else _upsertion(each)
            results[each.user] = None
        except KafkalogError as error:
            results[each.user] = error
    return list(records.values()), results


def _deletion(existing: ScramCredentials, deletion: CredentialDeletion) -> MetadataRecord:
    mechanism = _checked(deletion.user, deletion.mechanism)
    if (deletion.user, mechanism) not in existing:
        raise UnknownCredentialError("Attempt to delete a user credential that does not exist")
    return RemoveUserScramCredentialRecord(name=deletion.user, mechanism=int(mechanism))


def _upsertion(upsertion: CredentialUpsertion) -> MetadataRecord:
    mechanism = _checked(upsertion.user, upsertion.mechanism)
    if upsertion.iterations < ITERATIONS_MIN:
        raise InvalidCredentialError("Too few iterations")
    if upsertion.iterations > ITERATIONS_MAX:
        raise InvalidCredentialError("Too many iterations")
    if not upsertion.salted_password:
        raise InvalidCredentialError("The salted password must not be empty")
    credential = credential_of(mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations)
    return credential_record(upsertion.user, mechanism, credential)


def _checked(user: str, mechanism: int) -> ScramMechanism:
    if not user:
        raise InvalidCredentialError("Username must not be empty")
    try:
        return ScramMechanism(mechanism)
    except ValueError:
        raise UnsupportedMechanismError("Unknown SCRAM mechanism") from None


def credential_record(user: str, mechanism: ScramMechanism, credential: ScramCredential) -> UserScramCredentialRecord:
    """The credential as a metadata record."""
    return UserScramCredentialRecord(
        name=user,
        mechanism=int(mechanism),
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def parse_credential(record: UserScramCredentialRecord) -> tuple[tuple[str, ScramMechanism], ScramCredential]:
    """User and mechanism, and the credential. Raises InvalidRecordError for a mechanism that Kafka 4.1 lacks."""
    credential = ScramCredential(
        bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
    )
    return credential_key(record.name, record.mechanism), credential


def credential_key(user: str, mechanism: int) -> tuple[str, ScramMechanism]:
    """The key of a credential. Raises InvalidRecordError."""
    try:
        return user, ScramMechanism(mechanism)
    except ValueError:
        raise InvalidRecordError(f"a metadata record has a credential for the unknown mechanism {mechanism}") from None
