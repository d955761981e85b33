"""Files, headings, commands and options that README.md and docs/ name exist."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pyspark_kafkalog.tools.main import COMMANDS, COUNTERPARTS, NOT_HERE, command_parser

pytestmark = pytest.mark.all_cases

REPOSITORY = Path(__file__).parents[3]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
COMMAND_NAMES = {name for group in COMMANDS.values() for name in group}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`([^`]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
#: A file of the repository, by its path from the root.
FILE = re.compile(r"(?<![\w/.])(?:docs|jobs|notebooks|conf|scripts|benchmarks|tests|pyspark_kafkalog)/[\w./-]+\.\w+")
COMMAND = re.compile(r"\bkafkalog +([a-z][a-z-]*)\b([^|>;&#)\"]*)")
OPTION = re.compile(r"(?<!\S)(--[a-z][a-z.-]*)")


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    for line in _code(page):
        for name, rest in COMMAND.findall(line):
            if name.startswith("kafka-"):
                continue
            assert name in COMMAND_NAMES, line
            assert set(OPTION.findall(rest)) <= _options(name), line


def test_pages_show_every_command() -> None:
    lines = [line for page in PAGES for line in _code(page)]
    named = {name for line in lines for name, _ in COMMAND.findall(line)}
    assert len(named & COMMAND_NAMES) > 15
    assert {word for line in lines for word in re.findall(r"[a-z][a-z-]+", line)} >= COMMAND_NAMES


def test_every_page_is_linked_from_readme() -> None:
    linked = set(LINK.findall((REPOSITORY / "README.md").read_text(encoding="utf-8")))
    assert [page.name for page in PAGES if page.parent.name == "docs" and f"docs/{page.name}" not in linked] == []


def test_every_kafka_tool_is_in_migration_table() -> None:
    text = (REPOSITORY / "docs" / "MIGRATING.md").read_text(encoding="utf-8")
    for script, counterpart in COUNTERPARTS.items():
        assert f"| `{script}` | `{counterpart}` |" in text
    assert [script for script in NOT_HERE if f"`{script}`" not in text] == []


def _prose(page: Path) -> str:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def _code(page: Path) -> Iterator[str]:
    """Lines of code, those that go on after a backslash as one, and code in running text."""
    text = page.read_text(encoding="utf-8")
    fenced = "\n".join(FENCED.findall(text))
    indented = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    yield from f"{fenced}\n{indented}".replace("\\\n", " ").splitlines()
    yield from (span.replace("\n", " ") for span in CODE_SPAN.findall(FENCED.sub("", text)))


@cache
def _anchors(file: Path) -> set[str]:
    """What a heading is linked by: lower case, without punctuation, hyphens for blanks."""
    text = FENCED.sub("", file.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@cache
def _options(command: str) -> set[str]:
    return set(_all_options(command_parser(command)))


def _all_options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _all_options(each)
