"""The peers of the comparison: a Spark session with its Kafka connector and Delta, and a Kafka broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from kafka_processes.oracle import Broker  # noqa: E402

KAFKA_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
BROKER_JAVA_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-Djava.awt.headless=true")


def standin_jar(scratch: Path) -> Path | None:
    """A jar of standin/: the one that KAFKALOG_BENCH_STANDIN_JAR names, else compiled here; None without a javac."""
    if configured := os.environ.get("KAFKALOG_BENCH_STANDIN_JAR"):
        return Path(configured)
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin" if home else None)
    if javac is None:
        return None
    import pyspark

    classes = scratch / "standin"
    classes.mkdir()
    sources = [str(path) for path in (HERE / "standin").rglob("*.java")]
    jars = Path(pyspark.__file__).parent / "jars"
    subprocess.run([javac, "-nowarn", "-d", str(classes), "-cp", f"{jars}/*", *sources], check=True)
    return Path(shutil.make_archive(str(scratch / "standin"), "zip", classes)).rename(scratch / "standin.jar")


def start_spark(scratch: Path, standin: Path | None, *, cores: int) -> SparkSession:
    """A session with all contenders' jars (fetched into Ivy's cache on first use)."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(HERE)  # Python workers load bench_ceiling from here
    packages = [DELTA, KAFKA_CONNECTOR] if standin else [DELTA]
    builder = (
        SparkSession.builder.appName("kafkalog benchmarks")
        .master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "6g")
        .config("spark.jars.packages", ",".join(packages))
        .config("spark.jars.excludes", TOKEN_PROVIDER)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
    )
    if standin:
        builder = builder.config("spark.jars", str(standin))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def make_broker(scratch: Path) -> Broker:
    """A broker that is given what a broker in production has: a real compiler, a garbage collector, a gigabyte."""
    return Broker(scratch / "broker", {"num.io.threads": "8"}, BROKER_JAVA_OPTIONS)
