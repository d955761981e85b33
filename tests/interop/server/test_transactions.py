"""Transactions of Kafka's own clients and tools at our server, and what a broker makes of the log afterwards."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest
from builders.tiered_exports import new_broker
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka_processes import java_processes
from kafka_processes.oracle import Broker, dump_log, kafka_lib, run_tool
from kafka_processes.served import serve
from kafka_processes.server_processes import ServerProcess, serving
from patience import PATIENCE_S, wait_until
from repository import DATA

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from pyspark_kafkalog.tools.main import main

_PROGRAM: Final = DATA / "TransactionClient.java"
_ANSWER_SECONDS_MAX: Final = 90


class KafkaClientError(Exception):
    """The name of the exception that Kafka's client raised."""


class TransactionClient:
    """A process with Kafka's clients of one cluster."""

    def __init__(self, bootstrap: str, log: Path) -> None:
        lib = kafka_lib()
        command = [
            java_processes.java(),
            *java_processes.QUICK_START,
            f"-Dlog4j2.configurationFile={lib.parent / 'log4j2.xml'}",
            "-cp",
            f"{lib}/*",
            str(_PROGRAM),
            bootstrap,
        ]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def __enter__(self) -> TransactionClient:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def __call__(self, *words: object) -> list[str]:
        """The words of the answer. Raises KafkaClientError."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(_ANSWER_SECONDS_MAX, process.kill)
        timer.start()
        try:
            process.stdin.write(" ".join(map(str, words)) + "\n")
            process.stdin.flush()
            kind, *answer = process.stdout.readline().split() or ["error", "NoAnswer"]
        finally:
            timer.cancel()
        if kind != "ok":
            raise KafkaClientError(*answer)
        return answer

    def begin(self, name: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        """Start a producer and initialize its transactional id."""
        self("producer", name, transactional_id, timeout_ms)
        self("init", name)


pytestmark = pytest.mark.interop

TOOL = "org.apache.kafka.tools.TransactionsCommand"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("a", 2)
    log_dir.create_topic("b", 1)
    log_dir.alter_broker_configs(
        add={
            "transaction.state.log.num.partitions": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        }
    )
    return tmp_path / "root"


@pytest.fixture
def bootstrap(root: Path) -> Iterator[str]:
    with serve(root) as address:
        yield address


@pytest.fixture
def java(bootstrap: str, tmp_path: Path) -> Iterator[TransactionClient]:
    with TransactionClient(bootstrap, tmp_path / "java.log") as client:
        yield client


def history(java: TransactionClient) -> None:
    """Transactions of one producer: two committed, one aborted, one of offsets alone, and one without anything."""
    java.begin("p", "t")
    java("begin", "p")
    java("send", "p", "a", 0, "1", "2")
    java("send", "p", "b", 0, "3")
    java("commit", "p")
    java("begin", "p")
    java("send", "p", "a", 0, "aborted")
    java("offsets", "p", "g", "a", 0, 1)
    java("abort", "p")
    java("begin", "p")
    java("offsets", "p", "g", "a", 0, 2)
    java("commit", "p")
    java("begin", "p")
    java("abort", "p")
    java("begin", "p")
    java("send", "p", "a", 1, "4")
    java("commit", "p")


def test_transactions_of_kafkas_producer_are_seen_whole_by_its_consumer(java: TransactionClient) -> None:
    history(java)
    assert java("read", "read_committed", "a", 0) == ["1", "2"]
    assert java("read", "read_uncommitted", "a", 0) == ["1", "2", "aborted"]
    assert java("read", "read_committed", "b", 0) == ["3"]
    assert java("committed", "g", "a", 0) == ["2"]
    java("begin", "p")
    java("send", "p", "a", 0, "zombie")
    java.begin("second", "t")
    with pytest.raises(KafkaClientError, match="ProducerFencedException"):
        java("commit", "p")
    java("begin", "second")
    java("send", "second", "a", 0, "5")
    assert java("read", "read_committed", "a", 0) == ["1", "2"]
    java("commit", "second")
    assert java("read", "read_committed", "a", 0) == ["1", "2", "5"]


@pytest.mark.full
def test_copy_by_a_member_of_a_group_writes_each_record_once(java: TransactionClient) -> None:
    java.begin("p", "t")
    for at in range(10):
        java("begin", "p")
        java("send", "p", "a", 0, *(f"{at}.{each}" for each in range(20)))
        java("commit" if at % 2 else "abort", "p")
    expected = java("read", "read_committed", "a", 0)
    assert len(expected) == 100
    assert java("copy", "p", "group", "a", "b", 100) == ["100"]
    assert java("read", "read_committed", "b", 0) == expected


@pytest.mark.full
def test_transaction_over_its_timeout_is_aborted(java: TransactionClient) -> None:
    java.begin("p", "t", 1000)
    java("begin", "p")
    java("send", "p", "a", 0, "late")
    java.begin("q", "u")
    java("begin", "q")
    java("send", "q", "a", 0, "in-time")
    java("commit", "q")
    wait_until(lambda: java("read", "read_committed", "a", 0) == ["in-time"], "the end of the transaction")
    with pytest.raises(KafkaClientError):
        java("commit", "p")
    java.begin("p", "t")
    java("begin", "p")
    java("send", "p", "a", 0, "anew")
    java("commit", "p")
    assert java("read", "read_committed", "a", 0) == ["in-time", "anew"]


@pytest.mark.full
def test_librdkafka_commits_aborts_and_is_fenced(root: Path, bootstrap: str) -> None:
    def producer() -> Producer:
        made = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "linger.ms": 1, "log_level": 0})
        made.init_transactions(60)
        return made

    first = producer()
    for at in range(6):
        first.begin_transaction()
        for each in range(30):
            first.produce("a", f"{at}.{each}".encode(), partition=each % 2)
        first.flush(60)
        first.send_offsets_to_transaction([TopicPartition("b", 0, at)], consumer_group(bootstrap), 20)
        if at % 2:
            first.commit_transaction(60)
        else:
            first.abort_transaction(60)
    first.begin_transaction()
    first.produce("a", b"zombie", partition=0)
    first.flush(60)
    second = producer()
    with pytest.raises(KafkaException, match="fenced"):
        first.commit_transaction(60)
    second.begin_transaction()
    second.produce("a", b"new", partition=0)
    second.commit_transaction(60)
    log_dir = LogDir.open(root)
    committed = log_dir.read("a", isolation="read_committed")["value"].to_pylist()
    wanted = [f"{at}.{each}".encode() for at in (1, 3, 5) for each in range(30)] + [b"new"]
    assert sorted(committed) == sorted(wanted)
    assert [each.offset for each in log_dir.group("rdkafka").fetch().values()] == [5]
    assert len(log_dir.read("a")) == 6 * 30 + 2


def consumer_group(bootstrap: str, group: str = "rdkafka") -> object:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


@pytest.mark.full
def test_librdkafka_commits_offsets_at_a_coordinator_that_was_restarted(tmp_path: Path) -> None:
    """Its producer remembers a group's coordinator, and would wait for ever if a list of brokers had left that out."""
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("a", 1)
    with serving(tmp_path / "root") as other, contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        restarted = first.enter_context(serving(tmp_path / "root"))
        group = next(name for name in map(str, range(100)) if coordinator(other, _GROUP, name) == restarted.port)
        name = next(name for name in map(str, range(100)) if coordinator(other, _TRANSACTION, name) == other.port)
        settings = {"bootstrap.servers": other.bootstrap, "transactional.id": name, "linger.ms": 1, "log_level": 0}
        refreshes = {"topic.metadata.refresh.interval.ms": 100, "metadata.max.age.ms": 900_000}
        producer = Producer({**settings, **refreshes})
        producer.init_transactions(30)

        def commit(offset: int) -> None:
            producer.begin_transaction()
            producer.send_offsets_to_transaction(
                [TopicPartition("a", 0, offset)], consumer_group(other.bootstrap, group), 30
            )
            producer.commit_transaction(30)

        commit(1)
        assert restarted.stop() == 0
        wait_until(lambda: coordinator(other, _GROUP, group) == other.port)
        time.sleep(1)  # the producer asks for the brokers meanwhile
        second.enter_context(serving(tmp_path / "root", listen=restarted.bootstrap))
        wait_until(lambda: coordinator(other, _GROUP, group) == restarted.port)
        committing = threading.Thread(target=commit, args=(2,), daemon=True)
        committing.start()
        committing.join(PATIENCE_S)
        assert not committing.is_alive()
        log_dir.refresh()
        assert [each.offset for each in log_dir.group(group).fetch().values()] == [2]


