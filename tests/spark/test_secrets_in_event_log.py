"""Secrets of a store in all that a Spark application writes: its event log, its output, a query's checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kafka_processes.s3_proxy import S3Proxy

pytestmark = [pytest.mark.spark, pytest.mark.full]

SECONDS_MAX = 300

APPLICATION = """
import os, sys
from pyspark.sql import SparkSession

url, scratch = sys.argv[1:]
names = ("storeEndpoint", "storeRegion", "storeAccessKey", "storeSecretKey")
options = {name: os.environ[name] for name in names}
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", f"{scratch}/events")
    .getOrCreate()
)

def log(**more):
    return {**options, **more}

def fails(action):
    try:
        action()
    except Exception as error:
        print(error)
    else:
        raise SystemExit("expected an error")

numbers = spark.range(10).selectExpr("cast(id as string) value")
numbers.write.format("kafkalog").options(**log(topic="t")).mode("append").save(url)
rows = spark.read.format("kafkalog").options(**options).load(url)
rows.explain("extended")
rows.explain("formatted")
print(rows.count(), rows.schema.json())
stream = spark.readStream.format("kafkalog").options(**log(startingOffsets="earliest", subscribe="t")).load(url)
writer = stream.writeStream.format("kafkalog").options(**log(topic="u", checkpointLocation=f"{scratch}/checkpoint"))
query = writer.trigger(availableNow=True).start(url)
query.awaitTermination()
query.explain(True)
print(query.lastProgress)
print(rows.count())
for wrong in (
    {"storeSecretKey": "wrong" + options["storeSecretKey"]},
    {"storeSasToken": options["storeSecretKey"]},
    {"storeNoSuchOption": "x"},
):
    fails(spark.read.format("kafkalog").options(**log(**wrong)).load(url).count if "storeSecretKey" in wrong else
          lambda: spark.read.format("kafkalog").options(**log(**wrong)).load(url))
    fails(lambda: numbers.write.format("kafkalog").options(**log(**wrong, topic="t")).mode("append").save(url))
spark.stop()
"""


def test_nothing_that_an_application_writes_holds_a_secret(s3_proxy: S3Proxy, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "application.py").write_text(APPLICATION)
    url = f"{s3_proxy.new_location().url}/log"
    environment = {**os.environ, **s3_proxy.options(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "application.py"), url, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    written = {str(each): each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    events = [name for name in written if "/events/" in name]
    assert sum(len(written[name]) for name in events) > 10_000
    written |= {"output": done.stdout.encode(), "errors": done.stderr.encode()}
    for secret in (s3_proxy.secret_key, s3_proxy.access_key):
        assert not [name for name, data in written.items() if secret.encode() in data]
