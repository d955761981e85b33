"""jobs/pipeline, run by `spark-pipelines run`: a topic into a table, a topic, and a table that AUTO CDC keeps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from kafka_processes.java_processes import cache_dir, fetch_jars
from repository import REPOSITORY

from pyspark_kafkalog import LogDir

pytest.importorskip("yaml", reason="pyyaml, which spark-pipelines imports: of the extra pipelines")
pytestmark = [pytest.mark.spark, pytest.mark.full]

#: On a busy machine Spark's limit of 10 s for the start of a streaming source's Python process is often too short.
PATIENCE = """\
configuration:
  spark.sql.pipelines.maxFlowRetryAttempts: "30"
  spark.sql.pipelines.execution.watchdog.maxRetryTime: 10s
  spark.sql.pipelines.execution.maxConcurrentFlows: "1"
"""
#: Spark's own catalog forgets tables with the process. Hive's keeps them in the working directory.
KEEP_TABLES = ("--conf", "spark.sql.catalogImplementation=hive")
PROJECT = REPOSITORY / "jobs" / "pipeline"
RUN_SECONDS_MAX = 400
CHANGES: list[tuple[str, str | None]] = [
    ("1", '{"name": "ann", "city": "Rome"}'),
    ("2", '{"name": "bob", "city": "Oslo"}'),
    ("1", '{"name": "ann", "city": "Bern"}'),
    ("2", None),
    ("3", '{"name": "cyd", "city": "Bern"}'),
]
#: The catalog of Spark's own tests has tables that implement row-level operations, in memory. Its jar has this version.
SPARK_WITH_CATALOG = "4.2.0"
CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
CATALOG_JAR = f"spark-catalyst_2.13-{SPARK_WITH_CATALOG}-tests.jar"
CATALOG_DEPENDENCY = f"""\
    <dependency org="org.apache.spark" name="spark-catalyst_2.13" rev="{SPARK_WITH_CATALOG}" transitive="false">
      <artifact name="spark-catalyst_2.13" type="jar" ext="jar" m:classifier="tests"/>
    </dependency>
"""
#: Tables in memory end with the run, so another definition keeps a copy.
KEPT = """
from pyspark import pipelines as dp


@dp.materialized_view
def kept():
    return spark.read.table("lake.default.customers")
"""


@dataclass(frozen=True)
class Project:
    """A copy of the project, with paths below `home`."""

    home: Path

    @classmethod
    def make(cls, home: Path) -> Project:
        shutil.copytree(PROJECT, home / "project")
        project = cls(home)
        project.change("/data/", f"{home}/data/")
        project.change("configuration:\n", PATIENCE)
        log_dir = LogDir.create(home / "data" / "log")
        log_dir.create_topic("customers", partitions=2)
        return project

    @property
    def log_dir(self) -> LogDir:
        return LogDir.open(self.home / "data" / "log")

    def change(self, old: str, new: str) -> None:
        spec = self.home / "project" / "spark-pipeline.yml"
        text = spec.read_text(encoding="utf-8")
        assert old in text
        spec.write_text(text.replace(old, new), encoding="utf-8")

    def put(self, changes: list[tuple[str, str | None]]) -> None:
        keys, values = zip(*changes, strict=True)
        self.log_dir.append("customers", pa.table({"key": keys, "value": pa.array(values, pa.string())}), flush="os")

    def run(self, *options: str) -> None:
        command = [str(Path(sys.executable).parent / "spark-pipelines"), *options, "run"]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run(
            command,
            cwd=self.home / "project",
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]

    def table(self, name: str) -> list[tuple[object, ...]]:
        """The rows of a table in Spark's warehouse, sorted; its last column is left out."""
        rows = [
            tuple(row.values())[:-1]
            for path in (self.home / "project" / "spark-warehouse" / name).glob("*.parquet")
            for row in pq.read_table(path).to_pylist()
        ]
        return sorted(rows, key=str)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.make(tmp_path)


def test_second_run_of_pipeline_adds_new_records_to_table_and_topic(project: Project) -> None:
    project.put(CHANGES[:3])
    project.run(*KEEP_TABLES)
    project.put(CHANGES[3:])
    project.run(*KEEP_TABLES)
    expected = [
        ("1", "ann", "Bern", False),
        ("1", "ann", "Rome", False),
        ("2", "bob", "Oslo", False),
        ("2", None, None, True),
        ("3", "cyd", "Bern", False),
    ]
    assert project.table("customer_changes") == sorted(expected, key=str)
    rows = project.log_dir.read("customers-by-city").to_pylist()
    assert sorted((row["key"].decode(), row["value"].decode()) for row in rows) == [
        ("Bern", '{"id":"1","name":"ann"}'),
        ("Bern", '{"id":"3","name":"cyd"}'),
        ("Oslo", '{"id":"2","name":"bob"}'),
        ("Rome", '{"id":"1","name":"ann"}'),
    ]


@pytest.mark.skipif(pyspark.__version__ != SPARK_WITH_CATALOG, reason="needs a jar of Spark's tests, of its version")
def test_auto_cdc_keeps_the_row_of_the_last_record_of_each_key(project: Project) -> None:
    jar = (
        fetch_jars(cache_dir() / f"catalyst-tests-{SPARK_WITH_CATALOG}", CATALOG_DEPENDENCY, (CATALOG_JAR,))
        / CATALOG_JAR
    )
    project.change(
        "  # - glob:\n  #     include: current.py",
        "  - glob:\n      include: current.py\n  - glob:\n      include: kept.py",
    )
    project.change("  # spark.kafkalog.customers", f"  spark.sql.catalog.lake: {CATALOG}\n  spark.kafkalog.customers")
    (project.home / "project" / "kept.py").write_text(KEPT, encoding="utf-8")
    project.put(CHANGES)
    project.run("--conf", f"spark.driver.extraClassPath={jar}", "--conf", f"spark.jars={jar}")
    assert project.table("kept") == [("1", "ann", "Bern"), ("3", "cyd", "Bern")]
