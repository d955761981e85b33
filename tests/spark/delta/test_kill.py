"""Drivers killed (SIGKILL) between a table's or a topic's commit and Spark's commit log: each record written once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.delta.delta_to_topic import DeltaToTopic
from pyspark_kafkalog.delta.topic_to_delta import TopicToDelta

pytestmark = [pytest.mark.spark, pytest.mark.full]

SECONDS_MAX = 180
RECORDS = 90
ROWS = 60

#: Two queries in one driver, which kill it when each has made its first commit and Spark has not noted either.
DRIVER = """
import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from test_kill import queries

from pyspark.sql import SparkSession

from pyspark_kafkalog.delta import delta_target, delta_to_topic, topic_to_delta
from pyspark_kafkalog.maintenance.jobs.tasks import with_delta

home = Path(sys.argv[2])
spark = with_delta(SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")).config(
    "spark.databricks.delta.snapshotPartitions", "1").config("spark.sql.shuffle.partitions", "2").getOrCreate()
jvm = spark.sparkContext._gateway.jvm.java.lang.ProcessHandle.current().pid()
all_there = threading.Barrier(2)


def start_deadly(rows, write, **options):
    def write_and_wait(batch, batch_id):
        write(batch, batch_id)
        if batch_id == 0:
            all_there.wait()
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    return delta_target.start(rows, write_and_wait, **options)


topic_to_delta.start = delta_to_topic.start = start_deadly
running = [query.start(spark) for query in queries(home)]
for query in running:
    query.awaitTermination()
"""


def queries(home: Path) -> list[TopicToDelta | DeltaToTopic]:
    """A topic into a table, a table's rows into another topic: two batches each."""
    into = TopicToDelta(
        path=str(home / "log"),
        topic="in",
        table=str(home / "table"),
        checkpoint=str(home / "checkpoint-in"),
        source_options={"maxOffsetsPerTrigger": str(RECORDS // 2)},
    )
    out = DeltaToTopic(
        table=str(home / "source"),
        path=str(home / "log"),
        topic="out",
        checkpoint=str(home / "checkpoint-out"),
        keys=["id"],
        source_options={"maxFilesPerTrigger": "1"},
    )
    return [into, out]


def run_until_killed(home: Path) -> None:
    script = home / "driver.py"
    script.write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, str(script), str(Path(__file__).parent), str(home)],
        cwd=home,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-8000:]


def batches_noted_as_done(checkpoint: Path) -> list[int]:
    return sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())


def keys(root: Path, topic: str) -> list[bytes]:
    return sorted(LogDir.open(root).read(topic, columns=["key"]).column("key").to_pylist())


def test_drivers_killed_between_the_two_commits_write_every_record_once(spark: SparkSession, tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("in", partitions=2)
    log_dir.create_topic("out", partitions=2)
    numbers = [f"{number}" for number in range(RECORDS)]
    log_dir.append("in", pa.table({"key": numbers, "value": numbers}))
    rows = spark.range(0, ROWS, 1, 2).write.format("delta").option("delta.enableChangeDataFeed", "true")
    rows.save(str(tmp_path / "source"))

    run_until_killed(tmp_path)
    table = spark.read.format("delta").load(str(tmp_path / "table")).selectExpr("int(string(value)) value")
    assert batches_noted_as_done(tmp_path / "checkpoint-in") == batches_noted_as_done(tmp_path / "checkpoint-out") == []
    assert table.count() == RECORDS // 2
    assert len(keys(tmp_path / "log", "out")) == ROWS // 2

    for query in [each.start(spark) for each in queries(tmp_path)]:
        assert query.awaitTermination(SECONDS_MAX)
        assert query.recentProgress[0]["batchId"] == 0
    assert sorted(row.value for row in table.collect()) == list(range(RECORDS))
    assert keys(tmp_path / "log", "out") == sorted(str(number).encode() for number in range(ROWS))
