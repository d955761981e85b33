"""Jobs on object roots whose transaction indexes are wrong, torn or missing: the markers of the log decide.

The cleaner ends before it changes anything, verify finds the index, and reindex rebuilds it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders.controlled import create_log_dir
from builders.leader_writers import Served, append, batch, mark, marker
from builders.object_roots import imported
from builders.root_places import store_of
from builders.tiered_logs import SMALL_SEGMENTS, T0, fill

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.reindex import reindex
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, parse_aborted
from pyspark_kafkalog.tiered import objects as remote_objects
from pyspark_kafkalog.tiered import remote_log
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.own_segments import OwnLayout, index_place
from pyspark_kafkalog.tiered.segments import TopicIdPartition

NOW_MS = T0 + 86_400_000
Damage = Callable[[list[AbortedTxn]], list[AbortedTxn]]
Row = tuple[int, bytes, bytes | None]

#: What an index says in place of what is right, with as many entries.
DAMAGES: dict[str, Damage] = {
    "other producers": lambda found: [replace(each, producer_id=each.producer_id + 64) for each in found],
    "from the first offset": lambda found: [replace(each, first_offset=0) for each in found],
    "from the marker": lambda found: [replace(each, first_offset=each.last_offset) for each in found],
    "up to the last offset": lambda found: [replace(each, first_offset=0, last_offset=1 << 40) for each in found],
    "other markers": lambda found: [replace(each, last_offset=each.last_offset + 1) for each in found],
}


def _without(found: list[AbortedTxn]) -> list[AbortedTxn]:
    return []


def _with_others(found: list[AbortedTxn]) -> list[AbortedTxn]:
    """Also transactions of all producers, with markers at the same offsets."""
    return [*found, *(replace(each, producer_id=number, first_offset=0) for each in found for number in (1, 2, 3))]


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    """Segments with transactions of three producers, some of which markers in runs behind them end."""
    files = create_log_dir(tmp_path / "files", clock=lambda: T0)
    configs = {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    files.create_topic("orders", partitions=1, configs=configs)
    fill(files, random.Random(5), 90, ends_all=False, rolls=True)
    log_dir = imported(files, "orders", clock=lambda: NOW_MS)
    served = Served(str(log_dir.path), now_ms=NOW_MS)
    for producer_id in (1, 2, 3):
        append_anew(served, producer_id, is_commit=producer_id == 2)
    return log_dir


def append_anew(served: Served, producer_id: int, *, is_commit: bool) -> None:
    """The end of the producer's open transaction, and a transaction of its next epoch."""
    assert not isinstance(served.append(mark(marker(producer_id, 0, is_commit=is_commit), "orders")), Exception)
    data = batch((b"late",) * 3, key=b"key 1", producer=(producer_id, 1, 0), is_transactional=True)
    assert not isinstance(served.append(append(data, "orders")), Exception)
    assert not isinstance(served.append(mark(marker(producer_id, 1, is_commit=not is_commit), "orders")), Exception)


def rows(log_dir: LogDir, *, isolation: str = "read_committed") -> list[Row]:
    log_dir.refresh()
    table = log_dir.read("orders", columns=["offset", "key", "value"], isolation=isolation)
    return list(zip(*(table[name].to_pylist() for name in ("offset", "key", "value")), strict=True))


def latest(found: list[Row]) -> dict[bytes, Row]:
    return {each[1]: each for each in found if each[2] is not None}


def object_root(log_dir: LogDir) -> ObjectRoot:
    root = log_dir.root.native()
    assert isinstance(root, ObjectRoot)
    root.refresh()
    return root


def change_all(patch: pytest.MonkeyPatch, damage: Damage, *, until: int = 1 << 62) -> None:
    """Let the indexes of segments below `until` say something else."""

    def changed(data: bytes, *, file: str, offsets: range) -> list[AbortedTxn]:
        found = parse_aborted(data, file=file, offsets=offsets)
        found = damage(found) if offsets.stop <= until else found
        return parse_aborted(b"".join(each.pack() for each in found), file=file, offsets=offsets)

    patch.setattr(remote_log, "parse_aborted", changed)


def clean(log_dir: LogDir) -> PartitionReport:
    return clean_partition(log_dir.root, "orders", 0, now_ms=NOW_MS, force=True)


def check_cleaned(log_dir: LogDir, committed: list[Row]) -> None:
    """Nothing but what was committed is left, and of each key the latest record."""
    left = rows(log_dir, isolation="read_uncommitted")
    end = object_root(log_dir).store.image.partition("orders", 0).segments[-1].base_offset
    assert {each for each in left if each[0] < end} <= set(committed)
    assert latest(rows(log_dir)) == latest(committed)


