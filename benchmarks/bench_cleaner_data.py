"""A compacted partition to clean, and directories that share its segments."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.staged_file import StagingTask
from pyspark_kafkalog.storage.stager import stage_table

TOPIC = "t"
FIRST_MS = 1_767_225_600_000
KEY_DIGITS, VALUE_BYTES = 8, 100
RANDOM_BYTES = 32  # of a value, as 64 hexadecimal digits; the rest is the same in all
ROWS_OF_COMMIT = 1_000_000
SEGMENT_BYTES = 128 << 20
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": "-1",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """`records` records with `keys` keys: each one's key by chance, or, when there are as many, every key once."""

    records: int
    keys: int
    codec: str
    batch_bytes: int

    def make(self, root: Path) -> None:
        """Write it to a new root; its last segment, which no cleaner touches, holds one record."""
        log_dir = LogDir.create(root)
        log_dir.create_topic(TOPIC, partitions=1, configs=CONFIGS)
        for table in self._tables():
            self._append(log_dir, table)
        log_dir.alter_topic(TOPIC, add={"segment.bytes": str(1 << 20)})
        log_dir.append(TOPIC, pa.table({"key": [b"last"], "value": [b"last"]}), partition=0)
        log_dir.alter_topic(TOPIC, add={"segment.bytes": str(SEGMENT_BYTES)})

    def _append(self, log_dir: LogDir, table: pa.Table) -> None:
        """As LogDir.append, with batches of another size."""
        staged = stage_table(
            StagingTask(root=log_dir.path, write_id=uuid.uuid4().hex, task=0),
            TOPIC,
            table,
            partitions_count=1,
            partition=0,
            config=log_dir.log_config(TOPIC),
            asked_compression=self.codec,
            batch_size_bytes=self.batch_bytes,
            clock_ms=lambda: time.time_ns() // 1_000_000,
            fs=flushing_file_system(LOCAL, "os"),
        )
        log_dir.commit_staged(staged, flush="os")

    def _tables(self) -> Iterator[pa.Table]:
        random = np.random.default_rng(1)
        is_unique = self.records == self.keys
        hexadecimal = np.frombuffer(b"0123456789abcdef", np.uint8)
        for first in range(0, self.records, ROWS_OF_COMMIT):
            rows = min(ROWS_OF_COMMIT, self.records - first)
            ids = np.arange(first, first + rows) if is_unique else random.integers(0, self.keys, rows)
            keys = np.empty((rows, 5 + KEY_DIGITS), np.uint8)
            keys[:, :5] = np.frombuffer(b"user-", np.uint8)
            for digit in range(KEY_DIGITS):
                keys[:, -1 - digit] = ord("0") + ids // 10**digit % 10
            values = np.full((rows, VALUE_BYTES), ord(" "), np.uint8)
            drawn = random.integers(0, 256, (rows, RANDOM_BYTES), np.uint8)
            values[:, 0 : 2 * RANDOM_BYTES : 2] = hexadecimal[drawn >> 4]
            values[:, 1 : 2 * RANDOM_BYTES : 2] = hexadecimal[drawn & 15]
            times = pa.array((FIRST_MS + np.arange(first, first + rows)) * 1000, pa.timestamp("us", "UTC"))
            yield pa.table({"key": _binary(keys), "value": _binary(values), "timestamp": times})


def _binary(rows: np.ndarray) -> pa.Array:
    count, size = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows.reshape(-1))])


def closed_bytes(root: Path) -> int:
    """Bytes of the segments that can be cleaned."""
    *closed, _ = sorted((root / f"{TOPIC}-0").glob("*.log"))
    return sum(path.stat().st_size for path in closed)


def share(source: Path, target: Path) -> None:
    """A directory tree as `source`, whose `.log` files are second names of its files: cleaners never write to them.

    So every round finds the same pages in the page cache. The last segment's file and all others are copies.
    """
    for folder, _, names in os.walk(source):
        into = target / Path(folder).relative_to(source)
        into.mkdir(parents=True, exist_ok=True)
        active = max((name for name in names if name.endswith(".log")), default=None)
        for name in names:
            is_closed = name.endswith(".log") and name != active
            (os.link if is_closed else shutil.copy2)(Path(folder, name), into / name)


def warm(root: Path) -> None:
    """Have all segments in the page cache, and nothing left to write to the disk."""
    os.sync()
    buffer = bytearray(4 << 20)
    for path in sorted(root.rglob("*.log")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
