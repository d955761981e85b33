"""Records that change topics and broker-level settings, with Kafka's validation, as Kafka's Admin API does.

Each builder validates against an image and returns records for `MetadataStore.commit`:

    store.commit(lambda image: create_topic(image, "orders", partitions=4), operation="create topic")

Broker-level settings (`log.*`, `num.partitions`, …) apply to a whole root. They are stored like Kafka's cluster-wide
dynamic configuration, as ConfigRecords of the broker with the empty name. A root has one node, so it has no settings of
a single broker.

Source of the rules: org.apache.kafka.controller.ReplicationControlManager and ConfigurationControlManager.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from pyspark_kafkalog.config.broker import BROKER_CONFIGS, BrokerConfig
from pyspark_kafkalog.config.group import GROUP_CONFIGS, validate_group_configs
from pyspark_kafkalog.config.topic import LogConfig, validate_topic_configs
from pyspark_kafkalog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    KafkalogError,
    TopicExistsError,
    UnknownTopicError,
)
from pyspark_kafkalog.metadata.image import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
    TopicImage,
    broker_configs,
    partition_record,
    partition_state_record,
    topic_record,
)
from pyspark_kafkalog.metadata.messages.metadata_records import (
    ConfigRecord,
    FormatRecord,
    MetadataRecord,
    RemoveTopicRecord,
    SegmentObjectsRecord,
)
from pyspark_kafkalog.metadata.root_format import TIERED_FORMAT_VERSION
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, random_uuid, validate_topic_name
from pyspark_kafkalog.tiered.own_location import LAYOUT_CONFIG, LOCATION_CONFIG, check_location
from pyspark_kafkalog.values import dataclass

MAX_PARTITIONS_PER_COMMIT: Final = 10_000

Build: TypeAlias = Callable[[MetadataImage], Sequence[MetadataRecord]]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Configurations to set, and names of those to delete."""

    add: Mapping[str, str]
    delete: Collection[str] = ()


