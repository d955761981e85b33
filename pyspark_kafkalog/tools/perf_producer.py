"""Writes records at full speed, or at a given rate, and prints the achieved rate and the latencies.

Lines and percentiles are those of org.apache.kafka.tools.ProducerPerformance.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_kafkalog.tools.command import UsageError

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import FlushMode, LogDir

GATHER_MS: Final = 100
_COMMIT_BYTES: Final = 32 << 20
_COMMIT_RECORDS_MAX: Final = 1 << 20
_PAYLOAD_FILE_BYTES_MAX: Final = 256 << 20
_REPORT_S: Final = 5.0
_SAMPLES_MAX: Final = 500_000
_MIB: Final = 1024 * 1024
_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a run. `throughput`: records per second, unlimited if below 1; `gather_ms` applies with a limit."""

    topic: str
    records: int
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


def chosen_payloads(path: Path, delimiter: str) -> Payloads:
    """Values from a file, separated by `delimiter` ("\\\\n" for a line break). Raises UsageError, OSError."""
    sys.stdout.write(f"Reading payloads from: {path.absolute()}\n")
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
    sys.stdout.write(f"Number of messages read: {len(values)}\n")
    return _ChosenPayloads(pa.array(values, pa.binary()))


def produce(log_dir: LogDir, payloads: Payloads, plan: Plan) -> None:
    """Write the records; prints a line every five seconds and one at the end."""
    last = None if plan.transactional_id is None else log_dir.last_version(plan.transactional_id)
    version = -1 if last is None else last
    stats = _Stats(plan.records)
    start_s = time.monotonic()
    per_commit = max(1, min(int(_COMMIT_BYTES / payloads.mean_bytes), _COMMIT_RECORDS_MAX))
    written = 0
    while written < plan.records:
        count = min(per_commit, plan.records - written)
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
        stats.record(due_s, values.nbytes - 4 * (count + 1))
    stats.print_total()


def _wait_for(plan: Plan, start_s: float, written: int, most: int) -> tuple[int, NDArray[np.float64]]:
    """Wait until the records of `gather_ms` are due; returns their number, and when each was due."""
    wanted = max(1, min(most, round(plan.throughput * plan.gather_ms / 1000)))
    last_due_s = start_s + (written + wanted) / plan.throughput
    time.sleep(max(last_due_s - time.monotonic(), 0.0))
    # Records that became due during the last commit are included.
    count = max(wanted, min(most, int((time.monotonic() - start_s) * plan.throughput) - written))
    return count, start_s + np.arange(written, written + count) / plan.throughput


class _Stats:
    """Counts records and their latencies, in whole ms as in Kafka."""

    def __init__(self, records: int) -> None:
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
        if now_s - self._window_start_s >= _REPORT_S:
            sys.stdout.write(
                f"{self._window.rates(now_s - self._window_start_s)}, "
                f"{self._window.average_ms:.1f} ms avg latency, {self._window.max_ms:.1f} ms max latency.\n"
            )
            sys.stdout.flush()
            self._window, self._window_start_s = _Sums(), now_s

    def print_total(self) -> None:
        samples = np.sort(np.concatenate(self._samples))
        at = {name: int(samples[int(part * len(samples))]) for name, part in _PERCENTILES.items()}
        percentiles = ", ".join(f"{value} ms {name}" for name, value in at.items())
        sys.stdout.write(
            f"{self._total.rates(time.monotonic() - self._start_s)}, {self._total.average_ms:.2f} ms avg latency, "
            f"{self._total.max_ms:.2f} ms max latency, {percentiles}.\n"
        )


_PERCENTILES: Final = {"50th": 0.5, "95th": 0.95, "99th": 0.99, "99.9th": 0.999}


class _Sums:
    __slots__ = ("_bytes", "_count", "_total_ms", "max_ms")

    def __init__(self) -> None:
        self._count = self._bytes = self._total_ms = 0
        self.max_ms = 0.0

    def add(self, latencies_ms: NDArray[np.int64], size_bytes: int) -> None:
        self._count += len(latencies_ms)
        self._bytes += size_bytes
        self._total_ms += int(latencies_ms.sum())
        self.max_ms = max(self.max_ms, float(latencies_ms.max()))

    @property
    def average_ms(self) -> float:
        return self._total_ms / max(self._count, 1)

    def rates(self, elapsed_s: float) -> str:
        elapsed_s = max(elapsed_s, 1e-3)
        rate, mib_rate = self._count / elapsed_s, self._bytes / elapsed_s / _MIB
        return f"{self._count} records sent, {rate:.1f} records/sec ({mib_rate:.2f} MB/sec)"
