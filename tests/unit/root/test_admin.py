"""Several topics changed in one commit: what is possible is done, the rest is refused one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from builders.root_places import RootPlace
from builders.staged_writes import Syncs

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    TopicDeletionDisabledError,
    TopicExistsError,
    UnknownTopicError,
)
from pyspark_kafkalog.root.admin import TopicChange, create_topic
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.storage.artefacts.marker_files import read_topic_id


@pytest.fixture
def root(root_place: RootPlace) -> NativeRoot:
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("there")
    return log_dir.root.native()


def creation(name: str, partitions: int = 1, **configs: str) -> TopicChange:
    return TopicChange(
        name,
        lambda image: create_topic(
            image, name, partitions=partitions, configs={key.replace("_", "."): text for key, text in configs.items()}
        ),
    )


def classes(errors: Sequence[BaseException | None]) -> list[type | None]:
    return [None if each is None else type(each) for each in errors]


def test_topics_are_created_in_one_commit_but_for_those_that_are_refused(root: NativeRoot) -> None:
    version = root.version
    errors = root.change_topics(
        [
            creation("first", 3, retention_ms="5"),
            creation("there"),
            creation("bad name"),
            creation("none", 0),
            creation("wrong", retention_ms="x"),
            creation("second"),
        ],
        operation="create topics",
    )
    assert classes(errors) == [
        None,
        TopicExistsError,
        InvalidTopicError,
        InvalidPartitionsError,
        InvalidConfigError,
        None,
    ]
    assert root.topics() == ("first", "second", "there")
    assert len(root.partition_numbers("first")) == 3
    assert [each.topics for each in root.history(limit=1)] == [("first", "second")]
    assert [each.offset for each in root.history(limit=1)] == [version]


def test_changes_that_are_only_validated_commit_nothing(root: NativeRoot) -> None:
    version = root.version
    errors = root.change_topics([creation("first"), creation("there")], operation="create topics", validate_only=True)
    assert classes(errors) == [None, TopicExistsError]
    assert root.version == version
    assert root.topics() == ("there",)


def test_topics_are_deleted_in_one_commit_if_they_have_the_ids(root: NativeRoot) -> None:
    root.create_topic("other")
    root.create_topic("third")
    ids = {name: root.topic(name).topic_id for name in root.topics()}
    errors = root.delete_topics({"other": ids["other"], "there": ids["third"], "third": None, "nope": None})
    assert classes(errors) == [None, UnknownTopicError, None, UnknownTopicError]
    assert root.topics() == ("there",)
    assert [each.topics for each in root.history(limit=1)] == [("other", "third")]


def test_no_topic_is_deleted_while_that_is_disabled(root: NativeRoot) -> None:
    root.alter_broker_configs(add={"delete.topic.enable": "false"})
    assert classes(root.delete_topics({"there": None, "nope": None})) == [TopicDeletionDisabledError, UnknownTopicError]
    assert root.topics() == ("there",)


def test_all_topics_of_one_commit_have_their_directories(tmp_path: Path) -> None:
    root = LogDir.create(tmp_path / "log").root.native()
    errors = root.change_topics([creation("a", 2), creation("b"), creation("c", 3)], operation="create topics")
    assert errors == (None, None, None)
    made = sorted(each.parent.name for each in (tmp_path / "log").glob("*/partition.metadata"))
    assert made == ["__cluster_metadata-0", "a-0", "a-1", "b-0", "c-0", "c-1", "c-2"]


def test_commit_without_a_possible_change_makes_no_directories(tmp_path: Path) -> None:
    root = LogDir.create(tmp_path / "log").root.native()
    assert classes(root.change_topics([creation("bad name")], operation="create topics")) == [InvalidTopicError]
    assert [each.name for each in (tmp_path / "log").iterdir() if each.is_dir()] == ["__cluster_metadata-0"]


def test_waits_for_the_disk_do_not_grow_with_the_partitions(tmp_path: Path) -> None:
    waits = {}
    for partitions in (1, 150):
        disk = Syncs()
        log_dir = create_log_dir(tmp_path / str(partitions), fs=disk)
        disk.names.clear()
        log_dir.create_topic("orders", partitions)
        waits[partitions] = len(disk.names)
    assert waits[150] == waits[1]


@pytest.mark.usefixtures("one_commit_a_file")
def test_first_write_makes_the_directory_of_its_partition_durable(tmp_path: Path) -> None:
    disk = Syncs()
    log_dir = create_log_dir(tmp_path / "root", fs=disk)
    log_dir.create_topic("orders", 3)
    disk.names.clear()
    log_dir.append("orders", pa.table({"value": [b"x"]}), partition=1)
    before_visible = disk.names[: disk.names.index("__cluster_metadata-0")]
    assert {"partition.metadata", "00000000000000000000.log", "orders-1"} <= set(before_visible)
    assert "orders-1" not in disk.names[len(before_visible) :]
    assert "orders-0" not in disk.names


def test_ids_that_a_power_failure_has_lost_are_written_by_who_writes_records(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("orders", 450)
    (tmp_path / "root" / "orders-7" / "partition.metadata").write_bytes(b"")
    (tmp_path / "root" / "orders-8" / "partition.metadata").unlink()
    for number in (7, 8):
        log_dir.append("orders", pa.table({"value": [b"x"]}), partition=number)
    assert log_dir.topic("orders").partitions[8].high_watermark == 1
    for number in (7, 8, 449):
        path = tmp_path / "root" / f"orders-{number}" / "partition.metadata"
        assert read_topic_id(path) == log_dir.topic("orders").topic_id
