"""Fetches one range of offsets of one partition in a task, for `TaskLeader`.

    connect to the leader, fetch from the range's start on, check each batch, write to a file; until the range's end

The file is in the follower's directory of the partition, with the suffix of staged files, which brokers and readers
ignore: `follow-<job>-<random>.staged`. For a root in an object store the batches are part of the task's result.

A range takes the batches that begin in it. One that begins below it belongs to the range before. So ranges of one
partition that are fetched side by side fit together, unless the leader's log has changed meanwhile: the driver checks
that.

A task that is killed leaves its file behind; the job removes it at its end, or the next job at its beginning. A task
may also outlive its job, since Spark ends a job without waiting for its Python workers. So a job has a file of its own,
`.follow-<job>` in the root, which it removes before the staged ranges; a task looks for it once its own file is there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.errors import LeaderUnavailableError
from pyspark_kafkalog.object_store.location import is_object_url
from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.leader import FetchedPartition, FetchOutcome, FetchPosition, LeaderEndPoint
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.artefacts.partition_listing import refuse_link
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.log.follower import FollowerBatches, check_batches
from pyspark_kafkalog.storage.names import STAGED_SUFFIX, TopicPartition
from pyspark_kafkalog.units import MIB

_FETCH_BYTES: Final = 8 * MIB
_WAIT_MS: Final = 500
#: How many answers in a row may have no records, or say that the leader has moved.
_ANSWERS_WITHOUT_RECORDS_MAX: Final = 5
_STAGED_PREFIX: Final = "follow-"


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

    `is_first`: no other range comes before it, so a batch that contains its first offset belongs to it. It ends early
    after about `max_bytes`. `job` None: the batches are part of the result.
    """

    leader: LeaderAddress
    position: FetchPosition
    end_offset: int
    is_first: bool
    max_bytes: int
    job: StagingJob | None


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
        return self.root / str(name) / f"{_STAGED_PREFIX}{self.job_id}-{uuid.uuid4().hex}{STAGED_SUFFIX}"

    @property
    def _path(self) -> Path:
        return self.root / f".{_STAGED_PREFIX}{self.job_id}"

    def _remove(self, job_id: str) -> None:
        for pattern in (f".{_STAGED_PREFIX}{job_id}", f"*/{_STAGED_PREFIX}{job_id}-*{STAGED_SUFFIX}"):
            for path in self.root.glob(pattern):
                LOCAL.unlink_if_there(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRange:
    """The batches of a range, in the file `path` or in `data`.

    `left_out_end_offset` is the end of the batch that was left out because it begins below the range, -1 if none was.
    `next_offset` is where the range ends: its `end_offset`, or less if it has ended early.
    """

    path: Path | None
    data: bytes
    size_bytes: int
    left_out_end_offset: int
    next_offset: int
    high_watermark: int
    log_start_offset: int


def fetch_range(request: RangeRequest) -> StagedRange:
    """Fetch the range; a task, which may be repeated.

    Raises LeaderUnavailableError if the leader does not have it as expected, CorruptRecordError, OSError.
    """
    name = request.position.topic_partition
    leader = request.leader.open()
    try:
        leader.describe(lambda topic: topic == name.topic)
        with _sink(request) as sink:
            return _fetch_into(sink, leader, request)
    finally:
        leader.close()


def _fetch_into(sink: _Sink, leader: LeaderEndPoint, request: RangeRequest) -> StagedRange:
    position = request.position
    left_out_end_offset = log_start_offset = high_watermark = -1
    for answer in _answers(leader, request, sink):
        checked = check_batches(answer.data)
        offsets = checked.batches["base_offset"]
        first = 0 if request.is_first else int(np.searchsorted(offsets, request.position.offset))
        count = int(np.searchsorted(offsets, request.end_offset))
        if first:
            left_out_end_offset = int(checked.batches["last_offset"][first - 1]) + 1
        sink.append(_bytes_between(checked, first, count))
        high_watermark, log_start_offset = answer.high_watermark, answer.log_start_offset
        is_end = count < len(checked) or checked.next_offset >= request.end_offset
        position = replace(position, offset=checked.next_offset, last_epoch=int(checked.batches["leader_epoch"][-1]))
        sink.position = position
        if is_end or sink.size_bytes >= request.max_bytes:
            break
    path, data = sink.finish()
    return StagedRange(
        path=path,
        data=data,
        size_bytes=sink.size_bytes,
        left_out_end_offset=left_out_end_offset,
        next_offset=min(position.offset, request.end_offset),
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
    )


def _bytes_between(checked: FollowerBatches, first: int, end: int) -> Buffer:
    if first >= end:
        return b""
    rows = checked.batches
    return checked.data[int(rows["position"][first]) : int(rows["position"][end - 1] + rows["size_bytes"][end - 1])]


def _answers(leader: LeaderEndPoint, request: RangeRequest, sink: _Sink) -> Iterator[FetchedPartition]:
    """The answers with records, each to a fetch from `sink.position`.

    Raises LeaderUnavailableError for any other answer, or if there are no more records.
    """
    name = request.position.topic_partition
    without_records = 0
    while without_records < _ANSWERS_WITHOUT_RECORDS_MAX:
        source = next(iter(leader.sources([name])), None)
        if source is None:
            raise LeaderUnavailableError(f"{name} has no leader now")
        answers = leader.fetch(
            source, [sink.position], wait_ms=_WAIT_MS, max_bytes=_FETCH_BYTES, partition_bytes=_FETCH_BYTES
        )
        for answer in answers:
            if answer.outcome is FetchOutcome.RECORDS and len(answer.data):
                without_records = 0
                yield answer
            elif answer.outcome not in (FetchOutcome.RECORDS, FetchOutcome.LEADER_MOVED):
                reason = answer.error or answer.outcome.name
                raise LeaderUnavailableError(f"{name} cannot be fetched from {sink.position.offset}: {reason}")
        without_records += 1
    raise LeaderUnavailableError(
        f"{name} has no records from offset {sink.position.offset} on; expected those up to {request.end_offset}"
    )


class _Sink:
    """Takes the batches of a range: in a file, or in memory. `position` is where to fetch next."""

    def __init__(self, position: FetchPosition, path: Path | None, fd: int | None) -> None:
        self.position = position
        self.size_bytes = 0
        self._path = path
        self._fd = fd
        self._parts: list[bytes] = []

    def append(self, data: Buffer) -> None:
        if self._fd is None:
            self._parts.append(bytes(data))
        elif len(data):
            LOCAL.pwrite_all(self._fd, data, self.size_bytes)
        self.size_bytes += len(data)

    def finish(self) -> tuple[Path | None, bytes]:
        return self._path, b"".join(self._parts)


@contextmanager
def _sink(request: RangeRequest) -> Iterator[_Sink]:
    """The sink of a range; after an error its file is removed."""
    if request.job is None:
        yield _Sink(request.position, None, None)
        return
    path = request.job.staged_path(request.position.topic_partition)
    refuse_link(path.parent)
    # Not flushed: what a crash of the machine takes of it was not committed, and is fetched again.
    fd = LOCAL.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        if not request.job.is_running():
            raise LeaderUnavailableError(
                f"the job that asked for a range of {request.position.topic_partition} has ended"
            )
        yield _Sink(request.position, path, fd)
    except BaseException:
        LOCAL.unlink_if_there(path)
        raise
    finally:
        LOCAL.close(fd)
