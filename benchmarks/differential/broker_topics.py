"""The topics that the batch cases read: every kind of log that a broker writes, filled once before the first case.

The cases refer to the offsets, timestamps and partition counts below, so these are fixed. Timestamps start at
`FIRST_MS` and increase by `STEP_MS` from record to record of a partition unless stated otherwise.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka_processes.clients import producing
from kafka_processes.oracle import Broker

FIRST_MS: Final = 1_700_000_000_000
STEP_MS: Final = 1_000
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
MANY: Final = 24
BIG: Final = 1_000

#: Checkpoints are written every 100 ms, so that a reader of the disk sees soon what the broker serves; the cleaner
#: looks for work as often.
SETTINGS: Final = {
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "500",
    "auto.create.topics.enable": "false",
}
_DEADLINE_SECONDS: Final = 60


def fill(broker: Broker) -> None:
    """Create and fill all topics, then wait until the checkpoints on disk have reached the logs' ends."""
    _plain(broker)
    for codec in CODECS:
        broker.create_topic(f"codec-{codec}")
        send(broker, f"codec-{codec}", 0, 25, **{"compression.type": codec})
    _transactions(broker)
    _compacted(broker)
    _timestamps(broker)
    _nulls(broker)
    _deleted(broker)
    broker.create_topic("empty", 2)
    broker.create_topic("half-empty", 3)
    for partition in (0, 2):
        send(broker, "half-empty", partition, 12)
    broker.create_topic("many", MANY)
    for partition in range(MANY):
        send(broker, "many", partition, 3)
    broker.create_topic("big", 1, {"internal.segment.bytes": "20000"})
    send(broker, "big", 0, BIG, **{"batch.num.messages": 50})
    broker.create_topic("a.b_c-d")
    send(broker, "a.b_c-d", 0, 5)
    wait_for_checkpoints(broker)


def send(broker: Broker, topic: str, partition: int, count: int, *, first: int = 0, **settings: object) -> None:
    """`count` keyed records with one header each, numbered from `first`."""
    with producing(broker.bootstrap, **settings) as producer:
        for number in range(first, first + count):
            producer.produce(
                topic,
                key=b"key-%d" % (number % 7),
                value=b"%d-%d" % (partition, number),
                partition=partition,
                timestamp=FIRST_MS + number * STEP_MS,
                headers=[("number", b"%d" % number)],
            )


