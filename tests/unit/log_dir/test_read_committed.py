"""read_committed over transaction indexes that are missing, torn or wrong: the rows are those of a sound log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.server_calls import ReadServer, kept_batches
from repository import FIXTURES
from tiers import rest_full

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.storage.artefacts.transaction_index import TXN_INDEX_ENTRY_BYTES, AbortedTxn
from pyspark_kafkalog.storage.log.isolation import ScannedRanges, ScannedTransactions
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader

FIXTURE = FIXTURES / "transactions"
TOPIC = "transactions"
RANGE_OFFSETS = 23


def _remove(path: Path) -> None:
    path.unlink()


def _tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _drop_first_entry(path: Path) -> None:
    path.write_bytes(path.read_bytes()[TXN_INDEX_ENTRY_BYTES:])


def _change_producers(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[9::TXN_INDEX_ENTRY_BYTES] = bytes(each ^ 0x40 for each in data[9::TXN_INDEX_ENTRY_BYTES])
    path.write_bytes(data)


def _begin_all_at_zero(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), TXN_INDEX_ENTRY_BYTES):
        data[at + 10 : at + 18] = bytes(8)
    path.write_bytes(data)


def _change_versions(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1::TXN_INDEX_ENTRY_BYTES] = b"\x09" * (len(data) // TXN_INDEX_ENTRY_BYTES)
    path.write_bytes(data)


DAMAGES = [_remove, _tear, _empty, _drop_first_entry, _change_producers, _begin_all_at_zero, _change_versions]


def _ranges(log_dir: LogDir) -> list[tuple[int, int, int]]:
    """Partition, start and end of ranges that cut transactions at many places."""
    found = []
    for partition in (0, 1):
        end = log_dir.partition(TOPIC, partition).last_stable_offset
        found += [(partition, start, min(start + RANGE_OFFSETS, end)) for start in range(0, end, 7)]
        found.append((partition, 0, end))
    return found


def _rows(log_dir: LogDir) -> list[list[int]]:
    return [
        log_dir.read(TOPIC, partition=partition, start_offset=start, end_offset=end, isolation="read_committed")
        .column("offset")
        .to_pylist()
        for partition, start, end in _ranges(log_dir)
    ]


def _fetched(log_dir: LogDir) -> list[list[int]]:
    """Base offsets of the data batches that a consumer keeps, of a fetch from each offset (CompletedFetch)."""
    found = []
    with ReadServer(log_dir) as server:
        for partition, start, _ in _ranges(log_dir):
            asked = FetchPartition(partition=partition, fetch_offset=start, partition_max_bytes=2000)
            topic = FetchTopic(topic=TOPIC, partitions=(asked,))
            request = FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=1, topics=(topic,))
            response = server.call(ApiKey.FETCH, 12, request, FetchResponse)
            [answer] = response.responses[0].partitions
            assert answer.error_code == 0
            found.append(kept_batches(answer))
    return found


def _damage_all(broker: Path, damage: Callable[[Path], None]) -> None:
    """Damage the transaction indexes; the logs look as if they had changed, as what scans have found is remembered."""
    for path in broker.glob("*/*.txnindex"):
        damage(path)
    for path in broker.glob("*/*.log"):
        os.utime(path)


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    shutil.copytree(FIXTURE, tmp_path / "broker", ignore=shutil.ignore_patterns("expected"))
    return tmp_path / "broker"


@pytest.mark.parametrize("damage", [DAMAGES[0], *rest_full(DAMAGES[1:])])
@pytest.mark.parametrize("is_adopted", [False, True])
def test_aborted_records_stay_hidden_whatever_the_index_says(
    broker: Path, damage: Callable[[Path], None], is_adopted: bool
) -> None:
    if is_adopted:
        adopt(broker)
    log_dir = LogDir.open(broker)
    expected = _rows(log_dir)
    assert sum(map(len, expected[-1:])) < log_dir.partition(TOPIC, 1).last_stable_offset
    _damage_all(broker, damage)
    assert _rows(LogDir.open(broker)) == expected


@pytest.mark.parametrize("damage", [_remove, _change_producers])
def test_server_names_aborted_transactions_whatever_the_index_says(
    broker: Path, damage: Callable[[Path], None]
) -> None:
    before = _fetched(LogDir.open(broker))
    _damage_all(broker, damage)
    assert _fetched(LogDir.open(broker)) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_jobs_that_copy_a_transaction_index_refuse_a_wrong_one(broker: Path, damage: Callable[[Path], None]) -> None:
    extents = LocalExtents(broker / f"{TOPIC}-1")
    segments = [(each.base_offset, each.end_offset) for each in extents.current() if each.end_offset is not None]
    for base_offset, end_offset in segments:
        extents.check_transaction_index(base_offset, end_offset)
    for path in broker.glob("*/*.txnindex"):
        damage(path)
    assert any(_is_refused(extents, *segment) for segment in segments)


def _is_refused(extents: LocalExtents, base_offset: int, end_offset: int) -> bool:
    try:
        extents.check_transaction_index(base_offset, end_offset)
    except CorruptIndexError:
        return True
    return False


def test_range_of_a_closed_segment_is_scanned_once(broker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[int] = []
    scan = LogReader._scan

    def counted(self: LogReader, scanned: ScannedTransactions, start_offset: int, until: int) -> None:
        scans.append(start_offset)
        scan(self, scanned, start_offset, until)

    monkeypatch.setattr(LogReader, "_scan", counted)
    extents = LocalExtents(broker / f"{TOPIC}-1")
    segments = {each.base_offset: each.end_offset - each.base_offset for each in extents.current() if each.end_offset}
    base_offset = max(segments, key=lambda each: segments[each])
    starts = range(base_offset, base_offset + segments[base_offset] - 5, 5)

    def found() -> list[list[AbortedTxn]]:
        return [list(extents.aborted_transactions(start, start + 5).transactions) for start in starts]

    expected = found()
    assert len(scans) >= len(expected)
    scans.clear()
    assert found() == expected
    assert len(scans) < len(expected)
    log = broker / f"{TOPIC}-1" / f"{base_offset:020d}.log"
    os.utime(log, ns=(1, 1))
    scans.clear()
    assert found() == expected
    assert len(scans) >= len(expected)


def test_ranges_that_are_scanned_one_after_the_other_are_remembered_as_one(tmp_path: Path) -> None:
    for base_offset in (0, 300):
        (tmp_path / f"{base_offset:020d}.log").touch()
    ranges = ScannedRanges()
    segment = ranges.segment_at(tmp_path, [0, 300], 50)
    assert segment is not None
    assert ranges.segment_at(tmp_path, [0, 300], 300) is None
    long, short = AbortedTxn(1, 10, 150, 10), AbortedTxn(2, 110, 140, 10)
    ranges.note(segment, 0, 100, [long])
    ranges.note(segment, 100, 200, [long, short])
    assert ranges.find(tmp_path, 0, 200) == [long, short]
    assert ranges.find(tmp_path, 20, 90) == [long]
    assert ranges.find(tmp_path, 141, 200) == [long]
    assert ranges.find(tmp_path, 150, 201) is None
    (tmp_path / f"{0:020d}.log").write_bytes(b"x")
    assert ranges.find(tmp_path, 0, 200) is None
