"""Fetches one range of offsets of one partition in a task, for `TaskLeader`.

    connect to the leader, fetch from the range's start on, check each batch, stage it; until the range's end

For a root on a file system the batches are staged in a file in the follower's directory of the partition, with the
suffix of staged files, which brokers and readers ignore: `follow-<job>-<random>.staged`. For a root in an object store
they become a data object with a random key (root/commit/runs.py).

A range takes the batches that begin in it. One that begins below it belongs to the range before. So ranges of one
partition that are fetched side by side fit together, unless the leader's log has changed meanwhile: the driver checks
that.

Offsets in a data object count from the log end at which it is to be appended: where the last batch before the range
ends, which may be below the range if the leader has compacted its log. So the task looks for that batch first.

A task that is killed leaves its file behind; the job removes it at its end, or the next job at its beginning. A task
may also outlive its job, since Spark ends a job without waiting for its Python workers. So a job has a file of its own,
`.follow-<job>` in the root, which it removes before the staged ranges; a task looks for it once its own file is there.
A data object that is not committed is removed by the clean-up, as those of abandoned writes.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import LeaderUnavailableError
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import is_object_url
from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.leader import FetchOutcome, FetchPosition, LeaderAnswer, LeaderEndPoint
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.root.commit.runs import StagedBatches, stage_batches
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.below_root import refuse_link
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.log.follower import FollowerBatches, check_batches
from pyspark_kafkalog.storage.names import STAGED_SUFFIX, TopicPartition, partition_path
from pyspark_kafkalog.storage.staged_file import staged_files
from pyspark_kafkalog.units import MIB

_FETCH_BYTES: Final = 8 * MIB
_WAIT_MS: Final = 500
#: How many answers in a row may have no records, or say that the leader has moved.
_ANSWERS_WITHOUT_RECORDS_MAX: Final = 5
_STAGED_PREFIX: Final = "follow-"
#: A commit has a row of 51 bytes for each batch of a producer, and a limit of 16 MiB.
_OBJECT_BATCHES_MAX: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Where a leader is: brokers with the settings of connections to them, or the path or URL of a root."""

    text: str
    settings: ClientSettings | None = field(default=None, repr=False)

    @property
    def is_root(self) -> bool:
        return is_object_url(self.text) or os.sep in self.text or Path(self.text).is_dir()

    def open(self) -> LeaderEndPoint:
        """The leader's end point; the caller closes it. Raises LogDirError for a path that is no root."""
        return RootLeader(open_root(self.text)) if self.is_root else ClusterLeader(self.text, self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRequest:
    """The offsets of one partition that a task fetches: from that of `position` up to `end_offset`.

    `log_end_offset` is where the log ended when the ranges of the partition were planned. A range that begins there is
    the first one, so a batch that contains its first offset belongs to it. The range ends early after about
    `max_bytes`, or after many small batches.
    """

    leader: LeaderAddress
    position: FetchPosition
    end_offset: int
    log_end_offset: int
    max_bytes: int
    place: StagingJob | StagingStore

    @property
    def is_first(self) -> bool:
        return self.position.offset == self.log_end_offset


@dataclass(frozen=True, slots=True)
class StagingJob:
    """A job whose tasks stage ranges in the file root `root`."""

    root: Path
    job_id: str

    def begin(self) -> None:
        """Let tasks stage ranges. Removes what earlier jobs have left behind. Raises OSError."""
        self._remove("*")
        LOCAL.close(LOCAL.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))

    def end(self) -> None:
        """Remove the staged ranges; tasks that still run will leave none behind. Raises OSError."""
        self._remove(self.job_id)

    def is_running(self) -> bool:
        """Whether the job has not ended."""
        return self._path.exists()

    def staged_path(self, name: TopicPartition) -> Path:
        """A path for a staged range of a partition, another one with each call."""
        return partition_path(self.root, name) / f"{_STAGED_PREFIX}{self.job_id}-{uuid.uuid4().hex}{STAGED_SUFFIX}"

    @property
    def _path(self) -> Path:
        return self.root / f".{_STAGED_PREFIX}{self.job_id}"

    def _remove(self, job_id: str) -> None:
        markers = self.root.glob(f".{_STAGED_PREFIX}{job_id}")
        prefix = _STAGED_PREFIX if job_id == "*" else f"{_STAGED_PREFIX}{job_id}-"
        for path in chain(markers, (each for each in staged_files(self.root) if each.name.startswith(prefix))):
            LOCAL.unlink_if_there(path)


