"""The session of the other Spark tests, with Delta's catalog: the active one, as in a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pyspark_kafkalog.maintenance.jobs.tasks import CATALOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    session = spark.newSession()
    session.conf.set("spark.sql.catalog.spark_catalog", CATALOG)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", session)  # what builder.getOrCreate() gives
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)
    yield session
    session._jvm.SparkSession.setActiveSession(spark._jsparkSession)
