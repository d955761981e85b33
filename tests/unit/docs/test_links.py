"""Files and headings that README.md and docs/ name exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from documented import PAGES
from repository import REPOSITORY

from pyspark_kafkalog.tools.main import COUNTERPARTS, NOT_HERE

pytestmark = pytest.mark.all_cases


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
#: A file of the repository, by its path from the root.
FILE = re.compile(r"(?<![\w/.])(?:docs|jobs|notebooks|conf|scripts|benchmarks|tests|pyspark_kafkalog)/[\w./-]+\.\w+")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    for target in LINK.findall(_prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.is_file(), target
        assert not heading or heading in _anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    missing = [name for name in FILE.findall(page.read_text(encoding="utf-8")) if not (REPOSITORY / name).exists()]
    assert missing == []


def test_every_page_is_linked_from_readme() -> None:
    linked = set(LINK.findall((REPOSITORY / "README.md").read_text(encoding="utf-8")))
    assert [page.name for page in PAGES if page.parent.name == "docs" and f"docs/{page.name}" not in linked] == []


def test_every_kafka_tool_is_in_migration_table() -> None:
    text = (REPOSITORY / "docs" / "MIGRATING.md").read_text(encoding="utf-8")
    for script, counterpart in COUNTERPARTS.items():
        assert f"| `{script}` | `{counterpart}` |" in text
    assert [script for script in NOT_HERE if f"`{script}`" not in text] == []


def _prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


@cache
def _anchors(file: Path) -> set[str]:
    """What a heading is linked by: lower case, without punctuation, hyphens for blanks."""
    text = FENCED.sub("", file.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}
