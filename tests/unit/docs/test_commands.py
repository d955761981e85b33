"""Blocks of pages run in a test or say why not; each `kafkalog` command that is shown anywhere is one that parses.

Shown are commands in pages, help, docstrings, advice of errors, notebooks, `jobs/` and `conf/`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from documented import PAGES, RUNNABLE, SHOWN, Block, blocks, blocks_of, kafkalog_calls
from documented_runs import Reader
from repository import REPOSITORY

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.tools.main import COMMANDS, command_parser

pytestmark = pytest.mark.all_cases

COMMAND_NAMES = {name for group in COMMANDS.values() for name in group}
SOURCES = sorted([*(REPOSITORY / "pyspark_kafkalog").rglob("*.py"), *(REPOSITORY / "jobs").glob("*.py")])
#: What is no code of Python: every line of it may name a command.
FILES = sorted(path for path in (REPOSITORY / "conf").rglob("*") if path.is_file())
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))

CODE_SPAN = re.compile(r"`([^`]+)`")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4,}(?![-*] |\d+\. )\S.*\n)", re.MULTILINE)
#: A command in running text, with what may be its options.
NAMED = re.compile(r"\bkafkalog +([a-z][a-z-]*)\b([^|>;,&#)\"`\n]*)")
OPTION = re.compile(r"(?<!\S)(--[a-z][a-z.-]*)")
JOB = re.compile(r"\bspark-submit\b.*?\bjobs/(\w+)\.py(.*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_runs_in_a_test_or_says_why_it_does_not(page: Path) -> None:
    found = blocks(page)
    text = page.read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(found), "a fence has no end, or another indentation than its end"
    assert text.count("<!-- not run: ") == sum(block.not_run is not None for block in found)
    assert INDENTED.findall(FENCED.sub("", text)) == [], "indented code has no language: fence it"
    for block in found:
        assert block.language in RUNNABLE | SHOWN, block
        if block.language in SHOWN:
            assert block.not_run is None, f"{block} is never run: it needs no reason"
            assert not re.search(r"^(\$ |kafkalog |spark\.|SELECT )", block.text, re.MULTILINE), block
        assert block.not_run is None or len(block.not_run.split()) >= 3, f"{block}: which reason?"


def test_code_without_language_is_found() -> None:
    (block,) = blocks_of("1. Say\n\n   <!-- not run: no cluster -->\n   ```sh\n   kafkalog du\n   ```\n")
    assert (block.line, block.language, block.text, block.not_run) == (4, "sh", "kafkalog du\n", "no cluster")
    assert INDENTED.findall("so:\n\n    kafkalog du\n") == ["    kafkalog du\n"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_blocks_compiles(page: Path) -> None:
    for block in blocks(page):
        if block.language in ("python", "diff"):
            compile(block.python(), str(block), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_pages_parse(page: Path) -> None:
    for block in blocks(page):
        for line in _lines(block):
            _check_line(line, str(block))
    for span in CODE_SPAN.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        _check_part(span.replace("\n", " "), page.name)


@pytest.mark.parametrize("name", sorted(COMMAND_NAMES))
def test_examples_of_help_parse(name: str) -> None:
    lines = (command_parser(name).epilog or "").replace("\\\n", " ").splitlines()
    examples = [line for line in lines if "kafkalog " in line]
    assert examples
    for line in examples:
        _check_line(line.replace('eval "$(', "").replace(')"', ""), f"kafkalog {name} --help")


def test_commands_of_docstrings_and_messages_have_their_options() -> None:
    checked = 0
    for path in SOURCES:
        where = path.relative_to(REPOSITORY).as_posix()
        for text in _strings(ast.parse(path.read_text(encoding="utf-8"))):
            for line in text.replace("\\\n", " ").splitlines():
                if line.startswith("    ") and re.match(r" +(kafkalog|spark-submit) ", line):
                    _check_line(line, where)
                    checked += 1
            for name, rest in NAMED.findall(text.replace("\\\n", " ")):
                if options := OPTION.findall(rest):
                    assert set(options) <= _options(name), f"{where}: kafkalog {name}{rest}"
                    checked += 1
    assert checked > 60


def test_commands_of_notebooks_and_settings_have_their_options() -> None:
    checked = 0
    for path in [*FILES, *NOTEBOOKS]:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        for name, rest in NAMED.findall(text):
            if options := OPTION.findall(rest):
                assert set(options) <= _options(name), f"{path.name}: kafkalog {name}{rest}"
                checked += 1
    assert checked > 10


def test_pages_show_every_command() -> None:
    shown = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len({name for name, _ in NAMED.findall(shown)} & COMMAND_NAMES) > 15
    assert set(re.findall(r"[a-z][a-z-]+", shown)) >= COMMAND_NAMES


def test_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(AssertionError, match="unrecognized arguments: --partition-count"):
        _check_line("kafkalog topics --path /data/log --create --topic a --partition-count 3", "page")
    with pytest.raises(AssertionError, match="invalid choice: 'stop'"):
        _check_part("kafkalog transactions stop", "page")
    with pytest.raises(AssertionError, match="are required: --path"):
        _check_line("NUMBA_CPU_NAME=generic kafkalog topics --list | sort", "page")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```console\n$ kafkalog topics --path /data/log --list\norders\nreturns\n```\n", "shown: .*returns"),
        ("```sh\nkafkalog topics --path /data/log --describe --topic returns\n```\n", "exit code 1"),
        ("```sh\nhelm install kafka\n```\n", "helm is not run here: say so before the block"),
        ("```python\nlog_dir.read('orders')\n```\n", "'log_dir' is not defined"),
        ("```diff\n-1 / 1\n+1 / 0\n```\n", "division by zero"),
    ],
)
def test_block_that_is_wrong_fails(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LogDir.create(tmp_path / "data" / "log").create_topic("orders", partitions=2)
    reader = Reader(tmp_path, capsys, lambda: pytest.fail("no block needs Spark"))
    (block,) = blocks_of(text, Path("page.md"))
    with pytest.raises(AssertionError, match=rf"(?s)page\.md:1: .*{says}"):
        reader.run(block)


def test_block_that_is_right_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LogDir.create(tmp_path / "data" / "log").create_topic("orders", partitions=2)
    reader = Reader(tmp_path, capsys, lambda: pytest.fail("no block needs Spark"))
    text = "```console\n$ kafkalog topics --path /data/log --list | sort\norders\n```\n"
    for block in blocks_of(text):
        reader.run(block)


def _lines(block: Block) -> Iterator[str]:
    if block.language in ("sh", "console"):
        yield from (command for command, _ in block.commands())
    elif block.language == "python":
        yield from re.findall(r'"(kafkalog [^"]*)"', block.text)


def _check_line(line: str, where: str) -> None:
    """Fails unless each command of a whole line is one that the command takes."""
    for arguments in kafkalog_calls(line):
        if arguments and arguments[0] in COMMAND_NAMES:
            _parse(command_parser(arguments[0]), arguments[1:], f"{where}: {line}")
        else:
            assert arguments == ["--version"] or arguments[0].startswith("kafka-"), f"{where}: {line}"
    job = JOB.search(line)
    if job is not None:
        source = (REPOSITORY / "jobs" / f"{job[1]}.py").read_text(encoding="utf-8")
        (command,) = re.findall(r'main\(\["([\w-]+)"', source)
        (arguments,) = kafkalog_calls(f"kafkalog {job[2]}")
        _parse(command_parser(command), arguments, f"{where}: {line}")


def _check_part(text: str, where: str) -> None:
    """Fails unless a command in running text has these options; what it needs besides may be missing."""
    for name, rest in NAMED.findall(text):
        if name.startswith("kafka-"):
            continue
        assert name in COMMAND_NAMES, f"{where}: {text}"
        words = [word for word in rest.split() if word not in ("…", "...")]
        parser = _relaxed(command_parser(name))
        if words and words[-1] in parser._option_string_actions:  # an option by its name alone
            words += ["1"] if parser._option_string_actions[words[-1]].nargs != 0 else []
        _parse(parser, words, f"{where}: {text}")


def _parse(parser: argparse.ArgumentParser, arguments: list[str], where: str) -> None:
    def fail(message: str) -> None:
        raise AssertionError(f"{where}: {message}")

    for each in _all_parsers(parser):
        each.error = fail  # type: ignore[method-assign, assignment]
    parser.parse_args([_value(word) for word in arguments])


def _value(word: str) -> str:
    """A variable of a shell or a placeholder of a page as the value that it stands for."""
    return re.sub(r"\$\{?\w+\}?|<[^>]*>", "/data/log", word)


def _relaxed(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    for each in _all_parsers(parser):
        if hasattr(each, "required_path"):
            each.required_path = None
        for group in each._mutually_exclusive_groups:
            group.required = False
        for action in each._actions:
            action.required = False
            if not action.option_strings and action.nargs is None:
                action.nargs = "?"
    return parser


def _all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _all_parsers(each)


def _strings(tree: ast.AST) -> Iterator[str]:
    """The texts of a module; values in f-strings are left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values]
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def _options(command: str) -> set[str]:
    if command not in COMMAND_NAMES:
        return set()
    return {
        option
        for parser in _all_parsers(command_parser(command))
        for action in parser._actions
        for option in action.option_strings
    }
