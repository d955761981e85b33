"""The code's structure: packages import only packages below them, and modules stay few and readable.

See "The code" in docs/ARCHITECTURE.md.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from repository import REPOSITORY, TESTS

pytestmark = pytest.mark.all_cases

PACKAGE = "pyspark_kafkalog"

#: From the bottom up. Packages of one layer may not import each other, except the modules of the lowest.
LAYERS = (
    ("errors", "java_regex", "threads", "units", "values", "version"),
    ("record",),
    ("config", "object_store"),
    ("storage",),
    ("metadata",),
    ("protocol",),
    ("tiered",),
    ("root",),
    ("security",),
    ("groups",),
    ("maintenance",),
    ("replication",),
    ("server",),
    ("spark",),
    ("notebook",),
    ("delta", "report"),
    ("log_dir",),
    ("tools",),
    ("__main__",),
)
LINES_MAX = 700
MODULES_IN_FOLDER_MAX = 15
#: The name of a module in a docstring or comment, with or without folders.
NAMED_MODULE = re.compile(r"(?<![\w/.~*>-])((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)\b")
#: Folders of tests/unit for other things than packages: pages and rules, conf/, helpers of tests, tables of benchmarks.
OTHER_UNIT_TESTS = frozenset({"docs", "conf", "support", "benchmarks"})


@cache
def modules() -> Mapping[str, Path]:
    """All modules and packages by dotted name, without the name of the whole package."""
    under = REPOSITORY / PACKAGE
    found = {}
    for path in sorted(under.rglob("*.py")):
        parts = path.relative_to(under).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


@cache
def imports(module: str) -> tuple[tuple[int, str], ...]:
    """Line and name of each module of this package that `module` imports, wherever in it, also for types only."""
    return tuple(_imports(modules()[module]))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = [f"{node.module}.{each.name}" for each in node.names]
        for name in names:
            if name.startswith(f"{PACKAGE}."):
                found = name.removeprefix(f"{PACKAGE}.")
                yield node.lineno, found if found in modules() else found.rpartition(".")[0]


def package(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("height", range(len(LAYERS)), ids=[", ".join(layer) for layer in LAYERS])
def test_packages_import_only_layers_below(height: int) -> None:
    below = {each for layer in LAYERS[:height] for each in layer} | set(LAYERS[0])
    wrong = [
        f"{modules()[module]}:{line}: {name}"
        for module in modules()
        if package(module) in LAYERS[height]
        for line, name in imports(module)
        if package(name) not in below | {package(module)} and name  # "" is pyspark_kafkalog itself
    ]
    assert not wrong


def test_every_package_is_in_a_layer() -> None:
    assert {package(each) for each in modules()} == {each for layer in LAYERS for each in layer}


def test_modules_import_each_other_in_no_circle() -> None:
    circles = []
    reachable: dict[str, set[str]] = {}
    for module in modules():
        seen: set[str] = set()
        ahead = [module]
        while ahead:
            for _, name in imports(ahead.pop()):
                if name in modules() and name not in seen:
                    seen.add(name)
                    ahead.append(name)
        reachable[module] = seen - {module} if module not in seen else seen
        if module in seen:
            circles.append(module)
    groups = {
        tuple(sorted(other for other in circles if other in reachable[each] and each in reachable[other]))
        for each in circles
    }
    assert not groups


def test_modules_are_short() -> None:
    lines = {name: path.read_text().count("\n") for name, path in modules().items()}
    assert not {name: count for name, count in lines.items() if count > LINES_MAX}


def test_docstring_of_each_folder_names_its_modules_and_folders() -> None:
    missing = []
    for path in modules().values():
        if path.name != "__init__.py" or path.parent.name == PACKAGE:
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        inside = {each.stem for each in path.parent.glob("*.py")} | {
            each.parent.name for each in path.parent.glob("*/__init__.py")
        }
        named = set(re.findall(r"[a-z_0-9]+", docstring))
        missing += [f"{path.parent.name}: {name}" for name in sorted(inside - named - {"__init__"})]
    assert not missing


def test_folders_have_few_modules() -> None:
    paths = [path for path in modules().values() if path.name != "__init__.py"]
    folders = Counter(path.parent for path in paths)
    assert not {str(folder): count for folder, count in folders.items() if count > MODULES_IN_FOLDER_MAX}


def test_modules_that_docstrings_and_comments_name_exist() -> None:
    """By their path from the module's folder, from one above it, or from the package."""
    stale = [
        f"{path}:{number}: {name}"
        for path in [REPOSITORY / PACKAGE / "__init__.py", *modules().values()]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for name in NAMED_MODULE.findall(line)
        if not any((folder / name).exists() for folder in path.parents if folder.is_relative_to(REPOSITORY))
    ]
    assert not stale


def test_folders_of_unit_tests_are_those_of_the_package() -> None:
    unit = TESTS / "unit"
    folders = {path.parent.relative_to(unit).as_posix() for path in unit.rglob("test_*.py")} - {"."}
    packages = {name.replace(".", "/") for name, path in modules().items()}
    assert sorted(folders - packages - OTHER_UNIT_TESTS) == [], "tests/unit/a/b/ has the tests of pyspark_kafkalog/a/b/"


def test_no_test_module_repeats_its_folder() -> None:
    paths = (path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    assert [str(path) for path in paths if path.name.startswith(tuple(f"test_{each}_" for each in path.parts))] == []


def test_paths_of_partitions_are_made_in_one_place() -> None:
    """Names come from metadata, leaders and clients: only storage/names.partition_path makes a path of them."""
    wrong = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for name, path in modules().items()
        if name != "storage.names"
        for node in ast.walk(ast.parse(path.read_text()))
        if any(map(_names_partition, _joined_to_path(node)))
    ]
    assert not wrong, "use partition_path"


def _joined_to_path(node: ast.AST) -> Iterable[ast.expr]:
    """The expressions that `node` appends to a path."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return [node.right]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Path", "joinpath", "path.join", "with_name")):
        return node.args
    return ()


def _names_partition(joined: ast.expr) -> bool:
    """Whether a part of a path is the text of an object, or an f-string with a topic or partition."""
    if isinstance(joined, ast.JoinedStr):
        fields = [each.value for each in joined.values if isinstance(each, ast.FormattedValue)]
        return any(re.search(r"\b(topic|partition|topic_partition|of)$", ast.unparse(each)) for each in fields)
    return isinstance(joined, ast.Call) and ast.unparse(joined.func) == "str"


def test_threads_are_started_in_one_place() -> None:
    """A thread may not start: pyspark_kafkalog/threads.py says what happens then."""
    pattern = re.compile(r"\bThreadPoolExecutor\(|[Tt]hread(\(.*\))?\.start\(")
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for name, path in modules().items()
        if name not in ("threads", "notebook.spark_helpers")  # the example of the latter is a user's
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not wrong, "use Workers, start or starts of pyspark_kafkalog/threads.py"
