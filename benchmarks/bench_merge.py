"""Compares merging small segments with a plain copy of the same files; both end when the data are on disk.

    python benchmarks/bench_merge.py [--megabytes 1024] [--segment-megabytes 16] [--rounds 3] [--path DIR]

The sources are in the page cache. A copy is `shutil.copyfile` of each segment's `.log`, then fsync of each copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.merge import merge_segments

VALUE_BYTES = 100


def make_root(root: Path, megabytes: int, segment_megabytes: int) -> int:
    """A topic of small segments, ready to be merged; returns the bytes of its closed ones."""
    log_dir = LogDir.create(root)
    segment_bytes = segment_megabytes << 20
    log_dir.create_topic("t", partitions=1, configs={"segment.bytes": str(segment_bytes + (1 << 20))})
    records = segment_bytes // (VALUE_BYTES + 10)
    random = np.random.default_rng(1)
    data = pa.py_buffer(random.bytes(records * VALUE_BYTES))
    starts = pa.py_buffer(np.arange(records + 1, dtype=np.int32) * VALUE_BYTES)
    values = pa.Array.from_buffers(pa.binary(), records, [None, starts, data])
    for _ in range(megabytes // segment_megabytes + 1):
        log_dir.append("t", pa.table({"value": values}), partition=0, flush="os")
    log_dir.alter_topic("t", add={"segment.bytes": str(1 << 30)})
    *closed, _ = sorted((root / "t-0").glob("*.log"))
    return sum(path.stat().st_size for path in closed)


def copy_seconds(root: Path, target: Path) -> float:
    """A plain copy of the closed segments' `.log` files."""
    *closed, _ = sorted((root / "t-0").glob("*.log"))
    target.mkdir()
    began = time.perf_counter()
    for path in closed:
        shutil.copyfile(path, target / path.name)
    for path in closed:
        fd = os.open(target / path.name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    return time.perf_counter() - began


def merge_seconds(root: Path) -> float:
    """The duration of `merge_segments`, to the end."""
    began = time.perf_counter()
    [report] = merge_segments(LogDir.open(root).root)
    seconds = time.perf_counter() - began
    assert report.error is None
    assert report.segments_dropped > 0
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--segment-megabytes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--path", type=Path)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="bench-merge-", dir=arguments.path))
    try:
        size_bytes = make_root(home / "base", arguments.megabytes, arguments.segment_megabytes)
        copies, merges = [], []
        for number in range(arguments.rounds + 1):
            root = home / f"round-{number}"
            # Second names of the same files: a merge changes none of them.
            subprocess.run(["cp", "-al", home / "base", root], check=True)
            os.sync()
            copies.append(copy_seconds(home / "base", home / "copy"))
            shutil.rmtree(home / "copy")
            os.sync()
            merges.append(merge_seconds(root))
            shutil.rmtree(root)
        copies, merges = copies[1:], merges[1:]  # the first round compiles and warms up
        megabytes = size_bytes / 1e6
        print(f"{megabytes:.0f} MB in segments of {arguments.segment_megabytes} MiB")
        print(f"copy  {statistics.median(copies):.2f} s, {megabytes / statistics.median(copies):.0f} MB/s  {copies}")
        print(f"merge {statistics.median(merges):.2f} s, {megabytes / statistics.median(merges):.0f} MB/s  {merges}")
        print(f"merge takes {statistics.median(merges) / statistics.median(copies):.2f} of a copy's time")
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
