"""A broker's directory as the leader: what real brokers have written, batch for batch, also after their cleaner ran."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest
from builders.following_roots import batches_of, copy_once, ends, following, has_offsets, make_follower
from patience import wait_until
from repository import DATA, FIXTURES

from pyspark_kafkalog.errors import LeaderUnavailableError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import read_epochs
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, TopicPartition

NAMES: Final = ("leader-epochs", "transactions", "retention")
MORE_NAMES: Final = (
    "consumer-offsets",
    "idempotent",
    "codecs-zstd",
    "codecs-snappy",
    "log-append-time",
    "out-of-order-timestamps",
    "transaction-state",
    "unclean-recovered",
    "empty",
)


def epochs_of_records(of: PartitionSnapshot) -> list[tuple[int, int]]:
    """The leader epochs in which there are records, and where each begins, at the log start at the earliest."""
    found = read_epochs(of.directory / LEADER_EPOCH_CHECKPOINT)
    return [(epoch, max(start, of.log_start_offset)) for epoch, start in found if start < of.high_watermark]


def check_copy(leader: Path, copy: Path) -> None:
    theirs, ours = LogDir.open(leader), LogDir.open(copy)
    assert theirs.topics() == ours.topics()
    for topic in theirs.topics():
        for other in theirs.topic(topic).partitions:
            mine = ours.partition(topic, other.partition)
            assert (mine.topic_id, mine.log_start_offset, mine.high_watermark, mine.last_stable_offset) == (
                other.topic_id,
                other.log_start_offset,
                other.high_watermark,
                other.last_stable_offset,
            )
            name = TopicPartition(topic, other.partition)
            assert batches_of(ours, name) == batches_of(theirs, name)
            assert epochs_of_records(mine) == epochs_of_records(other)


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.full) for name in MORE_NAMES)])
def test_copy_has_the_brokers_batches_epochs_and_offsets(name: str, tmp_path: Path) -> None:
    events = copy_once(FIXTURES / name, tmp_path / "copy")
    check_copy(FIXTURES / name, tmp_path / "copy")
    assert {each.kind for each in events} <= {EventKind.TOPIC_ADDED, EventKind.CONFIGS_CHANGED}


def latest_values(log_dir: LogDir, topic: str) -> dict[bytes, bytes]:
    """The last committed value of each key, without those that were deleted."""
    table = log_dir.read(topic, isolation="read_committed")
    latest = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    return {key: value for key, value in latest.items() if value is not None}


def test_cleaned_log_is_followed_further_from_a_copy_that_was_not_cleaned(tmp_path: Path) -> None:
    events: list[Event] = []
    for name in ("compacted-1-dirty", "compacted-2-cleaned", "compacted-3-dirty", "compacted-4-cleaned"):
        events += copy_once(FIXTURES / name, tmp_path / "copy")
        theirs, ours = LogDir.open(FIXTURES / name), LogDir.open(tmp_path / "copy")
        for topic in theirs.topics():
            assert ours.partition(topic, 0).high_watermark == theirs.partition(topic, 0).high_watermark
            assert latest_values(ours, topic) == latest_values(theirs, topic)
    assert not {each.kind for each in events} - {EventKind.TOPIC_ADDED, EventKind.CONFIGS_CHANGED}


@pytest.mark.full
def test_damaged_batch_of_the_leader_is_not_copied(tmp_path: Path) -> None:
    events: list[Event] = []
    leader = RootLeader(open_root(FIXTURES / "unclean"))
    follower = make_follower(leader, tmp_path / "copy", events, is_once=True, gives_up_after_s=2)
    with pytest.raises(LeaderUnavailableError, match="CRC-32C"):
        follower.run()
    errors = [each for each in events if each.kind is EventKind.PARTITION_ERROR]
    assert {each.topic for each in errors} == {"unclean-badcrc"}
    assert LogDir.open(tmp_path / "copy").partition("unclean-garbage", 0).high_watermark == 350


def test_topics_with_messages_of_an_old_format_are_refused_and_the_others_followed(tmp_path: Path) -> None:
    """A broker of Kafka 2.8 or later gives ids to the topics of an upgraded cluster, and keeps their messages."""
    leader, copy = tmp_path / "leader", tmp_path / "copy"
    shutil.copytree(FIXTURES / "transactions", leader)
    old = ("mixed", "v0-gzip", "v1-none")
    for number, topic in enumerate(old):
        directory = leader / f"{topic}-0"
        shutil.copytree(DATA / "old-formats" / "disk" / directory.name, directory)
        (directory / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {'A' * 20}{number}A\n")
    others = {name: end for name, end in ends(LogDir.open(leader)).items() if name.topic not in old}
    with following(RootLeader(open_root(leader)), copy) as running:
        wait_until(lambda: len(running.of_kind(EventKind.PARTITION_ERROR)) == len(old))
        wait_until(lambda: has_offsets(copy, others))
    found = {each.topic: each.detail for each in running.of_kind(EventKind.PARTITION_ERROR)}
    assert found == {
        topic: f"a follower does not copy messages from before Kafka 0.11, which {leader} has of {topic}-0 at offset "
        f"{start}: {leader / f'{topic}-0' / f'{start:020}.log'} at byte 16: expected record format v2 (magic 2), found "
        f"magic {magic}; read the topic with a Kafka client or from the broker's directory, which converts the "
        "messages, and write the records into a topic of a new root; or leave the topic out with --topic"
        for topic, start, magic in (("mixed", 0, 0), ("v0-gzip", 0, 0), ("v1-none", 0, 1))
    }
    assert not any(ends(LogDir.open(copy)).get(TopicPartition(topic, 0)) for topic in old)
