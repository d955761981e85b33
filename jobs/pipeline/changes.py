"""The changes of customers: a topic into a table, and the table into a topic with other keys.

    customers, a topic: key id, value JSON or null  ->  customer_changes  ->  customers-by-city, a topic: key city

A run reads from the offsets in the pipeline's storage to the end of the topic, and ends. Each record is in the table
once and in the second topic once, also after a run that was killed. A full refresh of the sink writes them again.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
path = spark.conf.get("spark.kafkalog.path")
assert path is not None


@dp.table
def customer_changes() -> DataFrame:
    """One row for each record. A record without a value deletes its customer; its row has no name and no city."""
    records = (
        spark.readStream.format("kafkalog")
        .option("subscribe", "customers")
        .option("startingOffsets", "earliest")
        .load(path)
    )
    customer = F.from_json(F.col("value").cast("string"), "name STRING, city STRING")
    rows = records.select(F.col("key").cast("string").alias("id"), customer.alias("customer"), "value", "offset")
    return rows.select("id", "customer.name", "customer.city", F.col("value").isNull().alias("deleted"), "offset")


dp.create_sink("customers_by_city", "kafkalog", {"path": path, "topic": "customers-by-city"})


@dp.append_flow(target="customers_by_city")
def by_city() -> DataFrame:
    """Customers by city. The columns of a sink are those of a write: key and value here."""
    known = spark.readStream.table("customer_changes").where("city IS NOT NULL")
    return known.select(F.col("city").alias("key"), F.to_json(F.struct("id", "name")).alias("value"))