@dataclass(frozen=True, slots=True)
class StagingStore:
    """The store of an object root, in which tasks put what was planned at the metadata offset `planned_at`."""

    address: StoreAddress
    planned_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRange:
    """The batches of a range, in the file `path` or in the store; `batches` is None if there are none.

    `left_out_end_offset` is the end of the batch that was left out because it begins below the range, -1 if none was.
    `next_offset` is where the range ends: its `end_offset`, or less if it has ended early.
    """

    path: Path | None = None
    batches: StagedBatches | None = None
    size_bytes: int
    left_out_end_offset: int
    next_offset: int
    high_watermark: int
    log_start_offset: int


def fetch_range(request: RangeRequest) -> StagedRange:
    """Fetch the range; a task, which may be repeated.

    Raises LeaderUnavailableError if the leader does not have it as expected, CorruptRecordError, OSError,
    ObjectStoreError.
    """
    name = request.position.topic_partition
    leader = request.leader.open()
    try:
        leader.describe(lambda topic: topic == name.topic)
        if isinstance(request.place, StagingStore):
            return _fetch_to_store(leader, request, request.place)
        with _staged_file(request, request.place) as sink:
            fetched = _fetch_into(sink, leader, request, request.position)
            return fetched.staged(request, path=sink.path, size_bytes=sink.size_bytes)
    finally:
        leader.close()


def _fetch_to_store(leader: LeaderEndPoint, request: RangeRequest, place: StagingStore) -> StagedRange:
    sink = _MemorySink()
    fetched = _fetch_into(sink, leader, request, _before_range(leader, request))
    batches: StagedBatches | None = None
    if sink.size_bytes:
        position = request.position
        # Without a batch between them the log still ends where it did when the range was planned.
        end = fetched.left_out_end_offset
        batches = stage_batches(
            place.address.open(),
            position.topic_id,
            position.topic_partition,
            request.log_end_offset if end < 0 else end,
            sink.take(),
            planned_at=place.planned_at,
        )
    return fetched.staged(request, batches=batches, size_bytes=sink.size_bytes)


def _before_range(leader: LeaderEndPoint, request: RangeRequest) -> FetchPosition:
    """A position from which the answers begin with a batch before the range; the log end if there is no such batch."""
    start_offset, distance = request.position.offset, 1
    while True:
        position = replace(request.position, offset=max(start_offset - distance, request.log_end_offset))
        if position.offset == request.log_end_offset:
            return position
        first = check_batches(_fetch(leader, request, position, max_bytes=1).data).first_offset
        if first < start_offset:
            return position
        distance *= 2


@dataclass(frozen=True, slots=True)
class _Fetched:
    """What was found out while a range was fetched; `next_offset` is where the last batch ends that was looked at."""

    left_out_end_offset: int
    next_offset: int
    last_answer: LeaderAnswer

    def staged(
        self, request: RangeRequest, *, size_bytes: int, path: Path | None = None, batches: StagedBatches | None = None
    ) -> StagedRange:
        return StagedRange(
            path=path,
            batches=batches,
            size_bytes=size_bytes,
            left_out_end_offset=self.left_out_end_offset,
            next_offset=min(self.next_offset, request.end_offset),
            high_watermark=self.last_answer.high_watermark,
            log_start_offset=self.last_answer.log_start_offset,
        )


def _fetch_into(sink: _Sink, leader: LeaderEndPoint, request: RangeRequest, position: FetchPosition) -> _Fetched:
    """Put the batches of the range into `sink`, which are fetched from `position` on."""
    left_out_end_offset = -1
    while True:
        answer = _fetch(leader, request, position, max_bytes=_FETCH_BYTES)
        checked = check_batches(answer.data)
        offsets = checked.batches["base_offset"]
        first = 0 if request.is_first else int(np.searchsorted(offsets, request.position.offset))
        count = int(np.searchsorted(offsets, request.end_offset))
        if first:
            left_out_end_offset = int(checked.batches["last_offset"][first - 1]) + 1
        if first < count:
            sink.append(checked, first, count)
        is_end = count < len(checked) or checked.next_offset >= request.end_offset
        position = replace(position, offset=checked.next_offset, last_epoch=int(checked.batches["leader_epoch"][-1]))
        if is_end or sink.is_full(request.max_bytes):
            return _Fetched(left_out_end_offset, position.offset, answer)


