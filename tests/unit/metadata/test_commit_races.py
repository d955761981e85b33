"""Commit retries: killed commits, lost races, unknown results, many processes, and the lock of the root."""

from __future__ import annotations

import errno
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders.metadata_roots import add_topic, forget_images
from builders.root_places import Place
from fakes.stopping_filesystem import StoppingFileSystem, broken_disk
from patience import PATIENCE_S

from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError, LogDirError
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, ProducerIdsRecord
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.metadata.store import MetadataStore, NewCommit
from pyspark_kafkalog.root.admin import create_topic
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.filesystem import FileSystem


@pytest.fixture
def store(root: Path) -> MetadataStore:
    return create_root(root, clock=lambda: 1_000)


@pytest.mark.usefixtures("one_commit_a_file")
def test_killed_commit_is_visible_whole_or_not_at_all(tmp_path: Path) -> None:
    for calls in range(50):
        root = tmp_path / f"root-{calls}"
        create_root(root)
        fs = StoppingFileSystem(calls, error=broken_disk)
        store = LocalMetadataStore.open(root, fs=fs)
        committed = False
        try:
            store.make(
                NewCommit(build=lambda image: create_topic(image, "a", partitions=3), operation="x", max_attempts=1)
            )
            committed = True
        except (OSError, CommitStateUnknownError):
            pass
        forget_images()
        topics = LocalMetadataStore.open(root).image.topics
        assert len(topics) in (0, 1)
        assert not committed or "a" in topics
        assert all(len(topic.partitions) == 3 for topic in topics.values())
        if committed:
            assert calls >= 6
            return
    raise AssertionError("the commit never came through")


def test_lost_race_is_retried_from_newer_image(place: Place) -> None:
    store = place.create()
    other = place.open()
    offsets = []

    def build(image: MetadataImage) -> list[MetadataRecord]:
        offsets.append(image.next_offset)
        if len(offsets) <= 2:
            add_topic(other, f"other-{len(offsets)}")
        return create_topic(image, "mine", partitions=1)

    outcome = store.commit(build, operation="create topic")
    assert len(offsets) == 3
    assert offsets == sorted(set(offsets))
    assert set(outcome.image.topics) == {"mine", "other-1", "other-2"}
    assert other.refresh() == outcome.image


def test_races_lost_at_every_attempt_raise_conflict(place: Place) -> None:
    store = place.create()
    other = place.open()

    def build(image: MetadataImage) -> list[MetadataRecord]:
        add_topic(other, f"other-{image.next_offset}")
        return create_topic(image, "mine", partitions=1)

    with pytest.raises(CommitConflictError):
        store.make(NewCommit(build=build, operation="create topic", max_attempts=3))
    assert "mine" not in store.refresh().topics


class LinkReportsFailure(FileSystem):
    """A link that fails once: without its effect, with it, or with it only when the next one is tried."""

    def __init__(self, effect: str) -> None:
        self._effect = effect
        self._failed = False
        self._late: tuple[bytes, Path] | None = None
        self.after_failure: Callable[[], object] = lambda: None

    def link(self, source: Path, target: Path) -> None:
        if self._failed:
            if self._late is not None:
                self._late[1].write_bytes(self._late[0])
            super().link(source, target)
            return
        self._failed = True
        if self._effect == "late":
            self._late = (source.read_bytes(), target)
        elif self._effect == "at once":
            super().link(source, target)
        self.after_failure()
        raise OSError(errno.EIO, "no answer")


@pytest.mark.usefixtures("one_commit_a_file")
@pytest.mark.parametrize("other_thread_refreshes", [False, True])
@pytest.mark.parametrize(("effect", "builds"), [("none", 2), ("at once", 1), ("late", 2)])
def test_unknown_publish_result_is_resolved_by_own_commit_id(
    root: Path, store: MetadataStore, effect: str, builds: int, other_thread_refreshes: bool
) -> None:
    built = []

    def build(image: MetadataImage) -> list[MetadataRecord]:
        built.append(image)
        return [ProducerIdsRecord(broker_id=1, next_producer_id=image.next_producer_id + 1000)]

    fs = LinkReportsFailure(effect)
    unsure = LocalMetadataStore.open(root, clock=lambda: 1_000, fs=fs)
    if other_thread_refreshes:
        fs.after_failure = unsure.refresh
    outcome = unsure.commit(build, operation="producer ids")
    assert outcome.commit is not None
    assert outcome.commit.base_offset == store.image.next_offset
    assert len(built) == builds
    assert store.refresh() == outcome.image
    assert store.image.next_producer_id == 1000
    assert len(list(store.log.replay())) == 2


@pytest.mark.usefixtures("one_commit_a_file")
def test_commit_that_arrives_late_is_found_before_retry(
    root: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = LinkReportsFailure("late")
    unsure = LocalMetadataStore.open(root, clock=lambda: 1_000, fs=fs)

    def arrive(lost: int) -> None:
        if lost:
            assert fs._late is not None
            fs._late[1].write_bytes(fs._late[0])

    monkeypatch.setattr(unsure, "_await_turn", arrive)
    outcome = unsure.commit(lambda image: create_topic(image, "orders", partitions=1), operation="create topic")
    assert outcome.commit is not None
    assert outcome.commit.base_offset == store.image.next_offset
    assert set(outcome.image.topics) == {"orders"}


@pytest.mark.usefixtures("one_commit_a_file")
def test_disk_failure_after_unknown_result_raises_commit_state_unknown(
    root: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = LinkReportsFailure("none")
    unsure = LocalMetadataStore.open(root, clock=lambda: 1_000, fs=fs)

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(unsure, "_await_turn", lambda lost: lost and monkeypatch.setattr(fs, "open", no_space))
    with pytest.raises(CommitStateUnknownError, match="No space left"):
        unsure.commit(lambda image: create_topic(image, "orders", partitions=1), operation="create topic")


def _count_up(root: Path, times: int, lock: bool) -> None:
    store = LocalMetadataStore.open(root)

    def build(image: MetadataImage) -> list[MetadataRecord]:
        topic = image.topic("counter")
        state = topic.partitions[0].state
        return [partition_state_record(topic.topic_id, 0, replace(state, log_end_offset=state.log_end_offset + 1))]

    for _ in range(times):
        if lock:
            with root_lock(root):
                store.make(NewCommit(build=build, operation="count", max_attempts=1))
        else:
            store.make(NewCommit(build=build, operation="count", max_attempts=1000))


@pytest.mark.parametrize("lock", [False, True])
def test_concurrent_increments_of_processes_are_all_committed(root: Path, store: MetadataStore, lock: bool) -> None:
    add_topic(store, "counter", 1)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_count_up, args=(root, 15, lock)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    assert store.refresh().partition("counter", 0).high_watermark == 45


def test_lock_held_by_another_writer_times_out_with_clear_error(root: Path, store: MetadataStore) -> None:
    with root_lock(root), pytest.raises(LogDirError, match="held by another writer"), root_lock(root, timeout_s=0.01):
        pass
    with root_lock(root, timeout_s=0):
        pass


def test_lock_is_released_after_error(root: Path, store: MetadataStore) -> None:
    with pytest.raises(KeyError), root_lock(root):
        raise KeyError("inside")
    with root_lock(root, timeout_s=0):
        pass


def test_lock_excludes_other_threads(root: Path, store: MetadataStore) -> None:
    inside = []

    def work() -> None:
        with root_lock(root):
            inside.append(1)
            assert len(inside) == 1
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not inside
