"""Modules that the short-lived processes load in which Spark plans: many of them start at once on a busy driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir

#: Decodes and encodes records; each takes longer to load than all of this package's own modules together, or reads
#: what a plan never reads.
HEAVY = {"numba", "pandas", "pyarrow", "cramjam", "zstandard"}

#: Packages of this one that the lookup and the creation of a source need no part of: they only parse options.
OWN = {
    f"pyspark_kafkalog.{each}"
    for each in ("groups", "log_dir", "maintenance", "metadata", "root", "security", "spark.read", "spark.write")
}
#: Packages of this one that no plan needs.
OTHER_JOBS = {f"pyspark_kafkalog.{each}" for each in ("delta", "maintenance", "notebook", "report", "tools")}

START = """
import sys
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType
rows = StructType([StructField("value", StringType())])
before = set(sys.modules)
from pyspark_kafkalog import DefaultSource
"""
END = """
print(*set(sys.modules) - before)
"""
STREAM = """
reader = DefaultSource({"path": sys.argv[1], "startingOffsets": "earliest"}).streamReader(source.schema())
start = reader.initialOffset()
assert len(reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))) == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "body", "unused"),
    [
        ("lookup", "assert DefaultSource.name() == 'kafkalog'", HEAVY | OTHER_JOBS | OWN | {"numpy", "google_crc32c"}),
        (
            "create",
            "source = DefaultSource({'path': sys.argv[1]}); source.schema()",
            HEAVY | OTHER_JOBS | OWN | {"numpy", "google_crc32c"},
        ),
        (
            "plan",
            "source = DefaultSource({'path': sys.argv[1]}); source.reader(source.schema()).partitions()",
            HEAVY | OTHER_JOBS,
        ),
        ("stream", "source = DefaultSource({'path': sys.argv[1]})" + STREAM, HEAVY | OTHER_JOBS),
        ("write", "DefaultSource({'path': sys.argv[1], 'topic': 't'}).writer(rows, False)", HEAVY | OTHER_JOBS),
        (
            "stream write",
            "DefaultSource({'path': sys.argv[1], 'topic': 't'}).streamWriter(rows, False)",
            HEAVY | OTHER_JOBS,
        ),
    ],
)
def test_planning_process_loads_no_module_that_only_records_need(
    tmp_path: Path, role: str, body: str, unused: set[str]
) -> None:
    LogDir.create(tmp_path).append("t", pa.table({"value": ["v"]}), compression_type="zstd")
    command = [sys.executable, "-c", START + body + END, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "pyspark_kafkalog" in loaded
    assert loaded & unused == set(), role
