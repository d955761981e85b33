"""Examples in docstrings run, and importing the package stays light."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys

import pytest

import pyspark_kafkalog


@pytest.mark.parametrize("name", ["pyspark_kafkalog.notebook", "pyspark_kafkalog.notebook.points_in_time"])
def test_example_prints_something_else(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_import_loads_heavy_modules() -> None:
    source = (
        "import sys, pyspark_kafkalog, pyspark_kafkalog.log_dir\n"
        "print([name for name in ('pyarrow', 'numba', 'pandas', 'pyspark_kafkalog.notebook') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_name_is_missing() -> None:
    for name in pyspark_kafkalog.__all__:
        assert getattr(pyspark_kafkalog, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Logdir'"):
        pyspark_kafkalog.Logdir  # noqa: B018
