"""A real broker deletes what a running follower has copied, and what it has not: by time, by size, and on request.

The follower reaches the broker through a relay, which withholds the answers while the broker gets ahead.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from builders.following_roots import following, has_offsets
from fakes.tcp_relay import TcpRelay
from kafka_processes.clients import producing
from kafka_processes.java_processes import free_port
from kafka_processes.oracle import Broker
from kafka_processes.replica_checks import check_same_log, check_same_rows, ends_of
from patience import wait_until
from tiers import rest_full

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.storage.names import TopicPartition

_LISTENER: Final = "RELAYED"
_SETTINGS: Final = {
    "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", _LISTENER)),
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
}
_SMALL: Final = {"internal.segment.bytes": "4096", "file.delete.delay.ms": "100", "retention.ms": "-1"}


@pytest.fixture(scope="module")
def relay() -> Iterator[TcpRelay]:
    with TcpRelay(free_port()) as relay:
        yield relay


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, relay: TcpRelay) -> Iterator[Broker]:
    home = tmp_path_factory.mktemp("broker")
    ports = {_LISTENER: relay.target_port}
    with Broker(home, _SETTINGS, more_listeners=ports, advertised_ports={_LISTENER: relay.port}) as broker:
        yield broker


def relayed(relay: TcpRelay) -> ClusterLeader:
    return ClusterLeader(f"127.0.0.1:{relay.port}")


def produce(broker: Broker, name: TopicPartition, count: int) -> None:
    """About a segment for each ten records."""
    with producing(broker.bootstrap) as producer:
        for number in range(count):
            producer.produce(name.topic, b"%06d" % number * 60, partition=name.partition)
            producer.flush(30)


def delete_by(kind: str, broker: Broker, name: TopicPartition) -> int:
    """Let the broker delete some or most of the partition; its log start afterwards."""
    from confluent_kafka import TopicPartition as ClientPartition
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    before, end = ends_of(broker.bootstrap, [name.topic])[name]
    if kind == "delete-records":
        wanted = ClientPartition(name.topic, name.partition, end - 3)
        for each in admin.delete_records([wanted]).values():
            each.result(30)
    else:
        setting, short = {"time": ("retention.ms", "1"), "size": ("retention.bytes", "6000")}[kind]
        for value in (short, "-1"):
            entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, name.topic, incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(30)
            if value != "-1":
                wait_until(lambda: ends_of(broker.bootstrap, [name.topic])[name][0] > max(before, end - 25))
    return ends_of(broker.bootstrap, [name.topic])[name][0]


@pytest.mark.parametrize("kind", rest_full(["size", "time", "delete-records"]))
def test_running_follower_follows_the_log_start_and_reports_what_it_has_missed(
    broker: Broker, relay: TcpRelay, tmp_path: Path, kind: str
) -> None:
    copy, name = tmp_path / "copy", TopicPartition(f"short-{kind}", 0)
    broker.create_topic(name.topic, 1, _SMALL)
    produce(broker, name, 60)
    with following(relayed(relay), copy) as running:
        wait_until(lambda: has_offsets(copy, {name: 60}))
        log_start = delete_by(kind, broker, name)
        wait_until(lambda: log_start_of(copy, name) == log_start)
        assert not running.of_kind(EventKind.GAP)
        relay.is_silent = True
        try:
            produce(broker, name, 100)
            log_start = delete_by(kind, broker, name)
            assert log_start > 60
        finally:
            relay.heal()
        produce(broker, name, 5)
        wait_until(lambda: has_offsets(copy, {name: 165}))
    (gap,) = running.of_kind(EventKind.GAP)
    # The answer that was withheld may have had the first of them.
    assert 60 <= gap.first_offset < gap.end_offset == log_start
    assert not {EventKind.DIVERGED, EventKind.CUT, EventKind.PARTITION_STOPPED} & running.kinds()
    assert log_start_of(copy, name) == log_start
    assert check_same_log(copy, broker.data, name) == 165 - log_start
    assert check_same_rows(copy, broker.bootstrap, name.topic, "read_uncommitted") == 165 - log_start


def log_start_of(copy: Path, name: TopicPartition) -> int:
    return LogDir.open(copy).partition(name.topic, name.partition).log_start_offset


def test_follower_waits_for_a_broker_that_stands_still(broker: Broker, relay: TcpRelay, tmp_path: Path) -> None:
    copy, name = tmp_path / "copy", TopicPartition("still", 0)
    broker.create_topic(name.topic, 1, _SMALL)
    produce(broker, name, 30)
    with following(relayed(relay), copy) as running:
        wait_until(lambda: has_offsets(copy, {name: 30}))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            relay.reset()  # a new connection is not answered either
            wait_until(lambda: EventKind.LEADER_UNAVAILABLE in running.kinds())
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        produce(broker, name, 30)
        wait_until(lambda: has_offsets(copy, {name: 60}))
    assert check_same_log(copy, broker.data, name) == 60
    assert not {EventKind.GAP, EventKind.DIVERGED, EventKind.CUT, EventKind.PARTITION_STOPPED} & running.kinds()