_GROUP, _TRANSACTION = 0, 1
#: Of TransactionState in Kafka.
_ONGOING = 1


def coordinator(server: ServerProcess, key_type: int, key: str) -> int:
    """The port of the server that coordinates a group or a transactional id."""
    with WireClient.connect(server.host, server.port, client_id="test", timeout_s=10) as client:
        client.negotiate()
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
        (found,) = client.call(request, FindCoordinatorResponse).coordinators
        return found.port


def tool(bootstrap: str, *words: str) -> list[list[str]]:
    """The rows of a table that kafka-transactions prints."""
    done = run_tool(TOOL, "--bootstrap-server", bootstrap, *words)
    assert done.returncode == 0, done.stderr
    return [[cell.strip() for cell in line.strip("\t").split("\t")] for line in done.stdout.splitlines()[1:]]


@pytest.mark.full
def test_kafka_transactions_lists_describes_finds_and_aborts(bootstrap: str, java: TransactionClient) -> None:
    java.begin("p", "t")
    java("begin", "p")
    java("send", "p", "a", 0, "1")
    java.begin("q", "unused")
    listed = {row[0]: row[-1] for row in tool(bootstrap, "list")}
    assert listed == {"t": "Ongoing", "unused": "Empty"}
    assert [row[0] for row in tool(bootstrap, "list", "--transactional-id-pattern", "un.*")] == ["unused"]
    (described,) = tool(bootstrap, "describe", "--transactional-id", "t")
    assert "Ongoing" in described
    assert described[-1] == "a-0"
    (producer,) = tool(bootstrap, "describe-producers", "--topic", "a", "--partition", "0")
    start_offset = producer[-1]
    assert start_offset == "0"
    assert tool(bootstrap, "find-hanging", "--broker-id", broker_of(bootstrap)) == []
    tool(bootstrap, "abort", "--topic", "a", "--partition", "0", "--start-offset", start_offset)
    assert java("read", "read_committed", "a", 0) == []
    (producer,) = tool(bootstrap, "describe-producers", "--topic", "a", "--partition", "0")
    assert producer[-1] == "None"
    java("abort", "p")
    java("begin", "p")
    java("send", "p", "a", 0, "2")
    java("commit", "p")
    assert java("read", "read_committed", "a", 0) == ["2"]


