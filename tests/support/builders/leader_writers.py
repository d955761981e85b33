"""Batches as producers and coordinators send them, checked for one open log or committed by a writer of a root."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from left_open import close_at_the_end

from builders.controlled import open_log_dir
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.header import Buffer, TimestampType
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.commit.changes import AppendedRange, AppendOrigin, CommitUnit, LeaderAppend, UnitResult
from pyspark_kafkalog.root.commit.committer import LeaderWriter
from pyspark_kafkalog.root.commit.file_engine import FileEngine
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, FlushMode
from pyspark_kafkalog.storage.log.leader_append import REQUEST, ProducerView, validate_batches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producers import AppendedProducers, ProducerState, producer_batches
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition

T0 = 1_700_000_000_000


def batch(
    values: Sequence[bytes] = (b"a", b"b", b"c"),
    *,
    key: bytes | None = b"k",
    at_ms: int = T0,
    codec: CompressionType = CompressionType.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    is_transactional: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """A batch; `producer` is its producer's id, epoch and the first sequence."""
    producer_id, epoch, sequence = producer
    return encode_batch(
        [Record(offset=at, timestamp_ms=at_ms + at, key=key, value=value) for at, value in enumerate(values)],
        compression=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
        timestamp_type=timestamp_type,
        max_timestamp_ms=at_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else None,
    )


def marker(producer_id: int, epoch: int, *, is_commit: bool, coordinator_epoch: int = 0, at_ms: int = T0) -> bytes:
    """An end-transaction marker."""
    kind = ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT
    key, value = build_control_record(EndTransactionMarker(control_type=kind, coordinator_epoch=coordinator_epoch))
    return encode_batch(
        [Record(offset=0, timestamp_ms=at_ms, key=key, value=value)],
        producer_id=producer_id,
        producer_epoch=epoch,
        is_transactional=True,
        is_control=True,
    )


def copied(offset: int, count: int = 3, *, epoch: int = 0, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    """A batch as a follower gets it from its leader: `count` records from `offset` on, with a leader epoch."""
    producer_id, producer_epoch, sequence = producer
    return encode_batch(
        [
            Record(offset=each, timestamp_ms=T0 + each, key=b"k", value=b"%d" % each)
            for each in range(offset, offset + count)
        ],
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )


def append(data: bytes, topic: str = "a", partition: int = 0, *, topic_id: str | None = None) -> LeaderAppend:
    """An append of a client."""
    return LeaderAppend(topic_partition=TopicPartition(topic, partition), data=data, topic_id=topic_id)


def mark(data: bytes, topic: str = "a", partition: int = 0) -> LeaderAppend:
    """An append of a coordinator."""
    place = TopicPartition(topic, partition)
    return LeaderAppend(topic_partition=place, data=data, origin=AppendOrigin.COORDINATOR)


class Served:
    """A root as one server process has it; several may have the same root."""

    def __init__(
        self, path: Path | StoreAddress, *, flush: FlushMode = "os", fs: FileSystem = LOCAL, now_ms: int = T0 + 60_000
    ) -> None:
        self.now_ms = now_ms
        self.log_dir = open_log_dir(path, clock=lambda: self.now_ms, fs=fs)
        self.root = self.log_dir.root.native()
        self.writer: LeaderWriter = self.root.committer(flush=flush)
        close_at_the_end(self.writer.close)

    def commit(self, *units: CommitUnit) -> list[UnitResult]:
        """Commit as a server does: at once if that is possible."""
        results = self.writer.commit_at_once(units)
        return self.writer.commit(units) if results is None else results

    def append(self, *appends: LeaderAppend) -> AppendedRange | KafkalogError:
        """Commit the appends as one unit; the result of the last append, or what refused the unit."""
        (result,) = self.commit(CommitUnit.of(*appends))
        return result if isinstance(result, KafkalogError) else result[-1]

    def state(self, topic: str = "a", partition: int = 0) -> LogState:
        return self.root.store.refresh().partition(topic, partition).state

    def producers(self, topic: str, partition: int) -> Iterable[ProducerState]:
        """The producers of the open log of a partition; none if it is not open."""
        engine = self.writer._engine
        assert isinstance(engine, FileEngine)
        kept = engine.logs._logs.get(TopicPartition(topic, partition))
        return () if kept is None else kept.log.producers.producers.values()

    def values(self, topic: str = "a", partition: int = 0, *, isolation: str = "read_uncommitted") -> list[bytes]:
        self.log_dir.refresh()
        rows = self.log_dir.read(topic, partition=partition, isolation=isolation)
        values: list[bytes] = rows["value"].to_pylist()
        return values


@dataclass(frozen=True)
class AppendInfo:
    """The offsets of an append; `log_append_time_ms` is None if the records keep their own timestamps."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int | None = None
    is_duplicate: bool = False


def append_as_leader(log: UnifiedLog, data: Buffer, *, leader_epoch: int) -> AppendInfo:
    """Check the batches of a client and store them; all of them or none."""
    now_ms = log.clock()
    first_offset = log.log_end_offset
    checked = validate_batches(
        data, next_offset=first_offset, leader_epoch=leader_epoch, config=log.config, now_ms=now_ms
    )
    if not len(checked):
        return AppendInfo(first_offset=first_offset, last_offset=first_offset - 1)
    found = list(producer_batches(checked.data, checked.batches, data_position=0, file=REQUEST))
    view = ProducerView(log.producers.producers)
    duplicate = view.add(found)
    if duplicate is not None:
        return AppendInfo(duplicate.first_offset, duplicate.last_offset, is_duplicate=True)
    log.assign_epoch(leader_epoch, first_offset)
    log.append(checked.data, checked.batches, known=AppendedProducers.of(found, view.changed))
    uses_append_time = log.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    return AppendInfo(first_offset, log.log_end_offset - 1, now_ms if uses_append_time else None)
