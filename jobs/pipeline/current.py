"""The current row of each customer, by AUTO CDC from the changes of changes.py.

Offsets order the changes, because all records of a key are in one partition. They no longer do after partitions were
added to the topic: refresh the pipeline in full then (`spark-pipelines run --full-refresh-all`).
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

target = SparkSession.active().conf.get("spark.kafkalog.customers")
assert target is not None

dp.create_streaming_table(target)
dp.create_auto_cdc_flow(
    target=target,
    source="customer_changes",
    keys=["id"],
    sequence_by="offset",
    apply_as_deletes="deleted",
    except_column_list=["deleted", "offset"],
    stored_as_scd_type=1,
)
