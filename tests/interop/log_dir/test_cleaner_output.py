"""A broker's cleaner continues where ours stopped, and ours where a broker's did: no key's latest value is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pytest
from kafka_processes.clients import ConsumedRecord, consume
from kafka_processes.oracle import Broker, dump_log, run_tool

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.names import TopicPartition
from tests.interop.samples import assert_dumps_clean

CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
METADATA_DIR: Final = "__cluster_metadata-0"
SECONDS_MAX: Final = 30
SMALL: Final = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "6000",
    "index.interval.bytes": "300",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "86400000",
}
OURS: Final = ("uncompressed", "zstd")  # topics that we write first, by their codec
THEIRS: Final = "transactions"  # the one that the broker writes first

Latest = dict[bytes, bytes | None]


@dataclass
class Models:
    """What each topic's keys stand for, None for a tombstone."""

    latest: dict[str, Latest] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(5))

    def draw(self, topic: str, count: int) -> list[tuple[bytes, bytes | None]]:
        """`count` records for the topic, some of them tombstones; not in the model yet."""
        found = []
        for number in range(count):
            key = b"%s-%d" % (topic.encode(), self.random.randrange(60))
            value = None if self.random.random() < 0.1 else b"%d " % number + self.random.randbytes(20).hex().encode()
            found.append((key, value))
        return found

    def take(self, topic: str, records: list[tuple[bytes, bytes | None]]) -> None:
        self.latest.setdefault(topic, {}).update(records)

    def values(self, topic: str) -> Latest:
        return {key: value for key, value in self.latest[topic].items() if value is not None}


def latest_of(records: list[ConsumedRecord]) -> Latest:
    latest = {each.key: each.value for each in records}
    return {key: value for key, value in latest.items() if key is not None and value is not None}


def append_some(log_dir: LogDir, models: Models, topic: str) -> None:
    for _ in range(25):
        records = models.draw(topic, 30)
        keys, values = [key for key, _ in records], pa.array([value for _, value in records], pa.binary())
        log_dir.append(topic, pa.table({"key": keys, "value": values}), partition=0)
        models.take(topic, records)


def produce_transactions(bootstrap: str, models: Models) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "cleaned", "linger.ms": 0})
    producer.init_transactions(30)
    for number in range(40):
        producer.begin_transaction()
        records = models.draw(THEIRS, 20)
        for key, value in records:
            producer.produce(THEIRS, key=key, value=value, partition=0)
        producer.flush(30)
        if number % 4 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            models.take(THEIRS, records)


def active_base(broker: Broker, topic: str) -> int:
    return int(max((broker.data / f"{topic}-0").glob("*.log")).stem)


def wait_until_kafka_has_cleaned(broker: Broker, topic: str) -> int:
    """Wait until the broker's cleaner has come to the active segment; the offset that its checkpoint says."""
    deadline = time.monotonic() + SECONDS_MAX
    where = TopicPartition(topic, 0)
    while True:
        path = broker.data / CLEANER_OFFSET_CHECKPOINT
        offset = read_offset_checkpoint(path).get(where) if path.exists() and path.stat().st_size else None
        if offset is not None and offset == active_base(broker, topic) > 0:
            return offset
        assert time.monotonic() < deadline, f"Kafka's cleaner came to {offset} of {topic}"
        time.sleep(0.1)


