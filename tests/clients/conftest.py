"""Clients of others at this package's server: make test-clients. docs/SERVER.md lists what is tried and skipped.

KAFKALOG_TEST_CLIENTS=1 says that these tests are wanted: they need Go, npm and the package registries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_processes.server_processes import serving

from pyspark_kafkalog import LogDir

_HERE = Path(__file__).parent
#: Groups begin without a delay, and few partitions of the internal topics do.
_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    own = [item for item in items if _HERE in item.path.parents]
    for item in own:
        item.add_marker(pytest.mark.interop)
    if not os.environ.get("KAFKALOG_TEST_CLIENTS"):
        items[:] = [item for item in items if item not in own]
        config.hook.pytest_deselected(items=own)


@pytest.fixture(scope="module")
def served_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served") / "log"
    LogDir.create(root).alter_broker_configs(add=_SETTINGS)
    return root


@pytest.fixture(scope="module")
def bootstrap(served_root: Path) -> Iterator[str]:
    """The address of a server over `served_root`."""
    with serving(served_root) as server:
        yield server.bootstrap
