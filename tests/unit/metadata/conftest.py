"""Places for the metadata of a root."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.root_places import PLACES, Place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture(params=PLACES, ids=lambda each: each.kind)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Place = request.param(tmp_path)
    return made