def broker_of(bootstrap: str) -> str:
    from confluent_kafka.admin import AdminClient

    return str(next(iter(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).brokers)))


def states_of(log: Path) -> list[tuple[object, Mapping[str, Any]]]:
    """The records of `__transaction_state` as Kafka's dump tool decodes them, without producer ids and times.

    Of those that add partitions one after the other, only the last: how many there are depends on which partitions the
    producer sends together.
    """
    dumped = dump_log([log], "--print-data-log", "--transaction-log-decoder")
    assert dumped.returncode == 0, dumped.stderr
    assert "Found" not in dumped.stdout
    found: list[tuple[object, Mapping[str, Any]]] = []
    for line in dumped.stdout.splitlines():
        if " payload: " in line:
            key, value = line[line.index("key: ") + len("key: ") :].split(" payload: ")
            record = json.loads(value)
            state = record["data"]
            for name in ("producerId", "transactionLastUpdateTimestampMs", "transactionStartTimestampMs"):
                state[name] = state[name] >= 0
            if "previousProducerId" in state:
                state["previousProducerId"] = state["previousProducerId"] >= 0
            (state["transactionPartitions"] or []).sort(key=lambda each: each["topic"])
            if found and found[-1][0] == json.loads(key) and is_ongoing(found[-1][1]) and is_ongoing(record):
                found.pop()
            found.append((json.loads(key), record))
    return found


def is_ongoing(record: Mapping[str, Any]) -> bool:
    return bool(record["data"]["transactionStatus"] == _ONGOING)


@pytest.mark.full
def test_records_of_the_coordinator_are_those_of_a_broker(
    root: Path, java: TransactionClient, start_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    history(java)
    broker = start_broker()
    broker.create_topic("a", 2)
    broker.create_topic("b", 1)
    with TransactionClient(broker.bootstrap, tmp_path / "broker.log") as at_broker:
        history(at_broker)
        assert at_broker("committed", "g", "a", 0) == ["2"]
    broker.stop()
    log = Path("__transaction_state-0") / "00000000000000000000.log"
    assert states_of(root / log) == states_of(broker.data / log)


@pytest.mark.full
def test_broker_serves_the_log_and_goes_on_with_its_transactions(root: Path, tmp_path: Path) -> None:
    with serve(root) as address, TransactionClient(address, tmp_path / "java.log") as java:
        history(java)
        java("begin", "p")
        java("send", "p", "b", 0, "open")
    broker = new_broker(tmp_path / "broker", tmp_path / "tier")
    assert main(["export", "--path", str(root), "--to", str(broker.data), "--new-broker"]) == 0
    with broker, TransactionClient(broker.bootstrap, tmp_path / "broker.log") as client:
        assert client("read", "read_committed", "a", 0) == ["1", "2"]
        assert client("read", "read_committed", "b", 0) == ["3"]
        assert client("committed", "g", "a", 0) == ["2"]
        client.begin("p", "t")  # aborts what is open
        client("begin", "p")
        client("send", "p", "b", 0, "by-the-broker")
        client("commit", "p")
        assert client("read", "read_committed", "b", 0) == ["3", "by-the-broker"]


@pytest.mark.full
def test_server_that_is_killed_loses_and_repeats_no_transaction(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("a", 4)
    committed = []
    with (
        serving(log_dir.path) as one,
        serving(log_dir.path) as two,
        TransactionClient(f"{one.bootstrap},{two.bootstrap}", tmp_path / "java.log") as java,
    ):
        for name in ("p", "q"):
            java.begin(name, name)
        for number in range(10):
            for name in ("p", "q"):
                values = [f"{name}{number}.{partition}" for partition in range(4)]
                java("begin", name)
                for partition, value in enumerate(values):
                    java("send", name, "a", partition, value)
                if (number, name) == (4, "q"):
                    two.process.kill()
                java("commit", name)
                committed += values
    log_dir.refresh()
    seen = [value.decode() for value in log_dir.read("a", isolation="read_committed")["value"].to_pylist()]
    assert sorted(seen) == sorted(committed)
