"""Small things that the tests of the commit log and its snapshots share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark_kafkalog.metadata import store as store_module
from pyspark_kafkalog.metadata.commit_log import encode_commit
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.local.log import LocalCommitLog
from pyspark_kafkalog.metadata.messages.metadata_records import (
    DataObjectRecord,
    FormatRecord,
    MetadataRecord,
    Run,
    TopicRuns,
)
from pyspark_kafkalog.metadata.root_format import FIRST_FORMAT_VERSION, metadata_dir, write_marker
from pyspark_kafkalog.metadata.snapshots import SnapshotId
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.admin import broker_config_record, create_topic
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.log.log_state import LogState


def forget_images() -> None:
    """As in a new process: nothing is cached."""
    store_module._CACHE._images.clear()


def add_topic(
    store: MetadataStore, name: str = "orders", partitions: int = 2, configs: Mapping[str, str] | None = None
) -> str:
    """Create a topic; its id."""
    outcome = store.commit(
        lambda image: create_topic(image, name, partitions=partitions, configs=configs), operation="create topic"
    )
    return outcome.image.topic(name).topic_id


def write_to(store: MetadataStore, topic_id: str, end: int, *, partition: int = 0) -> None:
    """A commit that moves one partition's end; in an object root by naming an object that does not exist."""

    def build(image: MetadataImage) -> list[MetadataRecord]:
        if not image.format.in_object_store:
            state = LogState(log_end_offset=end, active_size_bytes=end * 10)
            return [partition_state_record(topic_id, partition, state)]
        before = image.topics[image.topic_names[topic_id]].partitions[partition].state.log_end_offset
        run = Run(partition=partition, size_bytes=100, offsets_count=end - before, batches_count=1)
        topics = (TopicRuns(topic_id=topic_id, runs=(run,)),)
        return [
            DataObjectRecord(key="data/none-0-0-0.batches", size_bytes=100, planned_at=image.next_offset, topics=topics)
        ]

    store.commit(build, operation="write")


def settings_of(store: MetadataStore, configs: Mapping[str, str | None]) -> None:
    """A commit that changes broker-level settings, None back to their defaults."""
    store.commit(lambda image: [broker_config_record(*each) for each in configs.items()], operation="alter")


def as_first_format(root: Path) -> None:
    """Make a root of its first commit alone one as the first versions of the package created it."""
    directory = metadata_dir(root)
    log = LocalCommitLog(directory)
    commit = log.read(0)
    assert commit is not None
    first = FormatRecord(format_version=FIRST_FORMAT_VERSION)
    records = [first if isinstance(each, FormatRecord) else each for each in commit.records]
    log.path(0).write_bytes(encode_commit(0, records, commit.timestamp_ms))
    write_marker(directory, LOCAL, FIRST_FORMAT_VERSION)
    forget_images()


def commit_files(root: Path) -> list[Path]:
    """The commits' files, oldest first."""
    return sorted(metadata_dir(root).glob("*.log"))


def snapshot_files(root: Path) -> list[Path]:
    """The snapshots' files, oldest first."""
    return sorted(path for path in metadata_dir(root).iterdir() if SnapshotId.parse(path.name) is not None)
