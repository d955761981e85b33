"""What works on the log directory itself while servers serve it: a writer, a reader and maintenance, in one process.

    python served_neighbours.py ROOT NAME HISTORY CONTROL SEED

The arguments, and what ends it, are those of served_clients.py.

    writer       LogDir.append to topic `plain`, as Spark's driver commits
    snapshots    read_committed reads of all partitions as of one commit
    maintenance  kafkalog log-cleaner, merge-segments and retention, one after the other
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from threading import Thread

import pyarrow as pa
from served_clients import PARTITIONS, Process, run_again

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CommitStateUnknownError
from pyspark_kafkalog.tools.main import main as run_command

COMMANDS = ("log-cleaner", "merge-segments", "retention")
_SNAPSHOT_TOPICS = ("plain", "tx", "copied")


def write(process: Process, root: str, at: int) -> None:
    log_dir = LogDir.open(root)
    drawn = process.random("writer")
    client, count = f"{process.name}.writer{at}", 0
    while not process.has("stop-writing"):
        partition = drawn.randrange(PARTITIONS["plain"])
        values = [f"{client}#{count + each}" for each in range(3)]
        count += len(values)
        for value in values:
            process.notes.add("send", client=client, topic="plain", partition=partition, value=value)
        try:
            log_dir.append("plain", pa.table({"value": values}), partition=partition, flush="os")
        except CommitStateUnknownError as error:
            process.notes.add("error", client=client, error=str(error))
        else:
            for value in values:
                process.notes.add("sent", value=value, offset=-1)
        time.sleep(drawn.uniform(0.1, 0.5))


def snapshot(process: Process, root: str, at: int) -> None:
    log_dir = LogDir.open(root)
    client = f"{process.name}.snapshots{at}"
    positions = {(topic, partition): 0 for topic in _SNAPSHOT_TOPICS for partition in range(PARTITIONS[topic])}
    while not process.has("stop"):
        log_dir.refresh()
        ends = {place: log_dir.last_stable_offset(*place) for place in positions}
        partitions = []
        for (topic, partition), start_offset in positions.items():
            end_offset = ends[topic, partition]
            rows: list[tuple[int, str]] = []
            if start_offset < end_offset:
                table = log_dir.read(
                    topic,
                    partition=partition,
                    start_offset=start_offset,
                    end_offset=end_offset,
                    isolation="read_committed",
                    columns=["offset", "value"],
                )
                rows = [
                    (offset, value.decode())
                    for offset, value in zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
                ]
            partitions.append([topic, partition, end_offset, rows])
        process.notes.add("snapshot", client=client, t=time.monotonic_ns(), partitions=partitions)
        positions = ends
        time.sleep(1)


def maintain(process: Process, root: str, at: int) -> None:
    drawn = process.random("maintenance")
    while not process.has("stop"):
        time.sleep(drawn.uniform(1, 3))
        command = drawn.choice(COMMANDS)
        status = run_command([command, "--path", root, "--local", "--output", "json"])
        if status:
            raise RuntimeError(f"{command} ended with {status}")
        process.notes.add("maintained", client=f"{process.name}.maintenance{at}")


def main(root: str, name: str, history: str, control: str, seed: str) -> None:
    process = Process("", name, Path(history), Path(control), seed)
    roles = {"writer": (write, "stop-writing"), "snapshots": (snapshot, "stop"), "maintenance": (maintain, "stop")}
    threads = [
        Thread(target=run_again, args=(process, role, partial(work, process, root), until))
        for role, (work, until) in roles.items()
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
