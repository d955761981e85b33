"""Consumers and producers move from a live broker to a log directory by docs/MIGRATING.md, "From a live cluster".

The commands are those of the guide, in its order. Producers write while the consumers move; a member of the group stays
connected while the log directory is promoted. The group reads every record once, at the broker and here.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from documented import blocks_of
from kafka_processes.clients import consume
from kafka_processes.java_processes import accepts, free_port, start_server
from kafka_processes.oracle import Broker, write_tool_scripts
from patience import meanwhile, wait_until
from repository import REPOSITORY

#: Starts a broker and Kafka's tools: the full tier alone.
pytestmark = pytest.mark.full

TOPICS: Final = {"orders": 3, "payments": 2}
DEADLINE_S: Final = 120.0
LONG_RUNNING: Final = re.compile(r"kafkalog (serve|follow(?!.*--once)) ")


def guide() -> dict[int, list[str]]:
    """The commands of each step."""
    text = (REPOSITORY / "docs" / "MIGRATING.md").read_text(encoding="utf-8")
    part = text.partition("## From a live cluster\n")[2].partition("\n## ")[0].partition("\n- ")[0]
    steps = re.split(r"^(\d+)\. ", part, flags=re.MULTILINE)[1:]
    return {
        int(number): [command for block in blocks_of(step) for command, _ in block.commands()]
        for number, step in zip(steps[::2], steps[1::2], strict=True)
    }


@dataclass
class Shell:
    """Runs the guide's commands with the places of this test; long-running ones, by their names, until `end`."""

    home: Path
    places: dict[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __call__(self, command: str) -> str:
        """Run a command to its end; returns its output."""
        done = subprocess.run(
            ["sh", "-c", self._placed(command)], cwd=self.home, env=self._environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def begin(self, command: str) -> None:
        """Start a command that runs until it is stopped."""
        name, _, arguments = self._placed(command).partition(" ")
        assert name == "kafkalog"
        python = [sys.executable, "-m", "pyspark_kafkalog", *shlex.split(arguments)]
        with (self.home / "processes.log").open("ab") as log:
            self.running[arguments.split()[0]] = start_server(python, log)

    def end(self, name: str) -> None:
        """End one of the commands, as a service manager does."""
        ended = self.running.pop(name)
        ended.send_signal(signal.SIGTERM)
        assert ended.wait(60) == 0, (self.home / "processes.log").read_text()

    def kill(self) -> None:
        for each in self.running.values():
            each.kill()
            each.wait()

    def _placed(self, command: str) -> str:
        for name, there in self.places.items():
            command = command.replace(name, there)
        return command

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "LC_ALL": "C.UTF-8",
        }


def shell_for(home: Path, broker: Broker) -> Shell:
    write_tool_scripts(home / "bin")
    kafkalog = home / "bin" / "kafkalog"
    kafkalog.write_text(f'#!/bin/sh\nexec {sys.executable} -m pyspark_kafkalog "$@"\n')
    kafkalog.chmod(0o755)
    served = f"127.0.0.1:{free_port()}"
    # In this order: the broker's address is another text than the server's.
    places = {"broker1:9092": broker.bootstrap, "localhost:9092": served}
    return Shell(home, {**places, "/data/log": str(home / "log"), "follow.json": str(home / "follow.json")})


@dataclass
class Producers:
    """An idempotent producer and a transactional one in threads. `acknowledged`: what readers are to find."""

    bootstrap: str
    prefix: str
    acknowledged: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def writing(self) -> Iterator[None]:
        threads = [threading.Thread(target=each, daemon=True) for each in (self._idempotent, self._transactional)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in threads:
                each.join(DEADLINE_S)
                assert not each.is_alive()

    def _idempotent(self) -> None:
        from confluent_kafka import Producer

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged.append(message.value().decode())

        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not self._stop.is_set():
            for _ in range(20):
                text = f"{self.prefix} {number}"
                producer.produce("orders", text, key=str(number % 7), on_delivery=delivered)
                number += 1
            producer.poll(0.05)
        assert producer.flush(30) == 0

    def _transactional(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": "shop", "log_level": 0})
        producer.init_transactions(60)
        number = 0
        while not self._stop.is_set():
            texts = [f"{self.prefix} transaction {number} record {each}" for each in range(5)]
            producer.begin_transaction()
            for text in texts:
                producer.produce("payments", text, partition=number % 2)
            if number % 3 == 2:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
                self.acknowledged += texts
            number += 1
            time.sleep(0.05)


@dataclass
class Billing:
    """The members of the group; what they have read, all of which is committed when they stop."""

    read: list[tuple[str, int, int, str]] = field(default_factory=list)

    def run(self, bootstrap: str, enough: Callable[[], bool]) -> None:
        """Let a member read until there is enough, commit and leave."""
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe(list(TOPICS))
        deadline = time.monotonic() + DEADLINE_S
        try:
            while not enough():
                assert time.monotonic() < deadline, f"{len(self.read)} records were read"
                for each in consumer.consume(100, timeout=0.5):
                    assert each.error() is None, each.error()
                    self.read.append((each.topic(), each.partition(), each.offset(), each.value().decode()))
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    def running(self, bootstrap: str) -> AbstractContextManager[None]:
        """A member in a thread, which stays connected for the block."""
        return meanwhile(partial(self.run, bootstrap), ends_within_s=DEADLINE_S)

    def more(self, count: int) -> Callable[[], bool]:
        """Whether so many more records than now were read."""
        wanted = len(self.read) + count
        return lambda: len(self.read) >= wanted


def described_offsets(text: str) -> dict[tuple[str, str], str]:
    """CURRENT-OFFSET by topic and partition, as both tools print it."""
    rows = [line.split() for line in text.splitlines() if line.startswith("billing ")]
    return {(row[1], row[2]): row[3] for row in rows}


def test_clients_move_by_the_guide_and_no_record_is_lost_or_doubled(
    start_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = start_broker({"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"})
    for topic, partitions in TOPICS.items():
        broker.create_topic(topic, partitions)
    steps, shell, billing = guide(), shell_for(tmp_path, broker), Billing()
    served = shell.places["localhost:9092"]
    at_cluster, here = Producers(broker.bootstrap, "cluster"), Producers(served, "here")

    def is_served() -> bool:
        host, port = served.split(":")
        return accepts(int(port)) and host == "127.0.0.1"

    with ExitStack() as stack:
        stack.callback(shell.kill)
        with at_cluster.writing():
            billing.run(broker.bootstrap, billing.more(300))
            for number in (1, 2):
                (command,) = steps.pop(number)
                assert LONG_RUNNING.match(command)
                shell.begin(command)
                wait_until((tmp_path / "log" / "__cluster_metadata-0").is_dir, "that the log directory exists")
            wait_until(is_served, "that the copy is served")
            theirs, ours = steps.pop(3)
            wait_until(
                lambda: described_offsets(shell(theirs)) == described_offsets(shell(ours)) != {}, "equal offsets"
            )
            billing.run(served, billing.more(300))
        (transactions,) = steps.pop(4)
        wait_until(lambda: not re.search("Ongoing|Prepare", shell(transactions)), "that no transaction is open")
        with billing.running(served):
            shell.end("follow")
            for number in (5, 6):
                for command in steps.pop(number):
                    printed = shell(command)
                    assert printed == "" or not command.startswith("diff")
            assert steps.pop(7) == []
            with here.writing():
                wait_until(lambda: len(here.acknowledged) > 200, "that producers write here")
            everything = Counter(at_cluster.acknowledged + here.acknowledged)
            wait_until(lambda: len(billing.read) >= len(everything), "that everything is read")
        at_end = [
            (topic, each.partition, each.offset, (each.value or b"").decode())
            for topic in TOPICS
            for each in consume(served, topic, isolation="read_committed")
        ]
        committed = described_offsets(shell(ours))
        shell.end("serve")
    assert not steps
    assert len(at_cluster.acknowledged) > 600
    assert Counter(text for *_, text in at_end) == everything
    assert sorted(billing.read) == sorted(at_end)
    read_ends = {(topic, str(at)): offset for topic, at, offset, _ in sorted(billing.read)}
    assert all(int(committed[each]) > offset for each, offset in read_ends.items())