def _fetch(leader: LeaderEndPoint, request: RangeRequest, position: FetchPosition, *, max_bytes: int) -> LeaderAnswer:
    """The leader's answer with records from `position` on.

    Raises LeaderUnavailableError for any other answer, or if there are no more records.
    """
    name = position.topic_partition
    for _ in range(_ANSWERS_WITHOUT_RECORDS_MAX):
        source = next(iter(leader.sources([name])), None)
        if source is None:
            raise LeaderUnavailableError(f"{name} has no leader now")
        answers = leader.fetch(source, [position], wait_ms=_WAIT_MS, max_bytes=max_bytes, partition_bytes=max_bytes)
        for answer in answers:
            if answer.outcome is FetchOutcome.RECORDS and len(answer.data):
                return answer
            if answer.outcome not in (FetchOutcome.RECORDS, FetchOutcome.LEADER_MOVED):
                reason = answer.error or answer.outcome.name
                raise LeaderUnavailableError(f"{name} cannot be fetched from {position.offset}: {reason}")
    raise LeaderUnavailableError(
        f"{name} has no records from offset {position.offset} on; expected those up to {request.end_offset}"
    )


class _Sink(Protocol):
    """Takes the batches of a range."""

    def append(self, checked: FollowerBatches, first: int, end: int) -> None:
        """Take the batches [first, end), of which there is one at least."""
        ...

    def is_full(self, max_bytes: int) -> bool:
        """Whether the range is to end here."""
        ...


class _FileSink:
    """Writes the batches to the file `path`, which is open as `fd`."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.size_bytes = 0
        self._fd = fd

    def append(self, checked: FollowerBatches, first: int, end: int) -> None:
        data = _bytes_between(checked, first, end)
        LOCAL.pwrite_all(self._fd, data, self.size_bytes)
        self.size_bytes += len(data)

    def is_full(self, max_bytes: int) -> bool:
        return self.size_bytes >= max_bytes


class _MemorySink:
    """Keeps the batches in memory."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._count = 0
        self._data: list[NDArray[np.uint8]] = []
        self._tables: list[NDArray[np.void]] = []

    def append(self, checked: FollowerBatches, first: int, end: int) -> None:
        table = checked.batches[first:end].copy()
        table["position"] += self.size_bytes - int(table["position"][0])
        self._tables.append(table)
        self._data.append(_bytes_between(checked, first, end).copy())
        self._count += len(table)
        self.size_bytes += len(self._data[-1])

    def is_full(self, max_bytes: int) -> bool:
        return self.size_bytes >= max_bytes or self._count >= _OBJECT_BATCHES_MAX

    def take(self) -> FollowerBatches:
        """All batches, which the sink then has no more."""
        data, self._data = np.concatenate(self._data), []
        return FollowerBatches(data, np.concatenate(self._tables))


def _bytes_between(checked: FollowerBatches, first: int, end: int) -> NDArray[np.uint8]:
    rows = checked.batches
    return checked.data[int(rows["position"][first]) : int(rows["position"][end - 1] + rows["size_bytes"][end - 1])]


@contextmanager
def _staged_file(request: RangeRequest, job: StagingJob) -> Iterator[_FileSink]:
    """The file of a range; after an error it is removed."""
    path = job.staged_path(request.position.topic_partition)
    refuse_link(path.parent)
    # Not flushed: what a crash of the machine takes of it was not committed, and is fetched again.
    fd = LOCAL.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        if not job.is_running():
            raise LeaderUnavailableError(
                f"the job that asked for a range of {request.position.topic_partition} has ended"
            )
        yield _FileSink(path, fd)
    except BaseException:
        LOCAL.unlink_if_there(path)
        raise
    finally:
        LOCAL.close(fd)
