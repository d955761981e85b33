"""The records of `__remote_log_metadata` that this package writes, beside those that a real broker wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.tiered_fixtures import ALL, TieredFixture

from pyspark_kafkalog.metadata.messages.internal_records import REMOTE_LOG_RECORDS, RemoteLogRecord
from pyspark_kafkalog.metadata.messages.records import decode_framed
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.root.brokers.remote_logs import read_remote_log_metadata
from pyspark_kafkalog.tiered.remote_log_metadata import copied_records, metadata_partition
from pyspark_kafkalog.tiered.segments import TopicIdPartition

TYPES = dict(enumerate(REMOTE_LOG_RECORDS))


def partition_of(fixture: TieredFixture, topic_partition: str) -> TopicIdPartition:
    topic, _, number = topic_partition.rpartition("-")
    return TopicIdPartition(topic, fixture.topic_id(topic), int(number))


def stored_values(log: Path) -> list[bytes]:
    data, at, values = log.read_bytes(), 0, []
    while at < len(data):
        batch = decode_batch(data, at, file=str(log), file_position=at)
        at += batch.header.size_bytes
        if not batch.header.is_control:
            values += [each.value for each in batch.records if each.value is not None]
    return values


def decoded(value: bytes) -> RemoteLogRecord:
    return decode_framed(value, TYPES, kind="remote log metadata", file="value", file_position=0)


@pytest.mark.parametrize("fixture", ALL, ids=lambda fixture: fixture.name)
def test_partition_of_the_topic_is_the_one_that_the_broker_chose(fixture: TieredFixture) -> None:
    chosen = fixture.manifest()["remote_log_metadata"]["partition_of"]
    known = {name: number for name, number in chosen.items() if name.rpartition("-")[0] in fixture.manifest()["topics"]}
    assert len(known) > 3
    assert {name: metadata_partition(partition_of(fixture, name), 3) for name in known} == known


def test_records_of_a_copy_are_those_that_the_broker_wrote() -> None:
    fixture = ALL[0]
    written = [
        value
        for number in range(3)
        for value in stored_values(fixture.log_dir / f"__remote_log_metadata-{number}" / f"{0:020d}.log")
    ]
    times = {value: getattr(decoded(value), "event_timestamp_ms", 0) for value in written}
    compared = 0
    known = read_remote_log_metadata([fixture.log_dir]).partitions
    for name in ("tiered-0", "tiered-1", "tiered-2"):
        of = partition_of(fixture, name)
        for segment in known[of.key].segments.values():
            for place in range(2):
                own = {
                    copied_records(of, segment, broker_id=1, now_ms=time_ms)[place]: time_ms
                    for time_ms in set(times.values())
                }
                assert own.keys() & set(written), segment
                compared += 1
    assert compared > 20
