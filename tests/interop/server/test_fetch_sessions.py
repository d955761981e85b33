"""Kafka's own consumer reads through fetch sessions, while partitions come, go and are replaced."""

from __future__ import annotations

import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_processes.java_processes import QUICK_START, free_port, java
from kafka_processes.oracle import kafka_lib
from kafka_processes.served import serve
from repository import DATA

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.server.config import Address, ServerConfig

PROGRAM = DATA / "AssigningConsumer.java"
PARTITIONS = 240
PATIENCE_S = 90
CACHED = "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached"


class JavaConsumer:
    """A process with Kafka's consumer; see AssigningConsumer.java."""

    def __init__(self, bootstrap: str) -> None:
        lib = kafka_lib()
        logging = f"-Dlog4j2.configurationFile={lib.parent / 'log4j2.xml'}"
        command = [java(), *QUICK_START, logging, "-cp", f"{lib}/*", str(PROGRAM), bootstrap]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *words: object) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(2 * PATIENCE_S, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
            kind, *answer = self.process.stdout.readline().split() or ["no answer"]
        finally:
            timer.cancel()
        assert kind == "ok"
        return answer

    def poll(self, count: int) -> list[str]:
        return sorted(self("poll", count, PATIENCE_S))


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("wide", partitions=PARTITIONS)
    log_dir.create_topic("other", partitions=1)
    return log_dir


@pytest.fixture
def status(log_dir: LogDir) -> Iterator[tuple[str, Address]]:
    page = Address("127.0.0.1", free_port())
    with serve(log_dir.path, ServerConfig(listen=Address("127.0.0.1", 0), status=page, flush="os")) as bootstrap:
        yield bootstrap, page


def append(log_dir: LogDir, topic: str, partition: int, value: str) -> None:
    log_dir.refresh()
    log_dir.append(topic, pa.table({"value": [value]}), partition=partition, flush="os")


def wait_until_cached(page: Address, partitions: int) -> None:
    """Wait until the sessions of the server have so many partitions."""
    deadline = time.monotonic() + PATIENCE_S
    found = ""
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://{page}/metrics", timeout=PATIENCE_S) as answer:
            found = next(each for each in answer.read().decode().splitlines() if each.startswith(CACHED))
        if float(found.split()[1]) == partitions:
            return
        time.sleep(0.1)
    pytest.fail(f"expected {partitions} partitions in sessions, found {found}")


def test_consumer_gets_all_records_of_a_session_whose_partitions_change(
    log_dir: LogDir, status: tuple[str, Address]
) -> None:
    bootstrap, page = status
    consumer = JavaConsumer(bootstrap)
    try:
        append(log_dir, "wide", 7, "first")
        consumer("assign", "wide", 0, PARTITIONS - 1)
        assert consumer.poll(1) == ["first"]
        for each in (3, 199, 7):
            append(log_dir, "wide", each, f"to-{each}")
        assert consumer.poll(3) == ["to-199", "to-3", "to-7"]
        # Half of the partitions are dropped, and one of another topic is added.
        append(log_dir, "wide", 200, "not-read")
        append(log_dir, "other", 0, "of-other")
        consumer("assign", "wide", 0, 119, "other", 0, 0)
        assert consumer.poll(1) == ["of-other"]
        append(log_dir, "wide", 119, "to-119")
        assert consumer.poll(1) == ["to-119"]
        consumer("poll", 1, 1)
        wait_until_cached(page, 121)
        # A topic is deleted and created again while the session has it.
        log_dir.delete_topic("other")
        log_dir.create_topic("other", partitions=1)
        for number in range(3):
            append(log_dir, "other", 0, f"again-{number}")
        append(log_dir, "wide", 0, "to-0")
        # Its first record may be behind the consumer, who goes on at its offset.
        found: set[str] = set()
        for _ in range(4):
            if not {"to-0", "again-2"} <= found:
                found |= set(consumer.poll(1))
        assert {"to-0", "again-2"} <= found
        # Partitions that were dropped are read again from where the consumer is told to.
        consumer("assign", "wide", 200, 200)
        assert consumer.poll(1) == ["not-read"]
    finally:
        consumer.process.kill()
        consumer.process.communicate()
