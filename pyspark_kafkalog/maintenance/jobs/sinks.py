"""Sinks of reports: one JSON line for each partition on standard output, a progress bar on a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TextIO

from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, values

if TYPE_CHECKING:
    from pyspark_kafkalog.maintenance.jobs.runner import Round

_SECONDS_DIGITS: Final = 3
_UNDERSCORE = re.compile(r"_([a-z])")


def report_tree(report: PartitionReport) -> dict[str, Any]:
    """The report's fields that have a value, under camel-case names."""
    tree = {
        _UNDERSCORE.sub(lambda match: match.group(1).upper(), name): value for name, value in values(report).items()
    }
    return {**tree, "seconds": round(report.seconds, _SECONDS_DIGITS)}


class JsonLines:
    """Writes each report as a line of JSON, at once. In a dry run each line is marked as such."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._extra: dict[str, Any] = {}

    def begin(self, action: str, this_round: Round, partitions_count: int) -> None:
        self._extra = {"dryRun": True} if this_round.dry_run else {}

    def tell(self, tree: Mapping[str, Any]) -> None:
        """Write a line for a finding or an action in addition to the reports; fields without a value are omitted."""
        self._write({name: value for name, value in tree.items() if value is not None})

    def take(self, report: PartitionReport) -> None:
        self._write({**report_tree(report), **self._extra})

    def end(self) -> None:
        """Nothing to do: every line has been written."""

    def _write(self, tree: Mapping[str, Any]) -> None:
        stream = self._stream or sys.stdout
        with beside_progress_bar(stream):
            stream.write(json.dumps(tree, ensure_ascii=False) + "\n")
            stream.flush()


def beside_progress_bar(stream: TextIO) -> AbstractContextManager[None]:
    """A context for writing lines to `stream`: on a terminal, the progress bar is cleared before and redrawn after."""
    if not stream.isatty():
        return nullcontext()
    from tqdm import tqdm

    context: AbstractContextManager[None] = tqdm.external_write_mode(file=stream)
    return context


class ProgressBar:
    """The number of finished partitions, on standard error if that is a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._failed = 0

    def begin(self, action: str, this_round: Round, partitions_count: int) -> None:
        from tqdm import tqdm

        # disable=None: show the bar on a terminal only.
        self._bar = tqdm(total=partitions_count, desc=action, unit="partition", file=sys.stderr, disable=None)
        self._failed = 0

    def take(self, report: PartitionReport) -> None:
        if not report.is_fine:
            self._failed += 1
            self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update()

    def end(self) -> None:
        self._bar.close()
