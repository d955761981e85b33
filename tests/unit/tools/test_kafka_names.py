"""Names of Kafka's scripts and their options lead to the command of this package."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.tools.main import COUNTERPARTS, NOT_HERE, advice, command_parser, main

#: The scripts in bin/ of Kafka 4.1 that are tools of Kafka's.
SCRIPTS = [
    "acls",
    "broker-api-versions",
    "client-metrics",
    "cluster",
    "configs",
    "console-consumer",
    "console-producer",
    "console-share-consumer",
    "consumer-groups",
    "consumer-perf-test",
    "delegation-tokens",
    "delete-records",
    "dump-log",
    "e2e-latency",
    "features",
    "get-offsets",
    "groups",
    "jmx",
    "leader-election",
    "log-dirs",
    "metadata-quorum",
    "metadata-shell",
    "producer-perf-test",
    "reassign-partitions",
    "replica-verification",
    "run-class",
    "server-start",
    "server-stop",
    "share-groups",
    "storage",
    "streams-application-reset",
    "streams-groups",
    "topics",
    "transactions",
    "verifiable-consumer",
    "verifiable-producer",
]


def test_every_kafka_script_has_counterpart_or_reason() -> None:
    assert sorted([*COUNTERPARTS, *NOT_HERE]) == [f"kafka-{name}" for name in SCRIPTS]


def test_every_counterpart_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for counterpart in COUNTERPARTS.values():
        command, *rest = counterpart.split()
        assert all(word in command_parser(command).format_help() for word in rest)


def test_name_of_kafka_script_is_answered_with_counterpart(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["kafka-producer-perf-test.sh", "--topic", "orders"])
    assert exited.value.code == 2
    assert capsys.readouterr().err == "kafkalog: Kafka's kafka-producer-perf-test is kafkalog perf-test producer\n"
    assert advice("storage", ()).startswith("Kafka's kafka-storage has no counterpart: a log directory needs no ")
    assert advice("frobnicate", ("topics",)) == "unknown command 'frobnicate': kafkalog --help lists all"


def test_bootstrap_server_is_answered_with_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["topics", "--bootstrap-server", "localhost:9092", "--list"])
    assert exited.value.code == 2
    assert "use --path ROOT, the log directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topics --bootstrap-server=localhost:9092 --list", "--path ROOT, the log directory"),
        ("topics --path x --describe --under-replicated-partitions", "--under-replicated-partitions: a partition has"),
        ("topics --path x --describe --topics-with-overrides", "kafkalog configs --entity-type topics --describe"),
        ("get-offsets --path x --command-config client.properties", "there is no network client to configure"),
        ("consumer-groups --path x --command-config client.properties", "there is no network client to configure"),
        ("transactions --path x abort --topic t --partition 0 --producer-id 1", "--start-offset identifies"),
    ],
)
def test_option_of_kafka_is_answered_with_advice(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(line.split())
    assert exited.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"kafkalog {line.split()[0]}: ")
    assert said in error
    assert error.count("\n") == 1
