"""The cost of the commit log: opening a large root, committing to it, and a long history.

    python benchmarks/bench_commit_log.py [--partitions 10000] [--commits 10000] [--rounds 300] [--directory DIR]

    open       a root of so many partitions from its snapshot, in fresh processes; with imports and without, and the
               CPU time, which other load on the machine does not change
    commit     8 partitions of the large root against the 8 of a small one, in turns
    history    a commit, and a refresh without new commits, after so many commits against after 10, in turns

Roots and histories are created first, without waiting for the disk. The measurements wait for the disk, and are then
repeated without waiting, which shows the CPU time alone. Every number is a median; the goals are printed beside it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, WriteCommitRecord, WrittenPartition
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.admin import create_topic
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, UnflushedFileSystem

TOPIC_PARTITIONS: Final = 100
TOUCHED: Final = 8
SHORT_HISTORY: Final = 10
OPENS: Final = 7

OPEN_GOAL_S: Final = 1.0
SIZE_GOAL: Final = 1.5
HISTORY_GOAL: Final = 1.2

_OPEN = """
import sys, time
from pathlib import Path
started = time.perf_counter()
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
imported = time.perf_counter()
image = LocalMetadataStore.open(Path(sys.argv[1])).image
opened = time.perf_counter()
assert sum(len(topic.partitions) for topic in image.topics.values()) == int(sys.argv[2])
print(imported - started, opened - imported, time.process_time())
"""


class UnwaitingFileSystem(UnflushedFileSystem):
    """Does all that the local file system does but wait for the disk."""

    waits_for_disk = True

    def __init__(self) -> None:
        super().__init__(LOCAL)


def make_root(root: Path, partitions: int) -> MetadataStore:
    """A root with `partitions` partitions, each of which has been written to."""
    store = create_root(root, fs=UnwaitingFileSystem())
    for number in range(-(-partitions // TOPIC_PARTITIONS)):
        count = min(TOPIC_PARTITIONS, partitions - number * TOPIC_PARTITIONS)
        name = f"topic-{number}"
        store.commit(lambda image, name=name, count=count: create_topic(image, name, partitions=count), operation="c")
        chosen = [(name, partition) for partition in range(count)]
        store.commit(lambda image, chosen=chosen: write_records(image, chosen), operation="write")
    return store


def write_records(image: MetadataImage, chosen: Sequence[tuple[str, int]]) -> list[MetadataRecord]:
    """The contents of the commit of a write to the `chosen` partitions."""
    written, states = [], []
    for name, partition in chosen:
        topic = image.topics[name]
        state = topic.partitions[partition].state
        end = state.log_end_offset
        written.append(
            WrittenPartition(topic_id=topic.topic_id, partition=partition, first_offset=end, records=100, bytes=10_000)
        )
        after = replace(state, log_end_offset=end + 100, active_size_bytes=state.active_size_bytes + 10_000)
        states.append(partition_state_record(topic.topic_id, partition, after))
    return [WriteCommitRecord(write_id="0" * 32, partitions=tuple(written)), *states]


def spread(image: MetadataImage, count: int, rng: random.Random) -> list[tuple[str, int]]:
    """So many partitions picked at random from all over the root."""
    there = [(topic.name, partition.partition) for topic in image.topics.values() for partition in topic.partitions]
    return rng.sample(there, count)


def committer(store: MetadataStore) -> Callable[[], object]:
    """Commits a write to 8 partitions, others each time."""
    rng = random.Random(1)
    picks = [spread(store.image, TOUCHED, rng) for _ in range(64)]

    def commit() -> None:
        chosen = rng.choice(picks)
        store.commit(lambda image: write_records(image, chosen), operation="write")

    return commit


def medians(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, run by turns."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 10):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if number >= 10:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def report(what: str, found: Mapping[str, float], base: str, goal: float) -> None:
    for name, seconds in found.items():
        ratio = seconds / found[base]
        verdict = "" if name == base else f"   {ratio:.2f}x   goal {goal}x   {'met' if ratio <= goal else 'MISSED'}"
        print(f"{what:<34}{name:>20}{seconds * 1e6:>12,.1f} us{verdict}")


def bench_open(root: Path, partitions: int) -> None:
    found = []
    for _ in range(OPENS):
        command = [sys.executable, "-c", _OPEN, str(root), str(partitions)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(tuple(map(float, done.stdout.split())))
    imports = statistics.median(each[0] for each in found)
    opening = statistics.median(each[1] for each in found)
    processor = statistics.median(each[2] for each in found)
    verdict = "met" if opening <= OPEN_GOAL_S else "MISSED"
    print(
        f"open {partitions:,} partitions, fresh process: {opening:.3f} s   goal {OPEN_GOAL_S} s   {verdict}\n"
        f"    with imports {imports + opening:.3f} s; the whole process took {processor:.3f} s of processor time"
    )


def open_both(roots: Mapping[str, Path], fs: FileSystem) -> dict[str, MetadataStore]:
    return {name: LocalMetadataStore.open(root, fs=fs) for name, root in roots.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        home = Path(directory)
        make_root(home / "large", arguments.partitions)
        make_root(home / "small", TOUCHED)
        make_root(home / "short", TOUCHED)
        commit = committer(make_root(home / "long", TOUCHED))
        for _ in range(arguments.commits):
            commit()
        assert any((home / "large" / METADATA_DIR).glob("*.checkpoint"))
        bench_open(home / "large", arguments.partitions)
        sizes = {"small": home / "small", "large": home / "large"}
        histories = {f"{SHORT_HISTORY} commits": home / "short", f"{arguments.commits:,} commits": home / "long"}
        for label, fs in (("", LOCAL), (", no waits", UnwaitingFileSystem())):
            stores = open_both(sizes, fs)
            found = medians({name: committer(store) for name, store in stores.items()}, arguments.rounds)
            report(f"commit to 8 partitions{label}", found, "small", SIZE_GOAL)
        for label, fs in (("", LOCAL), (", no waits", UnwaitingFileSystem())):
            stores = open_both(histories, fs)
            base = next(iter(stores))
            found = medians({name: store.refresh for name, store in stores.items()}, arguments.rounds * 10)
            report(f"refresh, no news{label}", found, base, HISTORY_GOAL)
            found = medians({name: committer(store) for name, store in stores.items()}, arguments.rounds)
            report(f"commit{label}", found, base, HISTORY_GOAL)


if __name__ == "__main__":
    main()
