"""Small helpers for notebooks with Spark.

    register(spark)                                     if Spark does not find the data source automatically
    set_active_session(spark)                           in a thread that writes
    parse_json(df, "id LONG, amount DOUBLE").select("key", "value.*")
    latest_by_key(df)                                   the records that a complete compaction would keep

They are exported by `pyspark_kafkalog`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.settings import HADOOP_PREFIXES
from pyspark_kafkalog.spark.data_source import KafkalogDataSource


def register(spark: SparkSession) -> None:
    """Register `format("kafkalog")` with the session, and with it the session's `spark.hadoop.fs.s3a.*` settings.

    If the package is installed, Spark finds it automatically; a session whose driver got it as an archive needs this.
    So does one whose endpoint and keys for S3 are in Hadoop's settings: Spark does not show these to the processes in
    which it plans reads and writes of a Python data source. Settings made later need another call.
    """
    settings = {name: value for name, value in spark.conf.getAll.items() if name.startswith(HADOOP_PREFIXES)}

    class WithHadoopSettings(KafkalogDataSource):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__({**settings, **options})

    spark.dataSource.register(WithHadoopSettings if settings else KafkalogDataSource)


def set_active_session(spark: SparkSession) -> None:
    """Make `spark` the active session of the calling thread, so that it can write and start streaming queries.

    Spark 4.2 looks up the format of a write, and of `writeStream.start()`, in the active session of the calling thread
    (DataSource.lookupDataSource), and fails with DATA_SOURCE_NOT_FOUND if the thread has none. Only the thread that
    created the session and the thread that runs a `foreachBatch` function have one. Call this function in each other
    thread, or pass it to the pool that starts them:

        with ThreadPoolExecutor(4, initializer=set_active_session, initargs=(spark,)) as pool: ...

    A Spark Connect session needs no active session: the function does nothing. Raises InvalidOptionError if
    PYSPARK_PIN_THREAD=false, because then a call of this thread may run in any JVM thread.
    """
    from py4j.clientserver import ClientServer  # type: ignore[import-untyped]

    if not isinstance(spark, SparkSession):
        return
    if not isinstance(spark.sparkContext._gateway, ClientServer):
        raise InvalidOptionError(
            "PYSPARK_PIN_THREAD is false, so a Python thread has no JVM thread of its own, and no active session: "
            "leave it at its default, true"
        )
    jvm_session_class = SparkSession._get_j_spark_session_class(spark._jvm)
    jvm_session_class.setActiveSession(spark._jsparkSession)


def parse_json(records: DataFrame, schema: str | StructType) -> DataFrame:
    """`records` with the key as text and the value, JSON, as a struct of `schema` (DDL text or a StructType).

    The other columns are kept. A value that is not JSON of that schema becomes null, as in Spark's from_json. Works on
    streams. `.select("value.*")` converts the fields to columns. Raises InvalidOptionError if there is no column value.
    """
    _need(records, "value")
    parsed = records.withColumn("value", F.from_json(F.col("value").cast("string"), schema))
    return parsed.withColumn("key", F.col("key").cast("string")) if "key" in records.columns else parsed


def latest_by_key(records: DataFrame, *, keep_tombstones: bool = False) -> DataFrame:
    """The last record of each key, by offset: the result of compacting each partition to the end.

    Records without a key are omitted, as the cleaner drops them. A key whose last value is null is deleted: it is
    omitted too, unless `keep_tombstones`. A key that changed its partition, because partitions were added, appears
    once for each partition. Needs the columns key, value and offset, and topic and partition if there are several.
    """
    _need(records, "key", "value", "offset")
    where = [name for name in ("topic", "partition") if name in records.columns]
    whole = F.max_by(F.struct(*records.columns), F.col("offset")).alias("latest")
    latest = records.where("key IS NOT NULL").groupBy(*where, "key").agg(whole).select("latest.*")
    return latest if keep_tombstones else latest.where("value IS NOT NULL")


def _need(records: DataFrame, *names: str) -> None:
    missing = [name for name in names if name not in records.columns]
    if missing:
        raise InvalidOptionError(
            f"the DataFrame has no column {', '.join(missing)}; it has {', '.join(records.columns)}"
        )
