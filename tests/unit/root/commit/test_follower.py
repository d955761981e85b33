"""The follower's writer, for both kinds of root: what it appends, truncates and refuses, and what stays on disk."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from builders.controlled import open_log_dir
from builders.followers import NOW_MS, TOPIC, FollowerRoot, LeaderRoot, files_of, log_bytes
from builders.leader_writers import Served, append, batch, copied
from builders.root_places import RootPlace, is_object_place
from open_files import descriptors, descriptors_before

from pyspark_kafkalog.errors import (
    CommitConflictError,
    CorruptRecordError,
    FollowingEndedError,
    FollowingRootError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    UnknownTopicError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import (
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from pyspark_kafkalog.root.native import begin_following, promote
from pyspark_kafkalog.storage.artefacts.checkpoint_file import read_epochs
from pyspark_kafkalog.storage.names import encode_uuid

OTHER_ID = encode_uuid(bytes(15) + b"\x09")


@pytest.fixture
def follower(root_place: RootPlace) -> FollowerRoot:
    return FollowerRoot.create(root_place, partitions=2)


def epochs(follower: FollowerRoot, partition: int = 0) -> list[tuple[int, int]]:
    directory = follower.log_dir.path / f"{TOPIC}-{partition}"
    return [tuple(each) for each in read_epochs(directory / "leader-epoch-checkpoint")]


def offsets(follower: FollowerRoot, partition: int = 0) -> list[int]:
    follower.log_dir.refresh()
    found: list[int] = follower.log_dir.read(TOPIC, partition=partition)["offset"].to_pylist()
    return found


def directory(follower: FollowerRoot, partition: int = 0) -> Path:
    return Path(str(follower.log_dir.path)) / f"{TOPIC}-{partition}"


@pytest.mark.file_roots
def test_batches_keep_their_offsets_epochs_and_gaps(follower: FollowerRoot) -> None:
    data = copied(4, epoch=2) + copied(9, epoch=2) + copied(20, epoch=5)
    (state,) = follower.make(follower.append(data))
    assert (state.log_start_offset, state.log_end_offset, state.leader_epoch) == (0, 23, 5)
    assert log_bytes(directory(follower)) == data
    assert epochs(follower) == [(2, 4), (5, 20)]
    assert offsets(follower) == [4, 5, 6, 9, 10, 11, 20, 21, 22]


@pytest.mark.file_roots
def test_the_leader_epoch_of_the_leader_begins_at_the_log_end_until_records_say_otherwise(
    follower: FollowerRoot,
) -> None:
    (state,) = follower.make(follower.append(copied(0), leader_epoch=7))
    assert (state.leader_epoch, epochs(follower)) == (7, [(0, 0)])
    follower.make(follower.append(b"", leader_epoch=7))
    assert epochs(follower) == [(0, 0), (7, 3)]
    (state,) = follower.make(follower.append(copied(3, epoch=6)))  # the epoch began later than the follower could tell
    assert (state.leader_epoch, epochs(follower)) == (7, [(0, 0), (6, 3)])
    follower.make(follower.append(b"", leader_epoch=7))
    assert epochs(follower) == [(0, 0), (6, 3), (7, 6)]


def test_log_start_follows_the_leader_at_most_to_the_log_end(follower: FollowerRoot, root_place: RootPlace) -> None:
    (state,) = follower.make(follower.append(copied(0) + copied(3), log_start_offset=4))
    assert (state.log_start_offset, offsets(follower)) == (4, [4, 5])
    if not is_object_place(root_place):
        assert epochs(follower) == [(0, 4)]
    (state,) = follower.make(follower.append(copied(6), log_start_offset=1))
    assert state.log_start_offset == 4
    (state,) = follower.make(follower.append(b"", log_start_offset=100))
    assert (state.log_start_offset, state.log_end_offset) == (9, 9)
    assert follower.make(follower.append(copied(9)))[0].log_end_offset == 12


@pytest.mark.file_roots
def test_an_empty_log_begins_with_the_batch_that_contains_its_start(follower: FollowerRoot) -> None:
    follower.make(follower.start_at(105))
    (state,) = follower.make(follower.append(copied(100, 10) + copied(110)))
    assert (state.log_start_offset, state.log_end_offset, state.active_base_offset) == (105, 113, 100)
    assert offsets(follower) == list(range(105, 113))
    assert [path.name for path in directory(follower).glob("*.log")] == [f"{100:020d}.log"]
    (result,) = follower.commit(follower.append(copied(112)))
    assert isinstance(result, InvalidRecordError)
    assert "below the log end 113" in str(result)


def damaged(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :]


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (damaged(copied(0), 70), CorruptRecordError, "CRC-32C"),
        (copied(0)[:-1], CorruptRecordError, "whole batches"),
        (copied(3) + copied(0), CorruptRecordError, "base offset above 5"),
        (copied(0, epoch=2) + copied(3, epoch=1), CorruptRecordError, "leader epoch of 2 or more"),
        (copied(0)[:16] + b"\1" + copied(0)[17:], UnsupportedFormatError, "format"),
    ],
    ids=["damaged", "torn", "offsets fall", "epochs fall", "old format"],
)
def test_a_bad_batch_fails_its_partition_alone(
    follower: FollowerRoot, data: bytes, error: type[Exception], words: str
) -> None:
    bad, good = follower.commit(follower.append(data), follower.append(copied(0), 1))
    assert isinstance(bad, error)
    assert words in str(bad)
    assert good == follower.state(1)
    assert (follower.state().log_end_offset, offsets(follower)) == (0, [])
    assert follower.state(1).log_end_offset == 3


def test_changes_that_do_not_fit_the_log_are_refused_alone(follower: FollowerRoot) -> None:
    follower.make(follower.append(copied(0, epoch=3)))
    wrong = [
        (follower.append(copied(5), at=2), CommitConflictError, "ends at 3, not at 2"),
        (replace(follower.append(copied(3)), topic_id=OTHER_ID), UnknownTopicError, "not " + OTHER_ID),
        (follower.append(copied(3, epoch=2)), InvalidRecordError, "diverges"),
        (follower.append(copied(1, epoch=3)), InvalidRecordError, "below the log end 3"),
        (replace(follower.truncation(1), expected_end_offset=7), CommitConflictError, "not at 7"),
        (follower.append(damaged(copied(3, epoch=3), 70)), CorruptRecordError, "CRC-32C"),
        (follower.truncation(-1), OffsetOutOfRangeError, "-1"),
    ]
    for change, error, words in wrong:
        refused, good = follower.commit(change, follower.append(copied(follower.state(1).log_end_offset), 1))
        assert isinstance(refused, error), refused
        assert words in str(refused)
        assert good == follower.state(1)
    first, second = follower.commit(follower.append(copied(3, epoch=3)), follower.append(copied(6, epoch=3)))
    assert first == follower.state()
    assert isinstance(second, InvalidRecordError)
    assert offsets(follower) == list(range(6))


@pytest.mark.file_roots
def test_a_log_that_cannot_be_opened_fails_alone(follower: FollowerRoot) -> None:
    follower.make(follower.append(copied(0)), follower.append(copied(0), 1))
    (directory(follower) / f"{0:020d}.log").write_bytes(b"")
    follower.writer.close()
    damaged, good = follower.commit(follower.append(copied(3)), follower.append(copied(3), 1))
    assert isinstance(damaged, CorruptRecordError)
    assert "committed records are missing" in str(damaged)
    assert good == follower.state(1)


def test_truncation_cuts_segments_snapshots_and_epochs_and_appending_goes_on_as_without_it(tmp_path: Path) -> None:
    rng = random.Random(5)
    leader = LeaderRoot(tmp_path / "leader", rng)
    leader.write(60)
    leader.elect()
    leader.write(20)
    batches = leader.batches()
    follower = FollowerRoot.create(tmp_path / "follower")
    follower.make(follower.append(batches))
    assert len(list(directory(follower).glob("*.snapshot"))) > 3
    for keep in (75, 40, 31, 7, 0):
        inside = batches[keep].base_offset
        if batches[keep].next_offset > inside + 1:
            inside += 1  # the batch that contains the offset goes as a whole
        (state,) = follower.make(follower.truncation(inside))
        assert state == follower.state()
        plain = FollowerRoot.create(tmp_path / f"plain-{keep}")
        if keep:
            plain.make(plain.append(batches[:keep]))
        assert state.log_end_offset == batches[keep].base_offset
        assert log_bytes(directory(follower)) == log_bytes(directory(plain))
        assert epochs(follower) == (epochs(plain) if keep else [])
        for each in (follower, plain):
            each.make(each.append(batches[keep:], leader_epoch=1))
            each.writer.close()
        wanted = files_of(directory(plain))
        assert sorted(files_of(directory(follower))) == sorted(wanted)
        assert [name for name, data in files_of(directory(follower)).items() if wanted[name] != data] == []
        assert replace(follower.state(), leader_epoch=1) == plain.state()


@pytest.mark.file_roots
def test_truncation_at_or_below_the_log_start_and_a_start_elsewhere_leave_an_empty_log(follower: FollowerRoot) -> None:
    data = b"".join(copied(offset) for offset in range(0, 60, 3))
    for change, start in [
        (lambda: follower.start_at(1000), 1000),
        (lambda: follower.truncation(2), 2),
        (lambda: follower.start_at(40), 40),
        (lambda: follower.truncation(0), 0),
    ]:
        end_offset = follower.state().log_end_offset
        follower.make(follower.append(b"".join(copied(end_offset + offset) for offset in range(0, 60, 3))))
        (state,) = follower.make(change())
        assert (state.log_start_offset, state.log_end_offset) == (start, start)
        assert [path.name for path in directory(follower).glob("*.log")] == [f"{start:020d}.log"]
        assert (log_bytes(directory(follower)), offsets(follower), epochs(follower)) == (b"", [], [])
    follower.make(follower.append(data))
    assert offsets(follower) == list(range(60))


@pytest.mark.file_roots
def test_verify_finds_nothing_in_a_root_that_was_truncated(follower: FollowerRoot) -> None:
    follower.make(follower.append(b"".join(copied(offset) for offset in range(0, 60, 3))))
    follower.make(follower.truncation(30))
    follower.make(follower.append(b"".join(copied(offset) for offset in range(30, 36, 3))))
    assert verify(follower.root).findings == []


def test_a_truncated_marker_opens_its_transaction_again(tmp_path: Path) -> None:
    rng = random.Random(3)
    leader = LeaderRoot(tmp_path / "leader", rng)
    leader.write(80)
    batches = leader.batches()
    follower = FollowerRoot.create(tmp_path / "follower")
    follower.make(follower.append(batches))
    found = 0
    for keep in range(len(batches) - 1, 40, -1):
        (state,) = follower.make(follower.truncation(batches[keep].base_offset))
        plain = FollowerRoot.create(tmp_path / f"plain-{keep}")
        (wanted,) = plain.make(plain.append(batches[:keep]))
        assert state.first_unstable_offset == wanted.first_unstable_offset
        found += state.first_unstable_offset >= 0
    assert found


@pytest.mark.file_roots
def test_a_follower_that_rolls_segments_has_no_more_files_open(follower: FollowerRoot, tmp_path: Path) -> None:
    leader = LeaderRoot(tmp_path / "leader", random.Random(4))
    leader.write(80)
    batches = leader.batches()
    follower.make(follower.append(batches[:1]))
    before = descriptors_before()
    for begin in range(1, len(batches), 20):
        follower.make(follower.append(batches[begin : begin + 20]))
    assert len(list(directory(follower).glob("*.log"))) > 4
    # The active segment has one file more after an aborted transaction.
    assert descriptors() <= before + 1


def test_other_writers_and_an_earlier_follower_are_refused_and_leave_nothing(
    follower: FollowerRoot, root_place: RootPlace
) -> None:
    follower.make(follower.append(copied(0, epoch=4)))
    with pytest.raises(FollowingRootError, match="promote"):
        Served(root_place).append(append(batch(), TOPIC))
    later = FollowerRoot(root_place)
    with pytest.raises(FollowingEndedError, match="taken over"):
        follower.commit(follower.append(copied(3)))
    later.make(later.append(copied(3, epoch=4)))
    promote(later.root)
    with pytest.raises(FollowingEndedError, match="promoted"):
        later.commit(later.append(copied(6, epoch=4)))
    assert offsets(follower) == list(range(6))
    Served(root_place).append(append(batch(), TOPIC))
    assert (later.state().log_end_offset, later.state().leader_epoch) == (9, 5)


def test_following_begins_again_for_the_same_cluster_only(follower: FollowerRoot) -> None:
    root = follower.root
    again = begin_following(root, leader="b:9092", cluster_id="the leader's", topics="x")
    following = root.store.refresh().following
    assert following is not None
    assert again != follower.following_id
    assert (following.following_id, following.leader, following.topics) == (again, "b:9092", "x")
    with pytest.raises(FollowingRootError, match="follows b:9092, whose cluster id is the leader's, not c:9092"):
        begin_following(root, leader="c:9092", cluster_id="another", topics="x")


@pytest.mark.file_roots
def test_topics_are_created_removed_and_extended_with_their_directories(follower: FollowerRoot) -> None:
    root = Path(str(follower.log_dir.path))
    old_id = follower.topic_id

    def replaced(image: MetadataImage) -> list[MetadataRecord]:
        return [
            RemoveTopicRecord(topic_id=old_id),
            TopicRecord(name=TOPIC, topic_id=OTHER_ID),
            *(PartitionRecord(partition_id=each, topic_id=OTHER_ID) for each in range(3)),
        ]

    follower.make(follower.append(copied(0)))
    assert follower.commit(records=replaced) == []
    assert sorted(path.name for path in root.glob(f"{TOPIC}-?")) == [f"{TOPIC}-{each}" for each in range(3)]
    assert len(list(root.glob(f"{TOPIC}-*-delete"))) == 2
    assert follower.topic_id == OTHER_ID
    follower.make(follower.start_at(50, 2))
    follower.commit(records=lambda image: [PartitionRecord(partition_id=3, topic_id=OTHER_ID)])
    (state, _) = follower.make(follower.append(copied(50), 2), follower.append(copied(0), 3))
    assert state.log_end_offset == 53


def test_producer_ids_of_the_leader_are_never_handed_out(follower: FollowerRoot) -> None:
    follower.make(follower.append(copied(0, producer=(41, 0, 0)) + copied(3, producer=(7, 0, 0))))
    assert follower.root.store.refresh().next_producer_id == 42
    follower.make(follower.append(copied(6, producer=(12, 0, 0))))
    assert follower.root.store.refresh().next_producer_id == 42


def test_all_of_a_commit_is_readable_at_once_by_others(follower: FollowerRoot, root_place: RootPlace) -> None:
    reader = open_log_dir(root_place, clock=lambda: NOW_MS)
    follower.make(follower.append(copied(0)), follower.append(copied(0), 1))
    reader.refresh()
    assert [reader.partition(TOPIC, each).high_watermark for each in range(2)] == [3, 3]
