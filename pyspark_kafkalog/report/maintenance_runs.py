"""The results of maintenance jobs, from the Delta table to which they append: its newest rows, read without Spark.

    <table>/_delta_log/<20 digit version>.json               actions: files added and removed
    <table>/_delta_log/<20 digit version>.checkpoint.parquet the same, of all versions up to it
    <table>/*.parquet                                        the rows

Only the features that such a table uses are supported: no deletion vectors, no column mapping. A table that requires
more is refused. Source of the rules: the Delta transaction log protocol.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_kafkalog.errors import LogDirError

_ROWS_MAX: Final = 2_000
_FILES_MAX: Final = 2_000
_READER_VERSION: Final = 1
_VERSION = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
#: Rows are ordered by this column: the time at which a run was done with a partition.
TIME_COLUMN: Final = "timestamp"


def read_runs(table: Path) -> tuple[Mapping[str, object], ...]:
    """The newest rows of the table at `table`, newest first. Raises LogDirError when it cannot be read."""
    log = table / "_delta_log"
    try:
        files = _live_files(log)
        rows = [row for name in files[-_FILES_MAX:] for row in _rows(table, name)]
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise LogDirError(f"{table} cannot be read as a Delta table: {error}") from error
    rows.sort(key=lambda row: str(row.get(TIME_COLUMN)), reverse=True)
    return tuple(rows[:_ROWS_MAX])


def _live_files(log: Path) -> list[str]:
    """Names of the data files of the newest version, in the order in which they were added."""
    names = sorted(each.name for each in log.iterdir())
    checkpoints = [match for name in names if (match := _CHECKPOINT.fullmatch(name))]
    first = int(checkpoints[-1][1]) + 1 if checkpoints else 0
    versions = [match for name in names if (match := _VERSION.fullmatch(name)) and int(match[1]) >= first]
    if not checkpoints and not versions:
        raise ValueError("no _delta_log/*.json in it")
    live: dict[str, None] = {}
    if checkpoints:
        _apply(live, pq.read_table(log / checkpoints[-1][0]).to_pylist())
    for match in versions:
        with (log / match[0]).open(encoding="utf-8") as lines:
            _apply(live, (json.loads(line) for line in lines if line.strip()))
    return list(live)


def _apply(live: dict[str, None], actions: Iterable[Mapping[str, Any]]) -> None:
    for action in actions:
        if action.get("protocol") and action["protocol"]["minReaderVersion"] > _READER_VERSION:
            raise ValueError(f"it needs reader version {action['protocol']['minReaderVersion']}")
        if action.get("add"):
            live[action["add"]["path"]] = None
        if action.get("remove"):
            live.pop(action["remove"]["path"], None)


def _rows(table: Path, name: str) -> Iterator[dict[str, object]]:
    path = (table / urllib.parse.unquote(name)).resolve()
    if not path.is_relative_to(table.resolve()):
        raise ValueError(f"its file {name} is outside of it")
    # A partition column is stored only in the path, as text.
    inherited = dict(part.split("=", 1) for part in urllib.parse.unquote(name).split("/")[:-1] if "=" in part)
    for row in pq.read_table(path, partitioning=None).to_pylist():
        yield {**inherited, **row}
