"""Coordinators of transactions over one root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.transaction_servers import Coordinated, Start

from pyspark_kafkalog.log_dir import LogDir


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server's coordinator over the same root."""
    log_dir = LogDir.open_or_create(tmp_path / "root")
    log_dir.create_topic("a", 2)
    log_dir.create_topic("b", 1)
    log_dir.alter_broker_configs(add={"transaction.state.log.num.partitions": "2"})
    started: list[Coordinated] = []

    def begin() -> Coordinated:
        started.append(Coordinated(tmp_path / "root"))
        return started[-1]

    yield begin
    for each in started:
        each.close()
