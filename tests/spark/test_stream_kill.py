"""A query's driver killed (SIGKILL) around the sink's commit, in its own process, and restarted: each row once.

The root is on a file system, and in an object store.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka_processes.s3_proxy import S3Proxy
from pyspark.sql import SparkSession

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.object_store.address import StoreAddress

pytestmark = pytest.mark.spark

ROWS_A_FILE = 50
SCRIPT_SECONDS_MAX = 120

#: A driver whose sink kills it in the commit of one micro-batch, before or after it is published.
DRIVER = """
import json
import os
import signal
import sys

from pyspark.sql import SparkSession
from pyspark_kafkalog.spark.data_source import KafkalogDataSource
from pyspark_kafkalog.spark.write.writers import KafkalogStreamWriter

root, options, files, checkpoint, moment, fatal_batch = sys.argv[1:]
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
writer = writer.options(**json.loads(options))
writer.trigger(availableNow=True).start(root).awaitTermination()
"""


@dataclass(frozen=True)
class Place:
    """Where the root is, as the data source is told, and the options that reach it."""

    path: str
    options: dict[str, str]

    def open(self) -> LogDir:
        return LogDir.open(StoreAddress.parse(self.path, self.options) if self.options else self.path)


@pytest.fixture(params=["file", pytest.param("object", marks=pytest.mark.full)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "file":
        LogDir.create(tmp_path / "log").create_topic("t", partitions=3)
        return Place(str(tmp_path / "log"), {})
    server: S3Proxy = request.getfixturevalue("s3_proxy")
    place = Place(f"{server.new_location().url}/log", server.options())
    LogDir.create(StoreAddress.parse(place.path, place.options)).create_topic("t", partitions=3)
    return place


def add_files(directory: Path, count: int) -> None:
    directory.mkdir()
    for number in range(count):
        file = directory / f"{number}.txt"
        file.write_text("".join(f"{row}\n" for row in range(number * ROWS_A_FILE, (number + 1) * ROWS_A_FILE)))
        os.utime(file, (1_700_000_000 + number,) * 2)


def run_until_killed(tmp_path: Path, root: Place, moment: str, batch: int) -> None:
    """Runs the driver until it is killed in the commit of `batch`."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    arguments = [root.path, json.dumps(root.options), tmp_path / "input", tmp_path / "checkpoint", moment, batch]
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


def values(root: Place) -> list[int]:
    return sorted(int(value) for value in root.open().read("t").column("value").to_pylist())


def versions(root: Place) -> list[int | None]:
    return [each.version for each in root.open().history(newest_first=False) if each.operation == "write"]


@pytest.mark.full
def test_driver_killed_before_and_after_sink_commit_writes_every_row_once(
    spark: SparkSession, root: Place, tmp_path: Path
) -> None:
    add_files(tmp_path / "input", 5)

    run_until_killed(tmp_path, root, "after", 1)
    assert batches_noted_as_done(tmp_path) == [0]
    assert values(root) == list(range(2 * ROWS_A_FILE))

    run_until_killed(tmp_path, root, "before", 3)  # replays batch 1 first
    assert batches_noted_as_done(tmp_path) == [0, 1, 2]
    assert values(root) == list(range(3 * ROWS_A_FILE))
    assert root.options or len(list(Path(root.path).glob("t-*/*.staged"))) == 1

    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "input"))
    writer = lines.writeStream.format("kafkalog").option("topic", "t").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).options(**root.options).start(root.path)
    assert query.awaitTermination(SCRIPT_SECONDS_MAX)
    assert values(root) == list(range(5 * ROWS_A_FILE))
    assert versions(root) == [0, 1, 2, 3, 4]
