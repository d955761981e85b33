"""The configurations of topics and of groups: as Kafka's own classes define them, and on the way from a broker.

`since` of a configuration decides what is expected of a version: a configuration of a later one is expected to be
missing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest
from builders.following_roots import following, has_offsets
from kafka_processes.java_processes import QUICK_START, java
from kafka_processes.oracle import CONFIG_COMMAND, KAFKA_VERSION, OLDEST_VERSION, Broker, kafka_lib, run_tool
from kafka_processes.served import serve
from kafkalog_command import Command
from patience import wait_until
from repository import DATA
from tiers import rest_full

from pyspark_kafkalog.config.definitions import FIRST_VERSION, ConfigDefinition
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.server.config import Address, ServerConfig
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.version import KafkaVersion

PROGRAM: Final = DATA / "KafkaConfigs.java"
#: Name, type, default, broker-level names.
Described = tuple[str, str, str, str]
DEFINITIONS: Final = (*(each.definition for each in TOPIC_CONFIGS.values()), *GROUP_CONFIGS.values())
#: The first version that has all configurations.
COMPLETE: Final = max(KAFKA_VERSION, *(each.since for each in DEFINITIONS))
#: Values of configurations whose default cannot be set.
VALUES: Final = {
    "errors.deadletterqueue.topic.name": "dead",
    "streams.assignor.name": "sticky",
    "streams.rack.aware.assignment.tags": "zone",
}

both_versions = pytest.mark.parametrize("version", sorted({OLDEST_VERSION, KAFKA_VERSION}), ids=str)


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


@pytest.mark.all_cases
@both_versions
def test_topic_configs_are_those_of_kafka(version: KafkaVersion) -> None:
    ours: list[Described] = []
    for config in TOPIC_CONFIGS.values():
        if config.definition.since <= version and not config.definition.is_own:
            names = ",".join(each.definition.name for each in config.synonyms)
            ours.append((config.name, config.definition.type.value, config.definition.default_text, names))
    assert sorted(ours) == defined("topic", version)


@pytest.mark.all_cases
@both_versions
def test_group_configs_are_those_of_kafka(version: KafkaVersion) -> None:
    found = defined("group", version)
    ours = [(each.name, each.type.value, each.default_text) for each in GROUP_CONFIGS.values() if each.since <= version]
    assert sorted(ours) == [each[:3] for each in found]
    for name, _, _, broker_name in found:
        if broker_name not in ("?", "group.streams.assignors"):  # of that list a group names one
            assert (GROUP_CONFIGS[name].broker_name or "") == broker_name


def new_configs(definitions: Iterable[ConfigDefinition], version: KafkaVersion) -> dict[str, str]:
    """The configurations that `version` has and the first version does not have, with a value."""
    return {
        each.name: VALUES.get(each.name, each.default_text)
        for each in definitions
        if FIRST_VERSION < each.since <= version
    }


@pytest.mark.parametrize("version", rest_full(sorted({KAFKA_VERSION, COMPLETE})), ids=str)
def test_following_and_adopting_a_cluster_take_all_new_configurations(
    start_broker: Callable[..., Broker], version: KafkaVersion, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = start_broker(version=version).start()
    of_topic = new_configs((each.definition for each in TOPIC_CONFIGS.values()), version)
    of_group = new_configs(GROUP_CONFIGS.values(), version)
    assert of_group
    broker.create_topic("orders", 1, of_topic)
    settings = ",".join(f"{name}={value}" for name, value in of_group.items())
    arguments = ("--alter", "--group", "readers", "--add-config", settings)
    done = run_tool(CONFIG_COMMAND, "--bootstrap-server", broker.bootstrap, *arguments, version=version)
    assert done.returncode == 0, done.stderr

    copy = tmp_path / "copy"
    with following(ClusterLeader(broker.bootstrap), copy) as running:
        wait_until(lambda: has_offsets(copy, {TopicPartition("orders", 0): 0}))
        wait_until(lambda: LogDir.open(copy).group_configs() == {"readers": of_group})
    assert running.of_kind(EventKind.CONFIGS_REFUSED) == []
    broker.stop()
    assert "left out" not in Command("adopt", broker.data, capsys)()

    for root in (copy, broker.data):
        log_dir = LogDir.open(root)
        assert log_dir.group_configs() == {"readers": of_group}
        assert log_dir.topic("orders").configs.items() >= of_topic.items()


@pytest.mark.full
def test_record_too_large_after_decompression_is_refused_as_by_a_broker(
    start_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    name = "max.decompressed.message.bytes"
    broker = start_broker(version=max(KAFKA_VERSION, TOPIC_CONFIGS[name].definition.since)).start()
    broker.create_topic("bounded", 1, {name: "1000"})
    LogDir.create(tmp_path / "log").create_topic("bounded", 1, {name: "1000"})
    with serve(tmp_path / "log", ServerConfig(listen=Address("127.0.0.1", 0), flush="os")) as served:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            for size in (900, 990, 991, 992, 993, 994, 995, 996, 2000, 900_000):
                answers = [produced(each, codec, size) for each in (broker.bootstrap, served)]
                assert answers[0] == answers[1], (codec, size)
            assert answers[0] == (None if codec == "none" else "INVALID_RECORD")
        assert (
            looked_up(broker.bootstrap, name) == looked_up(served, name) == [0, "INVALID_RECORD", "INVALID_RECORD", 3]
        )


def looked_up(bootstrap: str, limit: str) -> list[int | str]:
    """The offsets of a time, of a later one, of the largest time and of the end, or the names of errors.

    The second of three records has the largest time. It is larger than the topic allows since.
    """
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka import TopicPartition as Partition
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("timed", 1, 1)])["timed"].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "gzip", "log_level": 0})
    for size, time_ms in ((10, 1000), (5000, 3000), (10, 2000)):
        producer.produce("timed", b"v" * size, timestamp=time_ms)
        assert producer.flush(30) == 0
    entry = ConfigEntry(limit, "1000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, "timed", incremental_configs=[entry])
    admin.incremental_alter_configs([topic])[topic].result(30)
    found: list[int | str] = []
    for spec in (
        OffsetSpec.for_timestamp(500),
        OffsetSpec.for_timestamp(1500),
        OffsetSpec.max_timestamp(),
        OffsetSpec.latest(),
    ):
        [future] = admin.list_offsets({Partition("timed", 0): spec}).values()
        try:
            found.append(future.result(30).offset)
        except KafkaException as error:
            found.append(error.args[0].name())
    return found


def produced(bootstrap: str, codec: str, size: int) -> str | None:
    """The name of the error for a record with a value of that size, if it is refused."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "log_level": 0})
    told: list[str | None] = []
    value = b"v" * size
    producer.produce(
        "bounded", value, partition=0, on_delivery=lambda error, _: told.append(None if error is None else error.name())
    )
    assert producer.flush(30) == 0
    return told[0]
