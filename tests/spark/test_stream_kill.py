"""A query's driver killed (SIGKILL) around the sink's commit, in its own process, and restarted: each row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_kafkalog import LogDir

pytestmark = pytest.mark.spark

ROWS_A_FILE = 50
SCRIPT_SECONDS_MAX = 120

#: A driver whose sink kills it in the commit of one micro-batch, before or after it is published.
DRIVER = """
import os
import signal
import sys

from pyspark.sql import SparkSession
from pyspark_kafkalog.spark.data_source import KafkalogDataSource
from pyspark_kafkalog.spark.write.writers import KafkalogStreamWriter

root, files, checkpoint, moment, fatal_batch = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
jvm = spark.sparkContext._gateway.jvm.java.lang.ProcessHandle.current().pid()
victims = (jvm, os.getpid())


def die():
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    os._exit(1)


class KillingWriter(KafkalogStreamWriter):
    def commit(self, messages, batchId):
        if (moment, int(fatal_batch)) == ("before", batchId):
            die()
        super().commit(messages, batchId)
        if (moment, int(fatal_batch)) == ("after", batchId):
            die()


class KillingDataSource(KafkalogDataSource):
    @classmethod
    def name(cls):
        return "killing"

    def streamWriter(self, schema, overwrite):
        return KillingWriter(super().streamWriter(schema, overwrite).plan)


spark.dataSource.register(KillingDataSource)
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(files)
writer = lines.writeStream.format("killing").option("topic", "t").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start(root).awaitTermination()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    LogDir.create(tmp_path / "log").create_topic("t", partitions=3)
    return tmp_path / "log"


def add_files(directory: Path, count: int) -> None:
    directory.mkdir()
    for number in range(count):
        file = directory / f"{number}.txt"
        file.write_text("".join(f"{row}\n" for row in range(number * ROWS_A_FILE, (number + 1) * ROWS_A_FILE)))
        os.utime(file, (1_700_000_000 + number,) * 2)


def run_until_killed(tmp_path: Path, root: Path, moment: str, batch: int) -> None:
    """Runs the driver until it is killed in the commit of `batch`."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    arguments = [root, tmp_path / "input", tmp_path / "checkpoint", moment, batch]
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-8000:]


def batches_noted_as_done(tmp_path: Path) -> list[int]:
    return sorted(int(path.name) for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdigit())


def values(root: Path) -> list[int]:
    return sorted(int(value) for value in LogDir.open(root).read("t").column("value").to_pylist())


def versions(root: Path) -> list[int | None]:
    return [each.version for each in LogDir.open(root).history(newest_first=False) if each.operation == "write"]


def test_driver_killed_before_and_after_sink_commit_writes_every_row_once(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    add_files(tmp_path / "input", 5)

    run_until_killed(tmp_path, root, "after", 1)
    assert batches_noted_as_done(tmp_path) == [0]
    assert values(root) == list(range(2 * ROWS_A_FILE))

    run_until_killed(tmp_path, root, "before", 3)  # replays batch 1 first
    assert batches_noted_as_done(tmp_path) == [0, 1, 2]
    assert values(root) == list(range(3 * ROWS_A_FILE))
    assert len(list(root.glob("t-*/*.staged"))) == 1

    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "input"))
    writer = lines.writeStream.format("kafkalog").option("topic", "t").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(root))
    assert query.awaitTermination(SCRIPT_SECONDS_MAX)
    assert values(root) == list(range(5 * ROWS_A_FILE))
    assert versions(root) == [0, 1, 2, 3, 4]
