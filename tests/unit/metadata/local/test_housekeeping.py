"""Retention of metadata: old commits and snapshots are deleted oldest first; lagging readers resume from a snapshot."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builders.metadata_roots import add_topic, commit_files, forget_images, settings_of, snapshot_files, write_to
from builders.root_places import Place, commit_names, snapshot_names
from fakes.clock import Clock
from patience import PATIENCE_S

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.local import backend
from pyspark_kafkalog.metadata.local.backend import START_FILE, LocalMetadataStore
from pyspark_kafkalog.metadata.local.log import LocalCommitLog
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.root_format import metadata_dir
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.metadata.snapshots import POINTER_FILE, SnapshotId
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.filesystem import FileSystem, UnflushedFileSystem

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> MetadataStore:
    store = create_root(tmp_path / "root", clock=clock)
    add_topic(store, "orders", 1)
    return store


@pytest.fixture
def place(place: Place) -> Place:
    add_topic(place.create(), "orders", 1)
    return place


@pytest.fixture
def ends() -> Iterator[int]:
    return iter(range(1, 10**6))


class RecordingSyncs(FileSystem):
    """Notes which files and directories were flushed."""

    def __init__(self) -> None:
        self.synced: list[Path] = []

    def fsync(self, fd: int) -> None:
        self.synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        super().fsync(fd)

    def fsync_dir(self, directory: Path) -> None:
        self.synced.append(directory)
        super().fsync_dir(directory)


def write(store: MetadataStore, ends: Iterator[int], times: int = 1) -> None:
    topic_id = store.image.topic("orders").topic_id
    for _ in range(times):
        write_to(store, topic_id, next(ends))


def snapshot_every(store: MetadataStore, size_bytes: int, **more: str) -> None:
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": str(size_bytes), **more})


def test_commits_and_snapshots_older_than_retention_are_deleted(place: Place, ends: Iterator[int]) -> None:
    store, clock = place.open(), place.clock
    snapshot_every(store, 1)
    write(store, ends, 20)
    old = commit_names(place)
    clock.now_ms += 7 * DAY_MS
    write(store, ends, 10)
    assert commit_names(place)[: len(old)] == old
    clock.now_ms += 1
    write(store, ends, 20)
    left = list(store.log.replay())
    assert all(clock() - commit.timestamp_ms <= 7 * DAY_MS for commit in left)
    assert len(left) == 30
    newest = SnapshotId.parse(snapshot_names(place)[-1])
    assert newest is not None
    assert newest.end_offset == store.image.next_offset
    oldest = SnapshotId.parse(snapshot_names(place)[0])
    assert oldest is not None
    assert oldest.end_offset >= left[0].base_offset
    assert place.open().image == store.image


def test_commits_that_do_not_wait_for_the_disk_are_deleted_once_a_snapshot_of_them_is_on_disk(
    tmp_path: Path, clock: Clock, ends: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Callable[[], None]] = []
    monkeypatch.setattr(backend, "in_background", later.append)
    fs = RecordingSyncs()
    store = create_root(tmp_path / "root", clock=clock, fs=UnflushedFileSystem(fs))
    add_topic(store, "orders", 1)
    snapshot_every(store, 1, **{"metadata.max.retention.ms": "0"})
    write(store, ends, 20)
    clock.now_ms += MINUTE_MS + 1
    write(store, ends, 5)
    before = len(commit_files(store.root))
    assert before > 25
    assert fs.synced == []
    snapshot = snapshot_files(store.root)[-1]
    later.pop()()
    assert fs.synced == [snapshot, snapshot.parent / POINTER_FILE, snapshot.parent]
    write(store, ends, 20)
    assert len(commit_files(store.root)) == 25


def test_snapshot_of_another_process_is_flushed_before_commits_in_it_are_deleted_without_waiting_for_the_disk(
    tmp_path: Path, clock: Clock, ends: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Callable[[], None]] = []
    monkeypatch.setattr(backend, "in_background", later.append)
    store = create_root(tmp_path / "root", clock=clock, fs=UnflushedFileSystem(FileSystem()))
    add_topic(store, "orders", 1)
    snapshot_every(store, 1, **{"metadata.max.retention.ms": "0"})
    write(store, ends, 20)
    before = len(commit_files(store.root))
    later.clear()
    forget_images()
    clock.now_ms += MINUTE_MS + 1
    fs = RecordingSyncs()
    restarted = LocalMetadataStore.open(store.root, clock=clock, fs=UnflushedFileSystem(fs))
    snapshot = snapshot_files(store.root)[-1]
    write(restarted, ends, 1)
    assert len(commit_files(store.root)) == before + 1
    later[0]()
    assert fs.synced[0] == snapshot
    write(restarted, ends, 20)
    assert len(commit_files(store.root)) == 1 + 1 + 20  # the last one in the snapshot, and those after it


def test_newest_snapshot_and_its_last_commit_stay_at_any_age(place: Place, ends: Iterator[int]) -> None:
    store = place.open()
    snapshot_every(store, 1, **{"metadata.max.retention.ms": "0"})
    for _ in range(30):
        place.clock.now_ms += DAY_MS
        write(store, ends)
        assert len(commit_names(place)) >= 1
        assert snapshot_names(place)
        assert place.open().image == store.image
    assert len(commit_names(place)) == 1
    assert len(snapshot_names(place)) == 2


def test_commits_without_snapshot_are_kept(place: Place, ends: Iterator[int]) -> None:
    store = place.open()
    snapshot_every(store, 10**9, **{"metadata.log.max.snapshot.interval.ms": "0", "metadata.max.retention.ms": "1"})
    for _ in range(10):
        place.clock.now_ms += DAY_MS
        write(store, ends)
    assert len(list(store.log.replay())) == 13
    assert snapshot_names(place) == []


def test_commits_younger_than_a_minute_are_kept(store: MetadataStore, clock: Clock, ends: Iterator[int]) -> None:
    snapshot_every(store, 1, **{"metadata.max.retention.ms": "0"})
    write(store, ends, 10)
    clock.now_ms += MINUTE_MS
    write(store, ends, 5)
    assert len(list(store.log.replay())) == 18
    clock.now_ms += 1
    write(store, ends, 5)
    assert len(list(store.log.replay())) == 10


def test_retention_below_0_keeps_all_commits(place: Place, ends: Iterator[int]) -> None:
    store = place.open()
    snapshot_every(store, 1, **{"metadata.max.retention.ms": "-1"})
    for _ in range(10):
        place.clock.now_ms += 1000 * DAY_MS
        write(store, ends)
    assert len(list(store.log.replay())) == 13


def test_commit_deletes_few_files_at_most(store: MetadataStore, clock: Clock, ends: Iterator[int]) -> None:
    snapshot_every(store, 1)
    write(store, ends, 50)
    clock.now_ms += 8 * DAY_MS
    before = len(commit_files(store.root))
    for _ in range(12):
        write(store, ends)
        after = len(commit_files(store.root))
        assert before - after == 3
        before = after


@pytest.mark.parametrize("hint", [None, b"", b"00000000000000000004 00000000\n", "stale"])
def test_oldest_commit_is_found_with_missing_damaged_or_stale_hint(
    store: MetadataStore, clock: Clock, ends: Iterator[int], hint: bytes | str | None
) -> None:
    snapshot_every(store, 1)
    write(store, ends, 30)
    clock.now_ms += 8 * DAY_MS
    write(store, ends, 3)
    path = metadata_dir(store.root) / START_FILE
    if hint is None:
        path.unlink()
    elif hint == "stale":
        commit_files(store.root)[0].unlink()
    else:
        path.write_bytes(hint)
    forget_images()
    again = LocalMetadataStore.open(store.root, clock=clock)
    before = len(commit_files(store.root))
    write(again, ends, 3)
    assert len(commit_files(store.root)) == before - 9


def test_concurrent_processes_delete_commits_without_listing(
    store: MetadataStore, clock: Clock, ends: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot_every(store, 1)
    write(store, ends, 60)
    clock.now_ms += 8 * DAY_MS
    stores = [store]
    for _ in range(2):
        forget_images()
        stores.append(LocalMetadataStore.open(store.root, clock=clock))
    monkeypatch.setattr(LocalCommitLog, "listed_offsets", lambda _: pytest.fail("listed"))
    for _ in range(10):
        for each in stores:
            write(each, ends)
    monkeypatch.undo()
    assert len(list(store.log.replay())) <= 31
    assert all(each.refresh() == store.image for each in stores)


def test_lagging_reader_resumes_from_newest_snapshot(place: Place, ends: Iterator[int]) -> None:
    store, clock, readers = place.open(), place.clock, []
    for steps in range(4):
        readers.append(place.open())
        write(store, ends, steps)
    snapshot_every(store, 1, **{"metadata.max.retention.ms": "0"})
    for _ in range(10):
        clock.now_ms += HOUR_MS + 1
        write(store, ends)
    assert len(commit_names(place)) == 1
    for reader in readers:
        assert reader.refresh() == store.image
    clock.now_ms += HOUR_MS + 1
    write(store, ends)
    for reader in readers:
        assert reader.refresh() == store.refresh()
        write(reader, ends)


def test_reader_loaded_from_snapshot_alone_resumes_after_falling_behind(
    store: MetadataStore, clock: Clock, ends: Iterator[int]
) -> None:
    snapshot_every(store, 1, **{"metadata.max.retention.ms": "0"})
    write(store, ends)
    forget_images()
    reader = LocalMetadataStore.open(store.root, clock=clock)
    assert reader._loaded.tail.last_file == str(snapshot_files(store.root)[-1])
    for _ in range(5):
        clock.now_ms += MINUTE_MS + 1
        write(store, ends)
    assert reader.refresh() == store.image


def test_refresh_without_new_commits_costs_two_opens(
    store: MetadataStore, ends: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, ends, 5)
    store.refresh()
    calls = []
    for name in ("open", "stat", "listdir", "scandir"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, _name=name, _real=real, **more: calls.append(_name) or _real(*args, **more)
        )
    store.refresh()
    assert calls == ["open", "open"] * 2  # the directory, and the last file or the next one in it


@pytest.mark.usefixtures("one_commit_a_file")
def test_lost_commit_is_reported_at_open_and_at_commit(store: MetadataStore, ends: Iterator[int]) -> None:
    write(store, ends, 5)
    forget_images()
    other = LocalMetadataStore.open(store.root)
    write(store, ends, 2)
    lost = commit_files(store.root)[-2]
    lost.unlink()
    forget_images()
    with pytest.raises(CorruptRecordError, match=rf"{lost.name}.*has reached {store.image.next_offset}.*no such file"):
        LocalMetadataStore.open(store.root)
    with pytest.raises(CorruptRecordError, match=lost.name):
        write(other, ends)
    commit_files(store.root)[-1].unlink()
    with pytest.raises(CorruptRecordError, match=lost.name):
        write(other, ends)
    with pytest.raises(CorruptRecordError):
        write(store, ends)


@pytest.mark.usefixtures("one_commit_a_file")
def test_lost_commit_before_others_is_reported_without_head_file(store: MetadataStore, ends: Iterator[int]) -> None:
    write(store, ends, 5)
    commit_files(store.root)[2].unlink()
    (metadata_dir(store.root) / "kafkalog-head").write_bytes(b"")
    forget_images()
    with pytest.raises(CorruptRecordError, match="no such file"):
        LocalMetadataStore.open(store.root)


def test_root_without_head_file_gets_one_at_next_commit(store: MetadataStore, ends: Iterator[int]) -> None:
    write(store, ends, 2)
    head = metadata_dir(store.root) / "kafkalog-head"
    head.unlink()
    forget_images()
    again = LocalMetadataStore.open(store.root)
    write(again, ends)
    assert int(head.read_text().split()[0]) == again.image.next_offset


def test_lost_first_commit_without_snapshots_is_reported_by_name(store: MetadataStore) -> None:
    first = commit_files(store.root)[0]
    first.unlink()
    forget_images()
    with pytest.raises(CorruptRecordError, match=first.name):
        LocalMetadataStore.open(store.root)


def test_temporary_files_of_killed_writers_are_deleted_after_an_hour(
    store: MetadataStore, clock: Clock, ends: Iterator[int]
) -> None:
    clock.now_ms = time.time_ns() // 1_000_000 + 86_400_000  # being ahead makes no file old
    there = set(metadata_dir(store.root).iterdir())
    names = (f"{9:020d}.log.0123456789abcdef.tmp", f"{9:020d}-{0:010d}-0123456789abcdef.checkpoint.part")
    for name in names:
        (metadata_dir(store.root) / name).write_bytes(b"half")
    snapshot_every(store, 1, **{"metadata.max.retention.ms": "-1"})
    assert all((metadata_dir(store.root) / name).exists() for name in names)
    old = time.time() - 3_700
    for name in names:
        os.utime(metadata_dir(store.root) / name, (old, old))
    write(store, ends)
    assert there < set(metadata_dir(store.root).iterdir())
    assert not any((metadata_dir(store.root) / name).exists() for name in names)


def fast_clock() -> int:
    """A minute goes by in 30 ms."""
    return time.time_ns() // 1_000_000 * 2_000


def count_up(root: Path, times: int) -> None:
    store = LocalMetadataStore.open(root, clock=fast_clock)

    def build(image: MetadataImage) -> list[MetadataRecord]:
        topic = image.topic("orders")
        state = topic.partitions[0].state
        return [partition_state_record(topic.topic_id, 0, replace(state, log_end_offset=state.log_end_offset + 1))]

    for _ in range(times):
        with root_lock(root):
            store.commit(build, operation="count")


def watch(root: Path, until: int) -> None:
    store = LocalMetadataStore.open(root, clock=fast_clock)
    seen = 0
    while seen < until:
        if seen % 3 == 0:
            forget_images()
            store = LocalMetadataStore.open(root, clock=fast_clock)
        end = store.refresh().partition("orders", 0).high_watermark
        assert end >= seen
        seen = end
        time.sleep(0.02)


def test_concurrent_readers_and_writers_stay_consistent_during_deletion(tmp_path: Path) -> None:
    store = create_root(tmp_path / "root", clock=fast_clock)
    add_topic(store, "orders", 1)
    snapshot_every(store, 600, **{"metadata.max.retention.ms": "0"})
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=count_up, args=(store.root, 70)) for _ in range(3)]
    processes += [context.Process(target=watch, args=(store.root, 210)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    assert store.refresh().partition("orders", 0).high_watermark == 210
    assert len(commit_files(store.root)) < 150
