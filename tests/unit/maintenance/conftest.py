"""Roots that tests of verification and of repair damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders.verify_roots import make_root


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound root, one for all tests of a module."""
    root = tmp_path_factory.mktemp("whole") / "log"
    make_root(root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy of the sound root for one test."""
    return shutil.copytree(whole, tmp_path / "log")
