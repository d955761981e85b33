"""A root, and servers over it that coordinate its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.group_servers import GroupServer

from pyspark_kafkalog import LogDir

DELAY_MS = 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A root with topic `a`; the first rebalance of a group waits `DELAY_MS`."""
    settings = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": str(DELAY_MS)}
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.alter_broker_configs(add=settings)
    log_dir.create_topic("a", partitions=2)
    return tmp_path / "log"


@pytest.fixture
def servers(path: Path) -> Iterator[Callable[[], GroupServer]]:
    """Makes servers over the root."""
    made: list[GroupServer] = []

    def make() -> GroupServer:
        made.append(GroupServer(path))
        return made[-1]

    yield make
    for each in made:
        each.close()
