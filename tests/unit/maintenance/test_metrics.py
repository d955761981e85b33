"""Metrics match the files on disk and, under Kafka's names, what a broker reports for the same logs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.engine_fixtures import partitions_with_offsets
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanerRun, store_marks, write_last_run
from pyspark_kafkalog.maintenance.metrics import Metric, collect_metrics
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, write_offset_checkpoint
from pyspark_kafkalog.storage.names import TopicPartition

NOW_MS = 1_800_000_000_000
SEGMENTS = {"segment.bytes": "2000000", "internal.segment.bytes": "3000"}


def collected(log_dir: LogDir) -> dict[str, Metric]:
    """The metrics by Kafka's name."""
    log_dir.refresh()
    return {each.name: each for each in collect_metrics(log_dir.root, now_ms=NOW_MS)}


def of_partition(metrics: dict[str, Metric], topic: str, partition: int) -> dict[str, float]:
    return {
        name: metric.values[topic, str(partition)]
        for name, metric in metrics.items()
        if (topic, str(partition)) in metric.values
    }


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("t", partitions=2, configs=SEGMENTS)
    return log_dir


def write(log_dir: LogDir, times: int) -> None:
    for _ in range(times):
        log_dir.append("t", pa.table({"value": ["v" * 100] * 20}), partition=0, flush="os")


def test_metrics_of_own_log_match_its_files_and_commits(log_dir: LogDir) -> None:
    write(log_dir, 9)
    files = sorted((log_dir.path / "t-0").glob("*.log"))
    metrics = collected(log_dir)
    assert len(files) > 2
    assert of_partition(metrics, "t", 0) == {
        "Size": sum(file.stat().st_size for file in files),
        "NumLogSegments": len(files),
        "LogStartOffset": 0,
        "LogEndOffset": 180,
        "LastStableOffsetLag": 0,
    }
    empty = {"Size": 0, "NumLogSegments": 1, "LogStartOffset": 0, "LogEndOffset": 0, "LastStableOffsetLag": 0}
    assert of_partition(metrics, "t", 1) == empty
    assert metrics["PartitionCount"].values == {(): 2}
    assert metrics["UnderReplicatedPartitions"].values == {(): 0}


def test_metrics_omit_bytes_of_killed_writer_and_count_undeleted_segments(log_dir: LogDir) -> None:
    write(log_dir, 9)
    before = of_partition(collected(log_dir), "t", 0)
    active = max((log_dir.path / "t-0").glob("*.log"))
    with active.open("ab") as tail:
        tail.write(b"above the high watermark")
    active.with_name(f"{500:020}.log").write_bytes(b"a segment above it")
    assert of_partition(collected(log_dir), "t", 0) == before
    delete_records(log_dir.root, {TopicPartition("t", 0): 100})
    assert of_partition(collected(log_dir), "t", 0) == {**before, "LogStartOffset": 100}


def test_metrics_include_last_cleaner_run_and_uncleanable_partitions(log_dir: LogDir) -> None:
    write(log_dir, 2)
    before = collected(log_dir)
    assert "max-dirty-percent" not in before
    assert before["uncleanable-partitions-count"].values == {(str(log_dir.path),): 0}
    run = CleanerRun(
        began_ms=NOW_MS - 9000,
        ended_ms=NOW_MS - 5000,
        bytes_read=1000,
        bytes_written=459,
        max_clean_seconds=2.9,
        max_dirty_percent=61.8,
    )
    write_last_run(log_dir.root.native(), run)
    store_marks(log_dir.root.native(), {TopicPartition("t", 0): "damaged"}, now_ms=NOW_MS)
    after = collected(log_dir)
    assert after["max-dirty-percent"].values == {(): 61}
    assert after["cleaner-recopy-percent"].values == {(): 45}
    assert after["max-clean-time-secs"].values == {(): 2}
    assert after["time-since-last-run-ms"].values == {(): 5000}
    assert after["uncleanable-partitions-count"].values == {(str(log_dir.path),): 1}


