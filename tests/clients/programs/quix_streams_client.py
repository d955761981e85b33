"""Quix Streams: counts per key, exactly once, with its state in a compacted topic of changes. Asserts what it wrote."""

import json
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from quixstreams import Application
from quixstreams.state import State

RECORDS, KEYS = 1000, 10
_RUN_SECONDS = 15.0
_READ_SECONDS_MAX = 30.0


def main(address: str, state_dir: Path) -> None:
    write_values(address)
    count_by_key(address, state_dir)
    counts = read_counts(address)
    assert counts == {str(key): list(range(1, RECORDS // KEYS + 1)) for key in range(KEYS)}, counts
    print(sum(map(len, counts.values())), "counts")


def write_values(address: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    for i in range(RECORDS):
        producer.produce("quix-values", key=str(i % KEYS), value=json.dumps(i))
    assert producer.flush(20) == 0


def count_by_key(address: str, state_dir: Path) -> None:
    app = Application(
        broker_address=address,
        consumer_group="quix",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=0.5,
        state_dir=state_dir,
    )

    def counted(_: int, state: State) -> int:
        count: int = state.get("count", 0) + 1
        state.set("count", count)
        return count

    values = app.dataframe(app.topic("quix-values", value_deserializer="json"))
    values.apply(counted, stateful=True).to_topic(app.topic("quix-counts", value_serializer="json"))
    app.run(count=RECORDS, timeout=_RUN_SECONDS)


def read_counts(address: str) -> dict[str, list[int]]:
    settings = {"group.id": "quix-check", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": address, **settings})
    consumer.subscribe(["quix-counts"])
    counts: dict[str, list[int]] = {}
    end = time.monotonic() + _READ_SECONDS_MAX
    while sum(map(len, counts.values())) < RECORDS and time.monotonic() < end:
        for message in consumer.consume(RECORDS, 0.5):
            assert message.error() is None, message.error()
            counts.setdefault(message.key().decode(), []).append(json.loads(message.value()))
    consumer.close()
    return counts


main(sys.argv[1], Path(sys.argv[2]))
