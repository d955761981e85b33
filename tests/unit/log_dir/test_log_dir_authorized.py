"""A log directory opened for a principal: every public method is checked, or known to reveal and change nothing."""

from __future__ import annotations

import inspect
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog.authorized_log_dir import AuthorizedLogDir
from pyspark_kafkalog.errors import AuthorizationError
from pyspark_kafkalog.groups.group import Group
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.acl import (
    CLUSTER_NAME,
    Acl,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

ANN = "User:ann"
#: Public names of LogDir that need no check of their own, each with the reason.
UNCHECKED = {
    "adopt": "opens without a principal",
    "check_writable": "says only whether it is a broker's directory",
    "create": "opens without a principal",
    "has_committed": "asks last_version, which is checked",
    "has_transactional_id": "says whether a query that knows its id has been here",
    "identity": "names the log directory, as meta.properties does",
    "is_foreign": "says only whether it is a broker's directory",
    "looked_at": "repeats what partition, which is checked, has returned",
    "open": "opens with the principal that it is given",
    "open_or_create": "opens without a principal",
    "path": "was given to open",
    "planned_state": "names files of the commit log",
    "read": "reads through reader, which is checked",
    "version": "counts commits",
}
#: The same of Group, whose opener may describe it.
UNCHECKED_OF_GROUP = {
    "describe": "is what DESCRIBE on the group permits",
    "exists": "is what DESCRIBE on the group permits",
    "lag": "asks fetch, which leaves out topics that may not be described",
}


def public_names(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of) if not name.startswith("_")}


def permit(root: Path, operation: AclOperation, of: ResourceType = ResourceType.TOPIC, name: str = "orders") -> None:
    entry = Acl(of, name, PatternType.LITERAL, ANN, "*", operation, PermissionType.ALLOW)
    LogDir.open(root).access_control().add([entry])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("orders", configs={"retention.ms": "1234567"})
    return tmp_path / "root"


def test_every_public_name_of_a_log_directory_is_checked_or_listed_with_a_reason() -> None:
    checked = {name for name in vars(AuthorizedLogDir) if not name.startswith("_")}
    assert public_names(LogDir) - checked == set(UNCHECKED)


def test_every_public_name_of_a_group_is_checked_or_listed_with_a_reason(root: Path) -> None:
    permit(root, AclOperation.DESCRIBE, ResourceType.GROUP, "g")
    opened = type(LogDir.open(root, principal=ANN).group("g"))
    checked = {name for name in vars(opened) if not name.startswith("_")}
    assert public_names(Group) - checked == set(UNCHECKED_OF_GROUP)


def test_checked_methods_take_the_arguments_of_the_methods_they_guard() -> None:
    for name in vars(AuthorizedLogDir):
        guarded = getattr(LogDir, name, None)
        if name.startswith("_") or guarded is None or not callable(guarded):
            continue
        parameters = inspect.signature(getattr(AuthorizedLogDir, name)).parameters
        assert list(parameters) == list(inspect.signature(guarded).parameters), name


def test_topic_configuration_is_refused_without_describe_configs(root: Path) -> None:
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


def test_writer_without_describe_configs_writes(root: Path) -> None:
    permit(root, AclOperation.WRITE)
    ann = LogDir.open(root, principal=ANN)
    assert ann.append("orders", pa.table({"value": ["1"]})).partitions[0].records == 1


def test_configuration_for_write_is_refused_to_a_reader(root: Path) -> None:
    permit(root, AclOperation.READ)
    with pytest.raises(AuthorizationError, match="WRITE"):
        LogDir.open(root, principal=ANN).config_for_write("orders")


def test_access_control_entries_are_refused_without_describe_on_the_cluster(root: Path) -> None:
    permit(root, AclOperation.READ)
    with pytest.raises(AuthorizationError, match="DESCRIBE"):
        LogDir.open(root, principal=ANN).access_control()
    permit(root, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    ann = LogDir.open(root, principal=ANN)
    with pytest.raises(AuthorizationError, match="ALTER"):
        ann.access_control().add([])
