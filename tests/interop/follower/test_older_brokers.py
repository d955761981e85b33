"""Brokers of Kafka before 4.1 as leaders, and the least version that can be followed.

A broker is one node, with ZooKeeper before 3.3, from then on with the controller in one JVM. The first test that asks
for a version fetches its jars.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen, run
from typing import Any, Final

import pytest
from builders.following_roots import batches_of, following, has_offsets
from builders.leader_reads import log_bytes
from kafka_processes.clients import producing
from kafka_processes.follow_process import FollowProcess
from kafka_processes.java_processes import (
    QUICK_START,
    JavaProcessError,
    accepts,
    cache_dir,
    fetch_jars,
    free_port,
    java,
    start_server,
)
from kafka_processes.replica_checks import check_same_rows, log_ends_of
from patience import wait_until

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.storage.names import TopicPartition

_START_SECONDS_MAX: Final = 90
_KRAFT_FROM: Final = (3, 3)
_DEPENDENCIES: Final = """\
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="*->default"/>
    <dependency org="org.slf4j" name="slf4j-nop" rev="1.7.36" conf="*->default"/>
"""


class OlderBroker:
    """A broker of this `version` in the folder `home`, while it is entered. `data` is its log.dirs."""

    def __init__(self, version: str, home: Path) -> None:
        self.version = version
        self.home = home
        self.data = home / "data"
        self._port = free_port()
        self._other_port = free_port()
        self._processes: list[Popen[bytes]] = []

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def _has_zookeeper(self) -> bool:
        major, minor, *_ = map(int, self.version.split("."))
        return (major, minor) < _KRAFT_FROM

    def __enter__(self) -> OlderBroker:
        self.data.mkdir(parents=True)
        properties = self.home / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
        try:
            if self._has_zookeeper:
                zookeeper = str(self.home / "zookeeper")
                self._start("org.apache.zookeeper.server.ZooKeeperServerMain", str(self._other_port), zookeeper)
                self._await(self._other_port)
            else:
                format_arguments = ("format", "-t", "kafkalog-tests-cluster", "-c", str(properties))
                run(self._command("kafka.tools.StorageTool", *format_arguments), check=True, capture_output=True)
            self._start("kafka.Kafka", str(properties))
            self._await(self._port)
            self._await_metadata()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _settings(self) -> dict[str, str]:
        common = {
            "log.dirs": str(self.data),
            "num.network.threads": "2",
            "num.io.threads": "4",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "8388608",
        }
        if self._has_zookeeper:
            return {
                **common,
                "broker.id": "1",
                "listeners": f"PLAINTEXT://{self.bootstrap}",
                "zookeeper.connect": f"127.0.0.1:{self._other_port}",
            }
        return {
            **common,
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._other_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{self._other_port}",
        }

    def _command(self, main_class: str, *arguments: str) -> Sequence[str]:
        wanted = (f"kafka_2.13-{self.version}.jar",)
        lib = fetch_jars(cache_dir() / f"kafka-{self.version}", _DEPENDENCIES.format(version=self.version), wanted)
        return [java(), "-Xms64m", "-Xmx256m", *QUICK_START, "-cp", f"{lib}/*", main_class, *arguments]

    def _start(self, main_class: str, *arguments: str) -> None:
        command = self._command(main_class, *arguments)
        with (self.home / "server.log").open("ab") as log:
            self._processes.append(start_server(command, log))

    def _await(self, port: int) -> None:
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not accepts(port):
            if time.monotonic() > deadline or self._processes[-1].poll() is not None:
                said = (self.home / "server.log").read_text(errors="replace")[-2000:]
                raise JavaProcessError(f"Kafka {self.version} did not start\n{said}")
            time.sleep(0.1)

    def _await_metadata(self) -> None:
        from confluent_kafka.admin import AdminClient

        AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=30)


#: Fetches Kafka's jars of each version: the full tier alone.
pytestmark = pytest.mark.full

TOPIC = "orders"


def create_topic(broker: OlderBroker) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    # Since 4.0 the least size of segments is a megabyte.
    new = NewTopic(TOPIC, 2, 1, config={"segment.bytes": "100000", "retention.ms": "-1"})
    admin.create_topics([new])[TOPIC].result(30)


def produce(broker: OlderBroker, seed: int, **settings: Any) -> None:
    with producing(broker.bootstrap, **{"linger.ms": 5, "batch.size": 5000, **settings}) as producer:
        if "transactional.id" in settings:
            producer.init_transactions(30)
        for number in range(6):
            if "transactional.id" in settings:
                producer.begin_transaction()
            for each in range(100):
                producer.produce(TOPIC, f"{seed} {number} {each} ".encode() * 10, key=str(each), partition=each % 2)
            producer.flush(30)
            if "transactional.id" in settings:
                producer.commit_transaction(30) if number % 2 else producer.abort_transaction(30)


@pytest.mark.parametrize("version", ["3.9.1", "2.8.2", "2.7.2"])
def test_copy_of_an_older_broker_has_its_batches(version: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with OlderBroker(version, tmp_path / "broker") as broker:
        create_topic(broker)
        produce(broker, 1, **{"compression.type": "zstd"})
        with following(ClusterLeader(broker.bootstrap), copy) as running:
            produce(broker, 2, **{"transactional.id": "writer"})
            wanted = log_ends_of(broker.bootstrap, [TOPIC])
            wait_until(lambda: has_offsets(copy, wanted))
        for name in wanted:
            assert b"".join(batches_of(LogDir.open(copy), name)) == log_bytes([broker.data], name)
        for isolation in ("read_uncommitted", "read_committed"):
            assert check_same_rows(copy, broker.bootstrap, TOPIC, isolation) > 500
    assert running.kinds() == {EventKind.TOPIC_ADDED, EventKind.CONFIGS_REFUSED}
    assert {each.detail.partition("=")[0] for each in running.of_kind(EventKind.CONFIGS_REFUSED)} == {"segment.bytes"}
    assert sum(wanted[TopicPartition(TOPIC, number)] for number in range(2)) > 1200


def test_broker_that_is_too_old_is_refused_with_the_least_version(tmp_path: Path) -> None:
    with OlderBroker("2.6.3", tmp_path / "broker") as broker:
        create_topic(broker)
        produce(broker, 1)
        with FollowProcess(broker.bootstrap, tmp_path / "copy", tmp_path, "--once") as follow:
            assert follow.wait() == 1
        assert "Kafka 2.7" in follow.said()
