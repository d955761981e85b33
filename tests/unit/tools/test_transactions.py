"""`kafkalog transactions` lists and describes transactions like Kafka's tool, and aborts open ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.adopted_roots import clock
from builders.controlled import adopt_log_dir
from kafkalog_command import Command
from repository import FIXTURES

from pyspark_kafkalog.errors import CommitConflictError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.transactions.end_transaction import abort_transaction
from pyspark_kafkalog.storage.log.isolation import indexed_transactions
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools import transactions

TOPIC = "transactions"
OPEN_SINCE = {0: 162, 1: 218}


@pytest.fixture
def adopted(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """A broker's directory with a transaction open in each partition, adopted; its producers have not expired yet."""
    monkeypatch.setattr(transactions, "time_ms", clock)
    shutil.copytree(FIXTURES / TOPIC, tmp_path / "root", ignore=shutil.ignore_patterns("expected"))
    adopt_log_dir(tmp_path / "root", clock=clock)
    return Command("transactions", tmp_path / "root", capsys)


def abort(tool: Command, partition: int, start_offset: int) -> str:
    return tool("abort", "--topic", TOPIC, "--partition", str(partition), "--start-offset", str(start_offset))


def committed_rows(root: Path, partition: int) -> int:
    return LogDir.open(root).read(TOPIC, partition=partition, isolation="read_committed").num_rows


def test_abort_moves_last_stable_offset(adopted: Command) -> None:
    before = LogDir.open(adopted.root)
    assert before.last_stable_offset(TOPIC, 0) == OPEN_SINCE[0]
    end = before.partition(TOPIC, 0).high_watermark
    assert abort(adopted, 0, OPEN_SINCE[0]) == (
        "Aborted the transaction of producer 0 that began at offset 162 of transactions-0: "
        f"marker at offset {end}, last stable offset {end + 1}.\n"
    )
    log_dir = LogDir.open(adopted.root)
    assert (log_dir.last_stable_offset(TOPIC, 0), log_dir.last_stable_offset(TOPIC, 1)) == (end + 1, OPEN_SINCE[1])
    assert next(log_dir.history()).operation == "abort transaction"
    kept = log_dir.read(TOPIC, partition=0, start_offset=OPEN_SINCE[0], isolation="read_committed")
    assert kept["offset"].to_pylist() == [164]  # 162 and 163 are aborted, 165 is the marker
    aborted = indexed_transactions(adopted.root / f"{TOPIC}-0", OPEN_SINCE[0], end + 1)
    assert [(each.first_offset, each.last_offset, each.last_stable_offset) for each in aborted] == [
        (OPEN_SINCE[0], end, end + 1)
    ]


def test_writes_continue_after_abort(adopted: Command) -> None:
    abort(adopted, 0, OPEN_SINCE[0])
    rows = committed_rows(adopted.root, 0)
    log_dir = LogDir.open(adopted.root)
    log_dir.alter_topic(TOPIC, add={"internal.segment.bytes": "200"})
    for value in ("a", "b", "c"):  # rolls: the snapshots must not bring the transaction back
        log_dir.append(TOPIC, pa.table({"value": [value * 100]}), partition=0)
    assert committed_rows(adopted.root, 0) == rows + 3
    assert LogDir.open(adopted.root).last_stable_offset(TOPIC, 0) == log_dir.partition(TOPIC, 0).high_watermark
    assert adopted.json("find-hanging", "--topic", TOPIC, "--partition", "0") == []


def test_abort_without_open_transaction_is_rejected(adopted: Command) -> None:
    def said(partition: str, offset: str) -> str:
        return adopted.fails("abort", "--topic", TOPIC, "--partition", partition, "--start-offset", offset)

    no_such = "Could not find any open transactions starting at offset {} on partition transactions-0"
    assert no_such.format(161) in said("0", "161")
    abort(adopted, 0, OPEN_SINCE[0])
    version = LogDir.open(adopted.root).version
    assert no_such.format(162) in said("0", "162")
    assert "has partitions 0 to 1, not 7" in said("7", "0")
    assert LogDir.open(adopted.root).version == version


