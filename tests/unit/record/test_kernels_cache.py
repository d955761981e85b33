"""Where the machine code of the kernels is kept, and of which sources it is a product."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest
from numba import types

from pyspark_kafkalog.record import kernels_cache, kernels_scan
from pyspark_kafkalog.record.kernels_cache import cache_directory, kernel, kernel_sources, sources_digest

PACKAGE = Path(kernels_cache.__file__).parents[1]


@pytest.fixture(autouse=True)
def _forget_directory() -> Iterator[None]:
    cache_directory.cache_clear()
    yield
    cache_directory.cache_clear()


def compiled_double() -> object:
    @kernel(types.int64(types.int64))
    def double(value):  # type: ignore[no-untyped-def]
        return 2 * value

    return double(21)


def package_imports(path: Path) -> set[Path]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark_kafkalog."):
            found.add(PACKAGE.joinpath(*str(node.module).split(".")[1:]).with_suffix(".py"))
    return found


def test_every_module_a_kernel_module_imports_is_in_the_digest() -> None:
    with_kernels = {path for path in PACKAGE.rglob("*.py") if "@kernel(" in path.read_text()}
    assert len(with_kernels) >= 7
    assert with_kernels <= set(kernel_sources())
    reached = set(with_kernels)
    while new := {each for path in reached for each in package_imports(path)} - reached:
        reached |= new
    assert {path for path in reached if path.name not in ("errors.py", "wording.py")} <= set(kernel_sources())


@pytest.mark.parametrize("edited", ["record/kernels_frame.py", "record/header.py", "maintenance/kernels_recopy.py"])
def test_edit_of_an_inlined_source_changes_the_cache_directory(tmp_path: Path, edited: str) -> None:
    for folder in ("record", "maintenance"):
        shutil.copytree(PACKAGE / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = sources_digest(tmp_path)
    assert before == sources_digest(PACKAGE)
    with (tmp_path / edited).open("a") as source:
        source.write("\nADDED = 1\n")
    assert sources_digest(tmp_path) != before


def test_kernels_are_cached_in_the_directory_of_the_digest() -> None:
    directory = cache_directory()
    assert directory is not None
    assert directory.name == f"kernels-{sources_digest()}"
    assert directory in Path(kernels_scan.scan_headers.stats.cache_path).parents


def test_kernel_is_kept_below_the_users_cache_directory_and_the_setting_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert compiled_double() == 42
    assert list(tmp_path.glob("kernels-*/*/*.nbi"))
    assert str(tmp_path) == numba.config.CACHE_DIR


def test_kernel_is_compiled_without_a_cache_when_no_directory_is_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(in_the_way))
    assert cache_directory() is None
    assert compiled_double() == 42


def test_kernel_is_compiled_without_a_cache_when_the_sources_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_cache, "kernel_sources", lambda package=PACKAGE: [])
    assert cache_directory() is None
    assert compiled_double() == 42
