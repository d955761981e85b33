"""Brokers of older versions of Kafka: one node, with ZooKeeper before 3.3, from then on with the controller in one JVM.

Their jars are fetched as those of kafka_oracle.py, each version by the first test that asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen, run
from typing import Final

from java_processes import QUICK_START, JavaProcessError, accepts, cache_dir, fetch_jars, free_port, java, start_server

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
