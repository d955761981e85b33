"""What maintenance of object roots makes of producers and transactions: the same as a broker's log would have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders.controlled import create_log_dir, open_log_dir
from builders.leader_writers import T0, append, batch, mark, marker
from builders.root_places import memory_root

from pyspark_kafkalog.errors import OutOfOrderSequenceError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.export.export import export_to
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.metadata.extents import ProducerBatches
from pyspark_kafkalog.root.commit.changes import CommitUnit, LeaderAppend, UnitResult
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.snapshot import IsolationLevel
from pyspark_kafkalog.storage.names import TopicPartition

NOW_MS = T0 + 60_000
SMALL = {"internal.segment.bytes": "600", "index.interval.bytes": "200"}


def opened(configs: dict[str, str]) -> LogDir:
    log_dir = create_log_dir(memory_root(), clock=lambda: NOW_MS)
    log_dir.create_topic("a", partitions=1, configs=configs)
    return log_dir


@pytest.fixture
def log_dir() -> LogDir:
    return opened(SMALL)


def object_root(log_dir: LogDir) -> ObjectRoot:
    root = log_dir.root.native()
    assert isinstance(root, ObjectRoot)
    return root


def commit(log_dir: LogDir, *appends: LeaderAppend) -> list[UnitResult]:
    """Each append as a unit; none may be refused."""
    root = log_dir.root.native()
    results = root.committer(flush="os").commit([CommitUnit.of(each) for each in appends])
    log_dir.refresh()
    assert all(isinstance(each, tuple) for each in results), results
    return results


def idempotent(value: str, sequence: int, *, producer: int = 7, key: bytes = b"k") -> LeaderAppend:
    return append(batch([value.encode()], producer=(producer, 0, sequence), key=key, at_ms=NOW_MS - 1000))


def transactional(value: str, sequence: int, *, producer: int, key: bytes = b"k") -> LeaderAppend:
    data = batch(
        [value.encode()], producer=(producer, 0, sequence), is_transactional=True, key=key, at_ms=NOW_MS - 1000
    )
    return append(data)


def end(producer: int, *, is_commit: bool) -> LeaderAppend:
    return mark(marker(producer, 0, is_commit=is_commit, at_ms=NOW_MS - 1000))


def values(log_dir: LogDir, isolation: IsolationLevel = "read_committed") -> list[str]:
    log_dir.refresh()
    return [each.decode() for each in log_dir.read("a", isolation=isolation)["value"].to_pylist()]


def some_of_everything(log_dir: LogDir) -> None:
    """Idempotent batches, a committed, an aborted and an open transaction; the aborted one began in a segment."""
    commit(log_dir, idempotent("a", 0), transactional("aborted", 0, producer=8), transactional("kept", 0, producer=9))
    merge_segments(log_dir.root)
    for number in range(1, 8):
        commit(log_dir, idempotent(str(number), number))
    commit(log_dir, end(8, is_commit=False), end(9, is_commit=True), transactional("open", 1, producer=9))
    commit(log_dir, append(batch([b"above"])))


EXPECTED = ["a", "kept", *"1234567"]


def test_merges_keep_producers_that_wrote_long_before(log_dir: LogDir) -> None:
    commit(log_dir, idempotent("old", 0, producer=5))
    for number in range(40):
        commit(log_dir, idempotent(str(number), number))
        if number % 8 == 7:
            merge_segments(log_dir.root)
    (result,) = log_dir.root.native().committer(flush="os").commit([CommitUnit.of(idempotent("gap", 2, producer=5))])
    assert isinstance(result, OutOfOrderSequenceError)
    (again,) = commit(log_dir, idempotent("old", 0, producer=5))
    assert isinstance(again, tuple)
    assert again[0].is_duplicate
    assert verify(log_dir.root).findings == []


def test_export_to_a_directory_keeps_transactions_and_sequences(log_dir: LogDir, tmp_path: Path) -> None:
    some_of_everything(log_dir)
    export_to(object_root(log_dir), tmp_path / "copy")
    copy = open_log_dir(tmp_path / "copy", clock=lambda: NOW_MS)
    assert values(copy) == values(log_dir) == EXPECTED
    assert values(copy, "read_uncommitted") == values(log_dir, "read_uncommitted")
    assert verify(copy.root).is_sound
    writer = copy.root.native().committer(flush="os")
    gap, following, ended = writer.commit(
        [CommitUnit.of(each) for each in (idempotent("x", 9), idempotent("8", 8), end(9, is_commit=True))]
    )
    assert isinstance(gap, OutOfOrderSequenceError)
    assert isinstance(following, tuple)
    assert isinstance(ended, tuple)
    assert values(copy) == [*EXPECTED, "open", "above", "8"]
    writer.close()


def test_export_of_a_log_whose_first_runs_were_deleted_keeps_their_producers(log_dir: LogDir, tmp_path: Path) -> None:
    commit(log_dir, idempotent("a", 0), transactional("t", 0, producer=8))
    commit(log_dir, append(batch([b"later"])))
    delete_records(log_dir.root, {TopicPartition("a", 0): 2})
    export_to(object_root(log_dir), tmp_path / "copy")
    copy = open_log_dir(tmp_path / "copy", clock=lambda: NOW_MS)
    writer = copy.root.native().committer(flush="os")
    gap, following = writer.commit([CommitUnit.of(idempotent("x", 2)), CommitUnit.of(idempotent("b", 1))])
    assert isinstance(gap, OutOfOrderSequenceError)
    assert isinstance(following, tuple)
    writer.close()


def test_cleaner_drops_what_a_marker_in_a_later_run_aborts() -> None:
    log_dir = opened({**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    commit(log_dir, transactional("aborted", 0, producer=8, key=b"x"), idempotent("committed", 0, key=b"y"))
    for number in range(1, 20):
        commit(log_dir, idempotent(str(number), number, key=b"%d" % (number % 4)))
    merge_segments(log_dir.root)
    assert len(object_root(log_dir).store.refresh().partition("a", 0).segments) > 2
    commit(log_dir, end(8, is_commit=False))
    before = values(log_dir)
    assert before[0] == "committed"
    report = clean_partition(log_dir.root, "a", 0, now_ms=NOW_MS, force=True)
    assert (report.error, report.skipped) == (None, None)
    after = values(log_dir)
    assert set(after) < set(before)
    assert "committed" in after
    assert "aborted" not in values(log_dir, "read_uncommitted")
    assert [each for each in after if each in ("16", "17", "18", "19")] == ["16", "17", "18", "19"]


def test_verify_compares_the_rows_of_commits_with_the_batches(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    some_of_everything(log_dir)
    assert verify(log_dir.root, are_records_checked=True).findings == []
    of = ObjectLog.of

    def with_another_sequence(image: object, topic_partition: TopicPartition) -> ObjectLog:
        log = of(image, topic_partition)  # type: ignore[arg-type]
        rows = log.producer_batches.table.copy()
        rows["base_sequence"][1] += 1
        return replace(log, producer_batches=ProducerBatches(rows))

    monkeypatch.setattr(ObjectLog, "of", staticmethod(with_another_sequence))
    (finding,) = verify(log_dir.root).findings
    assert (finding.what, "from sequence 2" in finding.expected, "from sequence 3" in finding.found) == (
        "producer-batch", True, True,
    )  # fmt: skip
