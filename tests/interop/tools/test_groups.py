"""Consumer groups beside real Kafka: each reads the other's groups, and both tools print the same of one directory."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_processes.clients import producing
from kafka_processes.oracle import Broker, dump_log, run_tool
from kafkalog_command import Command
from patience import wait_until

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, OffsetAndMetadata
from pyspark_kafkalog.storage.names import TopicPartition

GROUPS_PARTITIONS = 3
SETTINGS = {
    "offsets.topic.num.partitions": str(GROUPS_PARTITIONS),
    "replica.high.watermark.checkpoint.interval.ms": "500",
}
NAMES = ("spark 1", "ключ", "group-with-a-minus", "polygenelubricants")
WAIT_S_MAX = 30
FIRST_RECORD_MS = 1_700_000_000_000

Offsets = dict[TopicPartition, int]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of ours: orders with 60 and 30 records, one a second; a few groups, changed in every way there is."""
    root = tmp_path_factory.mktemp("written") / "log"
    log_dir = LogDir.create(root)
    log_dir.alter_broker_configs(
        add={"offsets.topic.num.partitions": str(GROUPS_PARTITIONS), "offsets.topic.compression.codec": "4"}
    )
    log_dir.create_topic("orders", partitions=2)
    for partition, count in ((0, 60), (1, 30)):
        times = pa.array([FIRST_RECORD_MS + 1000 * number for number in range(count)], pa.timestamp("ms"))
        log_dir.append("orders", pa.table({"value": ["v"] * count, "timestamp": times}), partition=partition)
    for number, name in enumerate(NAMES):
        log_dir.group(name).commit({("orders", 0): number, ("orders", 1): 30}, "gesagt: ü")
    log_dir.group("epochs").commit({("orders", 0): OffsetAndMetadata(offset=3, leader_epoch=0)})
    log_dir.group("gone").commit({("orders", 0): 1})
    log_dir.group("gone").delete()
    log_dir.group("partly").commit({("orders", 0): 1, ("orders", 1): 1})
    log_dir.group("partly").delete_offsets([("orders", 1)])
    return root


@pytest.fixture(scope="module")
def broker(written: Path, start_broker: Callable[..., Broker]) -> Broker:
    broker = start_broker(SETTINGS)
    broker.mount(written, {"orders": 2, OFFSETS_TOPIC: GROUPS_PARTITIONS})
    return broker


def offsets_of(log_dir: LogDir, group: str) -> Offsets:
    return {each: committed.offset for each, committed in log_dir.group(group).fetch().items()}


def served_offsets(broker: Broker, group: str) -> Offsets:
    """What a broker says that a group has committed, once it has read that part of __consumer_offsets.

    Asked as a consumer: librdkafka's admin client crashes if it is answered NOT_COORDINATOR, as for a moment after a
    start.
    """
    from confluent_kafka import Consumer, KafkaException
    from confluent_kafka import TopicPartition as Asked

    deadline = time.monotonic() + WAIT_S_MAX
    with contextlib.closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})) as consumer:
        while True:
            try:
                found = consumer.committed([Asked("orders", 0), Asked("orders", 1)], WAIT_S_MAX)
            except KafkaException:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)
            else:
                assert not [each.error for each in found if each.error]
                return {TopicPartition(each.topic, each.partition): each.offset for each in found if each.offset >= 0}


def kafkas(broker: Broker, *arguments: str) -> str:
    """What kafka-consumer-groups prints."""
    done = run_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", broker.bootstrap, *arguments
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Error: Executing" not in done.stdout, done.stdout + done.stderr
    return done.stdout


def cells(text: str) -> list[list[str]]:
    """A table's lines in order, cells by runs of blanks, where both tools end a line with blanks or not."""
    return sorted(re.split(r" {1,}", line.strip()) for line in text.splitlines() if line.strip())


def test_kafkas_dump_decodes_our_group_records(written: Path) -> None:
    logs = sorted(written.glob(f"{OFFSETS_TOPIC}-*/*.log"))
    done = dump_log(logs, "--offsets-decoder", "--value-decoder-class", "none")
    assert "Error at offset" not in done.stdout
    seen = re.findall(r"key: (\{.*\}) payload: (.*)", done.stdout)
    assert len(seen) == 2 * len(NAMES) + 1 + (1 + 2) + (2 + 1)
    keys = [json.loads(key) for key, _ in seen]
    assert {key["data"]["group"] for key in keys} == {*NAMES, "epochs", "gone", "partly"}
    values = [json.loads(payload) for _, payload in seen if payload != "<DELETE>"]
    assert {value["version"] for value in values} == {"4"}
    assert sum(value["data"]["metadata"] == "gesagt: ü" for value in values) == 2 * len(NAMES)


def test_broker_serves_offsets_of_our_groups(broker: Broker, written: Path) -> None:
    log_dir = LogDir.open(written)
    for name in (*NAMES, "epochs", "partly"):
        assert served_offsets(broker, name) == offsets_of(log_dir, name)
    assert set(kafkas(broker, "--list").splitlines()) >= {*NAMES, "epochs", "partly"}


