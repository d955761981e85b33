"""Creating a root, and the commit loop: races, unknown ends, invariants, the cache, the lock."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from stopping_filesystem import StoppingFileSystem, broken_disk

from pyspark_kafkalog.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptRecordError,
    InvalidRecordError,
    LogDirError,
    ReadOnlyLogDirError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.metadata import store as store_module
from pyspark_kafkalog.metadata.bootstrap import FORMAT_MARKER, is_ours, metadata_dir
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.records import (
    MetadataRecord,
    WrittenPartition,
    partition_state_record,
    record,
    transactional_id_record,
    write_commit_record,
)
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.metadata.topics import create_topic, delete_topic
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log_state import LogState
from pyspark_kafkalog.storage.meta_properties import read_meta_properties
from pyspark_kafkalog.storage.partition_metadata import read_topic_id
from pyspark_kafkalog.storage.producer_snapshot import ProducerStateEntry


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> MetadataStore:
    return MetadataStore.create(root, clock=lambda: 1_000)


def forget_images() -> None:
    store_module._CACHE._images.clear()


def add_topic(store: MetadataStore, name: str = "orders", partitions: int = 2) -> str:
    outcome = store.commit(lambda image: create_topic(image, name, partitions=partitions), operation="create topic")
    return outcome.image.topic(name).topic_id


def append(store: MetadataStore, topic_id: str, end: int, *, partition: int = 0) -> None:
    state = LogState(log_end_offset=end, active_size_bytes=end * 10)
    store.commit(lambda image: [partition_state_record(topic_id, partition, state)], operation="write")


def test_created_root_is_ours_and_opens_to_the_same_image(root: Path) -> None:
    created = MetadataStore.create(root, cluster_id="Kx2NlXCHQ3iVIJ6B9LYyWQ", rng=random.Random(1), clock=lambda: 5)
    assert is_ours(root)
    properties = read_meta_properties(root / "meta.properties")
    assert (properties.cluster_id, properties.node_id) == ("Kx2NlXCHQ3iVIJ6B9LYyWQ", 1)
    assert created.image.brokers[1].log_dirs == (properties.directory_id,)
    assert created.image.features == {"metadata.version": 27}
    assert read_topic_id(metadata_dir(root) / "partition.metadata") == "AAAAAAAAAAAAAAAAAAAAAQ"
    forget_images()
    assert MetadataStore.open(root).image == created.image


def test_root_is_not_created_twice(store: MetadataStore, root: Path) -> None:
    with pytest.raises(LogDirError, match="already"):
        MetadataStore.create(root)


def test_root_of_a_broker_is_not_taken(root: Path) -> None:
    root.mkdir()
    for name in ("orders-0", "__cluster_metadata-0"):
        (root / name).mkdir()
        (root / name / "00000000000000000000.log").touch()
        with pytest.raises(ReadOnlyLogDirError, match=name):
            MetadataStore.create(root)
        shutil.rmtree(root / name)
    (root / "meta.properties").write_text("version=1\n")
    with pytest.raises(ReadOnlyLogDirError, match=r"meta\.properties"):
        MetadataStore.create(root)


def test_directories_above_the_root_are_made_and_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    MetadataStore.create(tmp_path / "a" / "b" / "root")
    (tmp_path / "file").touch()
    with pytest.raises(LogDirError, match="file is not a directory"):
        MetadataStore.create(tmp_path / "file")


def test_foreign_root_does_not_open(tmp_path: Path) -> None:
    with pytest.raises(LogDirError, match="no metadata log"):
        MetadataStore.open(tmp_path)


def test_creation_killed_at_any_call_is_finished_by_the_next(tmp_path: Path) -> None:
    for calls in range(200):
        root = tmp_path / f"root-{calls}"
        fs = StoppingFileSystem(calls, error=broken_disk)
        try:
            MetadataStore.create(root, fs=fs)
        except (OSError, CommitStateUnknownError):
            pass
        else:
            assert calls > 20
            return
        if is_ours(root) and (metadata_dir(root) / "00000000000000000000.log").exists():
            image = MetadataStore.open(root).image
        else:
            if is_ours(root):
                with pytest.raises(LogDirError, match="not finished"):
                    MetadataStore.open(root)
            image = MetadataStore.create(root).image
        assert image.format_version == 1
    raise AssertionError("creation never came through")


def test_killed_commit_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    for calls in range(50):
        root = tmp_path / f"root-{calls}"
        MetadataStore.create(root)
        fs = StoppingFileSystem(calls, error=broken_disk)
        store = MetadataStore.open(root, fs=fs)
        committed = False
        try:
            store.commit(lambda image: create_topic(image, "a", partitions=3), operation="x", max_attempts=1)
            committed = True
        except (OSError, CommitStateUnknownError):
            pass
        forget_images()
        topics = MetadataStore.open(root).image.topics
        assert len(topics) in (0, 1)
        assert not committed or "a" in topics
        assert all(len(topic.partitions) == 3 for topic in topics.values())
        if committed:
            assert calls >= 6
            return
    raise AssertionError("the commit never came through")


def test_image_after_replay_equals_image_built_by_commits(store: MetadataStore, root: Path) -> None:
    topic_id = add_topic(store)
    producer = ProducerStateEntry(9, 1, 5, 6, 2, 1_234)
    state = LogState(log_end_offset=7, active_size_bytes=700, producer=producer)
    store.commit(
        lambda image: [
            write_commit_record(
                write_id="w",
                transactional_id="query",
                transaction_version=4,
                producer_id=9,
                producer_epoch=1,
                partitions=[WrittenPartition(topic_id=topic_id, partition=1, first_offset=0, records=7, bytes=700)],
            ),
            partition_state_record(topic_id, 1, state),
            record("ProducerIdsRecord", brokerId=1, nextProducerId=1000),
        ],
        operation="write",
    )
    add_topic(store, "gone")
    store.commit(lambda image: delete_topic(image, "gone"), operation="delete topic")
    forget_images()
    replayed = MetadataStore.open(root).image
    assert replayed == store.image
    assert replayed.partition("orders", 1).state == state
    assert replayed.transactional_ids["query"].version == 4
    assert replayed.next_producer_id == 1000
    assert set(replayed.topics) == {"orders"}


def test_lost_race_is_tried_again_from_the_newer_image(root: Path, store: MetadataStore) -> None:
    other = MetadataStore.open(root)
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


def test_races_lost_for_ever_end_in_an_error(root: Path, store: MetadataStore) -> None:
    other = MetadataStore.open(root)

    def build(image: MetadataImage) -> list[MetadataRecord]:
        add_topic(other, f"other-{image.next_offset}")
        return create_topic(image, "mine", partitions=1)

    with pytest.raises(CommitConflictError):
        store.commit(build, operation="create topic", max_attempts=3)
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


@pytest.mark.parametrize("other_thread_refreshes", [False, True])
@pytest.mark.parametrize(("effect", "builds"), [("none", 2), ("at once", 1), ("late", 2)])
def test_unknown_end_of_a_publish_is_resolved_by_looking_for_ones_own_commit(
    root: Path, store: MetadataStore, effect: str, builds: int, other_thread_refreshes: bool
) -> None:
    built = []

    def build(image: MetadataImage) -> list[MetadataRecord]:
        built.append(image)
        return [record("ProducerIdsRecord", brokerId=1, nextProducerId=image.next_producer_id + 1000)]

    fs = LinkReportsFailure(effect)
    unsure = MetadataStore.open(root, clock=lambda: 1_000, fs=fs)
    if other_thread_refreshes:
        fs.after_failure = unsure.refresh
    outcome = unsure.commit(build, operation="producer ids")
    assert outcome.commit is not None
    assert outcome.commit.base_offset == store.image.next_offset
    assert len(built) == builds
    assert store.refresh() == outcome.image
    assert store.image.next_producer_id == 1000
    assert len(list(store.log.replay())) == 2


def test_commit_that_comes_through_late_is_known_before_it_is_built_again(
    root: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = LinkReportsFailure("late")
    unsure = MetadataStore.open(root, clock=lambda: 1_000, fs=fs)

    def arrive(attempt: int) -> None:
        assert fs._late is not None
        fs._late[1].write_bytes(fs._late[0])

    monkeypatch.setattr(unsure, "_back_off", arrive)
    outcome = unsure.commit(lambda image: create_topic(image, "orders", partitions=1), operation="create topic")
    assert outcome.commit is not None
    assert outcome.commit.base_offset == store.image.next_offset
    assert set(outcome.image.topics) == {"orders"}


def test_disk_that_fails_after_an_unknown_end_leaves_it_unknown(
    root: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = LinkReportsFailure("none")
    unsure = MetadataStore.open(root, clock=lambda: 1_000, fs=fs)

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(unsure, "_back_off", lambda attempt: monkeypatch.setattr(fs, "open", no_space))
    with pytest.raises(CommitStateUnknownError, match="No space left"):
        unsure.commit(lambda image: create_topic(image, "orders", partitions=1), operation="create topic")


def test_build_without_records_publishes_nothing(store: MetadataStore) -> None:
    before = store.image
    outcome = store.commit(lambda image: (), operation="nothing")
    assert outcome.commit is None
    assert outcome.image is before


def _count_up(root: Path, times: int, lock: bool) -> None:
    store = MetadataStore.open(root)

    def build(image: MetadataImage) -> list[MetadataRecord]:
        topic = image.topic("counter")
        state = topic.partitions[0].state
        return [partition_state_record(topic.topic_id, 0, replace(state, log_end_offset=state.log_end_offset + 1))]

    for _ in range(times):
        if lock:
            with root_lock(root):
                store.commit(build, operation="count", max_attempts=1)
        else:
            store.commit(build, operation="count", max_attempts=1000)


@pytest.mark.parametrize("lock", [False, True])
def test_processes_that_count_up_together_lose_no_step(root: Path, store: MetadataStore, lock: bool) -> None:
    add_topic(store, "counter", 1)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_count_up, args=(root, 15, lock)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert store.refresh().partition("counter", 0).high_watermark == 45


def test_damaged_commit_is_named_on_refresh(root: Path, store: MetadataStore) -> None:
    other = MetadataStore.open(root)
    add_topic(other)
    path = store.log.path(store.image.next_offset)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=path.name):
        store.refresh()


def test_commit_that_contradicts_the_image_is_named_on_refresh(root: Path, store: MetadataStore) -> None:
    offset = store.image.next_offset
    store.log.publish(offset, [record("RemoveTopicRecord", topicId="EGc7GxAfRGaDNJO-5OFO6A")], timestamp_ms=1)
    with pytest.raises(CorruptRecordError, match=rf"{offset:020d}\.log.*EGc7GxAfRGaDNJO-5OFO6A"):
        store.refresh()


@pytest.mark.parametrize(
    ("states", "broken"),
    [
        ([LogState(log_end_offset=5), LogState(log_end_offset=4)], "high_watermark_never_falls"),
        (
            [LogState(log_end_offset=5, log_start_offset=3), LogState(log_end_offset=5, log_start_offset=2)],
            "log_start_never_falls",
        ),
        ([LogState(leader_epoch=2), LogState(leader_epoch=1)], "leader_epoch_never_falls"),
        ([LogState(log_end_offset=5, log_start_offset=6)], "log_start_within_log"),
        ([LogState(log_end_offset=5, active_base_offset=6)], "active_segment_within_log"),
        ([LogState(active_size_bytes=-1)], "active_segment_within_log"),
    ],
)
def test_state_that_breaks_an_invariant_is_not_published(
    store: MetadataStore, states: list[LogState], broken: str
) -> None:
    topic_id = add_topic(store)
    *before, bad = states
    for state in before:
        store.commit(lambda image, state=state: [partition_state_record(topic_id, 0, state)], operation="write")
    image = store.image
    with pytest.raises(InvalidRecordError, match=broken):
        store.commit(lambda image: [partition_state_record(topic_id, 0, bad)], operation="write")
    assert store.refresh() is image


def test_topic_without_partitions_and_falling_producer_ids_are_not_published(store: MetadataStore) -> None:
    with pytest.raises(InvalidRecordError, match="topics_have_partitions"):
        store.commit(lambda image: [record("TopicRecord", name="a", topicId="EGc7GxAfRGaDNJO-5OFO6A")], operation="x")
    store.commit(lambda image: [record("ProducerIdsRecord", nextProducerId=10)], operation="x")
    with pytest.raises(InvalidRecordError, match="producer_ids_handed_out_once"):
        store.commit(lambda image: [record("ProducerIdsRecord", nextProducerId=9)], operation="x")


def test_transaction_version_is_committed_once_and_only_rises(store: MetadataStore) -> None:
    def write(version: int, epoch: int = 0) -> None:
        written = write_commit_record(
            write_id="w",
            partitions=(),
            transactional_id="q",
            transaction_version=version,
            producer_id=1,
            producer_epoch=epoch,
        )
        store.commit(lambda image: [written], operation="write")

    write(3)
    for version in (2, 3):
        with pytest.raises(InvalidRecordError, match="transaction_versions_rise"):
            write(version)
    write(5, epoch=2)
    with pytest.raises(InvalidRecordError, match="producer_epochs_never_fall"):
        write(6, epoch=1)
    assert store.image.transactional_ids["q"].version == 5


def test_new_incarnation_takes_a_transactional_id_over_and_fences_the_one_before(store: MetadataStore) -> None:
    def write(version: int, incarnation: str) -> None:
        written = write_commit_record(
            write_id="w",
            partitions=(),
            transactional_id="q",
            transaction_version=version,
            incarnation=incarnation,
        )
        store.commit(lambda image: [written], operation="write")

    for version in range(20):
        write(version, f"run-{version}")
    write(20, "run-19")
    write(21, "")
    held = store.image.transactional_ids["q"]
    assert held.incarnation == "run-19"
    assert held.fenced == tuple(f"run-{number}" for number in range(3, 19))
    with pytest.raises(InvalidRecordError, match="fenced_incarnations_stay_fenced"):
        write(22, "run-18")
    taken = transactional_id_record("q", version=21, last_commit_offset=held.last_commit_offset, incarnation="new")
    with pytest.raises(InvalidRecordError, match="fenced_incarnations_stay_fenced"):
        store.commit(lambda image: [taken], operation="init")
    after = held.held_by("new")
    taken = transactional_id_record(
        "q",
        version=after.version,
        last_commit_offset=after.last_commit_offset,
        last_timestamp_ms=after.last_timestamp_ms,
        incarnation=after.incarnation,
        fenced=after.fenced,
    )
    store.commit(lambda image: [taken], operation="init")
    assert store.image.transactional_ids["q"] == after
    assert after.fenced[-1] == "run-19"


def test_image_is_cached_by_process_and_not_taken_for_another_root(root: Path, store: MetadataStore) -> None:
    add_topic(store)
    assert MetadataStore.open(root).image is store.image
    shutil.rmtree(root)
    again = MetadataStore.create(root)
    assert again.image.topics == {}
    assert MetadataStore.open(root).image == again.image


def test_small_commit_shares_what_it_does_not_touch(store: MetadataStore) -> None:
    big = add_topic(store, "big", 500)
    add_topic(store, "other", 3)
    before = store.image
    append(store, big, 5, partition=7)
    after = store.image
    assert after.topics["other"] is before.topics["other"]
    changed = [
        old.partition
        for old, new in zip(before.topics["big"].partitions, after.topics["big"].partitions, strict=True)
        if old is not new
    ]
    assert changed == [7]
    assert after.topic_names is before.topic_names
    assert before.partition("big", 7).high_watermark == 0


def test_newer_format_of_the_root_is_refused_clearly(root: Path, store: MetadataStore) -> None:
    store.log.publish(store.image.next_offset, [record("FormatRecord", formatVersion=2)], timestamp_ms=1)
    with pytest.raises(UnsupportedFormatError, match="expected format version 1, found 2"):
        store.refresh()
    (metadata_dir(root) / FORMAT_MARKER).write_bytes(b"version=2\n")
    with pytest.raises(UnsupportedFormatError, match=r"kafkalog-format.*found b'version=2"):
        MetadataStore.open(root)


def test_format_version_cannot_be_changed_by_a_commit(store: MetadataStore) -> None:
    with pytest.raises(InvalidRecordError, match="format_version_stays"):
        store.commit(lambda image: [record("FormatRecord", formatVersion=2)], operation="x")


def test_lock_held_elsewhere_times_out_with_a_clear_error(root: Path, store: MetadataStore) -> None:
    with root_lock(root), pytest.raises(LogDirError, match="held by another writer"), root_lock(root, timeout_s=0.01):
        pass
    with root_lock(root, timeout_s=0):
        pass


def test_lock_is_free_after_an_error_inside(root: Path, store: MetadataStore) -> None:
    with pytest.raises(KeyError), root_lock(root):
        raise KeyError("inside")
    with root_lock(root, timeout_s=0):
        pass


def test_lock_orders_threads(root: Path, store: MetadataStore) -> None:
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


def test_marker_names_the_format_version(root: Path, store: MetadataStore) -> None:
    assert (metadata_dir(root) / FORMAT_MARKER).read_bytes() == b"version=1\n"
    os.remove(metadata_dir(root) / FORMAT_MARKER)
    assert not is_ours(root)
