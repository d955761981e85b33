"""Records that change broker-level configuration: settings (`log.*`, `num.partitions`, …) that hold for a whole root.

They are kept as Kafka keeps its cluster-wide dynamic configuration, as ConfigRecords of the broker with the empty
name. A root has one node, so there are none for a single broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.metadata.image import BROKER_RESOURCE, MetadataImage
from pyspark_kafkalog.metadata.records import MetadataRecord, record
from pyspark_kafkalog.storage.broker_config import BROKER_CONFIGS, BrokerConfig

#: The resource name under which settings of all brokers are kept.
ALL_BROKERS: Final = ""


def broker_configs(image: MetadataImage) -> Mapping[str, str]:
    """The settings that were made, by name; those left out have their defaults."""
    return image.broker_configs.get(ALL_BROKERS, {})


def alter_broker_configs(
    image: MetadataImage, *, add: Mapping[str, str], delete: Collection[str] = ()
) -> list[MetadataRecord]:
    """The root's settings with `add` set and `delete` gone; what is so already makes no record.

    Raises InvalidConfigError for a name or value that is not allowed, and when a topic's own values do not go with the
    new ones.
    """
    there = broker_configs(image)
    unknown = sorted({*add, *delete} - BROKER_CONFIGS.keys() - there.keys())
    if unknown:
        raise InvalidConfigError(
            f"{', '.join(unknown)}: no broker-level config; there are {', '.join(sorted(BROKER_CONFIGS))}"
        )
    both = sorted(add.keys() & set(delete))
    if both:
        raise InvalidConfigError(f"{', '.join(both)}: cannot be set and deleted at once")
    kept = {name: text for name, text in there.items() if name not in delete}
    config = BrokerConfig.from_properties({**kept, **add})
    for topic in image.topics.values():
        if topic.configs:
            _check_topic(config, topic.name, topic.configs)
    return [
        *(broker_config_record(name, value) for name, value in add.items() if there.get(name) != value),
        *(broker_config_record(name, None) for name in delete if name in there),
    ]


def broker_config_record(name: str, value: str | None) -> MetadataRecord:
    """The record that sets one setting, or with None puts it back to its default."""
    return record("ConfigRecord", resourceType=BROKER_RESOURCE, resourceName=ALL_BROKERS, name=name, value=value)


def _check_topic(config: BrokerConfig, topic: str, overrides: Mapping[str, str]) -> None:
    try:
        config.log_config(overrides)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"the configuration of topic {topic} would not be allowed: {error}") from None
