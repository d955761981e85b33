"""A job around one streaming query: session, trigger, signals, errors.

A query without an interval processes what is available at its start, in batches, and ends. With an interval it runs
until SIGTERM, SIGINT or SIGHUP and then stops, possibly within a batch. The next run repeats that batch, which is
written once.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.maintenance.jobs.tasks import check_delta, import_delta, stop_signal, with_delta
from pyspark_kafkalog.units import printable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS: Final = 0.2
#: What Spark adds around the message of a failed query.
_WRAPPINGS: Final = re.compile(r"^(\[[A-Z_.]+\] )+|( SQLSTATE: \w{5})$")
_RAISED: Final = re.compile(r"(bad record in .*? at offset .*?)(?: SQLSTATE: \w{5}|$)", re.MULTILINE)
#: Spark's text for an error in foreachBatch; Python's traceback follows, with the error itself in its last lines.
_PROXY: Final = "exception was raised by the Python Proxy"
_INNERMOST: Final = re.compile(r"^(?:[\w.]+\.)?\w+(?:Error|Exception): (.+)$", re.MULTILINE)


def add_query_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that both jobs share."""
    parser.add_argument("--path", required=True, metavar="ROOT", help="the log directory (no default)")
    parser.add_argument("--table", required=True, metavar="TABLE", help="the Delta table: a path, or a name")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="the query's checkpoint: one for each query")
    parser.add_argument(
        "--continuous",
        metavar="INTERVAL",
        help="continue, with a batch each INTERVAL, such as '10 seconds' (default: stop at the current end)",
    )


def named_values(option: str, settings: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` settings as a dictionary. Raises InvalidOptionError for a setting of another form."""
    values: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise InvalidOptionError(f"{option} {setting}: expected NAME=VALUE")
        values[name.strip()] = value.strip()
    return values


def start(
    rows: DataFrame, write: Callable[[DataFrame, int], None], *, checkpoint: str, continuous: str | None
) -> StreamingQuery:
    """Start the query; it calls `write` with each micro-batch and its number."""
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    triggered = writer.trigger(availableNow=True) if continuous is None else writer.trigger(processingTime=continuous)
    return triggered.start()


def run_job(name: str, begin: Callable[[SparkSession], StreamingQuery]) -> int:
    """Run the query that `begin` starts and return the exit status; an error is printed as one line.

    Raises ModuleNotFoundError without Spark or Delta.
    """
    import_delta()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        with stop_signal() as stop:
            spark = with_delta(SparkSession.builder.appName(name)).getOrCreate()
            check_delta(spark)
            query = begin(spark)
            while query.isActive and not stop.wait(_POLL_SECONDS):
                pass
            query.stop()
            if (failure := query.exception()) is not None and not stop.is_set():
                raise failure
    except (KafkalogError, OSError) as error:
        return _fail(name, str(error))
    except PySparkException as error:
        return _fail(name, error_text(error))
    return 0


def error_text(error: Any) -> str:
    """The essential message of a Spark error, in one line."""
    text = str(error)
    if (raised := _RAISED.search(text)) is not None:
        return raised.group(1)
    if _PROXY in text and (inner := _INNERMOST.findall(text)):
        return _WRAPPINGS.sub("", str(inner[-1]).strip())
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return _WRAPPINGS.sub("", lines[0].strip()) if lines else type(error).__name__


def _fail(name: str, text: str) -> int:
    sys.stderr.write(printable(f"{name}: {' '.join(text.split())}") + "\n")
    return 1
