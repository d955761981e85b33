"""A back-fill by Spark out of a real broker, on executors of their own, which are killed, and so is the driver."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from follow_job import FollowJob
from following_roots import batches_of
from java_processes import free_port
from kafka_clients import producing
from kafka_oracle import Broker
from leader_reads import log_bytes
from patience import wait_until
from tcp_relay import TcpRelay

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.names import TopicPartition

#: Starts a broker and Spark clusters: the full tier alone.
pytestmark = [pytest.mark.full, pytest.mark.spark]

TOPIC: Final = "orders"
PARTITIONS: Final = [TopicPartition(TOPIC, number) for number in range(3)]
RECORDS: Final = 4000
_LISTENER: Final = "RELAYED"


@pytest.fixture(scope="module")
def relay() -> Iterator[TcpRelay]:
    with TcpRelay(free_port()) as relay:
        yield relay


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, relay: TcpRelay) -> Iterator[Broker]:
    """A broker with eight megabytes in each of three partitions, which is reached through the relay."""
    protocols = ",".join(f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", _LISTENER))
    settings = {"listener.security.protocol.map": protocols}
    ports = {_LISTENER: relay.target_port}
    home = tmp_path_factory.mktemp("broker")
    with Broker(home, settings, more_listeners=ports, advertised_ports={_LISTENER: relay.port}) as broker:
        broker.create_topic(TOPIC, len(PARTITIONS), {"segment.bytes": "2097152"})
        rng = random.Random(1)
        with producing(broker.bootstrap, **{"linger.ms": 5, "batch.size": 100_000}) as producer:
            for number in range(RECORDS):
                for name in PARTITIONS:
                    producer.produce(TOPIC, rng.randbytes(2000), partition=name.partition)
                if number % 500 == 499:
                    producer.flush(30)
        yield broker


def ends_of(copy: Path) -> list[int]:
    with contextlib.suppress(LogDirError):
        log_dir = LogDir.open(copy)
        return [each.log_end_offset for each in log_dir.topic(TOPIC).partitions] if TOPIC in log_dir.topics() else []
    return []


@contextlib.contextmanager
def standing_in_the_middle(job: FollowJob, copy: Path, relay: TcpRelay) -> Iterator[None]:
    """A part of each partition is committed, tasks fetch the rest, and no answer comes through during the block."""
    relay.delay_s = 0.005

    def is_in_the_middle() -> bool:
        assert job.is_running, job.said()[-4000:]
        ends = ends_of(copy)
        # From then on the driver itself asks for records no more, and so it keeps both executors busy.
        return len(ends) == len(PARTITIONS) and all(ends) and len(staged(copy)) > 1

    try:
        wait_until(is_in_the_middle, "a back-fill that is under way")
        relay.is_silent = True
        yield
    finally:
        relay.heal()


def staged(copy: Path) -> list[Path]:
    return list(copy.glob("*/*.staged"))


def check_equal(broker: Broker, copy: Path) -> None:
    log_dir = LogDir.open(copy)
    for name in PARTITIONS:
        ours = b"".join(batches_of(log_dir, name))
        assert ours == log_bytes([broker.data], name)
        assert len(ours) > 8_000_000


def test_ranges_of_a_killed_executor_are_fetched_again(broker: Broker, relay: TcpRelay, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with FollowJob(f"127.0.0.1:{relay.port}", copy, tmp_path) as job:
        with standing_in_the_middle(job, copy, relay):
            job.kill_executor()
            wait_until(lambda: "ExecutorLostFailure" in job.said(), "the loss of an executor with its task")
        assert job.wait() == 0, job.said()[-4000:]
    check_equal(broker, copy)
    assert "is fetched without tasks" not in job.said()
    assert not staged(copy)


def test_second_run_goes_on_where_a_killed_driver_has_committed(
    broker: Broker, relay: TcpRelay, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    with FollowJob(f"127.0.0.1:{relay.port}", copy, tmp_path) as job:
        with standing_in_the_middle(job, copy, relay):
            job.kill_driver()
        before = ends_of(copy)
        assert 0 < sum(before) < len(PARTITIONS) * RECORDS
        assert job.start().wait() == 0, job.said()[-4000:]
    check_equal(broker, copy)
    assert f"Copied {len(PARTITIONS) * RECORDS - sum(before):,} records" in job.said()
