"""What works on the log directory itself while servers serve it: a writer, a reader and maintenance, in one process.

    python served_neighbours.py ROOT NAME HISTORY CONTROL SEED

The arguments, and what ends it, are those of served_clients.py; CONTROL/stop-maintaining ends maintenance.

    writer       LogDir.append to topic `plain`, as Spark's driver commits
    query, rerun two that write the versions of one transactional id to several topics at once, as two runs of a
                 streaming query: one of them wins
    snapshots    read_committed reads of all partitions as of one commit
    maintenance  kafkalog log-cleaner, merge-segments and retention, one after the other
"""

from __future__ import annotations

import itertools
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Thread

import pyarrow as pa
from served_clients import PARTITIONS, Process, run_again

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.config.definitions import BATCH_SIZE_BYTES
from pyspark_kafkalog.errors import CommitStateUnknownError, LowerVersionError, ProducerFencedError
from pyspark_kafkalog.root.commit.staging import Staged
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.staged_file import StagedFile
from pyspark_kafkalog.storage.stager import stage_table
from pyspark_kafkalog.tools.main import main as run_command

COMMANDS = ("log-cleaner", "merge-segments", "retention")
TRANSACTIONAL_ID = "query"
_SNAPSHOT_TOPICS = ("plain", "tx", "copied")
_RECORDS_A_TOPIC = 2


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


def write_versions(process: Process, role: str, root: str, at: int) -> None:
    """Write the next version of `TRANSACTIONAL_ID`, or lose it to the rival, which writes it with other records."""
    log_dir, incarnation = LogDir.open(root), uuid.uuid4().hex
    drawn = process.random(role)
    client = f"{process.name}.{role}{at}"
    values_made = itertools.count()
    for count in itertools.count():
        if process.has("stop-writing"):
            return
        log_dir.refresh()
        version = (log_dir.last_version(TRANSACTIONAL_ID) or 0) + 1
        transaction = f"{client}/{count}"
        topics = drawn.sample(_SNAPSHOT_TOPICS, drawn.randint(1, len(_SNAPSHOT_TOPICS)))
        values = {
            (topic, drawn.randrange(PARTITIONS[topic])): [
                f"{client}#{next(values_made)}" for _ in range(_RECORDS_A_TOPIC)
            ]
            for topic in topics
        }
        for (topic, partition), of_place in values.items():
            for value in of_place:
                fields = {"topic": topic, "partition": partition, "value": value}
                process.notes.add("send", client=client, txn=transaction, **fields)
        staged = stage(log_dir, values)
        process.notes.add("commit", txn=transaction, t=time.monotonic_ns())
        try:
            result = log_dir.commit_staged(
                staged, transaction=WriteTransaction(TRANSACTIONAL_ID, version, incarnation), flush="os"
            )
        except CommitStateUnknownError as error:
            process.notes.add("error", client=client, error=str(error))
        except (ProducerFencedError, LowerVersionError):
            process.notes.add("ended", txn=transaction, committed=False)
            log_dir, incarnation = LogDir.open(root), uuid.uuid4().hex  # a later run, which fences the rival
        else:
            process.notes.add("ended", txn=transaction, committed=not result.is_duplicate)
        time.sleep(drawn.uniform(0.1, 0.8))


def stage(log_dir: LogDir, values: Mapping[tuple[str, int], Sequence[str]]) -> Sequence[Staged]:
    """Stage the values by topic and partition, as a task of a Spark query does."""
    staging = log_dir.root.staging(uuid.uuid4().hex, flush="os")
    topics = {topic: log_dir.topic(topic) for topic, _ in values}
    files: list[StagedFile] = []
    for (topic, partition), of_place in values.items():
        files += stage_table(
            staging.task,
            topic,
            pa.table({"value": of_place}),
            partitions_count=len(topics[topic].partitions),
            partition=partition,
            config=log_dir.log_config(topic),
            asked_compression=None,
            batch_size_bytes=BATCH_SIZE_BYTES,
            clock_ms=time_ms,
            fs=staging.fs,
        )
    return staging.hand_over(files, {name: topic.topic_id or "" for name, topic in topics.items()})


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
    while not process.has("stop-maintaining"):
        time.sleep(drawn.uniform(1, 3))
        command = drawn.choice(COMMANDS)
        status = run_command([command, "--path", root, "--local", "--output", "json"])
        if status:
            raise RuntimeError(f"{command} ended with {status}")
        process.notes.add("maintained", client=f"{process.name}.maintenance{at}")


def main(root: str, name: str, history: str, control: str, seed: str) -> None:
    process = Process("", name, Path(history), Path(control), seed)
    roles = {
        "writer": (partial(write, process), "stop-writing"),
        "query": (partial(write_versions, process, "query"), "stop-writing"),
        "rerun": (partial(write_versions, process, "rerun"), "stop-writing"),
        "snapshots": (partial(snapshot, process), "stop"),
        "maintenance": (partial(maintain, process), "stop-maintaining"),
    }
    threads = [
        Thread(target=run_again, args=(process, role, partial(work, root), until))
        for role, (work, until) in roles.items()
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
