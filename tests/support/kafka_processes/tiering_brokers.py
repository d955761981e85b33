"""What tests of a broker that tiers have in common: topics with small segments, and a producer of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from patience import meanwhile

from kafka_processes.oracle import Broker

#: Configurations of a topic of which little stays local.
SEGMENTS: Final = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "internal.segment.bytes": "20000",
    "file.delete.delay.ms": "100",
    "index.interval.bytes": "500",
}


@contextmanager
def produced(broker: Broker, topic: str) -> Iterator[None]:
    """Transactions of 20 records whose values count from 0, every third one aborted, one after the other, meanwhile."""
    from confluent_kafka import Producer

    def run(is_over: Callable[[], bool]) -> None:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "log_level": 0, "linger.ms": 0}
        )
        producer.init_transactions(30)
        number = 0
        while not is_over():
            producer.begin_transaction()
            for _ in range(20):
                producer.produce(topic, value=f"{number} ".encode() + bytes(range(65, 90)) * 4, partition=0)
                number += 1
            producer.flush(30)  # what is not sent yet would never be written when the transaction is aborted
            if number // 20 % 3:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)

    with meanwhile(run):
        yield


def numbers(values: list[bytes]) -> list[int]:
    return [int(value.partition(b" ")[0]) for value in values]


def is_committed(number: int) -> bool:
    return (number // 20 + 1) % 3 != 0
