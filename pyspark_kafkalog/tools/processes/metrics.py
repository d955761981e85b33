"""`kafkalog metrics`: a log directory's metrics, collected at each scrape."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.tasks import stop_signal
from pyspark_kafkalog.maintenance.metrics import Metric, collect_metrics, offline_metrics
from pyspark_kafkalog.metadata.root_format import is_native_root
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.server.config import Address
from pyspark_kafkalog.server.metrics import start_pages
from pyspark_kafkalog.storage.below_root import split_paths
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.tools.command import one_line
from pyspark_kafkalog.tools.running import open_log_dir, warn_of_unread_offsets

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.samples import Sample


def run(options: argparse.Namespace) -> int:
    """Print or serve the metrics."""
    from prometheus_client import CollectorRegistry, generate_latest

    address = options.metrics_listen if options.port is None else f"{options.host}:{options.port}"
    listen = Address.parse(address) if not options.once else None
    registry = CollectorRegistry(auto_describe=False)
    log_dir = open_log_dir(options)
    collector = LogDirCollector(log_dir, read_to_log_end=options.read_to_log_end, lag_seconds=options.lag_seconds)
    if options.once:
        collector.check()
    registry.register(collector)
    if listen is None:
        sys.stdout.write(generate_latest(registry).decode())
        warn_of_unread_offsets("metrics", log_dir)
        return 0
    return _serve(registry, listen)


class LogDirCollector:
    """The collector that prometheus_client calls at every scrape; one scrape at a time."""

    def __init__(self, log_dir: LogDir, *, read_to_log_end: bool = False, lag_seconds: bool = False) -> None:
        path = log_dir.root.path
        self._path = path if isinstance(path, Path) else str(path)
        self._read_to_log_end = read_to_log_end
        self._lag_seconds = lag_seconds
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
        try:
            return collect_metrics(self._refreshed().root, now_ms=time_ms(), lag_seconds=self._lag_seconds)
        except (KafkalogError, OSError) as error:
            self._log_dir = None  # it may be adopted, or restored from a copy, before it can be read again
            sys.stderr.write(f"kafkalog metrics: {one_line(error)}\n")
            directories = split_paths(self._path) if isinstance(self._path, Path) else (self._path,)
            return offline_metrics(directories, is_offline=True)

    def _refreshed(self) -> LogDir:
        if self._log_dir is None or (self._log_dir.version is None and self._has_been_adopted()):
            root = open_root(self._path, identity=self._identity, read_to_log_end=self._read_to_log_end)
            self._log_dir = LogDir(root)
        else:
            self._log_dir.refresh()
        return self._log_dir

    def _has_been_adopted(self) -> bool:
        """Whether the directory, which had no commits when it was opened, has them now."""
        return isinstance(self._path, Path) and is_native_root(self._path)


def _samples(metric: Metric) -> Iterator[Sample]:
    from prometheus_client.samples import Sample

    name, tags = metric.prometheus_name, metric.tags
    for tag_values, value in metric.values.items():
        yield Sample(name, dict(zip(tags, tag_values, strict=True)), value)


def _serve(registry: CollectorRegistry, address: Address) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP. Raises OSError if the address cannot be listened on."""
    with stop_signal() as stop, serving_metrics(registry, address) as url:
        sys.stdout.write(f"Serving metrics at {url}\n")
        sys.stdout.flush()
        stop.wait()
    return 0


@contextmanager
def serving_metrics(registry: CollectorRegistry, address: Address) -> Iterator[str]:
    """Serve the metrics of `registry` to Prometheus during the block; the value is their URL.

    Raises OSError, which names the address, if it cannot be listened on.
    """
    from prometheus_client import make_wsgi_app

    port, close = start_pages(address, make_wsgi_app(registry))
    try:
        yield f"http://{replace(address, port=port)}/metrics"
    finally:
        close()
