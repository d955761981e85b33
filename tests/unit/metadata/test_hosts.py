"""Hosts of entries, clients and quotas: one form of each address, and ranges as Kafka's authorizer decides them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kafka_processes.host_decisions import CLIENTS, READ, UNREADABLE, HostDecision, kept_decisions

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidAclError
from pyspark_kafkalog.metadata.acl import (
    Acl,
    AclFilter,
    AclOperation,
    HostRange,
    PatternType,
    PermissionType,
    ResourceType,
    acl_record,
    canonical_host,
    canonical_ip,
)
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.security.access_control import Authorizer
from pyspark_kafkalog.server.security import quotas
from pyspark_kafkalog.storage.names import random_uuid

ANN = "User:ann"


def entry(host: str, permission: PermissionType = PermissionType.ALLOW) -> Acl:
    return Acl(ResourceType.TOPIC, "orders", PatternType.LITERAL, ANN, host, AclOperation.READ, permission)


def allows(acls: list[Acl], client: str | None) -> bool:
    host = None if client is None else canonical_host(client)
    return Authorizer(acls).allows(ANN, AclOperation.READ, ResourceType.TOPIC, "orders", host)


def decide(asked: HostDecision) -> bool:
    acls = [entry(asked.host, PermissionType[asked.permission])]
    return allows([*acls, entry("*")] if asked.permission == "DENY" else acls, asked.client)


def test_decisions_by_host_are_those_of_kafkas_authorizer_and_never_wider() -> None:
    decisions = kept_decisions()
    assert len(decisions) == 2 * len(READ + UNREADABLE) * len(CLIENTS)
    different = [each for each in decisions if decide(each) != each.is_allowed]
    # The denial of a range that cannot be read holds for every host, not for none.
    unreadable = [each for each in decisions if each.permission == "DENY" and each.host in UNREADABLE]
    assert different == unreadable
    assert all(each.is_allowed for each in unreadable)
    assert not any(map(decide, unreadable))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::FFFF:a01:203", "10.1.2.3"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
        ("2001:DB8::00ff", "2001:db8:0:0:0:0:0:ff"),
    ],
)
def test_each_address_has_one_form(text: str, canonical: str) -> None:
    assert canonical_ip(text) == canonical_host(text) == canonical
    assert canonical_host(canonical) == canonical


@pytest.mark.parametrize("text", ["", "*", "010.1.2.3", "10.1.2.3%x", "client.example.com", "10.0.0.0/8", "1" * 9000])
def test_text_that_is_no_address_stays(text: str) -> None:
    assert canonical_host(text) == text
    assert canonical_ip(text) is None


def test_address_of_an_entry_may_be_written_in_any_way() -> None:
    denied = entry("::1", PermissionType.DENY)
    assert not allows([entry("*"), denied], "0:0:0:0:0:0:0:1")
    assert allows([entry("2001:DB8:0::5")], "2001:db8::5")
    assert AclFilter(host="0:0:0:0:0:0:0:1").matches(denied)
    assert AclFilter(host="::1").matches(entry("0:0:0:0:0:0:0:1"))


def test_range_has_no_effect_on_a_caller_without_a_host() -> None:
    assert not allows([entry("0.0.0.0/0"), entry("::/0")], None)
    assert allows([entry("*"), entry("0.0.0.0/0", PermissionType.DENY)], None)


def test_any_resource_is_allowed_by_a_range() -> None:
    authorizer = Authorizer([entry("10.0.0.0/8")])
    asked = AclOperation.READ, ResourceType.TOPIC
    assert authorizer.allows_any(ANN, *asked, "10.1.2.3")
    assert not authorizer.allows_any(ANN, *asked, "11.1.2.3")


def test_ranges_are_read_when_entries_become_an_authorizer_not_at_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    authorizer = Authorizer([entry("10.0.0.0/8"), entry("bad/8", PermissionType.DENY)])
    monkeypatch.delattr(HostRange, "parse")
    assert not authorizer.allows(ANN, AclOperation.READ, ResourceType.TOPIC, "orders", "10.1.2.3")


def test_added_entries_have_one_form_and_ranges_that_kafka_reads(tmp_path: Path) -> None:
    control = LogDir.create(tmp_path / "log").access_control()
    control.add([entry("::1"), entry("::ffff:10.1.2.3"), entry("2001:db8::/32")])
    assert {each.host for each in control.entries()} == {"0:0:0:0:0:0:0:1", "10.1.2.3", "2001:db8::/32"}
    for host in UNREADABLE:
        with pytest.raises(InvalidAclError, match="is no range of addresses"):
            control.add([entry(host)])
    assert len(control.remove(AclFilter(host="::1"))) == 1


def test_unreadable_range_in_a_copied_log_opens_nothing(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    rng = random.Random(1)
    copied = [entry("*"), entry("10.0.0.0/33", PermissionType.DENY)]

    def records(_: object) -> list[MetadataRecord]:
        return [acl_record(random_uuid(rng), each) for each in copied]

    log_dir.root.native().commit(records, operation="copy entries")
    authorizer = log_dir.access_control().authorizer()
    assert not authorizer.allows(ANN, AclOperation.READ, ResourceType.TOPIC, "orders", "10.1.2.3")
    assert {each.host for each in log_dir.access_control().entries()} == {"*", "10.0.0.0/33"}


def test_quota_of_an_address_written_in_two_ways_is_the_strictest() -> None:
    rates = quotas._connection_rates(
        {
            (("ip", "::1"),): {"connection_creation_rate": 5.0},
            (("ip", "0:0:0:0:0:0:0:1"),): {"connection_creation_rate": 3.0},
            (("ip", "::ffff:10.1.2.3"),): {"connection_creation_rate": 7.0},
        }
    )
    assert rates == {"0:0:0:0:0:0:0:1": 3.0, "10.1.2.3": 7.0}
