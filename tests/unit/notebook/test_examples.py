"""Importing the package loads no heavy modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pyspark_kafkalog


def test_import_loads_no_heavy_modules() -> None:
    source = (
        "import sys, pyspark_kafkalog, pyspark_kafkalog.log_dir\n"
        "print([name for name in ('pyarrow', 'numba', 'pandas', 'pyspark_kafkalog.notebook') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist_and_unknown_ones_raise() -> None:
    for name in pyspark_kafkalog.__all__:
        assert getattr(pyspark_kafkalog, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Logdir'"):
        pyspark_kafkalog.Logdir  # noqa: B018
