"""A real broker's directory with its remote storage: records and offsets are those that its clients got."""

from __future__ import annotations

from typing import Any

import pytest
from builders.tiered_fixtures import ALL, COLUMNS, ISOLATIONS, TieredFixture, rows_of

from pyspark_kafkalog import LogDir

CASES = [(fixture, topic) for fixture in ALL for topic in fixture.topics()]
PARTITIONS = [(fixture, topic, each) for fixture in ALL for topic, each in fixture.partitions()]


def name_of(value: object) -> str:
    if isinstance(value, TieredFixture):
        return value.name
    return str(value["partition"]) if isinstance(value, dict) else str(value)


def opened(fixture: TieredFixture) -> LogDir:
    return LogDir.open(fixture.log_dir, remote_storage=fixture.remote, read_to_log_end=fixture.is_killed)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(("fixture", "topic"), CASES, ids=name_of)
def test_records_are_those_of_the_consumer(fixture: TieredFixture, topic: str, isolation: Any) -> None:
    table = opened(fixture).read(topic, isolation=isolation, columns=COLUMNS)
    assert rows_of(table) == fixture.rows(topic, isolation)


@pytest.mark.parametrize(("fixture", "topic", "expected"), PARTITIONS, ids=name_of)
def test_offsets_are_those_of_the_broker(fixture: TieredFixture, topic: str, expected: dict[str, Any]) -> None:
    found = opened(fixture).partition(topic, expected["partition"])
    assert (found.log_start_offset, found.local_log_start_offset) == (expected["earliest"], expected["earliest_local"])
    assert (found.high_watermark, found.last_stable_offset) == (expected["latest"], expected["last_stable"])
    assert found.latest_tiered_offset == expected["latest_tiered"]
    assert found.readable_start_offset == found.log_start_offset
    assert found.remote_offsets_count == 0


@pytest.mark.parametrize(("fixture", "topic", "expected"), PARTITIONS, ids=name_of)
def test_offsets_by_time_are_those_of_the_broker(fixture: TieredFixture, topic: str, expected: dict[str, Any]) -> None:
    log_dir = opened(fixture)
    found = log_dir.partition(topic, expected["partition"])
    reader = log_dir.reader(topic, expected["partition"])
    for case in expected["by_time"]:
        for isolation in ISOLATIONS:
            wanted = case[isolation]
            record = reader.offset_for_timestamp(case["target"], found.log_start_offset, found.readable_end(isolation))
            answer = (-1, -1, None) if record is None else (record.offset, record.timestamp_ms, record.leader_epoch)
            assert answer == (wanted["offset"], wanted["timestamp"], wanted["leaderEpoch"]), case["target"]


@pytest.mark.parametrize("fixture", ALL, ids=name_of)
def test_every_range_across_the_seam_returns_its_records(fixture: TieredFixture) -> None:
    log_dir = opened(fixture)
    for topic in fixture.topics():
        rows = fixture.rows(topic, "read_uncommitted")
        for found in log_dir.topic(topic).partitions:
            own = [row for row in rows if row[0] == found.partition]
            for start in range(found.log_start_offset, found.high_watermark, 97):
                for end in {start + 1, found.local_log_start_offset, found.local_log_start_offset + 1, start + 300}:
                    if start < end <= found.high_watermark:
                        table = log_dir.read(topic, partition=found.partition, start_offset=start, end_offset=end)
                        assert rows_of(table) == [row for row in own if start <= row[1] < end], (topic, start, end)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("fixture", ALL, ids=name_of)
def test_remote_storage_alone_has_the_records_of_all_whole_copies(fixture: TieredFixture, isolation: Any) -> None:
    log_dir = LogDir.open(None, remote_storage=fixture.remote)
    tiered = {topic for topic, each in fixture.partitions() if each["latest_tiered"] >= 0}
    assert set(log_dir.topics()) == tiered
    for topic in log_dir.topics():
        assert log_dir.topic(topic).topic_id == fixture.topic_id(topic)
        rows = fixture.rows(topic, isolation)
        for found in log_dir.topic(topic).partitions:
            expected = next(
                each for name, each in fixture.partitions() if (name, each["partition"]) == (topic, found.partition)
            )
            assert found.high_watermark >= expected["latest_tiered"] + 1
            assert found.log_start_offset <= expected["earliest"]
            table = log_dir.read(topic, partition=found.partition, isolation=isolation, columns=COLUMNS)
            own = [row for row in rows_of(table) if row[1] >= expected["earliest"]]
            end = found.readable_end(isolation)
            assert own == [row for row in rows if row[0] == found.partition and row[1] < end]