@pytest.mark.full
def test_both_tools_print_same_of_our_groups(broker: Broker, written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command("consumer-groups", written, capsys)
    names = [argument for name in ("ключ", "epochs", "partly") for argument in ("--group", name)]
    for arguments in (("--describe", *names, "--verbose"), ("--describe", *names, "--members")):
        _, out, err = command.try_to(*arguments)
        assert cells(out) == cells(kafkas(broker, *arguments))
        assert err.count("has no active members") == 3
    scope = ("--reset-offsets", "--group", "ключ", "--group", "partly", "--dry-run")
    for arguments in (
        (*scope, "--all-topics", "--shift-by", "-1"),
        (*scope, "--topic", "orders:1", "--topic", "orders:0", "--to-datetime", "2023-11-14T22:13:30.500"),
        (*scope, "--topic", "orders", "--to-offset", "45", "--export"),
    ):
        _, out, _ = command.try_to(*arguments)
        assert cells(out) == cells(kafkas(broker, *arguments))


@pytest.mark.full
def test_both_tools_change_groups_alike(
    broker: Broker, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same commands for a copy of our root and for the broker that mounts it."""
    root = tmp_path / "copy"
    shutil.copytree(written, root)
    command = Command("consumer-groups", root, capsys)
    for arguments in (
        ("--reset-offsets", "--group", "new one", "--topic", "orders", "--to-latest", "--execute"),
        ("--delete-offsets", "--group", "new one", "--topic", "orders:0"),
        ("--delete", "--group", "epochs"),
        ("--describe", "--group", "new one"),
    ):
        _, out, _ = command.try_to(*arguments)
        assert out == kafkas(broker, *arguments)


@pytest.mark.full
def test_groups_of_running_broker_are_read_and_printed_as_by_kafka(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real clients commit; a member stays while both tools run."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as KafkaPartition

    base = {"bootstrap.servers": broker.bootstrap, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    manual = Consumer({**base, "group.id": "manual"})
    manual.commit(offsets=[KafkaPartition("orders", 0, 17), KafkaPartition("orders", 1, 2)], asynchronous=False)
    manual.close()
    kafkas(broker, "--reset-offsets", "--group", "by-tool", "--topic", "orders", "--to-latest", "--execute")
    member = Consumer({**base, "group.id": "live", "client.id": "client-1"})
    member.subscribe(["orders"])
    try:
        wait_until(lambda: member.poll(0.2) is not None)
        member.commit(offsets=[KafkaPartition("orders", 0, 5)], asynchronous=False)
        wait_until(lambda: offsets_of(LogDir.open(broker.data), "live") == {TopicPartition("orders", 0): 5})
        log_dir = LogDir.open(broker.data)
        assert offsets_of(log_dir, "manual") == {TopicPartition("orders", 0): 17, TopicPartition("orders", 1): 2}
        assert offsets_of(log_dir, "by-tool") == {TopicPartition("orders", 0): 60, TopicPartition("orders", 1): 30}
        command = Command("consumer-groups", broker.data, capsys)
        for arguments in (
            ("--describe", "--all-groups"),
            ("--describe", "--group", "live", "--members", "--verbose"),
            ("--list", "--state", "--type"),
        ):
            _, out, _ = command.try_to(*arguments)
            assert cells(out) == cells(kafkas(broker, *arguments))
        for ours, kafka in zip(
            cells(command.try_to("--describe", "--group", "live", "--state")[1]),
            cells(kafkas(broker, "--describe", "--group", "live", "--state")),
            strict=True,
        ):
            assert ours[-3:] == kafka[-3:]
    finally:
        member.close()


def test_adopted_groups_of_stopped_broker_can_be_continued(broker: Broker) -> None:
    """After a clean stop: an offset committed in a transaction, then commits of ours to the adopted directory."""
    from confluent_kafka import Consumer, Producer
    from confluent_kafka import TopicPartition as KafkaPartition

    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "writer", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "in a transaction"})
    producer = Producer(settings)
    producer.init_transactions(30)
    for offset, end in ((7, "commit"), (8, "abort")):
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [KafkaPartition("orders", 0, offset)], consumer.consumer_group_metadata(), 30
        )
        producer.commit_transaction(30) if end == "commit" else producer.abort_transaction(30)
    consumer.close()
    with producing(broker.bootstrap) as plain:
        plain.produce("orders", value=b"one more", partition=0)
    broker.stop()
    assert offsets_of(LogDir.open(broker.data), "in a transaction") == {TopicPartition("orders", 0): 7}
    log_dir = LogDir.adopt(broker.data)
    log_dir.group("in a transaction").commit({("orders", 0): 61})
    deleted, *others = NAMES
    log_dir.group(deleted).delete()
    again = LogDir.open(broker.data)
    assert [each.lag for each in again.group("in a transaction").lag()] == [0]
    assert deleted not in again.groups()
    assert set(again.groups()) >= {*others, "in a transaction"}
