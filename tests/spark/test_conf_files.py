"""conf/spark-defaults.conf and conf/log4j2.properties, as Spark and its logging read them."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession
from repository import REPOSITORY

from pyspark_kafkalog.config.properties_file import parse_properties
from pyspark_kafkalog.maintenance.jobs import tasks

CONF = REPOSITORY / "conf"
_SETTING = re.compile(r"^#?(spark\.\S+)\s+(\S.*)$", re.MULTILINE)


def settings() -> dict[str, str]:
    """All settings, those that are commented out too."""
    return dict(_SETTING.findall((CONF / "spark-defaults.conf").read_text(encoding="utf-8")))


def test_spark_knows_every_setting_and_accepts_its_value(spark: SparkSession) -> None:
    entries = spark._jvm.org.apache.spark.internal.config.ConfigEntry
    assert len(settings()) >= 8

    for name, value in settings().items():
        if name.startswith("spark.executorEnv."):
            continue
        entry = entries.findEntry(name)
        assert entry is not None, name
        entry.valueConverter().apply(value)


def test_only_two_settings_are_active() -> None:
    path = CONF / "spark-defaults.conf"

    assert parse_properties(path.read_bytes(), file=str(path)) == {
        "spark.sql.session.timeZone": "UTC",
        "spark.python.worker.faulthandler.enabled": "true",
    }


def test_delta_settings_equal_those_of_jobs() -> None:
    found = settings()

    assert found["spark.sql.extensions"] == tasks.EXTENSION
    assert found["spark.sql.catalog.spark_catalog"] == tasks.CATALOG
    assert found["spark.jars.packages"] == tasks.PACKAGE


@pytest.mark.parametrize("name", ["org.apache.spark.sql.execution.datasources.v2.python", ""])
def test_log4j_accepts_file_and_sets_level_warn(spark: SparkSession, name: str) -> None:
    log4j = spark._jvm.org.apache.logging.log4j.core
    uri = spark._jvm.java.io.File(str(CONF / "log4j2.properties")).toURI()

    configuration = log4j.config.ConfigurationFactory.getInstance().getConfiguration(
        log4j.LoggerContext("conf"), "conf", uri
    )
    configuration.initialize()

    assert configuration.getLoggers()[name].getLevel().toString() == "WARN"
    assert list(configuration.getAppenders()) == ["console"]
