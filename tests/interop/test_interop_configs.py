"""The configurations of topics and of groups are those that Kafka's own classes define, of each version.

`since` of a configuration decides what is expected of a version: a configuration of a later one is expected to be
missing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest
from java_processes import QUICK_START, java
from kafka_oracle import KAFKA_VERSION, OLDEST_VERSION, kafka_lib

from pyspark_kafkalog.config.group import BROKER_NAMES, GROUP_CONFIGS
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.version import KafkaVersion

PROGRAM: Final = Path(__file__).parents[1] / "data" / "KafkaConfigs.java"
#: Name, type, default, broker-level names.
Described = tuple[str, str, str, str]

pytestmark = [
    pytest.mark.all_cases,
    pytest.mark.parametrize("version", sorted({OLDEST_VERSION, KAFKA_VERSION}), ids=str),
]


def defined(kind: str, version: KafkaVersion) -> list[Described]:
    """See KafkaConfigs.java."""
    command = [java(), *QUICK_START, "-cp", f"{kafka_lib(version)}/*", str(PROGRAM)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = []
    for line in printed.splitlines():
        of, name, type_, default, broker_names = line.split("\t")
        if of == kind:
            found.append((name, type_, default, broker_names))
    return sorted(found)


def test_topic_configs_are_those_of_kafka(version: KafkaVersion) -> None:
    ours: list[Described] = []
    for config in TOPIC_CONFIGS.values():
        if config.definition.since <= version:
            names = ",".join(each.definition.name for each in config.synonyms)
            ours.append((config.name, config.definition.type.value, config.definition.default_text, names))
    assert sorted(ours) == defined("topic", version)


def test_group_configs_are_those_of_kafka(version: KafkaVersion) -> None:
    found = defined("group", version)
    ours = [(each.name, each.type.value, each.default_text) for each in GROUP_CONFIGS.values() if each.since <= version]
    assert sorted(ours) == [each[:3] for each in found]
    for name, _, _, broker_name in found:
        if name in BROKER_NAMES and broker_name != "?":
            assert BROKER_NAMES[name] == broker_name
