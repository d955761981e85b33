"""`kafkalog perf-test`: writes or reads records at full speed, or at a given rate, and prints rates and latencies.

Lines and percentiles are those of org.apache.kafka.tools.ProducerPerformance and ConsumerPerformance.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_kafkalog.log_dir import FlushMode, LogDir
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.record.codecs.codec import CODEC_NAMES
from pyspark_kafkalog.storage.names import validate_topic_name
from pyspark_kafkalog.tools.command import UsageError
from pyspark_kafkalog.tools.output import Output, output_of
from pyspark_kafkalog.tools.records.console import Chunk, Consumer, selection
from pyspark_kafkalog.tools.running import open_log_dir, parse_properties_options, warn_of_unread_offsets
from pyspark_kafkalog.units import MIB

_COLUMNS: Final = "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, "
_HEADER_END: Final = "fetch.MB.sec, fetch.nMsg.sec\n"
_THREAD: Final = 0

#: Letters of java.text.SimpleDateFormat, and their counterparts in strftime.
_DATE_PARTS: Final = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


def run(options: argparse.Namespace) -> int:
    """Measure; prints to sys.stdout."""
    if options.command == "producer":
        _produce(options)
    else:
        _consume(options)
    return 0


def _produce(options: argparse.Namespace) -> None:
    validate_topic_name(options.topic)
    if not 0 <= options.warmup_records < options.num_records:
        raise UsageError(f"--warmup-records={options.warmup_records}: expected 0 or more, and less than --num-records")
    properties = parse_properties_options(options.producer_props, options.producer_config)
    plan = Plan(
        topic=options.topic,
        records=options.num_records,
        warmup_records=options.warmup_records,
        interval_s=options.reporting_interval / 1000,
        throughput=options.throughput,
        gather_ms=options.transaction_duration_ms or _number(properties, "linger.ms", GATHER_MS),
        compression_type=_choice(properties, "compression.type", CODEC_NAMES),
        flush="os" if _choice(properties, "flush", ("fsync", "os")) == "os" else "fsync",
        transactional_id=options.transactional_id or properties.get("transactional.id"),
    )
    output = output_of(options)
    payloads: Payloads
    if options.payload_file is not None:
        payloads = chosen_payloads(options.payload_file, options.payload_delimiter, output)
    elif options.payload_monotonic:
        payloads = NumberPayloads()
    else:
        payloads = RandomPayloads(options.record_size)
    _write(LogDir.open_or_create(options.path), payloads, plan, output)


def _consume(options: argparse.Namespace) -> None:
    log_dir = open_log_dir(options)
    _read(
        log_dir,
        topic=options.topic,
        include=options.include,
        messages=options.num_records,
        group=options.group,
        from_latest=options.from_latest,
        local_only=options.local_only,
        timeout_ms=options.timeout,
        report=Report(
            interval_ms=options.reporting_interval,
            is_detailed=options.show_detailed_stats,
            has_header=not options.hide_header,
            date_format=options.date_format,
            output=output_of(options),
        ),
    )
    warn_of_unread_offsets("perf-test", log_dir)


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"{name}={text}: expected a number of 0 or more")
    return int(text)


def _choice(properties: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = properties.get(name, choices[0])
    if value not in choices:
        raise UsageError(f"{name}={value}: expected one of {', '.join(choices)}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Options of the output besides the totals."""

    interval_ms: int
    is_detailed: bool
    has_header: bool
    date_format: str
    output: Output

    def print_header(self) -> None:
        if self.has_header:
            times = "time, threadId, " if self.is_detailed else "start.time, end.time, "
            self.output.text(times + _COLUMNS + _HEADER_END)

    def print_rates(self, times: dict[str, float], rates: _Rates) -> None:
        """Print one line: the `times`, in seconds by name, and the rates."""
        dates = [self.date(time_s) for time_s in times.values()]
        if self.is_detailed:
            dates.append(str(_THREAD))
        self.output.text(f"{', '.join(dates)}, {rates.text()}\n")
        self.output.data({**{name: self.date(time_s) for name, time_s in times.items()}, **rates.tree()})

    def date(self, time_s: float) -> str:
        """The local time in the format of SimpleDateFormat."""
        moment = datetime.fromtimestamp(time_s)

        def part(match: re.Match[str]) -> str:
            if match[0][0] == "S":
                return f"{moment.microsecond // 1000:0{len(match[0])}d}"
            return moment.strftime(_DATE_PARTS.get(match[0], match[0]))

        return re.sub(r"([yMdHmsS])\1*", part, self.date_format)


