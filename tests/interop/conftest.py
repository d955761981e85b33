"""Fixtures of the tests that run real Kafka. Every test below this folder carries the `interop` mark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from kafka_processes.oracle import KAFKA_VERSION, Broker, kafka_lib

from pyspark_kafkalog.version import KafkaVersion

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session", autouse=True)
def kafka_jars() -> Path:
    """Kafka's jars, fetched before any test's own time counts."""
    return kafka_lib()


@pytest.fixture(scope="module")
def start_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Broker]]:
    """`start_broker(settings)`: a running broker of one's own, stopped at the end of the module whatever happens."""
    with ExitStack() as running:

        def start(settings: Mapping[str, str] | None = None, version: KafkaVersion = KAFKA_VERSION) -> Broker:
            home = tmp_path_factory.mktemp("broker")
            return running.enter_context(Broker(home, settings or {}, version=version))

        yield start
