from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from pyspark_kafkalog.spark import worker_memory


@pytest.fixture
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing frozen before and after."""
    gc.unfreeze()
    monkeypatch.setattr(worker_memory, "_modules_frozen", 0)
    yield
    gc.unfreeze()


def pretend_main(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if name is None else ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.usefixtures("thawed")
def test_spark_worker_freezes_once_for_same_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_main(monkeypatch, "pyspark.daemon")
    worker_memory.freeze_imports()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    kept = [[] for _ in range(1000)]
    worker_memory.freeze_imports()
    assert gc.get_freeze_count() <= frozen
    monkeypatch.setitem(sys.modules, "kafkalog_test_imported_later", ModuleType("later"))
    worker_memory.freeze_imports()
    assert gc.get_freeze_count() >= frozen + len(kept) // 2


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("name", ["pyspark.sql.worker.lookup_data_sources", "my_job", None])
def test_other_processes_freeze_nothing(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    pretend_main(monkeypatch, name)
    worker_memory.freeze_imports()
    assert gc.get_freeze_count() == 0
