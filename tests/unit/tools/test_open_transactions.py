"""Open transactions of an adopted directory are all named, and the printed command ends each of them."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.adopted_roots import NOW_MS, clock, transactions_with_coordinator
from builders.controlled import adopt_log_dir, open_log_dir
from kafkalog_command import Command
from repository import FIXTURES

from pyspark_kafkalog.errors import CommitConflictError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.messages.codec import MessageSchema
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.transactions.end_transaction import abort_transactional_id
from pyspark_kafkalog.root.transactions.states import TransactionStatus
from pyspark_kafkalog.storage.log.isolation import indexed_transactions
from pyspark_kafkalog.tools import transactions

TOPIC, STATE_TOPIC = "transactions", "__transaction_state"


@pytest.fixture
def foreign(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(transactions, "time_ms", clock)
    return Command("adopt", transactions_with_coordinator(tmp_path), capsys)


@pytest.fixture
def adopted(foreign: Command, capsys: pytest.CaptureFixture[str]) -> Command:
    adopt_log_dir(foreign.root, clock=clock)
    return Command("transactions", foreign.root, capsys)


def states(tool: Command) -> dict[str, str]:
    return {each["transactionalId"]: each["transactionState"] for each in tool.json("list")}


def note(root: Path, name: str, status: TransactionStatus, **fields: Any) -> None:
    """What the coordinator would have written before it was killed."""
    value = MessageSchema.load("TransactionLogValue")
    there: Mapping[str, Any] = {"transactionTimeoutMs": 60_000, "clientTransactionVersion": 2, **fields}
    key = b"\0\0" + MessageSchema.load("TransactionLogKey").encode(0, {"transactionalId": name})
    data = b"\0\1" + value.encode(1, {**there, "transactionStatus": status})
    LogDir.open(root).append(STATE_TOPIC, pa.table({"key": [key], "value": [data]}), partition=0)


def in_both(producer_id: int, epoch: int) -> dict[str, Any]:
    of_topic = {"topic": TOPIC, "partitionIds": (0, 1, 7)}  # 7 is not in this directory
    return {"producerId": producer_id, "producerEpoch": epoch, "transactionPartitions": (of_topic,)}


def run_printed(tool: Command, output: str) -> list[str]:
    """Run the commands as they are printed; returns them."""
    commands = [line.strip() for line in output.splitlines() if line.startswith("    kafkalog transactions ")]
    for command in commands:
        program, name, path, root, *arguments = shlex.split(command)
        assert (program, name, path, root) == ("kafkalog", "transactions", "--path", str(tool.root))
        tool(*arguments)
    return commands


def test_adopt_names_each_open_transaction_with_its_command(foreign: Command) -> None:
    before = {path: path.read_bytes() for path in foreign.root.rglob("*") if path.is_file()}
    dry = foreign("--dry-run")
    assert {path: path.read_bytes() for path in foreign.root.rglob("*") if path.is_file()} == before
    done, again = foreign(), foreign()
    for output in (dry, done, again):
        assert (
            "  transactions-0: a transaction is open since offset 162: producer 0 with epoch 12, transactional id tx-0 "
            "(Ongoing), began 2026-11-21T00:21:01.342Z (" in output
        )
        assert "  transactions-1: a transaction is open since offset 218: producer 1 with epoch 13" in output
        assert f"    kafkalog transactions --path {foreign.root} abort --transactional-id tx-1\n" in output
    assert "after adopting, end them with" in dry
    (tree,) = foreign.json()
    assert tree["openTransactions"][0] == {
        "topic": TOPIC,
        "partition": 0,
        "producerId": 0,
        "producerEpoch": 12,
        "startOffset": 162,
        "startTimestamp": 1795220461342,
        "transactionalId": "tx-0",
        "transactionState": "Ongoing",
        "command": f"kafkalog transactions --path {foreign.root} abort --transactional-id tx-0",
    }


def test_printed_commands_end_all_open_transactions(foreign: Command) -> None:
    output = foreign()
    tool = foreign.other("transactions")
    assert len(run_printed(tool, output)) == 2
    log_dir = LogDir.open(foreign.root)
    for partition in log_dir.topic(TOPIC).partitions:
        assert log_dir.last_stable_offset(TOPIC, partition.partition) == partition.high_watermark
    assert tool("find-hanging").count("\n") == 1
    assert states(tool) == {"rd-tx": "CompleteAbort", "tx-0": "CompleteAbort", "tx-1": "CompleteAbort"} | {
        "tx-2": "CompleteCommit"
    }
    (described,) = tool.json("describe", "--transactional-id", "tx-0")
    assert (described["producerId"], described["producerEpoch"], described["topicPartitions"]) == (0, 13, "")
    assert foreign() == f"{foreign.root} is a native log directory already: nothing to do.\n"


def test_printed_commands_end_transactions_without_coordinator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(FIXTURES / TOPIC, tmp_path / "a root", ignore=shutil.ignore_patterns("expected"))
    adopt = Command("adopt", tmp_path / "a root", capsys)
    output = adopt()
    assert "  transactions-0: a transaction is open since offset 162: producer 0 with epoch 12, began 20" in output
    assert "look for its producer id in their __transaction_state before you abort it" in output
    commands = run_printed(adopt.other("transactions"), output)
    assert commands[0].endswith("/a root' abort --topic transactions --partition 0 --start-offset 162")
    assert len(commands) == 2
    log_dir = LogDir.open(adopt.root)
    assert [log_dir.last_stable_offset(TOPIC, each.partition) for each in log_dir.topic(TOPIC).partitions] == [
        each.high_watermark for each in log_dir.topic(TOPIC).partitions
    ]


def test_find_hanging_without_arguments_lists_whole_root(foreign: Command, capsys: Any) -> None:
    tool = foreign.other("transactions")
    expected = [(0, 0, 162, "tx-0", "Ongoing"), (1, 1, 218, "tx-1", "Ongoing")]

    def listed(*arguments: str) -> list[tuple[Any, ...]]:
        names = ("partition", "producerId", "startOffset", "transactionalId", "transactionState")
        return [tuple(each[name] for name in names) for each in tool.json("find-hanging", *arguments)]

    assert listed() == expected
    assert tool.json("find-hanging", "--topic", TOPIC) == []  # as with Kafka: a coordinator may end them
    adopt_log_dir(foreign.root, clock=clock)
    assert listed() == expected
    header = tool("find-hanging").splitlines()[0].split()
    assert header[-3:] == ["Duration(min)", "TransactionalId", "TransactionState"]
    assert tool("find-hanging", "--topic", TOPIC).splitlines()[0].split() == header[:-2]
    assert len(tool.json("find-hanging", "--topic", TOPIC)) == 2
    assert tool.json("find-hanging", "--max-transaction-timeout", "99999999") == []


def test_young_transaction_is_listed_only_without_arguments(adopted: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (young, _) = adopted.json("find-hanging")
    monkeypatch.setattr(transactions, "time_ms", lambda: young["lastTimestamp"] + 60_000)
    assert adopted.json("find-hanging")[0]["duration(min)"] == 1
    assert adopted.json("find-hanging", "--topic", TOPIC, "--partition", "0") == []
    assert adopted.json("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0") != []


def test_abort_by_offset_ends_all_partitions_of_transaction(adopted: Command) -> None:
    root = LogDir.open(adopted.root)
    root.create_topic("more", partitions=1)
    note(adopted.root, "tx-0", TransactionStatus.ONGOING, **in_both(0, 12))
    note(adopted.root, "tx-1", TransactionStatus.COMPLETE_ABORT, **{**in_both(1, 14), "transactionPartitions": ()})
    out = adopted("abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "162")
    assert out.endswith(
        "Partitions of it that are not in this log directory were left as they are: transactions-7.\n"
        "Transactional id tx-0 is in state CompleteAbort.\n"
    )
    # What producer 1 has in transactions-1 is not of tx-0: it was left hanging, and is ended by its offset.
    (hanging,) = adopted.json("find-hanging")
    assert (hanging["transactionalId"], hanging["startOffset"]) == ("tx-1", 218)
    assert "transactionState" not in hanging
    adopted("abort", "--topic", TOPIC, "--partition", "1", "--start-offset", "218")
    assert adopted.json("find-hanging") == []


def test_prepared_commit_is_rejected_by_abort_and_committed_by_complete(foreign: Command) -> None:
    adopt_log_dir(foreign.root, clock=clock)
    tool = foreign.other("transactions")
    note(foreign.root, "tx-0", TransactionStatus.PREPARE_COMMIT, **in_both(0, 13))
    log_dir = LogDir.open(foreign.root)
    end = log_dir.partition(TOPIC, 0).high_watermark
    version = log_dir.version
    for how in (("--transactional-id", "tx-0"), ("--topic", TOPIC, "--partition", "0", "--start-offset", "162")):
        assert "is in state PrepareCommit: it was committed" in tool.fails("abort", *how)
    assert LogDir.open(foreign.root).version == version
    output = foreign()
    assert "transactional id tx-0 (PrepareCommit)" in output
    assert f"    kafkalog transactions --path {foreign.root} complete --transactional-id tx-0\n" in output
    run_printed(tool, output)
    log_dir.refresh()
    assert log_dir.last_stable_offset(TOPIC, 0) == end + 1
    kept = log_dir.read(TOPIC, partition=0, start_offset=162, isolation="read_committed")["offset"].to_pylist()
    assert kept == [162, 163, 164]
    assert not indexed_transactions(foreign.root / f"{TOPIC}-0", end, end + 1)
    assert (states(tool)["tx-0"], states(tool)["tx-1"]) == ("CompleteCommit", "CompleteAbort")
    assert "has no open transaction: its state is CompleteCommit" in tool.fails(
        "complete", "--transactional-id", "tx-0"
    )


def test_prepared_abort_is_completed_as_abort(adopted: Command) -> None:
    note(adopted.root, "tx-1", TransactionStatus.PREPARE_ABORT, **in_both(1, 14))
    (ended,) = adopted.json("complete", "--transactional-id", "tx-1")
    assert (ended["result"], ended["startOffset"], ended["partition"]) == ("abort", 218, 1)
    assert states(adopted)["tx-1"] == "CompleteAbort"


def test_undecided_transaction_is_not_completed(adopted: Command) -> None:
    assert "is undecided (Ongoing)" in adopted.fails("complete", "--transactional-id", "tx-0")
    assert "'nobody' is not in __transaction_state" in adopted.fails("abort", "--transactional-id", "nobody")
    assert "requires --transactional-id, or --topic" in adopted.fails("abort", "--topic", TOPIC)
    assert "names the transaction" in adopted.fails("abort", "--transactional-id", "tx-0", "--topic", TOPIC)
    assert states(adopted)["tx-0"] == "Ongoing"


def test_prepared_commit_with_exhausted_epoch_continues_with_next_producer_id(adopted: Command) -> None:
    fields = {**in_both(0, 32767), "nextProducerId": 4000, "previousProducerId": 0}
    note(adopted.root, "tx-0", TransactionStatus.PREPARE_COMMIT, **fields)
    adopted("complete", "--transactional-id", "tx-0")
    (described,) = adopted.json("describe", "--transactional-id", "tx-0")
    assert (described["producerId"], described["producerEpoch"]) == (4000, 0)


def test_transaction_without_open_records_is_named_and_ended(foreign: Command) -> None:
    adopt_log_dir(foreign.root, clock=clock)
    note(foreign.root, "idle --one", TransactionStatus.ONGOING, **in_both(900, 0))
    output = foreign()
    assert "  transactional id idle --one: Ongoing, with no open records here\n" in output
    tool = foreign.other("transactions")
    assert len(run_printed(tool, output)) == 3
    assert states(tool)["idle --one"] == "CompleteAbort"


def test_failed_abort_leaves_whole_transaction_open(adopted: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CommitConflictError("somebody was first")

    with monkeypatch.context() as patch:
        patch.setattr(MetadataStore, "make", fail)
        with pytest.raises(CommitConflictError):
            abort_transactional_id(LogDir.open(adopted.root).root.native(), "tx-0")
    assert states(adopted)["tx-0"] == "Ongoing"
    log_dir = open_log_dir(adopted.root, clock=lambda: NOW_MS)
    log_dir.append(TOPIC, pa.table({"value": ["after"]}), partition=0)
    assert log_dir.last_stable_offset(TOPIC, 0) == 162
    assert len(adopted.json("abort", "--transactional-id", "tx-0")) == 1
    assert states(adopted)["tx-0"] == "CompleteAbort"
