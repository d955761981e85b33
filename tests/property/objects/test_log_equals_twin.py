"""A log in an object store is read as a local log with the same batches, whatever the writes, objects and ranges."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
from builders.data_objects import T0, TOPIC_IDS, WRITE_ID, Plan, some_batches, stage
from builders.object_roots import ObjectRootModel
from fakes.faulty_store import FaultyStore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects import run_source
from pyspark_kafkalog.storage.objects import upload as upload_module
from pyspark_kafkalog.storage.objects.upload import UploadTask, upload

PARTITIONS = (TopicPartition("orders", 0), TopicPartition("orders", 1))


def table(reader: LogReader, start: int, end: int, **options: int) -> pa.Table:
    return pa.Table.from_batches(reader.read(start, end, schema=KAFKA_SCHEMA, **options), KAFKA_SCHEMA)


def write(model: ObjectRootModel, rng: random.Random, scratch: Path, number: int) -> None:
    """A write of some tasks, each of some partitions, with large and small objects, perhaps inline."""
    inline_bytes = rng.choice([0, 2000])
    objects, plans, inline_plans = [], [], []
    for task in range(rng.randint(1, 3)):
        own = [Plan(each, some_batches(rng, rng.randint(0, 6)), rng.choice([0, 40])) for each in PARTITIONS]
        directory = scratch / f"{number}-{task}"
        staged = [each for plan in own for each in stage(directory, plan, task=task)]
        upload_task = UploadTask(WRITE_ID + str(number), task, model.image.next_offset)
        made = upload(model.store, upload_task, staged, TOPIC_IDS, directory=directory, inline_bytes=inline_bytes)
        objects += made
        (inline_plans if made and made[0].inline_data is not None else plans).extend(own)
    inline_bytes = rng.choice([0, 1000, 100_000])
    model.commit_write(objects, [*plans, *inline_plans], inline_bytes=inline_bytes)


def ranges(rng: random.Random, end: int) -> Iterator[tuple[int, int]]:
    yield 0, end
    for _ in range(4):
        start = rng.randint(0, end)
        yield start, rng.randint(start, end)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    writes=st.integers(1, 8),
    object_bytes=st.sampled_from([200, 1000, 1 << 20]),
    piece_bytes=st.sampled_from([1, 300, 1000, 1 << 20]),
    group_bytes=st.sampled_from([1, 1000, 1 << 28]),
)
def test_reads_look_ups_and_splits_equal_those_of_local_log(
    seed: int, writes: int, object_bytes: int, piece_bytes: int, group_bytes: int
) -> None:
    rng = random.Random(seed)
    scratch = Path(tempfile.mkdtemp())
    with (
        mock.patch.object(upload_module, "OBJECT_BYTES", object_bytes),
        mock.patch.object(run_source, "PIECE_BYTES", piece_bytes),
        mock.patch.object(run_source, "GROUP_BYTES", group_bytes),
    ):
        try:
            model = ObjectRootModel(FaultyStore())
            for number in range(writes):
                write(model, rng, scratch, number)
                if rng.random() < 0.3:
                    model.new_leader_epoch(PARTITIONS[0])
            for partition in PARTITIONS:
                twin = LogReader(LocalExtents(model.logs[partition].write_twin(scratch / "twin")), partition)
                compare(model.reader(partition), twin, rng, model.logs[partition].end_offset)
        finally:
            shutil.rmtree(scratch)


def compare(reader: LogReader, twin: LogReader, rng: random.Random, end: int) -> None:
    for start, stop in ranges(rng, end):
        assert table(reader, start, stop).equals(table(twin, start, stop))
        since = T0 + rng.randrange(10_000)
        assert table(reader, start, stop, min_timestamp_ms=since).equals(
            table(twin, start, stop, min_timestamp_ms=since)
        )
        assert reader.offset_for_timestamp(since, start, stop) == twin.offset_for_timestamp(since, start, stop)
        splits = reader.split(start, stop, rng.choice([1, 100, 5000]))
        assert [each.start_offset for each in splits[1:]] == [each.end_offset for each in splits[:-1]]
        if start < stop:
            assert (splits[0].start_offset, splits[-1].end_offset) == (start, stop)
    if end:
        assert reader.offset_of_max_timestamp(0, end) == twin.offset_of_max_timestamp(0, end)
