"""Mismatches between files that a dump finds; collected and, at the end, printed to stderr as by kafka-dump-log."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TextIO

from pyspark_kafkalog.tools.dump.java_text import ScalaHashOrder

_Pair = tuple[int, int]


class _ByFile:
    """Pairs of numbers by file, in the iteration order of the map in Kafka's tool."""

    def __init__(self) -> None:
        self._order = ScalaHashOrder()
        self._numbers: dict[str, array[int]] = {}  # flattened pairs: a compacted log may have millions of gaps

    def add(self, file: str, pair: _Pair, *, puts_again: bool) -> None:
        """`puts_again`: Kafka's tool puts the list again for each pair, which may make its map grow."""
        if puts_again or file not in self._numbers:
            self._order.put(file)
        self._numbers.setdefault(file, array("q")).extend(pair)

    def write(
        self, head: Callable[[str], str], line: Callable[[_Pair], str], out: TextIO, *, newest_first: bool
    ) -> None:
        for file in self._order:
            numbers = self._numbers[file]
            out.write(head(file) + "\n")
            places = range(0, len(numbers), 2)
            for at in reversed(places) if newest_first else places:
                out.write(line((numbers[at], numbers[at + 1])) + "\n")


class Findings:
    """Mismatches between index and log, and gaps in logs. Files are named by their absolute paths."""

    def __init__(self) -> None:
        self._index_mismatches = _ByFile()
        self._timestamp_mismatches = _ByFile()
        self._out_of_order = _ByFile()
        self._not_found = _ByFile()
        self._non_consecutive = _ByFile()

    def index_mismatch(self, file: str, index_offset: int, log_offset: int) -> None:
        """An offset index entry leads to a batch that ends at another offset."""
        self._index_mismatches.add(file, (index_offset, log_offset), puts_again=True)

    def timestamp_mismatch(self, file: str, index_timestamp_ms: int, log_timestamp_ms: int) -> None:
        """A time index entry has another timestamp than the latest of its batch."""
        self._timestamp_mismatches.add(file, (index_timestamp_ms, log_timestamp_ms), puts_again=False)

    def timestamp_out_of_order(self, file: str, timestamp_ms: int, previous_ms: int) -> None:
        """A time index entry is not later than the one before."""
        self._out_of_order.add(file, (timestamp_ms, previous_ms), puts_again=False)

    def offset_not_found(self, file: str, index_offset: int, log_offset: int) -> None:
        """No batch ends at a time index entry's offset; `log_offset` is the end of the next batch, -1 if none."""
        self._not_found.add(file, (index_offset, log_offset), puts_again=False)

    def non_consecutive(self, file: str, offset: int, next_offset: int) -> None:
        """A record's offset is not one more than that of the record before."""
        self._non_consecutive.add(file, (offset, next_offset), puts_again=True)

    def write(self, out: TextIO) -> None:
        """All findings, in the order and words of Kafka's tool."""
        self._index_mismatches.write(
            lambda file: f"Mismatches in :{file}",
            lambda pair: f"  Index offset: {pair[0]}, log offset: {pair[1]}",
            out,
            newest_first=True,
        )
        self._timestamp_mismatches.write(
            lambda file: f"Found timestamp mismatch in :{file}",
            lambda pair: f"  Index timestamp: {pair[0]}, log timestamp: {pair[1]}",
            out,
            newest_first=False,
        )
        self._out_of_order.write(
            lambda file: f"Found out of order timestamp in :{file}",
            lambda pair: f"  Index timestamp: {pair[0]}, Previously indexed timestamp: {pair[1]}",
            out,
            newest_first=False,
        )
        self._not_found.write(
            lambda file: "The following indexed offsets are not found in the log.",
            lambda pair: f"Indexed offset: {pair[0]}, found log offset: {pair[1]}",
            out,
            newest_first=False,
        )
        self._non_consecutive.write(
            lambda file: f"Non-consecutive offsets in {file}",
            lambda pair: f"  {pair[0]} is followed by {pair[1]}",
            out,
            newest_first=True,
        )
