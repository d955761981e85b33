"""The same source and sink in other kinds of sessions: a standalone cluster of two executors, and Spark Connect.

Starting a session takes longer than what is tried in it, so one of each kind tries everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir

pytestmark = [pytest.mark.spark, pytest.mark.full]

SCRIPT_SECONDS_MAX = 240

CLUSTER = """
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.executor.memory", "1g")
spark = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
"""

#: A task may fail once.
CONNECT = """
spark = SparkSession.builder.remote("local[2, 2]").getOrCreate()
"""

#: No registration call anywhere: Spark finds the package by its name.
WRITE_AND_READ = """
from concurrent.futures import ThreadPoolExecutor
from pyspark_kafkalog import set_active_session

root, fixture = home + "/log", home + "/cars"
columns = "cast(cast(id % 50 as string) as binary) key", "cast(concat('value ', id) as binary) value"
written = spark.range(0, 20000, 1, 4).selectExpr(*columns)
written.write.format("kafkalog").mode("append").option("topic", "t").option("compression.type", "lz4").save(root)
found = spark.read.format("kafkalog").option("subscribe", "t").option("minPartitions", "4").load(root)
print("rows", *found.selectExpr("count(*)", "count(distinct value)", "sum(offset) > 0").first())
print("same", found.selectExpr("sum(hash(key, value))").first() == written.selectExpr("sum(hash(key, value))").first())
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
print("filtered", found.where("partition = 0 and offset < 10").count())
spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
print("cars", spark.read.format("kafkalog").option("subscribe", "cars").load(fixture).count())
in_thread = spark.range(5).selectExpr("cast(id as string) value").write.format("kafkalog").mode("append")
if kind == "connect":
    with ThreadPoolExecutor(1) as pool:
        pool.submit(in_thread.option("topic", "threads").save, root).result()
with ThreadPoolExecutor(1, initializer=set_active_session, initargs=(spark,)) as pool:
    pool.submit(in_thread.option("topic", "threads").save, root).result()
print("threads", spark.read.format("kafkalog").option("subscribe", "threads").load(root).count())
try:
    spark.read.format("kafkalog").option("subscribe", "vans").load(fixture).count()
except Exception as error:
    print("error", "no topic 'vans' in this log directory: did you mean 'cars'? existing topics: cars" in str(error))
"""

STREAM_SOURCE = """
spark.conf.set("spark.sql.shuffle.partitions", "1")
frame = spark.readStream.format("kafkalog").option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 80)
for run in range(2):
    writer = frame.load(home + "/streamed").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", home + "/checkpoint-rows")
    query = writer.trigger(availableNow=True).start(home + "/rows")
    assert query.awaitTermination(60)
    read = spark.read.parquet(home + "/rows")
    print("streamed", read.count(), read.select("partition", "offset").distinct().count())
"""

#: Tasks fail at first and are retried.
STREAM_SINK = """
sink = home + "/sink"
lines = spark.readStream.text(home + "/input")


def fail_after_the_rows_at_first(batches):
    from pyspark import TaskContext

    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("lost an executor")


def write_each(batch, batch_id):
    options = {"topic": "each", "txnAppId": "each", "txnVersion": batch_id}
    batch.write.format("kafkalog").mode("append").options(**options).save(sink)


failing = lines.mapInArrow(fail_after_the_rows_at_first, "value string")
writer = failing.writeStream.format("kafkalog").option("topic", "t").trigger(availableNow=True)
query = writer.option("checkpointLocation", home + "/checkpoint").start(sink)
print("ended", query.awaitTermination(100), query.exception())
print("id", query.id)
writer = lines.writeStream.foreachBatch(write_each).trigger(availableNow=True)
each = writer.option("checkpointLocation", home + "/checkpoint-each").start()
print("ended", each.awaitTermination(100), each.exception())
"""


@dataclass(frozen=True, slots=True)
class Told:
    """What a session's script printed, as (name, value); its files are in `home`."""

    home: Path
    lines: list[tuple[str, str]]

    def values(self, name: str) -> list[str]:
        return [value for found, value in self.lines if found == name]


def run_session(home: Path, kind: str, *sources: str) -> Told:
    """Run the script of `sources` in its own process, in the directory `home`; fails as it fails."""
    begin = f"import sys\nfrom pyspark.sql import SparkSession\n\nkind, home = {kind!r}, {str(home)!r}\n"
    script = home / "script.py"
    script.write_text("".join([begin, *sources, "spark.stop()\n"]))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=home,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    words = [line.partition(" ") for line in done.stdout.splitlines()]
    return Told(home, [(name, value) for name, _, value in words if value])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, kafka_fixtures: Path) -> Told:
    home = tmp_path_factory.mktemp("cluster")
    (home / "cars").symlink_to(kafka_fixtures / "cars")
    return run_session(home, "cluster", CLUSTER, WRITE_AND_READ)


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory, kafka_fixtures: Path) -> Told:
    home = tmp_path_factory.mktemp("connect")
    (home / "cars").symlink_to(kafka_fixtures / "cars")
    log_dir = LogDir.create(home / "streamed")
    log_dir.create_topic("t", partitions=2)
    for partition, count in enumerate((100, 20)):
        log_dir.append("t", pa.table({"value": [str(number) for number in range(count)]}), partition=partition)
    (home / "input").mkdir()
    for file in range(3):
        text = "".join(f"{row}\n" for row in range(file * 10, file * 10 + 10))
        (home / "input" / f"{file}.txt").write_text(text)
    return run_session(home, "connect", CONNECT, WRITE_AND_READ, STREAM_SOURCE, STREAM_SINK)


@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_write_and_read_work_on_cluster_and_connect(request: pytest.FixtureRequest, kind: str) -> None:
    facts = dict(request.getfixturevalue(kind).lines)
    assert facts["rows"] == "20000 20000 True"
    assert facts["same"] == "True"
    assert facts["filtered"] == "10"
    assert facts["cars"] == "400"
    assert facts["threads"] == {"connect": "10", "cluster": "5"}[kind]  # Connect needs no active session
    assert facts["error"] == "True"


def test_spark_connect_streams_all_records(connect: Told) -> None:
    assert connect.values("streamed") == ["120 120", "120 120"]


def test_every_row_is_written_once_when_tasks_are_retried(connect: Told) -> None:
    assert connect.values("ended") == ["True None", "True None"]

    log_dir = LogDir.open(connect.home / "sink")
    assert log_dir.topics() == ("each", "t")
    for topic in log_dir.topics():
        values = log_dir.read(topic).column("value").to_pylist()
        assert sorted(int(value) for value in values) == list(range(30)), topic
    ids = {(entry.transactional_id, entry.version) for entry in log_dir.history(topic="t") if entry.version is not None}
    assert ids == {(text, 0) for text in connect.values("id")}
    assert list((connect.home / "sink").glob("*/*.staged")) == []
