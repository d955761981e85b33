"""Access control entries that Kafka's own tool created, read from the broker's directory and kept by an adoption."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_processes.host_decisions import kafka_decisions, kept_decisions
from kafka_processes.oracle import Broker, run_tool
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import AuthorizationError

ACLS = "org.apache.kafka.tools.AclCommand"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
PREFIXED = ("--topic", "r", "--resource-pattern-type", "prefixed")
GIVEN = (
    ("--add", "--allow-principal", "User:ann", "--operation", "Read", "--topic", "orders"),
    ("--add", "--allow-principal", "User:etl", "--producer", *PREFIXED),
    ("--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "All", "--topic", "*"),
    ("--remove", "--force", "--allow-principal", "User:etl", "--operation", "Create", *PREFIXED),
)


def blocks(printed: str) -> dict[str, set[str]]:
    """The entries that were printed, by the line above them; Kafka prints them in no order."""
    found: dict[str, set[str]] = {}
    heading = ""
    for line in printed.splitlines():
        if line.strip().startswith("("):
            found[heading].add(line.strip())
        elif line.strip():
            heading = line
            found.setdefault(heading, set())
    return found


@pytest.mark.full
def test_acls_output_and_entries_equal_kafkas_before_and_after_adoption(
    start_broker: Callable[..., Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = start_broker(SETTINGS)
    broker.create_topic("orders")
    ours = tmp_path / "ours"
    LogDir.create(ours).create_topic("orders", partitions=1)
    for arguments in GIVEN:
        theirs = run_tool(ACLS, "--bootstrap-server", broker.bootstrap, *arguments)
        assert theirs.returncode == 0, theirs.stderr
        assert blocks(Command("acls", ours, capsys)(*arguments)) == blocks(theirs.stdout)
    listed = run_tool(ACLS, "--bootstrap-server", broker.bootstrap, "--list").stdout
    deadline = time.monotonic() + 10
    live = Command("acls", broker.data, capsys)
    while blocks(live("--list")) != blocks(listed) and time.monotonic() < deadline:
        time.sleep(0.2)  # the broker writes to its log in its own time
    assert blocks(live("--list")) == blocks(listed) == blocks(Command("acls", ours, capsys)("--list"))
    broker.stop()
    adopted = tmp_path / "adopted"
    shutil.copytree(broker.data, adopted)
    LogDir.adopt(adopted)
    assert blocks(Command("acls", adopted, capsys)("--list")) == blocks(listed)
    LogDir.open(adopted, principal="User:ann").read("orders")
    with pytest.raises(AuthorizationError):
        LogDir.open(adopted, principal="User:etl").read("orders")


@pytest.mark.full
def test_decisions_by_host_are_those_of_the_table() -> None:
    assert kafka_decisions() == kept_decisions()
