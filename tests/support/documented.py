"""The fenced blocks of README.md and docs/: their languages, commands, shown output, and the reasons not to run some.

A block is run in a test (documented_runs.py), or a comment in the line before it gives the reason why it is not:

    <!-- not run: it needs a cluster; tests/interop/test_x.py runs it -->
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repository import REPOSITORY

PAGES: Final = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
#: Languages of blocks that a test runs.
RUNNABLE: Final = frozenset({"python", "sql", "sh", "console", "diff"})
#: Languages of blocks that only show something: drawings, files, formats.
SHOWN: Final = frozenset({"text", "properties"})

_ENDS: Final = frozenset({"|", ">", "2>", "<", "&&", ";"})
_BLOCK: Final = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>(?:(?! -->).)*) -->\n)?"
    r"^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `line` is the line of its fence; `not_run` is the reason not to run it, if there is one."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    def python(self) -> str:
        """The code of a block: of a diff, what it changes to."""
        if self.language != "diff":
            return self.text
        return "".join(f"{line[1:]}\n" for line in self.text.splitlines() if not line.startswith("-"))

    def commands(self) -> list[tuple[str, str]]:
        """The command lines of a block `sh` or `console`, each with the output that is shown."""
        if self.language == "sh":
            return [(line, "") for line in _joined(self.text)]
        found: list[tuple[str, str]] = []
        for part in re.split(r"^\$ ", self.text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            (command, *output) = part.split("\n")
            found.append((command, "\n".join(output).strip("\n")))
        return found


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return blocks_of(page.read_text(encoding="utf-8"), page)


def blocks_of(text: str, page: Path = Path("text")) -> list[Block]:
    """The fenced blocks of Markdown text."""
    return [
        Block(
            page,
            text[: match.start("indent")].count("\n") + 1,
            match["language"],
            re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
            match["reason"],
        )
        for match in _BLOCK.finditer(text)
    ]


def kafkalog_calls(line: str) -> list[list[str]]:
    """The arguments of each `kafkalog` in a command line, up to a pipe, a redirection or a comment."""
    words = shlex.split(line, comments=True)
    starts = [at for at, word in enumerate(words) if word == "kafkalog"]
    calls = []
    for at in starts:
        arguments = words[at + 1 :]
        end = next((n for n, word in enumerate(arguments) if word in _ENDS), len(arguments))
        calls.append(arguments[:end])
    return calls


def _joined(text: str) -> list[str]:
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
