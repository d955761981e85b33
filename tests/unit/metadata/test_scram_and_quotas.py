"""SCRAM credentials and quotas of clients: made and checked by Kafka's rules, kept by commits and snapshots."""

from __future__ import annotations

import base64
import math
import random

import pytest

from pyspark_kafkalog.errors import (
    DuplicateCredentialError,
    InvalidConfigError,
    InvalidCredentialError,
    InvalidRecordError,
    UnknownCredentialError,
    UnsupportedMechanismError,
)
from pyspark_kafkalog.metadata.delta import start_delta
from pyspark_kafkalog.metadata.image import MetadataImage, image_records
from pyspark_kafkalog.metadata.messages.metadata_records import (
    ClientQuotaRecord,
    EntityData,
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from pyspark_kafkalog.metadata.messages.records import decode_record, encode_record
from pyspark_kafkalog.metadata.users import (
    CLIENT_ID,
    IP,
    USER,
    CredentialDeletion,
    CredentialUpsertion,
    QuotaFilter,
    ScramMechanism,
    alter_credentials,
    alter_quotas,
    check_filter_types,
    credential_of,
    find_quotas,
    quota_entity,
    salt_of_bits,
    upsertion,
)

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
ANN, EVERYONE = quota_entity([(USER, "ann")]), quota_entity([(USER, None)])
ANN_AT_APP = quota_entity([(USER, "ann"), (CLIENT_ID, "app")])


def apply(image: MetadataImage, records: list[MetadataRecord]) -> MetadataImage:
    delta = start_delta(image, base_offset=image.next_offset, timestamp_ms=1)
    delta.replay(decode_record(encode_record(record)) for record in records)
    return delta.build(image.next_offset + len(records))


def salted(user: str, mechanism: int = SHA_256, iterations: int = 4096) -> CredentialUpsertion:
    return CredentialUpsertion(user, mechanism, iterations, b"salt", b"salted")


def test_credential_has_the_keys_of_the_example_of_rfc_7677() -> None:
    # The RFC gives salt, iterations and password, and signatures by these keys:
    # tests/unit/server/security/authentication/test_scram.py.
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    found = credential_of(SHA_256, SHA_256.salted_password("pencil", salt, 4096), salt, 4096)
    assert base64.b64encode(found.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(found.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    assert repr(found) == "ScramCredential(iterations=4096)"


def test_credentials_are_set_changed_removed_and_kept_by_a_snapshot() -> None:
    records, results = alter_credentials({}, [], [salted("ann"), salted("bob", SHA_512, 8192)])
    assert results == {"ann": None, "bob": None}
    image = apply(MetadataImage(), records)
    assert image.scram_credentials["bob", SHA_512].iterations == 8192
    assert apply(MetadataImage(), list(image_records(image))).scram_credentials == image.scram_credentials
    records, results = alter_credentials(image.scram_credentials, [CredentialDeletion("ann", SHA_256)], [])
    assert results == {"ann": None}
    assert list(apply(image, records).scram_credentials) == [("bob", SHA_512)]
    with pytest.raises(InvalidRecordError, match="'ann'"):
        apply(apply(image, records), [RemoveUserScramCredentialRecord(name="ann", mechanism=1)])
    with pytest.raises(InvalidRecordError, match="mechanism 9"):
        apply(image, [UserScramCredentialRecord(name="ann", mechanism=9)])


@pytest.mark.parametrize(
    ("deletions", "upsertions", "error"),
    [
        ([], [salted("ann", iterations=4095)], InvalidCredentialError),
        ([], [salted("ann", iterations=16385)], InvalidCredentialError),
        ([], [salted("")], InvalidCredentialError),
        ([], [CredentialUpsertion("ann", SHA_256, 4096, b"salt", b"")], InvalidCredentialError),
        ([], [salted("ann", 0)], UnsupportedMechanismError),
        ([CredentialDeletion("ann", SHA_256)], [], UnknownCredentialError),
        ([], [salted("ann"), salted("ann", SHA_512)], DuplicateCredentialError),
        ([], [salted("ann"), salted("ann"), salted("ann")], DuplicateCredentialError),
    ],
)
def test_credentials_that_kafka_refuses_are_refused_and_others_of_the_request_are_not(
    deletions: list[CredentialDeletion], upsertions: list[CredentialUpsertion], error: type[Exception]
) -> None:
    records, results = alter_credentials({}, deletions, [*upsertions, salted("other")])
    assert [record.name for record in records] == ["other"]  # type: ignore[attr-defined]
    assert results.pop("other") is None
    (found,) = results.values()
    assert type(found) is error


def test_salt_is_random_letters_and_digits_as_kafka_makes_them() -> None:
    one = upsertion("ann", SHA_256, "secret", iterations=4096, rng=random.Random(1))
    other = upsertion("ann", SHA_256, "secret", iterations=4096, rng=random.Random(2))
    assert one.salt != other.salt
    assert one.salt.decode().isalnum()
    assert one.salted_password == SHA_256.salted_password("secret", one.salt, 4096)
    assert salt_of_bits(0) == b"0"
    assert salt_of_bits(36 * 35 + 10) == b"za"


def test_quotas_are_set_changed_removed_and_kept_by_a_snapshot() -> None:
    image = apply(MetadataImage(), alter_quotas({}, ANN, {"producer_byte_rate": 1024.0, "request_percentage": 0.5}))
    image = apply(image, alter_quotas(image.client_quotas, EVERYONE, {"consumer_byte_rate": 5.0}))
    assert alter_quotas(image.client_quotas, ANN, {"producer_byte_rate": 1024.0, "consumer_byte_rate": None}) == []
    assert apply(MetadataImage(), list(image_records(image))).client_quotas == image.client_quotas
    image = apply(
        image, alter_quotas(image.client_quotas, ANN, {"producer_byte_rate": 7.0, "request_percentage": None})
    )
    assert image.client_quotas == {ANN: {"producer_byte_rate": 7.0}, EVERYONE: {"consumer_byte_rate": 5.0}}
    image = apply(image, alter_quotas(image.client_quotas, ANN, {"producer_byte_rate": None}))
    assert list(image.client_quotas) == [EVERYONE]


def test_mappings_that_a_commit_does_not_change_stay_the_same_objects() -> None:
    image = apply(MetadataImage(), alter_quotas({}, ANN, {"producer_byte_rate": 1024.0}))
    after = apply(image, alter_credentials({}, [], [salted("ann")])[0])
    assert after.client_quotas is image.client_quotas
    assert after.acls is image.acls
    assert apply(after, []).scram_credentials is after.scram_credentials


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("producer_byte_rate", 0.0),
        ("producer_byte_rate", -1.0),
        ("producer_byte_rate", 0.5),
        ("producer_byte_rate", 1e19),
        ("request_percentage", math.nan),
        ("request_percentage", math.inf),
        ("connection_creation_rate", 1.0),
        ("retention.ms", 1.0),
    ],
)
def test_quota_that_kafka_refuses_is_refused(key: str, value: float) -> None:
    with pytest.raises(InvalidConfigError, match=key):
        alter_quotas({}, ANN, {key: value})


def test_quota_of_a_host_that_is_no_ip_address_is_refused_and_can_be_removed() -> None:
    host = quota_entity([(IP, "zzz zzz")])
    with pytest.raises(InvalidConfigError, match="zzz zzz is not a valid IP address"):
        alter_quotas({}, host, {"connection_creation_rate": 5.0})
    assert alter_quotas({host: {"connection_creation_rate": 5.0}}, host, {"connection_creation_rate": None})
    assert alter_quotas({}, quota_entity([(IP, "::1")]), {"connection_creation_rate": 5.0})


@pytest.mark.parametrize(
    "parts", [[], [(USER, "ann"), (USER, "bob")], [("group", "g")], [(USER, "")], [(IP, "10.0.0.1"), (USER, "ann")]]
)
def test_entity_that_kafka_does_not_have_is_refused(parts: list[tuple[str, str | None]]) -> None:
    with pytest.raises(InvalidConfigError):
        quota_entity(parts)
    record = ClientQuotaRecord(entity=tuple(EntityData(entity_type=t, entity_name=n) for t, n in parts), key="k")
    with pytest.raises(InvalidRecordError):
        apply(MetadataImage(), [record])


def test_filter_selects_exact_default_and_any_names_and_no_others_if_strict() -> None:
    quotas = {each: {"producer_byte_rate": 1.0} for each in (ANN, EVERYONE, ANN_AT_APP)}

    def found(**settings: object) -> list[object]:
        return [entity for entity, _ in find_quotas(quotas, QuotaFilter(**settings))]  # type: ignore[arg-type]

    assert found(exact={}) == [ANN, EVERYONE, ANN_AT_APP]
    assert found(exact={USER: "ann"}) == [ANN, ANN_AT_APP]
    assert found(exact={USER: "ann"}, strict=True) == [ANN]
    assert found(exact={USER: None}) == [EVERYONE]
    assert found(exact={}, types=[USER], strict=True) == [ANN, EVERYONE]
    assert found(exact={USER: "ann"}, types=[CLIENT_ID]) == [ANN_AT_APP]
    for wrong in ([USER, USER], [IP, USER], [""]):
        with pytest.raises(InvalidConfigError):
            check_filter_types(wrong)
