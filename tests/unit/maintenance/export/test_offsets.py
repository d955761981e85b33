"""Committed offsets in what an export hands to a broker: none of a topic that was deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders.adopted_roots import copy_of
from builders.following_roots import copy_once
from builders.root_places import RootPlace
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import FollowingRootError
from pyspark_kafkalog.groups.group import expire_offsets
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, OffsetAndMetadata, offset_key, offset_value
from pyspark_kafkalog.groups.offsets_topic import append_records, ensure_offsets_topic
from pyspark_kafkalog.maintenance.export.export import export_new_broker, export_to, return_to_broker
from pyspark_kafkalog.root.adopt import adopt as adoption
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition

P0 = TopicPartition("orders", 0)
#: When the offsets of the fixture were committed, about.
T0 = 1_700_000_000_000


def commit_without_id(log_dir: LogDir, group: str, offset: int, partition: TopicPartition = P0) -> None:
    """Commit as brokers do in transactions: the record does not have the topic's id."""
    ensure_offsets_topic(log_dir.root)
    committed = OffsetAndMetadata(offset=offset, commit_timestamp_ms=log_dir.root.native().clock())
    append_records(log_dir.root, 0, {offset_key(group, partition): offset_value(committed)})
    log_dir.refresh()


def _root(place: RootPlace) -> FileRoot | ObjectRoot:
    """A root whose topic was created again, with an offset of each of the two topics."""
    log_dir = LogDir.create(place)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
    log_dir.create_topic("orders", partitions=1)
    commit_without_id(log_dir, "before", 12)
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=1)
    commit_without_id(log_dir, "after", 3)
    root = log_dir.root.native()
    assert isinstance(root, FileRoot | ObjectRoot)
    return root


def _offsets(directory: Path) -> dict[str, dict[object, int]]:
    """The offsets in a directory as a broker reads them, which knows of no earlier topics."""
    log_dir = LogDir.open(directory)
    return {name: {of: each.offset for of, each in log_dir.group(name).fetch().items()} for name in log_dir.groups()}


def test_new_broker_gets_no_offset_of_a_deleted_topic(root_place: RootPlace, tmp_path: Path) -> None:
    export_new_broker(_root(root_place), tmp_path / "new", metadata_partitions=1)
    assert _offsets(tmp_path / "new") == {"after": {P0: 3}}


def test_new_broker_gets_no_offset_of_a_topic_that_was_not_created_again(root_place: RootPlace, tmp_path: Path) -> None:
    root = _root(root_place)
    log_dir = LogDir.open(root_place)
    log_dir.create_topic("gone", partitions=1)
    commit_without_id(log_dir, "without-id", 5, TopicPartition("gone", 0))
    commit_without_id(log_dir, "after", 6, TopicPartition("gone", 0))
    log_dir.group("with-id").commit({("gone", 0): 0})
    log_dir.delete_topic("gone")
    export_new_broker(root, tmp_path / "new", metadata_partitions=1)
    assert _offsets(tmp_path / "new") == {"after": {P0: 3}}


@pytest.mark.file_roots
def test_broker_that_gets_offsets_of_groups_gets_none_of_a_deleted_topic(tmp_path: Path) -> None:
    root = _root(tmp_path / "root")
    export_new_broker(_root(tmp_path / "other"), tmp_path / "broker", metadata_partitions=1)
    export_to(root, tmp_path / "broker", [OFFSETS_TOPIC], overwrite=True)
    assert _offsets(tmp_path / "broker") == {"after": {P0: 3}}


@pytest.mark.file_roots
def test_follower_with_offsets_of_a_deleted_topic_is_not_exported_to_a_broker(tmp_path: Path) -> None:
    _root(tmp_path / "leader")
    copy_once(tmp_path / "leader", tmp_path / "root")
    root = LogDir.open(tmp_path / "root").root.native()
    assert isinstance(root, FileRoot)
    with pytest.raises(FollowingRootError):
        export_new_broker(root, tmp_path / "new", metadata_partitions=1)
    assert not (tmp_path / "new").exists()


@pytest.mark.file_roots
def test_offsets_of_topics_on_other_brokers_go_back_to_their_broker(tmp_path: Path) -> None:
    """A disk of one of several brokers has __consumer_offsets, and not the topics that its offsets are of."""
    root = copy_of("consumer-offsets", tmp_path)
    before = _offsets(root)
    assert sum(map(len, before.values())) > 0
    adopt(root, create_missing=True)
    native = LogDir.open(root).root.native()
    assert isinstance(native, FileRoot)
    assert expire_offsets(native, now_ms=T0) == {}
    return_to_broker(native)
    export_new_broker(native, tmp_path / "new", metadata_partitions=1)
    assert _offsets(tmp_path / "new") == before


def test_topics_of_a_later_commit_of_an_adoption_have_the_offsets_of_their_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "_PARTITIONS_PER_COMMIT", 1)
    root = copy_of("consumer-offsets", tmp_path)
    shutil.copytree(FIXTURES / "cars" / "cars-0", root / "cars-0")
    adopt(root, create_missing=True)
    image = LogDir.open(root).root.native().store.image
    assert image.topic("cars").offsets_ends == ()
    assert image.has_committed("cars", None, (0, 0))
