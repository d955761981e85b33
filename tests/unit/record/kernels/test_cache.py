"""The cache of the kernels' machine code: its directory, and the digest of the sources that names it."""

from __future__ import annotations

import ast
import fcntl
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numba
import pytest
from numba import types
from patience import PATIENCE_S

from pyspark_kafkalog.record.kernels import cache as kernels_cache
from pyspark_kafkalog.record.kernels import scan as kernels_scan
from pyspark_kafkalog.record.kernels.cache import (
    cache_directories,
    kernel,
    kernel_sources,
    load_all_kernels,
    sources_digest,
)

PACKAGE = Path(kernels_cache.__file__).parents[2]
LOAD_AND_TELL = """
from numba.core import event
with event.install_recorder("numba:compile") as compiled:
    from pyspark_kafkalog.record.kernels import scan as kernels_scan
print(len(compiled.buffer), kernels_scan.scan_headers.stats.cache_path)
"""


def compiled_double() -> object:
    @kernel(types.int64(types.int64))
    def double(value):  # type: ignore[no-untyped-def]
        return 2 * value

    return double(21)


def package_imports(path: Path) -> set[Path]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark_kafkalog."):
            module = PACKAGE.joinpath(*str(node.module).split(".")[1:])
            is_package = module.is_dir()
            found |= {(module / name.name if is_package else module).with_suffix(".py") for name in node.names}
    return found


def test_digest_covers_every_module_imported_by_kernel_modules() -> None:
    with_kernels = {path for path in PACKAGE.rglob("*.py") if "@kernel(" in path.read_text()}
    assert len(with_kernels) >= 6
    assert with_kernels <= set(kernel_sources())
    reached = set(with_kernels)
    while new := {each for path in reached for each in package_imports(path)} - reached:
        reached |= new
    assert {path for path in reached if path.name not in ("errors.py", "values.py")} <= set(kernel_sources())


def test_progress_of_loading_counts_every_kernel() -> None:
    kernels = sum(len(re.findall(r"^@kernel\(", path.read_text(), re.MULTILINE)) for path in kernel_sources())
    steps = list(load_all_kernels())
    assert (steps[0], steps[-1]) == ((0, kernels), (kernels, kernels))
    assert steps == sorted(set(steps))


def copy_sources(target: Path) -> None:
    """Copy the package without its compiled code and schemas."""
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__", "*.json"), dirs_exist_ok=True)


@pytest.mark.parametrize(
    "edited", ["record/kernels/decode.py", "record/header.py", "maintenance/cleaner/kernels_cleaner.py", "units.py"]
)
def test_edit_of_inlined_source_changes_digest(tmp_path: Path, edited: str) -> None:
    copy_sources(tmp_path)
    with (tmp_path / edited).open("a") as source:
        source.write("\nADDED = 1\n")
    assert sources_digest(tmp_path) != sources_digest(PACKAGE)


def test_copied_sources_have_equal_digest(tmp_path: Path) -> None:
    copy_sources(tmp_path)
    assert sources_digest(tmp_path) == sources_digest(PACKAGE)


def test_kernels_are_cached_in_directory_named_after_digest() -> None:
    kept_in = Path(kernels_scan.scan_headers.stats.cache_path)
    assert kept_in in cache_directories()
    assert kept_in.name == f"kernels-{sources_digest()}"
    assert list(kept_in.glob("scan.scan_headers-*.nbc"))


def test_kernel_is_cached_below_numba_cache_dir_when_it_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert compiled_double() == 42
    assert list(tmp_path.glob("kernels-*/*.nbi"))


def test_cache_locator_setting_of_numba_stays_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "InTreeCacheLocator")
    assert compiled_double() == 42
    assert numba.config.CACHE_LOCATOR_CLASSES == "InTreeCacheLocator"


def test_kernel_compiles_uncached_when_directory_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(in_the_way))
    assert compiled_double() == 42


def test_kernel_compiles_uncached_when_directory_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_locator: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernels_cache.KernelLocator, "ensure_cache_path", refuse)
    assert compiled_double() == 42
    assert not list(tmp_path.glob("kernels-*/*.nbc"))


def test_kernel_compiles_uncached_when_sources_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_cache, "kernel_sources", lambda package=PACKAGE: ())
    assert cache_directories() == []
    assert compiled_double() == 42


def test_kernel_that_another_process_compiles_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    (directory,) = cache_directories()
    directory.mkdir()
    results: list[object] = []
    waiting = threading.Thread(target=lambda: results.append(compiled_double()))
    with (directory / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting.start()
        waiting.join(0.3)
        assert not list(directory.glob("*.nbi"))
    waiting.join(PATIENCE_S)
    assert results == [42]
    assert list(directory.glob("*.nbi"))


def warnings_of_compilation(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    monkeypatch.setattr(kernels_cache, "_compilation", kernels_cache._Compilation())
    monkeypatch.setattr(kernels_cache, "_ANNOUNCED_FROM_S", 0.0)
    assert (compiled_double(), compiled_double()) == (42, 42)
    return [record.getMessage() for record in caplog.records]


def test_long_compilation_is_announced_once_and_loading_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    (told,) = warnings_of_compilation(monkeypatch, caplog)
    assert "`kafkalog warm-up` does it ahead" in told
    caplog.clear()
    assert warnings_of_compilation(monkeypatch, caplog) == []


def test_compilation_that_cannot_be_kept_names_directories_and_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file"))
    (told,) = warnings_of_compilation(monkeypatch, caplog)
    assert f"can be written to: {tmp_path}/file/kernels-" in told
    assert "set NUMBA_CACHE_DIR" in told


@pytest.mark.slow
def test_kernels_are_loaded_from_read_only_cache_directory(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run() -> list[str]:
        command = [sys.executable, "-c", LOAD_AND_TELL]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()

    compiled, kept_in = run()
    assert int(compiled) > 0
    for path in [*Path(kept_in).iterdir(), Path(kept_in), tmp_path / "cache"]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert run() == ["0", kept_in]
    finally:
        for path in (tmp_path / "cache", Path(kept_in)):
            path.chmod(0o755)
