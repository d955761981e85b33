"""Compiling the kernels where numba cannot keep what it compiled."""

from __future__ import annotations

import pytest
from numba import types
from numba.core import caching

from pyspark_kafkalog.record.kernels_memory import kernel


def test_kernels_need_a_directory_to_be_cached_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])

    @kernel(types.int64(types.int64))
    def double(value):  # type: ignore[no-untyped-def]
        return 2 * value

    assert double(21) == 42
