"""A compacted partition in a simulation: its records, the cleaner as one process and as tasks, and what must hold.

A record has an identity, which is its value, or a header of it if it is a tombstone, and names its key. So each record
that anybody reads tells which one it is. What must hold, beside what holds of every partition:

- a record is missing only if a later one of its key was committed, or as a tombstone and after it
- a record that was missing once never comes back
- the segments that a cleaning has written hold at most one record of each key
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, cast

import pyarrow as pa

from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition, clean_spread
from pyspark_kafkalog.maintenance.cleaner.logs import CleanerLimits
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog import LogDir
    from simulations.object_root import Job

LATEST: Final = TopicPartition("latest", 0)
#: Any dirt is cleaned; a tombstone may go an hour after the first cleaning that met it.
COMPACTED_CONFIGS: Final = {
    "internal.segment.bytes": "1500",
    "index.interval.bytes": "200",
    "cleanup.policy": "compact,delete",
    "retention.bytes": "9000",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "3600000",
}
_KEYS_COUNT: Final = 12
_TOMBSTONE: Final = b" tombstone"
#: Room for a few keys, so that a cleaning needs several maps.
_SMALL_MAP_BYTES: Final = 24 * 8
_SLOTS: Final = 3

T = TypeVar("T")


def new_identity(name: bytes, rng: random.Random) -> bytes:
    """The identity of a record, some of which are tombstones, of one of a few keys."""
    return b"%s k%d" % (name, rng.randrange(_KEYS_COUNT)) + (_TOMBSTONE if rng.random() < 0.15 else b"")


def is_tombstone(identity: bytes) -> bool:
    return identity.endswith(_TOMBSTONE)


def key_of(identity: bytes) -> bytes:
    return identity.removesuffix(_TOMBSTONE).rsplit(b" ", 1)[1]


def rows_of(identities: Sequence[bytes]) -> pa.Table:
    """The records to write."""
    headers = [[{"key": "identity", "value": each}] if is_tombstone(each) else None for each in identities]
    return pa.table(
        {
            "key": pa.array(map(key_of, identities), pa.binary()),
            "value": pa.array([None if is_tombstone(each) else each for each in identities], pa.binary()),
            "headers": pa.array(headers, KAFKA_SCHEMA.field("headers").type),
        }
    )


def identities_of(table: pa.Table) -> list[bytes]:
    """The identities of the rows that were read; of records without a tombstone's header the value."""
    values, headers = table["value"].to_pylist(), table["headers"].to_pylist()
    return [value if value is not None else header[0]["value"] for value, header in zip(values, headers, strict=True)]


def rows_in(log_dir: LogDir, of: TopicPartition) -> dict[int, bytes]:
    """The identities of all records of a partition, by offset."""
    table = log_dir.read(of.topic, partition=of.partition)
    return dict(zip(table["offset"].to_pylist(), identities_of(table), strict=True))


def cleaned_end(log_dir: LogDir) -> int:
    """The end of the last segment of LATEST that a cleaning has written, 0 if there is none."""
    segments = log_dir.root.native().store.image.partition(LATEST.topic, LATEST.partition).segments
    return max((each.end_offset for each in segments if each.is_cleaned), default=0)


@dataclass
class CompactedModel:
    """What is known of the partition: identities by offset, those that were gone, and tombstones that may exist."""

    known: dict[int, bytes] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    tried: set[bytes] = field(default_factory=set)

    def see(self, offset: int, identity: bytes) -> None:
        self.known[offset] = identity

    def check_range(
        self, start: int, end: int, offsets: Collection[int], newest: Callable[[], Mapping[int, bytes]]
    ) -> None:
        """A reader of [start, end) has got the records at `offsets`. `newest`: all that are there now."""
        there = set(offsets)
        missing = [each for each in self.known if start <= each < end and each not in there]
        superseded = self._latest_known()
        open_ = [each for each in missing if superseded[key_of(self.known[each])] == each]
        if open_:
            now = newest()
            for each in open_:
                self._check_missing(each, now)

    def check_all(self, start: int, rows: Mapping[int, bytes], cleaned_end: int) -> None:
        """All records there are, from the log start on; below `cleaned_end` the log is clean."""
        back = self.gone & rows.keys()
        assert not back, f"removed records of {LATEST} are back at {sorted(back)}"
        for offset in self.known.keys() - rows.keys():
            if offset >= start:
                self._check_missing(offset, rows)
            self.gone.add(offset)
        keys = [key_of(identity) for offset, identity in rows.items() if offset < cleaned_end]
        assert len(keys) == len(set(keys)), f"{LATEST} is not clean below {cleaned_end}: {rows}"

    def gone_identities(self) -> Iterator[bytes]:
        """Records that were there once."""
        return (self.known[each] for each in self.gone)

    def _latest_known(self) -> dict[bytes, int]:
        latest: dict[bytes, int] = {}
        for offset in sorted(self.known):
            latest[key_of(self.known[offset])] = offset
        return latest

    def _check_missing(self, offset: int, now: Mapping[int, bytes]) -> None:
        """The record at `offset` is not there any more: a later one of its key is, or has removed the key."""
        identity = self.known[offset]
        key = key_of(identity)
        places = {each: at for at, each in self.known.items()}
        is_superseded = any(at > offset and key_of(each) == key for at, each in now.items())
        is_removed = any(key_of(each) == key and places.get(each, offset) >= offset for each in self.tried)
        assert is_superseded or is_removed, f"{identity!r}, the last of its key at {offset} of {LATEST}, was lost"


def clean(job: Job) -> Sequence[PartitionReport]:
    """The cleaner in one process, at times with a map too small for all keys."""
    size_bytes = job.simulation.rng.choice((None, _SMALL_MAP_BYTES))
    return [_counted(job, clean_partition(job.root, *_LATEST_ARGUMENTS, force=True, dedupe_buffer_bytes=size_bytes))]


_LATEST_ARGUMENTS: Final = (LATEST.topic, LATEST.partition)


def clean_in_tasks(job: Job) -> Sequence[PartitionReport]:
    """The cleaner of a large partition."""
    limits = CleanerLimits(buffer_bytes=1 << 20)
    return [_counted(job, clean_spread(InlineTasks(), cast(JobRun, _Run(job)), LATEST, limits))]


def _counted(job: Job, report: PartitionReport) -> PartitionReport:
    job.simulation.counts["records cleaned"] += report.records_dropped
    return report


@dataclass(frozen=True)
class _Run:
    """A JobRun whose tasks are of the job's process."""

    job: Job
    now_ms: int | None = None

    def open(self) -> Root:
        return self.job.log_dir.root


class InlineTasks:
    """Tasks that run at once, in the order of their submission."""

    slots = _SLOTS

    def is_alive(self) -> bool:
        return True

    def submit(self, work: Callable[[], T], *, first: bool = False) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(work())
        return future

    def as_completed(self, futures: Collection[Future[T]]) -> Iterator[Future[T]]:
        yield from futures
