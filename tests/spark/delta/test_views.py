"""Log directories in SQL where the session has Delta's catalog, which takes no tables of Python data sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from pyspark_kafkalog import LogDir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_replaced_view_sees_newer_records(spark: SparkSession, tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    options = f"USING kafkalog OPTIONS (path '{log_dir.path}', subscribe 't')"
    counts = []
    for _ in range(2):
        log_dir.append("t", pa.table({"value": ["v"] * 5}))
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW replaced {options}")
        counts.append(spark.table("replaced").count())
    assert counts == [5, 10]
    spark.sql(f"CREATE TABLE refused {options}")
    try:
        with pytest.raises(AnalysisException, match="kafkalog is not a valid Spark SQL Data Source"):
            spark.table("refused")
    finally:
        spark.catalog.dropTempView("replaced")
        spark.sql("DROP TABLE IF EXISTS refused")
