"""One Spark session for all tests of a run; other kinds of sessions are in test_source_sessions.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores, UTC, Arrow batches small enough that a test's rows fill several.

    It has Delta's jars and SQL extension, but not its catalog, which knows no Python data sources (delta/conftest.py).
    """
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.maintenance.jobs.session import EXTENSION

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        configure_spark_with_delta_pip(SparkSession.builder)
        .config("spark.sql.extensions", EXTENSION)
        .master("local[2]")
        .appName("kafkalog-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(params=["false", "true"], ids=["pushdown-off", "pushdown-on"])
def pushdown(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    """Runs a test with filter pushdown off and on."""
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param == "true"
    spark.conf.set(PUSHDOWN, "false")


@pytest.fixture
def load(spark: SparkSession) -> Callable[..., DataFrame]:
    """`load(path, subscribe="a", ...)`: a batch read with these options."""

    def read(path: Path | str, **options: object) -> DataFrame:
        return spark.read.format("kafkalog").options(**options).load(str(path))

    return read