def transactional(broker: Broker, transactional_id: str) -> Any:
    """A producer that is ready to begin a transaction, which the broker lets stand for a long time."""
    settings = {"transactional.id": transactional_id, "transaction.timeout.ms": 900_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    producer.init_transactions(30)
    return producer


def send_transaction(producer: Any, topic: str, partitions: int, count: int, end: str) -> None:
    """`count` records to each partition in one transaction that is committed, aborted or left open."""
    producer.begin_transaction()
    for number in range(count * partitions):
        at = number // partitions
        stamp = FIRST_MS + at * STEP_MS
        producer.produce(topic, value=f"{end} {at}".encode(), partition=number % partitions, timestamp=stamp)
    producer.flush(30)
    if end == "commit":
        producer.commit_transaction(30)
    elif end == "abort":
        producer.abort_transaction(30)


def delete_records(broker: Broker, topic: str, partition: int, before_offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = TopicPartition(topic, partition, before_offset)
    for done in admin.delete_records([wanted]).values():
        done.result(30)


def wait_for_checkpoints(broker: Broker) -> None:
    """Wait until the checkpoint files have the broker's log start offset and high watermark of every partition."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        wrong = _checkpoints_behind(broker, admin)
        if not wrong:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"the broker's checkpoints do not reach what it serves: {wrong[:5]}")
        time.sleep(0.1)


def _checkpoints_behind(broker: Broker, admin: Any) -> list[str]:
    from confluent_kafka.admin import OffsetSpec

    found = admin.list_topics(timeout=30).topics
    partitions = [TopicPartition(topic, at) for topic, each in found.items() for at in each.partitions]
    high_watermarks = _checkpoint(broker.data / "replication-offset-checkpoint")
    log_starts = _checkpoint(broker.data / "log-start-offset-checkpoint")
    behind = []
    for spec, default, known in (
        (OffsetSpec.latest(), -1, high_watermarks),
        (OffsetSpec.earliest(), 0, log_starts),
    ):
        for each, answer in admin.list_offsets(dict.fromkeys(partitions, spec)).items():
            served = answer.result(30).offset
            if known.get((each.topic, each.partition), default) != served and (known is high_watermarks or served):
                behind.append(f"{each.topic}-{each.partition}: {served}")
    return behind


def _checkpoint(path: Path) -> dict[tuple[str, int], int]:
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return {(topic, int(partition)): int(offset) for topic, partition, offset in map(str.split, lines)}


def _plain(broker: Broker) -> None:
    """Topic plain: 40, 30 and 20 records in segments of a few records each."""
    broker.create_topic("plain", 3, {"internal.segment.bytes": "1000"})
    for partition, count in enumerate((40, 30, 20)):
        send(broker, "plain", partition, count, **{"batch.num.messages": 5})


def _transactions(broker: Broker) -> None:
    """txn: two partitions, the last transaction is open; txn-closed: ends with an aborted transaction's marker."""
    for topic, ends in (("txn", ("commit", "abort", "commit", "open")), ("txn-closed", ("abort", "commit", "abort"))):
        broker.create_topic(topic, 2)
        for number, end in enumerate(ends):
            send_transaction(transactional(broker, f"{topic}-{number}"), topic, 2, 5, end)
    broker.create_topic("txn-all-aborted")
    send_transaction(transactional(broker, "all-aborted"), "txn-all-aborted", 1, 5, "abort")


def _compacted(broker: Broker) -> None:
    """Topic compacted: 120 records of 10 keys, of which the broker's cleaner has left the last of each and a tail."""
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": "1500", "min.cleanable.dirty.ratio": "0.01"}
    broker.create_topic("compacted", 1, configs)
    with producing(broker.bootstrap, **{"batch.num.messages": 5}) as producer:
        for number in range(120):
            value = None if number % 10 == 3 else b"%d" % number
            producer.produce("compacted", key=b"%d" % (number % 10), value=value, timestamp=FIRST_MS + number * STEP_MS)
    deadline = time.monotonic() + _DEADLINE_SECONDS
    sizes: list[int] = []
    cleaned = broker.data / "cleaner-offset-checkpoint"
    while len(sizes) < 10 or len(set(sizes[-10:])) > 1 or ("compacted", 0) not in _checkpoint(cleaned):
        if time.monotonic() > deadline:
            raise TimeoutError("the broker's cleaner has not compacted the topic")
        sizes.append(sum(each.stat().st_size for each in (broker.data / "compacted-0").glob("*.log")))
        time.sleep(0.1)


def _timestamps(broker: Broker) -> None:
    """append-time: the broker's clock. wild: out of order, far apart, the same twice."""
    broker.create_topic("append-time", 1, {"message.timestamp.type": "LogAppendTime"})
    send(broker, "append-time", 0, 10)
    broker.create_topic("wild", 1, {"message.timestamp.after.max.ms": "9223372036854775807"})
    stamps = (5_000, 1, 5_000, FIRST_MS, 4_000, 253_402_300_799_000, FIRST_MS, FIRST_MS - 1, 2_000, FIRST_MS + 1)
    with producing(broker.bootstrap) as producer:
        for number, stamp in enumerate(stamps):
            producer.produce("wild", value=b"%d" % number, timestamp=stamp)


def _nulls(broker: Broker) -> None:
    """Topic nulls: keys, values and headers that are null, empty or twice the same."""
    broker.create_topic("nulls")
    headers: tuple[Any, ...] = (
        None,
        [],
        [("a", b"1")],
        [("a", None)],
        [("a", b""), ("a", b"2"), ("b", None)],
        [("", b"empty name"), ("\u00e4\u4e2d", b"\xff\x00")],
    )
    with producing(broker.bootstrap) as producer:
        number = 0
        for key in (None, b"", b"k"):
            for value in (None, b"", b"\xff\xfe v"):
                stamp = FIRST_MS + number * STEP_MS
                each = headers[number % len(headers)]
                producer.produce("nulls", key=key, value=value, headers=each, timestamp=stamp)
                number += 1


def _deleted(broker: Broker) -> None:
    """deleted-head: offsets 15 to 40 are left; all-deleted: none of 20; one of two partitions of part-deleted."""
    for topic, partitions, count, before in (
        ("deleted-head", 1, 40, 15),
        ("all-deleted", 1, 20, 20),
        ("part-deleted", 2, 20, 8),
    ):
        broker.create_topic(topic, partitions, {"internal.segment.bytes": "1000"})
        for partition in range(partitions):
            send(broker, topic, partition, count, **{"batch.num.messages": 5})
        delete_records(broker, topic, 0, before)
