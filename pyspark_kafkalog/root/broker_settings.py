"""Records that change broker-level configuration: settings (`log.*`, `num.partitions`, …) of a whole root.

They are stored like Kafka's cluster-wide dynamic configuration, as ConfigRecords of the broker with the empty name.
A root has one node, so it has no settings for a single broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark_kafkalog.config.broker import BROKER_CONFIGS, BrokerConfig
from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.metadata.image import ALL_BROKERS, BROKER_RESOURCE, MetadataImage, broker_configs
from pyspark_kafkalog.metadata.messages.metadata_records import ConfigRecord, MetadataRecord


def broker_config(image: MetadataImage) -> BrokerConfig:
    """The broker-level configuration, parsed."""
    return BrokerConfig.from_properties(broker_configs(image))


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
    both = sorted(add.keys() & set(delete))
    if both:
        raise InvalidConfigError(f"{', '.join(both)}: cannot be set and deleted at once")
    kept = {name: text for name, text in configs.items() if name not in delete}
    config = BrokerConfig.from_properties({**kept, **add})
    for topic in image.topics.values():
        if topic.configs:
            _check_topic(config, topic.name, topic.configs)
    return [
        *(broker_config_record(name, value) for name, value in add.items() if configs.get(name) != value),
        *(broker_config_record(name, None) for name in delete if name in configs),
    ]


def broker_config_record(name: str, value: str | None) -> MetadataRecord:
    """The record that sets one setting, or with None resets it to its default."""
    return ConfigRecord(resource_type=BROKER_RESOURCE, resource_name=ALL_BROKERS, name=name, value=value)


def _check_topic(config: BrokerConfig, topic: str, overrides: Mapping[str, str]) -> None:
    try:
        config.log_config(overrides)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"the configuration of topic {topic} would not be allowed: {error}") from None
