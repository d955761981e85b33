"""Fixtures that every kind of test shares."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
KAFKA_FIXTURES = _HERE / "data" / "fixtures"
#: What runs Spark in its own process or beside it: one worker's work, so that there is one session.
_SPARK_FOLDERS = ("spark", "soak", "notebooks")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what may run side by side (`-n 2 --dist loadgroup`): Spark's tests on one worker, then module by module.

    Spark's tests come first: they take longest, and whoever waits for them at the end has nothing else to do.
    """

    def is_spark(item: pytest.Item) -> bool:
        return item.path.relative_to(_HERE).parts[0] in _SPARK_FOLDERS

    for item in items:
        item.add_marker(pytest.mark.xdist_group("spark" if is_spark(item) else item.path.stem))
    items.sort(key=lambda item: not is_spark(item))


@pytest.fixture(scope="session")
def kafka_fixtures() -> Path:
    """Directories that real brokers left, each with `expected/manifest.json` beside the partition folders."""
    return KAFKA_FIXTURES
