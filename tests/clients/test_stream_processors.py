"""Stream processors with transactions of their own, Flink and Quix Streams, deliver each row once.

The programs assert what they read; each prints a count at its end.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_processes.client_programs import FLINK, PROGRAMS, QUIX_STREAMS, flink_connector, python_with, run_client

from pyspark_kafkalog import LogDir


@pytest.fixture
def flink_topics(served_root: Path) -> None:
    """Flink's sink looks for open transactions of its topics at its start, and fails if there is no such topic."""
    for naming in ("incrementing", "pooling"):
        LogDir.open(served_root).create_topic(f"flink-{naming}", partitions=3)


@pytest.mark.usefixtures("flink_topics")
def test_flink_reads_each_row_once_that_its_exactly_once_sinks_wrote(bootstrap: str, tmp_path: Path) -> None:
    python = python_with("flink", FLINK)
    said = run_client([python, PROGRAMS / "flink_client.py", bootstrap, flink_connector(), tmp_path])
    assert said == "20000 rows twice\n"


def test_quix_streams_counts_each_value_once(bootstrap: str, tmp_path: Path) -> None:
    python = python_with("quix-streams", QUIX_STREAMS)
    said = run_client([python, PROGRAMS / "quix_streams_client.py", bootstrap, tmp_path])
    assert said == "1000 counts\n"
