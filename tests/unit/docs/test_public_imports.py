"""README, pages for users, notebooks and jobs import what is at the top of the package, and nothing deeper."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from documented import PAGES
from repository import REPOSITORY

import pyspark_kafkalog

pytestmark = pytest.mark.all_cases

DEEPER = re.compile(r"(?:from|import) +(pyspark_kafkalog\.[\w.]+)")
NAMES = re.compile(r"^ *from pyspark_kafkalog import ([\w, ]+)$", re.MULTILINE)
FOR_CONTRIBUTORS = ("ARCHITECTURE.md", "CONTRIBUTING.md")
TEXTS = [
    *(page for page in PAGES if page.name not in FOR_CONTRIBUTORS),
    *sorted((REPOSITORY / "notebooks").glob("*.ipynb")),
    *sorted((REPOSITORY / "jobs").rglob("*.py")),
]


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_imports_are_of_names_at_the_top(path: Path) -> None:
    text = text_of(path)
    assert DEEPER.findall(text) == []
    names = {name.split(" as ")[0].strip() for names in NAMES.findall(text) for name in names.split(",")}
    assert names <= {*pyspark_kafkalog.__all__, "errors"}


def test_rule_sees_imports_of_notebooks_and_pages() -> None:
    found = {path.suffix for path in TEXTS if NAMES.search(text_of(path))}
    assert found == {".ipynb", ".md", ".py"}
    assert DEEPER.findall("    from pyspark_kafkalog.errors import X") == ["pyspark_kafkalog.errors"]
