"""Facts that the report states of a root, compared with the operations that made it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders.controlled import create_log_dir
from builders.report_roots import HOUR_MS, NOW_MS, lively_root, records
from builders.tiered_roots import TOPIC, append_rounds, tiered_root
from fakes.clock import Clock
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.cleaner.run_record import store_marks
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.report import gather as gathering
from pyspark_kafkalog.report.facts import RootFacts, TopicFacts
from pyspark_kafkalog.report.gather import GatherOptions, gather
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, segment_file


def look(log_dir: LogDir, *, now_ms: int = NOW_MS, sample_bytes: int = 64 << 20) -> RootFacts:
    log_dir.refresh()
    return gather(log_dir.root, GatherOptions(sample_bytes=sample_bytes), clock=lambda: now_ms)


def topic_of(root: RootFacts, name: str) -> TopicFacts:
    return next(each for each in root.topics if each.name == name)


def titles(root: RootFacts, topic: str | None = None) -> list[str]:
    return [each.title for each in root.findings if topic is None or each.topic == topic]


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    return lively_root(tmp_path_factory.mktemp("lively") / "root")


def test_offsets_sizes_and_times_are_those_of_log(lively: LogDir) -> None:
    orders = topic_of(look(lively), "orders")

    for facts in orders.partitions:
        found = lively.partition("orders", facts.topic_partition.partition)
        assert (facts.log_start_offset, facts.high_watermark) == (found.log_start_offset, found.high_watermark)
        files = [each.stat().st_size for each in found.directory.glob("*.log")]
        assert (facts.segments, facts.size_bytes) == (len(files), sum(files))
        times = [each.as_py().timestamp() * 1000 for each in lively.read("orders", partition=0)["timestamp"]]
        if facts.topic_partition.partition == 0:
            assert (facts.first_ms, facts.last_ms) == (min(times), max(times))
    assert sum(count for each in orders.partitions for count, _ in each.size_bins.values()) == sum(
        each.segments for each in orders.partitions
    )


def test_segment_run_covers_timestamps_of_its_records(lively: LogDir) -> None:
    facts = topic_of(look(lively), "orders").partitions[0]
    ends = [*(each.base_offset for each in facts.runs[1:]), facts.high_watermark]

    for run, end in zip(facts.runs, ends, strict=True):
        table = lively.read("orders", partition=0, start_offset=run.base_offset, end_offset=end)
        times = [each.as_py().timestamp() * 1000 for each in table["timestamp"]]
        assert (run.first_ms, run.last_ms) == (times[0], max(times))


def test_write_history_adds_up_to_written_records(lively: LogDir) -> None:
    history = look(lively).history

    assert history is not None
    assert history.series is not None
    written = dict(zip(history.series.topics, map(sum, history.series.records), strict=True))
    assert (written["orders"], written["customers"]) == (12 * 410, 12 * 400)
    assert sum(history.series.commits) == history.commits_read
    assert history.is_whole
    nightly = [each for each in history.newest if each.transactional_id == "nightly"]
    assert [each.version for each in nightly] == list(range(44, -1, -4))


def test_lag_is_that_of_groups(lively: LogDir) -> None:
    lags = {each.topic_partition.partition: (each.committed_offset, each.lag) for each in look(lively).groups}

    assert lags == {
        0: (5, lively.partition("orders", 0).high_watermark - 5),
        1: (50, lively.partition("orders", 1).high_watermark - 50),
    }


def test_largest_keys_are_found(lively: LogDir) -> None:
    (sample,) = [each for each in look(lively).keys if each.topic == "customers"]

    assert sample.records == 12 * 400
    assert sample.partitions == 2
    assert (sample.by_records[0].key, sample.by_records[0].records) == (b"key-0", 12 * 200)
    assert sample.by_bytes[0].bytes == 12 * 200 * (len("key-0") + 100)
    assert sample.distinct_keys == 11
    assert sample.error_records == 0


def test_sample_is_bounded_and_of_newest_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = LogDir.create(tmp_path)
    log_dir.create_topic("big", partitions=1)
    for key in (b"old", b"new"):
        table = records(2000, start_ms=NOW_MS - HOUR_MS, end_ms=NOW_MS, value_bytes=1000)
        log_dir.append("big", table.set_column(0, "key", [[key] * 2000]), flush="os")
    monkeypatch.setattr(gathering, "_SAMPLE_SLICE_BYTES", 1 << 18)

    (sample,) = look(log_dir, sample_bytes=1 << 20).keys

    assert sample.by_records[0].key == b"new"
    assert 800 < sample.records < 1600


def test_full_sketch_reports_its_error_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = LogDir.create(tmp_path)
    log_dir.append("keys", records(4000, start_ms=NOW_MS - HOUR_MS, end_ms=NOW_MS, keys=3000), partition=0)
    monkeypatch.setattr(gathering, "_SAMPLE_KEYS_MAX", 256)

    (sample,) = look(log_dir).keys

    assert sample.by_records[0].key == b"key-0"
    assert 2000 - sample.error_records <= sample.by_records[0].records <= 2000
    assert sample.error_records > 0


def test_records_without_keys_are_one_row(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path)
    log_dir.append("plain", records(10, start_ms=0, end_ms=9).select(["value"]))

    (sample,) = look(log_dir).keys

    assert [(each.key, each.records) for each in sample.by_records] == [(None, 10)]


def test_due_retention_and_cleaning_are_found(lively: LogDir) -> None:
    root = look(lively)

    assert "Retention is due" in titles(root, "orders")
    assert "Cleaning is due" in titles(root, "customers")
    due = sum(each.due_segments for each in topic_of(root, "orders").partitions)
    planned = apply_retention(lively.root, topics=["orders"], now_ms=NOW_MS, dry_run=True)
    assert due == sum(each.segments_dropped for each in planned)


def test_copied_segments_are_due_by_local_retention_only(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    log_dir = tiered_root(tmp_path / "root", tmp_path / "remote", clock=lambda: NOW_MS, local_retention_bytes="0")
    append_rounds(log_dir, 5)
    assert [each.due_segments for each in topic_of(look(log_dir), TOPIC).partitions] == [0]
    tier_segments(log_dir.root)
    planned = apply_retention(log_dir.root, now_ms=NOW_MS, dry_run=True)
    assert planned[0].local_segments_dropped
    due = [each.due_segments for each in topic_of(look(log_dir), TOPIC).partitions]
    assert due == [planned[0].local_segments_dropped]


def test_maintenance_commits_are_listed(tmp_path: Path) -> None:
    log_dir = lively_root(tmp_path / "root")
    apply_retention(log_dir.root, topics=["orders"], now_ms=NOW_MS)

    root = look(log_dir)

    assert root.history is not None
    assert [each.operation for each in root.history.maintenance] == ["retention"]
    assert root.history.maintenance[0].topics == ("orders",)
    assert "Retention is due" not in titles(root, "orders")


def test_skewed_topic_is_found(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path)
    log_dir.create_topic("skewed", partitions=4)
    log_dir.append("skewed", records(3000, start_ms=0, end_ms=9, value_bytes=1000), partition=2)

    finding = next(each for each in look(log_dir, now_ms=10).findings if each.topic == "skewed")

    assert finding.title == "Skewed partitions"
    assert finding.text.startswith("partition 2 has 2.9 MiB")


def test_offsets_deleted_before_group_read_them_are_found(tmp_path: Path) -> None:
    log_dir = lively_root(tmp_path / "root")
    apply_retention(log_dir.root, topics=["orders"], now_ms=NOW_MS)

    assert "Gone before they were read" in titles(look(log_dir), "orders")


def test_uncleanable_partition_is_found(tmp_path: Path) -> None:
    log_dir = lively_root(tmp_path / "root")
    store_marks(log_dir.root.native(), {TopicPartition("customers", 1): "no room"}, now_ms=NOW_MS)

    finding = next(each for each in look(log_dir).findings if each.title == "Uncleanable")

    assert finding.severity == "problem"
    assert finding.text == "partition 1: the last cleaning failed: no room"


def test_timestamps_in_the_future_are_found(tmp_path: Path) -> None:
    log_dir = create_log_dir(tmp_path, clock=Clock(NOW_MS))
    log_dir.append("late", records(3, start_ms=NOW_MS, end_ms=NOW_MS + 1000))

    assert "Timestamps in the future" in titles(look(log_dir, now_ms=NOW_MS - 5 * HOUR_MS), "late")


def test_open_transaction_of_broker_is_found(kafka_fixtures: Path) -> None:
    root = look(LogDir.open(kafka_fixtures / "transactions"))

    open_at = [
        each for topic in root.topics for each in topic.partitions if each.last_stable_offset < each.high_watermark
    ]
    assert bool(open_at) == ("Open transaction" in titles(root))
    assert open_at


@pytest.mark.parametrize("name", ["cars", "empty", "unclean", "consumer-offsets", "cluster-metadata", "retention"])
def test_broker_directories_are_reported(kafka_fixtures: Path, name: str) -> None:
    log_dir = LogDir.open(kafka_fixtures / name)
    root = look(log_dir)

    assert root.is_foreign
    assert root.history is None
    assert tuple(each.name for each in root.topics) == log_dir.topics()
    for topic in root.topics:
        for each in topic.partitions:
            assert each.error is None
            assert each.high_watermark == log_dir.partition(*_names(each.topic_partition)).high_watermark


def test_broker_partition_without_segment_is_empty(tmp_path: Path) -> None:
    (tmp_path / "made-0").mkdir()
    (tmp_path / "made-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")

    (facts,) = topic_of(look(LogDir.open(tmp_path)), "made").partitions

    assert facts.error is None
    assert (facts.high_watermark, facts.segments, facts.size_bytes) == (0, 0, 0)


def _names(where: TopicPartition) -> tuple[str, int]:
    return where.topic, where.partition


def test_damaged_partition_does_not_hide_others(tmp_path: Path) -> None:
    log_dir = lively_root(tmp_path / "root")
    directory = tmp_path / "root" / "orders-0"
    segment_file(directory, 0, LOG_SUFFIX).write_bytes(b"\xff" * 500)

    root = look(log_dir)

    orders = topic_of(root, "orders")
    assert [each.topic_partition.partition for each in orders.partitions] == [0, 1, 2, 3]
    assert all(each.segments > 1 for each in orders.partitions)
    assert any(each.title == "Records cannot be read" and each.topic == "orders" for each in root.findings)


def test_unreadable_partition_is_a_problem(tmp_path: Path) -> None:
    log_dir = lively_root(tmp_path / "root")
    directory = tmp_path / "root" / "orders-0"
    directory.rename(tmp_path / "away")
    directory.write_text("a file where the directory should be")

    root = look(log_dir)

    assert topic_of(root, "orders").partitions[0].error is not None
    assert root.findings[0].title == "Cannot be read"


def test_command_writes_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lively_root(tmp_path / "root")
    report = Command("report", tmp_path / "root", capsys)
    page = tmp_path / "out.html"

    said = report("-o", str(page), "--sample-bytes", "0")

    assert said.startswith(f"{page}: 4 topics, 86 partitions, ")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert report("-o", "-").startswith("<!DOCTYPE html>")


def test_invalid_arguments_fail_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    LogDir.create(root)
    report = Command("report", root, capsys)

    assert "one log directory" in report.fails(str(root))
    assert "--sample-bytes" in report.fails("--sample-bytes", "-1")
    assert "Delta table" in report.fails("--history", str(tmp_path / "nowhere"), "-o", str(tmp_path / "x.html"))
    assert "nowhere" in report.fails("-o", str(tmp_path / "nowhere" / "x.html"))
    assert "/dev/full: No space left on device" in report.fails("-o", "/dev/full")


def test_runs_in_delta_table_are_listed_newest_first(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    table = tmp_path / "runs"
    own, other = str(tmp_path / "root"), str(tmp_path / "other")
    delta_table(
        table,
        [
            [{"timestamp": "2026-01-01", "action": "log-cleaner", "root": own}],
            [{"timestamp": "2026-01-02", "action": "retention", "root": own}],
            [{"timestamp": "2026-01-03", "action": "retention", "root": other}],
        ],
    )

    root = gather(log_dir.root, GatherOptions(runs_table=table))

    assert [row["timestamp"] for row in root.runs] == ["2026-01-02", "2026-01-01"]


def delta_table(table: Path, commits: list[list[dict[str, str]]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (table / "_delta_log").mkdir(parents=True)
    for version, rows in enumerate(commits):
        name = f"part {version}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), table / name)
        actions: list[dict[str, object]] = [{"add": {"path": name.replace(" ", "%20")}}]
        if version == 0:
            actions.insert(0, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
        (table / "_delta_log" / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("path", ["../secret.parquet", "/etc/passwd", "%2e%2e/secret.parquet"])
def test_delta_table_with_path_outside_is_refused(tmp_path: Path, path: str) -> None:
    from pyspark_kafkalog.errors import LogDirError
    from pyspark_kafkalog.report.history import read_runs

    table = tmp_path / "runs"
    delta_table(table, [[{"timestamp": "2026-01-01"}]])
    (table / "_delta_log" / f"{1:020d}.json").write_text(json.dumps({"add": {"path": path}}))

    with pytest.raises(LogDirError, match="is outside"):
        read_runs(table)


def test_gathering_twice_gives_equal_facts(lively: LogDir) -> None:
    assert replace(look(lively), keys=()) == replace(look(lively), keys=())
