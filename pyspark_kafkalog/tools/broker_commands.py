"""A shell script that applies to a broker the changes made in its directory since it was adopted.

Commands that create come first, then those that delete. All of them can be repeated, except deletions of
configurations. A re-created topic keeps the broker's id, unless the broker has too many partitions: partitions cannot
be removed from a topic, so it is deleted and created. Source of the rules: the tools of Kafka 4.1, and
kafka.server.DynamicBrokerConfig.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.maintenance.export.broker_differences import BrokerDifferences, ConfigChange, TopicChange
from pyspark_kafkalog.metadata.acl import Acl, PermissionType, ResourceType
from pyspark_kafkalog.root.broker_settings import ALL_BROKERS

_BROKER: Final = '--bootstrap-server "${BOOTSTRAP:-localhost:9092}"'
#: Broker-level settings that Kafka can change while it runs, besides the defaults of topics' configurations.
_DYNAMIC: Final = frozenset(
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
_RESOURCE_OPTIONS: Final[Mapping[ResourceType, str]] = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.DELEGATION_TOKEN: "--delegation-token",
    ResourceType.USER: "--user-principal",
}


def broker_script(root: Path, differences: BrokerDifferences, aside: Path | None) -> str:
    """The script; comments state the steps before and after it."""
    if not differences:
        return f"# The broker knows all that {root} holds: there is nothing to run.\n"
    commands = list(_commands(differences))
    mount = f"kafkalog export --path {_quoted(str(aside))} --to {_quoted(str(root))}"
    lines = [
        f"# What the broker is to be told after it has taken {root} back.",
        "# Run it with `sh -e` while the broker is running and before clients use it. BOOTSTRAP is its address.",
        *(f"# {each}" for each in differences.descriptions()),
        *commands,
    ]
    if aside is not None:
        lines += [
            "# Then stop the broker, bring over the records that were set aside, and start it again:",
            f"#   {mount}",
        ]
    return "".join(f"{line}\n" for line in lines)


def _commands(differences: BrokerDifferences) -> Iterator[str]:
    for topic in differences.topics:
        yield from _topic_commands(topic)
    recreated = {each.topic.name for each in differences.topics if _is_replaced(each)}
    for change in differences.topic_configs:
        if change.name not in recreated:
            yield from _config_commands(f"--entity-type topics --entity-name {_quoted(change.name)}", change)
    for change in differences.broker_configs:
        yield from _broker_config_commands(change)
    for acl in differences.acls_added:
        yield f"kafka-acls.sh {_BROKER} --add {_acl_options(acl)}"
    for name in differences.deleted:
        yield f"kafka-topics.sh {_BROKER} --delete --if-exists --topic {_pattern(name)}"
    for acl in differences.acls_removed:
        yield f"kafka-acls.sh {_BROKER} --remove --force {_acl_options(acl)}"


def _is_replaced(change: TopicChange) -> bool:
    return change.recreated and change.broker_partitions > len(change.topic.partitions)


def _topic_commands(change: TopicChange) -> Iterator[str]:
    name, total = change.topic.name, len(change.topic.partitions)
    if _is_replaced(change):
        yield f"kafka-topics.sh {_BROKER} --delete --if-exists --topic {_pattern(name)}"
    if not change.broker_partitions or _is_replaced(change):
        configs = "".join(
            f" --config {_quoted(f'{key}={value}')}" for key, value in sorted(change.topic.configs.items())
        )
        yield (
            f"kafka-topics.sh {_BROKER} --create --if-not-exists --topic {_quoted(name)} --partitions {total}{configs}"
        )
    elif change.broker_partitions < total:
        yield f"kafka-topics.sh {_BROKER} --alter --topic {_pattern(name)} --partitions {total}"


def _broker_config_commands(change: ConfigChange) -> Iterator[str]:
    entity = "--entity-default" if change.name == ALL_BROKERS else f"--entity-name {change.name}"
    dynamic = ConfigChange(
        name=change.name,
        added={key: value for key, value in change.added.items() if key in _DYNAMIC},
        deleted=tuple(key for key in change.deleted if key in _DYNAMIC),
    )
    yield from _config_commands(f"--entity-type brokers {entity}", dynamic)
    for key, value in change.added.items():
        if key not in _DYNAMIC:
            yield f"# in the broker's server.properties, before it is started: {key}={value}"
    for key in change.deleted:
        if key not in _DYNAMIC:
            yield f"# in the broker's server.properties, before it is started: remove {key}"


def _config_commands(entity: str, change: ConfigChange) -> Iterator[str]:
    command = f"kafka-configs.sh {_BROKER} --alter {entity}"
    if change.added:
        # Brackets keep the commas of a value together.
        settings = ",".join(
            f"{key}=[{value}]" if "," in value else f"{key}={value}" for key, value in change.added.items()
        )
        yield f"{command} --add-config {_quoted(settings)}"
    if change.deleted:
        yield f"{command} --delete-config {_quoted(','.join(change.deleted))}"


def _acl_options(acl: Acl) -> str:
    resource = (
        "--cluster"
        if acl.resource_type is ResourceType.CLUSTER
        else f"{_RESOURCE_OPTIONS[acl.resource_type]} {_quoted(acl.resource_name)}"
    )
    permission = "allow" if acl.permission is PermissionType.ALLOW else "deny"
    operation = acl.operation.name.title().replace("_", "")
    return (
        f"--{permission}-principal {_quoted(acl.principal)} --{permission}-host {_quoted(acl.host)} "
        f"--operation {operation} {resource} --resource-pattern-type {acl.pattern_type.name.lower()}"
    )


def _pattern(topic: str) -> str:
    """A topic as the regular expression that kafka-topics expects to alter and to delete."""
    return _quoted(re.sub(r"\.", r"\\.", topic))


def _quoted(text: str) -> str:
    return shlex.quote(text)
