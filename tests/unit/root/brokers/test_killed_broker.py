"""In a killed broker's directory, reads warn of records above the high watermark and reach them on request."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from builders.broker_disks import broker_lock, cut_transaction_index, killed

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.storage.artefacts.marker_files import CLEAN_SHUTDOWN_FILE

__all__ = ["killed"]

LOG = "00000000000000000000.log"


def values(table: pa.Table) -> list[str]:
    return [value.decode() for value in table.column("value").to_pylist()]


def ends(root: Path, topic: str, partition: int = 0, *, read_to_log_end: bool) -> tuple[int, int]:
    """High watermark and last stable offset."""
    log_dir = LogDir.open(root, read_to_log_end=read_to_log_end)
    return log_dir.partition(topic, partition).high_watermark, log_dir.last_stable_offset(topic, partition)


def test_read_ends_at_high_watermark_and_warns_of_offsets_above(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert LogDir.open(killed).read("orders").num_rows == 50
    assert len(caplog.messages) == 1
    assert "40 offsets in 1 partition" in caplog.text
    assert "orders-0: 40" in caplog.text
    assert "not stopped cleanly" in caplog.text
    assert "readToLogEnd" in caplog.text


def test_read_below_high_watermark_logs_no_warning(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert LogDir.open(killed).read("orders", partition=0, end_offset=20).num_rows == 20
    assert LogDir.open(killed).read("orders", partition=1).num_rows == 30
    assert caplog.messages == []


def test_read_to_log_end_returns_every_whole_batch(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    log_dir = LogDir.open(killed, read_to_log_end=True)
    table = log_dir.read("orders", partition=0)
    assert values(table) == [f"orders {number}" for number in range(60)]
    assert log_dir["orders", 0][-1]["offset"] == 59
    assert caplog.messages == []


def test_read_committed_to_log_end_omits_aborted_and_ends_at_open_transaction(killed: Path) -> None:
    log_dir = LogDir.open(killed, read_to_log_end=True)
    committed = values(log_dir.read("paid", isolation="read_committed"))
    assert committed[10:] == [f"committed {number}" for number in range(5)]
    assert values(log_dir.read("paid"))[-7:] == [f"aborted {n}" for n in range(4)] + [f"open {n}" for n in range(3)]
    assert ends(killed, "paid", read_to_log_end=True) == (24, 21)
    assert ends(killed, "paid", read_to_log_end=False) == (10, 10)


def test_abort_marker_without_index_entry_aborts_its_records(killed: Path) -> None:
    cut_transaction_index(killed)
    assert ends(killed, "paid", read_to_log_end=True) == (24, 21)
    table = LogDir.open(killed, read_to_log_end=True).read("paid", isolation="read_committed")
    assert values(table)[-1] == "committed 4"


def test_aborted_records_above_snapshot_inside_segment_are_omitted(killed: Path) -> None:
    """A broker that stops cleanly writes a producer snapshot at its log end and continues in the same segment."""
    (killed / "paid-0" / "00000000000000000010.snapshot").write_bytes(bytes.fromhex("0001 48674bc7 00000000"))
    log_dir = LogDir.open(killed, read_to_log_end=True)
    for start_offset in (10, 12, 16):
        found = values(log_dir.read("paid", partition=0, start_offset=start_offset, isolation="read_committed"))
        assert [value for value in found if value.startswith("aborted")] == []
    assert ends(killed, "paid", read_to_log_end=True) == (24, 21)


@pytest.mark.parametrize(("flipped_at", "end_offset"), [(-3, 50), (600, 20)])
def test_log_end_is_before_first_damaged_batch(killed: Path, flipped_at: int, end_offset: int) -> None:
    path = killed / "orders-0" / LOG
    data = bytearray(path.read_bytes())
    data[flipped_at] ^= 0xFF
    path.write_bytes(data)
    log_dir = LogDir.open(killed, read_to_log_end=True)
    assert log_dir.partition("orders", 0).high_watermark == end_offset
    assert log_dir.read("orders", partition=0).num_rows == end_offset


@pytest.mark.parametrize(("flipped_at", "end_offset"), [(-3, 50), (600, 20)])
def test_partition_without_a_high_watermark_is_read_to_its_last_valid_batch(
    killed: Path, flipped_at: int, end_offset: int
) -> None:
    checkpoint = killed / "replication-offset-checkpoint"
    lines = [line for line in checkpoint.read_text().splitlines()[2:] if not line.startswith("orders 0 ")]
    checkpoint.write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    path = killed / "orders-0" / LOG
    data = bytearray(path.read_bytes())
    data[flipped_at] ^= 0xFF
    path.write_bytes(data + bytes(200))
    log_dir = LogDir.open(killed)
    assert log_dir.read("orders", partition=0).num_rows == end_offset
    assert log_dir.read("orders", partition=1).num_rows == 30


def test_torn_batch_is_not_part_of_log(killed: Path) -> None:
    path = killed / "orders-0" / LOG
    path.write_bytes(path.read_bytes()[:-5])
    assert ends(killed, "orders", read_to_log_end=True) == (50, 50)
    assert LogDir.open(killed).partition("orders", 0).log_end_offset == 50


def test_group_offsets_above_high_watermark_are_read_with_read_to_log_end(killed: Path) -> None:
    committed = [
        {str(where): found.offset for where, found in log_dir.group("billing").fetch().items()}
        for log_dir in (LogDir.open(killed), LogDir.open(killed, read_to_log_end=True))
    ]
    assert committed == [{"orders-0": 10, "orders-1": 10}, {"orders-0": 42, "orders-1": 30}]


def test_warning_distinguishes_running_broker_from_killed_one(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    with broker_lock(killed):
        LogDir.open(killed).read("orders")
    assert "a broker is running there" in caplog.text
    caplog.clear()
    LogDir.open(killed).read("orders")
    assert "not stopped cleanly" in caplog.text


def test_warning_distinguishes_clean_stop_from_kill(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A follower may stop before the other replicas have all of its records."""
    (killed / CLEAN_SHUTDOWN_FILE).touch()
    LogDir.open(killed).read("orders")
    assert "the broker was stopped cleanly before all in-sync replicas had them" in caplog.text


def test_read_to_log_end_on_own_root_warns_of_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    LogDir.create(tmp_path / "log").append("t", pa.table({"value": ["a"]}))
    with caplog.at_level(logging.WARNING):
        log_dir = LogDir.open(tmp_path / "log", read_to_log_end=True)
    assert "has no effect" in caplog.text
    assert values(log_dir.read("t")) == ["a"]
    assert log_dir.partition("t", 0).offsets_above_high_watermark == 0


def test_start_beyond_last_stable_offset_names_open_transaction(killed: Path) -> None:
    log_dir = LogDir.open(killed, read_to_log_end=True)
    with pytest.raises(
        OffsetOutOfRangeError, match=r"offset 22 of paid-0 .* producer 0 has a transaction open since .*21"
    ):
        log_dir.read("paid", partition=0, start_offset=22, isolation="read_committed")


def test_last_stable_offset_follows_growing_and_truncated_log(killed: Path) -> None:
    """Each refresh updates the producers' state, and reads it again for a truncated log."""
    checkpoint = killed / "replication-offset-checkpoint"
    text = checkpoint.read_text()
    log_dir = LogDir.open(killed)
    found = []
    for high_watermark in (10, 15, 16, 20, 21, 24, 15):
        checkpoint.write_text(text.replace("paid 0 10", f"paid 0 {high_watermark}"))
        log_dir.refresh()
        found.append(log_dir.last_stable_offset("paid", 0))
    assert found == [10, 10, 16, 16, 21, 21, 10]