def _read(
    log_dir: LogDir,
    *,
    topic: str | None,
    include: str | None,
    messages: int,
    group: str | None,
    from_latest: bool,
    local_only: bool,
    timeout_ms: int,
    report: Report,
) -> None:
    """Read `messages` records, or until none arrives for `timeout_ms`."""
    report.print_header()
    start_s = time.time()
    consumer = Consumer(
        log_dir,
        selection(log_dir, topic, include),
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
        report.output.text(
            "WARNING: Exiting before consuming the expected number of messages: timeout "
            f"({timeout_ms} ms) exceeded. You can use the --timeout option to increase the timeout.\n"
        )
    if not report.is_detailed:
        end_s = time.time()
        rates = _Rates(counted.bytes, counted.messages, end_s - start_s, counted.total())
        report.print_rates({"startTime": start_s, "endTime": end_s}, rates)


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
            rates = _Rates(self.bytes - last_bytes, self.messages - last_messages, elapsed_s, self.total())
            self._report.print_rates({"time": now_s}, rates)
            sys.stdout.flush()
        self._last, self._last_s = self.total(), now_s


@dataclass(frozen=True, slots=True)
class _Rates:
    """Bytes and records of an interval and in total (bytes, records)."""

    size_bytes: int
    messages: int
    elapsed_s: float
    total: tuple[int, int]

    def text(self) -> str:
        """MB and records, total and per second; there are no rebalances, so the fetch rates are the same."""
        elapsed_s = max(self.elapsed_s, 1e-3)
        mib_rate, rate = self.size_bytes / MIB / elapsed_s, self.messages / elapsed_s
        return (
            f"{self.total[0] / MIB:.4f}, {mib_rate:.4f}, {self.total[1]}, {rate:.4f}, 0, {round(elapsed_s * 1000)}, "
            f"{mib_rate:.4f}, {rate:.4f}"
        )

    def tree(self) -> dict[str, Any]:
        elapsed_s = max(self.elapsed_s, 1e-3)
        return {
            "mib": round(self.total[0] / MIB, 4),
            "mibPerSecond": round(self.size_bytes / MIB / elapsed_s, 4),
            "records": self.total[1],
            "recordsPerSecond": round(self.messages / elapsed_s, 4),
            "elapsedMs": round(elapsed_s * 1000),
        }


GATHER_MS: Final = 100
_COMMIT_BYTES: Final = 32 << 20
_COMMIT_RECORDS_MAX: Final = 1 << 20
_PAYLOAD_FILE_BYTES_MAX: Final = 256 << 20
_SAMPLES_MAX: Final = 500_000
_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a run. `throughput`: records per second, unlimited if below 1; `gather_ms` applies with a limit.

    The figures of the steady state are those without the first `warmup_records`.
    """

    topic: str
    records: int
    warmup_records: int
    interval_s: float
    throughput: float
    gather_ms: int
    compression_type: str
    flush: FlushMode
    transactional_id: str | None


class Payloads(Protocol):
    """Produces values. `mean_bytes` is their approximate size."""

    mean_bytes: float

    def take(self, start: int, count: int) -> pa.Array:
        """The values of the records with numbers [start, start + count)."""
        ...


class RandomPayloads:
    """Values of random letters: slices of one random text, at a moving position."""

    def __init__(self, size_bytes: int) -> None:
        self.mean_bytes = float(size_bytes)
        self._size_bytes = size_bytes
        letters = max(_COMMIT_BYTES, size_bytes) + size_bytes
        self._letters = np.random.default_rng(_SEED).integers(ord("A"), ord("Z") + 1, letters, dtype=np.uint8)

    def take(self, start: int, count: int) -> pa.Array:
        per_pass = max(_COMMIT_BYTES // self._size_bytes, 1)
        shift = (start * 31) % self._size_bytes
        pieces = []
        while count > 0:
            size = min(count, per_pass)
            offsets = pa.array(np.arange(size + 1, dtype=np.int32) * np.int32(self._size_bytes))
            data = pa.py_buffer(self._letters[shift:])
            pieces.append(pa.Array.from_buffers(pa.binary(), size, [None, offsets.buffers()[1], data]))
            count -= size
        return pa.concat_arrays(pieces)


class NumberPayloads:
    """The numbers of the records as text."""

    mean_bytes = 8.0

    def take(self, start: int, count: int) -> pa.Array:
        return pa.array(np.arange(start, start + count)).cast(pa.string()).cast(pa.binary())


class _ChosenPayloads:
    """Values chosen at random from a given set."""

    def __init__(self, values: pa.Array) -> None:
        self.mean_bytes = max(values.nbytes / len(values), 1.0)
        self._values = values
        self._random = np.random.default_rng(_SEED)

    def take(self, start: int, count: int) -> pa.Array:
        return self._values.take(pa.array(self._random.integers(0, len(self._values), count)))


def chosen_payloads(path: Path, delimiter: str, output: Output) -> Payloads:
    """Values from a file, separated by `delimiter` ("\\\\n" for a line break). Raises UsageError, OSError."""
    output.text(f"Reading payloads from: {path.absolute()}\n")
    if path.stat().st_size > _PAYLOAD_FILE_BYTES_MAX:
        raise UsageError(f"{path} has more than {_PAYLOAD_FILE_BYTES_MAX} bytes: name a smaller file")
    separator = b"\n" if delimiter == "\\n" else delimiter.encode()
    if not separator:
        raise UsageError("--payload-delimiter may not be empty")
    values = path.read_bytes().split(separator)
    if not values[-1]:
        values.pop()
    if not values:
        raise UsageError(f"{path}: File does not exist or empty file provided.")
    output.text(f"Number of messages read: {len(values)}\n")
    return _ChosenPayloads(pa.array(values, pa.binary()))


def _write(log_dir: LogDir, payloads: Payloads, plan: Plan, output: Output) -> None:
    """Write the records; prints a line each interval, one at the end, and another one for the steady state."""
    last = None if plan.transactional_id is None else log_dir.last_version(plan.transactional_id)
    version = -1 if last is None else last
    all_stats = [_Stats(plan.records, output, plan.interval_s)]
    if plan.warmup_records:
        output.text(
            f"Warmup first {plan.warmup_records} records. Steady state results will print after the complete test "
            "summary.\n"
        )
    start_s = time.monotonic()
    per_commit = max(1, min(int(_COMMIT_BYTES / payloads.mean_bytes), _COMMIT_RECORDS_MAX))
    written = 0
    while written < plan.records:
        if 0 < plan.warmup_records == written:
            all_stats[0].is_silent = True
            all_stats.append(_Stats(plan.records - written, output, plan.interval_s, is_steady_state=True))
        end = plan.warmup_records if written < plan.warmup_records else plan.records
        count = min(per_commit, end - written)
        due_s = np.full(count, time.monotonic())
        if plan.throughput > 0:
            count, due_s = _wait_for(plan, start_s, written, count)
        values = payloads.take(written, count)
        version += 1
        log_dir.append(
            plan.topic,
            pa.table({"value": values}),
            compression_type=plan.compression_type,
            flush=plan.flush,
            transactional_id=plan.transactional_id,
            transaction_version=None if plan.transactional_id is None else version,
        )
        written += count
        for stats in all_stats:
            stats.record(due_s, values.nbytes - 4 * (count + 1))
    totals, *steady_state = [stats.print_total() for stats in all_stats]
    output.data(totals | ({"steadyState": steady_state[0]} if steady_state else {}))


def _wait_for(plan: Plan, start_s: float, written: int, most: int) -> tuple[int, NDArray[np.float64]]:
    """Wait until the records of `gather_ms` are due; returns their number, and when each was due."""
    due = max(1, min(most, round(plan.throughput * plan.gather_ms / 1000)))
    last_due_s = start_s + (written + due) / plan.throughput
    time.sleep(max(last_due_s - time.monotonic(), 0.0))
    # Records that became due during the last commit are included.
    count = max(due, min(most, int((time.monotonic() - start_s) * plan.throughput) - written))
    return count, start_s + np.arange(written, written + count) / plan.throughput


class _Stats:
    """Counts records and their latencies, in whole ms as in Kafka, and prints a line each interval unless silent."""

    def __init__(self, records: int, output: Output, interval_s: float, *, is_steady_state: bool = False) -> None:
        self.is_silent = False
        self._output = output
        self._interval_s = interval_s
        self._is_steady_state = is_steady_state
        self._start_s = self._window_start_s = time.monotonic()
        self._stride = max(records // _SAMPLES_MAX, 1)
        self._samples: list[NDArray[np.int64]] = []
        self._total = _Sums()
        self._window = _Sums()

    def record(self, due_s: NDArray[np.float64], size_bytes: int) -> None:
        """Count records that were due at `due_s` and are written now."""
        now_s = time.monotonic()
        latencies_ms = ((now_s - due_s) * 1000).astype(np.int64)
        for sums in (self._total, self._window):
            sums.add(latencies_ms, size_bytes)
        self._samples.append(latencies_ms[:: self._stride])
        if now_s - self._window_start_s >= self._interval_s:
            if not self.is_silent:
                self._print_window(now_s)
            self._window, self._window_start_s = _Sums(), now_s

    def _print_window(self, now_s: float) -> None:
        if self._is_steady_state and self._window.count == self._total.count:
            self._output.text("In steady state.\n")
        self._output.text(
            f"{self._window.rates(now_s - self._window_start_s)}, "
            f"{self._window.average_ms:.1f} ms avg latency, {self._window.max_ms:.1f} ms max latency.\n"
        )
        sys.stdout.flush()

    def print_total(self) -> dict[str, Any]:
        """Print the line of all records. Returns the figures."""
        samples = np.sort(np.concatenate(self._samples))
        at = {name: int(samples[int(part * len(samples))]) for name, part in _PERCENTILES.items()}
        percentiles = ", ".join(f"{value} ms {name}" for name, value in at.items())
        elapsed_s = time.monotonic() - self._start_s
        self._output.text(
            f"{self._total.rates(elapsed_s, ' steady state' if self._is_steady_state else '')}, "
            f"{self._total.average_ms:.2f} ms avg latency, "
            f"{self._total.max_ms:.2f} ms max latency, {percentiles}.\n"
        )
        return {**self._total.tree(elapsed_s), "percentilesMs": at}


_PERCENTILES: Final = {"50th": 0.5, "95th": 0.95, "99th": 0.99, "99.9th": 0.999}


class _Sums:
    __slots__ = ("_bytes", "_total_ms", "count", "max_ms")

    def __init__(self) -> None:
        self.count = self._bytes = self._total_ms = 0
        self.max_ms = 0.0

    def add(self, latencies_ms: NDArray[np.int64], size_bytes: int) -> None:
        self.count += len(latencies_ms)
        self._bytes += size_bytes
        self._total_ms += int(latencies_ms.sum())
        self.max_ms = max(self.max_ms, float(latencies_ms.max()))

    @property
    def average_ms(self) -> float:
        return self._total_ms / max(self.count, 1)

    def tree(self, elapsed_s: float) -> dict[str, Any]:
        elapsed_s = max(elapsed_s, 1e-3)
        return {
            "records": self.count,
            "recordsPerSecond": round(self.count / elapsed_s, 1),
            "mibPerSecond": round(self._bytes / elapsed_s / MIB, 2),
            "averageLatencyMs": round(self.average_ms, 2),
            "maxLatencyMs": self.max_ms,
        }

    def rates(self, elapsed_s: float, which: str = "") -> str:
        elapsed_s = max(elapsed_s, 1e-3)
        rate, mib_rate = self.count / elapsed_s, self._bytes / elapsed_s / MIB
        return f"{self.count}{which} records sent, {rate:.1f} records/sec ({mib_rate:.2f} MB/sec)"
