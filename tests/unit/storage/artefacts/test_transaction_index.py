"""Transaction index: aborted transactions of an offset range, truncation, and damage reported as corrupt."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, TransactionIndex

_BASE = 100
_TXNS = (AbortedTxn(1, 100, 110, 105), AbortedTxn(2, 90, 120, 121), AbortedTxn(1, 112, 140, 130))


def _write(path: Path, *txns: AbortedTxn) -> None:
    with TransactionIndex.open(path, _BASE, writable=True) as index:
        for txn in txns:
            index.append(txn)


def test_file_is_created_at_first_aborted_transaction(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    with TransactionIndex.open(path, _BASE, writable=True) as index:
        assert list(index) == []
        index.truncate_to(0)
        index.reset()
        index.flush()
        index.sanity_check()
        assert not path.exists()
        index.append(_TXNS[0])
    assert path.read_bytes() == struct.pack(">hqqqq", 0, 1, 100, 110, 105)


def test_absent_file_reads_as_no_aborted_transactions(tmp_path: Path) -> None:
    with TransactionIndex.open(tmp_path / "0.txnindex", _BASE) as index:
        assert index.collect_aborted(0, 1000) == ([], False)


@pytest.mark.parametrize(
    ("start_offset", "end_offset", "expected", "is_complete"),
    [
        (0, 1000, _TXNS, False),
        (111, 1000, _TXNS[1:], False),
        (121, 1000, _TXNS[2:], False),
        (141, 1000, (), False),
        (110, 121, _TXNS[:2], True),
        (0, 100, _TXNS[:0], True),
        (0, 105, _TXNS[:1], True),
        (0, 106, _TXNS[:2], True),
        (0, 130, _TXNS, True),
    ],
)
def test_range_returns_its_aborted_transactions_and_whether_they_are_complete(
    tmp_path: Path, start_offset: int, end_offset: int, expected: tuple[AbortedTxn, ...], is_complete: bool
) -> None:
    _write(tmp_path / "0.txnindex", *_TXNS)
    with TransactionIndex.open(tmp_path / "0.txnindex", _BASE) as index:
        found = index.collect_aborted(start_offset, end_offset)
    assert (tuple(found.transactions), found.is_complete) == (expected, is_complete)


@pytest.mark.parametrize(("offset", "kept"), [(141, 3), (140, 2), (121, 2), (120, 1), (0, 0)])
def test_truncation_drops_entries_from_first_marker_at_or_above_offset(tmp_path: Path, offset: int, kept: int) -> None:
    path = tmp_path / "0.txnindex"
    _write(path, *_TXNS)
    with TransactionIndex.open(path, _BASE, writable=True) as index:
        index.truncate_to(offset)
        assert tuple(index) == _TXNS[:kept]
        index.append(AbortedTxn(9, 200, 210, 200))
    assert path.stat().st_size == 34 * (kept + 1)


def test_marker_not_above_the_last_is_refused_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    _write(path, *_TXNS)
    with TransactionIndex.open(path, _BASE, writable=True) as index:
        with pytest.raises(CorruptIndexError, match="marker below offset 140"):
            index.append(AbortedTxn(3, 1, 140, 1))
        index.reset()
        index.append(AbortedTxn(3, 1, 140, 1))
        assert index.entries == 1


@pytest.mark.parametrize("cut_bytes", [1, 17, 33])
def test_torn_last_entry_is_skipped_and_overwritten(tmp_path: Path, cut_bytes: int) -> None:
    path = tmp_path / "0.txnindex"
    _write(path, *_TXNS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut_bytes])
    with TransactionIndex.open(path, _BASE, writable=True) as index:
        assert tuple(index) == _TXNS[:2]
        index.sanity_check()
        index.append(_TXNS[2])
    assert path.read_bytes() == whole


def test_marker_below_base_offset_is_reported_as_corrupt(tmp_path: Path) -> None:
    _write(tmp_path / "0.txnindex", AbortedTxn(1, 10, 99, 10))
    with TransactionIndex.open(tmp_path / "0.txnindex", _BASE) as index, pytest.raises(CorruptIndexError, match="99"):
        index.sanity_check()


@pytest.mark.parametrize("version", [1, -1, 256])
def test_other_entry_version_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(_TXNS[0].pack() + struct.pack(">h", version) + _TXNS[1].pack()[2:])
    with TransactionIndex.open(path, _BASE) as index:
        with pytest.raises(CorruptIndexError, match=r"0\.txnindex at byte 34: expected entry version 0") as caught:
            list(index)
        assert caught.value.found == str(version)


def test_entries_beyond_one_read_are_returned_in_order(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(b"".join(AbortedTxn(1, number, number, number).pack() for number in range(100, 10_000)))
    with TransactionIndex.open(path, _BASE) as index:
        assert [txn.last_offset for txn in index] == list(range(100, 10_000))


def test_file_shortened_during_read_returns_whole_entries_left(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    _write(path, *_TXNS)
    with TransactionIndex.open(path, _BASE) as index:
        path.write_bytes(path.read_bytes()[:40])
        assert tuple(index) == _TXNS[:1]
