"""SCRAM credentials of users, and quotas of users, client ids and hosts; their records.

*Credentials* are what a server needs to check a password without knowing it. The commit log stores them as Kafka's
metadata log does, one UserScramCredentialRecord for a user and a mechanism. A credential is made of the salted
password, which is not stored:

    SaltedPassword = PBKDF2-HMAC(password, salt, iterations)
    StoredKey      = H(HMAC(SaltedPassword, "Client Key"))
    ServerKey      = HMAC(SaltedPassword, "Server Key")

A reader of StoredKey and ServerKey can try passwords, and an owner of ServerKey can pose as a server: the files of a
root with credentials must be readable by those only who may act for all of its users.

Source of the rules: RFC 5802, org.apache.kafka.controller.ScramControlManager, ScramFormatter of
org.apache.kafka.common.security.scram.internals.

*Quotas* are limits for users, client ids and hosts. An entity names a user, a client id, both, or an IP address; the
name None stands for all that have no quota of their own. One ClientQuotaRecord sets or removes one quota of one entity:

    user, client-id   producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate
    ip                connection_creation_rate

Source of the rules: org.apache.kafka.controller.ClientQuotaControlManager, org.apache.kafka.image.ClientQuotasImage,
org.apache.kafka.server.config.QuotaConfig.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import (
    DuplicateCredentialError,
    InvalidConfigError,
    InvalidCredentialError,
    InvalidRecordError,
    KafkalogError,
    UnknownCredentialError,
    UnsupportedMechanismError,
)
from pyspark_kafkalog.metadata.acl import canonical_ip
from pyspark_kafkalog.metadata.messages.metadata_records import (
    ClientQuotaRecord,
    EntityData,
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX
from pyspark_kafkalog.values import dataclass

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
        import hashlib  # loads OpenSSL, as hmac does: most processes check no password

        return hashlib.new(self.hash_name, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        import hmac

        return hmac.digest(key, data, self.hash_name)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Takes a millisecond or more: PBKDF2 is meant to be slow. Other threads run meanwhile."""
        import hashlib

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
    existing: ScramCredentials, deletions: Sequence[CredentialDeletion], upsertions: Sequence[CredentialUpsertion]
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


USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

#: Quotas by name, with the largest value of those that are whole numbers; None: any positive number.
CLIENT_QUOTAS: Final[Mapping[str, int | None]] = {
    PRODUCER_BYTE_RATE: INT64_MAX,
    CONSUMER_BYTE_RATE: INT64_MAX,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
IP_QUOTAS: Final[Mapping[str, int | None]] = {CONNECTION_CREATION_RATE: INT32_MAX}

#: Type and name of each part, in order of the type; the name None: the default of the type.
QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]

_WHOLE_TOLERANCE: Final = 1e-6


def quota_entity(parts: Collection[tuple[str, str | None]]) -> QuotaEntity:
    """The entity of these parts. Raises InvalidConfigError if Kafka has no such entity."""
    types = [entity_type for entity_type, _ in parts]
    if not types:
        raise InvalidConfigError("Invalid empty client quota entity")
    for entity_type, name in parts:
        if types.count(entity_type) > 1:
            raise InvalidConfigError(f"Invalid client quota entity, duplicate entity entry {entity_type}")
        if entity_type not in (USER, CLIENT_ID, IP):
            raise InvalidConfigError(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise InvalidConfigError(f"Empty {entity_type} not supported")
    if IP in types and len(types) > 1:
        raise InvalidConfigError("Invalid quota entity combination, IP entity should not be combined with others")
    return tuple(sorted(parts))


def alter_quotas(quotas: Quotas, entity: QuotaEntity, changes: Mapping[str, float | None]) -> list[MetadataRecord]:
    """Records that set the quotas in `changes`, or remove those with the value None; none for unchanged ones.

    Raises InvalidConfigError for an unknown quota, a value that it cannot have, and a host that is no IP address. Kafka
    also takes names of hosts that it can resolve; here nothing is resolved.
    """
    host = dict(entity).get(IP)
    if host is not None and canonical_ip(host) is None and any(value is not None for value in changes.values()):
        raise InvalidConfigError(f"{host} is not a valid IP address")
    allowed = IP_QUOTAS if entity[0][0] == IP else CLIENT_QUOTAS
    current = quotas.get(entity, {})
    records: list[MetadataRecord] = []
    for key, value in changes.items():
        if value is None:
            if key in current:
                records.append(ClientQuotaRecord(entity=_entity_data(entity), key=key, remove=True))
            continue
        _check_value(allowed, key, value)
        if current.get(key) != value:
            records.append(quota_record(entity, key, value))
    return records


def _check_value(allowed: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in allowed:
        raise InvalidConfigError(f"Invalid configuration key {key}")
    if not value > 0 or math.isinf(value):
        raise InvalidConfigError(f"Quota {key} must be greater than 0")
    most = allowed[key]
    if most is None:
        return
    if value > most:
        raise InvalidConfigError(f"Proposed value for {key} is too large: expected at most {most}")
    if abs(value % 1.0) > _WHOLE_TOLERANCE:
        raise InvalidConfigError(f"{key} cannot be a fractional value.")


def quota_record(entity: QuotaEntity, key: str, value: float) -> ClientQuotaRecord:
    """The record that sets one quota."""
    return ClientQuotaRecord(entity=_entity_data(entity), key=key, value=value)


def _entity_data(entity: QuotaEntity) -> tuple[EntityData, ...]:
    return tuple(EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in entity)


def quota_records(quotas: Quotas) -> Iterator[MetadataRecord]:
    """The records of all quotas."""
    for entity, values in quotas.items():
        for key, value in values.items():
            yield quota_record(entity, key, value)


def apply_quota_record(quotas: dict[QuotaEntity, Mapping[str, float]], record: ClientQuotaRecord) -> None:
    """Set or remove the quota of `record`. Raises InvalidRecordError for an entity that does not exist."""
    try:
        entity = quota_entity([(each.entity_type, each.entity_name) for each in record.entity])
    except InvalidConfigError as error:
        raise InvalidRecordError(f"a ClientQuotaRecord cannot be read: {error}") from None
    values = dict(quotas.get(entity, {}))
    if record.remove:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value
    if values:
        quotas[entity] = values
    else:
        quotas.pop(entity, None)


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """Selects entities: those with the `exact` parts, and a part of each of the `types`; if `strict` no others."""

    exact: Mapping[str, str | None]
    types: Collection[str] = ()
    strict: bool = False

    def matches(self, entity: QuotaEntity) -> bool:
        """Whether the filter selects the entity."""
        parts = dict(entity)
        if self.strict and len(parts) != len(self.exact) + len(self.types):
            return False
        return all(each in parts for each in (*self.exact, *self.types)) and all(
            parts[entity_type] == name for entity_type, name in self.exact.items()
        )


def find_quotas(quotas: Quotas, quota_filter: QuotaFilter) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    """The entities that the filter selects, with their quotas."""
    return [(entity, values) for entity, values in quotas.items() if quota_filter.matches(entity)]


def check_filter_types(types: Sequence[str]) -> None:
    """Raises InvalidConfigError for a type that occurs twice, and for hosts together with users or client ids."""
    for entity_type in types:
        if not entity_type:
            raise InvalidConfigError("Invalid empty entity type.")
        if types.count(entity_type) > 1:
            raise InvalidConfigError(f"Entity type {entity_type} cannot appear more than once in the filter.")
    if IP in types and len(types) > 1:
        raise InvalidConfigError(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
