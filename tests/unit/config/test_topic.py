"""Topic and broker configuration: Kafka's names, defaults, limits and precedence."""

from __future__ import annotations

import dataclasses
import pickle
import re
from pathlib import Path
from random import Random

import pytest
from repository import REPOSITORY

from pyspark_kafkalog.config.broker import BROKER_CONFIGS, BrokerConfig
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS, LogConfig, validate_topic_config, validate_topic_configs
from pyspark_kafkalog.errors import DiskFormatError, InvalidConfigError
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.header import TimestampType
from pyspark_kafkalog.storage.artefacts.marker_files import read_properties_file

_SERVER_PROPERTIES = REPOSITORY / "conf" / "server.properties"
_HOUR_MS = 3_600_000


def test_every_config_has_documentation_and_allowed_values() -> None:
    for definition in [config.definition for config in TOPIC_CONFIGS.values()] + list(BROKER_CONFIGS.values()):
        assert definition.doc.endswith(".")
        assert definition.allowed_text
        if definition.default is not None:
            assert definition.parse(definition.default_text) == definition.default


def test_empty_properties_give_defaults() -> None:
    assert LogConfig.from_properties() == LogConfig.from_properties({}, {}) == LogConfig()
    assert pickle.loads(pickle.dumps(LogConfig())) == LogConfig()


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("segment.bytes", "1048576", 1048576),
        ("segment.bytes", " +2000000\t", 2000000),
        ("internal.segment.bytes", "100", 100),
        ("segment.ms", "1", 1),
        ("retention.ms", "-1", -1),
        ("retention.bytes", "-5", -5),
        ("max.message.bytes", "0", 0),
        ("cleanup.policy", "compact , delete", ("compact", "delete")),
        ("cleanup.policy", "", ()),
        ("compression.type", "zstd", "zstd"),
        ("compression.type", "uncompressed", "uncompressed"),
        ("compression.gzip.level", "-1", -1),
        ("compression.gzip.level", "9", 9),
        ("compression.lz4.level", "17", 17),
        ("compression.zstd.level", "-131072", -131072),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("min.cleanable.dirty.ratio", "1e-1", 0.1),
        ("preallocate", "TRUE", True),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("follower.replication.throttled.replicas", "0:1, 1:2", ("0:1", "1:2")),
        ("flush.messages", "9223372036854775807", 2**63 - 1),
    ],
)
def test_allowed_values_are_parsed(name: str, value: str, parsed: object) -> None:
    assert validate_topic_config(name, value) == parsed
    assert LogConfig.from_properties({name: value}) is not None


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("segment.bytes", "1048575", "a 32-bit integer, at least 1048576"),
        ("segment.bytes", "2147483648", "a 32-bit integer, at least 1048576"),
        ("segment.bytes", "1_048_576", "a 32-bit integer"),
        ("segment.bytes", "1e9", "a 32-bit integer"),
        ("segment.bytes", "", "a 32-bit integer"),
        ("segment.bytes", "9" * 10_000, "a 32-bit integer"),
        ("internal.segment.bytes", "big", "a 32-bit integer"),
        ("segment.ms", "0", "a 64-bit integer, at least 1"),
        ("segment.jitter.ms", "-1", "at least 0"),
        ("segment.index.bytes", "3", "at least 4"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "9223372036854775808", "a 64-bit integer"),
        ("cleanup.policy", "compact,drop", "a comma-separated list of compact, delete"),
        ("cleanup.policy", "Delete", "a comma-separated list of compact, delete"),
        ("cleanup.policy", "delete,", "a comma-separated list of compact, delete"),
        ("compression.type", "none", "one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("compression.gzip.level", "0", "from 1 to 9, or -1"),
        ("compression.lz4.level", "18", "from 1 to 17"),
        ("compression.zstd.level", "23", "from -131072 to 22"),
        ("message.timestamp.type", "createtime", "one of CreateTime, LogAppendTime"),
        ("min.cleanable.dirty.ratio", "1.01", "a number, from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "a number, from 0 to 1"),
        ("min.insync.replicas", "0", "at least 1"),
        ("preallocate", "yes", "true or false"),
        ("leader.replication.throttled.replicas", "1-2", r"* or a list of partition:broker pairs"),
        ("leader.replication.throttled.replicas", "*,1:2", r"* or a list of partition:broker pairs"),
        ("local.retention.ms", "-3", "at least -2"),
    ],
)
def test_values_not_allowed_are_refused_with_allowed_ones(name: str, value: str, allowed: str) -> None:
    message = re.escape(f"{name}={value} is not allowed: expected ") + ".*" + re.escape(allowed)
    with pytest.raises(InvalidConfigError, match=message):
        validate_topic_config(name, value)
    with pytest.raises(InvalidConfigError, match=message):
        LogConfig.from_properties({name: value})


