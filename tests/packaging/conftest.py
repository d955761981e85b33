"""The distributions that the tests of this folder install."""

from __future__ import annotations

import sys

import pytest
from distributions import Distributions, run, sources


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    source, out = sources(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", str(out), str(source)])
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Distributions(wheel, sdist)
