"""Cleans one partition in a separate process: the duration, and the peak memory above that of the imports.

    python benchmarks/bench_cleaner_task.py ROOT TOPIC CORES [DEDUPE_BUFFER_BYTES]

Prints the cleaner's report as JSON, with `peak_mb` (10^6 bytes) added. The process is limited to CORES of the machine's
cores. The report's seconds include all work of the cleaner, also the search for dirty offsets and waits for the disk.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys

from worker_memory import reset_peak, status_kb

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition


def main() -> None:
    root, topic, cores = sys.argv[1], sys.argv[2], int(sys.argv[3])
    buffer_bytes = int(sys.argv[4]) if len(sys.argv) > 4 else None
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    log_dir = LogDir.open(root)
    reset_peak()
    before_kb = status_kb("VmRSS")
    report = clean_partition(log_dir.root, topic, 0, force=True, dedupe_buffer_bytes=buffer_bytes)
    peak_mb = (status_kb("VmHWM") - before_kb) * 1024 / 1e6
    print(json.dumps({**dataclasses.asdict(report), "peak_mb": peak_mb}))


if __name__ == "__main__":
    main()
