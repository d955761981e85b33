"""Access control entries: kept by commits and snapshots, matched as Kafka matches them, enforced for a principal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import (
    AuthorizationError,
    InvalidAclError,
    InvalidRecordError,
    ReadOnlyLogDirError,
    UnknownTopicError,
)
from pyspark_kafkalog.groups.resets import ToEarliest
from pyspark_kafkalog.metadata.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    acl_record,
    check_acl,
    parse_acl,
)
from pyspark_kafkalog.security.access_control import Authorizer

ANN, BOB = "User:ann", "User:bob"
TABLE = pa.table({"key": ["k"], "value": ["v"]})


def acl(
    operation: AclOperation,
    name: str = "orders",
    *,
    of: ResourceType = ResourceType.TOPIC,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = ANN,
    host: str = "*",
    deny: bool = False,
) -> Acl:
    return Acl(of, name, pattern, principal, host, operation, PermissionType.DENY if deny else PermissionType.ALLOW)


def allows(
    acls: list[Acl], operation: AclOperation, name: str = "orders", principal: str = ANN, **settings: object
) -> bool:
    return Authorizer(acls, **settings).allows(principal, operation, ResourceType.TOPIC, name)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER])
def test_read_write_delete_and_alter_imply_describe_and_denials_imply_nothing(given: AclOperation) -> None:
    assert allows([acl(given)], AclOperation.DESCRIBE)
    assert not allows([acl(given)], AclOperation.CREATE)
    # A denial implies nothing.
    assert allows([acl(AclOperation.DESCRIBE), acl(given, deny=True)], AclOperation.DESCRIBE)
    assert not allows([acl(given), acl(given, deny=True)], given)


def test_alter_configs_does_not_imply_describe_configs() -> None:
    assert allows([acl(AclOperation.ALTER_CONFIGS)], AclOperation.DESCRIBE_CONFIGS)
    assert not allows([acl(AclOperation.ALTER_CONFIGS)], AclOperation.DESCRIBE)


def test_denial_overrides_permission() -> None:
    everything = acl(AclOperation.ALL, "*", principal="User:*")
    assert allows([everything], AclOperation.READ, principal=BOB)
    assert not allows([everything, acl(AclOperation.ALL, deny=True, principal=BOB)], AclOperation.READ, principal=BOB)
    assert allows([everything, acl(AclOperation.ALL, deny=True, principal=BOB)], AclOperation.READ)
    assert not allows(
        [everything, acl(AclOperation.READ, "o", pattern=PatternType.PREFIXED, deny=True)], AclOperation.READ
    )


def test_acl_matches_its_resource_principal_and_host_only() -> None:
    prefixed = acl(AclOperation.READ, "ord", pattern=PatternType.PREFIXED)
    assert allows([prefixed], AclOperation.READ)
    assert allows([prefixed], AclOperation.READ, "ord")
    assert not allows([prefixed], AclOperation.READ, "or")
    assert not allows([acl(AclOperation.READ)], AclOperation.READ, "orders2")
    assert not allows([acl(AclOperation.READ, of=ResourceType.GROUP)], AclOperation.READ)
    assert not allows([acl(AclOperation.READ, principal="User:an")], AclOperation.READ)
    assert not allows([acl(AclOperation.READ, host="10.0.0.7")], AclOperation.READ)


def test_super_users_and_allow_without_acl_apply_beside_entries() -> None:
    denial = acl(AclOperation.ALL, deny=True)
    assert allows([denial], AclOperation.READ, super_users=frozenset({ANN}))
    assert allows([], AclOperation.READ, allows_without_acl=True)
    assert not allows([], AclOperation.READ)
    assert not allows([acl(AclOperation.READ, principal=BOB)], AclOperation.READ, allows_without_acl=True)


def test_filter_patterns_match_as_in_kafka() -> None:
    literal, prefixed = acl(AclOperation.READ), acl(AclOperation.READ, "ord", pattern=PatternType.PREFIXED)
    star = acl(AclOperation.READ, "*")

    def found(name: str | None, pattern: PatternType) -> set[Acl]:
        chosen = AclFilter(ResourceType.TOPIC, name, pattern)
        return {each for each in (literal, prefixed, star) if chosen.matches(each)}

    assert found(None, PatternType.ANY) == {literal, prefixed, star}
    assert found("orders", PatternType.MATCH) == {literal, prefixed, star}
    assert found("ordinary", PatternType.MATCH) == {prefixed, star}
    assert found("orders", PatternType.LITERAL) == {literal}
    assert found("ord", PatternType.ANY) == {prefixed}
    assert found(None, PatternType.PREFIXED) == {prefixed}


@pytest.mark.parametrize(
    "bad",
    [
        acl(AclOperation.READ, ""),
        acl(AclOperation.READ, principal="ann"),
        acl(AclOperation.READ, principal="User:"),
        acl(AclOperation.WRITE, of=ResourceType.GROUP),
        acl(AclOperation.ALTER, "other", of=ResourceType.CLUSTER),
        acl(AclOperation.READ, pattern=PatternType.MATCH),
    ],
)
def test_acl_that_kafka_refuses_is_refused(bad: Acl) -> None:
    with pytest.raises(InvalidAclError):
        check_acl(bad)


def test_acl_record_with_unknown_operation_is_refused() -> None:
    record = acl_record("AAAAAAAAAAAAAAAAAAAAAQ", acl(AclOperation.READ))
    assert parse_acl(record) == acl(AclOperation.READ)
    with pytest.raises(InvalidRecordError, match="99"):
        parse_acl(record.replace(operation=99))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", TABLE)
    log_dir.create_topic("secret", partitions=1)
    return log_dir.path


def test_acls_survive_commits_and_snapshots_once_each(root: Path) -> None:
    log_dir = LogDir.open(root)
    control = log_dir.access_control()
    read, write = acl(AclOperation.READ), acl(AclOperation.WRITE)
    control.add([read, write, read])
    control.add([write])
    assert control.entries() == sorted([read, write])
    log_dir.alter_broker_configs(add={"metadata.log.max.record.bytes.between.snapshots": "1"})
    for _ in range(3):
        log_dir.append("orders", TABLE)
    assert list(root.glob("__cluster_metadata-0/*.checkpoint"))
    forget_images()
    assert LogDir.open(root).access_control().entries() == sorted([read, write])
    assert control.remove(AclFilter(operation=AclOperation.READ)) == [read]
    assert control.remove(AclFilter(operation=AclOperation.READ)) == []
    forget_images()
    assert LogDir.open(root).access_control().entries() == [write]
    with pytest.raises(InvalidAclError):
        control.add([acl(AclOperation.READ, ""), read])
    assert control.entries() == [write]


#: What is tried, and the entry that permits it.
TRIED: dict[str, tuple[Callable[[LogDir], object], Acl]] = {
    "read": (lambda log_dir: log_dir.read("orders"), acl(AclOperation.READ)),
    "append": (lambda log_dir: log_dir.append("orders", TABLE), acl(AclOperation.WRITE)),
    "describe": (lambda log_dir: log_dir.topic("orders"), acl(AclOperation.DESCRIBE)),
    "look at a partition": (lambda log_dir: log_dir.partition("orders", 0), acl(AclOperation.DESCRIBE)),
    "delete": (lambda log_dir: log_dir.delete_topic("orders"), acl(AclOperation.DELETE)),
    "alter": (
        lambda log_dir: log_dir.alter_topic("orders", add={"retention.ms": "1"}),
        acl(AclOperation.ALTER_CONFIGS),
    ),
    "add partitions": (lambda log_dir: log_dir.add_partitions("orders", 2), acl(AclOperation.ALTER)),
    "create": (lambda log_dir: log_dir.create_topic("new"), acl(AclOperation.CREATE, "new")),
    "broker configs": (
        lambda log_dir: log_dir.alter_broker_configs(add={"num.partitions": "2"}),
        acl(AclOperation.ALTER_CONFIGS, CLUSTER_NAME, of=ResourceType.CLUSTER),
    ),
    "history": (
        lambda log_dir: list(log_dir.history()),
        acl(AclOperation.DESCRIBE, CLUSTER_NAME, of=ResourceType.CLUSTER),
    ),
    "maintenance": (
        lambda log_dir: log_dir.root.native(),
        acl(AclOperation.ALTER, CLUSTER_NAME, of=ResourceType.CLUSTER),
    ),
    "take an id over": (
        lambda log_dir: log_dir.init_transaction("app", "run"),
        acl(AclOperation.WRITE, "app", of=ResourceType.TRANSACTIONAL_ID),
    ),
    "look at a group": (
        lambda log_dir: log_dir.group("g").fetch(),
        acl(AclOperation.DESCRIBE, "g", of=ResourceType.GROUP),
    ),
    "delete a group": (
        lambda log_dir: log_dir.group("there").delete(),
        acl(AclOperation.DELETE, "there", of=ResourceType.GROUP),
    ),
}


@pytest.mark.parametrize("name", TRIED)
def test_operation_needs_its_permission_and_succeeds_with_it(root: Path, name: str) -> None:
    act, permission = TRIED[name]
    LogDir.open(root).group("there").commit({("orders", 0): 0})
    with pytest.raises(AuthorizationError, match="User:ann may not"):
        act(LogDir.open(root, principal=ANN))
    LogDir.open(root).access_control().add([permission])
    with pytest.raises(AuthorizationError):
        act(LogDir.open(root, principal=BOB))
    act(LogDir.open(root, principal=ANN))


def test_group_commit_needs_permission_for_group_and_topic(root: Path) -> None:
    control = LogDir.open(root).access_control()
    group_read = acl(AclOperation.READ, "g", of=ResourceType.GROUP)
    control.add([group_read])
    group = LogDir.open(root, principal=ANN).group("g")
    with pytest.raises(AuthorizationError, match="topic 'orders'"):
        group.commit({("orders", 0): 1})
    control.add([acl(AclOperation.READ)])
    group = LogDir.open(root, principal=ANN).group("g")
    group.commit({("orders", 0): 1})
    group.reset(ToEarliest())
    assert [each.offset for each in group.fetch().values()] == [0]
    with pytest.raises(AuthorizationError, match="DELETE"):
        group.delete()
    with pytest.raises(AuthorizationError, match="DELETE"):
        group.delete_offsets([("orders", 0)])
    assert LogDir.open(root, principal=ANN).groups() == ("g",)
    assert LogDir.open(root, principal=BOB).groups() == ()


def test_log_dir_of_group_is_restricted_to_same_principal(root: Path) -> None:
    LogDir.open(root).access_control().add([acl(AclOperation.READ, "g", of=ResourceType.GROUP)])
    with pytest.raises(AuthorizationError):
        LogDir.open(root, principal=ANN).group("g").root.delete_topic("secret")


def test_group_offsets_leave_out_topics_not_describable(root: Path) -> None:
    log_dir = LogDir.open(root)
    log_dir.group("g").commit({("orders", 0): 1, ("secret", 0): 1})
    log_dir.access_control().add([acl(AclOperation.DESCRIBE), acl(AclOperation.READ, "g", of=ResourceType.GROUP)])
    group = LogDir.open(root, principal=ANN).group("g")
    assert [each.topic for each in group.fetch()] == ["orders"]
    assert [each.topic_partition.topic for each in group.lag()] == ["orders"]
    with pytest.raises(AuthorizationError, match="topic 'secret'"):
        group.fetch(["secret"])


def test_topics_lists_only_describable_topics(root: Path) -> None:
    LogDir.open(root).access_control().add([acl(AclOperation.READ)])
    assert LogDir.open(root, principal=ANN).topics() == ("orders",)
    assert LogDir.open(root, principal=BOB).topics() == ()
    assert LogDir.open(root).topics() == ("orders", "secret")
    LogDir.open(root).alter_broker_configs(add={"super.users": f"User:root;{BOB}"})
    bob = LogDir.open(root, principal=BOB)
    assert bob.topics() == ("orders", "secret")
    with pytest.raises(UnknownTopicError):
        bob.topic("none")


def test_acl_added_after_open_applies_after_refresh(root: Path) -> None:
    ann = LogDir.open(root, principal=ANN)
    with pytest.raises(AuthorizationError):
        ann.read("orders")
    LogDir.open(root).access_control().add([acl(AclOperation.READ)])
    ann.refresh()
    assert ann.read("orders").num_rows == 1


def test_broker_directory_denies_principals_and_refuses_acls(kafka_fixtures: Path) -> None:
    path = kafka_fixtures / "transactions"
    assert LogDir.open(path).access_control().entries() == []
    with pytest.raises(AuthorizationError):
        LogDir.open(path, principal=ANN).read(LogDir.open(path).topics()[0])
    with pytest.raises(ReadOnlyLogDirError):
        LogDir.open(path).access_control().add([acl(AclOperation.READ)])
    with pytest.raises(InvalidAclError, match="type:name"):
        LogDir.open(path, principal="ann")
