"""`kafkalog acls` adds, lists and removes entries like kafka-acls."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.root_places import RootPlace
from kafkalog_command import Command

from pyspark_kafkalog import LogDir


@pytest.fixture
def acls(root_place: RootPlace, capsys: pytest.CaptureFixture[str]) -> Command:
    LogDir.create(root_place).create_topic("orders", partitions=1)
    return Command("acls", root_place, capsys)


def operations(command: Command, *arguments: str) -> set[tuple[str, str, str]]:
    return {(each["resourceType"], each["name"], each["operation"]) for each in command.json("--list", *arguments)}


def test_added_entries_are_listed(acls: Command) -> None:
    out = acls(
        "--add", "--allow-principal", "User:ann", "--operation", "Read", "--operation", "write", "--topic", "orders"
    )
    assert "Adding ACLs for resource `ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)`: \n" in out
    assert "\t(principal=User:ann, host=*, operation=WRITE, permissionType=ALLOW)" in out
    assert out.count("(principal=") == 2
    assert operations(acls) == {("TOPIC", "orders", "READ"), ("TOPIC", "orders", "WRITE")}
    acls("--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--topic", "orders")
    (denial,) = (each for each in acls.json("--list") if each["permissionType"] == "DENY")
    assert (denial["principal"], denial["host"], denial["operation"]) == ("User:bob", "10.0.0.1", "ALL")


def test_producer_and_consumer_roles_add_their_operations(acls: Command) -> None:
    acls("--add", "--allow-principal", "User:ann", "--producer", "--topic", "orders", "--idempotent")
    assert operations(acls) == {
        *(("TOPIC", "orders", name) for name in ("WRITE", "DESCRIBE", "CREATE")),
        ("CLUSTER", "kafka-cluster", "IDEMPOTENT_WRITE"),
    }
    acls("--add", "--allow-principal", "User:bob", "--consumer", "--topic", "orders", "--group", "g")
    assert operations(acls, "--group", "g") == {("GROUP", "g", "READ")}
    listed = acls("--list", "--principal", "User:bob")
    assert listed.startswith("ACLs for principal `User:bob`\nCurrent ACLs for resource `ResourcePattern(")
    assert "User:ann" not in listed


def test_remove_asks_first_and_removes_only_matching_entries(acls: Command, tmp_path: Path) -> None:
    for topic in ("orders", "returns"):
        acls("--add", "--allow-principal", "User:ann", "--operation", "Read", "--topic", topic)
    answer = tmp_path / "answer"
    answer.write_text("n\n")
    exit_code, _, err = acls.read(answer, "--remove", "--topic", "orders")
    assert (exit_code, len(operations(acls))) == (0, 2)
    assert "Are you sure you want to delete all ACLs for resource filter" in err
    answer.write_text("y\n")
    assert acls.read(answer, "--remove", "--topic", "orders")[0] == 0
    assert operations(acls) == {("TOPIC", "returns", "READ")}
    remove = ("--remove", "--force", "--topic", "returns", "--allow-principal")
    acls(*remove, "User:bob", "--operation", "Read")
    assert operations(acls) == {("TOPIC", "returns", "READ")}
    acls(*remove, "User:ann", "--operation", "Read")
    assert operations(acls) == set()


def test_resource_pattern_types_match_like_kafka(acls: Command) -> None:
    prefixed = ("--resource-pattern-type", "prefixed")
    acls("--add", "--allow-principal", "User:ann", "--topic", "ord", *prefixed)
    assert operations(acls, "--topic", "orders") == set()
    assert operations(acls, "--topic", "orders", "--resource-pattern-type", "match") == {("TOPIC", "ord", "ALL")}
    assert operations(acls, "--topic", "ord", "--resource-pattern-type", "any") == {("TOPIC", "ord", "ALL")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--add", "--topic", "orders"], "--allow-principal"),
        (["--add", "--allow-principal", "User:ann"], "resource"),
        (["--add", "--allow-principal", "ann", "--topic", "orders"], "type:name"),
        (["--add", "--allow-principal", "User:ann", "--operation", "Fly", "--topic", "orders"], "Fly"),
        (["--add", "--allow-principal", "User:ann", "--operation", "Write", "--group", "g"], "GROUP"),
        (["--add", "--allow-principal", "User:ann", "--topic", "o", "--resource-pattern-type", "match"], "match"),
        (["--list", "--producer", "--topic", "orders"], "--list"),
        (["--add", "--allow-principal", "User:ann", "--consumer", "--topic", "orders"], "--group"),
        (["--add", "--producer", "--operation", "Read", "--topic", "orders"], "--operation"),
    ],
)
def test_invalid_option_combinations_are_rejected(acls: Command, arguments: list[str], said: str) -> None:
    assert said in acls.fails(*arguments)
    assert operations(acls) == set()
