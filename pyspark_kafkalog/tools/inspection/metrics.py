"""`kafkalog metrics`: serve a log directory's metrics under Kafka's names, for Prometheus.

Names are those that the usual rules of Prometheus' JMX exporter give to a broker's beans, such as kafka_log_log_size
for kafka.log:type=Log,name=Size, so that dashboards for brokers find them. Every scrape reads the current state of the
directory. kafka_log_logmanager_offlinelogdirectorycount is 1 while the log directory cannot be read, or another one
(with another cluster id or directory id) is in its place. SIGTERM and Ctrl-C end the command with exit code 0. Port 0
selects a free port. The address is printed once the server listens.

examples:
  kafkalog metrics --path /data/log --port 9308
  kafkalog metrics --path /data/log --port 9308 --host 0.0.0.0
  kafkalog metrics --path /data/log --once | grep records_lag
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.tasks import stop_signal
from pyspark_kafkalog.metadata.root_format import is_native_root
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.path_list import split_paths
from pyspark_kafkalog.tools.command import UsageError, add_path, add_read_to_log_end, one_line
from pyspark_kafkalog.tools.running import open_log_dir, serving_metrics, warn_of_unread_offsets

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.samples import Sample

    from pyspark_kafkalog.maintenance.metrics import Metric

_PORT_MAX = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, and either the address to listen on or `--once`."""
    add_path(parser)
    add_read_to_log_end(parser)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--port", type=int, metavar="P", help="serve them at http://HOST:P/metrics until SIGTERM, SIGINT or SIGHUP"
    )
    how.add_argument("--once", action="store_true", help="print them once and exit")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="listen there (default: 127.0.0.1)")


def run(options: argparse.Namespace) -> int:
    """Print or serve the metrics."""
    from prometheus_client import CollectorRegistry, generate_latest

    if options.port is not None and not 0 <= options.port <= _PORT_MAX:
        raise UsageError(f"--port must be from 0 to {_PORT_MAX}, not {options.port}")
    registry = CollectorRegistry(auto_describe=False)
    log_dir = open_log_dir(options)
    collector = LogDirCollector(log_dir, read_to_log_end=options.read_to_log_end)
    if options.once:
        collector.check()
    registry.register(collector)
    if options.once:
        sys.stdout.write(generate_latest(registry).decode())
        warn_of_unread_offsets("metrics", log_dir)
        return 0
    return _serve(registry, options.host, options.port)


class LogDirCollector:
    """The collector that prometheus_client calls at every scrape; one scrape at a time."""

    def __init__(self, log_dir: LogDir, *, read_to_log_end: bool = False) -> None:
        path = log_dir.root.path
        self._path = path if isinstance(path, Path) else str(path)
        self._read_to_log_end = read_to_log_end
        self._identity = log_dir.identity
        self._log_dir: LogDir | None = log_dir
        self._lock = threading.Lock()

    def describe(self) -> list[GaugeMetricFamily]:
        """Empty, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The current metrics."""
        from prometheus_client.core import GaugeMetricFamily

        started = time.perf_counter()
        with self._lock:
            metrics = self._collected()
        for metric in metrics:
            if not metric.values:
                continue
            family = GaugeMetricFamily(metric.prometheus_name, f"{metric.bean_pattern}: {metric.meaning}")
            family.samples.extend(_samples(metric))
            yield family
        seconds = time.perf_counter() - started
        yield GaugeMetricFamily("kafkalog_scrape_duration_seconds", "seconds to collect all others", value=seconds)

    def check(self) -> None:
        """Raises LogDirError if the log directory cannot be read."""
        assert self._log_dir is not None
        self._log_dir.refresh()

    def _collected(self) -> list[Metric]:
        from pyspark_kafkalog.maintenance.metrics import collect_metrics, offline_metrics

        try:
            return collect_metrics(self._refreshed().root, now_ms=time_ms())
        except (KafkalogError, OSError) as error:
            self._log_dir = None  # it may be adopted, or restored from a copy, before it can be read again
            sys.stderr.write(f"kafkalog metrics: {one_line(error)}\n")
            directories = split_paths(self._path) if isinstance(self._path, Path) else (self._path,)
            return offline_metrics(directories, is_offline=True)

    def _refreshed(self) -> LogDir:
        # A broker's directory may have been adopted meanwhile.
        is_adopted = isinstance(self._path, Path) and is_native_root(self._path)
        if self._log_dir is None or (self._log_dir.is_broker_directory and is_adopted):
            self._log_dir = LogDir.open(self._path, identity=self._identity, read_to_log_end=self._read_to_log_end)
        else:
            self._log_dir.refresh()
        return self._log_dir


def _samples(metric: Metric) -> Iterator[Sample]:
    from prometheus_client.samples import Sample

    name, tags = metric.prometheus_name, metric.tags
    for tag_values, value in metric.values.items():
        yield Sample(name, dict(zip(tags, tag_values, strict=True)), value)


def _serve(registry: CollectorRegistry, host: str, port: int) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP. Raises OSError if the address cannot be listened on."""
    from pyspark_kafkalog.server.config import Address

    with stop_signal() as stop, serving_metrics(registry, Address(host, port)) as url:
        sys.stdout.write(f"Serving metrics at {url}\n")
        sys.stdout.flush()
        stop.wait()
    return 0
