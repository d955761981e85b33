"""Offset, partition and timestamp JSON: the forms of Spark's Kafka source, and which texts are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.spark.options.positions import (
    Earliest,
    Latest,
    SpecificOffsets,
    parse_offset_spec,
    parse_partition_timestamps,
    parse_partitions,
    parse_timestamp,
)
from pyspark_kafkalog.storage.names import TopicPartition

PARTITIONS = st.builds(
    TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)
)


@pytest.mark.parametrize("text", ["earliest", " Earliest ", "EARLIEST"])
def test_earliest_is_parsed_in_any_case(text: str) -> None:
    assert parse_offset_spec(text) == Earliest()


def test_latest_is_parsed_in_any_case() -> None:
    assert parse_offset_spec("Latest") == Latest()


def test_offsets_of_several_topics_are_parsed() -> None:
    assert parse_offset_spec('{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}') == SpecificOffsets(
        {TopicPartition("topicA", 0): 23, TopicPartition("topicA", 1): -1, TopicPartition("topicB", 0): -2}
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "23",
        "[1]",
        "null",
        '{"a":1}',
        '{"a":[0]}',
        '{"a":{"x":1}}',
        '{"a":{"0":"1"}}',
        '{"a":{"0":1.5}}',
        '{"a":{"0":true}}',
        '{"a":{"0":-3}}',
        '{"a":{"-1":3}}',
        '{"a":{"2147483648":3}}',
        '{"a":{"0":9223372036854775808}}',
        '{"a":{"0":1,"0":2}}',
        '{"a":{"0":1,"00":2}}',
        '{"a":{"0":1},"a":{"1":2}}',
        '{"a":{"0":1}',
        "[" * 100_000,
    ],
)
def test_invalid_offsets_are_refused_with_expected_form(text: str) -> None:
    with pytest.raises(ValueError, match="expected earliest, latest, or JSON as"):
        parse_offset_spec(text)


@pytest.mark.slow
@given(st.dictionaries(PARTITIONS, st.integers(-2, 2**63 - 1), min_size=1))
def test_offsets_round_trip_through_json(offsets: dict[TopicPartition, int]) -> None:
    by_topic: dict[str, dict[str, int]] = {}
    for each, offset in offsets.items():
        by_topic.setdefault(each.topic, {})[str(each.partition)] = offset
    assert parse_offset_spec(json.dumps(by_topic)) == SpecificOffsets(offsets)


@given(st.sets(PARTITIONS, min_size=1))
def test_partitions_round_trip_through_json(partitions: set[TopicPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for each in partitions:
        by_topic.setdefault(each.topic, []).append(each.partition)
    assert set(parse_partitions(json.dumps(by_topic))) == partitions


@pytest.mark.parametrize(
    "text", ["{}", '{"a":[]}', '{"a":0}', '{"a":["x"]}', '{"a":["0"]}', '{"a":[-1]}', "a", '{"a":[true]}']
)
def test_invalid_partitions_are_refused_with_expected_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected JSON as \{\"topicA\":\[0,1\]"):
        parse_partitions(text)


def test_timestamps_are_parsed_globally_and_by_partition() -> None:
    assert parse_timestamp(" 1700000000000 ").timestamp_ms == 1700000000000
    by_partition = parse_partition_timestamps('{"a":{"3":5}}')
    assert by_partition.timestamps_ms == {TopicPartition("a", 3): 5}


@pytest.mark.parametrize("text", ["", "now", "-1", "1.5", "9223372036854775808"])
def test_invalid_timestamps_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="milliseconds since 1970"):
        parse_timestamp(text)


def test_negative_partition_timestamps_are_refused() -> None:
    with pytest.raises(ValueError, match="milliseconds since 1970"):
        parse_partition_timestamps('{"a":{"0":-1}}')
