"""The metadata store: roots created and opened, the image of their commits, and refusal of commits that break it."""

from __future__ import annotations

import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders.metadata_roots import add_topic, forget_images, write_to
from builders.root_places import Place
from fakes.stopping_filesystem import StoppingFileSystem, broken_disk
from patience import PATIENCE_S, wait_until

from pyspark_kafkalog.errors import (
    CommitStateUnknownError,
    CorruptRecordError,
    InvalidRecordError,
    LogDirError,
    ReadOnlyLogDirError,
)
from pyspark_kafkalog.metadata.commit_log import LoadedImage, encode_commit
from pyspark_kafkalog.metadata.image import partition_state_record
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.messages.metadata_records import (
    DataObjectRecord,
    FormatRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    Run,
    TopicRecord,
    TopicRuns,
    TransactionalIdRecord,
    WriteCommitRecord,
    WrittenPartition,
)
from pyspark_kafkalog.metadata.root_format import FORMAT_VERSION, is_native_root, metadata_dir
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.admin import delete_topic
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties, read_topic_id
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.log.log_state import LogState


@pytest.fixture
def store(place: Place) -> MetadataStore:
    return place.create()


def test_created_root_is_native_and_opens_with_equal_image(root: Path) -> None:
    created = create_root(root, cluster_id="Kx2NlXCHQ3iVIJ6B9LYyWQ", rng=random.Random(1), clock=lambda: 5)
    assert is_native_root(root)
    properties = read_meta_properties(root / "meta.properties")
    assert (properties.cluster_id, properties.node_id) == ("Kx2NlXCHQ3iVIJ6B9LYyWQ", 1)
    assert created.image.brokers[1].log_dirs == (properties.directory_id,)
    assert created.image.features == {"metadata.version": 27}
    assert read_topic_id(metadata_dir(root) / "partition.metadata") == "AAAAAAAAAAAAAAAAAAAAAQ"
    forget_images()
    assert LocalMetadataStore.open(root).image == created.image


def test_second_creation_of_root_is_refused(store: MetadataStore, place: Place) -> None:
    with pytest.raises(LogDirError, match="already"):
        place.create()


def test_creation_over_root_of_broker_is_refused(root: Path) -> None:
    root.mkdir()
    for name in ("orders-0", "__cluster_metadata-0"):
        (root / name).mkdir()
        (root / name / "00000000000000000000.log").touch()
        with pytest.raises(ReadOnlyLogDirError, match=name):
            create_root(root)
        shutil.rmtree(root / name)
    (root / "meta.properties").write_text("version=1\n")
    with pytest.raises(ReadOnlyLogDirError, match=r"meta\.properties"):
        create_root(root)


def test_parent_directories_are_created_and_file_as_root_is_refused(tmp_path: Path) -> None:
    create_root(tmp_path / "a" / "b" / "root")
    (tmp_path / "file").touch()
    with pytest.raises(LogDirError, match="file is not a directory"):
        create_root(tmp_path / "file")


def test_directory_without_metadata_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogDirError, match="is not a native log directory"):
        LocalMetadataStore.open(tmp_path)


def test_creation_killed_at_any_call_is_finished_by_next_one(tmp_path: Path) -> None:
    for calls in range(200):
        root = tmp_path / f"root-{calls}"
        fs = StoppingFileSystem(calls, error=broken_disk)
        try:
            create_root(root, fs=fs)
        except (OSError, CommitStateUnknownError):
            pass
        else:
            assert calls > 20
            return
        if is_native_root(root) and (metadata_dir(root) / "00000000000000000000.log").exists():
            image = LocalMetadataStore.open(root).image
        else:
            if is_native_root(root):
                with pytest.raises(LogDirError, match="not finished"):
                    LocalMetadataStore.open(root)
            image = create_root(root).image
        assert image.format_version == FORMAT_VERSION
    raise AssertionError("creation never came through")


