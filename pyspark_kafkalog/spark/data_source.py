"""`format("kafkalog")`: the class that Spark finds as `DefaultSource` and asks for the schema, readers and writers.

Spark creates it again in short-lived processes to plan, so heavy modules are imported only where records are read or
written.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Final

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_kafkalog.errors import InvalidOptionError, MissingPackageError
from pyspark_kafkalog.spark.options.parse import (
    at_location,
    effective_read_options,
    locate_source,
    of_create_table,
    parse_load_options,
    parse_read_options,
    parse_stream_read_options,
    parse_stream_write_options,
    parse_write_options,
    with_table_options,
)
from pyspark_kafkalog.spark.schema import check_read_schema, check_write_schema, read_schema

#: A part of the Python Data Source API that Spark 4.2 added. It tells more than a version: vendors change versions, and
#: add parts of later releases.
_OF_SPARK_4_2: Final = "pyspark.sql.streaming.datasource"
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class KafkalogDataSource(DataSource):
    """Apache Kafka's log in a directory, with the columns and options of Spark's Kafka source and sink."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises MissingPackageError under a Spark older than 4.2.

        This is the first call that Spark passes on to the user. The lookup of data sources before it reports nothing,
        and an error in it would hide the data sources of all packages.
        """
        check_spark()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "kafkalog"

    def schema(self) -> StructType:
        """Spark's Kafka schema. Checks the options, so that load() already reports a mistake."""
        table_options = of_create_table(self.options)
        options = parse_load_options(self.options if table_options is None else table_options)
        at_location(options.subscription, locate_source(options))
        schema = read_schema(options.include_headers)
        return schema if table_options is None else with_table_options(schema, table_options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of `schema`. It takes filters if the options enable this and Spark is about to push them.

        This is off by default: PythonScanBuilder of Spark 4.2 stores the partitions planned for a filter with the
        loaded source, so that another query on the same DataFrame (without a filter, or a union of two filters)
        would get the filtered rows. Later Spark versions store them with the scan.
        """
        from pyspark_kafkalog.spark.read.batch import KafkalogBatchReader, KafkalogPushdownReader

        check_read_schema(schema)
        options = parse_read_options(effective_read_options(self.options, schema))
        if options.filter_pushdown and _is_pushing_filters():
            return KafkalogPushdownReader(options, schema)
        return KafkalogBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming reader of `schema`."""
        from pyspark_kafkalog.spark.stream.reader import KafkalogStreamReader

        check_read_schema(schema)
        return KafkalogStreamReader(parse_stream_read_options(effective_read_options(self.options, schema)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer of rows of `schema`."""
        from pyspark_kafkalog.spark.write.writers import KafkalogBatchWriter

        if overwrite:
            raise InvalidOptionError(
                "mode overwrite is not possible, a log is only appended to: use mode append or "
                "INSERT INTO (to start afresh, delete the topic first: kafkalog topics --delete)"
            )
        options = parse_write_options(self.options)
        check_write_schema(schema, options.topic)
        return KafkalogBatchWriter.make(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer of micro-batches of rows of `schema`.

        `overwrite` means output mode complete: each result is appended, as in Spark's Kafka sink. Spark itself refuses
        output mode update for Python data sources.
        """
        from pyspark_kafkalog.spark.write.writers import KafkalogStreamWriter

        options = parse_stream_write_options(self.options)
        check_write_schema(schema, options.topic)
        return KafkalogStreamWriter.make(options)


def check_spark() -> None:
    """Raises MissingPackageError if this Spark's Python Data Source API is older than that of Spark 4.2.

    Spark 4.0 has no filters and no Arrow writers of streams. Spark 4.1 has no read limits and no available-now of
    streaming readers. The readers and writers are built on them.
    """
    if importlib.util.find_spec(_OF_SPARK_4_2) is None:
        raise MissingPackageError(
            f'format("kafkalog") expects Spark 4.2 or newer, found pyspark {pyspark.__version__} without '
            f"{_OF_SPARK_4_2}: use a newer Spark, or read and write without Spark by pyspark_kafkalog.LogDir"
        )


def _is_pushing_filters() -> bool:
    """Whether this is the process in which Spark pushes filters.

    Spark refuses a reader with `pushFilters` while spark.sql.python.filterPushdown.enabled is off, and a data source
    cannot read that setting. But when it is on and the query has a filter, a separate worker module plans the read.
    """
    return (
        _PUSHDOWN_WORKER in sys.modules or getattr(sys.modules["__main__"].__spec__, "name", None) == _PUSHDOWN_WORKER
    )
