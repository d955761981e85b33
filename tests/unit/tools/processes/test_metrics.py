"""`kafkalog metrics` serves and prints current metrics for Prometheus, and ends on a signal."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from kafkalog_command import Command
from prometheus_client.parser import text_string_to_metric_families

from pyspark_kafkalog import LogDir

SECONDS_MAX = 60


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.append("orders", pa.table({"value": ["a", "b"]}))
    return log_dir


@pytest.fixture
def metrics(log_dir: LogDir, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command("metrics", log_dir.path, capsys)


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by labels, by name."""
    return {
        family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


@contextmanager
def served(root: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, listening on a free port, and where."""
    command = [
        sys.executable,
        "-m",
        "pyspark_kafkalog",
        "metrics",
        "--path",
        str(root),
        "--metrics-listen",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Serving metrics at http://127.0.0.1:")
            yield process, line.split()[-1]
        finally:
            process.kill()


def scrape(url: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return parsed(answer.read().decode())


def test_scrape_has_current_metrics_and_server_ends_on_sigterm(log_dir: LogDir) -> None:
    orders = (("partition", "0"), ("topic", "orders"))
    with served(log_dir.path) as (process, url):
        assert scrape(url)["kafka_log_log_logendoffset"][orders] == 2
        log_dir.append("orders", pa.table({"value": ["c"]}))
        after = scrape(url)
        assert after["kafka_log_log_logendoffset"][orders] == 3
        assert after["kafka_log_log_size"][orders] == next(log_dir.path.glob("orders-0/*.log")).stat().st_size
        assert after["kafka_log_logmanager_offlinelogdirectorycount"] == {(): 0}
        log_dir.path.rename(log_dir.path.with_name("away"))
        assert scrape(url) == {
            "kafka_log_logmanager_offlinelogdirectorycount": {(): 1},
            "kafka_log_logmanager_logdirectoryoffline": {(("logDirectory", str(log_dir.path)),): 1},
            "kafkalog_scrape_duration_seconds": {(): pytest.approx(0, abs=SECONDS_MAX)},
        }
        log_dir.path.with_name("away").rename(log_dir.path)
        assert scrape(url)["kafka_log_log_logendoffset"][orders] == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0


def test_once_prints_metrics_and_ends(metrics: Command, log_dir: LogDir) -> None:
    found = parsed(metrics("--once"))
    assert found["kafka_log_log_logendoffset"] == {(("partition", "0"), ("topic", "orders")): 2}
    assert found["kafka_server_replicamanager_underreplicatedpartitions"] == {(): 0}


def test_invalid_port_or_root_is_rejected_in_one_line(metrics: Command, tmp_path: Path) -> None:
    assert "expected HOST:PORT" in metrics.fails("--metrics-listen", "127.0.0.1:70000")
    metrics.root = tmp_path / "nothing"
    assert "nothing" in metrics.fails("--once")


def test_earlier_options_for_the_address_still_work(metrics: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port}: cannot listen" in metrics.fails("--port", port, "--host", "127.0.0.1")


def test_address_in_use_is_named(metrics: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"{address}: cannot listen: Address already in use" in metrics.fails("--metrics-listen", address)
