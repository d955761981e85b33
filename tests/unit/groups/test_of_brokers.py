"""Groups in a broker's directory have the offsets, transactions and members that Kafka's own tool shows."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from kafkalog_command import Command
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import ReadOnlyLogDirError
from pyspark_kafkalog.groups.offset_records import OffsetAndMetadata, group_key, offset_key, offset_value
from pyspark_kafkalog.metadata.messages.internal_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, TransactionIndex
from pyspark_kafkalog.storage.names import TopicPartition

FIXTURE = FIXTURES / "consumer-offsets"
TOOLS = FIXTURE / "expected/tools"
P0 = TopicPartition("orders", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The fixture, with the 60 records of each partition of orders that were there when Kafka's tool looked."""
    root = tmp_path / "broker"
    shutil.copytree(FIXTURE, root, ignore=shutil.ignore_patterns("expected"))
    orders = LogDir.create(tmp_path / "orders")
    orders.create_topic("orders", partitions=2)
    for number in range(2):
        orders.append("orders", pa.table({"value": ["v"] * 60}), partition=number)
        shutil.copytree(orders.path / f"orders-{number}", root / f"orders-{number}")
    return root


def table_of(text: str) -> list[list[str]]:
    """Lines of a table in order, blanks aside: Kafka's tool prints them in the order of a hash table."""
    return sorted(line.split() for line in text.splitlines() if line.strip() and "active members" not in line)


