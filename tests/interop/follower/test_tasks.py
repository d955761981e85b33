"""Tasks, here in threads, that fetch ranges of offsets from a real broker: its batches, also of transactions."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from builders.following_roots import batches_of, make_follower
from builders.leader_reads import log_bytes
from builders.root_places import RootPlace
from kafka_processes.clients import producing
from kafka_processes.oracle import Broker

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.tasks import LocalTasks
from pyspark_kafkalog.replication import task_leader
from pyspark_kafkalog.replication.range_task import LeaderAddress, RangeRequest
from pyspark_kafkalog.replication.task_leader import TaskLeader
from pyspark_kafkalog.security.open import open_or_create_root
from pyspark_kafkalog.storage.names import TopicPartition

#: Starts a broker: the full tier alone.
pytestmark = pytest.mark.full

TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {},
    "packed": {"compression.type": "lz4"},
    "decided": {"transactional.id": "writer"},
}


def produce(broker: Broker, topic: str, seed: int, **settings: Any) -> None:
    """Three megabytes that do not compress; transactions end one after the other, every third by an abort."""
    rng = random.Random(seed)
    with producing(broker.bootstrap, **{"linger.ms": 5, **settings}) as producer:
        is_transactional = "transactional.id" in settings
        if is_transactional:
            producer.init_transactions(30)
        for number in range(30):
            if is_transactional:
                producer.begin_transaction()
            for _ in range(50):
                producer.produce(topic, rng.randbytes(2000), partition=0)
            producer.flush(30)
            if is_transactional:
                producer.commit_transaction(30) if number % 3 else producer.abort_transaction(30)


def test_ranges_of_tasks_are_the_batches_of_the_broker(
    root_place: RootPlace, start_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[RangeRequest] = []
    begin = task_leader.RangeRequest

    def note(**fields: Any) -> RangeRequest:
        requests.append(begin(**fields))
        return requests[-1]

    monkeypatch.setattr(task_leader, "RangeRequest", note)
    monkeypatch.setattr("pyspark_kafkalog.replication.fetch_loop._FETCH_BYTES_MAX", 1 << 20)
    broker = start_broker()
    for topic in TOPICS:
        broker.create_topic(topic, 1, {"segment.bytes": "1048576", "max.message.bytes": "900000"})
    for number in range(2):
        for topic, settings in TOPICS.items():
            produce(broker, topic, number, **settings)
        requests.clear()
        address, tasks = LeaderAddress(broker.bootstrap), LocalTasks(slots=2)
        root = open_or_create_root(root_place).native()
        with closing(TaskLeader(address.open(), address, tasks, root, range_bytes=300_000)) as leader:
            make_follower(leader, root_place, [], is_once=True, root=root).run()
            tasks.close()
        assert {each.position.topic_partition.topic for each in requests} == set(TOPICS)
        for topic in TOPICS:
            copied = b"".join(batches_of(LogDir.open(root_place), TopicPartition(topic, 0)))
            assert copied == log_bytes([broker.data], TopicPartition(topic, 0))
    if isinstance(root_place, Path):
        assert not list(root_place.glob("*/*.staged"))
