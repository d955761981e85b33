"""Sessions with Delta: its SQL extension, its catalog, its jars; and how its tables are named."""

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
#: spark-submit tells the Python it starts where its JVM is.
SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"


def with_delta(builder: SparkSession.Builder) -> SparkSession.Builder:
    """`builder` with Delta's SQL extension and catalog, and its jars where this process is to start the JVM."""
    from delta import configure_spark_with_delta_pip

    builder = builder.config("spark.sql.extensions", EXTENSION).config("spark.sql.catalog.spark_catalog", CATALOG)
    if SPARK_SUBMIT in os.environ:
        return builder  # spark-submit has started it, with the jars that it was told of
    return configure_spark_with_delta_pip(builder)


def check_delta(spark: SparkSession) -> None:
    """Raises InvalidOptionError when the session's JVM has no Delta."""
    jvm: Any = spark.sparkContext._jvm
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(EXTENSION):
        raise InvalidOptionError(
            "the Spark session has no Delta: run the job with python, which fetches Delta's jars, or with "
            f"spark-submit --packages {PACKAGE}"
        )


def is_path(table: str) -> bool:
    """Whether a table is named by its path, as one is with a slash in it, and not by its name in the catalog."""
    return "/" in table
