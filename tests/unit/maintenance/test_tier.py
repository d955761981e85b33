"""Copying closed segments to remote storage: what is due, the commit, and two runs at once."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from builders.root_places import memory_root, open_as, store_of
from builders.tiered_roots import TOPIC, append_rounds, file_root, log_bytes, no_lock, remote_bytes, tiered_root
from fakes.faulty_store import Call, Fault, FaultyStore

from pyspark_kafkalog.errors import InvalidConfigError, LogDirError, ReadOnlyLogDirError, UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance import tier
from pyspark_kafkalog.maintenance.jobs.partition import ANOTHER_RUN, partition_lock
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import due, tier_segments
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, TopicPartition, segment_file
from pyspark_kafkalog.storage.segment.stored import closed_segments

P0 = TopicPartition(TOPIC, 0)


@pytest.fixture(params=["aiven", "local"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def partition_of(log_dir: LogDir, number: int = 0, topic: str = TOPIC) -> PartitionImage:
    return file_root(log_dir).store.refresh().partition(topic, number)


def segments_of(log_dir: LogDir, number: int = 0) -> tuple[SegmentObject, ...]:
    return partition_of(log_dir, number).segments


def offsets(log_dir: LogDir, number: int = 0) -> list[tuple[int, int]]:
    """The offsets of the closed segments."""
    directory = file_root(log_dir).path / f"{TOPIC}-{number}"
    closed = closed_segments(directory, partition_of(log_dir, number).state.active_base_offset)
    return [(each.base_offset, each.end_offset) for each in closed]


def test_closed_segments_are_copied_and_the_active_one_is_not(tmp_path: Path, layout: str) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store", layout=layout)
    append_rounds(log_dir, 12)
    closed = offsets(log_dir)
    assert len(closed) > 2

    (report,) = tier_segments(log_dir.root)

    assert report.error is None
    assert (report.segments_copied, report.remote_end_offset) == (len(closed), closed[-1][1])
    assert report.bytes_copied == sum(each.size_bytes for each in segments_of(log_dir))
    assert [(each.base_offset, each.end_offset) for each in segments_of(log_dir)] == closed
    assert remote_bytes(log_dir, P0) == log_bytes(log_dir, P0, closed[-1][1])


def test_next_run_goes_on_behind_what_is_copied(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    append_rounds(log_dir, 12)
    tier_segments(log_dir.root)
    (idle,) = tier_segments(log_dir.root)
    assert (idle.segments_copied, idle.error, idle.skipped) == (0, None, None)
    append_rounds(log_dir, 12)
    (report,) = tier_segments(log_dir.root)
    assert report.segments_copied > 0
    assert [(each.base_offset, each.end_offset) for each in segments_of(log_dir)] == offsets(log_dir)
    assert remote_bytes(log_dir, P0) == log_bytes(log_dir, P0, report.remote_end_offset or 0)


def test_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    append_rounds(log_dir, 12)
    (planned,) = tier_segments(log_dir.root, dry_run=True)
    assert list((tmp_path / "store").iterdir()) == []
    assert segments_of(log_dir) == ()
    (done,) = tier_segments(log_dir.root)
    assert (planned.segments_copied, planned.bytes_copied) == (done.segments_copied, done.bytes_copied)
    assert planned.remote_end_offset == done.remote_end_offset


def test_several_partitions_share_a_commit_and_a_large_backlog_takes_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store", partitions=3)
    for number in range(3):
        append_rounds(log_dir, 9, partition=number)
    before = len([each for each in log_dir.history() if each.operation == tier.ACTION])
    tier_segments(log_dir.root)
    log_dir.refresh()
    assert len([each for each in log_dir.history() if each.operation == tier.ACTION]) == before + 1

    for number in range(3):
        append_rounds(log_dir, 9, partition=number)
    monkeypatch.setattr(tier, "COMMIT_BYTES", 1)
    reports = tier_segments(log_dir.root)
    segments_count = sum(each.segments_copied for each in reports)
    log_dir.refresh()
    assert segments_count > 3
    assert len([each for each in log_dir.history() if each.operation == tier.ACTION]) == before + 1 + segments_count
    for number in range(3):
        assert [(each.base_offset, each.end_offset) for each in segments_of(log_dir, number)] == offsets(
            log_dir, number
        )


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"remote_storage_enable": "false"}, "remote.storage.enable is not true"),
        ({"remote_log_copy_disable": "true"}, "remote.log.copy.disable is true"),
    ],
)
def test_topic_that_is_not_tiered_is_skipped_with_the_reason(
    tmp_path: Path, configs: dict[str, str], reason: str
) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store", **configs)
    append_rounds(log_dir, 12)
    (report,) = tier_segments(log_dir.root)
    assert (report.skipped, report.segments_copied) == (reason, 0)
    assert segments_of(log_dir) == ()


def test_segments_below_the_log_start_are_left_out_and_the_one_with_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    append_rounds(log_dir, 12)
    second = offsets(log_dir)[1]
    delete_records(log_dir.root, {P0: second[0] + 3})
    tier_segments(log_dir.root)
    assert (segments_of(log_dir)[0].base_offset, segments_of(log_dir)[0].end_offset) == second


def test_copies_go_on_when_all_earlier_ones_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    append_rounds(log_dir, 12)
    tier_segments(log_dir.root)
    append_rounds(log_dir, 12)
    delete_records(log_dir.root, {P0: offsets(log_dir)[-2][0] + 1})
    assert segments_of(log_dir) == ()
    tier_segments(log_dir.root)
    assert [(each.base_offset, each.end_offset) for each in segments_of(log_dir)] == offsets(log_dir)[-2:]


def test_merge_crosses_no_end_of_copies(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    append_rounds(log_dir, 8)
    tier_segments(log_dir.root)
    end = segments_of(log_dir)[-1].end_offset
    append_rounds(log_dir, 8)
    log_dir.alter_topic(TOPIC, add={"internal.segment.bytes": "1000000"})
    assert merge_segments(log_dir.root)[0].segments_dropped > 0
    assert end in {base for base, _ in offsets(log_dir)}
    (report,) = tier_segments(log_dir.root)
    assert (report.error, report.segments_copied) == (None, 1)
    assert remote_bytes(log_dir, P0) == log_bytes(log_dir, P0, report.remote_end_offset or 0)


def test_missing_files_behind_the_copies_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    append_rounds(log_dir, 8)
    tier_segments(log_dir.root)
    end = segments_of(log_dir)[-1].end_offset
    append_rounds(log_dir, 8)
    segment_file(tmp_path / "log" / str(P0), end, LOG_SUFFIX).unlink()
    (report,) = tier_segments(log_dir.root)
    assert f"expected a closed segment with offset {end}, where its copies end" in (report.error or "")
    assert segments_of(log_dir)[-1].end_offset == end


def test_run_with_nothing_due_takesno_lock(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    append_rounds(log_dir, 1)
    with partition_lock(tmp_path / "log" / str(P0)) as is_mine:
        assert is_mine
        (report,) = tier_segments(log_dir.root)
    assert (report.skipped, report.error) == (None, None)


def test_segment_with_an_open_transaction_waits_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    append_rounds(log_dir, 12)
    second = offsets(log_dir)[1]
    partition = partition_of(log_dir)
    held = replace(partition, state=replace(partition.state, first_unstable_offset=second[0] + 1))
    closed = closed_segments(tmp_path / "log" / str(P0), partition.state.active_base_offset)
    assert [(each.base_offset, each.end_offset) for each in due(held, closed)] == offsets(log_dir)[:1]
    assert len(due(partition, closed)) == len(closed)


def test_damaged_segment_and_all_after_it_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store", partitions=2)
    append_rounds(log_dir, 12)
    append_rounds(log_dir, 12, partition=1)
    third = offsets(log_dir)[2][0]
    path = segment_file(tmp_path / "log" / str(P0), third, LOG_SUFFIX)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    damaged, sound = tier_segments(log_dir.root)
    assert "CRC-32C" in (damaged.error or "")
    assert str(path) in (damaged.error or "")
    assert [each.end_offset for each in segments_of(log_dir)][-1] == third
    assert (sound.error, sound.segments_copied) == (None, len(offsets(log_dir, 1)))


def test_log_without_leader_epochs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    append_rounds(log_dir, 12)
    (tmp_path / "log" / str(P0) / LEADER_EPOCH_CHECKPOINT).write_text("0\n0\n")
    (report,) = tier_segments(log_dir.root)
    assert "expected the leader epoch of offset 0, found none" in (report.error or "")


def test_store_that_refuses_ends_the_run_with_its_error_for_all_that_is_left(tmp_path: Path) -> None:
    log_dir = tiered_root(tmp_path / "log", tmp_path / "absent", partitions=2)
    for number in range(2):
        append_rounds(log_dir, 12, partition=number)
    for report in tier_segments(log_dir.root):
        assert "no such directory of remote storage" in (report.error or "")


def test_of_two_runs_at_once_one_copies_and_the_other_leaves_the_partition(tmp_path: Path) -> None:
    url = memory_root()
    log_dir = tiered_root(tmp_path / "log", url)
    append_rounds(log_dir, 12)
    reports = []

    def other(call: Call) -> None:
        if call.number == 2:
            reports.extend(tier_segments(LogDir.open(tmp_path / "log").root))

    store_of(url).before = other
    (report,) = tier_segments(log_dir.root)
    assert report.segments_copied == len(offsets(log_dir))
    assert [each.skipped for each in reports] == [ANOTHER_RUN]


def test_run_whose_lock_does_not_hold_loses_and_deletes_what_it_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """As on a file system where locks of different machines do not meet."""
    url = memory_root()
    log_dir = tiered_root(tmp_path / "log", url, layout=layout)
    append_rounds(log_dir, 12)
    monkeypatch.setattr(tier, "partition_lock", no_lock)
    reports = []

    def other(call: Call) -> None:
        if call.number == 2:
            reports.extend(tier_segments(LogDir.open(tmp_path / "log").root))

    store_of(url).before = other
    (loser,) = tier_segments(log_dir.root)
    assert (loser.skipped, loser.segments_copied) == (ANOTHER_RUN, 0)
    assert [each.segments_copied for each in reports] == [len(offsets(log_dir))]
    ids = {each.segment_id for each in segments_of(log_dir)}
    keys = store_of(url).bucket.keys()
    assert all(any(segment_id in key for segment_id in ids) for key in keys)
    assert remote_bytes(log_dir, P0) == log_bytes(log_dir, P0, offsets(log_dir)[-1][1])


@pytest.mark.parametrize("change", ["delete topic", "copy disable", "log start"])
def test_change_meanwhile_leaves_the_copies_out_and_deletes_them(tmp_path: Path, change: str) -> None:
    url = memory_root()
    log_dir = tiered_root(tmp_path / "log", url)
    append_rounds(log_dir, 12)
    end = offsets(log_dir)[-1][1]

    def meanwhile(call: Call) -> None:
        if call.number != 4:
            return
        beside = LogDir.open(tmp_path / "log")
        if change == "delete topic":
            beside.delete_topic(TOPIC)
        elif change == "copy disable":
            beside.alter_topic(TOPIC, add={"remote.log.copy.disable": "true"})
        else:
            delete_records(beside.root, {P0: end})

    store_of(url).before = meanwhile
    (report,) = tier_segments(log_dir.root)
    assert report.segments_copied == 0
    assert store_of(url).bucket.keys() == []
    assert not file_root(log_dir).store.refresh().dropped


def test_parallel_runs_beside_a_writer_copy_each_segment_once(tmp_path: Path) -> None:
    url = memory_root()
    log_dir = tiered_root(tmp_path / "log", url, partitions=2)
    is_over = threading.Event()

    def run() -> None:
        root = LogDir.open(tmp_path / "log").root
        while not is_over.is_set():
            for report in tier_segments(root):
                assert report.error is None

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        for number in range(2):
            append_rounds(log_dir, 3, partition=number)
    is_over.set()
    for thread in threads:
        thread.join()
    assert all(each.error is None for each in tier_segments(log_dir.root))
    for number in range(2):
        of = TopicPartition(TOPIC, number)
        assert [(each.base_offset, each.end_offset) for each in segments_of(log_dir, number)] == offsets(
            log_dir, number
        )
        assert remote_bytes(log_dir, of) == log_bytes(log_dir, of, offsets(log_dir, number)[-1][1])


def test_root_without_remote_storage_in_a_store_or_a_brokers_is_refused(tmp_path: Path, kafka_fixtures: Path) -> None:
    plain = LogDir.create(tmp_path / "log")
    plain.append("orders", pa.table({"value": ["a"]}))
    with pytest.raises(InvalidConfigError, match=r"expected the configuration rsm\.config\.location"):
        tier_segments(plain.root)
    with pytest.raises(LogDirError, match="is on an object store"):
        tier_segments(LogDir.create(memory_root()).root)
    with pytest.raises(ReadOnlyLogDirError):
        tier_segments(LogDir.open(next(kafka_fixtures.glob("*/"))).root)
    log_dir = tiered_root(tmp_path / "tiered", tmp_path / "store")
    with pytest.raises(UnknownTopicError):
        tier_segments(log_dir.root, topics=["absent"])


def test_store_that_fails_once_is_used_again_by_the_next_run(tmp_path: Path) -> None:
    url = memory_root()
    log_dir = tiered_root(tmp_path / "log", url)
    append_rounds(log_dir, 12)
    bucket = store_of(url).bucket
    open_as(url, FaultyStore(bucket, faults={4: Fault.UNAVAILABLE}))
    (failed,) = tier_segments(log_dir.root)
    assert failed.error is not None
    assert failed.segments_copied == 1
    open_as(url, FaultyStore(bucket))
    (done,) = tier_segments(log_dir.root)
    assert (done.error, done.remote_end_offset) == (None, offsets(log_dir)[-1][1])
