"""Compares the log cleaner with Kafka's, in turns on the same segments; also cleans more unique keys than fit a buffer.

    python benchmarks/bench_cleaner.py [--quick] [--records 10000000] [--keys 1000000] [--codecs none,zstd]
                                       [--batch-kib 16] [--rounds 3] [--scratch DIR] [--json FILE]
    python benchmarks/bench_cleaner.py --unique-keys 20000000 [--buffer-mib 128,320] [--codecs none]

Records have 13 bytes of key and 100 of value; stored batches have --batch-kib, about the default of Kafka's producers.
Kafka's LogCleaner runs in a broker with one thread (its default) and a dedupe buffer of 128 MiB. This package's cleaner
has the same buffer, and runs once in a process limited to one core and once in one with two. All read the same files,
from the page cache. A rate is Kafka's own statistic: bytes of the log divided by the seconds for the map and the copy
together. Results are medians of the rounds after a warm-up round, which benefits Kafka's cleaner most. They include the
peak memory of this package's process above that of its imports.

--unique-keys has no peer: Kafka needs several runs if the keys do not fit its buffer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_cleaner_data import SEGMENT_BYTES, TOPIC, Workload, closed_bytes, share, warm
from bench_cleaner_kafka import KafkaCleaner

HERE = Path(__file__).resolve().parent
BUFFER_BYTES = 128 << 20
RATIO_MIN, MEMORY_ABOVE_BUFFER_MB = 5.0, 256
ZSTD_RATIO = 2.6  # of these records, so that batches are of about the size asked for as stored


def clean_ours(base: Path, scratch: Path, cores: int, buffer_bytes: int = BUFFER_BYTES) -> dict[str, Any]:
    """The output of `bench_cleaner_task.py` for a directory that shares the segments of `base`."""
    root = scratch / "ours"
    share(base, root)
    warm(root)
    command = [sys.executable, HERE / "bench_cleaner_task.py", root, TOPIC, str(cores), str(buffer_bytes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    shutil.rmtree(root)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["error"] is None
    assert found["skipped"] is None
    return found


def beside_kafka(workload: Workload, scratch: Path, rounds: int) -> dict[str, Any]:
    """Rates of both cleaners, medians in MB/s (10^6 bytes), with all rounds' seconds."""
    base = scratch / "base"
    workload.make(base)
    size_bytes = closed_bytes(base)
    kafka = KafkaCleaner(scratch / "kafka", base / f"{TOPIC}-0", rounds + 1, SEGMENT_BYTES)
    seconds: dict[str, list[float]] = {"kafka": [], "ours, 1 core": [], "ours, 2 cores": []}
    peak_mb, kept = 0.0, set()
    try:
        for number in range(rounds + 1):
            warm(base)
            took, kept_by_kafka = kafka.clean(number)
            seconds["kafka"].append(took)
            kept.add(kept_by_kafka)
            for cores, name in ((1, "ours, 1 core"), (2, "ours, 2 cores")):
                found = clean_ours(base, scratch, cores)
                seconds[name].append(found["seconds"])
                kept.add(found["records_kept"])
                peak_mb = max(peak_mb, found["peak_mb"])
    finally:
        kafka.close()
    assert len(kept) == 1, f"they keep different numbers of records: {kept}"
    rates = {name: size_bytes / statistics.median(taken[1:]) / 1e6 for name, taken in seconds.items()}
    shutil.rmtree(base)
    shutil.rmtree(scratch / "kafka")
    return {
        "codec": workload.codec,
        "megabytes": size_bytes / 1e6,
        "batch_bytes": workload.batch_bytes,
        "records_kept": kept.pop(),
        "seconds": seconds,
        "megabytes_per_second": rates,
        "ratio_to_kafka": {name: rate / rates["kafka"] for name, rate in rates.items() if name != "kafka"},
        "peak_mb": peak_mb,
    }


def unique_keys(workload: Workload, scratch: Path, buffers_bytes: list[int]) -> list[dict[str, Any]]:
    """One run over records of which none replaces another, for each size of the buffer."""
    base = scratch / "base"
    workload.make(base)
    results = []
    for buffer_bytes in buffers_bytes:
        found = clean_ours(base, scratch, 2, buffer_bytes)
        assert found["records_kept"] == workload.records
        assert found["first_uncleanable_offset"] == workload.records
        wanted = ("bytes_read", "records_kept", "key_shards", "seconds", "peak_mb")
        results.append({"codec": workload.codec, "buffer_bytes": buffer_bytes, **{key: found[key] for key in wanted}})
    shutil.rmtree(base)
    return results


def print_rates(result: dict[str, Any]) -> list[str]:
    """Print one measurement; returns a line for each goal that was missed."""
    print(f"\n{result['codec']}: {result['megabytes']:,.0f} MB, {result['records_kept']:,} records kept")
    missed = []
    for name, rate in result["megabytes_per_second"].items():
        line = f"  {name:<14}{rate:8.1f} MB/s"
        if name != "kafka":
            line += f"   {result['ratio_to_kafka'][name]:5.2f} x Kafka"
        print(line)
    ratio = max(result["ratio_to_kafka"].values())
    if ratio < RATIO_MIN:
        missed.append(f"{result['codec']}: {ratio:.2f} x Kafka, goal {RATIO_MIN}")
    return missed + print_memory(result["peak_mb"], BUFFER_BYTES, result["codec"])


def print_memory(peak_mb: float, buffer_bytes: int, title: str) -> list[str]:
    limit_mb = buffer_bytes / 1e6 + MEMORY_ABOVE_BUFFER_MB
    print(
        f"  memory above imports {peak_mb:.0f} MB  (limit {limit_mb:.0f}: the buffer and {MEMORY_ABOVE_BUFFER_MB} MB)"
    )
    return [] if peak_mb <= limit_mb else [f"{title}: {peak_mb:.0f} MB of memory, limit {limit_mb:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the records, one round")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--unique-keys", type=int, help="that many records with a key of their own, instead")
    parser.add_argument("--buffer-mib", default="128,320", help="dedupe buffers for --unique-keys")
    parser.add_argument("--codecs", default="none,zstd")
    parser.add_argument("--batch-kib", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--json", type=Path, help="write the results there too")
    arguments = parser.parse_args()
    shrink = 100 if arguments.quick else 1
    records = (arguments.unique_keys or arguments.records) // shrink
    keys = records if arguments.unique_keys else arguments.keys // shrink
    results, missed = [], []
    scratch = Path(tempfile.mkdtemp(prefix="bench-cleaner-", dir=arguments.scratch))
    try:
        for codec in arguments.codecs.split(","):
            batch_bytes = int(arguments.batch_kib * 1024 * (ZSTD_RATIO if codec == "zstd" else 1))
            workload = Workload(records, keys, codec, batch_bytes)
            if arguments.unique_keys:
                buffers = [int(each) << 20 for each in arguments.buffer_mib.split(",")]
                for found in unique_keys(workload, scratch, buffers):
                    print(f"\n{codec}: {records:,} keys, buffer {found['buffer_bytes'] >> 20} MiB: ", end="")
                    print(f"{found['key_shards']} shards, {found['seconds']:.1f} s", flush=True)
                    missed += print_memory(found["peak_mb"], found["buffer_bytes"], codec)
                    results.append(found)
            else:
                found = beside_kafka(workload, scratch, 1 if arguments.quick else arguments.rounds)
                missed += print_rates(found)
                results.append(found)
    finally:
        shutil.rmtree(scratch)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    print("\nall goals met" if not missed else "\nmissed:\n  " + "\n  ".join(missed))


if __name__ == "__main__":
    main()
