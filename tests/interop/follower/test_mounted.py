"""Copies of compacted and of transactional topics, which the leader has cleaned, are mounted by another broker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from builders.following_roots import following, has_offsets
from kafka_processes.clients import ConsumedRecord, consume, producing
from kafka_processes.oracle import Broker
from kafka_processes.replica_checks import check_same_rows, log_ends_of
from patience import wait_until

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.events import EventKind
from tests.interop.samples import assert_dumps_clean

#: Starts two brokers: the full tier alone.
pytestmark = pytest.mark.full

_SMALL: Final = {"internal.segment.bytes": "20000", "index.interval.bytes": "300"}
_COMPACTED: Final = {
    **_SMALL,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
    "file.delete.delay.ms": "100",
}
TOPICS: Final = {"decided": _SMALL, "latest": _COMPACTED, "latest-decided": _COMPACTED}


def produce(broker: Broker, topic: str, seed: int, *, is_open_at_end: bool = False) -> None:
    """Records of few keys, some of them tombstones; transactions end by a commit or by an abort."""
    rng = random.Random(f"{topic} {seed}")
    is_transactional = topic.endswith("decided")
    settings = {"transactional.id": f"writer of {topic}"} if is_transactional else {"enable.idempotence": True}
    codec = rng.choice(("none", "lz4", "zstd"))
    with producing(broker.bootstrap, **{"linger.ms": 5, "compression.type": codec, **settings}) as producer:
        if is_transactional:
            producer.init_transactions(30)
        for number in range(20):
            if is_transactional:
                producer.begin_transaction()
            for _ in range(40):
                value = None if rng.random() < 0.1 else rng.randbytes(50)
                producer.produce(topic, value, key=b"%d" % rng.randrange(50), partition=rng.randrange(2))
            producer.flush(30)
            if is_transactional and not (is_open_at_end and number == 19):
                producer.commit_transaction(30) if rng.random() < 0.6 else producer.abort_transaction(30)


def offsets_left(broker: Broker, topic: str) -> int:
    return len(consume(broker.bootstrap, topic))


def wait_until_cleaned(broker: Broker) -> None:
    """Wait until the cleaner has come to rest."""
    for topic in ("latest", "latest-decided"):
        wait_until(lambda: offsets_left(broker, topic) < 1000, f"the cleaning of {topic}")  # noqa: B023
        left = -1
        while left != (left := offsets_left(broker, topic)):
            time.sleep(1)


def test_cleaned_and_transactional_copies_are_mounted_by_a_broker(
    start_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    leader = start_broker({"log.cleaner.backoff.ms": "200", "log.initial.task.delay.ms": "200"})
    for topic, configs in TOPICS.items():
        leader.create_topic(topic, 2, configs)
        for seed in range(3):
            produce(leader, topic, seed)
    wait_until_cleaned(leader)
    with following(ClusterLeader(leader.bootstrap), copy) as running:
        for topic in TOPICS:
            produce(leader, topic, 3, is_open_at_end=topic == "decided")
        wanted = log_ends_of(leader.bootstrap, TOPICS)
        wait_until(lambda: has_offsets(copy, wanted))
    assert not {EventKind.GAP, EventKind.DIVERGED, EventKind.PARTITION_STOPPED} & running.kinds()
    leader_rows = {
        (topic, isolation): consume(leader.bootstrap, topic, isolation=isolation)
        for topic in TOPICS
        for isolation in ("read_committed", "read_uncommitted")
    }
    leader.stop()  # its cleaner would go on
    assert verify(LogDir.open(copy).root).is_sound
    for topic in TOPICS:
        directories = [copy / f"{topic}-{number}" for number in range(2)]
        assert_dumps_clean(directories, batches_min=20, has_gaps=True)
    other = start_broker({"log.cleaner.enable": "false"})
    other.mount(copy, dict.fromkeys(TOPICS, 2), _SMALL)
    for (topic, isolation), rows in leader_rows.items():
        mounted = consume(other.bootstrap, topic, isolation=isolation)
        if topic == "decided":
            assert mounted == rows
        assert check_same_rows(copy, other.bootstrap, topic, isolation) == len(mounted)
        # The leader may have been cleaned since: it has no record that the copy has not, and the same last ones.
        assert {(each.partition, each.offset) for each in rows} <= {(each.partition, each.offset) for each in mounted}
        if isolation == "read_committed":
            assert last_by_key(mounted) == last_by_key(rows)


def last_by_key(rows: Sequence[ConsumedRecord]) -> dict[tuple[int, bytes | None], bytes]:
    last = {(each.partition, each.key): each.value for each in rows}
    return {name: value for name, value in last.items() if value is not None}
