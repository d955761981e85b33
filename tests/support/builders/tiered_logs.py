"""A root with small segments, transactions and timestamps that fall; its segments are copied and deleted by hand.

What a tier run and a retention run do one after the other is done here segment by segment, so that a test can read at
every step. Rows are read before anything is remote: they are what must be read afterwards, too.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from builders.controlled import create_log_dir
from builders.leader_writers import append_as_leader
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.image import PartitionImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObjectsRecord
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.commit.open_logs import PartitionLogs
from pyspark_kafkalog.root.file_root import FileRoot, on_file_system
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, TopicPartition
from pyspark_kafkalog.storage.segment.stored import closed_segments
from pyspark_kafkalog.tiered.own_segments import put_segment
from pyspark_kafkalog.tiered.segments import TopicIdPartition

OF: Final = TopicPartition("orders", 0)
T0: Final = 1_760_000_000_000
SMALL_SEGMENTS: Final = {"internal.segment.bytes": "700", "index.interval.bytes": "150"}


def tiering_root(path: Path, location: Path | str, *, layout: str = "aiven", partitions: int = 1) -> LogDir:
    """An empty root at `path` that tiers to `location`, with the topic orders."""
    if isinstance(location, Path):
        location.mkdir(exist_ok=True)
    log_dir = create_log_dir(path, clock=lambda: T0)
    storage = {"rsm.config.location": str(location), "rsm.config.layout": layout}
    log_dir.alter_broker_configs(add={**storage, "remote.log.storage.system.enable": "true"})
    log_dir.create_topic(
        OF.topic,
        partitions=partitions,
        configs={**SMALL_SEGMENTS, "remote.storage.enable": "true", "retention.ms": "-1"},
    )
    return log_dir


class _Appender:
    """Appends batches of several producers, some in transactions, with timestamps that also fall."""

    def __init__(self, log: UnifiedLog, rng: random.Random) -> None:
        self._log = log
        self._rng = rng
        self._sequences: dict[int, int] = {}
        self._open: set[int] = set()

    def append(self, *, leader_epoch: int) -> None:
        """A plain batch, a transactional one, or the end of a transaction."""
        producer_id = self._rng.choice((-1, -1, 1, 2, 3))
        if producer_id in self._open and self._rng.random() < 0.4:
            self.end(producer_id, leader_epoch=leader_epoch)
            return
        count = self._rng.randint(1, 6)
        first = self._log.log_end_offset
        records = [self._record(at, first + at) for at in range(count)]
        sequence = self._sequences.get(producer_id, 0)
        data = encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else leader_epoch,
            base_sequence=-1 if producer_id < 0 else sequence,
            is_transactional=producer_id >= 0,
        )
        append_as_leader(self._log, data, leader_epoch=leader_epoch)
        if producer_id >= 0:
            self._sequences[producer_id] = sequence + count
            self._open.add(producer_id)

    def end(self, producer_id: int, *, leader_epoch: int) -> None:
        kind = self._rng.choice((ControlRecordType.ABORT, ControlRecordType.COMMIT))
        key, value = build_control_record(EndTransactionMarker(control_type=kind, coordinator_epoch=0))
        marker = encode_batch(
            [Record(offset=0, timestamp_ms=T0, key=key, value=value)],
            producer_id=producer_id,
            producer_epoch=leader_epoch,
            is_transactional=True,
            is_control=True,
        )
        self._log.append_as_coordinator(marker, leader_epoch=leader_epoch)
        self._open.discard(producer_id)

    def end_all(self, *, leader_epoch: int) -> None:
        for producer_id in sorted(self._open):
            self.end(producer_id, leader_epoch=leader_epoch)

    def _record(self, delta: int, offset: int) -> Record:
        timestamp_ms = T0 + 1000 * offset + self._rng.randint(-20_000, 20_000)
        headers = ((b"n", b"%d" % offset),) if offset % 3 == 0 else ()
        value = None if offset % 11 == 0 else b"value %d " % offset * self._rng.randint(1, 4)
        return Record(
            offset=delta, timestamp_ms=timestamp_ms, key=b"key %d" % (offset % 5), value=value, headers=headers
        )


def fill(
    log_dir: LogDir,
    rng: random.Random,
    batches: int,
    *,
    ends_all: bool = True,
    rolls: bool = False,
    of: TopicPartition = OF,
) -> None:
    """Append that many batches and markers; each call begins a leader epoch. `ends_all`: no transaction stays open.

    `rolls`: the active segment is empty at the end.
    """
    root = file_root(log_dir)
    image = root.store.refresh()
    before = image.partition(of.topic, of.partition).state
    with PartitionLogs.at(root.path, image, clock=lambda: T0, fs=root.fs).resume(of, before) as log:
        epoch = before.leader_epoch + 1 if before.log_end_offset else 0
        appender = _Appender(log, rng)
        for _ in range(batches):
            appender.append(leader_epoch=epoch)
        if ends_all:
            appender.end_all(leader_epoch=epoch)
        if rolls:
            log.roll(log.log_end_offset)
        log.flush(is_last=True)
        after = log.state()
    root.commit(lambda image: [partition_state_record(_id_of(root), of.partition, after)], operation="write")


def file_root(log_dir: LogDir) -> FileRoot:
    return on_file_system(log_dir.root)


def image_of(log_dir: LogDir, of: TopicPartition = OF) -> PartitionImage:
    """The partition in the newest image."""
    return file_root(log_dir).store.refresh().partition(of.topic, of.partition)


def _id_of(root: FileRoot, topic: str = OF.topic) -> str:
    return root.store.image.topic(topic).topic_id


def bases(log_dir: LogDir, of: TopicPartition = OF) -> list[int]:
    """Base offsets of the local segments."""
    return sorted(PartitionListing.read(log_dir.root.directories[0] / str(of)).files[LOG_SUFFIX])


def copy_closed(log_dir: LogDir, count: int | None = None, *, of: TopicPartition = OF) -> int:
    """Copy the next `count` closed segments, or all below the last stable offset, in one commit.

    Returns the offset after the last one that is remote.
    """
    root = file_root(log_dir)
    image = root.store.refresh()
    topic_id, partition, storage = _id_of(root, of.topic), image.partition(of.topic, of.partition), root.remote_storage
    assert storage is not None
    directory = root.path / str(of)
    copied = partition.segments[-1].end_offset if partition.segments else 0
    state = partition.state
    due = [
        each
        for each in closed_segments(directory, state.active_base_offset)
        if each.base_offset >= copied and state.log_start_offset < each.end_offset <= state.last_stable_offset
    ][:count]
    segments = tuple(
        put_segment(
            storage.store(),
            TopicIdPartition(of.topic, topic_id, of.partition),
            directory,
            each.base_offset,
            each.end_offset,
            epochs=LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT).entries,
            segment_id=new_segment_id(image.next_offset),
            now_ms=T0,
            layout=storage.layout,
        )
        for each in due
    )
    if segments:
        record = SegmentObjectsRecord(
            topic_id=topic_id, partition=of.partition, planned_at=image.next_offset, segments=segments
        )
        root.commit(lambda image: [record], operation="tier")
    return segments[-1].end_offset if segments else copied


def move_local_start(log_dir: LogDir, offset: int, *, of: TopicPartition = OF) -> None:
    """Commit a local log start; the files stay."""
    root = file_root(log_dir)
    state = replace(root.store.refresh().partition(of.topic, of.partition).state, local_log_start_offset=offset)
    topic_id = _id_of(root, of.topic)
    root.commit(lambda image: [partition_state_record(topic_id, of.partition, state)], operation="retention")


def remove_files(log_dir: LogDir, offset: int, *, of: TopicPartition = OF) -> None:
    """Remove all files of segments that begin below `offset`."""
    directory = log_dir.root.directories[0] / str(of)
    for offsets in PartitionListing.read(directory).files.items():
        for base in [each for each in offsets[1] if each < offset]:
            (directory / f"{base:020d}{offsets[0]}").unlink()


def delete_local(log_dir: LogDir, offset: int, *, of: TopicPartition = OF) -> None:
    """What local retention does up to `offset`."""
    move_local_start(log_dir, offset, of=of)
    remove_files(log_dir, offset, of=of)


def move_log_start(log_dir: LogDir, offset: int, *, of: TopicPartition = OF) -> None:
    """What delete-records commits."""
    root = file_root(log_dir)
    state = replace(root.store.refresh().partition(of.topic, of.partition).state, log_start_offset=offset)
    topic_id = _id_of(root, of.topic)
    root.commit(lambda image: [partition_state_record(topic_id, of.partition, state)], operation="delete records")


def rows(log_dir: LogDir, start: int | None = None, end: int | None = None, **options: Any) -> list[dict[str, Any]]:
    """The records of orders-0 in [start, end)."""
    log_dir.refresh()
    return log_dir.read(OF.topic, partition=0, start_offset=start, end_offset=end, **options).to_pylist()
