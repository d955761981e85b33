"""Where reports go: one JSON line a partition on standard output, a progress bar on a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TextIO

from pyspark_kafkalog.maintenance.report import PartitionReport, values

if TYPE_CHECKING:
    from pyspark_kafkalog.maintenance.job_runner import Round

_SECONDS_DIGITS: Final = 3
_UNDERSCORE = re.compile(r"_([a-z])")


def report_tree(report: PartitionReport) -> dict[str, Any]:
    """The report's fields under camel-case names, without those that have no value."""
    tree = {
        _UNDERSCORE.sub(lambda match: match.group(1).upper(), name): value for name, value in values(report).items()
    }
    return {**tree, "seconds": round(report.seconds, _SECONDS_DIGITS)}


class JsonLines:
    """A line of JSON for each report, written out at once. In a dry run each says so."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._extra: dict[str, Any] = {}

    def begin(self, action: str, this_round: Round, partitions_count: int) -> None:
        self._extra = {"dryRun": True} if this_round.dry_run else {}

    def tell(self, tree: Mapping[str, Any]) -> None:
        """A line for something found or done beside the reports; what has no value is left out."""
        self._write({name: value for name, value in tree.items() if value is not None})

    def take(self, report: PartitionReport) -> None:
        self._write({**report_tree(report), **self._extra})

    def end(self) -> None:
        """Every line is out already."""

    def _write(self, tree: Mapping[str, Any]) -> None:
        stream = self._stream or sys.stdout
        with beside_progress_bar(stream):
            stream.write(json.dumps(tree, ensure_ascii=False) + "\n")
            stream.flush()


def beside_progress_bar(stream: TextIO) -> AbstractContextManager[None]:
    """Where lines and a bar go to the same terminal, the bar makes room for the line."""
    if not stream.isatty():
        return nullcontext()
    from tqdm import tqdm

    context: AbstractContextManager[None] = tqdm.external_write_mode(file=stream)
    return context


class ProgressBar:
    """How many partitions are done, on standard error when that is a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._failed = 0

    def begin(self, action: str, this_round: Round, partitions_count: int) -> None:
        from tqdm import tqdm

        # disable=None: only on a terminal.
        self._bar = tqdm(total=partitions_count, desc=action, unit="partition", file=sys.stderr, disable=None)
        self._failed = 0

    def take(self, report: PartitionReport) -> None:
        if not report.is_fine:
            self._failed += 1
            self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update()

    def end(self) -> None:
        self._bar.close()