def written(store: MetadataStore, topic_id: str, partition: int, count: int) -> list[MetadataRecord]:
    """Records of a data object with `count` offsets of the partition; none for a root on a file system."""
    if not store.image.format.in_object_store or not count:
        return []
    run = Run(
        partition=partition,
        position=0,
        size_bytes=700,
        offsets_count=count,
        records_count=count,
        batches_count=1,
        max_timestamp_ms=0,
    )
    key, topics = f"data/w-0-{store.image.next_offset}-0.batches", (TopicRuns(topic_id=topic_id, runs=(run,)),)
    return [DataObjectRecord(key=key, size_bytes=1000, planned_at=store.image.next_offset, topics=topics)]


def test_image_after_replay_equals_image_built_by_commits(store: MetadataStore, place: Place) -> None:
    topic_id = add_topic(store)
    producer = ProducerStateEntry(9, 1, 5, 6, 2, 1_234)
    state = LogState(log_start_offset=7, log_end_offset=7, active_size_bytes=700, producer=producer)
    store.commit(
        lambda image: [
            WriteCommitRecord(
                write_id="w",
                transactional_id="query",
                transaction_version=4,
                producer_id=9,
                producer_epoch=1,
                partitions=(WrittenPartition(topic_id=topic_id, partition=1, first_offset=0, records=7, bytes=700),),
            ),
            *written(store, topic_id, 1, 7),
            partition_state_record(topic_id, 1, state),
            ProducerIdsRecord(broker_id=1, next_producer_id=1000),
        ],
        operation="write",
    )
    add_topic(store, "gone")
    store.commit(lambda image: delete_topic(image, "gone"), operation="delete topic")
    replayed = place.open().image
    assert replayed == store.image
    assert replayed.partition("orders", 1).state == state
    assert replayed.transactional_ids["query"].version == 4
    assert replayed.next_producer_id == 1000
    assert set(replayed.topics) == {"orders"}


def test_build_without_records_publishes_nothing(store: MetadataStore) -> None:
    before = store.image
    outcome = store.commit(lambda image: (), operation="nothing")
    assert outcome.commit is None
    assert outcome.image is before


@pytest.mark.usefixtures("one_commit_a_file")
def test_damaged_commit_is_reported_on_refresh_by_name(place: Place, store: MetadataStore) -> None:
    add_topic(place.open())
    name = f"{store.image.next_offset:020d}.log"
    data = bytearray(place.read(name))
    data[100] ^= 1
    place.write(name, bytes(data))
    with pytest.raises(CorruptRecordError, match=name):
        store.refresh()


def test_contradictory_commit_is_reported_on_refresh_by_name(place: Place, store: MetadataStore) -> None:
    offset = store.image.next_offset
    removal = RemoveTopicRecord(topic_id="EGc7GxAfRGaDNJO-5OFO6A")
    place.write(f"{offset:020d}.log", encode_commit(offset, [removal], 1))
    with pytest.raises(CorruptRecordError, match=rf"{offset:020d}\.log.*EGc7GxAfRGaDNJO-5OFO6A"):
        store.refresh()