def test_list_matches_kafka(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = Command("consumer-groups", root, capsys)("--list")
    assert sorted(printed.splitlines()) == sorted((TOOLS / "kafka-consumer-groups-list.txt").read_text().splitlines())


def test_offsets_and_lag_match_kafka(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = (TOOLS / "kafka-consumer-groups-describe.txt").read_text()
    code, out, err = Command("consumer-groups", root, capsys).try_to("--describe", "--all-groups")
    assert code == 0
    assert table_of(out) == table_of(expected)
    assert [line for line in out.splitlines() if line] == [
        line for line in expected.splitlines() if line and "active members" not in line
    ]
    assert err.splitlines() == [
        line
        for name in sorted({"consumer-protocol", "kafka-python", "librdkafka", "manual", "txn"})
        for line in ("", f"Consumer group '{name}-group' has no active members.")
    ]


def test_broker_groups_have_members_and_metadata_and_are_read_only(root: Path) -> None:
    log_dir = LogDir.open(root)
    classic = log_dir.group("classic-group").describe()
    assert (classic.type, classic.state, classic.assignor) == ("Classic", "Stable", "range")
    (member,) = classic.members
    assert (member.instance_id, member.host, member.assignment) == (
        "static-1",
        "/127.0.0.1",
        (P0, TopicPartition("orders", 1)),
    )
    consumer = log_dir.group("consumer-protocol-group").describe()
    assert (consumer.type, consumer.state, consumer.epoch, consumer.members) == ("Consumer", "Empty", 2, ())
    manual = log_dir.group("manual-group")
    assert manual.describe().state == "Empty"
    assert manual.fetch()[TopicPartition("orders", 1)].metadata == "métadonnées 1"
    assert log_dir.group("txn-group").fetch()[P0].metadata == "commit"
    for change in (manual.delete, lambda: manual.commit({P0: 1}), lambda: manual.delete_offsets([P0])):
        with pytest.raises(ReadOnlyLogDirError):
            change()


def test_adopted_groups_have_no_members_and_can_be_deleted(root: Path) -> None:
    for path in root.glob("orders-*"):
        shutil.rmtree(path)
    log_dir = LogDir.adopt(root)
    assert log_dir.groups() == LogDir.open(FIXTURE).groups()
    described = log_dir.group("classic-group").describe()
    assert (described.state, described.members) == ("Empty", ())
    log_dir.group("classic-group").delete()
    assert "classic-group" not in log_dir.groups()


def test_consumer_protocol_group_has_members_and_state_like_kafka(tmp_path: Path) -> None:
    """The log ends while the fixture's group of the consumer protocol has a member."""
    lines = (FIXTURE / "expected/records/__consumer_offsets.read_uncommitted.jsonl").read_text().splitlines()
    records = [
        (base64.b64decode(each["key"]), base64.b64decode(each["value"]))
        for each in map(json.loads, lines)
        if 6 <= each["offset"] <= 12
    ]
    write_log(tmp_path, [batch_of(0, records)])
    group = LogDir.open(tmp_path).group("consumer-protocol-group")
    described = group.describe()
    assert (described.state, described.epoch, described.target_assignment_epoch) == ("Stable", 1, 1)
    (member,) = described.members
    assert (member.epoch, member.is_upgraded, len(member.assignment)) == (1, True, 2)
    assert member.assignment == member.target_assignment
    later = [(group_key(ConsumerGroupMetadataKey(group_id=group.group_id)), bytes([0, 0, 0, 0, 0, 2, 0]))]
    for value, state in (
        (later, "Assigning"),
        ([*later, (target_epoch_key(group.group_id), later[0][1])], "Reconciling"),
    ):
        write_log(tmp_path, [batch_of(0, records), batch_of(7, value)])
        assert LogDir.open(tmp_path).group("consumer-protocol-group").describe().state == state


def target_epoch_key(group: str) -> bytes:
    return group_key(ConsumerGroupTargetAssignmentMetadataKey(group_id=group))


# Transactions that are still open


def batch_of(offset: int, records: Sequence[tuple[bytes, bytes | None]], *, producer_id: int = -1) -> bytes:
    return encode_batch(
        [Record(offset=offset + at, timestamp_ms=1, key=key, value=value) for at, (key, value) in enumerate(records)],
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
        leader_epoch=0,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    control = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    key, value = build_control_record(EndTransactionMarker(control_type=control, coordinator_epoch=0))
    return encode_batch(
        [Record(offset=offset, timestamp_ms=1, key=key, value=value)],
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
        leader_epoch=0,
    )


def write_log(root: Path, batches: Sequence[bytes]) -> None:
    directory = root / "__consumer_offsets-0"
    directory.mkdir(exist_ok=True)
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))


def commit_of(group: str, offset: int) -> tuple[bytes, bytes]:
    return offset_key(group, P0), offset_value(OffsetAndMetadata(offset=offset, commit_timestamp_ms=1))


def offsets(log_dir: LogDir) -> dict[str, int]:
    fetched = {name: log_dir.group(name).fetch() for name in log_dir.groups()}
    return {name: found[P0].offset for name, found in fetched.items() if found}


def test_transactional_offsets_are_seen_once_committed_others_at_once(tmp_path: Path) -> None:
    open_one = [
        batch_of(0, [commit_of("plain", 1), commit_of("gone", 1)]),
        batch_of(2, [commit_of("open", 5)], producer_id=1),
        batch_of(3, [commit_of("plain", 2), (offset_key("gone", P0), None)]),
        batch_of(5, [commit_of("committed", 6), commit_of("overtaken", 6)], producer_id=2),
        batch_of(7, [commit_of("aborted", 7)], producer_id=3),
        batch_of(8, [commit_of("overtaken", 7)]),
        marker(9, 2, commit=True),
        marker(10, 3, commit=False),
    ]
    write_log(tmp_path, open_one)
    log_dir = LogDir.open(tmp_path)
    assert offsets(log_dir) == {"plain": 2, "committed": 6, "overtaken": 7}
    assert "open" in log_dir.groups()
    write_log(tmp_path, [*open_one, marker(11, 1, commit=True), batch_of(12, [commit_of("plain", 3)])])
    with TransactionIndex.open(tmp_path / "__consumer_offsets-0" / f"{0:020d}.txnindex", 0, writable=True) as index:
        index.append(AbortedTxn(producer_id=3, first_offset=7, last_offset=10, last_stable_offset=2))
    log_dir.refresh()
    assert offsets(log_dir) == offsets(LogDir.open(tmp_path)) == {"plain": 3, "open": 5, "committed": 6, "overtaken": 7}


def test_truncated_log_is_reread_from_start(tmp_path: Path) -> None:
    batches = [batch_of(0, [commit_of("a", 1)]), batch_of(1, [commit_of("a", 2), commit_of("b", 2)])]
    write_log(tmp_path, batches)
    log_dir = LogDir.open(tmp_path)
    assert offsets(log_dir) == {"a": 2, "b": 2}
    write_log(tmp_path, batches[:1])
    log_dir.refresh()
    assert offsets(log_dir) == {"a": 1}


def test_unknown_records_are_skipped_with_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_log(tmp_path, [batch_of(0, [commit_of("a", 1), (b"", b""), (b"\0\1\0\5x", b"y"), (b"\x01\x01\0\1z", b"")])])
    log_dir = LogDir.open(tmp_path)
    assert log_dir.groups() == ("a", "z")
    assert log_dir.group("a").fetch()[P0].offset == 1
    assert log_dir.group("z").fetch() == {}
    assert "2 records" in caplog.text