@pytest.mark.parametrize("name", ["segment.byte", "log.segment.bytes", "message.format.version", ""])
def test_unknown_topic_config_is_refused_with_list_of_known_ones(name: str) -> None:
    for check in (lambda: validate_topic_config(name, "1"), lambda: LogConfig.from_properties({name: "1"})):
        with pytest.raises(
            InvalidConfigError, match=r"is no topic config; there are cleanup\.policy, .*segment\.bytes"
        ):
            check()


def test_internal_segment_bytes_override_segment_bytes() -> None:
    assert LogConfig.from_properties({"segment.bytes": "2000000", "internal.segment.bytes": "100"}).segment_bytes == 100


@pytest.mark.parametrize(
    ("broker", "retention_ms"),
    [
        ({}, 168 * _HOUR_MS),
        ({"log.retention.hours": "2"}, 2 * _HOUR_MS),
        ({"log.retention.hours": "2", "log.retention.minutes": "5"}, 300_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "5", "log.retention.ms": "7"}, 7),
        ({"log.retention.ms": "-1", "log.retention.hours": "2"}, -1),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-7"}, -1),
        ({"log.retention.hours": "2147483647"}, 2147483647 * _HOUR_MS),
    ],
)
def test_retention_in_smaller_unit_takes_precedence(broker: dict[str, str], retention_ms: int) -> None:
    assert LogConfig.from_properties({}, broker).retention_ms == retention_ms
    assert LogConfig.from_properties({"retention.ms": "99"}, broker).retention_ms == 99


def test_roll_time_and_jitter_in_hours_yield_to_milliseconds() -> None:
    config = LogConfig.from_properties({}, {"log.roll.hours": "3", "log.roll.jitter.hours": "1"})
    assert (config.segment_ms, config.segment_jitter_ms) == (3 * _HOUR_MS, _HOUR_MS)
    both = {"log.roll.hours": "3", "log.roll.ms": "5", "log.roll.jitter.hours": "1", "log.roll.jitter.ms": "4"}
    config = LogConfig.from_properties({}, both)
    assert (config.segment_ms, config.segment_jitter_ms) == (5, 4)


def test_flush_interval_takes_precedence_over_scheduler_interval() -> None:
    assert LogConfig.from_properties({}, {"log.flush.scheduler.interval.ms": "9"}).flush_ms == 9
    both = {"log.flush.scheduler.interval.ms": "9", "log.flush.interval.ms": "8"}
    assert LogConfig.from_properties({}, both).flush_ms == 8


