"""Topic configurations from a broker's metadata log, and reads that go on when that log is damaged."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from repository import FIXTURES

from pyspark_kafkalog.metadata.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from pyspark_kafkalog.root.brokers import image
from pyspark_kafkalog.root.brokers.image import (
    BrokerMetadata,
    committed_records,
    read_broker_metadata,
    read_topic_configs,
)

BROKER = FIXTURES / "cluster-metadata"


DUMPS = BROKER / "expected" / "dump" / "__cluster_metadata-0"
SNAPSHOT = "00000000000000000286-0000000003.checkpoint"
SNAPSHOT_END_OFFSET = 286


def _expected() -> dict[str, dict[str, str]]:
    """From what Kafka's own tool prints of the newest snapshot and of the log after it."""
    names: dict[str, str] = {}
    configs: dict[str, dict[str, str]] = {}
    for dump, start_offset in ((SNAPSHOT, 0), ("00000000000000000240.log", SNAPSHOT_END_OFFSET)):
        for line in (DUMPS / f"{dump}.decoded.txt").read_text().splitlines():
            found = re.match(r"\| offset: (\d+) .* payload: (\{.*\})$", line)
            if found is None or int(found[1]) < start_offset:
                continue
            metadata_record = json.loads(found[2])
            data = metadata_record["data"]
            if metadata_record["type"] == "TOPIC_RECORD":
                names[data["topicId"]] = data["name"]
            elif metadata_record["type"] == "REMOVE_TOPIC_RECORD":
                configs.pop(names[data["topicId"]], None)
            elif metadata_record["type"] == "CONFIG_RECORD" and data["resourceType"] == 2:
                configs.setdefault(data["resourceName"], {})[data["name"]] = data["value"]
    return configs


def test_topic_configs_equal_those_kafkas_tool_prints() -> None:
    expected = _expected()
    assert len(expected) > 10
    assert {name: dict(found) for name, found in read_topic_configs(BROKER).items() if found} == expected


def test_directory_without_metadata_log_has_no_topic_configs() -> None:
    assert read_topic_configs(FIXTURES / "cars") == {}


def test_damaged_snapshot_is_reported_and_older_one_used(tmp_path: Path) -> None:
    shutil.copytree(BROKER / "__cluster_metadata-0", tmp_path / "log")
    whole = read_broker_metadata(tmp_path / "log")
    assert whole.damage is None
    snapshot = tmp_path / "log" / SNAPSHOT
    snapshot.chmod(0o600)
    snapshot.write_bytes(snapshot.read_bytes()[:-20])
    older = read_broker_metadata(tmp_path / "log")
    assert older.damage is not None
    assert SNAPSHOT in older.damage
    assert {name: topic.topic_id for name, topic in older.topics.items()} == {
        name: topic.topic_id for name, topic in whole.topics.items()
    }, "the snapshot before and the log after it say the same"


def test_gap_in_metadata_log_is_reported_as_damage(tmp_path: Path) -> None:
    shutil.copytree(BROKER / "__cluster_metadata-0", tmp_path / "log")
    for snapshot in (tmp_path / "log").glob("*.checkpoint"):
        snapshot.unlink()
    (tmp_path / "log" / "00000000000000000000.log").unlink()
    assert read_broker_metadata(tmp_path / "log").damage is not None


def test_torn_metadata_log_and_damaged_snapshot_raise_no_error(tmp_path: Path) -> None:
    shutil.copytree(BROKER, tmp_path / "root")
    last = max((tmp_path / "root" / "__cluster_metadata-0").glob("*.log"))
    data = last.read_bytes()
    for kept in (0, 5, 61, len(data) // 2, len(data) - 1):
        last.write_bytes(data[:kept])
        read_topic_configs(tmp_path / "root")
    (last.parent / SNAPSHOT).write_bytes(b"\xff" * 99)
    read_topic_configs(tmp_path / "root")


def test_contradictory_records_leave_consistent_metadata() -> None:
    rng = random.Random(5)
    ids, names = ["AAAAAAAAAAAAAAAAAAAAQQ", "AAAAAAAAAAAAAAAAAAAAQg"], ["a", "b"]
    makers = [
        lambda: TopicRecord(name=rng.choice(names), topic_id=rng.choice(ids)),
        lambda: RemoveTopicRecord(topic_id=rng.choice(ids)),
        lambda: PartitionRecord(topic_id=rng.choice(ids), partition_id=rng.randrange(-2, 3)),
        lambda: PartitionChangeRecord(topic_id=rng.choice(ids), partition_id=rng.randrange(-2, 3), leader=1),
        lambda: ConfigRecord(
            resource_type=rng.randrange(40),
            resource_name=rng.choice(names),
            name="retention.ms",
            value=rng.choice(["1", None]),
        ),
        lambda: BeginTransactionRecord(name="x"),
        lambda: EndTransactionRecord(),
        lambda: AbortTransactionRecord(reason="x"),
    ]
    for _ in range(200):
        metadata = BrokerMetadata()
        for each in committed_records(iter([rng.choice(makers)() for _ in range(40)])):
            metadata.apply(each)
        assert all(topic.name == name for name, topic in metadata.topics.items())
        assert all(number >= 0 for topic in metadata.topics.values() for number in topic.partitions)


def test_large_snapshot_is_read_without_being_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = BROKER / "__cluster_metadata-0"
    expected = read_broker_metadata(directory)
    assert expected.topic_configs == _expected()
    monkeypatch.setattr(image, "_KEPT_BYTES_MAX", 100)
    assert read_broker_metadata(directory) == expected


def test_batch_that_no_controller_writes_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "_BATCH_BYTES_MAX", 50)
    damage = read_broker_metadata(BROKER / "__cluster_metadata-0").damage
    assert damage is not None
    assert "expected a batch of at most 50 bytes" in damage
