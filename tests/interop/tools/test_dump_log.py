"""`kafkalog dump-log` prints what Kafka's own tool prints, on directories that a broker has just written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
from kafka_processes.clients import producing
from kafka_processes.oracle import KAFKA_VERSION, OLDEST_VERSION, Broker, dump_log
from tiers import rest_full

from pyspark_kafkalog.version import KafkaVersion
from tests.interop.samples import sample_records

OPTIONS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "plain": ((), ("*.log", "*.index", "*.timeindex", "*.snapshot", "*.txnindex")),
    "data": (("--print-data-log",), ("*.log",)),
    "deep": (("--deep-iteration",), ("*.log",)),
    "no record metadata": (("--print-data-log", "--skip-record-metadata"), ("*.log",)),
    "first bytes": (("--deep-iteration", "--max-bytes", "5000"), ("*.log",)),
    "sanity": (("--index-sanity-check",), ("*.index", "*.timeindex")),
    "verify": (("--verify-index-only",), ("*.index", "*.timeindex")),
}


def kafkalog_dump(files: Sequence[Path], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyspark_kafkalog", "dump-log"]
    command += ["--files", ",".join(map(str, files)), *options]
    return subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=120)


@pytest.fixture(scope="module")
def stopped_at(start_broker: Callable[..., Broker]) -> Callable[[KafkaVersion], Path]:
    """The log.dirs of a stopped broker of a version."""
    return cache(lambda version: _filled(start_broker(version=version)))


def _filled(broker: Broker) -> Path:
    """The broker's log.dirs with plain, compressed, transactional records and a consumer group's offsets."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    configs = {"internal.segment.bytes": "200000", "index.interval.bytes": "1000"}
    for codec in ("none", "zstd"):
        broker.create_topic(f"dump-{codec}", 1, configs)
        settings = {"compression.type": codec, "batch.num.messages": 50, "enable.idempotence": codec == "none"}
        with producing(broker.bootstrap, **settings) as producer:
            for record in sample_records(1000, seed=7):
                producer.produce(
                    f"dump-{codec}",
                    value=record.value,
                    key=record.key,
                    timestamp=record.timestamp_ms,
                    headers=list(record.headers),
                )
    broker.create_topic("dump-txn", 1, configs)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer", "log_level": 0})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("dump-txn", value=b"in a transaction")
        producer.flush(30)
        end(30)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "dump-group"})
    consumer.commit(offsets=[TopicPartition("dump-txn", 0, 1)], asynchronous=False)
    consumer.close()
    broker.stop()
    return broker.data


def assert_same_dump(files: Sequence[Path], *options: str, version: KafkaVersion = KAFKA_VERSION) -> None:
    expected = dump_log(files, *options, version=version)
    found = kafkalog_dump(files, *options)
    assert found.stdout == expected.stdout
    assert found.stderr == expected.stderr
    assert found.returncode == expected.returncode


@pytest.mark.parametrize("name", rest_full(OPTIONS, 2))
@pytest.mark.parametrize("topic", rest_full(["dump-zstd", "dump-txn", "dump-none"], 2))
def test_dump_of_fresh_files_equals_kafkas_line_for_line(
    stopped_at: Callable[[KafkaVersion], Path], topic: str, name: str
) -> None:
    options, patterns = OPTIONS[name]
    directory = stopped_at(KAFKA_VERSION) / f"{topic}-0"
    files = sorted(file for pattern in patterns for file in directory.glob(pattern))
    assert files
    assert_same_dump(files, *options)


@pytest.mark.parametrize(
    ("version", "directory", "decoder"),
    [
        (KAFKA_VERSION, "__consumer_offsets-0", "--offsets-decoder"),
        (KAFKA_VERSION, "__transaction_state-0", "--transaction-log-decoder"),
        (KAFKA_VERSION, "__cluster_metadata-0", "--cluster-metadata-decoder"),
        (OLDEST_VERSION, "__consumer_offsets-0", "--offsets-decoder"),
        (OLDEST_VERSION, "__transaction_state-0", "--transaction-log-decoder"),
        (OLDEST_VERSION, "dump-zstd-0", "--deep-iteration"),
    ],
    ids=str,
)
def test_decoders_print_kafkas_text_on_fresh_files(
    stopped_at: Callable[[KafkaVersion], Path], version: KafkaVersion, directory: str, decoder: str
) -> None:
    files = sorted((stopped_at(version) / directory).glob("*.log"))
    assert files
    assert_same_dump(files, decoder, version=version)