@pytest.mark.parametrize(
    ("broker", "message"),
    [
        ({"log.retention.hours": "0"}, "log.retention.hours=0 is not allowed: expected at least 1, or -1"),
        ({"log.retention.hours": "2147483648"}, "log.retention.hours=2147483648 is not allowed"),
        ({"log.roll.hours": "0"}, "log.roll.hours=0 is not allowed: expected a 32-bit integer, at least 1"),
        ({"log.segment.bytes": "5"}, "log.segment.bytes=5 is not allowed"),
        ({"message.max.bytes": "-1"}, "message.max.bytes=-1 is not allowed"),
        ({"num.partitions": "0"}, "num.partitions=0 is not allowed: expected a 32-bit integer, at least 1"),
        ({"auto.create.topics.enable": "1"}, "auto.create.topics.enable=1 is not allowed: expected true or false"),
        ({"log.roll.ms": "5", "log.roll.hours": "x"}, "log.roll.hours=x is not allowed"),
        ({"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097152"}, "more than 1 MiB for each of 2"),
        ({"log.cleaner.min.compaction.lag.ms": "6", "log.cleaner.max.compaction.lag.ms": "5"}, "at most .*lag.ms=5"),
    ],
)
def test_bad_broker_values_are_refused_by_name(broker: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        BrokerConfig.from_properties(broker)


def test_min_compaction_lag_above_max_is_refused() -> None:
    LogConfig.from_properties({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(
        InvalidConfigError, match=r"min\.compaction\.lag\.ms=6 is not allowed: .*max\.compaction\.lag\.ms=5"
    ):
        LogConfig.from_properties({"min.compaction.lag.ms": "6"}, {"log.cleaner.max.compaction.lag.ms": "5"})


_TIERED = {"remote.log.storage.system.enable": "true"}


@pytest.mark.parametrize(
    ("overrides", "broker", "message"),
    [
        ({}, {}, "remote.log.storage.system.enable is not true"),
        ({"cleanup.policy": "compact"}, _TIERED, "cleanup.policy=compact is not allowed"),
        ({"cleanup.policy": "compact,delete"}, _TIERED, "cleanup.policy=compact,delete is not allowed"),
        ({"retention.ms": "10", "local.retention.ms": "11"}, _TIERED, "local.retention.ms=11 .* is 10"),
        ({"retention.ms": "10", "local.retention.ms": "-1"}, _TIERED, "local.retention.ms=-1 "),
        ({"retention.bytes": "10", "local.retention.bytes": "11"}, _TIERED, "local.retention.bytes=11 "),
        (
            {"retention.ms": "10", "local.retention.ms": "9", "remote.log.copy.disable": "true"},
            _TIERED,
            "with remote.log.copy.disable",
        ),
        (
            {"retention.ms": "10", "remote.copy.lag.ms": "11"},
            _TIERED,
            "remote.copy.lag.ms=11 is not allowed: expected at most local.retention.ms, which is 10",
        ),
        (
            {"local.retention.bytes": "9", "remote.copy.lag.bytes": "10"},
            _TIERED,
            "remote.copy.lag.bytes=10 is not allowed: expected at most local.retention.bytes, which is 9",
        ),
    ],
)
def test_tiered_storage_outside_its_conditions_is_refused(
    overrides: dict[str, str], broker: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        validate_topic_configs({"remote.storage.enable": "true", **overrides}, broker)


def test_tiered_storage_within_its_conditions_is_accepted() -> None:
    overrides = {"remote.storage.enable": "true", "retention.ms": "10", "local.retention.ms": "10"}
    overrides |= {"remote.copy.lag.ms": "10", "remote.copy.lag.bytes": "1"}
    config = validate_topic_configs({**overrides, "remote.log.copy.disable": "true"}, _TIERED)
    assert (config.local_retention_ms, config.local_retention_bytes) == (10, -2)


def test_disabling_tiered_storage_without_deletion_is_refused() -> None:
    before = {"remote.storage.enable": "true"}
    with pytest.raises(InvalidConfigError, match=r"remote\.log\.delete\.on\.disable=true"):
        validate_topic_configs({}, _TIERED, existing=before)
    validate_topic_configs({"remote.log.delete.on.disable": "true"}, _TIERED, existing=before)
    validate_topic_configs({}, _TIERED, existing={})


def test_level_is_configurable_for_every_codec_with_levels() -> None:
    for codec in CODECS.values():
        expected = None if codec.levels is None else codec.levels.default
        assert LogConfig().compression_level(codec.compression_type) == expected
    config = LogConfig.from_properties({"compression.zstd.level": "19"})
    assert config.compression_level(CompressionType.ZSTD) == 19


def test_derived_values_follow_from_configs() -> None:
    config = LogConfig.from_properties(
        {"cleanup.policy": "compact", "max.compaction.lag.ms": "50", "message.timestamp.type": "LogAppendTime"}
    )
    assert (config.compact, config.delete) == (True, False)
    assert config.max_segment_ms == 50
    assert config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    assert config.stored_compression(CompressionType.LZ4) is CompressionType.LZ4
    assert LogConfig().max_segment_ms == LogConfig().segment_ms
    assert LogConfig(compression_type="zstd").stored_compression(CompressionType.LZ4) is CompressionType.ZSTD
    assert LogConfig(compression_type="uncompressed").stored_compression(CompressionType.LZ4) is CompressionType.NONE


def test_drawn_jitter_is_below_segment_jitter_ms_and_segment_ms() -> None:
    rng = Random(5)
    assert LogConfig().random_segment_jitter_ms(rng) == 0
    drawn = {LogConfig(segment_jitter_ms=10, segment_ms=4).random_segment_jitter_ms(rng) for _ in range(200)}
    assert drawn == {0, 1, 2, 3}


def _example_settings() -> dict[str, str]:
    lines = re.findall(r"^#([a-z0-9.]+)=(.*)$", _SERVER_PROPERTIES.read_text(), flags=re.MULTILINE)
    return dict(lines)


def test_example_server_properties_list_every_setting_with_default() -> None:
    settings = _example_settings()
    assert set(settings) == set(BROKER_CONFIGS)
    config = BrokerConfig.from_properties(settings)
    assert dataclasses.replace(config, properties={}) == BrokerConfig()
    assert config.log_config() == LogConfig()
    for name, value in settings.items():
        assert BrokerConfig.from_properties({name: value}).log_config() == LogConfig(), name


def test_example_server_properties_load_as_defaults() -> None:
    assert BrokerConfig.from_properties(read_properties_file(_SERVER_PROPERTIES)) == BrokerConfig()


def test_server_properties_of_broker_load_despite_unknown_names(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("listeners=PLAINTEXT://:9092\nnum.partitions = 3\nlog.retention.hours=1\nsegment.ms=x\n")
    config = BrokerConfig.from_properties(read_properties_file(path))
    assert config.num_partitions == 3
    assert config.log_config().retention_ms == _HOUR_MS
    assert config.log_config({"retention.ms": "5"}).retention_ms == 5
    assert config.log_config().segment_ms == LogConfig().segment_ms


def test_missing_or_huge_server_properties_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_properties_file(tmp_path / "server.properties")
    (tmp_path / "server.properties").write_bytes(b"#" * (2 << 20))
    with pytest.raises(DiskFormatError, match="at most"):
        read_properties_file(tmp_path / "server.properties")
