"""The jobs, the export, the report and the chart of a LogDir do what the commands do, and show what was done."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pyarrow as pa
import pytest
from builders.root_places import RootPlace

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidOptionError, MissingPackageError, ReadOnlyLogDirError, UnknownTopicError
from pyspark_kafkalog.notebook import tables

DAY_MS = 24 * 3600 * 1000
START_MS = 1_767_225_600_000  # 2026-01-01
SMALL = {"internal.segment.bytes": "2000", "file.delete.delay.ms": "0"}

mpl.use("agg")


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    """Clicks of five days that are kept for two, and prices of three keys that change every day."""
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("clicks", partitions=1, configs={"retention.ms": str(2 * DAY_MS), **SMALL})
    log_dir.create_topic("prices", partitions=1, configs={"cleanup.policy": "compact", **SMALL})
    for day in range(5):
        times = pa.array([START_MS + day * DAY_MS + n for n in range(30)], pa.timestamp("ms", "UTC"))
        records = {"key": [f"k{n % 3}" for n in range(30)], "value": ["v" * 60] * 30, "timestamp": times}
        for topic in ("clicks", "prices"):
            log_dir.append(topic, pa.table(records), flush="os")
    return log_dir


def test_retention_as_of_a_time_deletes_what_a_dry_run_reports(log_dir: LogDir) -> None:
    planned = log_dir.retain("clicks", now="2026-01-05T00:00:01", dry_run=True)
    assert log_dir.partition("clicks", 0).log_start_offset == 0
    done = log_dir.retain("clicks", now="2026-01-05T00:00:01")
    assert [(each.topic, each.bytes_dropped > 0) for each in done] == [("clicks", True)]
    assert (
        done[0].log_start_offset == log_dir.partition("clicks", 0).log_start_offset == planned[0].log_start_offset > 0
    )
    assert "would be deleted in 1 of 1 partition" in repr(planned)
    assert repr(done).splitlines()[1].split()[0] == "clicks-0"
    assert done.is_fine


@pytest.mark.file_roots
def test_cleaning_takes_compacted_topics_and_keeps_the_last_of_each_key(log_dir: LogDir) -> None:
    done = log_dir.clean()
    assert [each.topic for each in done] == ["prices"]
    assert done[0].records_dropped > 0
    assert len(log_dir["prices", 0]) == 150 - done[0].records_dropped
    assert log_dir.clean()[0].skipped is not None
    assert "removed" in repr(done)


def test_nothing_is_cleaned_where_the_cleaner_is_switched_off(log_dir: LogDir) -> None:
    log_dir.alter_broker_configs(add={"log.cleaner.enable": "false"})
    assert list(log_dir.clean()) == []


@pytest.mark.file_roots
def test_merge_leaves_fewer_segments(log_dir: LogDir) -> None:
    log_dir.alter_topic("clicks", add={"internal.segment.bytes": "100000"})
    before = log_dir["clicks", 0].segments().num_rows
    (done,) = log_dir.merge("clicks")
    assert log_dir["clicks", 0].segments().num_rows == before - done.segments_dropped < before


def test_records_are_deleted_up_to_an_offset(log_dir: LogDir) -> None:
    (planned,) = log_dir.delete_records({("clicks", 0): 7}, dry_run=True)
    assert (planned.log_start_offset, log_dir["clicks", 0].start_offset) == (7, 0)
    (done, failed) = log_dir.delete_records({("clicks", 0): -1, ("nothing", 0): 1})
    assert done.log_start_offset == log_dir["clicks", 0].start_offset == 150
    assert "nothing" in (failed.error or "")


@pytest.mark.file_roots
def test_verification_has_the_findings_that_it_shows(log_dir: LogDir) -> None:
    assert log_dir.verify().is_fine
    segment = sorted(Path(str(log_dir.path), "clicks-0").glob("*.log"))[0]
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    found = log_dir.verify("clicks")
    assert not found.is_fine
    assert [each.file.endswith(segment.name) for each in found.findings if each.severity == "error"] == [True]
    assert f"{segment.name}, position" in repr(found)
    assert log_dir.verify("prices", deep=True).is_fine


def test_export_is_a_log_directory_with_the_same_records(log_dir: LogDir, tmp_path: Path) -> None:
    (exported,) = log_dir.export(tmp_path / "copy", "clicks")
    assert exported.high_watermark == 150
    copy = LogDir.open(tmp_path / "copy")
    assert copy.read("clicks").equals(log_dir.read("clicks"))
    broker = log_dir.export_broker(tmp_path / "broker", "clicks")
    assert [str(each.topic_partition) for each in broker.partitions] == ["clicks-0"]
    served = LogDir.open(tmp_path / "broker")
    assert served.is_broker_directory
    assert served.read("clicks").equals(log_dir.read("clicks"))
    with pytest.raises(ReadOnlyLogDirError):
        served.retain()


def test_report_is_a_page_that_is_saved_and_shown(log_dir: LogDir, tmp_path: Path) -> None:
    report = log_dir.report(sample_bytes=0)
    assert report.save(tmp_path / "report.html").read_text(encoding="utf-8") == report.html
    assert [each.name for each in report.facts.topics] == ["clicks", "prices"]
    assert "2 topics, 2 partitions" in repr(report)
    shown = report._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert '"' not in shown.split('srcdoc="')[1].split('" width')[0]


def test_chart_counts_the_records_and_bytes_of_each_topic(log_dir: LogDir) -> None:
    axes = log_dir.plot(bins=5)
    assert [list(each.get_data().values) for each in axes.patches] == [[30] * 5] * 2
    assert axes.get_legend_handles_labels()[1] == ["clicks", "prices"]
    axes = log_dir["clicks", 0]["2026-01-03":].plot(of="bytes", bins=1)
    (steps,) = axes.patches
    sizes = log_dir["clicks", 0]["2026-01-03":].batches()["size_bytes"].to_pylist()
    assert list(steps.get_data().values) == [sum(sizes)]
    assert log_dir["clicks"].plot(axes=axes) is axes
    assert len(axes.patches) == 2


def test_chart_of_nothing_is_refused_and_an_empty_topic_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = LogDir.create(tmp_path / "empty")
    with pytest.raises(InvalidOptionError, match="has no topic to plot"):
        empty.plot()
    empty.create_topic("t", partitions=2)
    assert sum(empty.plot("t").patches[0].get_data().values) == 0

    def fail(module: str) -> None:
        raise ImportError(module)

    monkeypatch.setattr(tables.importlib, "import_module", fail)
    with pytest.raises(MissingPackageError, match="pip install matplotlib"):
        empty.plot()


@pytest.mark.parametrize("job", ["retain", "clean", "merge", "verify", "plot"])
def test_unknown_topic_and_list_of_topics_are_refused(log_dir: LogDir, job: str) -> None:
    with pytest.raises(UnknownTopicError, match="clicks"):
        getattr(log_dir, job)("click")
    with pytest.raises(InvalidOptionError, match="topic"):
        getattr(log_dir, job)(["clicks"])


def test_report_of_a_partition_shows_only_what_its_job_counts(log_dir: LogDir) -> None:
    (done,) = log_dir.delete_records({("clicks", 0): 7})
    shown = "PartitionReport(topic='clicks', partition=0, action='delete-records', log_start_offset=7, seconds="
    assert repr(done).startswith(shown)
