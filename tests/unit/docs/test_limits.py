"""Limits of the code that may only fall: its size, and what makes it hard to follow.

A change that comes above a limit brings the figure down elsewhere. A change that brings a figure far below its limit
lowers the limit with it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from documented import PAGES
from repository import REPOSITORY, TESTS

pytestmark = pytest.mark.all_cases

PACKAGE = REPOSITORY / "pyspark_kafkalog"
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
MODULES_IN_SUPPORT_MAX = 30

#: A decision by kind of root.
KIND = re.compile(
    r"isinstance\([^)]*\b(?:File|Object|Native|Broker|Tiered|RemoteStorage)Root\b"
    r"|on_file_system\(\)|\bis_object_root\b|\bis_broker_directory\b|directory_of\("
)
#: Packages that decide by kind of root so that others need not.
OF_KINDS = ("root", "log", "storage", "tiered")
#: Sentences without a named subject, and others that read oddly.
ODD = re.compile(
    r"\b[Ww]ho (?:is|are|was|has|asks|wants|writes|reads|leaves|goes|does)\b|\bwhoever\b|\b[Nn]obody\b"
    r"|\bwhat (?:of|is gone|is left|is remote)\b|\b(?:is|are) told\b|\bsays? of\b|\bthere may be no\b|\bgo(?:es)? on\b"
)
LINE_OF_PAGE_MAX = 120


class Limit(NamedTuple):
    """`room`: how far the figure may be below the limit before the limit is lowered."""

    value: int
    room: int


#: May only fall.
LIMITS: Mapping[str, Limit] = {
    "modules of the package": Limit(414, 18),
    "lines of the package": Limit(124_955, 3500),
    "lines of the tests": Limit(122_380, 3500),
    "decisions by kind of root": Limit(7, 5),
    "names of two classes": Limit(0, 0),
    "imports in functions": Limit(81, 25),
    "odd sentences": Limit(9, 9),
    "wide lines of pages": Limit(0, 0),
    "lines of README.md": Limit(130, 30),
}


@cache
def sources() -> Mapping[Path, str]:
    return {path: path.read_text() for path in PACKAGE.rglob("*.py")}


@cache
def figures() -> Mapping[str, int]:
    trees = {path: ast.parse(text) for path, text in sources().items()}
    others = [text for path, text in sources().items() if path.relative_to(PACKAGE).parts[0] not in OF_KINDS]
    pages = [FENCED.sub("", path.read_text()) for path in PAGES]
    wide = [line for page in pages for line in page.splitlines() if len(line) > LINE_OF_PAGE_MAX]
    return {
        "modules of the package": len(trees),
        "lines of the package": sum(text.count("\n") for text in sources().values()),
        "lines of the tests": sum(path.read_text().count("\n") for path in TESTS.rglob("*.py")),
        "decisions by kind of root": sum(len(KIND.findall(text)) for text in others),
        "names of two classes": sum(count > 1 for count in Counter(_public_classes(trees)).values()),
        "imports in functions": sum(map(_imports_in_functions, trees.values())),
        "odd sentences": sum(len(ODD.findall(text)) for text in [*sources().values(), *pages]),
        "lines of README.md": (REPOSITORY / "README.md").read_text().count("\n"),
        "wide lines of pages": sum(not line.lstrip().startswith("|") for line in wide),
    }


def _public_classes(trees: Mapping[Path, ast.Module]) -> Iterator[str]:
    """Names of public classes, without those of messages: names in Kafka's schemas repeat."""
    for path, tree in trees.items():
        if "messages" not in path.relative_to(PACKAGE).parts:
            yield from (each.name for each in tree.body if isinstance(each, ast.ClassDef) and each.name[0] != "_")


def _imports_in_functions(tree: ast.Module) -> int:
    """Imports of this package that are not made with the module; those for types alone do not count."""
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    return sum(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(PACKAGE.name)
        and node.col_offset > 0
        and id(node) not in for_types
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("name", LIMITS)
def test_figure_is_within_its_limit_and_limit_near_its_figure(name: str) -> None:
    figure, limit = figures()[name], LIMITS[name]
    assert figure <= limit.value, f"{name}: {figure}, above {limit.value}. Limits may only fall: bring the figure down"
    assert figure >= limit.value - limit.room, f"{name}: {figure}, far below {limit.value}: lower the limit to it"


def test_folders_of_support_have_few_modules() -> None:
    folders = Counter(path.parent for path in (TESTS / "support").rglob("*.py"))
    assert not {str(folder): count for folder, count in folders.items() if count > MODULES_IN_SUPPORT_MAX}
