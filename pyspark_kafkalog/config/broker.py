"""Broker-level configuration: the settings of a whole log directory, read from a `server.properties` file.

There are two kinds of names: defaults of topic configs (`log.retention.hours`; the table is in topic_configs), and
settings of the directory as a whole (`num.partitions`). All other names (`listeners`), which a broker's file has many
of, are ignored. Source of the names, defaults and limits: ServerLogConfigs, ServerConfigs, CleanerConfig,
TransactionLogConfig, GroupCoordinatorConfig, MetadataLogConfig and kafka.server.KafkaConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from pyspark_kafkalog.config.definitions import (
    NO_EFFECT,
    PRODUCER_ID_EXPIRATION_MS,
    ConfigDefinition,
    ConfigType,
    at_least,
    between,
    one_of,
)
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS, LogConfig
from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.record.codecs.codec import CODECS
from pyspark_kafkalog.units import DAY_MS, HOUR_MS, MIB
from pyspark_kafkalog.values import dataclass

_DEFINITIONS: Final = (
    ConfigDefinition(
        "num.partitions", ConfigType.INT, 1, "Number of partitions of a topic that is created without one.", at_least(1)
    ),
    ConfigDefinition(
        "auto.create.topics.enable", ConfigType.BOOLEAN, True, "Whether the first write to a topic creates it."
    ),
    ConfigDefinition("delete.topic.enable", ConfigType.BOOLEAN, True, "Whether topics can be deleted."),
    ConfigDefinition(
        "producer.id.expiration.ms",
        ConfigType.INT,
        PRODUCER_ID_EXPIRATION_MS,
        "Producer state is removed if the producer has written nothing for this long and has no open transaction.",
        at_least(1),
    ),
    ConfigDefinition(
        "num.recovery.threads.per.data.dir",
        ConfigType.INT,
        2,
        "Partitions that adopting a broker's log directory loads and recovers in parallel.",
        at_least(1),
    ),
    ConfigDefinition(
        "log.retention.check.interval.ms",
        ConfigType.LONG,
        300_000,
        "Interval at which a running retention job checks for segments to delete.",
        at_least(1),
    ),
    ConfigDefinition(
        "staging.retention.ms",
        ConfigType.LONG,
        DAY_MS,
        "Staged files of a write whose youngest file is older than this count as abandoned and are removed.",
        at_least(0),
        is_own=True,
    ),
    ConfigDefinition(
        "writer.id.expiration.ms",
        ConfigType.LONG,
        180 * DAY_MS,
        "Time after its last use at which the log directory forgets the id of a writer: a streaming query, or a "
        "txnAppId. A replay is recognised, and a lower version refused, until then. -1: never.",
        at_least(-1),
        is_own=True,
    ),
    ConfigDefinition("log.cleaner.enable", ConfigType.BOOLEAN, True, "Whether compacted topics are cleaned."),
    ConfigDefinition("log.cleaner.threads", ConfigType.INT, 1, "Partitions cleaned in parallel.", at_least(0)),
    ConfigDefinition(
        "log.cleaner.dedupe.buffer.size",
        ConfigType.LONG,
        128 * MIB,
        "Bytes for the table of keys, over all cleaner threads; more than 1 MiB for each.",
    ),
    ConfigDefinition(
        "log.cleaner.io.buffer.size",
        ConfigType.INT,
        512 * 1024,
        f"Bytes of a broker's cleaner for reading and writing. {NO_EFFECT}",
        at_least(0),
    ),
    ConfigDefinition(
        "log.cleaner.io.buffer.load.factor",
        ConfigType.DOUBLE,
        0.9,
        "Maximum fill of the table of keys before a pass ends.",
    ),
    ConfigDefinition(
        "log.cleaner.io.max.bytes.per.second",
        ConfigType.DOUBLE,
        1.7976931348623157e308,
        "Limit for bytes that cleaning reads and writes, added up.",
    ),
    ConfigDefinition(
        "log.cleaner.backoff.ms",
        ConfigType.LONG,
        15_000,
        "How long a running cleaner job waits if there is nothing to clean.",
        at_least(0),
    ),
    ConfigDefinition(
        "offsets.topic.num.partitions",
        ConfigType.INT,
        50,
        "Number of partitions of __consumer_offsets, which the first commit of a group's offsets creates.",
        at_least(1),
    ),
    ConfigDefinition(
        "offsets.topic.segment.bytes",
        ConfigType.INT,
        100 * MIB,
        "segment.bytes of __consumer_offsets when it is created: small, so that it can soon be compacted.",
        at_least(1),
    ),
    ConfigDefinition(
        "offsets.topic.compression.codec",
        ConfigType.INT,
        0,
        f"Codec of committed group offsets: {', '.join(f'{bits} {codec.name}' for bits, codec in CODECS.items())}.",
        between(min(CODECS), max(CODECS)),
    ),
    ConfigDefinition(
        "offset.metadata.max.bytes",
        ConfigType.INT,
        4096,
        "Maximum number of characters of metadata that a group may store with an offset.",
    ),
    ConfigDefinition(
        "offsets.retention.minutes",
        ConfigType.INT,
        10_080,
        "Age at which `kafkalog retention` deletes a group's offset that was not committed again; a group without "
        "offsets is deleted.",
        at_least(1),
    ),
    ConfigDefinition(
        "transaction.state.log.num.partitions",
        ConfigType.INT,
        50,
        "Number of partitions of __transaction_state, which the first transactional producer of a server creates.",
        at_least(1),
    ),
    ConfigDefinition(
        "transaction.state.log.segment.bytes",
        ConfigType.INT,
        100 * MIB,
        "segment.bytes of __transaction_state when it is created: small, so that it can soon be compacted.",
        at_least(1),
    ),
    ConfigDefinition(
        "transaction.max.timeout.ms",
        ConfigType.INT,
        900_000,
        "Maximum timeout that a client may give its transactions.",
        at_least(1),
    ),
    ConfigDefinition(
        "transactional.id.expiration.ms",
        ConfigType.INT,
        604_800_000,
        "Time after its last use at which servers and the retention job forget a client's transactional id.",
        at_least(1),
    ),
    ConfigDefinition(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        ConfigType.INT,
        10_000,
        "Interval at which a server aborts transactions that are open for longer than their timeout.",
        at_least(1),
    ),
    ConfigDefinition(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        ConfigType.INT,
        3_600_000,
        "Interval at which a server removes expired transactional ids.",
        at_least(1),
    ),
    ConfigDefinition(
        "authorizer.class.name",
        ConfigType.STRING,
        "",
        "If set, a server refuses clients what the access control entries do not permit, even without any entry; "
        "whatever the name, the rules are those of Kafka's StandardAuthorizer.",
    ),
    ConfigDefinition(
        "offsets.retention.check.interval.ms",
        ConfigType.LONG,
        600_000,
        "Interval at which a server deletes offsets as of offsets.retention.minutes.",
        at_least(1),
    ),
    ConfigDefinition(
        "group.min.session.timeout.ms",
        ConfigType.INT,
        6_000,
        "Minimum session timeout of members of the classic protocol.",
    ),
    ConfigDefinition(
        "group.max.session.timeout.ms",
        ConfigType.INT,
        1_800_000,
        "Maximum session timeout of members of the classic protocol.",
    ),
    ConfigDefinition(
        "group.initial.rebalance.delay.ms",
        ConfigType.INT,
        3_000,
        "How long the first rebalance of an empty group of the classic protocol waits for more members.",
    ),
    ConfigDefinition(
        "group.max.size",
        ConfigType.INT,
        2_147_483_647,
        "Maximum number of members of a group of the classic protocol.",
        at_least(1),
    ),
    ConfigDefinition(
        "group.consumer.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "Session timeout of members of the consumer protocol.",
        at_least(1),
    ),
    ConfigDefinition(
        "group.consumer.min.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "The shortest session timeout that a group of the consumer protocol may have for itself.",
        at_least(1),
    ),
    ConfigDefinition(
        "group.consumer.max.session.timeout.ms",
        ConfigType.INT,
        60_000,
        "The longest session timeout that a group of the consumer protocol may have for itself.",
        at_least(1),
    ),
    ConfigDefinition(
        "group.consumer.heartbeat.interval.ms",
        ConfigType.INT,
        5_000,
        "Interval at which members of the consumer protocol send heartbeats.",
        at_least(1),
    ),
    ConfigDefinition(
        "group.consumer.min.heartbeat.interval.ms",
        ConfigType.INT,
        5_000,
        "The shortest heartbeat interval that a group of the consumer protocol may have for itself.",
        at_least(1),
    ),
    ConfigDefinition(
        "group.consumer.max.heartbeat.interval.ms",
        ConfigType.INT,
        15_000,
        "The longest heartbeat interval that a group of the consumer protocol may have for itself.",
        at_least(1),
    ),
    ConfigDefinition(
        "group.consumer.max.size",
        ConfigType.INT,
        2_147_483_647,
        "Maximum number of members of a group of the consumer protocol.",
        at_least(1),
    ),
    ConfigDefinition(
        "group.consumer.regex.refresh.interval.ms",
        ConfigType.INT,
        600_000,
        "How long the topics of a group's regular expressions hold while no topic and no access control entry changes.",
        at_least(10_000),
    ),
    ConfigDefinition(
        "group.consumer.migration.policy",
        ConfigType.STRING,
        "bidirectional",
        "Whether a group with members may change to the consumer protocol (upgrade), back to the classic one "
        "(downgrade), both, or neither.",
        one_of("upgrade", "downgrade", "bidirectional", "disabled"),
    ),
    ConfigDefinition(
        "super.users",
        ConfigType.STRING,
        "",
        "Principals with all permissions, separated by semicolons: User:ann;User:bob. For callers that name one, and "
        "for clients of a server.",
    ),
    ConfigDefinition(
        "allow.everyone.if.no.acl.found",
        ConfigType.BOOLEAN,
        False,
        "Whether a principal has all permissions on resources without access control entries.",
    ),
    ConfigDefinition(
        "remote.log.storage.system.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether topics may set remote.storage.enable; needs rsm.config.location.",
    ),
    ConfigDefinition(
        "rsm.config.location",
        ConfigType.STRING,
        "",
        "Where kafkalog tier copies closed segments to: URL of a place in an object store, or absolute path of a "
        "directory that all machines see. Holds no credentials.",
    ),
    ConfigDefinition(
        "rsm.config.layout",
        ConfigType.STRING,
        "aiven",
        "Layout of the objects there: that of Aiven's plugin, or that of Kafka's LocalTieredStorage.",
        one_of("aiven", "local"),
    ),
    ConfigDefinition(
        "metadata.log.max.record.bytes.between.snapshots",
        ConfigType.LONG,
        20 * MIB,
        "Bytes of commits after which a metadata snapshot is written; earlier if the last snapshot is smaller.",
        at_least(1),
    ),
    ConfigDefinition(
        "metadata.log.max.snapshot.interval.ms",
        ConfigType.LONG,
        HOUR_MS,
        "Time after which the next commit writes a metadata snapshot; 0: no limit of time.",
        at_least(0),
    ),
    ConfigDefinition(
        "metadata.max.retention.ms",
        ConfigType.LONG,
        604_800_000,
        "Age at which commits contained in a metadata snapshot, and older snapshots, are removed; below 0: never.",
    ),
)


def _topic_fallbacks() -> dict[str, ConfigDefinition]:
    return {
        synonym.definition.name: synonym.definition for config in TOPIC_CONFIGS.values() for synonym in config.synonyms
    }


_OWN: Final = {definition.name: definition for definition in _DEFINITIONS}

#: All broker-level configurations that are read, by name.
BROKER_CONFIGS: Final[Mapping[str, ConfigDefinition]] = MappingProxyType(_OWN | _topic_fallbacks())
#: Topic and broker-level configurations that Kafka does not have.
OWN_CONFIGS: Final = frozenset(
    each.name for each in (*_DEFINITIONS, *(config.definition for config in TOPIC_CONFIGS.values())) if each.is_own
)

#: Those that Kafka can change while a broker runs, besides what concerns its listeners and threads of requests.
DYNAMIC_BROKER_CONFIGS: Final = frozenset(
    {
        "log.cleaner.threads",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.backoff.ms",
        "num.recovery.threads.per.data.dir",
        "producer.id.expiration.ms",
        *(config.synonyms[0].definition.name for config in TOPIC_CONFIGS.values() if config.synonyms),
    }
)


def is_of_plugin(name: str) -> bool:
    """Whether a broker leaves the setting to its authorizer or its remote storage, and does not know its type."""
    return name in ("super.users", "allow.everyone.if.no.acl.found") or name.startswith("rsm.config.")


def _default(name: str) -> Any:
    return _OWN[name].default


#: The configuration with which a broker checks access control entries, and Kafka's class for it.
AUTHORIZER_CONFIG: Final = "authorizer.class.name"
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Broker-level configuration, parsed. Each field except `properties` is the config of its name with `.` for `_`;
    a config without effect has no field.

    `properties` holds all names and values as they were given; topics fall back to them.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    num_partitions: int = _default("num.partitions")
    auto_create_topics_enable: bool = _default("auto.create.topics.enable")
    delete_topic_enable: bool = _default("delete.topic.enable")
    producer_id_expiration_ms: int = _default("producer.id.expiration.ms")
    num_recovery_threads_per_data_dir: int = _default("num.recovery.threads.per.data.dir")
    log_retention_check_interval_ms: int = _default("log.retention.check.interval.ms")
    staging_retention_ms: int = _default("staging.retention.ms")
    writer_id_expiration_ms: int = _default("writer.id.expiration.ms")
    log_cleaner_enable: bool = _default("log.cleaner.enable")
    log_cleaner_threads: int = _default("log.cleaner.threads")
    log_cleaner_dedupe_buffer_size: int = _default("log.cleaner.dedupe.buffer.size")
    log_cleaner_io_buffer_load_factor: float = _default("log.cleaner.io.buffer.load.factor")
    log_cleaner_io_max_bytes_per_second: float = _default("log.cleaner.io.max.bytes.per.second")
    log_cleaner_backoff_ms: int = _default("log.cleaner.backoff.ms")
    offsets_topic_num_partitions: int = _default("offsets.topic.num.partitions")
    offsets_topic_segment_bytes: int = _default("offsets.topic.segment.bytes")
    offsets_topic_compression_codec: int = _default("offsets.topic.compression.codec")
    offset_metadata_max_bytes: int = _default("offset.metadata.max.bytes")
    offsets_retention_minutes: int = _default("offsets.retention.minutes")
    transaction_state_log_num_partitions: int = _default("transaction.state.log.num.partitions")
    transaction_state_log_segment_bytes: int = _default("transaction.state.log.segment.bytes")
    transaction_max_timeout_ms: int = _default("transaction.max.timeout.ms")
    transactional_id_expiration_ms: int = _default("transactional.id.expiration.ms")
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _default(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _default(
        "transaction.remove.expired.transaction.cleanup.interval.ms"
    )
    authorizer_class_name: str = _default("authorizer.class.name")
    offsets_retention_check_interval_ms: int = _default("offsets.retention.check.interval.ms")
    group_min_session_timeout_ms: int = _default("group.min.session.timeout.ms")
    group_max_session_timeout_ms: int = _default("group.max.session.timeout.ms")
    group_initial_rebalance_delay_ms: int = _default("group.initial.rebalance.delay.ms")
    group_max_size: int = _default("group.max.size")
    group_consumer_session_timeout_ms: int = _default("group.consumer.session.timeout.ms")
    group_consumer_min_session_timeout_ms: int = _default("group.consumer.min.session.timeout.ms")
    group_consumer_max_session_timeout_ms: int = _default("group.consumer.max.session.timeout.ms")
    group_consumer_heartbeat_interval_ms: int = _default("group.consumer.heartbeat.interval.ms")
    group_consumer_min_heartbeat_interval_ms: int = _default("group.consumer.min.heartbeat.interval.ms")
    group_consumer_max_heartbeat_interval_ms: int = _default("group.consumer.max.heartbeat.interval.ms")
    group_consumer_max_size: int = _default("group.consumer.max.size")
    group_consumer_regex_refresh_interval_ms: int = _default("group.consumer.regex.refresh.interval.ms")
    group_consumer_migration_policy: str = _default("group.consumer.migration.policy")
    super_users: str = _default("super.users")
    allow_everyone_if_no_acl_found: bool = _default("allow.everyone.if.no.acl.found")
    remote_log_storage_system_enable: bool = _default("remote.log.storage.system.enable")
    rsm_config_location: str = _default("rsm.config.location")
    rsm_config_layout: str = _default("rsm.config.layout")
    metadata_log_max_record_bytes_between_snapshots: int = _default("metadata.log.max.record.bytes.between.snapshots")
    metadata_log_max_snapshot_interval_ms: int = _default("metadata.log.max.snapshot.interval.ms")
    metadata_max_retention_ms: int = _default("metadata.max.retention.ms")

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Parse and check `properties`, including those that topics fall back to. Raises InvalidConfigError."""
        LogConfig.from_properties({}, properties)
        for name, definition in BROKER_CONFIGS.items():
            if name in properties:
                definition.parse(properties[name])
        arguments: dict[str, Any] = {}
        for one in fields(cls):
            name = one.name.replace("_", ".")
            if name in _OWN and name in properties:
                arguments[one.name] = _OWN[name].parse(properties[name])
        config = cls(properties=dict(properties), **arguments)
        _check_dedupe_buffer(config)
        return config

    def log_config(self, topic_overrides: Mapping[str, str] | None = None) -> LogConfig:
        """The configuration of a topic with `topic_overrides` in a log directory with these settings."""
        return _topic_config(frozenset((topic_overrides or {}).items()), frozenset(self.properties.items()))


@lru_cache(maxsize=256)
def _topic_config(overrides: frozenset[tuple[str, str]], properties: frozenset[tuple[str, str]]) -> LogConfig:
    return LogConfig.from_properties(dict(overrides), dict(properties))


def _check_dedupe_buffer(config: BrokerConfig) -> None:
    threads = config.log_cleaner_threads
    if threads and config.log_cleaner_dedupe_buffer_size // threads <= MIB:
        size = config.log_cleaner_dedupe_buffer_size
        raise InvalidConfigError(
            f"log.cleaner.dedupe.buffer.size={size} is not allowed: expected more than 1 MiB "
            f"for each of {threads} log.cleaner.threads"
        )
