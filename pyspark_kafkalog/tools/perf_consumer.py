"""Reads records at full speed and prints the rate, in the format of org.apache.kafka.tools.ConsumerPerformance."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.tools.consume import Chunk, Consumer

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir

_COLUMNS: Final = "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, "
_HEADER_END: Final = "fetch.MB.sec, fetch.nMsg.sec\n"
_MIB: Final = 1024 * 1024
_THREAD: Final = 0
#: Letters of java.text.SimpleDateFormat, and their counterparts in strftime.
_DATE_PARTS: Final = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Options of the output besides the totals."""

    interval_ms: int
    is_detailed: bool
    has_header: bool
    date_format: str

    def print_header(self) -> None:
        if self.has_header:
            times = "time, threadId, " if self.is_detailed else "start.time, end.time, "
            sys.stdout.write(times + _COLUMNS + _HEADER_END)

    def date(self, time_s: float) -> str:
        """The local time in the format of SimpleDateFormat."""
        moment = datetime.fromtimestamp(time_s)

        def part(match: re.Match[str]) -> str:
            if match[0][0] == "S":
                return f"{moment.microsecond // 1000:0{len(match[0])}d}"
            return moment.strftime(_DATE_PARTS.get(match[0], match[0]))

        return re.sub(r"([yMdHmsS])\1*", part, self.date_format)


def consume(
    log_dir: LogDir,
    topic: str,
    *,
    messages: int,
    group: str | None,
    from_latest: bool,
    local_only: bool,
    timeout_ms: int,
    report: Report,
) -> None:
    """Read `messages` records, or until none arrives for `timeout_ms`."""
    log_dir.partition_numbers(topic)
    report.print_header()
    start_s = time.time()
    consumer = Consumer(
        log_dir,
        lambda name: name == topic,
        schema=pa.schema([KAFKA_SCHEMA.field(name) for name in ("key", "value", "offset")]),
        reset="latest" if from_latest else "earliest",
        isolation="read_uncommitted",
        start={} if group is None else {name: each.offset for name, each in log_dir.group(group).fetch().items()},
        local_only=local_only,
    )
    counted = _Counted(report, messages)
    until_s = time.monotonic() + timeout_ms / 1000
    while counted.messages < messages and time.monotonic() <= until_s:
        for chunk in consumer.poll():
            consumer.seen(chunk)
            counted.add(chunk)
            until_s = time.monotonic() + timeout_ms / 1000
            if counted.messages >= messages:
                break
        else:
            consumer.wait(until_s)
    if counted.messages < messages:
        sys.stdout.write(
            "WARNING: Exiting before consuming the expected number of messages: timeout "
            f"({timeout_ms} ms) exceeded. You can use the --timeout option to increase the timeout.\n"
        )
    if not report.is_detailed:
        end_s = time.time()
        dates = f"{report.date(start_s)}, {report.date(end_s)}"
        sys.stdout.write(f"{dates}, {_rates(counted.bytes, counted.messages, end_s - start_s, counted.total())}\n")


class _Counted:
    """Counts the records read, and prints a line per interval if requested."""

    def __init__(self, report: Report, most: int) -> None:
        self.messages = 0
        self.bytes = 0
        self._most = most
        self._report = report
        self._last = (0, 0)
        self._last_s = time.time()

    def total(self) -> tuple[int, int]:
        return self.bytes, self.messages

    def add(self, chunk: Chunk) -> None:
        batch = chunk.batch[: self._most - self.messages]
        self.messages += len(batch)
        for name in ("key", "value"):
            self.bytes += pc.sum(pc.binary_length(batch.column(name))).as_py() or 0
        now_s = time.time()
        elapsed_s = now_s - self._last_s
        if elapsed_s * 1000 < self._report.interval_ms:
            return
        if self._report.is_detailed:
            last_bytes, last_messages = self._last
            rates = _rates(self.bytes - last_bytes, self.messages - last_messages, elapsed_s, self.total())
            sys.stdout.write(f"{self._report.date(now_s)}, {_THREAD}, {rates}\n")
            sys.stdout.flush()
        self._last, self._last_s = self.total(), now_s


def _rates(size_bytes: int, messages: int, elapsed_s: float, total: tuple[int, int]) -> str:
    """MB and records, total and per second; there are no rebalances, so the fetch rates are the same."""
    elapsed_s = max(elapsed_s, 1e-3)
    mib_rate, rate = size_bytes / _MIB / elapsed_s, messages / elapsed_s
    return (
        f"{total[0] / _MIB:.4f}, {mib_rate:.4f}, {total[1]}, {rate:.4f}, 0, {round(elapsed_s * 1000)}, "
        f"{mib_rate:.4f}, {rate:.4f}"
    )
