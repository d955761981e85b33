"""The streaming sink under Spark Connect, with tasks that fail at first and are retried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_kafkalog import LogDir

pytestmark = pytest.mark.spark

STREAM = """
import sys

from pyspark.sql import SparkSession

root, files, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2, 2]").getOrCreate()
lines = spark.readStream.text(files)


def fail_after_the_rows_at_first(batches):
    from pyspark import TaskContext

    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("lost an executor")


def write_each(batch, batch_id):
    options = {"topic": "each", "txnAppId": "each", "txnVersion": batch_id}
    batch.write.format("kafkalog").mode("append").options(**options).save(root)


failing = lines.mapInArrow(fail_after_the_rows_at_first, "value string")
writer = failing.writeStream.format("kafkalog").option("topic", "t").trigger(availableNow=True)
query = writer.option("checkpointLocation", checkpoint).start(root)
print("ended", query.awaitTermination(100), query.exception())
print("id", query.id)
writer = lines.writeStream.foreachBatch(write_each).trigger(availableNow=True)
each = writer.option("checkpointLocation", checkpoint + "-each").start()
print("ended", each.awaitTermination(100), each.exception())
spark.stop()
"""


def test_every_row_is_written_once_when_tasks_are_retried(run_script: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    for file in range(3):
        text = "".join(f"{row}\n" for row in range(file * 10, file * 10 + 10))
        (tmp_path / "input" / f"{file}.txt").write_text(text)
    output = run_script(STREAM, tmp_path / "log", tmp_path / "input", tmp_path / "checkpoint")
    facts = [line.split(" ", 1) for line in output.splitlines() if " " in line]
    assert {text for name, text in facts if name == "ended"} == {"True None"}

    log_dir = LogDir.open(tmp_path / "log")
    assert log_dir.topics() == ("each", "t")
    for topic in log_dir.topics():
        values = log_dir.read(topic).column("value").to_pylist()
        assert sorted(int(value) for value in values) == list(range(30)), topic
    ids = {(entry.transactional_id, entry.version) for entry in log_dir.history(topic="t") if entry.version is not None}
    assert ids == {(text, 0) for name, text in facts if name == "id"}
    assert list((tmp_path / "log").glob("*/*.staged")) == []
