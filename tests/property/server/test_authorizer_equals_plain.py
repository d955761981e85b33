"""The indexed authorizer decides as the rules do that are written down one entry after the other."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest
from counted_steps import counted_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.security.access_control import Authorizer

NAMES = ("*", "a", "ab", "abc", "b", "bc", "hard", "hardcode")
PRINCIPALS = ("User:ann", "User:bob", "User:*", "Group:ann")
HOSTS = ("*", "10.0.0.1", "::1", "10.0.0.0/31", "10.0.0.2/0", "::/0")
OPERATIONS = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
ASKED = [each for each in OPERATIONS if each != AclOperation.ALL]
acls = st.lists(
    st.builds(
        Acl,
        st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
        st.sampled_from(NAMES),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
        st.sampled_from(PRINCIPALS),
        st.sampled_from(HOSTS),
        st.sampled_from(OPERATIONS),
        st.sampled_from(list(PermissionType)),
    ),
    max_size=8,
)
IMPLIED = {
    AclOperation.DESCRIBE: {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


def applies(acl: Acl, principal: str, host: str | None) -> bool:
    if acl.principal not in (principal, "User:*"):
        return False
    if acl.host == "*" or host is None:
        return acl.host == "*"
    return ip_address(host) in ip_network(acl.host, strict=False)


def plain(
    entries: Sequence[Acl], principal: str, operation: AclOperation, of: ResourceType, name: str, host: str | None
) -> bool | None:
    """The decision of Kafka's StandardAuthorizer; None: no entry covers the resource."""
    covering = [
        acl
        for acl in entries
        if acl.resource_type == of
        and (
            name.startswith(acl.resource_name)
            if acl.pattern_type == PatternType.PREFIXED
            else acl.resource_name in ("*", name)
        )
    ]
    if not covering:
        return None
    matching = [acl for acl in covering if applies(acl, principal, host)]
    if any(
        acl.permission == PermissionType.DENY and acl.operation in (operation, AclOperation.ALL) for acl in matching
    ):
        return False
    enough = {operation, AclOperation.ALL} | IMPLIED.get(operation, set())
    return any(acl.permission == PermissionType.ALLOW and acl.operation in enough for acl in matching)


@settings(max_examples=examples(600), deadline=None)
@given(
    entries=acls,
    principal=st.sampled_from(["User:ann", "User:bob", "User:eve"]),
    operation=st.sampled_from(ASKED),
    name=st.sampled_from(NAMES),
    host=st.sampled_from([None, "10.0.0.1", "10.0.0.2", "0:0:0:0:0:0:0:1"]),
    default=st.booleans(),
)
def test_decisions_equal_those_of_the_plain_rules(
    entries: list[Acl], principal: str, operation: AclOperation, name: str, host: str | None, default: bool
) -> None:
    authorizer = Authorizer(entries, frozenset({"User:root"}), default)
    expected = plain(entries, principal, operation, ResourceType.TOPIC, name, host)
    found = authorizer.allows(principal, operation, ResourceType.TOPIC, name, host)
    assert found == (default if expected is None else expected)
    assert authorizer.allows("User:root", operation, ResourceType.TOPIC, name, host)


@settings(max_examples=examples(600), deadline=None)
@given(
    entries=acls,
    principal=st.sampled_from(["User:ann", "User:bob"]),
    operation=st.sampled_from([AclOperation.READ, AclOperation.WRITE]),
    host=st.sampled_from(["10.0.0.1", "10.0.0.2"]),
)
def test_some_resource_is_allowed_if_a_name_can_be_found_on_which_the_operation_is(
    entries: list[Acl], principal: str, operation: AclOperation, host: str
) -> None:
    authorizer = Authorizer(entries)
    # Names of one more letter stand for all others below a prefix; a name that is literally * is no resource.
    names = [*(name for name in NAMES if name != "*"), *(name + "~" for name in NAMES if name != "*"), "~"]
    expected = any(plain(entries, principal, operation, ResourceType.TOPIC, name, host) for name in names)
    if any(acl.pattern_type == PatternType.PREFIXED and acl.resource_name == "*" for acl in entries):
        return  # covers only names that no topic can have
    found = authorizer.allows_any(principal, operation, ResourceType.TOPIC, host)
    # Kafka says yes as soon as everything is allowed, whatever single names are denied, and so may say it too often.
    assert found or not expected
    if not any(acl.permission == PermissionType.DENY for acl in entries):
        assert found == expected


@pytest.mark.slow
def test_decision_among_ten_thousand_entries_takes_few_steps() -> None:
    entries = [
        Acl(
            ResourceType.TOPIC,
            f"team{at % 100}.topic{at}" if at % 2 else "*",
            PatternType.PREFIXED if at % 4 == 1 else PatternType.LITERAL,
            f"User:user{at}",
            "*",
            AclOperation.READ,
            PermissionType.ALLOW,
        )
        for at in range(10_000)
    ]
    authorizer = Authorizer(entries)
    for at in range(0, 2_000, 10):
        topic = f"team{at % 100}.topic{at}"
        with counted_steps() as steps:
            assert authorizer.allows(f"User:user{at}", AclOperation.READ, ResourceType.TOPIC, topic)
            assert not authorizer.allows("User:eve", AclOperation.READ, ResourceType.TOPIC, topic)
        assert steps.count < 1_000