def test_failed_abort_leaves_transaction_open(adopted: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    root = LogDir.open(adopted.root).root.native()

    def fail(*_: object, **__: object) -> None:
        raise CommitConflictError("somebody was first")

    with monkeypatch.context() as patch:
        patch.setattr(MetadataStore, "make", fail)
        with pytest.raises(CommitConflictError):
            abort_transaction(root, TopicPartition(TOPIC, 0), OPEN_SINCE[0])
    log_dir = LogDir.open(adopted.root)
    end = log_dir.partition(TOPIC, 0).high_watermark
    assert log_dir.last_stable_offset(TOPIC, 0) == OPEN_SINCE[0]
    log_dir.append(TOPIC, pa.table({"value": ["after"]}), partition=0)
    assert log_dir.read(TOPIC, partition=0, start_offset=end)["value"].to_pylist() == [b"after"]
    assert not indexed_transactions(adopted.root / f"{TOPIC}-0", end, end + 1)
    assert f"last stable offset {end + 2}" in abort(adopted, 0, OPEN_SINCE[0])


def test_describe_producers_matches_kafka_layout(adopted: Command) -> None:
    header, first, *_ = adopted("describe-producers", "--topic", TOPIC, "--partition", "0").splitlines()
    assert header == (
        "ProducerId\tProducerEpoch\tLatestCoordinatorEpoch\tLastSequence\tLastTimestamp\tCurrentTransactionStartOffset\t"
    )
    assert [cell.strip() for cell in first.split("\t")] == ["0", "12", "0", "1", "1700000041434", "162", ""]
    trees = adopted.json("describe-producers", "--topic", TOPIC, "--partition", "0")
    assert [each.get("currentTransactionStartOffset") for each in trees] == [162, None, None, None]


def test_hanging_transactions_are_found(adopted: Command, capsys: pytest.CaptureFixture[str]) -> None:
    found = adopted.json("find-hanging", "--broker-id", "1")
    assert [(each["partition"], each["producerId"], each["startOffset"]) for each in found] == [
        (0, 0, 162),
        (1, 1, 218),
    ]
    assert adopted.json("find-hanging", "--topic", TOPIC, "--max-transaction-timeout", "99999999") == []
    theirs = Command("transactions", FIXTURES / TOPIC, capsys)
    assert len(theirs.json("find-hanging", "--topic", TOPIC)) == 2
    assert "--partition argument requires --topic" in adopted.fails(
        "find-hanging", "--broker-id", "1", "--partition", "0"
    )
    assert "is a Kafka broker's" in theirs.fails("abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "162")


def test_ids_of_writes_and_of_coordinator_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    table = pa.table({"value": ["x"]})
    log_dir.append("t", table, transactional_id="nightly", transaction_version=3)
    log_dir.init_transaction("begun", "run")
    ours = Command("transactions", tmp_path / "root", capsys)
    assert ours("list").splitlines() == [
        "TransactionalId\tCoordinator\tProducerId\tTransactionState\t",
        "begun          \t1          \t1         \tEmpty           \t",
        "nightly        \t1          \t0         \tCompleteCommit  \t",
    ]
    assert [each["transactionalId"] for each in ours.json("list", "--transactional-id-pattern", "n.*")] == ["nightly"]
    assert "`nope`: it is not known" in ours.fails("describe", "--transactional-id", "nope")
    assert "regular expression of RE2" in ours.fails("list", "--transactional-id-pattern", "(")
    assert "regular expression of RE2" in ours.fails("list", "--transactional-id-pattern", "n(?=i).*")
    assert ours.json("list", "--transactional-id-pattern", r"\Qnightl\E|nightl") == []
    (found,) = ours.json("list", "--transactional-id-pattern", r"\Qnight\E\pL+")
    assert found["transactionalId"] == "nightly"

    theirs = Command("transactions", FIXTURES / "transaction-state", capsys)
    states = {each["transactionalId"]: each["transactionState"] for each in theirs.json("list")}
    assert (states["rd-tx"], states["tx-1"]) == ("CompleteAbort", "Ongoing")
    (described,) = theirs.json("describe", "--transactional-id", "tx-1")
    assert (described["producerEpoch"], described["topicPartitions"]) == (13, "transactions-1")
    assert described["transactionDurationMs"] > 0