@pytest.mark.parametrize(
    ("states", "broken"),
    [
        (
            [LogState(log_end_offset=5, log_start_offset=5), LogState(log_end_offset=4, log_start_offset=4)],
            "high_watermark_never_falls",
        ),
        (
            [LogState(log_end_offset=5, log_start_offset=5), LogState(log_end_offset=5, log_start_offset=2)],
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
        records = [*written(store, topic_id, 0, state.log_end_offset), partition_state_record(topic_id, 0, state)]
        store.commit(lambda image, records=records: records, operation="write")
    image = store.image
    with pytest.raises(InvalidRecordError, match=broken):
        store.commit(lambda image: [partition_state_record(topic_id, 0, bad)], operation="write")
    assert store.refresh() is image


def test_empty_topic_and_falling_producer_id_are_not_published(store: MetadataStore) -> None:
    with pytest.raises(InvalidRecordError, match="topics_have_partitions"):
        store.commit(lambda image: [TopicRecord(name="a", topic_id="EGc7GxAfRGaDNJO-5OFO6A")], operation="x")
    store.commit(lambda image: [ProducerIdsRecord(next_producer_id=10)], operation="x")
    with pytest.raises(InvalidRecordError, match="producer_ids_allocated_once"):
        store.commit(lambda image: [ProducerIdsRecord(next_producer_id=9)], operation="x")


def test_transaction_version_that_does_not_rise_is_refused(store: MetadataStore) -> None:
    def write(version: int, epoch: int = 0) -> None:
        written = WriteCommitRecord(
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


def test_new_incarnation_takes_over_transactional_id_and_fences_old_ones(store: MetadataStore) -> None:
    def write(version: int, incarnation: str) -> None:
        written = WriteCommitRecord(
            write_id="w", partitions=(), transactional_id="q", transaction_version=version, incarnation=incarnation
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
    taken = TransactionalIdRecord(
        transactional_id="q", version=21, last_commit_offset=held.last_commit_offset, incarnation="new"
    )
    with pytest.raises(InvalidRecordError, match="fenced_incarnations_stay_fenced"):
        store.commit(lambda image: [taken], operation="init")
    after = held.held_by("new")
    taken = TransactionalIdRecord(
        transactional_id="q",
        version=after.version,
        last_commit_offset=after.last_commit_offset,
        last_timestamp_ms=after.last_timestamp_ms,
        incarnation=after.incarnation,
        fenced=after.fenced,
    )
    store.commit(lambda image: [taken], operation="init")
    assert store.image.transactional_ids["q"] == after
    assert after.fenced[-1] == "run-19"


def test_root_that_was_opened_is_opened_again_without_reading_its_snapshot(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_root(root)
    forget_images()
    first = LocalMetadataStore.open(root)
    monkeypatch.setattr(MetadataStore, "_load", lambda store: pytest.fail("the image was read again"))
    assert LocalMetadataStore.open(root).image is first.image


def test_image_is_cached_per_root_in_a_process(root: Path) -> None:
    store = create_root(root)
    add_topic(store)
    assert LocalMetadataStore.open(root).image is store.image
    shutil.rmtree(root)
    again = create_root(root)
    assert again.image.topics == {}
    assert LocalMetadataStore.open(root).image == again.image


def test_image_after_small_commit_shares_unchanged_parts(store: MetadataStore) -> None:
    big = add_topic(store, "big", 500)
    add_topic(store, "other", 3)
    before = store.image
    write_to(store, big, 5, partition=7)
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


def test_commit_that_changes_format_version_is_refused(store: MetadataStore) -> None:
    with pytest.raises(InvalidRecordError, match="format_version_stays"):
        store.commit(
            lambda image: [FormatRecord(format_version=9, is_object_root=image.format.in_object_store)], operation="x"
        )


class CountingLock:
    """A lock that counts who has wanted it."""

    def __init__(self) -> None:
        self.wanted = 0
        self._lock, self._counting = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._counting:
            self.wanted += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_threads_that_wait_for_a_refresh_share_the_next_which_sees_what_was_committed_before(
    store: MetadataStore, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = place.open()
    read_on = store._read_on
    has_begun, may_go_on = threading.Event(), threading.Event()
    calls = 0

    def slow(loaded: LoadedImage) -> LoadedImage:
        nonlocal calls
        calls += 1
        found = read_on(loaded)
        has_begun.set()
        assert may_go_on.wait(PATIENCE_S)
        return found

    lock = CountingLock()
    monkeypatch.setattr(store, "_read_on", slow)
    monkeypatch.setattr(store, "_refresh_lock", lock)
    with ThreadPoolExecutor(9) as executor:
        first = executor.submit(store.refresh)
        assert has_begun.wait(PATIENCE_S)
        add_topic(other, "late")
        waiting = [executor.submit(store.refresh) for _ in range(8)]
        wait_until(lambda: lock.wanted == 9, "that they wait for the first")
        may_go_on.set()
        assert "late" not in first.result(PATIENCE_S).topics
        assert all("late" in each.result(PATIENCE_S).topics for each in waiting)
    assert calls == 2
