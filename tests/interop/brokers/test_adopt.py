"""A killed broker's directory, adopted: the same records, valid files, and the broker can take it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka_processes.clients import ConsumedRecord, consume, producing
from kafka_processes.compared_answers import without_later_configs
from kafka_processes.oracle import CONFIG_COMMAND, Broker, dump_log, run_tool

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR
from pyspark_kafkalog.tools.main import main
from tests.interop.samples import assert_dumps_clean, sample_records, to_table

PARTITIONS = 3
RECORDS = 600
ISOLATIONS: tuple[Any, ...] = ("read_uncommitted", "read_committed")
CONFIGS = {"internal.segment.bytes": "200000", "index.interval.bytes": "1000", "segment.ms": "86400000000"}
METADATA_DIR = "__cluster_metadata-0"


@dataclass(frozen=True)
class Killed:
    """A broker that was killed, and what it had served and said before."""

    broker: Broker
    served: dict[tuple[str, str], list[ConsumedRecord]]
    described: str


def _write_transactions(bootstrap: str) -> Any:
    """One committed, one aborted, one open; returns the producer that holds the open one."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "adopted", "transaction.timeout.ms": 900_000}
    )
    producer.init_transactions(30)
    for name, end in (("kept", producer.commit_transaction), ("dropped", producer.abort_transaction), ("open", None)):
        producer.begin_transaction()
        for number in range(10):
            producer.produce("transactions", value=f"{name} {number}".encode(), partition=0)
        producer.flush(30)
        if end is not None:
            end(30)
    return producer


@pytest.fixture(scope="module")
def killed(start_broker: Callable[..., Broker]) -> Killed:
    broker = start_broker()
    for topic, partitions in (("orders", PARTITIONS), ("transactions", 1)):
        broker.create_topic(topic, partitions, CONFIGS)
    with producing(broker.bootstrap, **{"batch.size": 20_000, "enable.idempotence": True}) as producer:
        for partition in range(PARTITIONS):
            for record in sample_records(RECORDS, seed=partition, partition=partition):
                producer.produce(
                    "orders",
                    key=record.key,
                    value=record.value,
                    partition=partition,
                    timestamp=record.timestamp_ms,
                    headers=list(record.headers),
                )
                producer.poll(0)
    holder = _write_transactions(broker.bootstrap)
    bootstrap = ("--bootstrap-server", broker.bootstrap)
    entity = ("--entity-type", "brokers", "--entity-default")
    done = run_tool(CONFIG_COMMAND, *bootstrap, *entity, "--alter", "--add-config", "log.retention.ms=1000000000")
    assert done.returncode == 0, done.stderr
    described = run_tool(CONFIG_COMMAND, *bootstrap, "--topic", "orders", "--describe", "--all").stdout
    served = {
        (topic, isolation): consume(broker.bootstrap, topic, isolation=isolation)
        for topic in ("orders", "transactions")
        for isolation in ISOLATIONS
    }
    with pytest.raises(LogDirError, match="a Kafka broker is running on"):
        LogDir.adopt(broker.data)
    broker.kill()
    holder.purge()
    return Killed(broker, served, described)


@pytest.fixture(scope="module")
def adopted(killed: Killed) -> LogDir:
    return LogDir.adopt(killed.broker.data)


def rows(records: list[ConsumedRecord]) -> list[tuple[Any, ...]]:
    return [(each.partition, each.offset, each.timestamp_ms, each.key, each.value, each.headers) for each in records]


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    milliseconds = table["timestamp"].cast("int64").to_pylist()
    return [
        (
            row["partition"],
            row["offset"],
            timestamp_ms,
            row["key"],
            row["value"],
            tuple((each["key"], each["value"]) for each in row["headers"]),
        )
        for row, timestamp_ms in zip(table.drop_columns(["timestamp"]).to_pylist(), milliseconds, strict=True)
    ]


@pytest.mark.full
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("topic", ["orders", "transactions"])
def test_adopted_topics_hold_records_that_broker_served(
    killed: Killed, adopted: LogDir, topic: str, isolation: Any
) -> None:
    expected = rows(killed.served[topic, isolation])
    assert len(expected) >= 10
    assert rows_of(adopted.read(topic, isolation=isolation)) == expected


@pytest.mark.full
def test_adopted_topics_keep_their_configuration(
    killed: Killed, adopted: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(adopted.topics()) >= {"orders", "transactions", "__transaction_state"}
    assert dict(adopted.topic("orders").configs) == {**CONFIGS, "retention.ms": "-1", "retention.bytes": "-1"}
    assert adopted.log_config("__transaction_state").compact
    capsys.readouterr()
    assert main(["configs", "--path", str(adopted.path), "--topic", "orders", "--describe", "--all"]) == 0
    assert without_later_configs(capsys.readouterr().out) == killed.described
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=1000000000" in killed.described


@pytest.mark.full
def test_broker_serves_records_appended_after_adoption(killed: Killed, adopted: LogDir) -> None:
    directories = [adopted.path / f"orders-{partition}" for partition in range(PARTITIONS)]
    assert_dumps_clean(directories, batches_min=10)
    added = sample_records(100, seed=9)
    for partition in range(PARTITIONS):
        for _ in range(3):
            adopted.append("orders", to_table(added), partition=partition, compression_type="zstd")
    adopted.append("transactions", to_table(added), partition=0)
    assert_dumps_clean(directories, batches_min=20)
    transactions = dump_log(sorted((adopted.path / "transactions-0").glob("*.log")), "--deep-iteration")
    assert (transactions.returncode, transactions.stderr, "isvalid: false" in transactions.stdout) == (0, "", False)
    ours = {topic: rows_of(adopted.read(topic, isolation="read_uncommitted")) for topic in ("orders", "transactions")}
    assert len(ours["orders"]) == PARTITIONS * (RECORDS + 300)

    data: Path = killed.broker.data
    (data / METADATA_DIR).rename(data / f"{METADATA_DIR}.kafkalog-stray")
    (data / KEPT_METADATA_DIR).rename(data / METADATA_DIR)
    broker = killed.broker.start()
    for topic, expected in ours.items():
        assert rows(consume(broker.bootstrap, topic)) == expected
    with producing(broker.bootstrap) as producer:
        producer.produce("orders", value=b"after", partition=0)
    assert [each.value for each in consume(broker.bootstrap, "orders") if each.partition == 0][-1] == b"after"
    assert (data / f"{METADATA_DIR}.kafkalog-stray").is_dir()
