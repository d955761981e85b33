"""How costs grow with partitions, groups and segments that an operation is not about, or has nothing to do for.

    python benchmarks/bench_growth.py [--sizes 10 100 1000 10000] [--kinds partitions groups segments sink]
                                      [--before REVISION] [--limit 300] [--directory DIR]

    open           open the root, in a process of its own
    append         100 appends of a record to one partition of the topic
    retention, merge-segments, log-cleaner
                   the command with nothing to do; the cleaner over a compacted topic that is clean
    list, metrics  consumer-groups --list and metrics --once, with so many groups; retention of those groups
    commit, rolling commit
                   100 appends to a partition with so many segments, without a roll and with one each
    fetch, seek    100 slices as a server sends them at offsets that it does not know; 100 searches by time
    sink           a write of so many tasks of 80 records to 100 partitions: staged files, bytes of the tasks' messages,
                   CPU of the second commit (the first one creates the partitions' files)

Each other figure is the CPU time of the process and its children, and their system calls (`strace -c -f` in another
run, if strace is there). Roots are made once, by this revision, without waiting for the disk; each command runs on them
with this revision and, with `--before`, with that one, which must read the same format. `-`: not done within the limit.
Only shapes and ratios count: a bare command takes 0.1 s, and one that loads maintenance takes 1 s.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from pyspark_kafkalog.groups.offset_records import OffsetAndMetadata, group_partition, offset_key, offset_value
from pyspark_kafkalog.groups.offsets_topic import append_records, ensure_offsets_topic
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, write_offset_checkpoint
from pyspark_kafkalog.storage.names import TopicPartition

PROJECT: Final = Path(__file__).resolve().parent.parent
#: Keys for each partition: almost every partition gets a record.
KEYS: Final = 10

_OPEN: Final = "import sys; from pyspark_kafkalog.log_dir import LogDir; LogDir.open(sys.argv[1])"
_APPEND: Final = """
import sys, pyarrow as pa
from pyspark_kafkalog.log_dir import LogDir
log_dir, partition, value = LogDir.open(sys.argv[1]), int(sys.argv[2]), "x" * int(sys.argv[3])
for _ in range(100):
    log_dir.append("orders", pa.table({"key": ["k"], "value": [value]}), partition=partition, flush="os")
