"""The producers, consumers and tools that Kafka's system and performance tests are made of, and its command line."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from kafka_processes.java_processes import start_server
from kafka_processes.oracle import CONFIG_COMMAND, java_command, run_tool

TOOLS = "org.apache.kafka.tools."
GROUPS = TOOLS + "consumer.group.ConsumerGroupCommand"
CLASSIC = "org.apache.kafka.clients.consumer."
RECORDS = 1000


def tool(main_class: str, *arguments: str, stdin: str = "") -> str:
    """What the tool prints. Raises AssertionError if it fails."""
    done = run_tool(main_class, *arguments, stdin=stdin)
    assert done.returncode == 0, (
        f"{main_class} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
    return done.stdout


def events(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def orders(bootstrap: str) -> str:
    """A topic of three partitions with RECORDS records, each of which was acknowledged."""
    create = ("--create", "--topic", "orders", "--partitions", "3", "--replication-factor", "3")
    tool(TOOLS + "TopicCommand", "--bootstrap-server", bootstrap, *create)
    arguments = ("--topic", "orders", "--max-messages", str(RECORDS), "--throughput", "-1")
    said = events(tool(TOOLS + "VerifiableProducer", "--bootstrap-server", bootstrap, *arguments))
    assert said[-1]["acked"] == RECORDS
    assert len([each for each in said if each["name"] == "producer_send_success"]) == RECORDS
    return "orders"


@pytest.mark.parametrize(
    "how",
    [
        ("--assignment-strategy", CLASSIC + "RangeAssignor"),
        ("--assignment-strategy", CLASSIC + "RoundRobinAssignor"),
        ("--assignment-strategy", CLASSIC + "StickyAssignor"),
        ("--assignment-strategy", CLASSIC + "CooperativeStickyAssignor"),
        ("--group-instance-id", "one"),
        ("--group-protocol", "consumer"),
        ("--group-protocol", "consumer", "--group-remote-assignor", "range"),
        ("--group-protocol", "consumer", "--group-instance-id", "one"),
    ],
    ids=lambda how: how[-1].rpartition(".")[2] + str(len(how)),
)
def test_verifiable_consumer_reads_and_commits_everything(bootstrap: str, orders: str, how: tuple[str, ...]) -> None:
    group = f"verified {' '.join(how)}"
    arguments = ("--topic", orders, "--group-id", group, "--max-messages", str(RECORDS), "--reset-policy", "earliest")
    said = events(tool(TOOLS + "VerifiableConsumer", "--bootstrap-server", bootstrap, *arguments, *how))
    assert sum(each["count"] for each in said if each["name"] == "records_consumed") == RECORDS
    committed = {
        each["partition"]: each["offset"]
        for event in said
        if event["name"] == "offsets_committed" and event["success"]
        for each in event["offsets"]
    }
    assert sum(committed.values()) == RECORDS


class RunningConsumer:
    """A VerifiableConsumer that runs until it is ended; `owned` are the partitions that it has now."""

    def __init__(self, bootstrap: str, topic: str, log: Path, *how: str) -> None:
        self._log = log
        arguments = ("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", "changes its protocol", *how)
        with log.open("wb") as output:
            self._process = start_server(java_command(TOOLS + "VerifiableConsumer", *arguments), output)

    @property
    def owned(self) -> set[int]:
        found: set[int] = set()
        for event in events(self._log.read_text().rpartition("\n")[0]):
            partitions = {each["partition"] for each in event.get("partitions", ())}
            if event["name"] == "partitions_assigned":
                found |= partitions
            elif event["name"] == "partitions_revoked":
                found -= partitions
        return found

    def end(self) -> None:
        """As a user ends it: it leaves the group."""
        self._process.terminate()
        self._process.wait(60)


def wait_until_shared(*consumers: RunningConsumer) -> None:
    """Until each of three partitions is one consumer's, and each consumer has one."""
    deadline = time.monotonic() + 90
    while True:
        owned = [each.owned for each in consumers]
        if all(owned) and sorted(number for each in owned for number in each) == [0, 1, 2]:
            return
        assert time.monotonic() < deadline, owned
        time.sleep(0.1)


def test_consumers_change_the_protocol_of_their_group_one_by_one_and_back(
    bootstrap: str, orders: str, tmp_path: Path
) -> None:
    consumer = ("--group-protocol", "consumer")
    with contextlib.ExitStack() as ending:

        def start(name: str, *how: str) -> RunningConsumer:
            started = RunningConsumer(bootstrap, orders, tmp_path / name, *how)
            ending.callback(started.end)
            return started

        first = start("classic", "--assignment-strategy", CLASSIC + "CooperativeStickyAssignor")
        wait_until_shared(first)
        second = start("consumer", *consumer)
        wait_until_shared(first, second)
        first.end()
        wait_until_shared(second)
        third = start("eager", "--assignment-strategy", CLASSIC + "RangeAssignor")
        wait_until_shared(second, third)
        second.end()
        wait_until_shared(third)


def test_transactional_message_copier_copies_each_record_once_through_aborts(bootstrap: str, orders: str) -> None:
    # Each record goes to the partition that it came from.
    tool(TOOLS + "TopicCommand", "--bootstrap-server", bootstrap, "--create", "--topic", "copied", "--partitions", "3")
    for partition in range(3):
        said = events(
            tool(
                TOOLS + "TransactionalMessageCopier",
                *("--broker-list", bootstrap, "--input-topic", orders, "--input-partition", str(partition)),
                *("--output-topic", "copied", "--transactional-id", f"copier-{partition}", "--transaction-size", "50"),
                *("--consumer-group", "copier", "--enable-random-aborts"),
            )
        )
        assert said[-1]["stage"] == "ShutdownComplete"
        assert said[-1]["remaining"] == 0
    read = console_consumer(bootstrap, "copied", "--isolation-level", "read_committed")
    assert sorted(map(int, read)) == list(range(RECORDS))