@pytest.mark.parametrize("damage", [*DAMAGES.values(), _without, _with_others])
def test_cleaning_by_a_wrong_index_ends_before_it_changes_anything(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    committed, everything = rows(log_dir), rows(log_dir, isolation="read_uncommitted")
    with monkeypatch.context() as wrong:
        change_all(wrong, damage)
        report = clean(log_dir)
    assert "run kafkalog reindex" in (report.error or "")
    assert rows(log_dir, isolation="read_uncommitted") == everything
    assert (clean(log_dir).error, clean(log_dir).error) == (None, None)
    check_cleaned(log_dir, committed)


@pytest.mark.parametrize("damage", [*DAMAGES.values(), _without, _with_others])
def test_a_wrong_index_of_cleaned_segments_removes_nothing(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    assert clean(log_dir).error is None
    served = Served(str(log_dir.path), now_ms=NOW_MS)
    for number in range(8):
        data = batch((b"more %d" % number,) * 4, key=b"key 4")
        assert not isinstance(served.append(append(data, "orders")), Exception)
    merge_segments(log_dir.root)
    committed = rows(log_dir)
    end = [
        each.end_offset for each in object_root(log_dir).store.image.partition("orders", 0).segments if each.is_cleaned
    ]
    with monkeypatch.context() as wrong:
        change_all(wrong, damage, until=end[-1])
        clean(log_dir)
    assert latest(rows(log_dir)) == latest(committed)
    assert set(rows(log_dir)) <= set(committed)


def place_of(log_dir: LogDir, segment: SegmentObject) -> tuple[str, int, int]:
    image = object_root(log_dir).store.image
    of = TopicIdPartition("orders", image.topic("orders").topic_id, 0)
    key, place = index_place(of, segment, IndexKind.TRANSACTION, OwnLayout.AIVEN)
    assert place is not None
    return key, place.start, place.size_bytes


def damage_all(log_dir: LogDir, damage: Damage) -> int:
    """Change the transaction indexes in the bucket; how many there are."""
    bucket = store_of(str(log_dir.path)).bucket
    segments = object_root(log_dir).store.image.partition("orders", 0).segments
    wanted = [each for each in segments if each.transaction_index_bytes]
    for each in wanted:
        key, start, size_bytes = place_of(log_dir, each)
        body = bucket.body(key)
        found = parse_aborted(body[start : start + size_bytes], file="index")
        changed = b"".join(entry.pack() for entry in damage(found))
        bucket.write(key, body[:start] + changed + body[start + size_bytes :])
    remote_objects._cache.cache_clear()
    return len(wanted)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_wrong_index_is_found_by_verify_and_rebuilt_by_reindex(log_dir: LogDir, name: str) -> None:
    committed = rows(log_dir)
    assert [each for each in verify(log_dir.root).findings if each.severity.value != "info"] == []
    assert damage_all(log_dir, DAMAGES[name]) > 3
    found = {each.what for each in verify(log_dir.root).findings if each.severity.value == "error"}
    assert found == {"transaction-index"}
    [tried] = reindex(log_dir.root, topics=["orders"], dry_run=True)
    [report] = reindex(log_dir.root, topics=["orders"])
    assert (report.error, report.files_written) == (None, tried.files_written)
    assert [each for each in verify(log_dir.root).findings if each.severity.value != "info"] == []
    assert rows(log_dir) == committed
    assert clean(log_dir).error is None
    check_cleaned(log_dir, committed)


@pytest.mark.parametrize("is_missing", [False, True], ids=["torn", "missing"])
def test_cleaning_without_an_index_ends_and_goes_on_after_reindex(log_dir: LogDir, is_missing: bool) -> None:
    committed, everything = rows(log_dir), rows(log_dir, isolation="read_uncommitted")
    bucket = store_of(str(log_dir.path)).bucket
    for each in object_root(log_dir).store.image.partition("orders", 0).segments:
        if not each.transaction_index_bytes:
            continue
        key, start, size_bytes = place_of(log_dir, each)
        body = bucket.body(key)
        if is_missing:
            del bucket.objects[key]
        else:
            bucket.write(key, body[: start + 1] + bytes(size_bytes - 1) + body[start + size_bytes :])
    remote_objects._cache.cache_clear()
    assert clean(log_dir).error is not None
    assert rows(log_dir, isolation="read_uncommitted") == everything
    assert rows(log_dir) == committed
    [report] = reindex(log_dir.root, topics=["orders"])
    assert report.error is None
    assert clean(log_dir).error is None
    check_cleaned(log_dir, committed)
