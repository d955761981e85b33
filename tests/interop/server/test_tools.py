"""Kafka's own tools with --bootstrap-server print for a server of this package what they print for a broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kafka_processes.compared_answers import without_later_configs
from kafka_processes.oracle import CONFIG_COMMAND, Broker, run_tool
from kafka_processes.served import serve

from pyspark_kafkalog.server.config import Address, ServerConfig

pytestmark = pytest.mark.full

TOOLS = "org.apache.kafka.tools."
TOPICS = TOOLS + "TopicCommand"
ON_TOPIC = ("--entity-type", "topics", "--entity-name", "orders")
ON_BROKERS = ("--entity-type", "brokers", "--entity-default")
NODE_ID = "1"  # of the broker, and of the server

#: What is printed of one cluster only: ids, addresses, paths, times, positions of the metadata log. A broker with
#: eligible leader replicas sets min.insync.replicas for all brokers.
_OWN = (
    (r"127\.0\.0\.1[: ]+\d+ *", "HOST "),
    (r"(TopicId|ClusterId|Cluster ID|LeaderEpoch|HighWatermark): +\S+", r"\1"),
    (r'"(directoryId|logDir)": ?"[^"]*"', r"\1"),
    (r"min\.insync\.replicas=1,?", ""),
    (r"(?m)^ +sensitive=false synonyms=\{[^}]*:?[^}]*\}\n", ""),
    (r"(?m)^1 +\t\S{22}\t.*", "REPLICA"),
)


@pytest.fixture(scope="module")
def servers(start_broker: Callable[..., Broker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    """The addresses of a broker, and of a server over a new log directory, each with a topic `orders`."""
    with serve(
        tmp_path_factory.mktemp("served") / "log",
        ServerConfig(listen=Address("127.0.0.1", 0), node_id=int(NODE_ID), flush="os"),
    ) as bootstrap:
        found = (start_broker().bootstrap, bootstrap)
        create = ("--create", "--topic", "orders", "--partitions", "3", "--config", "retention.ms=100000")
        for each in found:
            assert run_tool(TOPICS, "--bootstrap-server", each, *create).returncode == 0
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files that tools take, by name."""
    moved = {"topic": "orders", "partition": 0, "replicas": [int(NODE_ID)]}
    contents = {
        "offsets": {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "offset": -1}]},
        "partitions": {"partitions": [{"topic": "orders", "partition": 0}]},
        "reassignment": {"version": 1, "partitions": [moved]},
    }
    directory = tmp_path_factory.mktemp("files")
    for name, content in contents.items():
        Path(directory, name).write_text(json.dumps(content))
    return {name: str(directory / name) for name in contents}


def printed(servers: Sequence[str], main_class: str, *arguments: str) -> tuple[tuple[int, str], tuple[int, str]]:
    """Exit code and output of a tool for the broker and for the server, without what is theirs alone."""

    def run(bootstrap: str) -> tuple[int, str]:
        command, rest = (arguments[:1], arguments[1:]) if main_class.endswith("ClusterTool") else ((), arguments)
        done = run_tool(main_class, *command, "--bootstrap-server", bootstrap, *rest)
        text = without_later_configs(done.stdout)
        for pattern, replacement in _OWN:
            text = re.sub(pattern, replacement, text)
        return done.returncode, text

    with ThreadPoolExecutor(2) as pool:
        broker, own = pool.map(run, servers)
    return broker, own


@pytest.mark.parametrize(
    ("main_class", "arguments"),
    [
        (TOPICS, ("--list",)),
        (TOPICS, ("--describe", "--topic", "orders")),
        (TOPICS, ("--describe", "--topic", "nope")),
        (TOPICS, ("--create", "--topic", "second", "--replica-assignment", "1,1")),
        (TOPICS, ("--alter", "--topic", "second", "--partitions", "4")),
        (TOPICS, ("--delete", "--topic", "second")),
        (CONFIG_COMMAND, ("--alter", *ON_TOPIC, "--add-config", "segment.ms=7777,cleanup.policy=[compact,delete]")),
        (CONFIG_COMMAND, ("--describe", *ON_TOPIC)),
        (CONFIG_COMMAND, ("--describe", "--all", *ON_TOPIC)),
        (CONFIG_COMMAND, ("--alter", *ON_TOPIC, "--delete-config", "segment.ms,cleanup.policy")),
        (CONFIG_COMMAND, ("--alter", *ON_BROKERS, "--add-config", "log.roll.ms=99999")),
        (CONFIG_COMMAND, ("--describe", *ON_BROKERS)),
        (CONFIG_COMMAND, ("--alter", *ON_BROKERS, "--delete-config", "log.roll.ms")),
        (CONFIG_COMMAND, ("--describe", "--entity-type", "brokers", "--entity-name", NODE_ID)),
        (CONFIG_COMMAND, ("--describe", "--entity-type", "client-metrics")),
        (TOOLS + "ClientMetricsCommand", ("--list",)),
        (TOOLS + "LogDirsCommand", ("--describe", "--topic-list", "orders")),
        (TOOLS + "DeleteRecordsCommand", ("--offset-json-file", "offsets")),
        (TOOLS + "GetOffsetShell", ("--topic", "orders")),
        (TOOLS + "ClusterTool", ("cluster-id",)),
        (TOOLS + "ClusterTool", ("list-endpoints",)),
        (TOOLS + "FeatureCommand", ("upgrade", "--feature", "transaction.version=2")),
        (TOOLS + "MetadataQuorumCommand", ("describe", "--status")),
        (TOOLS + "MetadataQuorumCommand", ("describe", "--replication")),
        (TOOLS + "LeaderElectionCommand", ("--election-type", "preferred", "--all-topic-partitions")),
        (TOOLS + "LeaderElectionCommand", ("--election-type", "preferred", "--path-to-json-file", "partitions")),
        (TOOLS + "reassign.ReassignPartitionsCommand", ("--list",)),
        (TOOLS + "reassign.ReassignPartitionsCommand", ("--verify", "--reassignment-json-file", "reassignment")),
    ],
    ids=lambda each: each.rpartition(".")[2] if isinstance(each, str) else " ".join(each[:3]),
)
def test_tool_prints_what_it_prints_for_a_broker(
    servers: Sequence[str], files: dict[str, str], main_class: str, arguments: Sequence[str]
) -> None:
    broker, own = printed(servers, main_class, *(files.get(each, each) for each in arguments))
    assert own == broker


@pytest.mark.parametrize(
    ("main_class", "arguments"),
    [
        (TOPICS, ("--create", "--topic", "orders")),
        (TOPICS, ("--alter", "--topic", "orders", "--partitions", "2")),
        (CONFIG_COMMAND, ("--alter", *ON_TOPIC, "--add-config", "segment.bytes=1")),
        (
            CONFIG_COMMAND,
            ("--alter", "--entity-type", "topics", "--entity-name", "nope", "--add-config", "segment.ms=1"),
        ),
        (TOOLS + "FeatureCommand", ("upgrade", "--feature", "nope.version=2")),
    ],
    ids=lambda each: each.rpartition(".")[2] if isinstance(each, str) else " ".join(each[:3]),
)
def test_tool_fails_as_for_a_broker_with_a_message_of_its_own(
    servers: Sequence[str], main_class: str, arguments: Sequence[str]
) -> None:
    (broker_code, _), (own_code, _) = printed(servers, main_class, *arguments)
    assert own_code == broker_code != 0
