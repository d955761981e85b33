"""What the tests of the Spark session share (the session itself: tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


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
