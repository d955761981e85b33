"""Transactions that a killed broker left open: ended here as the broker ends them, and unchanged after its return."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_processes.clients import consume, producing
from kafka_processes.oracle import OLDEST_VERSION, Broker, run_tool
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.messages.internal_records import TransactionLogKey
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.header import parse_header
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR
from pyspark_kafkalog.root.transactions.states import TransactionStatus, read_transaction_states
from pyspark_kafkalog.storage.filesystem import time_ms

TOPICS = {"pay": 3, "audit": 2}
HOUR_MS = 3_600_000
METADATA_DIR = "__cluster_metadata-0"
STATE_TOPIC = "__transaction_state"
GROUP = "payers"
#: Where each transaction writes, and how long ago its records say that it was.
OPEN = {
    "pay-old": ((("pay", 0), ("pay", 1), ("audit", 0)), 5 * HOUR_MS),
    "pay-young": ((("pay", 2), ("audit", 0)), 0),
    "pay-prepared": ((("pay", 0), ("pay", 2), ("audit", 1)), HOUR_MS),
}
Rows = list[tuple[int, int, bytes | None]]


@dataclass
class Killed:
    """A broker that was killed with open transactions, a copy of its directory, and what it made of the original."""

    broker: Broker
    copy: Path
    rows: dict[str, Rows]


def begin(bootstrap: str, name: str) -> Any:
    """A producer with a transaction in several partitions."""
    partitions, age_ms = OPEN[name]
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 900_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    for topic, partition in partitions:
        for number in range(3):
            value = f"{name} {number}".encode()
            producer.produce(topic, value=value, partition=partition, timestamp=time_ms() - age_ms)
    if name == "pay-prepared":  # as a consumer that reads, transforms and writes
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
        producer.send_offsets_to_transaction([TopicPartition("pay", 1, 1)], consumer.consumer_group_metadata(), 30)
        consumer.close()
    producer.flush(30)
    return producer


def append_raw(data: Path, where: tuple[str, int], record: tuple[bytes, bytes], **producer: Any) -> None:
    """One batch at the end of a log that nobody has open, as a broker would have written it."""
    (log,) = (data / f"{where[0]}-{where[1]}").glob("*.log")
    content, at = log.read_bytes(), 0
    while at < len(content):
        last = parse_header(content, at, file=str(log), file_position=at)
        at += last.size_bytes
    added = Record(offset=last.next_offset, timestamp_ms=time_ms(), key=record[0], value=record[1])
    with log.open("ab") as file:
        file.write(encode_batch([added], leader_epoch=last.leader_epoch, **producer))


def prepare_commit(data: Path) -> None:
    """Let the broker have been killed after it decided to commit pay-prepared, with one of three markers written."""
    states = read_transaction_states(LogDir.open(data).topic(STATE_TOPIC).partitions)
    state = states["pay-prepared"]
    is_v2 = state.value.client_transaction_version >= 2
    epoch = state.producer_epoch + is_v2
    prepared = state.value.replace(producer_epoch=epoch, transaction_status=TransactionStatus.PREPARE_COMMIT)
    value = prepared.encode(state.version)
    key = b"\0\0" + TransactionLogKey(transactional_id=state.transactional_id).encode(0)
    append_raw(data, (STATE_TOPIC, state.state_partition), (key, state.version.to_bytes(2, "big") + value))
    marker = build_control_record(EndTransactionMarker(control_type=ControlRecordType.COMMIT, coordinator_epoch=0))
    producer = {"producer_id": state.producer_id, "producer_epoch": epoch, "is_transactional": True, "is_control": True}
    append_raw(data, ("pay", 0), marker, **producer)


def committed(bootstrap: str) -> dict[str, Rows]:
    """What consumers of committed records see. Offsets of records that came to be committed or not are the same."""
    consumed = {topic: consume(bootstrap, topic, isolation="read_committed") for topic in TOPICS}
    return {topic: [(each.partition, each.offset, each.value) for each in rows] for topic, rows in consumed.items()}


@pytest.fixture(scope="module")
def killed(start_broker: Callable[..., Broker], tmp_path_factory: pytest.TempPathFactory) -> Killed:
    # A starting broker of 4.3 may complete pay-prepared without its markers: it takes partitions whose leaders it does
    # not know yet for deleted ("can be skipped").
    broker = start_broker(version=OLDEST_VERSION)
    for topic, partitions in TOPICS.items():
        broker.create_topic(topic, partitions)
    with producing(broker.bootstrap) as producer:
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                producer.produce(topic, value=b"before", partition=partition)
    holders = [begin(broker.bootstrap, name) for name in OPEN]
    with producing(broker.bootstrap) as producer:
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                producer.produce(topic, value=b"behind", partition=partition)
    broker.kill()
    for holder in holders:
        holder.purge()
    checkpoint = broker.data / "replication-offset-checkpoint"
    checkpoint.unlink(missing_ok=True)  # up to five seconds old: reads here are to end where the logs do
    prepare_commit(broker.data)
    copy = tmp_path_factory.mktemp("copy") / "data"
    shutil.copytree(broker.data, copy)

    # The broker itself completes what was decided when it starts, and aborts the others as their producers come back.
    broker.start()
    for name in ("pay-old", "pay-young"):
        Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name}).init_transactions(30)
    rows = committed(broker.bootstrap)
    broker.stop()
    return Killed(broker, copy, rows)


@pytest.mark.full
def test_open_transactions_of_killed_broker_are_named_ended_and_stay_ended(
    killed: Killed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any(value == b"pay-prepared 2" for _, _, value in killed.rows["pay"])
    adopt = Command("adopt", killed.copy, capsys)
    dry, done = adopt("--dry-run"), adopt()
    tool = adopt.other("transactions")
    for output in (dry, done):
        for name, (partitions, _) in OPEN.items():
            state = "PrepareCommit" if name == "pay-prepared" else "Ongoing"
            for topic, partition in set(partitions) - ({("pay", 0)} if name == "pay-prepared" else set()):
                said = [line for line in output.splitlines() if line.startswith(f"  {topic}-{partition}: ")]
                assert any(f"transactional id {name} ({state}), began 20" in line for line in said), (name, output)
    hanging = {(each["topic"], each["partition"], each.get("transactionalId")) for each in tool.json("find-hanging")}
    assert hanging == {
        *((topic, partition, "pay-old") for topic, partition in OPEN["pay-old"][0]),
        *((topic, partition, "pay-young") for topic, partition in OPEN["pay-young"][0]),
        *(("pay", 2, "pay-prepared"), ("audit", 1, "pay-prepared"), ("__consumer_offsets", 0, "pay-prepared")),
    }
    assert "is in state PrepareCommit" in tool.fails("abort", "--transactional-id", "pay-prepared")

    commands = [shlex.split(line) for line in done.splitlines() if line.startswith("    kafkalog transactions ")]
    assert len(commands) == len(OPEN)
    for command in commands:
        tool(*command[4:])
    assert tool.json("find-hanging") == []
    assert {str(where): at.offset for where, at in LogDir.open(killed.copy).group(GROUP).fetch().items()} == {
        "pay-1": 1
    }
    expected_states = dict.fromkeys(OPEN, "CompleteAbort") | {"pay-prepared": "CompleteCommit"}
    assert {each["transactionalId"]: each["transactionState"] for each in tool.json("list")} == expected_states
    log_dir = LogDir.open(killed.copy)
    for topic in TOPICS:
        for each in log_dir.topic(topic).partitions:
            assert log_dir.last_stable_offset(topic, each.partition) == each.high_watermark
        table = log_dir.read(topic, isolation="read_committed", columns=["partition", "offset", "value"])
        assert [tuple(row.values()) for row in table.to_pylist()] == killed.rows[topic]
    assert Command("verify", killed.copy, capsys).try_to()[0] == 0

    _give_back(killed, capsys)
    bootstrap = ("--bootstrap-server", killed.broker.start().bootstrap)
    tools = "org.apache.kafka.tools.TransactionsCommand"
    listed = run_tool(tools, *bootstrap, "list")
    assert {row.split()[0]: row.split()[-1] for row in listed.stdout.splitlines()[1:]} == expected_states
    found = run_tool(tools, *bootstrap, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    assert (found.returncode, len(found.stdout.splitlines())) == (0, 1), found.stdout
    assert committed(killed.broker.bootstrap) == killed.rows
    consumer = Consumer({"bootstrap.servers": killed.broker.bootstrap, "group.id": GROUP})
    assert [each.offset for each in consumer.committed([TopicPartition("pay", 1)], 30)] == [1]
    consumer.close()
    _commit_another(killed.broker.bootstrap)
    assert sum(value == b"another" for _, _, value in committed(killed.broker.bootstrap)["pay"]) == len(OPEN)


def _give_back(killed: Killed, capsys: pytest.CaptureFixture[str]) -> None:
    """The adopted directory in the place of the broker's own, as docs/MIGRATING.md tells ("Back to Kafka")."""
    Command("export", killed.copy, capsys)()
    (killed.copy / METADATA_DIR).rename(killed.copy / f"{METADATA_DIR}.kafkalog-stray")
    (killed.copy / KEPT_METADATA_DIR).rename(killed.copy / METADATA_DIR)
    shutil.rmtree(killed.broker.data)
    killed.copy.rename(killed.broker.data)


def _commit_another(bootstrap: str) -> None:
    """The producers come back, each with its transactional id."""
    for name in OPEN:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("pay", value=b"another", partition=0)
        producer.commit_transaction(30)
