"""Apache Kafka's log without the brokers, inside Spark.

Spark imports every package named `pyspark_*` to find its `DefaultSource`. To keep that import fast, the names below
load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.version import __version__

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir
    from pyspark_kafkalog.notebook.spark_helpers import latest_by_key, parse_json, register, set_active_session
    from pyspark_kafkalog.server.run import serve
    from pyspark_kafkalog.spark.data_source import KafkalogDataSource as DefaultSource
    from pyspark_kafkalog.tools.main import main

__all__ = [
    "DefaultSource",
    "LogDir",
    "__version__",
    "latest_by_key",
    "main",
    "parse_json",
    "register",
    "serve",
    "set_active_session",
]

_HOMES = {
    "DefaultSource": ("pyspark_kafkalog.spark.data_source", "KafkalogDataSource"),
    "LogDir": ("pyspark_kafkalog.log_dir", "LogDir"),
    "latest_by_key": ("pyspark_kafkalog.notebook.spark_helpers", "latest_by_key"),
    "main": ("pyspark_kafkalog.tools.main", "main"),
    "parse_json": ("pyspark_kafkalog.notebook.spark_helpers", "parse_json"),
    "register": ("pyspark_kafkalog.notebook.spark_helpers", "register"),
    "serve": ("pyspark_kafkalog.server.run", "serve"),
    "set_active_session": ("pyspark_kafkalog.notebook.spark_helpers", "set_active_session"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
