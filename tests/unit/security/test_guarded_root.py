"""A log directory opened for a principal: every public method is checked, or known to reveal and change nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from builders.root_places import RootPlace

from pyspark_kafkalog.errors import AuthorizationError
from pyspark_kafkalog.groups.group import Group
from pyspark_kafkalog.groups.guarded_group import GuardedGroup, open_group
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.root.brokers.broker_root import BrokerRoot
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import PublicRoot, Root
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.security.access_control import Authorizer
from pyspark_kafkalog.security.open import GuardedRoot, open_root
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staged_file import StagedFile

ANN = "User:ann"
#: Names of Root that a GuardedRoot forwards without a check of its own, each with the reason.
UNCHECKED = {
    "check_writable": "says only whether it is a broker's directory",
    "has_broker_configs": "says only whether it is a broker's directory",
    "has_broker_coordinator": "says only whether it is a broker's directory",
    "has_transactional_id": "says whether a query that knows its id has been here",
    "identity": "names the log directory, as meta.properties does",
    "directories": "were given to open",
    "follows": "names the leader of the log directory",
    "is_broker_directory": "says only whether it is a broker's directory",
    "partitions_read": "repeats what partition, which is checked, has returned",
    "path": "was given to open",
    "refresh": "reads new commits",
    "staging": "names a place for records that commit_staged, which is checked, makes visible",
    "version": "counts commits",
}
#: The same of Group, whose opener may describe it.
UNCHECKED_OF_GROUP = {
    "describe": "is what DESCRIBE on the group permits",
    "exists": "is what DESCRIBE on the group permits",
    "group_id": "was given to open",
    "root": "is the guarded root",
}
#: Names of Root that return what the principal may describe, and not the rest: a test below each.
FILTERED = {"group_configs", "topic_name", "topics"}
#: Names of Root that are the checks themselves.
OF_GUARD = {"allows", "check", "coordinator_root", "principal"}
NAME = "orders"


def public_names(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of) if not name.startswith("_")}


def permit(
    root: RootPlace, operation: AclOperation, of: ResourceType = ResourceType.TOPIC, name: str = "orders"
) -> None:
    entry = Acl(of, name, PatternType.LITERAL, ANN, "*", operation, PermissionType.ALLOW)
    LogDir.open(root).access_control().add([entry])


@pytest.fixture
def root(root_place: RootPlace) -> RootPlace:
    LogDir.create(root_place).create_topic("orders", configs={"retention.ms": "1234567"})
    return root_place


class Unreachable:
    """In place of the root beneath: refuses to be used."""

    is_broker_directory = False
    version = 0

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was forwarded without a check")


def arguments(of: Callable[..., object]) -> dict[str, object]:
    """An argument for each parameter without a default."""
    known: dict[str, object] = {
        "topics": [NAME],
        "partition": 0,
        "staged": [
            StagedFile(TopicPartition(NAME, 0), "write-0.staged", 0, np.empty(0, BATCH_DTYPE), np.empty(0, np.int32))
        ],
        "offsets": {(NAME, 0): 1},
        "partitions": [(NAME, 0)],
        "total": 2,
        "target": "earliest",
        "older_than_ms": 1,
        "transaction": WriteTransaction("id", 1, "incarnation"),
        "topic_partition": TopicPartition(NAME, 0),
    }
    required = [
        each.name
        for each in inspect.signature(of).parameters.values()
        if each.default is each.empty and each.name != "self"
    ]
    return {name: known.get(name, NAME) for name in required}


def guarded_root(monkeypatch: pytest.MonkeyPatch) -> GuardedRoot:
    """A root without any entry for its principal, over a root that refuses to be used."""
    guarded = GuardedRoot(Unreachable(), ANN)  # type: ignore[arg-type]
    monkeypatch.setattr(guarded, "_authorizer", Authorizer)
    return guarded


def test_guarded_root_has_the_methods_of_the_protocol_and_no_other() -> None:
    assert public_names(GuardedRoot) | {"principal"} == public_names(Root)


def test_log_dir_has_each_public_method_of_the_protocol_itself() -> None:
    """One that it inherited would return None."""
    assert public_names(PublicRoot) <= vars(LogDir).keys()


@pytest.mark.parametrize("of", [FileRoot, ObjectRoot, BrokerRoot])
def test_roots_have_the_methods_of_the_protocol(of: type) -> None:
    attributes = {"directories", "identity", "path"}  # set in __init__ by some
    assert public_names(Root) - public_names(of) <= attributes


@pytest.mark.parametrize("name", sorted(public_names(Root) - UNCHECKED.keys() - FILTERED - OF_GUARD - {"ensure_topic"}))
def test_method_without_permission_is_refused_before_it_is_forwarded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = getattr(guarded_root(monkeypatch), name)
    with pytest.raises(AuthorizationError):
        method(**arguments(method))


def test_topic_that_may_not_be_described_is_neither_listed_nor_created(root: RootPlace) -> None:
    ann = open_root(root, principal=ANN)
    assert ann.topics() == ()
    with pytest.raises(AuthorizationError, match="CREATE"):
        ann.ensure_topic("others")


def test_configurations_of_groups_that_may_not_be_described_are_not_returned(root: RootPlace) -> None:
    opened = open_root(root)
    for group_id in ("g", "other"):
        opened.alter_group_configs(group_id, add={"consumer.session.timeout.ms": "50000"})
    assert open_root(root, principal=ANN).group_configs() == {}
    permit(root, AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP, "g")
    assert open_root(root, principal=ANN).group_configs() == {"g": {"consumer.session.timeout.ms": "50000"}}


def test_guarded_group_has_the_methods_of_group() -> None:
    assert public_names(GuardedGroup) | {"group_id"} == public_names(Group) | {"group_id"}


@pytest.mark.parametrize("name", sorted(public_names(Group) - UNCHECKED_OF_GROUP.keys() - {"fetch", "lag"}))
def test_change_of_a_group_without_permission_is_refused(root: RootPlace, name: str) -> None:
    permit(root, AclOperation.DESCRIBE, ResourceType.GROUP, "g")
    method = getattr(open_group(open_root(root, principal=ANN), "g"), name)
    with pytest.raises(AuthorizationError):
        method(**arguments(method))


@pytest.mark.parametrize("name", ["fetch", "lag"])
def test_group_does_not_show_offsets_of_topics_that_may_not_be_described(root: RootPlace, name: str) -> None:
    open_group(open_root(root), "g").commit({(NAME, 0): 0})
    permit(root, AclOperation.DESCRIBE, ResourceType.GROUP, "g")
    group = open_group(open_root(root, principal=ANN), "g")
    assert not getattr(group, name)()
    with pytest.raises(AuthorizationError):
        getattr(group, name)([NAME])


@pytest.mark.parametrize(("guard", "guarded"), [(GuardedRoot, Root), (GuardedGroup, Group)])
def test_guarded_methods_take_the_arguments_of_the_methods_they_guard(guard: type, guarded: type) -> None:
    for name in public_names(guarded):
        method = getattr(guarded, name)
        if callable(method):
            assert (
                inspect.signature(getattr(guard, name)).parameters.keys() == inspect.signature(method).parameters.keys()
            )


def test_topic_configuration_is_refused_without_describe_configs(root: RootPlace) -> None:
    permit(root, AclOperation.READ)
    permit(root, AclOperation.WRITE)
    ann = LogDir.open(root, principal=ANN)
    with pytest.raises(AuthorizationError, match="DESCRIBE_CONFIGS"):
        ann.log_config("orders")
    assert ann.topic("orders").configs == {}
    permit(root, AclOperation.DESCRIBE_CONFIGS)
    ann.refresh()
    assert ann.log_config("orders").retention_ms == 1234567
    assert ann.topic("orders").configs == {"retention.ms": "1234567"}


def test_writer_without_describe_configs_writes(root: RootPlace) -> None:
    permit(root, AclOperation.WRITE)
    ann = LogDir.open(root, principal=ANN)
    assert ann.append("orders", pa.table({"value": ["1"]})).partitions[0].records == 1


def test_configuration_for_write_is_refused_to_a_reader(root: RootPlace) -> None:
    permit(root, AclOperation.READ)
    with pytest.raises(AuthorizationError, match="WRITE"):
        open_root(root, principal=ANN).config_for_write("orders")


def test_access_control_entries_are_refused_without_describe_on_the_cluster(root: RootPlace) -> None:
    permit(root, AclOperation.READ)
    with pytest.raises(AuthorizationError, match="DESCRIBE"):
        LogDir.open(root, principal=ANN).access_control()
    permit(root, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    ann = LogDir.open(root, principal=ANN)
    with pytest.raises(AuthorizationError, match="ALTER"):
        ann.access_control().add([])
