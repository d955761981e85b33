"""Commits of producers' batches to a root on a file system, as the server makes them: commits and MB a second.

Each commit appends batches of 16 KiB, or of --batch-bytes, with records of 100 bytes, to one partition or to each of
ten. `--idempotent` gives the batches producer ids and sequences.

examples:
  python benchmarks/bench_leader_append.py
  python benchmarks/bench_leader_append.py --flush os --batches 5 --partitions 1 --batch-bytes 262144
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import shutil
import tempfile
import time
from pathlib import Path

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.record.codecs.codec import CODEC_NAMES, codec_named
from pyspark_kafkalog.record.header import BatchHeader
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.commit.changes import CommitUnit, LeaderAppend
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

_RECORD_BYTES = 100


class Batches:
    """Batches of one size; the sequence of an idempotent producer's goes up with each."""

    def __init__(self, batch_bytes: int, codec: str, *, is_idempotent: bool) -> None:
        now_ms = time.time_ns() // 1_000_000
        count = max(1, batch_bytes // (_RECORD_BYTES + 10))
        # A tenth of each value changes from record to record.
        values = [b"%010d" % at + b"x" * (_RECORD_BYTES - 10) for at in range(count)]
        self.records = [Record(offset=at, timestamp_ms=now_ms, key=None, value=each) for at, each in enumerate(values)]
        self._compression = codec_named(codec).compression_type
        self._is_idempotent = is_idempotent
        self._plain = encode_batch(self.records, compression=self._compression)

    def next(self, producer_id: int, sequence: int) -> bytes:
        if not self._is_idempotent:
            return self._plain
        return encode_batch(
            self.records,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence * len(self.records),
        )

    @property
    def size_bytes(self) -> int:
        return BatchHeader.unpack(self._plain).size_bytes


def measure(root: Path, options: argparse.Namespace, flush: FlushMode, batches: int, partitions: int) -> str:
    """One row of the table."""
    log_dir = LogDir.open_or_create(root)
    log_dir.create_topic("t", partitions)
    source = Batches(options.batch_bytes, options.codec, is_idempotent=options.idempotent)
    writer = log_dir.root.native().committer(flush=flush)
    made = 0

    def units() -> list[CommitUnit]:
        nonlocal made
        places = [TopicPartition("t", number) for number in range(partitions)]
        result = [
            CommitUnit.of(LeaderAppend(topic_partition=place, data=source.next(place.partition, made + at)))
            for place in places
            for at in range(batches)
        ]
        made += batches
        return result

    def commit(some: list[CommitUnit]) -> None:
        for result in writer.commit(some):
            if isinstance(result, KafkalogError):
                raise result

    for _ in range(3):
        commit(units())
    profile = cProfile.Profile() if options.profile else None
    commits, spent_s, cpu_s = 0, 0.0, 0.0
    while spent_s < options.seconds:
        some = units()
        if profile is not None:
            profile.enable()
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        commit(some)
        spent_s += time.perf_counter() - begin_s
        cpu_s += time.process_time() - begin_cpu_s
        if profile is not None:
            profile.disable()
        commits += 1
    writer.close()
    if profile is not None:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(60)
    mib = commits * batches * partitions * source.size_bytes / MIB
    rates = f"{commits / spent_s:>10.0f} {mib / spent_s:>8.0f} {cpu_s / commits * 1000:>14.2f} {mib / cpu_s:>12.0f}"
    return f"{flush:6} {partitions:>10} {batches:>8} {rates}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where the root is made and removed; a temporary directory")
    parser.add_argument("--flush", choices=["os", "fsync"], action="append")
    parser.add_argument("--batches", type=int, action="append", help="batches a partition and commit: 1, 5, 100")
    parser.add_argument("--partitions", type=int, action="append", help="1, 10")
    parser.add_argument("--batch-bytes", type=int, default=16 << 10)
    parser.add_argument("--codec", choices=CODEC_NAMES, default="none")
    parser.add_argument("--idempotent", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each measurement")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    print("flush  partitions  batches  commits/s    MiB/s  CPU ms/commit    MiB/CPU s")
    for flush in options.flush or ("os", "fsync"):
        for partitions in options.partitions or (1, 10):
            for batches in options.batches or (1, 5, 100):
                home = Path(tempfile.mkdtemp(prefix="kafkalog-bench-", dir=options.dir))
                try:
                    print(measure(home / "root", options, flush, batches, partitions), flush=True)
                finally:
                    shutil.rmtree(home)


if __name__ == "__main__":
    main()
