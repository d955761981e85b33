"""What a task on an object root notices of commits that were made after its read was planned."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from builders.root_places import client_address, forget, memory_root, store_of
from fakes.faulty_store import FaultyStore, MemoryBucket

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.objects.log import (
    MIN_RETENTION_MS,
    READER_TRUST_S,
    START_KEY,
    commit_key,
    encode_start,
    has_commits_from,
    parse_commit_key,
)
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.root import object_log as object_extents
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_root import PlannedRoot, create_object_root
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition


def test_commit_after_a_plan_is_noticed_also_when_it_was_removed_again() -> None:
    store = FaultyStore()
    clock = store.bucket.clock
    later = partial(has_commits_from, store, clock=clock.now_ms, monotonic=clock.monotonic)
    metadata = create_object_root(store)
    assert metadata.identity is not None
    end = metadata.image.next_offset
    assert not later(end)
    assert later(0)
    store.delete([commit_key(0)])
    clock.advance(MIN_RETENTION_MS)  # nothing is removed sooner
    store.put(START_KEY, encode_start(end + 1, metadata.identity.directory_id or ""))
    assert later(0)
    assert later(end)


def test_boundary_is_read_once_for_plans_at_end_of_log() -> None:
    store = FaultyStore()
    clock = store.bucket.clock
    metadata = create_object_root(store)
    for seconds, versions, expected in (
        (0, (0, 0, 1), {"get_range": 3, "get": 1}),
        (READER_TRUST_S - 5, (1,), {"get_range": 1}),
        (6, (1,), {"get_range": 1}),
        (READER_TRUST_S + 1, (1,), {"get_range": 1, "get": 1}),
        (0, (0,), {"get_range": 1, "get": 1}),  # the log could have been seen to end at 1, and begin there since
    ):
        clock.advance(int(seconds * 1000))
        store.requests.clear()
        for each in versions:
            end = metadata.image.next_offset + each
            assert not has_commits_from(store, end, clock=clock.now_ms, monotonic=clock.monotonic)
        assert dict(store.requests) == expected


def test_boundary_that_cannot_be_read_counts_as_a_later_commit() -> None:
    store = FaultyStore()
    metadata = create_object_root(store)
    store.put(START_KEY, b"garbage")
    assert has_commits_from(store, metadata.image.next_offset)
    store.delete([START_KEY])
    assert has_commits_from(store, metadata.image.next_offset)


def test_topic_recreated_since_plan_is_another_one_also_when_its_objects_are_gone() -> None:
    store = FaultyStore()
    url = memory_root(store)
    log_dir = LogDir.open_or_create(url)
    log_dir.create_topic("t", partitions=1)
    log_dir.append("t", pa.table({"value": ["x" * 1000] * 1000}))
    planned = log_dir.root.planned_partition(TopicPartition("t", 0), log_dir.topic("t").topic_id)
    log_dir.delete_topic("t")
    log_dir.create_topic("t", partitions=1)
    log_dir.append("t", pa.table({"value": ["another topic's"] * 2000}))
    store.delete([each.key for each in store.list_objects("data")])
    with pytest.raises(FileNotFoundError, match="deleted meanwhile"):
        list(LogReader(planned.extents(), planned.topic_partition).read(0, 1000, schema=KAFKA_SCHEMA))
    assert not planned.is_same_topic()
    forget(url)


def small_writes(count: int) -> LogDir:
    log_dir = LogDir.create(memory_root())
    log_dir.create_topic("t", partitions=2)
    for number in range(count):
        log_dir.append("t", pa.table({"value": [f"{number}"]}), partition=number % 2)
    return log_dir


def planned_read(log_dir: LogDir, partition: int, store: FaultyStore) -> list[bytes]:
    """What a task of its own process reads of a partition, by a plan of `log_dir`."""
    topic_partition = TopicPartition("t", partition)
    planned = log_dir.root.planned_partition(topic_partition, log_dir.topic("t").topic_id)
    end = log_dir.topic("t").partitions[partition].high_watermark
    root = pickle.loads(pickle.dumps(planned)).root
    part = replace(planned, root=PlannedRoot(client_address(str(log_dir.path), store), root.identity, root.version))
    assert part.is_same_topic()
    assert part.moved_log_start() == 0
    object_extents._caches.cache_clear()
    batches = list(LogReader(part.extents(), topic_partition).read(0, end, schema=KAFKA_SCHEMA))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.slow
def test_task_reads_many_small_writes_with_few_requests_and_opens_no_root() -> None:
    log_dir = small_writes(300)
    store = FaultyStore(store_of(str(log_dir.path)).bucket)
    assert planned_read(log_dir, 1, store) == [b"%d" % number for number in range(1, 300, 2)]
    assert store.requests["get_range"] == 1
    assert store.requests.total() <= 2 + 10
    assert not [call for call in store.calls if call.kind == "list" or "meta.properties" in call.keys[0]]


def test_task_reads_small_writes_whose_later_commits_are_gone_one_by_one() -> None:
    """The object of the last commit of a group would have held the others."""
    log_dir = small_writes(20)
    bucket = MemoryBucket()
    bucket.objects.update(store_of(str(log_dir.path)).bucket.objects)
    last = max(filter(None, map(parse_commit_key, bucket.objects)))
    del bucket.objects[commit_key(last)]
    store = FaultyStore(bucket)
    log_dir.append("t", pa.table({"value": ["a later commit"]}), partition=1)
    topic_partition = TopicPartition("t", 0)
    log = ObjectLog.of(log_dir.root.native().store.image, topic_partition)
    object_extents._caches.cache_clear()
    reader = LogReader(log.extents(store, lambda: log), topic_partition)
    values = [each for batch in reader.read(0, 10, schema=KAFKA_SCHEMA) for each in batch.column("value").to_pylist()]
    assert values == [b"%d" % number for number in range(0, 20, 2)]
