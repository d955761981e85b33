"""A batch writer in a process of its own: numbers its records, commits them by version, continues where it was killed.

Arguments: root, name, journal. Write number k holds the records k * RECORDS to (k + 1) * RECORDS, over all partitions
of both topics in one commit. Now and then it writes the last one again, which must change nothing. The journal gets a
line for each write that has returned. It ends when the file `stop` is there beside the journal.
"""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from pathlib import Path

import pyarrow as pa

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask
from pyspark_kafkalog.storage.stager import stage_table

RECORDS = 120


def stage(log_dir: LogDir, name: str, version: int, places: list[tuple[str, int]]) -> list[StagedFile]:
    numbers = range(version * RECORDS, (version + 1) * RECORDS)
    write_id = uuid.uuid4().hex
    staged = []
    for task, (topic, partition) in enumerate(places):
        values = [b"%s %d" % (name.encode(), number) for number in numbers if number % len(places) == task]
        staged += stage_table(
            StagingTask(root=log_dir.path, write_id=write_id, task=task),
            topic,
            pa.table({"value": pa.array(values, pa.binary())}),
            partitions_count=len(log_dir.topic(topic).partitions),
            partition=partition,
            config=log_dir.log_config(topic),
            asked_compression=random.choice(["none", "zstd", "lz4"]),
            batch_size_bytes=1024,
            clock_ms=lambda: 1_700_000_000_000,
            fs=LOCAL,
        )
    return staged


def main(root: str, name: str, journal: str) -> None:
    log_dir = LogDir.open(root)
    places = [(topic, each.partition) for topic in log_dir.topics() for each in log_dir.topic(topic).partitions]
    incarnation = uuid.uuid4().hex
    log_dir.init_transaction(name, incarnation)
    last = log_dir.last_version(name)
    version = 0 if last is None else last + 1
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while not Path(journal).with_name("stop").exists():
        result = log_dir.commit_staged(
            stage(log_dir, name, version, places), transaction=WriteTransaction(name, version, incarnation)
        )
        assert not result.is_duplicate
        os.write(fd, b"%d\n" % version)
        Path(journal).with_suffix(".working").touch()
        if random.random() < 0.1:
            again = WriteTransaction(name, version, incarnation)
            assert log_dir.commit_staged(stage(log_dir, name, version, places), transaction=again).is_duplicate
        version += 1
        time.sleep(random.uniform(0, 0.3))  # the others need the cores too


if __name__ == "__main__":
    main(*sys.argv[1:])
