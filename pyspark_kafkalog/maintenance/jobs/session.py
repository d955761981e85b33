"""Spark sessions with Delta (SQL extension, catalog and jars), and the names of Delta tables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Delta's SQL extension, its catalog, and its jars as Maven names them.
EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
#: spark-submit sets it for the Python process that it starts: the port of its JVM.
SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"


def with_delta(builder: SparkSession.Builder) -> SparkSession.Builder:
    """`builder` with Delta's SQL extension and catalog, and with its jars if this process starts the JVM."""
    from delta import configure_spark_with_delta_pip

    builder = builder.config("spark.sql.extensions", EXTENSION).config("spark.sql.catalog.spark_catalog", CATALOG)
    if SPARK_SUBMIT in os.environ:
        return builder  # spark-submit has started the JVM, with the jars that it was given
    return configure_spark_with_delta_pip(builder)


def check_delta(spark: SparkSession) -> None:
    """Raises InvalidOptionError if the session's JVM does not have Delta."""
    jvm: Any = spark.sparkContext._jvm
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(EXTENSION):
        raise InvalidOptionError(
            "the Spark session has no Delta: run the job with python, which fetches Delta's jars, or with "
            f"spark-submit --packages {PACKAGE}"
        )


def is_path(table: str) -> bool:
    """Whether `table` is a path (it contains a slash) and not a name in the catalog."""
    return "/" in table
