"""Spark sessions of jobs: existing ones, or new ones on this machine, with Delta if needed; names of Delta tables."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.threads import starts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger(__name__)

#: Delta's SQL extension, its catalog, and its jars as Maven names them.
EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
#: spark-submit sets it for the Python process that it starts: the port of its JVM.
SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"


def with_delta(builder: SparkSession.Builder) -> SparkSession.Builder:
    """`builder` with Delta's SQL extension and catalog, and with its jars if this process starts the JVM."""
    builder = builder.config("spark.sql.extensions", EXTENSION).config("spark.sql.catalog.spark_catalog", CATALOG)
    if SPARK_SUBMIT in os.environ:
        return builder  # spark-submit has started the JVM, with the jars that it was given
    from delta import configure_spark_with_delta_pip

    return configure_spark_with_delta_pip(builder)


def import_delta() -> None:
    """Import Delta's package if this process starts the JVM. Raises ModuleNotFoundError.

    Jobs with Delta call this before they import pyspark: without both packages, the error is the one for the extra
    `delta`, which installs a Spark that fits Delta. The extra `spark` may install a later one.
    """
    if SPARK_SUBMIT not in os.environ:
        importlib.import_module("delta")


def check_delta(spark: SparkSession) -> None:
    """Raises InvalidOptionError if the session's JVM does not have Delta."""
    jvm: Any = spark.sparkContext._jvm
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(EXTENSION):
        raise InvalidOptionError(
            "the Spark session has no Delta: run the job with python, which fetches Delta's jars, or with "
            f"spark-submit --packages {PACKAGE}"
        )


def is_spark_installed() -> bool:
    """Whether this environment has pyspark."""
    return importlib.util.find_spec("pyspark") is not None


def has_session() -> bool:
    """Whether this process has a Spark session, or gets one from spark-submit."""
    if SPARK_SUBMIT in os.environ:
        return True
    pyspark_sql = sys.modules.get("pyspark.sql")
    return pyspark_sql is not None and pyspark_sql.SparkSession.getActiveSession() is not None


def active_session() -> SparkSession:
    """The session of this process; a new one if it has none."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


@contextmanager
def job_session(name: str, *, delta: bool = False) -> Iterator[SparkSession]:
    """The existing session, spark-submit's, or a new one on all cores of this machine, with Delta if `delta`.

    A session created for this block is stopped at its end. Raises ModuleNotFoundError without Spark, or without Delta.
    """
    if delta:
        import_delta()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SPARK_SUBMIT not in os.environ:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    existing = SparkSession.getActiveSession()
    if existing is not None:
        yield existing
        return
    builder = SparkSession.builder.appName(name)
    if delta:
        builder = with_delta(builder)
    session = builder.getOrCreate() if SPARK_SUBMIT in os.environ else _start_here(builder)
    try:
        yield session
    finally:
        _end(session)


def _start_here(builder: SparkSession.Builder) -> SparkSession:
    """Start a session on this machine. What its JVM prints meanwhile, as its banner, is only shown if that fails."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    builder = (
        builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    if SparkContext._gateway is not None:  # a JVM is running, and has printed its banner
        return builder.getOrCreate()
    conf = SparkConf().setAll([(name, str(value)) for name, value in builder._options.items()])
    with _held_back_stderr() as stderr_fd:
        launch: Any = launch_gateway  # untyped
        SparkContext(conf=conf, gateway=launch(conf, {"stderr": stderr_fd}))
        return builder.getOrCreate()


@contextmanager
def _held_back_stderr() -> Iterator[int]:
    """A file for the standard error of another process: until the end of the block it is held back.

    After the block it goes to this process' standard error, with the part that was held back if the block failed.
    """
    read_fd, write_fd = os.pipe()
    held: list[bytes] | None = []
    lock = threading.Lock()

    def copy() -> None:
        with os.fdopen(read_fd, "rb", buffering=0) as stream:
            while data := stream.read(1 << 16):
                with lock:
                    if held is None:
                        _to_stderr(data)
                    else:
                        held.append(data)

    def let_through(*, with_held: bool) -> None:
        nonlocal held
        with lock:
            if with_held and held:
                _to_stderr(b"".join(held))
            held = None

    if not starts(threading.Thread(target=copy, daemon=True)):
        os.close(read_fd)
        os.close(write_fd)
        yield 2  # shown as it comes
        return
    try:
        yield write_fd
    except BaseException:
        let_through(with_held=True)
        raise
    else:
        let_through(with_held=False)
    finally:
        os.close(write_fd)


def _to_stderr(data: bytes) -> None:
    while data:
        data = data[os.write(2, data) :]


def _end(session: SparkSession) -> None:
    try:
        session.stop()
    except Exception as error:  # the JVM has already ended
        _LOG.info("the Spark session had ended: %s", error)


def is_path(table: str) -> bool:
    """Whether `table` is a path (it contains a slash) and not a name in the catalog."""
    return "/" in table