#: Makes a change from the configurations that are set.
ConfigPlan: TypeAlias = Callable[[Mapping[str, str]], ConfigChange]


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A change of the topic `name`, one of several in a commit. `build` is one of the builders of this module."""

    name: str
    build: Build


class TopicChanges:
    """Several changes of different topics, each of which is made or refused by itself, in one commit."""

    def __init__(self, changes: Sequence[TopicChange]) -> None:
        self._changes = changes
        #: Of the last `build`, in the order of the changes: why a change is refused, None for one that is made.
        self.errors: tuple[KafkalogError | None, ...] = ()

    def build(self, image: MetadataImage) -> list[MetadataRecord]:
        """The records of the changes that are possible on `image`."""
        records: list[MetadataRecord] = []
        errors: list[KafkalogError | None] = []
        for change in self._changes:
            try:
                records += change.build(image)
            except KafkalogError as error:
                errors.append(error)
            else:
                errors.append(None)
        self.errors = tuple(errors)
        return records

    @property
    def made(self) -> tuple[str, ...]:
        """The topics whose changes are made."""
        return tuple(change.name for change, error in zip(self._changes, self.errors, strict=True) if error is None)


def create_topic(
    image: MetadataImage,
    name: str,
    *,
    partitions: int,
    configs: Mapping[str, str] | None = None,
    broker_configs: Mapping[str, str] | None = None,
    rng: random.Random | None = None,
    topic_id: str | None = None,
    leader_epoch: int = 0,
    offsets_ends: tuple[int, ...] = (),
) -> list[MetadataRecord]:
    """Create a topic with `partitions` partitions, and `configs` over those of the broker (`log.*` names).

    Without a `topic_id` it gets a random one. `leader_epoch` is that of its partitions. `offsets_ends` are those of
    the leader that it is copied from (see TopicImage).

    Raises InvalidTopicError for an invalid name or number of partitions, TopicExistsError, InvalidConfigError.
    """
    configs = configs or {}
    check_new_topic(image, name, partitions=partitions, configs=configs, broker_configs=broker_configs)
    if topic_id is None:
        topic_id = random_uuid(rng if rng is not None else random.SystemRandom())
    return [
        topic_record(name, topic_id, offsets_ends),
        *(_config_record(name, key, value) for key, value in configs.items()),
        *(
            partition_record(topic_id, partition, leader_epoch=leader_epoch, node=image.node)
            for partition in range(partitions)  # bounded: MAX_PARTITIONS_PER_COMMIT, above
        ),
    ]


def check_new_topic(
    image: MetadataImage,
    name: str,
    *,
    partitions: int,
    configs: Mapping[str, str],
    broker_configs: Mapping[str, str] | None = None,
) -> None:
    """Raise what `create_topic` raises for the topic."""
    _check_new_name(image, name)
    _check_partitions(name, partitions, first=0)
    validate_topic_configs(configs, broker_configs)


def delete_topic(image: MetadataImage, name: str, *, topic_id: str | None = None) -> list[MetadataRecord]:
    """Delete the topic, with its partitions and configs. Raises UnknownTopicError, also if it has another id."""
    topic = image.topic(name)
    if topic_id not in (None, topic.topic_id):
        raise UnknownTopicError(f"there is no topic {name!r} with the id {topic_id}: it was deleted and created again")
    return [RemoveTopicRecord(topic_id=topic.topic_id)]


def add_partitions(image: MetadataImage, name: str, *, total: int) -> list[MetadataRecord]:
    """Add partitions up to `total`. Raises UnknownTopicError, or InvalidTopicError if that is not an increase."""
    topic = image.topic(name)
    count = len(topic.partitions)
    if name in INTERNAL_TOPICS:
        raise InvalidTopicError(f"partitions of {name} cannot be added: the partition of a key depends on their number")
    if total <= count:
        raise InvalidPartitionsError(
            f"topic {name!r} has {count} partitions: expected a larger number, found {total}; none can be removed"
        )
    _check_partitions(name, total, first=count)
    # bounded: MAX_PARTITIONS_PER_COMMIT, above
    return [_partition_record(image, topic.topic_id, partition) for partition in range(count, total)]


def alter_configs(
    image: MetadataImage,
    name: str,
    *,
    add: Mapping[str, str] | None = None,
    delete: Collection[str] = (),
    broker_configs: Mapping[str, str] | None = None,
) -> list[MetadataRecord]:
    """Set the topic's overrides in `add` and delete those in `delete`; no records for unchanged ones.

    Raises UnknownTopicError, or InvalidConfigError for an invalid name or value, or an invalid combination.
    """
    configs = image.topic(name).configs
    add = add or {}
    both = sorted(add.keys() & set(delete))
    if both:
        raise InvalidConfigError(f"{', '.join(both)}: cannot be set and deleted at once")
    kept = {key: value for key, value in configs.items() if key not in delete}
    config = validate_topic_configs({**kept, **add}, broker_configs, existing=configs)
    return [
        *(_config_record(name, key, value) for key, value in add.items() if configs.get(key) != value),
        *(_config_record(name, key, None) for key in delete if key in configs),
        *([] if config.remote_storage_enable or image.format.in_object_store else _without_remote_log(image, name)),
    ]


def _without_remote_log(image: MetadataImage, name: str) -> Iterator[MetadataRecord]:
    """End the remote part of the topic's logs: they begin locally, and all segments in remote storage are dropped.

    Source of the rule: ReplicaManager and TopicConfigHandler.maybeUpdateRemoteLogComponents of kafka.server, when
    remote.log.delete.on.disable is set, which is demanded before.
    """
    topic = image.topic(name)
    for partition in topic.partitions:
        state, local_start = partition.state, partition.state.local_log_start_offset
        if state.has_remote_start:
            yield partition_state_record(
                topic.topic_id, partition.partition, replace(state, log_start_offset=local_start)
            )
        # Those that end at or below the log start are dropped by the record before.
        left = tuple(each.segment_id for each in partition.segments if each.end_offset > local_start)
        if left:
            yield SegmentObjectsRecord(
                topic_id=topic.topic_id,
                partition=partition.partition,
                planned_at=image.next_offset,
                replaced_segments=left,
            )


def _check_new_name(image: MetadataImage, name: str) -> None:
    validate_topic_name(name)
    if name == CLUSTER_METADATA_TOPIC:
        raise InvalidTopicError(f"topic name {name!r} is the metadata log's")
    if name in image.topics:
        raise TopicExistsError(f"topic {name!r} already exists")
    # Kafka's metric names turn '.' into '_', so two topics that differ only in that would share their metrics.
    collides = _metric_name(name)
    for other in image.topics:
        if _metric_name(other) == collides:
            raise InvalidTopicError(f"topic name {name!r} collides with topic {other!r}: '.' and '_' count as the same")


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def _check_partitions(name: str, total: int, *, first: int) -> None:
    if total < 1:
        raise InvalidPartitionsError(f"topic {name!r} needs at least 1 partition, not {total}")
    if total - first > MAX_PARTITIONS_PER_COMMIT:
        raise InvalidPartitionsError(
            f"{total - first} new partitions of topic {name!r} are too many for one commit: "
            f"at most {MAX_PARTITIONS_PER_COMMIT}"
        )


def _config_record(topic: str, name: str, value: str | None) -> MetadataRecord:
    return ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic, name=name, value=value)


def _partition_record(image: MetadataImage, topic_id: str, partition: int) -> MetadataRecord:
    """A partition led by the single node that represents the root."""
    return partition_record(topic_id, partition, leader_epoch=0, node=image.node)


def broker_config(image: MetadataImage) -> BrokerConfig:
    """The broker-level configuration, parsed."""
    return BrokerConfig.from_properties(broker_configs(image))


class EffectiveConfigs:
    """The parsed configurations of brokers and topics, parsed again only after a commit has changed them.

    Images share the mappings of settings that no commit has changed in between, so these are compared by identity.
    """

    def __init__(self) -> None:
        self._broker: tuple[Mapping[str, Mapping[str, str]], BrokerConfig] | None = None
        self._topics: dict[str, tuple[Mapping[str, Mapping[str, str]], Mapping[str, str], LogConfig]] = {}

    def broker(self, image: MetadataImage) -> BrokerConfig:
        """The broker-level configuration."""
        known = self._broker
        if known is None or known[0] is not image.broker_configs:
            known = self._broker = image.broker_configs, broker_config(image)
        return known[1]

    def of(self, image: MetadataImage, topic: TopicImage) -> LogConfig:
        """The configuration of a topic of `image`."""
        known = self._topics.get(topic.topic_id)
        if known is None or known[0] is not image.broker_configs or known[1] is not topic.configs:
            if len(self._topics) > 2 * len(image.topics):
                self._topics.clear()  # most are of deleted topics
            config = self.broker(image).log_config(topic.configs)
            known = self._topics[topic.topic_id] = image.broker_configs, topic.configs, config
        return known[2]


def alter_broker_configs(
    image: MetadataImage, *, add: Mapping[str, str], delete: Collection[str] = ()
) -> list[MetadataRecord]:
    """Records that set the settings in `add` and delete those in `delete`; none for unchanged settings.

    Raises InvalidConfigError for an invalid name or value, and if a topic's overrides conflict with the new values.
    """
    configs = broker_configs(image)
    unknown = sorted({*add, *delete} - BROKER_CONFIGS.keys() - configs.keys())
    if unknown:
        raise InvalidConfigError(
            f"{', '.join(unknown)}: no such broker-level config; expected one of {', '.join(sorted(BROKER_CONFIGS))}"
        )
    _check_not_both(add, delete)
    kept = {name: text for name, text in configs.items() if name not in delete}
    config = BrokerConfig.from_properties({**kept, **add})
    for topic in image.topics.values():
        if topic.configs:
            _check_overrides(config, topic.name, topic.configs)
    _check_remote_storage(image, BrokerConfig.from_properties(configs), config)
    return [
        *(format_records(image, TIERED_FORMAT_VERSION) if config.rsm_config_location else ()),
        *(broker_config_record(name, value) for name, value in add.items() if configs.get(name) != value),
        *(broker_config_record(name, None) for name in delete if name in configs),
    ]


def alter_group_configs(
    image: MetadataImage, group_id: str, *, add: Mapping[str, str], delete: Collection[str] = (), is_copy: bool = False
) -> list[MetadataRecord]:
    """Records that set the configurations in `add` for one group and delete those in `delete`; none without a change.

    `is_copy`: they are those of a leader, whose own settings bound what has no effect here. Raises InvalidConfigError
    for an invalid name or value, and for a group without a name.
    """
    if not group_id:
        raise InvalidConfigError("a group must be named: all groups together have the broker-level settings group.*")
    configs = image.group_configs.get(group_id, {})
    unknown = sorted({*add, *delete} - GROUP_CONFIGS.keys() - configs.keys())
    if unknown:
        known = ", ".join(sorted(GROUP_CONFIGS))
        raise InvalidConfigError(f"{', '.join(unknown)}: no such config of a group; expected one of {known}")
    _check_not_both(add, delete)
    kept = {name: text for name, text in configs.items() if name not in delete}
    validate_group_configs({**kept, **add}, broker_config(image), is_copy=is_copy)
    changed: dict[str, str | None] = {name: value for name, value in add.items() if configs.get(name) != value}
    changed |= dict.fromkeys(name for name in delete if name in configs)
    return [
        ConfigRecord(resource_type=GROUP_RESOURCE, resource_name=group_id, name=name, value=value)
        for name, value in changed.items()
    ]


def _check_not_both(add: Mapping[str, str], delete: Collection[str]) -> None:
    both = sorted(add.keys() & set(delete))
    if both:
        raise InvalidConfigError(f"{', '.join(both)}: cannot be set and deleted at once")


def format_records(image: MetadataImage, version: int) -> list[MetadataRecord]:
    """The record that raises a root on a file system to the format version `version`; none if it is not below that."""
    is_below = not image.format.in_object_store and (image.format_version or 0) < version
    return [FormatRecord(format_version=version)] if is_below else []


def broker_config_record(name: str, value: str | None) -> MetadataRecord:
    """The record that sets one setting, or with None resets it to its default."""
    return ConfigRecord(resource_type=BROKER_RESOURCE, resource_name=ALL_BROKERS, name=name, value=value)


def _check_overrides(config: BrokerConfig, topic: str, overrides: Mapping[str, str]) -> None:
    try:
        config.log_config(overrides)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"the configuration of topic {topic} would not be allowed: {error}") from None


def _check_remote_storage(image: MetadataImage, before: BrokerConfig, after: BrokerConfig) -> None:
    """Raise InvalidConfigError unless the configurations of remote storage may change so."""
    location, layout = after.rsm_config_location, after.rsm_config_layout
    if location:
        check_location(location)
        if image.format.in_object_store:
            raise InvalidConfigError(
                f"{LOCATION_CONFIG} is not allowed: the segments of this log directory are in an object store already"
            )
    if (location, layout) != (before.rsm_config_location, before.rsm_config_layout) and _has_remote_segments(image):
        raise InvalidConfigError(
            f"{LOCATION_CONFIG} and {LAYOUT_CONFIG} cannot change while segments are there: expected "
            f"{before.rsm_config_location} and {before.rsm_config_layout}, found {location or 'none'} and {layout}; "
            "first delete the topics that have remote segments, or set remote.storage.enable=false and "
            "remote.log.delete.on.disable=true on them, and run kafkalog retention after file.delete.delay.ms"
        )
    is_on, was_on = after.remote_log_storage_system_enable, before.remote_log_storage_system_enable
    if is_on and not location and (not was_on or before.rsm_config_location):
        raise InvalidConfigError(
            f"remote.log.storage.system.enable=true is not allowed: expected {LOCATION_CONFIG} to be set too"
        )
    if was_on and not is_on:
        _check_none_is_tiered(image, after)
    for topic in (each for each in image.topics.values() if each.configs):
        config = after.log_config(topic.configs)
        if config.remote_storage_enable and config.compact and not before.log_config(topic.configs).compact:
            raise InvalidConfigError(
                f"log.cleanup.policy={after.properties['log.cleanup.policy']} is not allowed: topic {topic.name} has "
                "remote.storage.enable=true and no cleanup.policy of its own, expected delete"
            )


def _check_none_is_tiered(image: MetadataImage, config: BrokerConfig) -> None:
    for topic in image.topics.values():
        if config.log_config(topic.configs).remote_storage_enable:
            raise InvalidConfigError(
                f"remote.log.storage.system.enable=false is not allowed: topic {topic.name} has "
                "remote.storage.enable=true"
            )


def _has_remote_segments(image: MetadataImage) -> bool:
    return any(each.segments for each in image.dropped) or any(
        partition.segments for topic in image.topics.values() for partition in topic.partitions
    )