def test_uncleanable_bytes_count_only_dirty_closed_segments(log_dir: LogDir, caplog: pytest.LogCaptureFixture) -> None:
    write(log_dir, 9)
    where = TopicPartition("t", 0)
    store_marks(log_dir.root.native(), {where: "damaged"}, now_ms=NOW_MS)
    sizes = {int(path.stem): path.stat().st_size for path in (log_dir.path / "t-0").glob("*.log")}
    *closed, _ = sorted(sizes)
    uncleanable_bytes = collected(log_dir)["uncleanable-bytes"]
    assert uncleanable_bytes.values == {(str(log_dir.path),): sum(sizes[base] for base in closed)}
    checkpoint = log_dir.path / CLEANER_OFFSET_CHECKPOINT
    write_offset_checkpoint(checkpoint, {where: closed[2]})
    uncleanable_bytes = collected(log_dir)["uncleanable-bytes"]
    assert uncleanable_bytes.values == {(str(log_dir.path),): sum(sizes[base] for base in closed[2:])}
    checkpoint.write_bytes(b"damaged")
    assert collected(log_dir)["uncleanable-bytes"].values == {(str(log_dir.path),): 0}
    assert "the cleanable bytes of t-0 are unknown" in caplog.text


def test_lag_of_group_is_reported(log_dir: LogDir) -> None:
    write(log_dir, 2)
    log_dir.group("g").commit({("t", 0): 15, ("t", 1): 0})
    assert collected(log_dir)["records-lag"].values == {("g", "t", "0"): 25, ("g", "t", "1"): 0}
    assert "lag-seconds" not in collected(log_dir)
    (found,) = [
        each for each in collect_metrics(log_dir.root, now_ms=NOW_MS, lag_seconds=True) if each.name == "lag-seconds"
    ]
    assert found.prometheus_name == "kafkalog_group_lag_seconds"
    assert found.values.keys() == {("g", "t", "0"), ("g", "t", "1")}
    assert found.values["g", "t", "1"] == 0


@pytest.mark.parametrize("root", sorted({part.root for part in partitions_with_offsets()}), ids=lambda root: root.name)
def test_metrics_of_broker_logs_match_broker(root: Path) -> None:
    metrics = collected(LogDir.open(root))
    for part in partitions_with_offsets():
        if part.root != root:
            continue
        found = of_partition(metrics, part.topic, part.partition)
        sizes = [file.stat().st_size for file in part.directory.glob("*.log")]
        assert (found["Size"], found["NumLogSegments"]) == (sum(sizes), len(sizes))
        assert found["LogStartOffset"] == part.offsets["earliest"]
        assert found["LogEndOffset"] == part.offsets["latest"]
        assert found["LastStableOffsetLag"] == part.offsets["latest"] - part.offsets["last_stable"]


def test_unreadable_partition_is_offline_and_others_are_reported(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "cars", tmp_path / "log", ignore=shutil.ignore_patterns("expected"))
    good = collected(LogDir.open(tmp_path / "log"))
    (tmp_path / "log" / "odd-0").mkdir()
    (tmp_path / "log" / "odd-0" / f"{0:020}.log").mkdir()
    metrics = collected(LogDir.open(tmp_path / "log"))
    assert metrics["OfflineReplicaCount"].values == {(): 1}
    assert metrics["LeaderCount"].values == good["LeaderCount"].values
    assert metrics["Size"].values == good["Size"].values


def test_prometheus_names_match_kafka_dashboards(log_dir: LogDir) -> None:
    write_last_run(log_dir.root.native(), CleanerRun(began_ms=0, ended_ms=0))
    assert [each.prometheus_name for each in collected(log_dir).values()] == [
        "kafka_log_log_size",
        "kafka_log_log_numlogsegments",
        "kafka_log_log_logstartoffset",
        "kafka_log_log_logendoffset",
        "kafka_cluster_partition_laststableoffsetlag",
        "kafkalog_partition_offsetsabovehighwatermark",
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "kafka_log_logcleanermanager_uncleanable_bytes",
        "kafka_log_logcleanermanager_max_dirty_percent",
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        "kafka_log_logcleaner_cleaner_recopy_percent",
        "kafka_log_logcleaner_max_clean_time_secs",
        "kafka_log_logmanager_offlinelogdirectorycount",
        "kafka_log_logmanager_logdirectoryoffline",
        "kafka_server_replicamanager_underreplicatedpartitions",
        "kafka_server_replicamanager_partitioncount",
        "kafka_server_replicamanager_leadercount",
        "kafka_server_replicamanager_offlinereplicacount",
        "kafka_controller_kafkacontroller_globaltopiccount",
        "kafka_controller_kafkacontroller_globalpartitioncount",
        "kafka_consumer_consumer_fetch_manager_metrics_records_lag",
    ]
