"""Options: precedence and errors of Spark's Kafka source and sink, and invalid options named."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.spark.data_source import KafkalogDataSource
from pyspark_kafkalog.spark.options.parse import locate, parse_read_options, parse_write_options
from pyspark_kafkalog.spark.options.positions import (
    AllTopics,
    Assign,
    Earliest,
    GlobalTimestamp,
    Latest,
    SpecificOffsets,
    SpecificTimestamps,
    Subscribe,
    SubscribePattern,
)
from pyspark_kafkalog.spark.options.table import IGNORED_OPTIONS, OPTIONS
from pyspark_kafkalog.storage.names import TopicPartition

PATH = {"path": "/logs"}
A0 = TopicPartition("a", 0)


def test_read_options_have_documented_defaults() -> None:
    options = parse_read_options(PATH)
    assert options.path == "/logs"
    assert options.subscription == AllTopics()
    assert (options.starting, options.ending) == (Earliest(), Latest())
    assert options.on_no_match == "error"
    assert options.min_partitions is None
    assert options.max_records_per_partition is None
    assert options.max_bytes_per_partition == 128 << 20
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.committed


def test_write_options_have_documented_defaults() -> None:
    options = parse_write_options(PATH)
    assert (options.topic, options.compression_type, options.partitioner) == (None, None, "murmur2")
    assert options.batch_size_bytes == 262144


def test_option_names_are_accepted_in_any_case() -> None:
    options = parse_read_options({"PATH": "/logs", "SUBSCRIBEPATTERN": "a.*", "failondataloss": "FALSE"})
    assert options.subscription == SubscribePattern("a.*")
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "subscription"),
    [
        ({"subscribe": "a, b,,a"}, Subscribe(("a", "b"))),
        ({"subscribePattern": " a|b "}, SubscribePattern("a|b")),
        ({"assign": '{"a":[0]}'}, Assign((A0,))),
    ],
)
def test_subscription_options_are_parsed(given: dict[str, str], subscription: object) -> None:
    assert parse_read_options({**PATH, **given}).subscription == subscription


def test_two_subscriptions_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="only one of the options subscribe, subscribePattern, assign"):
        parse_read_options({**PATH, "subscribe": "a", "assign": '{"a":[0]}'})


def test_timestamp_precedes_timestamps_by_partition_and_offsets() -> None:
    given = {**PATH, "startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":9}}'}
    assert parse_read_options(given).starting == SpecificOffsets({A0: 5})
    given |= {"startingOffsetsByTimestamp": '{"a":{"0":50}}', "endingOffsetsByTimestamp": '{"a":{"0":90}}'}
    assert parse_read_options(given).starting == SpecificTimestamps({A0: 50})
    assert parse_read_options(given).ending == SpecificTimestamps({A0: 90})
    given |= {"startingTimestamp": "500", "endingTimestamp": "900"}
    assert parse_read_options(given).starting == GlobalTimestamp(500)
    assert parse_read_options(given).ending == GlobalTimestamp(900)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, r"startingOffsets for a-0 cannot be latest \(-1\)"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, r"endingOffsets for a-0 cannot be earliest \(-2\)"),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'},
            "a-0: startingOffsets 5 is greater than endingOffsets 4",
        ),
        (
            {"startingOffsetsByTimestamp": '{"a":{"0":5}}', "endingOffsetsByTimestamp": '{"a":{"0":4}}'},
            "a-0: startingOffsetsByTimestamp 5 is greater than endingOffsetsByTimestamp 4",
        ),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"1":9}}'},
            "must name the same partitions. Starting: a-0. Ending: a-1",
        ),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "startingTimestamp 5 is greater than endingTimestamp 4"),
    ],
)
def test_contradictory_starts_and_ends_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        parse_read_options({**PATH, **given})


def test_ends_resolved_later_are_not_compared() -> None:
    given = {**PATH, "startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":-1}}'}
    assert parse_read_options(given).ending == SpecificOffsets({A0: -1})


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("minPartitions", "0", "whole number from 1"),
        ("minPartitions", "two", "whole number from 1"),
        ("maxRecordsPerPartition", "-5", "whole number from 1"),
        ("maxBytesPerPartition", "0", "a size from 1"),
        ("maxBytesPerPartition", "12x", "a size from 1"),
        ("failOnDataLoss", "yes", "true or false"),
        ("failOnDataLoss", "flase", r"did you mean 'false'\? expected true or false"),
        ("startingOffsets", "erliest", r"did you mean 'earliest'\? expected earliest, group"),
        ("includeHeaders", "", "true or false"),
        ("isolationLevel", "committed", "read_uncommitted, read_committed"),
        ("startingOffsetsByTimestampStrategy", "earliest", "error or latest"),
        ("startingOffsets", "beginning", "earliest, group, or JSON .*-2 for earliest; in streaming reads also latest"),
        ("endingOffsets", "end", "latest, or JSON .*and -1 for latest"),
        ("endingOffsets", '{"a":{"0":-3}}', "latest, or JSON .*; a-0 has -3"),
        ("startingTimestamp", "now", "milliseconds"),
        ("subscribe", " , ", "topic names"),
        ("subscribePattern", "(", "regular expression"),
        ("assign", "a", "JSON as"),
        ("compression.type", "brotli", "none, gzip, snappy, lz4, zstd"),
        ("batch.size", "65m", "a size from 1"),
        ("partitioner", "sticky", "murmur2, round_robin"),
        ("topic", "a/b", "character other than"),
        ("path", " ", "empty"),
    ],
)
def test_invalid_value_is_refused_with_allowed_values(name: str, text: str, expected: str) -> None:
    with pytest.raises(
        InvalidOptionError, match=re.escape(f"option {name} has the bad value {text!r}: ") + ".*" + expected
    ):
        parse_read_options({**PATH, name: text})


@pytest.mark.parametrize("name", ["subscribes", "kafka.enable.metrics", "starting"])
def test_unknown_option_is_refused_with_all_allowed_options(name: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        parse_read_options({**PATH, name: "1"})
    message = str(caught.value)
    assert f"unknown option {name!r}" in message
    for option in OPTIONS:
        is_listed = option.applies_to != ("write",) and not option.name.startswith("store")
        assert (f" {option.name}" in message) == is_listed or option.name == "topic"
    assert message.endswith("maxTriggerDelay")
    assert "store… of an object store" in message


def test_options_similar_to_misspelt_one_are_named_first() -> None:
    with pytest.raises(
        InvalidOptionError, match=r"^unknown option 'startingoffset' of kafkalog: did you mean startingOffsets or .*\?"
    ):
        parse_read_options({**PATH, "startingoffset": "earliest"})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("kafka.partitioner.class", "the option partitioner with round_robin .* a column partition"),
        ("kafka.partitioner.ignore.keys", "the option partitioner with round_robin"),
        ("kafka.key.serializer", "CAST the column to STRING or BINARY"),
        ("kafka.transactional.id", "give txnAppId and txnVersion"),
        ("kafka.value.deserializer", r"CAST\(value AS STRING\)"),
        ("kafka.enable.auto.commit", "with kafka.group.id it commits its progress"),
        ("Kafka.Interceptor.Classes", "use expressions"),
    ],
)
def test_unsupported_client_setting_is_refused_with_replacement(name: str, advice: str) -> None:
    for parse in (parse_read_options, parse_write_options):
        with pytest.raises(InvalidOptionError, match=rf"option {re.escape(name)} has no counterpart .*{advice}"):
            parse({**PATH, name: "x"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"},
            r"minOffsetsPerTrigger \(10\) is greater than maxOffsetsPerTrigger \(5\)",
        ),
        ({"commitOffsets": "true"}, "commitOffsets needs the option kafka.group.id"),
        ({"path": "hdfs://host/log"}, "expected a path on a file system"),
        ({"subscribe": "a", "path": "a-0"}, "option path names the partition directory of a-0"),
    ],
)
def test_options_invalid_for_batch_and_stream_are_refused_by_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], message: str
) -> None:
    (tmp_path / "a-0").mkdir()
    (tmp_path / "a-0" / f"{0:020d}.log").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOptionError, match=message):
        KafkalogDataSource({**PATH, **given}).schema()


def test_unknown_write_option_is_refused_with_allowed_options() -> None:
    with pytest.raises(InvalidOptionError, match=r"unknown option 'acks'.*options of a write: path, topic, compr"):
        parse_write_options({**PATH, "acks": "all"})


def test_paths_of_load_are_one_path_with_commas() -> None:
    assert parse_read_options({"paths": '["a","b,c"]'}).path == "a,b,c"


@pytest.mark.parametrize("text", ["", "a,b", "[]", '{"a": 1}', "[1]", '[" "]'])
def test_paths_that_are_no_list_are_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"option paths has the bad value .* expected a JSON list of paths"):
        parse_read_options({"paths": text})


def test_missing_path_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="option path is missing"):
        parse_read_options({"subscribe": "a"})
    with pytest.raises(InvalidOptionError, match="table of the catalog"):
        parse_write_options({})


@pytest.mark.parametrize(
    "name",
    [
        "kafka.bootstrap.servers",
        "kafka.group.instance.id",
        "kafka.SASL.mechanism",
        "fetchOffset.numRetries",
        "kafka.acks",
    ],
)
def test_client_settings_are_accepted_without_effect(name: str) -> None:
    assert parse_read_options({**PATH, name: "x"}) == parse_read_options(PATH)


def test_options_for_other_direction_are_accepted_as_tables_have_both() -> None:
    both = {**PATH, "subscribe": "a", "topic": "a", "compression.type": "zstd"}
    assert parse_read_options(both).subscription == Subscribe(("a",))
    assert parse_write_options(both).compression_type == "zstd"


def test_read_with_topic_and_no_subscription_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"option topic is for writing; .* subscribe"):
        parse_read_options({**PATH, "topic": "a"})


def test_both_names_of_one_option_are_accepted_and_contradiction_is_refused() -> None:
    assert parse_read_options({**PATH, "kafka.isolation.level": "READ_COMMITTED"}).committed
    assert parse_read_options({**PATH, "isolationLevel": "read_committed"}).committed
    assert parse_write_options({**PATH, "kafka.compression.type": "lz4"}).compression_type == "lz4"
    with pytest.raises(InvalidOptionError, match="mean the same and have different values"):
        parse_read_options({**PATH, "kafka.isolation.level": "read_committed", "isolationLevel": "read_uncommitted"})


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("1048576", 1 << 20), ("1024k", 1 << 20), ("3MB", 3 << 20), ("1g", 1 << 30)]
)
def test_sizes_with_units_are_parsed(text: str, size_bytes: int) -> None:
    assert parse_read_options({**PATH, "maxBytesPerPartition": text}).max_bytes_per_partition == size_bytes


def test_options_can_be_pickled() -> None:
    options = parse_read_options({**PATH, "subscribe": "a", "startingOffsets": '{"a":{"0":5}}'})
    assert pickle.loads(pickle.dumps(options)) == options


def test_option_table_has_each_name_once_with_text() -> None:
    names = [option.name.lower() for option in OPTIONS] + [option.name.lower() for option in IGNORED_OPTIONS]
    assert len(set(names)) == len(names)
    assert all(option.doc for option in OPTIONS)


def test_settings_of_s3a_are_taken_where_options_set_nothing_else() -> None:
    given = {
        "path": "s3://bucket/log",
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.bucket.bucket.access.key": "key",
        "fs.s3a.secret.key": "secret",
        "storeRegion": "eu-central-1",
    }
    options = parse_read_options(given)
    assert "secret" not in repr(options)
    root = locate(given["path"], options.store).root
    assert isinstance(root, StoreAddress)
    settings = root.settings
    assert (settings.endpoint, settings.access_key, settings.secret_key, settings.region) == (
        "http://127.0.0.1:9000",
        "key",
        "secret",
        "eu-central-1",
    )
    assert "secret" not in f"{root} {root!r}"
