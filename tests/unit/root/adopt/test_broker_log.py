"""Adoption with the broker's metadata log and settings: topics, configs and producer ids taken over, strays renamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.adopted_roots import (
    ID_A,
    ID_B,
    ID_C,
    clock,
    config_record,
    contents,
    copy_of,
    topic_records,
    write_metadata_log,
)
from builders.controlled import adopt_log_dir

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.config.broker import STANDARD_AUTHORIZER
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata.image import GROUP_RESOURCE
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
)
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR


@pytest.fixture
def broker_root(tmp_path: Path) -> Path:
    """A root with three partitions of one topic, and no metadata log yet."""
    return copy_of("codecs-none", tmp_path)


def topic_id_of(root: Path) -> str:
    topic_id = LogDir.open(root).topic("codecs-none").topic_id
    assert topic_id is not None
    return topic_id


def test_adoption_takes_configs_and_ids_from_metadata_log_and_keeps_it(broker_root: Path) -> None:
    topic_id = topic_id_of(broker_root)
    configs = {"retention_ms": "7", "internal_segment_bytes": "9000", "gone_in_4": "x", "segment_bytes": "1"}
    metadata = write_metadata_log(
        broker_root,
        [
            *topic_records("codecs-none", topic_id, {"leader_epoch": 5}, {}, {}, **configs),
            *topic_records("elsewhere", ID_B, {}),
            config_record(4, "", "log.retention.ms", "11"),
            config_record(4, "", "log.roll.ms", "3"),
            config_record(4, "1", "log.roll.ms", "5"),
            config_record(4, "2", "log.roll.ms", "6"),
            config_record(4, "", "background.threads", "7"),
            ProducerIdsRecord(broker_id=1, next_producer_id=4000),
        ],
    )
    files = {path.name: path.read_bytes() for path in metadata.iterdir()}
    before = contents(broker_root)
    outcome = adopt(broker_root, clock=clock)
    assert contents(broker_root) == before
    log_dir = LogDir.open(broker_root)
    assert dict(log_dir.topic("codecs-none").configs) == {"retention.ms": "7", "internal.segment.bytes": "9000"}
    assert [each.leader_epoch for each in log_dir.topic("codecs-none").partitions][:1] == [5]
    assert dict(log_dir.broker_configs()) == {"log.retention.ms": "11", "log.roll.ms": "5"}
    assert outcome.next_producer_id == 4000
    assert sum("left out" in note for note in outcome.notes) == 2
    assert any("elsewhere" in note for note in outcome.notes)
    assert outcome.kept_metadata == broker_root / KEPT_METADATA_DIR
    assert {path.name: path.read_bytes() for path in outcome.kept_metadata.iterdir()} == files


def test_configurations_of_groups_are_adopted(broker_root: Path) -> None:
    write_metadata_log(
        broker_root,
        [
            *topic_records("codecs-none", topic_id_of(broker_root), {}, {}, {}),
            config_record(GROUP_RESOURCE, "readers", "consumer.session.timeout.ms", "50000"),
            config_record(GROUP_RESOURCE, "readers", "share.isolation.level", "none"),
            config_record(GROUP_RESOURCE, "readers", "share.of.a.later.version", "1"),
            config_record(GROUP_RESOURCE, "others", "share.isolation.level", "read_committed"),
            config_record(GROUP_RESOURCE, "others", "share.isolation.level", None),
        ],
    )
    outcome = adopt(broker_root, clock=clock)
    assert LogDir.open(broker_root).group_configs() == {
        "readers": {"consumer.session.timeout.ms": "50000", "share.of.a.later.version": "1"}
    }
    (note,) = (each for each in outcome.notes if "left out" in each)
    assert note.startswith("group readers: left out share.isolation.level=none: ")


def test_server_properties_are_adopted_and_yield_to_dynamic_configs(broker_root: Path, tmp_path: Path) -> None:
    write_metadata_log(
        broker_root,
        [
            *topic_records("codecs-none", topic_id_of(broker_root), {}, {}, {}),
            config_record(4, "", "log.retention.ms", "11"),
        ],
    )
    server_properties = tmp_path / "server.properties"
    server_properties.write_text("log.retention.ms=7\nrsm.config.location=s3://bucket/t\nlisteners=PLAINTEXT://:9092\n")
    log_dir = adopt_log_dir(broker_root, server_properties=server_properties, clock=clock)
    assert dict(log_dir.broker_configs()) == {"log.retention.ms": "11", "rsm.config.location": "s3://bucket/t"}
    assert log_dir.log_config("codecs-none").retention_ms == 11


def test_what_no_broker_reads_from_its_metadata_log_is_adopted_from_server_properties_alone(
    broker_root: Path, tmp_path: Path
) -> None:
    planted = {
        "super.users": "User:eve",
        "authorizer.class.name": "x",
        "allow.everyone.if.no.acl.found": "true",
        "rsm.config.location": "/eve",
        "num.partitions": "9",
    }
    write_metadata_log(
        broker_root,
        [
            *topic_records("codecs-none", topic_id_of(broker_root), {}, {}, {}),
            *(config_record(4, node, name, value) for name, value in planted.items() for node in ("", "1")),
        ],
    )
    server_properties = tmp_path / "server.properties"
    server_properties.write_text("super.users=User:admin\n")
    outcome = adopt(broker_root, server_properties=server_properties, clock=clock)
    assert dict(LogDir.open(broker_root).broker_configs()) == {"super.users": "User:admin"}
    assert {note.split("=")[0] for note in outcome.notes if "left out" in note} == {
        f"broker: left out {name}" for name in planted
    }


def test_adopted_root_checks_entries_if_the_metadata_log_tells_that_the_cluster_did(broker_root: Path) -> None:
    write_metadata_log(
        broker_root,
        [
            *topic_records("codecs-none", topic_id_of(broker_root), {}, {}, {}),
            config_record(4, "", "super.users", "User:admin"),
        ],
    )
    log_dir = adopt_log_dir(broker_root, clock=clock)
    assert dict(log_dir.broker_configs()) == {"authorizer.class.name": STANDARD_AUTHORIZER}


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(lambda topic_id: [], id="topic was deleted"),
        pytest.param(lambda topic_id: topic_records("codecs-none", ID_A, {}, {}, {}), id="topic was re-created"),
        pytest.param(
            lambda topic_id: topic_records("codecs-none", topic_id, *[{"replicas": (2, 3)}] * 3),
            id="moved to other nodes",
        ),
    ],
)
def test_stray_partitions_are_renamed_and_not_adopted(broker_root: Path, records: Any) -> None:
    write_metadata_log(
        broker_root, [*topic_records("other", ID_C, {}), *records(topic_id_of(broker_root)), NoOpRecord()]
    )
    outcome = adopt(broker_root, clock=clock)
    assert outcome.topics == {} or "codecs-none" not in outcome.topics
    strays = sorted(path.name for path in broker_root.glob("codecs-none-?.*-stray"))
    assert [name[:13] for name in strays] == ["codecs-none-0", "codecs-none-1", "codecs-none-2"]
    assert max((broker_root / strays[0]).glob("*.log")).stat().st_size > 0


def test_partition_on_another_node_is_reported_as_missing(broker_root: Path) -> None:
    there = [{}, {}, {}, {"replicas": (2,)}]
    write_metadata_log(broker_root, topic_records("codecs-none", topic_id_of(broker_root), *there))
    with pytest.raises(LogDirError, match="missing are codecs-none: 3 of 4"):
        adopt(broker_root, clock=clock)


def test_damaged_metadata_log_is_reported(broker_root: Path) -> None:
    metadata = write_metadata_log(broker_root, [NoOpRecord()] * 50)
    log = metadata / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    with pytest.raises(LogDirError, match=r"metadata log, which is damaged .* move it out of"):
        adopt(broker_root, clock=clock)


def test_uncommitted_metadata_transactions_are_ignored(broker_root: Path) -> None:
    topic_id = topic_id_of(broker_root)
    begin, end = BeginTransactionRecord(name="migration"), EndTransactionRecord()
    write_metadata_log(
        broker_root,
        [
            begin,
            *topic_records("codecs-none", topic_id, {}, {}, {}),
            end,
            begin,
            config_record(2, "codecs-none", "retention.ms", "5"),
            AbortTransactionRecord(reason="no"),
            begin,
            config_record(2, "codecs-none", "segment.ms", "6"),
            end,
            begin,
            RemoveTopicRecord(topic_id=topic_id),
        ],
    )
    log_dir = adopt_log_dir(broker_root, clock=clock)
    assert dict(log_dir.topic("codecs-none").configs) == {"segment.ms": "6"}


def test_adoption_beside_kept_metadata_log_is_refused(broker_root: Path) -> None:
    write_metadata_log(broker_root, topic_records("codecs-none", topic_id_of(broker_root), {}, {}, {}))
    (broker_root / KEPT_METADATA_DIR).mkdir()
    with pytest.raises(LogDirError, match="holds both"):
        adopt(broker_root, clock=clock)


def test_consumer_offsets_topic_is_compacted_without_metadata_log(tmp_path: Path) -> None:
    log_dir = adopt_log_dir(copy_of("consumer-offsets", tmp_path), clock=clock)
    assert log_dir.log_config("__consumer_offsets").cleanup_policy == ("compact",)
