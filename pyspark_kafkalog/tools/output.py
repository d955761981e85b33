"""The output of commands: `--output text`, in the form of Kafka's tools, or `--output json`.

On a terminal some commands print tables for people in place of the text (terminal.py).

A command computes values and passes them to an `Output` together with the functions that convert them; only the one for
the chosen form is called. JSON is one object a line. Fields without a value are left out, except the key and the value
of a record, for which null is a value. Errors and notices go to sys.stderr in both forms. A `Column` says once what a
value is called in either form.

Names come from clients and files. In text, characters that are not printable are escaped, but for the tabs and line
ends of the text itself. So each name within a text goes through `printable`, as the cells of tables and notices do.
"""

from __future__ import annotations

import argparse
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pyspark_kafkalog.tools.terminal import NO_VALUE, Grid, is_for_people, print_grid
from pyspark_kafkalog.units import json_line, printable
from pyspark_kafkalog.values import dataclass

Value = TypeVar("Value")
Tree: TypeAlias = Mapping[str, Any]
Values: TypeAlias = Iterable[Value]
ToTree: TypeAlias = Callable[[Value], Tree]
ToText: TypeAlias = Callable[[Value], str]
ToGrid: TypeAlias = Callable[[Value], Grid]
ToTexts: TypeAlias = Callable[[Iterable[Value]], Iterable[str]]
ToGridOfAll: TypeAlias = Callable[[Iterable[Value]], Grid]

#: Column widths are computed for this many lines at a time, so that a long table is printed as it is produced.
_LINES_TOGETHER: Final = 1000


def add_output(parser: argparse.ArgumentParser, json_form: str) -> None:
    """`--output text` or `json`; `json_form` describes the JSON, such as "one object a line, by topic"."""
    parser.add_argument("--output", choices=("text", "json"), default="text", help=f"json: {json_form}")


def output_of(options: argparse.Namespace) -> Output:
    """The output that `--output` selects."""
    if options.output == "json":
        return JsonOutput()
    return TerminalOutput() if is_for_people() else TextOutput()


class Output(ABC):
    """Prints the results of a command to sys.stdout in one of the two forms."""

    @abstractmethod
    def show(self, value: Value, tree: ToTree[Value], text: ToText[Value], grid: ToGrid[Value] | None = None) -> None:
        """Print one value: as `tree` in JSON, as `grid` on a terminal, as `text` otherwise."""

    @abstractmethod
    def show_all(
        self, values: Values[Value], tree: ToTree[Value], text: ToTexts[Value], grid: ToGridOfAll[Value] | None = None
    ) -> bool:
        """Print values: each as a tree in JSON, all together as `grid` on a terminal, or as `text`.

        Returns whether there were any.
        """

    @abstractmethod
    def text(self, text: str) -> None:
        """Print `text` in the text form; JSON has no counterpart."""

    @abstractmethod
    def file_text(self, text: str) -> None:
        """Print text that a command reads again; a terminal gets it as from `text`. Nothing in JSON output."""

    @abstractmethod
    def data(self, tree: Tree) -> None:
        """Print `tree` in JSON; the text form has no counterpart."""


class TextOutput(Output):
    """The text of Kafka's tools."""

    def show(self, value: Value, tree: ToTree[Value], text: ToText[Value], grid: ToGrid[Value] | None = None) -> None:
        self.text(text(value))

    def show_all(
        self, values: Values[Value], tree: ToTree[Value], text: ToTexts[Value], grid: ToGridOfAll[Value] | None = None
    ) -> bool:
        counted = _Counted(values)
        for part in text(counted):
            self.text(part)
        return counted.has_any

    def text(self, text: str) -> None:
        sys.stdout.write(printable(text, kept="\n\t"))

    def file_text(self, text: str) -> None:
        if sys.stdout.isatty():
            self.text(text)
        else:
            sys.stdout.write(text)

    def data(self, tree: Tree) -> None:
        pass


