"""Fixtures that every kind of test shares."""

from __future__ import annotations

from pathlib import Path

import pytest

KAFKA_FIXTURES = Path(__file__).parent / "data" / "fixtures"


@pytest.fixture(scope="session")
def kafka_fixtures() -> Path:
    """Directories that real brokers left, each with `expected/manifest.json` beside the partition folders."""
    return KAFKA_FIXTURES
