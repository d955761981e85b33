"""Object roots: one of an image, a store and commits in memory, with its twin, and those with imported segments."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from fakes.faulty_store import FaultyStore, MemoryBucket

from builders.controlled import create_log_dir
from builders.data_objects import TOPIC_IDS, Log, Plan, stage
from builders.metadata_roots import add_topic, forget_images
from builders.root_places import ObjectPlace, client_address, memory_root
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.commit_log import encode_commit
from pyspark_kafkalog.metadata.delta import ImageDelta, start_delta
from pyspark_kafkalog.metadata.extents import data_object_record, new_segment_id
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.invariants import check_invariants
from pyspark_kafkalog.metadata.messages.metadata_records import (
    FormatRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    SegmentObjectsRecord,
    TopicRecord,
)
from pyspark_kafkalog.metadata.objects.log import commit_key
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.root import object_log as object_extents
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    LeaderEpochCheckpoint,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.names import TopicPartition, encode_uuid
from pyspark_kafkalog.storage.objects.upload import UploadTask, WrittenObject, settle, upload
from pyspark_kafkalog.tiered import objects as remote_objects
from pyspark_kafkalog.tiered.own_segments import put_segment, segment_keys
from pyspark_kafkalog.tiered.remote_log import LogExtents
from pyspark_kafkalog.tiered.segments import TopicIdPartition

PARTITIONS_COUNT = 2
#: Where `StoredRoot.opened` says it is.
STORED_URL = "s3://bucket/log"


class ObjectRootModel:
    """A root with the topics of TOPIC_IDS; commits are applied as a root applies them."""

    def __init__(self, store: FaultyStore) -> None:
        self.store = store
        self.commits: list[int] = []
        self.logs: dict[TopicPartition, Log] = {}
        self.refreshes = 0
        node = encode_uuid(uuid4().bytes)  # of each model another one: they have the same URL and topic ids
        records: list[MetadataRecord] = [
            FormatRecord(format_version=1, is_object_root=True),
            RegisterBrokerRecord(broker_id=1, incarnation_id=node, log_dirs=(node,)),
        ]
        for name, topic_id in TOPIC_IDS.items():
            records.append(TopicRecord(name=name, topic_id=topic_id))
            for number in range(PARTITIONS_COUNT):
                records.append(PartitionRecord(partition_id=number, topic_id=topic_id, leader_epoch=0))
                self.logs[TopicPartition(name, number)] = Log(TopicPartition(name, number))
        delta = ImageDelta(MetadataImage(), commit_offset=0, timestamp_ms=1)
        delta.replay(records)
        self.image = delta.build(len(records))

    def commit(self, *records: MetadataRecord, timestamp_ms: int = 1) -> None:
        delta = start_delta(self.image, base_offset=self.image.next_offset, timestamp_ms=timestamp_ms)
        delta.replay(records)
        after = delta.build(self.image.next_offset + len(records))
        check_invariants(self.image, after, delta.changes)
        base = self.image.next_offset
        self.commits.append(base)
        self.store_commit(base, *records)
        self.image = after

    def store_commit(self, base_offset: int, *records: MetadataRecord) -> None:
        """Put the object of a commit, which carries no other."""
        self.store.bucket.write(commit_key(base_offset), encode_commit(base_offset, records, 1))

    def commit_write(self, objects: Sequence[WrittenObject], plans: Sequence[Plan], *, inline_bytes: int) -> None:
        """Commit the objects of all tasks. `plans`: those of tasks that put objects, then those of inline ones."""
        settled = settle(self.store, objects, inline_bytes=inline_bytes)
        if not settled:
            return
        before = {each: log.end_offset for each, log in self.logs.items()}
        self.commit(*map(data_object_record, settled))
        for each, log in self.logs.items():
            partition = self.image.partition(each.topic, each.partition)
            log.rows = [tuple(row) for row in partition.runs.table.tolist()]
            log.append_batches(before[each], plans, leader_epoch=partition.state.leader_epoch)

    def new_leader_epoch(self, topic_partition: TopicPartition) -> None:
        topic_id = TOPIC_IDS[topic_partition.topic]
        self.commit(PartitionChangeRecord(partition_id=topic_partition.partition, topic_id=topic_id, leader=1))

    def reader(self, topic_partition: TopicPartition) -> LogReader:
        return LogReader(self.extents(topic_partition), topic_partition)

    def extents(self, topic_partition: TopicPartition) -> LogExtents:
        def refreshed() -> ObjectLog:
            self.refreshes += 1
            return ObjectLog.of(self.image, topic_partition)

        return ObjectLog.of(self.image, topic_partition).extents(self.store, refreshed)


class StoredRoot:
    """A whole object root in a bucket in memory, with the topic orders of two partitions, and their twins."""

    def __init__(self, configs: Mapping[str, str] | None = None) -> None:
        object_extents._caches.cache_clear()
        remote_objects._cache.cache_clear()
        self.place = ObjectPlace()
        self.metadata = self.place.create()
        self.objects = self.place.client()
        self.topic_id = add_topic(self.metadata, "orders", configs=configs)
        self.logs = {each: Log(each) for each in (TopicPartition("orders", 0), TopicPartition("orders", 1))}
        self.config: LogConfig = broker_config(self.image).log_config(self.image.topic("orders").configs)
        self._writes = 0

    @property
    def image(self) -> MetadataImage:
        return self.metadata.refresh()

    def opened(self, client: FaultyStore | None = None) -> ObjectRoot:
        """The root as a process of its own opens it, whose client is `client`; None: one without faults."""
        forget_images()
        address = client_address(STORED_URL, self.place.client() if client is None else client)
        return ObjectRoot(address, clock=self.place.clock)

    def upload(self, scratch: Path, *plans: Plan, inline_bytes: int = 0) -> list[WrittenObject]:
        """What a task has put into the store for `plans`."""
        self._writes += 1
        directory = scratch / f"write-{self._writes}"
        staged = [each for plan in plans for each in stage(directory, plan)]
        task = UploadTask(f"ab{self._writes}", 0, self.image.next_offset)
        topic_ids = {"orders": self.topic_id}
        return upload(self.objects, task, staged, topic_ids, directory=directory, inline_bytes=inline_bytes)

    def write(self, scratch: Path, *plans: Plan, inline_bytes: int = 0) -> None:
        written = self.upload(scratch, *plans, inline_bytes=inline_bytes)
        self.metadata.commit(lambda image: list(map(data_object_record, written)), operation="write")
        for each, log in self.logs.items():
            partition = self.image.partition(each.topic, each.partition)
            before = log.end_of_batches
            log.rows = [tuple(row) for row in partition.runs.table.tolist()]
            log.append_batches(before, plans, leader_epoch=partition.state.leader_epoch)

    def reader(self, topic_partition: TopicPartition) -> LogReader:
        log = ObjectLog.of(self.metadata.image, topic_partition)
        extents = log.extents(self.place.client(), lambda: ObjectLog.of(self.metadata.refresh(), topic_partition))
        return LogReader(extents, topic_partition)

    def check(self, scratch: Path) -> None:
        """All that was committed can be read, as from the twins."""
        for each, log in self.logs.items():
            directory = Path(tempfile.mkdtemp(dir=scratch))
            twin = LogReader(LocalExtents(log.write_twin(directory)), each)
            end = self.image.partition(each.topic, each.partition).state.log_end_offset
            assert end == log.end_of_batches
            found = table_of(self.reader(each), 0, end)
            assert found.equals(table_of(twin, 0, end))


def named_objects(image: MetadataImage) -> set[str]:
    """The keys of all objects with data that an image needs: data objects, and those of segments."""
    keys = {each.key for each in image.objects if not each.is_inline}
    for name, topic in image.topics.items():
        for partition in topic.partitions:
            of = TopicIdPartition(name, topic.topic_id, partition.partition)
            keys.update(
                key for each in partition.segments for key in segment_keys(of, each.base_offset, each.segment_id)
            )
    return keys


def left_objects(bucket: MemoryBucket, prefix: str = "") -> set[str]:
    """The keys of all objects below the root at `prefix` but those of its metadata."""
    keys = (each.removeprefix(f"{prefix}/") for each in bucket.keys(prefix))
    return {each for each in keys if "/" in each and not each.startswith(f"{METADATA_DIR}/")}


def table_of(reader: LogReader, start: int, end: int) -> pa.Table:
    return pa.Table.from_batches(reader.read(start, end, schema=KAFKA_SCHEMA), KAFKA_SCHEMA)


def imported(source: LogDir, topic: str, *, clock: Callable[[], int]) -> LogDir:
    """An object root with the segments of a partition of a file root as they are, those that were cleaned marked."""
    log_dir = create_log_dir(memory_root(), clock=clock)
    described = source.topic(topic)
    log_dir.create_topic(topic, partitions=1, configs=dict(described.configs))
    root, directory = log_dir.root.native(), Path(source.path) / f"{topic}-0"
    assert isinstance(root, ObjectRoot)
    state = source.root.native().store.image.partition(topic, 0).state
    checkpoint = read_offset_checkpoint(Path(source.path) / CLEANER_OFFSET_CHECKPOINT)
    clean_below = checkpoint.get(TopicPartition(topic, 0), 0)
    of = TopicIdPartition(topic, root.store.image.topic(topic).topic_id, 0)
    epochs = LeaderEpochCheckpoint.open(directory / "leader-epoch-checkpoint").entries
    bases = list_base_offsets(directory)
    bases = [each for each in bases if each < state.log_end_offset]
    put = [
        put_segment(
            root.objects,
            of,
            directory,
            base,
            end,
            epochs=epochs,
            segment_id=new_segment_id(root.store.image.next_offset),
            now_ms=clock(),
            is_cleaned=end <= clean_below,
        )
        for base, end in zip(bases, [*bases[1:], state.log_end_offset], strict=True)
    ]

    def build(image: MetadataImage) -> list[MetadataRecord]:
        record = SegmentObjectsRecord(topic_id=of.topic_id, planned_at=image.next_offset, segments=tuple(put))
        return [partition_state_record(of.topic_id, 0, state), record]

    root.store.commit(build, operation="import")
    return log_dir
