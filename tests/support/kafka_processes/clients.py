"""Real clients of a broker, librdkafka's: what they consume, and a producer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kafka_processes.oracle import KafkaOracleError


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    """A record as a client got it. `timestamp_type` is 0 for create time and 1 for log append time, as on disk."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def consume(
    bootstrap: str, topic: str, *, isolation: str = "read_uncommitted", seconds_max: float = 60
) -> list[ConsumedRecord]:
    """All records of `topic` from the log's start to its end as `isolation` sees it, in order of partition, offset.

    librdkafka checks each batch's CRC and, with read_committed, leaves aborted transactions out by itself.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "kafkalog-tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "check.crcs": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        left = set(partitions)
        records = []
        deadline = time.monotonic() + seconds_max
        while left:
            if time.monotonic() > deadline:
                raise KafkaOracleError(f"no end of {topic} {sorted(left)} within {seconds_max} s")
            for message in consumer.consume(1000, timeout=0.5):
                error = message.error()
                if error is None:
                    records.append(_consumed(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                elif not error.retriable():
                    raise KafkaOracleError(f"{topic}-{message.partition()}: {error}")
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _consumed(message: Any) -> ConsumedRecord:
    kind, timestamp_ms = message.timestamp()
    return ConsumedRecord(
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=timestamp_ms,
        timestamp_type=kind - 1,  # confluent-kafka: 1 create time, 2 log append time
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )


@contextlib.contextmanager
def producing(bootstrap: str, **settings: object) -> Iterator[Any]:
    """A confluent-kafka producer, flushed at the end of the block; a record that is not delivered is an error."""
    from confluent_kafka import Producer

    failures: list[str] = []

    def note_failure(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer({"bootstrap.servers": bootstrap, "on_delivery": note_failure, **settings})
    yield producer
    left = producer.flush(60)
    if left or failures:
        raise KafkaOracleError(f"{left} records were not sent and {len(failures)} refused: {failures[:1]}")


def delete_before(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    """Delete the records of a partition below the offset."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for each in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
        each.result(30)


def allow(bootstrap: str, pattern: str, topic: str, principal: str, *operations: str) -> None:
    """Permit operations on the topics that a pattern, LITERAL or PREFIXED, matches."""
    from confluent_kafka import admin as of

    kind, allowed = of.ResourcePatternType[pattern], of.AclPermissionType.ALLOW
    bindings = [
        of.AclBinding(of.ResourceType.TOPIC, topic, kind, principal, "*", of.AclOperation[each], allowed)
        for each in operations
    ]
    client = of.AdminClient({"bootstrap.servers": bootstrap})
    for each in client.create_acls(bindings).values():
        each.result(60)
