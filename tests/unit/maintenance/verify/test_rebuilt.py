"""Verification of transactions that began below the log start, after the producers' state was rebuilt from the log.

What lies below the log start is not read then (UnifiedLog.rebuildProducerState): to that writer, a transaction begins
with its first batch that reaches the log start, and one without such a batch is not open.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.leader_writers import Served, append, batch, mark, marker
from builders.verify_roots import findings_in

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.root.commit.changes import AppendedRange
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, parse_aborted
from pyspark_kafkalog.storage.names import TXN_INDEX_SUFFIX, TopicPartition, segment_file

OTHER, ABORTED = 7, 8
LARGE = b"x" * 350


pytestmark = pytest.mark.usefixtures("without_waits")


def with_open_transactions(path: Path, *producer_ids: int, value: bytes = b"v") -> Served:
    """A partition with a batch of a transaction at each offset; with large values two in a segment."""
    LogDir.create(path)
    served = Served(path)
    served.log_dir.create_topic("a", partitions=1, configs={"internal.segment.bytes": "1000"})
    for at, producer_id in enumerate(producer_ids):
        sequence = producer_ids[:at].count(producer_id)
        data = batch([value], producer=(producer_id, 0, sequence), is_transactional=True)
        assert isinstance(served.append(append(data)), AppendedRange)
    return served


def rebuilt(served: Served, log_start_offset: int) -> Served:
    """The root as a new process has it, with the log start moved and no producer snapshot left."""
    delete_records(served.root, {TopicPartition("a", 0): log_start_offset})
    apply_retention(served.root)
    served.writer.close()
    for path in (served.log_dir.path / "a-0").glob("*.snapshot"):
        path.unlink()
    return Served(served.log_dir.path)


def abort(served: Served, producer_id: int = ABORTED) -> None:
    assert isinstance(served.append(mark(marker(producer_id, 0, is_commit=False))), AppendedRange)


def txn_index(served: Served) -> Path:
    """The transaction index of the active segment."""
    return segment_file(served.log_dir.path / "a-0", served.state().active_base_offset, TXN_INDEX_SUFFIX)


def entries(served: Served) -> list[AbortedTxn]:
    path = txn_index(served)
    return parse_aborted(path.read_bytes(), file=str(path)) if path.exists() else []


def findings(served: Served) -> list[str]:
    """What is found, without the snapshots that the test has removed."""
    return [each.what for each in findings_in(served.log_dir.path) if each.what != "producer-snapshot-missing"]


def test_transaction_that_began_below_the_log_start_has_no_finding(tmp_path: Path) -> None:
    served = rebuilt(with_open_transactions(tmp_path / "log", ABORTED, ABORTED, ABORTED), 1)
    abort(served)
    assert entries(served) == [AbortedTxn(ABORTED, 1, 3, 4)]
    assert findings(served) == []
    assert served.values(isolation="read_committed") == []


def test_transaction_that_began_in_a_removed_segment_has_no_finding(tmp_path: Path) -> None:
    served = rebuilt(with_open_transactions(tmp_path / "log", *[ABORTED] * 4, value=LARGE), 3)
    assert sorted(each.stem for each in (served.log_dir.path / "a-0").glob("*.log")) == ["0" * 19 + "2"]
    abort(served)
    assert entries(served) == [AbortedTxn(ABORTED, 3, 4, 5)]
    assert findings(served) == []


def test_transaction_that_began_in_the_segment_before_has_no_finding(tmp_path: Path) -> None:
    served = rebuilt(with_open_transactions(tmp_path / "log", *[ABORTED] * 4, value=LARGE), 1)
    abort(served)
    assert entries(served) == [AbortedTxn(ABORTED, 1, 4, 5)]
    assert findings(served) == []


def test_transaction_wholly_below_the_log_start_needs_no_entry(tmp_path: Path) -> None:
    served = rebuilt(with_open_transactions(tmp_path / "log", ABORTED, OTHER), 1)
    abort(served)
    assert entries(served) == []
    assert findings(served) == []


def test_last_stable_offset_that_leaves_out_a_transaction_below_the_log_start_has_no_finding(tmp_path: Path) -> None:
    served = rebuilt(with_open_transactions(tmp_path / "log", OTHER, ABORTED), 1)
    abort(served)
    assert entries(served) == [AbortedTxn(ABORTED, 1, 2, 3)]
    assert findings(served) == []


def test_entry_of_a_writer_that_knew_the_beginning_has_no_finding(tmp_path: Path) -> None:
    served = with_open_transactions(tmp_path / "log", OTHER, ABORTED, ABORTED)
    abort(served)
    assert entries(served) == [AbortedTxn(ABORTED, 1, 3, 0)]
    delete_records(served.root, {TopicPartition("a", 0): 2})
    assert findings(served) == []


@pytest.mark.parametrize(
    "wrong",
    [
        AbortedTxn(ABORTED, 3, 4, 0),  # read_committed would return the record at offset 2
        AbortedTxn(ABORTED, 0, 4, 0),  # before the transaction's first batch
        AbortedTxn(ABORTED, 2, 4, 6),  # past the marker
    ],
)
def test_entry_that_no_writer_can_have_made_is_found(tmp_path: Path, wrong: AbortedTxn) -> None:
    served = with_open_transactions(tmp_path / "log", OTHER, ABORTED, ABORTED, ABORTED)
    abort(served)
    delete_records(served.root, {TopicPartition("a", 0): 2})
    txn_index(served).write_bytes(wrong.pack())
    assert findings(served) == ["txn-index-entry"]


def test_lost_entry_of_a_transaction_that_reaches_the_log_start_is_found(tmp_path: Path) -> None:
    served = rebuilt(with_open_transactions(tmp_path / "log", ABORTED, ABORTED), 1)
    abort(served)
    txn_index(served).unlink()
    assert findings(served) == ["txn-index-missing"]
