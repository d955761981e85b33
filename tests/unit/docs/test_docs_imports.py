"""Packages import only packages below them: see "The code" in docs/ARCHITECTURE.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PACKAGE = "pyspark_kafkalog"

#: From the bottom up. Packages of one line may import each other.
LAYERS = (
    ("errors", "java_regex", "stop_signal", "units", "version"),
    ("record",),
    ("config", "storage"),
    ("metadata", "root", "security"),
    ("log_dir",),
    ("groups",),
    ("maintenance",),
    ("spark",),
    ("notebook",),
    ("delta", "report"),
    ("tools",),
)

#: The modules that make up `log_dir`, and those of them that open doors to what stands above it.
LOG_DIR_MODULES = {"log_dir", "log_dir_items", "access_control", "authorized_log_dir", "partition_reads"}
DOORS = {"log_dir_items": {"groups", "notebook"}, "authorized_log_dir": {"groups"}}


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of everything of this project that the file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = [f"{node.module}.{each.name}" for each in node.names]
        yield from ((node.lineno, name) for name in names if name.startswith(f"{PACKAGE}."))


def room(name: str) -> str:
    """The package of a dotted name, `log_dir` for the modules that make it up."""
    part = name.split(".")[1]
    return "log_dir" if part in LOG_DIR_MODULES else part


def modules(package: str) -> list[Path]:
    under = REPOSITORY / PACKAGE
    if package == "log_dir":
        return sorted(under / f"{each}.py" for each in LOG_DIR_MODULES)
    return sorted((under / package).rglob("*.py")) or [under / f"{package}.py"]


@pytest.mark.parametrize("height", range(len(LAYERS)), ids=[", ".join(layer) for layer in LAYERS])
def test_packages_import_only_layers_below(height: int) -> None:
    below = {package for layer in LAYERS[: height + 1] for package in layer}
    wrong = []
    for package in LAYERS[height]:
        for path in modules(package):
            allowed = below | {package} | (DOORS.get(path.stem, set()) if package == "log_dir" else set())
            wrong += [f"{path}:{line}: {name}" for line, name in imported(path) if room(name) not in allowed]
    assert not wrong


def test_every_package_is_in_a_layer() -> None:
    under = REPOSITORY / PACKAGE
    found = {path.stem for path in under.glob("*.py")} | {path.parent.name for path in under.glob("*/__init__.py")}
    assert found - LOG_DIR_MODULES - {"__init__"} == {each for layer in LAYERS for each in layer} - {"log_dir"}
