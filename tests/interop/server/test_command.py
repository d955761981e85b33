"""The command `serve`: its processes, how they end, and what a client sees of them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka_processes.server_processes import ServerProcess, serving
from patience import PATIENCE_S, wait_until

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.messages.cluster import MetadataRequest, MetadataResponse

pytestmark = pytest.mark.interop


def metadata(server: ServerProcess) -> MetadataResponse:
    with WireClient.connect(server.host, server.port, client_id="test", timeout_s=10) as client:
        client.negotiate()
        return client.call(MetadataRequest(topics=None), MetadataResponse)


def test_server_creates_the_log_directory_and_ends_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server:
        assert LogDir.open(tmp_path / "log").topics() == ()
        assert [(each.host, each.port) for each in metadata(server).brokers] == [(server.host, server.port)]
        assert server.stop() == 0
    assert [each.name for each in (tmp_path / "log").glob(".server-*")] == []


@pytest.mark.full
def test_two_servers_know_of_each_other_until_one_is_killed(tmp_path: Path) -> None:
    LogDir.create(tmp_path / "log").create_topic("orders", 20)
    with serving(tmp_path / "log") as first, serving(tmp_path / "log") as second:
        wait_until(lambda: len(metadata(first).brokers) == 2 == len(metadata(second).brokers))
        assert metadata(first).topics == metadata(second).topics
        assert len(leaders(first)) == 2
        second.process.kill()
        (own,) = (each.node_id for each in metadata(first).brokers if each.port == first.port)
        wait_until(lambda: leaders(first) == {own})
        assert len(metadata(first).brokers) == 2  # which may come back


def leaders(server: ServerProcess) -> set[int]:
    return {partition.leader_id for topic in metadata(server).topics for partition in topic.partitions}


def children(server: ServerProcess) -> set[int]:
    """The processes that the supervisor has started, and that run."""
    pid = server.process.pid
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def committers(server: ServerProcess) -> set[int]:
    """Those of them that commit for the workers."""
    found = set()
    for pid in children(server):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"--commits-at" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def written_bytes(pid: int) -> int:
    """proc(5): the bytes that a process has written to files and sockets."""
    counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counters["wchar"])


def have_ended(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.full
def test_killed_worker_is_started_again_and_none_outlives_the_supervisor(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--workers", "2") as server:
        wait_until(lambda: len(metadata(server).brokers) == 2)
        killed = min(children(server) - committers(server))
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(children(server) - {killed}) == 3)
        wait_until(lambda: len(metadata(server).brokers) == 2)
        orphans = children(server)
        server.process.kill()
        server.process.wait()
        wait_until(lambda: have_ended(orphans))


@pytest.mark.full
def test_nothing_is_lost_or_doubled_when_the_committer_of_the_workers_is_killed(tmp_path: Path) -> None:
    LogDir.create(tmp_path / "log").create_topic("orders", 4)
    failures, sent = [], 0
    with serving(tmp_path / "log", "--workers", "2") as server:
        wait_until(lambda: len(leaders(server)) == 2)
        producer = Producer(
            {
                "bootstrap.servers": server.bootstrap,
                "enable.idempotence": True,
                "batch.num.messages": 10,
                "linger.ms": 1,
            }
        )

        def send(count: int) -> None:
            nonlocal sent
            for at in range(sent, sent + count):
                producer.produce("orders", b"%d" % at, partition=at % 4, on_delivery=delivered)
                producer.poll(0)
            sent += count

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failures.append(error)

        killed = set[int]()
        for _ in range(2):
            send(1000)
            (committer,) = committers(server)
            os.kill(committer, signal.SIGKILL)
            killed.add(committer)
            send(1000)
            wait_until(lambda: committers(server) - killed, "another committer")
        assert producer.flush(PATIENCE_S) == 0
        (committer,) = committers(server)

        def is_used() -> bool:
            before = written_bytes(committer)
            send(100)
            assert producer.flush(PATIENCE_S) == 0
            return written_bytes(committer) > before + 1000

        wait_until(is_used, "the use of the new committer")
        running = children(server)
        assert server.stop() == 0
        wait_until(lambda: have_ended(running))
    assert not failures
    for partition in range(4):
        values = LogDir.open(tmp_path / "log").read("orders", partition=partition)["value"].to_pylist()
        assert values == [b"%d" % at for at in range(partition, sent, 4)]


@pytest.mark.full
def test_workers_that_only_read_have_no_committer(tmp_path: Path) -> None:
    LogDir.create(tmp_path / "log").create_topic("orders", 1)
    with serving(tmp_path / "log", "--workers", "2", "--read-only") as server:
        assert [each.name for each in metadata(server).topics] == ["orders"]
        assert len(children(server)) == 2
        assert not committers(server)
        assert server.stop() == 0
