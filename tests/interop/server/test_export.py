"""What a server wrote for clients is a log of Kafka's: its dump tool, a broker that starts on it, and Python agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.root_places import RootPlace, client_address, store_of
from builders.tiered_exports import consumed, new_broker
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from fakes.transaction_servers import Coordinated, run
from kafka_processes.clients import ConsumedRecord, consume, producing
from kafka_processes.oracle import dump_log, run_tool
from kafka_processes.served import serve

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.root.transactions.end_transaction import state_append
from pyspark_kafkalog.root.transactions.metadata import TV2
from pyspark_kafkalog.root.transactions.states import TRANSACTION_STATE_TOPIC
from pyspark_kafkalog.storage.names import TopicPartition as Place
from pyspark_kafkalog.tools.main import main

pytestmark = [pytest.mark.interop, pytest.mark.full]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ISOLATIONS = ("read_uncommitted", "read_committed")
TOPICS = {
    "events": {"internal.segment.bytes": "20000"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "recompressed": {"compression.type": "zstd"},
}
RECORDS = 150


def write(bootstrap: str) -> None:
    """Each topic by plain and idempotent producers of all codecs; transactions that commit and abort; a group."""
    for codec in CODECS:
        for idempotent in (False, True):
            settings = {"compression.type": codec, "enable.idempotence": idempotent, "batch.num.messages": 40}
            with producing(bootstrap, **settings) as producer:
                for number in range(RECORDS):
                    for topic in TOPICS:
                        value = f"{codec} {idempotent} {number} {'x' * (number % 50)}".encode()
                        producer.produce(topic, value, f"k{number}", number % 2, headers={"n": str(number).encode()})
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        for each in range(30):
            producer.produce("events", f"transaction {number} {each}".encode(), partition=each % 2)
        producer.flush(30)
        producer.send_offsets_to_transaction([Position("events", 0, number)], group.consumer_group_metadata(), 30)
        producer.commit_transaction(30) if number % 2 == 0 else producer.abort_transaction(30)
    group.commit(offsets=[Position("stamped", 1, 17)], asynchronous=False)
    group.close()


def in_log_dir(log_dir: LogDir, topic: str, isolation: str) -> list[ConsumedRecord]:
    """The records that Python reads, as a consumer would show them."""
    of_server = {"LogAppendTime": 1}.get(TOPICS[topic].get("message.timestamp.type", ""), 0)
    return sorted(
        (
            ConsumedRecord(
                row["partition"],
                row["offset"],
                int(row["timestamp"].timestamp() * 1000 + 0.5),
                of_server,
                row["key"],
                row["value"],
                tuple((each["key"], each["value"]) for each in row["headers"] or ()),
            )
            for row in log_dir.read(topic, isolation=isolation).to_pylist()
        ),
        key=lambda record: (record.partition, record.offset),
    )


def test_what_a_server_wrote_is_valid_read_equal_and_served_by_a_broker(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"})
    for topic, configs in TOPICS.items():
        log_dir.create_topic(topic, 2, configs)
    with serve(log_dir.path) as bootstrap:
        write(bootstrap)
        wanted = {each: {topic: consume(bootstrap, topic, isolation=each) for topic in TOPICS} for each in ISOLATIONS}
    assert len(wanted["read_committed"]["events"]) == 2 * len(CODECS) * RECORDS + 60
    assert len(wanted["read_uncommitted"]["events"]) == len(wanted["read_committed"]["events"]) + 60
    log_dir = LogDir.open(log_dir.path)
    for isolation, by_topic in wanted.items():
        for topic, records in by_topic.items():
            assert in_log_dir(log_dir, topic, isolation) == records

    logs = sorted(each for each in Path(log_dir.path).glob("[a-z_]*-*/*.log") if "metadata" not in each.parent.name)
    done = dump_log([each for each in logs if each.stat().st_size], "--deep-iteration")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("isvalid: true") >= 3 * 2 * len(CODECS)
    assert "isvalid: false" not in done.stdout
    assert {word for word in CODECS if f"compresscodec: {word}" in done.stdout} == set(CODECS)

    settings = {"offsets_topic_num_partitions": "3", "transaction_state_log_num_partitions": "3"}
    broker = new_broker(tmp_path / "broker", tmp_path / "tier", **settings)
    assert main(["export", "--path", str(log_dir.path), "--to", str(broker.data), "--new-broker"]) == 0
    with broker:
        for isolation, by_topic in wanted.items():
            for topic, records in by_topic.items():
                assert consumed(broker, topic, isolation) == records
        group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
        found = group.committed([Position("events", 0), Position("stamped", 1)], timeout=30)
        group.close()
        assert [each.offset for each in found] == [2, 17]
        hanging = run_tool(
            "org.apache.kafka.tools.TransactionsCommand",
            *("--bootstrap-server", broker.bootstrap, "find-hanging", "--broker-id", "1"),
        )
        assert hanging.returncode == 0, hanging.stderr
        assert len(hanging.stdout.strip().splitlines()) == 1, hanging.stdout
        broker.stop()


def test_transactions_that_an_operator_ended_stay_ended_in_a_broker(root_place: RootPlace, tmp_path: Path) -> None:
    """One aborted while it was open, one completed as its coordinator had decided; both ids go on in the broker."""
    log_dir = LogDir.create(root_place)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"})
    log_dir.create_topic("a", 2, {"retention.ms": "-1"})  # the records are old
    server = Coordinated(
        client_address(root_place, store_of(root_place)) if isinstance(root_place, str) else root_place
    )

    async def leave_open() -> None:
        for name in ("aborted", "completed"):
            producer = await server.begin(name)
            for partition in range(2):
                await server.produce(producer, [f"{name} {partition}".encode()], partition=partition, name=name)
        found = await server.coordinator.find("completed")
        assert found is not None
        prepared = found.prepared(is_commit=True, client_version=TV2, now_ms=server.served.now_ms)
        states = Place(TRANSACTION_STATE_TOPIC, 0)
        topic_id = server.context.image().topic(TRANSACTION_STATE_TOPIC).topic_id
        server.served.append(state_append(states, [prepared], topic_id=topic_id, now_ms=server.served.now_ms))

    run(leave_open())
    server.close()
    path = ["--path", str(log_dir.path)]
    assert main(["transactions", *path, "abort", "--transactional-id", "aborted"]) == 0
    assert main(["transactions", *path, "complete", "--transactional-id", "completed"]) == 0

    settings = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}
    broker = new_broker(tmp_path / "broker", tmp_path / "tier", **settings)
    assert main(["export", *path, "--to", str(broker.data), "--new-broker"]) == 0
    with broker:
        tool = "org.apache.kafka.tools.TransactionsCommand"
        listed = run_tool(tool, "--bootstrap-server", broker.bootstrap, "list")
        assert {row.split()[0]: row.split()[-1] for row in listed.stdout.splitlines()[1:]} == {
            "aborted": "CompleteAbort",
            "completed": "CompleteCommit",
        }
        hanging = run_tool(tool, "--bootstrap-server", broker.bootstrap, "find-hanging", "--broker-id", "1")
        assert (hanging.returncode, len(hanging.stdout.strip().splitlines())) == (0, 1), hanging.stdout
        for name in ("aborted", "completed"):
            producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce("a", f"{name} again".encode(), partition=0)
            producer.commit_transaction(30)
        assert [record.value for record in consumed(broker, "a", "read_committed")] == [
            *(b"completed 0", b"aborted again", b"completed again", b"completed 1")
        ]
        broker.stop()