@dataclass(frozen=True)
class Cleaned:
    """A broker whose cleaner went on after ours in `OURS`; what it served then, and where ours and it had stopped."""

    broker: Broker
    models: Models
    ours_until: dict[str, int]
    kafka_until: dict[str, int]
    served: dict[str, list[ConsumedRecord]]


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory, start_broker: Callable[..., Broker]) -> Cleaned:
    models = Models()
    log_dir = LogDir.create(tmp_path_factory.mktemp("cleaned"))
    ours_until = {}
    for codec in OURS:
        log_dir.create_topic(codec, partitions=1, configs={**SMALL, "compression.type": codec})
        append_some(log_dir, models, codec)
        report = clean_partition(log_dir.root, codec, 0)
        assert (report.error, report.skipped) == (None, None)
        assert report.first_uncleanable_offset
        ours_until[codec] = report.first_uncleanable_offset
        append_some(log_dir, models, codec)
    broker = start_broker({"log.cleaner.backoff.ms": "100"})
    broker.mount(log_dir.path, dict.fromkeys(OURS, 1), SMALL)
    broker.create_topic(THEIRS, 1, SMALL)
    produce_transactions(broker.bootstrap, models)
    topics = (*OURS, THEIRS)
    kafka_until = {topic: wait_until_kafka_has_cleaned(broker, topic) for topic in topics}
    served = {topic: consume(broker.bootstrap, topic, isolation="read_committed") for topic in topics}
    return Cleaned(broker, models, ours_until, kafka_until, served)


@pytest.mark.full
@pytest.mark.parametrize("topic", [*OURS, THEIRS])
def test_kafkas_cleaner_keeps_latest_values_after_ours(cleaned: Cleaned, topic: str) -> None:
    records = cleaned.served[topic]
    assert latest_of(records) == cleaned.models.values(topic)
    below = [each.key for each in records if each.offset < cleaned.kafka_until[topic]]
    assert len(below) == len(set(below)) > 20
    if topic in OURS:
        assert cleaned.kafka_until[topic] > cleaned.ours_until[topic]
        log = (cleaned.broker.home / "server.log").read_text()
        assert f"cleaned log {topic}-0 (dirty section = [{cleaned.ours_until[topic]}, " in log


@pytest.mark.full
def test_java_consumer_reads_same_records_as_librdkafka(cleaned: Cleaned) -> None:
    topic = OURS[1]
    served = cleaned.served[topic]
    options = ("--from-beginning", "--max-messages", str(len(served)), "--timeout-ms", "20000")
    printing = ("print.key=true", "print.offset=true", "key.separator=|", "null.literal=N")
    formatting = [argument for each in printing for argument in ("--formatter-property", each)]
    done = run_tool(CONSUMER, "--bootstrap-server", cleaned.broker.bootstrap, "--topic", topic, *options, *formatting)
    assert done.returncode == 0, done.stderr
    expected = [f"Offset:{each.offset}|{_text(each.key)}|{_text(each.value)}" for each in served]
    assert done.stdout.splitlines() == expected


def _text(data: bytes | None) -> str:
    return "N" if data is None else data.decode()


@pytest.mark.full
def test_our_cleaner_keeps_latest_values_after_kafkas(cleaned: Cleaned) -> None:
    broker, models = cleaned.broker, cleaned.models
    broker.stop()
    topics = (*OURS, THEIRS)
    log_dir = LogDir.adopt(broker.data)
    for topic in topics:
        append_some(log_dir, models, topic)
        report = clean_partition(log_dir.root, topic, 0)
        assert (report.error, report.skipped) == (None, None)
        assert report.first_dirty_offset == cleaned.kafka_until[topic]
        assert report.records_dropped > 500
    assert_dumps_clean([broker.data / f"{topic}-0" for topic in OURS], batches_min=10, has_gaps=True)
    transactions = dump_log(sorted((broker.data / f"{THEIRS}-0").glob("*.log")), "--deep-iteration")
    assert (transactions.returncode, "isvalid: false" in transactions.stdout) == (0, False)
    for topic in topics:
        rows = log_dir.read(topic, columns=["key", "value"], isolation="read_committed").to_pylist()
        found = {row["key"]: row["value"] for row in rows}
        assert {key: value for key, value in found.items() if value is not None} == models.values(topic)

    (broker.data / METADATA_DIR).rename(broker.data / f"{METADATA_DIR}.kafkalog-stray")
    (broker.data / KEPT_METADATA_DIR).rename(broker.data / METADATA_DIR)
    broker.start()
    for topic in topics:
        assert latest_of(consume(broker.bootstrap, topic, isolation="read_committed")) == models.values(topic)