class TerminalOutput(TextOutput):
    """Tables for people where a command has them, and text elsewhere."""

    def show(self, value: Value, tree: ToTree[Value], text: ToText[Value], grid: ToGrid[Value] | None = None) -> None:
        if grid is None:
            super().show(value, tree, text)
        else:
            print_grid(grid(value))

    def show_all(
        self, values: Values[Value], tree: ToTree[Value], text: ToTexts[Value], grid: ToGridOfAll[Value] | None = None
    ) -> bool:
        if grid is None:
            return super().show_all(values, tree, text)
        counted = _Counted(values)
        print_grid(grid(counted))
        return counted.has_any


class _Counted(Generic[Value]):
    """The values, once, and whether there was any."""

    def __init__(self, values: Iterable[Value]) -> None:
        self._values = values
        self.has_any = False

    def __iter__(self) -> Iterator[Value]:
        for value in self._values:
            self.has_any = True
            yield value


class JsonOutput(Output):
    """One JSON object a line."""

    def show(self, value: Value, tree: ToTree[Value], text: ToText[Value], grid: ToGrid[Value] | None = None) -> None:
        self.data(tree(value))

    def show_all(
        self, values: Values[Value], tree: ToTree[Value], text: ToTexts[Value], grid: ToGridOfAll[Value] | None = None
    ) -> bool:
        counted = _Counted(values)
        for value in counted:
            self.data(tree(value))
        return counted.has_any

    def text(self, text: str) -> None:
        pass

    def file_text(self, text: str) -> None:
        pass

    def data(self, tree: Tree) -> None:
        sys.stdout.write(json_line(_with_values(tree)))


def _with_values(tree: Any) -> Any:
    """`tree` without the fields that are None, at all levels."""
    if isinstance(tree, Mapping):
        return {name: _with_values(value) for name, value in tree.items() if value is not None}
    if isinstance(tree, (list, tuple)):
        return [_with_values(value) for value in tree]
    return tree


def notice(line: str) -> None:
    """Print a line to sys.stderr, after what was printed before; names in it are escaped."""
    sys.stdout.flush()
    sys.stderr.write(printable(line) + "\n")


def or_none(value: object) -> str:
    """The text of a value in a table: `-` for None."""
    return NO_VALUE if value is None else str(value)


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table with a header; none if `lines` is empty."""
    widths = [len(name) for name in header]
    remaining = (list(map(printable, line)) for line in lines)
    is_first = True
    while together := list(islice(remaining, _LINES_TOGETHER)):
        widths = [
            max(width, *map(len, column)) for width, column in zip(widths, zip(*together, strict=True), strict=True)
        ]
        if is_first:
            yield _table_line(header, widths)
        is_first = False
        for line in together:
            yield _table_line(line, widths)


def _table_line(line: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + "\n"


def padded_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table as Kafka's newer tools print it: cells padded to their column, each followed by a tab, also the last."""
    rows = [header, *(list(map(printable, line)) for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "".join(f"{text:<{width}}\t" for text, width in zip(row, widths, strict=True)) + "\n"


# Columns, for text and JSON alike


@dataclass(frozen=True, slots=True)
class Column(Generic[Value]):
    """One value of each row: its title in the text form, its field in JSON, and how to get it.

    Without a title it is in JSON only, without a field in text only. `width` is the least width; a column of numbers,
    which does not grow, may be wider in single lines. `text` makes the cell of the row.
    """

    title: str | None
    field: str | None
    value: Callable[[Value], Any]
    width: int = 0
    grows: bool = True
    text: Callable[[Value], str] | None = None

    def cell(self, row: Value) -> str:
        """The text of the row's value, escaped."""
        return printable(or_none(self.value(row)) if self.text is None else self.text(row))


def tree_of(columns: Sequence[Column[Value]]) -> Callable[[Value], Tree]:
    """The function that makes the tree of a row."""
    return lambda row: {each.field: each.value(row) for each in columns if each.field is not None}


def aligned(columns: Sequence[Column[Value]], rows: Iterable[Value]) -> Iterator[list[str]]:
    """The titles, then the cells of each row, padded to their columns; of those with a title."""
    titled = [each for each in columns if each.title is not None]
    lines = [[each.title or "" for each in titled], *([each.cell(row) for each in titled] for row in rows)]
    widths = [
        max(each.width, *(len(line[at]) for line in lines)) if each.grows else each.width
        for at, each in enumerate(titled)
    ]
    for line in lines:
        yield [text.ljust(width) for text, width in zip(line, widths, strict=True)]
