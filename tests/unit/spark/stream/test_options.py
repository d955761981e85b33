"""Options of a streaming read: which are refused, and which differ from a batch read."""

from __future__ import annotations

import logging
import pickle

import pytest

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.spark.options.parse import parse_load_options, parse_read_options, parse_stream_read_options
from pyspark_kafkalog.spark.options.positions import Earliest, GlobalTimestamp, Latest, SpecificOffsets
from pyspark_kafkalog.spark.options.table import OPTIONS
from pyspark_kafkalog.storage.names import TopicPartition

PATH = {"path": "/data/log"}


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parse_stream_read_options(PATH)
    assert options.starting == Latest()
    assert options.fail_on_data_loss
    assert (options.max_offsets_per_trigger, options.max_bytes_per_trigger) == (None, None)
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (None, 15 * 60_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("earliest", Earliest()), ("latest", Latest()), ('{"a":{"0":-1}}', SpecificOffsets({TopicPartition("a", 0): -1}))],
)
def test_stream_may_start_at_any_offsets(text: str, expected: object) -> None:
    assert parse_stream_read_options({**PATH, "startingOffsets": text}).starting == expected


def test_timestamp_precedes_offsets() -> None:
    options = parse_stream_read_options({**PATH, "startingOffsets": "earliest", "startingTimestamp": "5"})
    assert options.starting == GlobalTimestamp(5)


@pytest.mark.parametrize(
    ("name", "text"),
    [("endingOffsets", "latest"), ("endingTimestamp", "5"), ("endingOffsetsByTimestamp", '{"a":{"0":5}}')],
)
def test_ending_option_is_refused_and_available_now_trigger_named(name: str, text: str) -> None:
    with pytest.raises(InvalidOptionError, match=rf"option {name} is not valid in a streaming read.*availableNow=True"):
        parse_stream_read_options({**PATH, name: text})


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("250", 250), ("250ms", 250), ("10s", 10_000), (" 2M ", 120_000), ("3min", 180_000), ("1h", 3_600_000)],
)
def test_trigger_delays_with_units_are_parsed(text: str, expected_ms: int) -> None:
    assert parse_stream_read_options({**PATH, "maxTriggerDelay": text}).max_trigger_delay_ms == expected_ms


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("maxTriggerDelay", "soon"),
        ("maxTriggerDelay", "-1s"),
        ("maxTriggerDelay", "1y"),
        ("maxOffsetsPerTrigger", "0"),
        ("minOffsetsPerTrigger", "x"),
        ("maxBytesPerTrigger", "-1k"),
        ("failOnDataLoss", "maybe"),
    ],
)
def test_invalid_values_are_refused_with_name_of_option(name: str, text: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"option {name} has the bad value"):
        parse_stream_read_options({**PATH, name: text})


def test_minimum_above_maximum_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"minOffsetsPerTrigger \(5\) is greater than maxOffsetsPerTrigger"):
        parse_stream_read_options({**PATH, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"})


def test_unknown_option_is_refused_with_stream_options_only() -> None:
    with pytest.raises(InvalidOptionError) as caught:
        parse_stream_read_options({**PATH, "maxOffsetPerTrigger": "5"})
    for option in (each for each in OPTIONS if not each.name.startswith("store")):
        assert (f" {option.name}," in f"{caught.value},".replace(";", ",")) == ("stream" in option.applies_to), option


def test_stream_limits_in_batch_read_are_ignored_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_read_options({**PATH, "maxOffsetsPerTrigger": "5"}) == parse_read_options(PATH)
    assert "maxOffsetsPerTrigger" in caplog.text


def test_load_accepts_options_of_batch_and_stream() -> None:
    assert parse_load_options({**PATH, "startingOffsets": "latest", "includeHeaders": "true"}).include_headers
    assert not parse_load_options({**PATH, "endingOffsets": "latest"}).include_headers
    with pytest.raises(InvalidOptionError, match="unknown option"):
        parse_load_options({**PATH, "startingOffset": "latest"})


def test_options_can_be_pickled() -> None:
    options = parse_stream_read_options({**PATH, "assign": '{"a":[1]}', "maxBytesPerTrigger": "1m"})
    assert pickle.loads(pickle.dumps(options)) == options
