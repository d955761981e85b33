"""The runs that a leader's batches become in an object store: one for each leader epoch; and an object with them."""

from __future__ import annotations

import uuid
from typing import Final

import numpy as np

from pyspark_kafkalog.metadata.extents import RunPlace
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.root.commit.staged_batches import StagedBatches
from pyspark_kafkalog.root.objects.producers import rows_of
from pyspark_kafkalog.storage.log.follower import FETCH_RESPONSE, FollowerBatches
from pyspark_kafkalog.storage.log.leader_append import LeaderBatches
from pyspark_kafkalog.storage.log.producers import producer_batches
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import encode_rows
from pyspark_kafkalog.storage.objects.upload import NewRun, UploadTask, WrittenObject, compose_body
from pyspark_kafkalog.units import INT32_MAX

_TASK: Final = 0


def runs_of(
    topic_id: str, partition: int, first_offset: int, batches: FollowerBatches
) -> list[tuple[NewRun, int, int]]:
    """The runs of the batches from `first_offset` of the log on, each with its leader epoch and its end offset."""
    table = batches.batches
    runs: list[tuple[NewRun, int, int]] = []
    first = 0
    while first < len(table):
        is_other = table["leader_epoch"][first:] != table["leader_epoch"][first]
        is_other |= table["last_offset"][first:] - first_offset >= INT32_MAX
        is_other |= np.cumsum(table["size_bytes"][first:], dtype=np.int64) > INT32_MAX
        is_other[0] = False
        count = int(np.argmax(is_other)) if is_other.any() else len(is_other)
        rows = table[first : first + count].copy()
        start = int(rows["position"][0])
        end = int(rows["position"][-1] + rows["size_bytes"][-1])
        rows["position"] -= start
        run = NewRun(topic_id, partition, first_offset, [LeaderBatches(batches.data[start:end], rows)])
        first_offset = int(rows["last_offset"][-1]) + 1
        runs.append((run, int(rows["leader_epoch"][0]), first_offset))
        first += count
    return runs


def stage_batches(
    store: ObjectStore,
    topic_id: str,
    of: TopicPartition,
    first_offset: int,
    batches: FollowerBatches,
    *,
    planned_at: int,
) -> StagedBatches:
    """Put checked `batches` (one or more) into `store`, to be appended to a log that ends at `first_offset`.

    `planned_at` is the end of the metadata log when this was planned: see metadata/image.StagingHorizon. Each call puts
    another object. Raises InvalidRecordError for a gap that no run can have, ObjectStoreError.
    """
    rows = rows_of(producer_batches(batches.data, batches.batches, data_position=0, file=FETCH_RESPONSE))
    runs = runs_of(topic_id, of.partition, first_offset, batches)
    places: list[RunPlace] = []
    for run, epoch, end_offset in runs:
        own = rows[(rows["base_offset"] >= run.first_offset) & (rows["base_offset"] < end_offset)]
        places.append(RunPlace(encode_rows(own), epoch))
    body, made = compose_body([run for run, _, _ in runs])
    write_id = uuid.uuid4().hex
    key = UploadTask(write_id, _TASK, planned_at).key(0)
    store.put(key, body)
    written = WrittenObject(write_id, key, len(body), planned_at, frozenset({of.topic}), made)
    return StagedBatches(written, tuple(places), first_offset)
