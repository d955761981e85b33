"""The same source and sink in other kinds of sessions: a standalone cluster of two executors, and Spark Connect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

#: No registration call anywhere: Spark finds the package by its name.
WRITE_AND_READ = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pyspark.sql import SparkSession
from pyspark_kafkalog import set_active_session

kind, root, fixture = sys.argv[1:]
builder = SparkSession.builder
if kind == "connect":
    builder = builder.remote("local[2]")
else:
    builder = builder.master("local-cluster[2,1,1024]").config("spark.executor.memory", "1g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
spark = builder.getOrCreate()
columns = "cast(cast(id % 50 as string) as binary) key", "cast(concat('value ', id) as binary) value"
written = spark.range(0, 20000, 1, 4).selectExpr(*columns)
written.write.format("kafkalog").mode("append").option("topic", "t").option("compression.type", "lz4").save(root)
found = spark.read.format("kafkalog").option("subscribe", "t").option("minPartitions", "4").load(root)
print("rows", *found.selectExpr("count(*)", "count(distinct value)", "sum(offset) > 0").first())
print("same", found.selectExpr("sum(hash(key, value))").first() == written.selectExpr("sum(hash(key, value))").first())
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
print("filtered", found.where("partition = 0 and offset < 10").count())
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
    print("error", "no topic 'vans' in this log directory; existing topics: cars" in str(error))
spark.stop()
"""


@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_write_and_read_work_on_cluster_and_connect(
    run_script: Callable[..., str], tmp_path: Path, kafka_fixtures: Path, kind: str
) -> None:
    output = run_script(WRITE_AND_READ, kind, tmp_path / "log", kafka_fixtures / "cars")
    facts = dict(line.split(" ", 1) for line in output.splitlines() if " " in line)
    assert facts["rows"] == "20000 20000 True"
    assert facts["same"] == "True"
    assert facts["filtered"] == "10"
    assert facts["cars"] == "400"
    assert facts["threads"] == {"connect": "10", "cluster": "5"}[kind]  # Connect needs no active session
    assert facts["error"] == "True"
