"""The command `serve`: its processes, how they end, and what a client sees of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kafka_processes.server_processes import ServerProcess, serving
from patience import wait_until

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


@pytest.mark.full
def test_killed_worker_is_started_again_and_none_outlives_the_supervisor(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--workers", "2") as server:
        wait_until(lambda: len(metadata(server).brokers) == 2)
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")

        def workers() -> set[int]:
            return {int(pid) for pid in children.read_text().split()}

        killed = min(workers())
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(workers() - {killed}) == 2)
        wait_until(lambda: len(metadata(server).brokers) == 2)
        orphans = workers()
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans))