"""
_FETCH: Final = """
import sys
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.server.reads.log_slices import LogSlices, SliceLimits
found = LogDir.open(sys.argv[1]).partition("orders", 0)
end = found.high_watermark
for at in range(100):
    LogSlices().waiting(found, at * end // 100, SliceLimits(end_offset=end, max_bytes=1 << 20))
"""
_SEEK: Final = """
import sys
from pyspark_kafkalog.log_dir import LogDir
found = LogDir.open(sys.argv[1]).partition("orders", 0)
reader = LogDir.open(sys.argv[1]).root.reader("orders", 0)
for _ in range(100):
    assert reader.offset_for_timestamp(1 << 60, 0, found.high_watermark) is None
"""
#: A segment of each record of this size.
SEGMENT_BYTES: Final = 2000
SINK_TASKS: Final = (2, 20, 200)
#: Stages as Spark's tasks do, with the messages pickled, and commits as the driver does.
_SINK: Final = """
import pickle, sys, time, uuid
from pathlib import Path
import pyarrow as pa
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.record.partitioner import Partitioner
from pyspark_kafkalog.spark.write.writers import StagedMessage, staged_in_order
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.staged_file import StagingTask
from pyspark_kafkalog.storage.stager import Rows, Selected, TopicStager
root, tasks, partitions = Path(sys.argv[1]), int(sys.argv[2]), 100
log_dir = LogDir.create(root)
log_dir.create_topic("orders", partitions=partitions)
value = pa.array([b"v" * 100] * 80, pa.binary())
for _ in range(2):
    write_id, messages = uuid.uuid4().hex, []
    for task in range(tasks):
        stager = TopicStager(
            StagingTask(root=root, write_id=write_id, task=task), "orders", partitions, log_dir.log_config("orders"),
            partitioner=Partitioner(partitions, turn_bytes=100, first_partition=task), asked_compression=None,
            batch_size_bytes=1 << 18, clock_ms=lambda: time.time_ns() // 1_000_000,
            fs=flushing_file_system(LOCAL, "os"),
        )
        stager.add([Selected(Rows({"value": value}, 1_700_000_000_000).columns)])
        messages.append(pickle.dumps(StagedMessage(task, tuple(stager.finish()))))
    files = len(list(root.glob("*/*.staged")))
    committing = LogDir.open(root)
    began = time.process_time()
    committing.commit_staged(staged_in_order(map(pickle.loads, messages)), flush="os")
    spent = time.process_time() - began
print(f"{files:8,} files {sum(map(len, messages)):10,} bytes of messages {spent:6.2f} s")
"""
#: Revisions before 0.2.0 cannot be run as `python -m pyspark_kafkalog`.
_COMMAND: Final = ("-c", "import sys; from pyspark_kafkalog.tools.main import main; sys.exit(main())")


def of_partitions(root: str) -> dict[str, tuple[str, ...]]:
    """What is measured over partitions: arguments of Python by name."""
    return {
        "open": ("-c", _OPEN, root),
        "append": ("-c", _APPEND, root, "3", "1"),
        "retention": (*_COMMAND, "retention", "--path", root, "--local"),
        "merge-segments": (*_COMMAND, "merge-segments", "--path", root, "--local"),
        "log-cleaner": (*_COMMAND, "log-cleaner", "--path", root, "--local"),
        "metrics": (*_COMMAND, "metrics", "--path", root, "--once"),
    }


def of_groups(root: str) -> dict[str, tuple[str, ...]]:
    """What is measured over groups."""
    return {
        "list": (*_COMMAND, "consumer-groups", "--path", root, "--list"),
        "metrics": (*_COMMAND, "metrics", "--path", root, "--once"),
        "retention": (*_COMMAND, "retention", "--path", root, "--local"),
    }


def of_segments(root: str) -> dict[str, tuple[str, ...]]:
    """What is measured over segments; the last row adds some."""
    return {
        "fetch": ("-c", _FETCH, root),
        "seek": ("-c", _SEEK, root),
        "commit": ("-c", _APPEND, root, "0", "1"),
        "rolling commit": ("-c", _APPEND, root, "0", str(SEGMENT_BYTES)),
    }


def make_partitions(root: Path, count: int) -> None:
    log_dir = LogDir.create(root)
    log_dir.create_topic("orders", partitions=count, configs={"cleanup.policy": "compact,delete"})
    keys = [str(each) for each in range(KEYS * count)]
    log_dir.append("orders", pa.table({"key": keys, "value": keys}), flush="os")
    write_offset_checkpoint(root / CLEANER_OFFSET_CHECKPOINT, {TopicPartition("orders", at): 0 for at in range(count)})


def make_groups(root: Path, count: int) -> None:
    log_dir = LogDir.create(root)
    log_dir.create_topic("orders", partitions=10)
    partitions = ensure_offsets_topic(log_dir.root)
    records: dict[int, dict[bytes, bytes | None]] = {}
    committed = offset_value(OffsetAndMetadata(offset=0, commit_timestamp_ms=time.time_ns() // 1_000_000))
    for number in range(count):
        name = f"group-{number}"
        key = offset_key(name, TopicPartition("orders", number % 10))
        records.setdefault(group_partition(name, partitions), {})[key] = committed
    for number, found in records.items():
        append_records(log_dir.root, number, found, flush="os")


def make_segments(root: Path, count: int) -> None:
    log_dir = LogDir.create(root)
    log_dir.create_topic("orders", partitions=1, configs={"internal.segment.bytes": str(2 * SEGMENT_BYTES)})
    for _ in range(count):
        log_dir.append("orders", pa.table({"key": ["k"], "value": ["x" * SEGMENT_BYTES]}), flush="os")


def run(arguments: Sequence[str], project: Path, limit_s: int) -> float | None:
    """Seconds of CPU of Python with the arguments; None if it takes more than the limit."""
    environment = {**os.environ, "PYTHONPATH": str(project), "OPENBLAS_NUM_THREADS": "1"}
    limited = partial(resource.setrlimit, resource.RLIMIT_CPU, (limit_s, limit_s + 1))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(arguments, env=environment, capture_output=True, cwd=project, preexec_fn=limited)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode == -signal.SIGXCPU:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed: {done.stderr.decode()[-2000:]}")
    return seconds


def system_calls(arguments: Sequence[str], project: Path, limit_s: int, scratch: Path) -> int | None:
    """The number of system calls of Python with the arguments, and of its children; None without strace."""
    if shutil.which("strace") is None:
        return None
    summary = scratch / "strace"
    if run(("strace", "-c", "-f", "-o", str(summary), *arguments), project, limit_s) is None:
        return None
    total = re.search(r"^100\.00\s+\S+\s+(?:\S+\s+)?(\d+)\s+(?:\d+\s+)?total$", summary.read_text(), re.MULTILINE)
    return None if total is None else int(total[1])


KINDS: Final = {
    "partitions": (make_partitions, of_partitions),
    "groups": (make_groups, of_groups),
    "segments": (make_segments, of_segments),
}


def measure(kind: str, sizes: Sequence[int], projects: dict[str, Path], limit_s: int, scratch: Path) -> None:
    make, commands = KINDS[kind]
    gone: set[tuple[str, str]] = set()  # not done within the limit: larger sizes are not tried
    for size in sizes:
        root = scratch / f"{kind}-{size}"
        make(root, size)
        for name, arguments in commands(str(root)).items():
            cells = [f"{kind:10} {size:6,} {name:15}"]
            for revision, project in projects.items():
                command = (sys.executable, *arguments)
                seconds = calls = None
                if (name, revision) not in gone:
                    seconds = run(command, project, limit_s)
                    calls = None if seconds is None else system_calls(command, project, limit_s, scratch)
                if seconds is None:
                    gone.add((name, revision))
                cpu = "-" if seconds is None else f"{seconds:.2f}"
                cells.append(f"{revision}: {cpu:>7} s {'-' if calls is None else f'{calls:,}':>10} calls")
            print("  ".join(cells), flush=True)
        shutil.rmtree(root)


def measure_sink(projects: dict[str, Path], scratch: Path) -> None:
    for tasks in SINK_TASKS:
        for revision, project in projects.items():
            environment = {**os.environ, "PYTHONPATH": str(project), "OPENBLAS_NUM_THREADS": "1"}
            root = scratch / f"sink-{tasks}-{revision}"
            command = (sys.executable, "-c", _SINK, str(root), str(tasks))
            done = subprocess.run(command, env=environment, capture_output=True, cwd=project, check=True, text=True)
            print(f"sink       {tasks:6,} tasks  {revision}: {done.stdout.strip()}", flush=True)
            shutil.rmtree(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    kinds = (*KINDS, "sink")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="what grows (default: all)")
    parser.add_argument("--before", help="a git revision to compare with")
    parser.add_argument("--limit", type=int, default=300, help="seconds of CPU that a command may take")
    parser.add_argument("--directory", type=Path, help="where the roots are made (default: a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        scratch = Path(name)
        projects = {"now": PROJECT}
        if options.before is not None:
            projects = {options.before: scratch / "before", **projects}
            add = ("git", "-C", str(PROJECT), "worktree", "add", "--detach", "--quiet")
            subprocess.run((*add, str(scratch / "before"), options.before), check=True)
        try:
            make_partitions(scratch / "warm", 10)
            for project in projects.values():  # compiles the kernels of the revision
                run((sys.executable, *of_partitions(str(scratch / "warm"))["append"]), project, options.limit)
            for kind in options.kinds:
                if kind == "sink":
                    measure_sink(projects, scratch)
                    continue
                measure(kind, options.sizes, projects, options.limit, scratch)
        finally:
            if options.before is not None:
                remove = ("git", "-C", str(PROJECT), "worktree", "remove", "--force", str(scratch / "before"))
                subprocess.run(remove, check=True)


if __name__ == "__main__":
    main()
