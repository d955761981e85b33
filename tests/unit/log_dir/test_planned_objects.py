"""What a task on an object root notices of commits that were made after its read was planned."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest
from faulty_store import FaultyStore
from root_places import forget, memory_root

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.objects.boundary import (
    MIN_RETENTION_MS,
    READER_TRUST_S,
    START_KEY,
    encode_start,
    has_commits_from,
)
from pyspark_kafkalog.metadata.objects.layout import commit_key
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.root.bootstrap import create_object_root
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
        (0, (0, 0, 1), {"head": 3, "get": 1}),
        (READER_TRUST_S - 5, (1,), {"head": 1}),
        (6, (1,), {"head": 1}),
        (READER_TRUST_S + 1, (1,), {"head": 1, "get": 1}),
        (0, (0,), {"head": 1, "get": 1}),  # the log could have been seen to end at 1, and begin there since
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
