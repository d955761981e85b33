"""Compares verification of a partition in the page cache with reading the same bytes and computing only their CRC.

    python benchmarks/bench_verify.py [--megabytes 1024] [--batch-kibibytes 256 16] [--rounds 5] [--path DIR]

One process with one thread, like a task. Values are 100 bytes, uncompressed; every record is decoded, and every index
entry is compared with its batch. The ceiling reads each `.log` in chunks of 4 MiB and computes one CRC-32C per chunk.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import pyspark_kafkalog.log_dir as log_dir_module
from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.record.header import crc32c

VALUE_BYTES = 100
APPEND_BYTES = 32 << 20


def make_root(root: Path, megabytes: int, batch_bytes: int) -> int:
    """A topic of one partition; returns the bytes of its `.log` files."""
    log_dir_module.BATCH_SIZE_BYTES = batch_bytes  # type: ignore[misc]
    log_dir = LogDir.create(root)
    log_dir.create_topic("t", partitions=1, configs={"segment.bytes": str(256 << 20)})
    records = APPEND_BYTES // (VALUE_BYTES + 10)
    random = np.random.default_rng(1)
    data = pa.py_buffer(random.bytes(records * VALUE_BYTES))
    starts = pa.py_buffer(np.arange(records + 1, dtype=np.int32) * VALUE_BYTES)
    values = pa.Array.from_buffers(pa.binary(), records, [None, starts, data])
    for number in range(-(-(megabytes << 20) // APPEND_BYTES)):
        log_dir.append(
            "t",
            pa.table({"value": values}),
            partition=0,
            flush="os",
            transactional_id="bench",
            transaction_version=number,
        )
    return sum(path.stat().st_size for path in (root / "t-0").glob("*.log"))


def ceiling_seconds(root: Path) -> float:
    """Reading all `.log` files and one CRC over each 4 MiB."""
    buffer = np.empty(4 << 20, dtype=np.uint8)
    began = time.perf_counter()
    for path in sorted((root / "t-0").glob("*.log")):
        fd = os.open(path, os.O_RDONLY)
        position = 0
        while length := os.preadv(fd, [buffer.data], position):
            crc32c(buffer[:length])
            position += length
        os.close(fd)
    return time.perf_counter() - began


def verify_seconds(root: Path, size_bytes: int) -> float:
    """The duration of `verify`, to the end."""
    began = time.perf_counter()
    result = verify(LogDir.open(root).root)
    seconds = time.perf_counter() - began
    assert not result.findings, result.findings[:3]
    assert sum(report.bytes_read for report in result.reports) == size_bytes
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--batch-kibibytes", type=int, nargs="+", default=[256, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", type=Path)
    arguments = parser.parse_args()
    for kibibytes in arguments.batch_kibibytes:
        home = Path(tempfile.mkdtemp(prefix="bench-verify-", dir=arguments.path))
        try:
            size_bytes = make_root(home / "root", arguments.megabytes, kibibytes << 10)
            verify_seconds(home / "root", size_bytes)  # compiles, and brings all into the page cache
            before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            ceilings, verifications = [], []
            for _ in range(arguments.rounds):
                ceilings.append(ceiling_seconds(home / "root"))
                verifications.append(verify_seconds(home / "root", size_bytes))
            ceiling, seconds = statistics.median(ceilings), statistics.median(verifications)
            grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before_bytes
            print(f"{size_bytes / 1e6:.0f} MB in batches of {kibibytes} KiB")
            print(f"read + CRC {ceiling:.2f} s, {size_bytes / ceiling / 1e9:.2f} GB/s")
            print(
                f"verify     {seconds:.2f} s, {size_bytes / seconds / 1e9:.2f} GB/s, {seconds / ceiling:.1f} times that"
            )
            print(f"memory after the first round grew by {grown_bytes / 1e6:.0f} MB")
        finally:
            shutil.rmtree(home)


if __name__ == "__main__":
    main()