def console_consumer(bootstrap: str, topic: str, *options: str) -> list[str]:
    """The lines that are printed until nothing came for five seconds."""
    arguments = ("--topic", topic, "--from-beginning", "--timeout-ms", "5000", *options)
    return run_tool(TOOLS + "consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, *arguments).stdout.splitlines()


def test_console_consumer_prints_what_console_producer_was_given(bootstrap: str) -> None:
    lines = "".join(f"h:{i}\tk{i}\tv{i}\n" for i in range(50))
    parse = ("parse.key=true", "parse.headers=true")
    options = [argument for each in parse for argument in ("--reader-property", each)]
    tool(TOOLS + "ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", "console", *options, stdin=lines)
    show = ("print.key=true", "print.headers=true", "print.offset=true", "print.partition=true")
    options = [argument for each in show for argument in ("--formatter-property", each)]
    expected = [f"Partition:0\tOffset:{i}\th:{i}\tk{i}\tv{i}" for i in range(50)]
    assert console_consumer(bootstrap, "console", *options) == expected


def test_performance_tools_write_and_read_every_record(bootstrap: str) -> None:
    producer = ("--topic", "performance", "--record-size", "100", "--throughput", "-1")
    settings = ("--producer-props", f"bootstrap.servers={bootstrap}", "compression.type=lz4")
    said = tool(TOOLS + "ProducerPerformance", *producer, "--num-records", "50000", *settings)
    assert said.splitlines()[-1].startswith("50000 records sent")
    transactional = ("--transactional-id", "performance", "--transaction-duration-ms", "100")
    said = tool(TOOLS + "ProducerPerformance", *producer, "--num-records", "20000", *settings, *transactional)
    assert said.splitlines()[-1].startswith("20000 records sent")
    consumer = ("--bootstrap-server", bootstrap, "--topic", "performance", "--messages", "70000")
    said = tool(TOOLS + "ConsumerPerformance", *consumer)
    assert said.splitlines()[-1].split(", ")[4] == "70000"
    said = tool(TOOLS + "EndToEndLatency", bootstrap, "latency", "100", "all", "100")
    assert "Avg latency" in said


def test_consumer_groups_tool_lists_resets_and_deletes(bootstrap: str, orders: str) -> None:
    def groups(*arguments: str) -> list[list[str]]:
        printed = tool(GROUPS, "--bootstrap-server", bootstrap, *arguments)
        return [line.split() for line in printed.splitlines() if line.strip()]

    read = ("--topic", orders, "--max-messages", str(RECORDS), "--reset-policy", "earliest")
    tool(TOOLS + "VerifiableConsumer", "--bootstrap-server", bootstrap, "--group-id", "tooled", *read)
    assert ["tooled"] in groups("--list")
    described = groups("--describe", "--group", "tooled")
    offsets = {each[2]: each[3:6] for each in described if each[0] == "tooled"}
    assert sum(int(current) for current, _, _ in offsets.values()) == RECORDS
    assert {lag for _, _, lag in offsets.values()} == {"0"}
    assert [each[-1] for each in groups("--describe", "--group", "tooled", "--state") if each[0] == "tooled"] == ["0"]
    reset = ("--reset-offsets", "--group", "tooled", "--topic", orders, "--to-earliest", "--execute")
    assert {each[3] for each in groups(*reset) if each[0] == "tooled"} == {"0"}
    groups("--delete-offsets", "--group", "tooled", "--topic", f"{orders}:0")
    assert {each[2] for each in groups("--describe", "--group", "tooled") if each[0] == "tooled"} == {"1", "2"}
    groups("--delete", "--group", "tooled")
    assert ["tooled"] not in groups("--list")


def test_transactions_tool_shows_a_finished_transaction(bootstrap: str) -> None:
    settings = ("--producer-props", f"bootstrap.servers={bootstrap}", "--transactional-id", "shown")
    size = ("--num-records", "10", "--record-size", "9", "--throughput", "-1")
    tool(TOOLS + "ProducerPerformance", "--topic", "t", *size, *settings)
    transactions = TOOLS + "TransactionsCommand"
    listed = tool(transactions, "--bootstrap-server", bootstrap, "list")
    assert [line.split()[-1] for line in listed.splitlines() if line.startswith("shown ")] == ["CompleteCommit"]
    described = tool(transactions, "--bootstrap-server", bootstrap, "describe", "--transactional-id", "shown")
    assert "CompleteCommit" in described
    producers = tool(
        transactions, "--bootstrap-server", bootstrap, "describe-producers", "--topic", "t", "--partition", "0"
    )
    assert len(producers.splitlines()) == 2
    hanging = tool(transactions, "--bootstrap-server", bootstrap, "find-hanging", "--broker-id", node_id(bootstrap))
    assert len(hanging.splitlines()) <= 1


def node_id(bootstrap: str) -> str:
    endpoints = tool(TOOLS + "ClusterTool", "list-endpoints", "--bootstrap-server", bootstrap)
    return endpoints.splitlines()[1].split()[0]


def test_credentials_of_users_are_changed_with_the_tool(bootstrap: str) -> None:
    user = ("--bootstrap-server", bootstrap, "--entity-type", "users", "--entity-name", "ann")
    config = CONFIG_COMMAND
    tool(config, *user, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    tool(config, *user, "--alter", "--add-config", "producer_byte_rate=9")
    described = tool(config, *user, "--describe")
    assert "SCRAM-SHA-256=iterations=4096" in described
    assert "producer_byte_rate=9.0" in described
    tool(config, *user, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert "iterations" not in tool(config, *user, "--describe")
