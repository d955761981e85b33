"""Tables for people: what commands print on a terminal in place of the text of Kafka's tools.

Programs read the output of a pipe or a file, so that stays as Kafka's tools print it. On a terminal, and if the package
rich is installed, commands with a `Grid` print that: numbers to the right, names that are too long on several lines,
colour unless NO_COLOR is set. rich takes longer to load than most commands to run, so it is loaded for the first table.

All tables have one form of times, `time_text`, and one of sizes, `units.size_text`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.units import printable
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from rich.console import Console

#: The text for a missing value in a table.
NO_VALUE: Final = "-"
#: Tables are laid out for at least this width: a narrower terminal breaks the lines itself.
_WIDTH_MIN: Final = 100
#: Tables are laid out for this many rows at a time, so that a long one is printed as it is produced.
_ROWS_TOGETHER: Final = 1000


@dataclass(frozen=True, slots=True)
class Heading:
    """One column. An optional one is left out if it has no value in any row. `style` gives the colour of a cell.

    Cells of numbers, and those that are `is_whole`, stay on one line.
    """

    title: str
    is_number: bool = False
    is_whole: bool = False
    is_optional: bool = False
    style: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: headings, rows of as many cells. `has_total`: the last row is a sum of the others.

    `title` and `notes` are lines above it; a table with a title has an empty line after it.
    """

    headings: Sequence[Heading]
    rows: Iterable[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    has_total: bool = False


def is_for_people() -> bool:
    """Whether standard output is a terminal on which tables can be shown."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and find_spec("rich") is not None


def print_grid(grid: Grid) -> None:
    """Print the table to sys.stdout; nothing but its title if it has no rows."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    console.width = max(console.width, _WIDTH_MIN)
    for line, style in ((grid.title, "bold"), *((each, "dim") for each in grid.notes)):
        if line:
            console.print(Text(printable(line), style=style), soft_wrap=True)
    rows = iter(grid.rows)
    while together := list(islice(rows, _ROWS_TOGETHER)):
        _print_rows(console, grid, together)
    if grid.title:
        console.print()


def _print_rows(console: Console, grid: Grid, rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    shown = [
        (at, each)
        for at, each in enumerate(grid.headings)
        if not each.is_optional or any(row[at] not in ("", NO_VALUE) for row in rows)
    ]
    for _, each in shown:
        table.add_column(
            each.title,
            justify="right" if each.is_number else "left",
            no_wrap=each.is_number or each.is_whole,
            overflow="fold",
        )
    for number, row in enumerate(rows):
        is_total = grid.has_total and number == len(rows) - 1 < _ROWS_TOGETHER - 1
        cells = [(row[at], each.style) for at, each in shown]
        table.add_row(
            *(Text(printable(text), style="" if style is None else style(text)) for text, style in cells),
            style="bold" if is_total else "",
        )
    console.print(table)


def time_text(timestamp_ms: int) -> str:
    """The time in UTC to the second, which a heading says; the number itself if it is outside the calendar."""
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)


def number_text(number: int | None) -> str:
    """The number with commas between thousands; `-` for None."""
    return NO_VALUE if number is None else f"{number:,}"
