"""Apache Kafka's log without the brokers, inside Spark.

Spark imports every package named `pyspark_*` to find its `DefaultSource`, so importing this one stays light: the names
below load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir
    from pyspark_kafkalog.spark.data_source import KafkalogDataSource as DefaultSource

__all__ = ["DefaultSource", "LogDir"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_kafkalog.spark.data_source import KafkalogDataSource

        return KafkalogDataSource
    if name == "LogDir":
        from pyspark_kafkalog.log_dir import LogDir

        return LogDir
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
