"""Roots in an object store: how they are created, how many requests they take, and what damage is reported."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from builders.metadata_roots import add_topic, forget_images, settings_of, write_to
from builders.root_places import ObjectPlace, commit_names, snapshot_names
from fakes.faulty_store import Call, Fault, FaultyStore
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog.errors import (
    CommitStateUnknownError,
    CorruptRecordError,
    DiskFormatError,
    LogDirError,
    ReadOnlyLogDirError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.metadata.history import read_history
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import (
    DataObjectRecord,
    MetadataRecord,
    ObjectsDeletedRecord,
    Run,
    SegmentObject,
    SegmentObjectsRecord,
    TopicRuns,
)
from pyspark_kafkalog.metadata.objects.backend import ObjectMetadataStore
from pyspark_kafkalog.metadata.objects.log import CARRIED_BYTES_MAX, MAX_OBJECT_BYTES, commit_key
from pyspark_kafkalog.metadata.store import MetadataStore, NewCommit
from pyspark_kafkalog.object_store.store import ObjectStoreError, StoreUnsuitableError
from pyspark_kafkalog.root.admin import create_topic
from pyspark_kafkalog.root.object_root import create_object_root, is_object_root, is_vacant_store
from pyspark_kafkalog.storage.names import encode_uuid

MARKER = "kafkalog-format"
START = "kafkalog-start"
MINUTE_MS = 60_000


@pytest.fixture
def place() -> ObjectPlace:
    return ObjectPlace()


def client_of(store: MetadataStore) -> FaultyStore:
    """The client that the store uses, with its counters reset."""
    client = store._backend.log._store
    client.requests.clear()
    return client


def counted(client: FaultyStore) -> dict[str, int]:
    return {kind: count for kind, count in client.requests.items() if count}


# Creating


def test_created_root_has_marker_ids_boundary_and_first_commit(place: ObjectPlace) -> None:
    created = place.create()
    assert place.bucket.keys() == [
        f"__cluster_metadata-0/{0:020d}.log",
        f"__cluster_metadata-0/{MARKER}",
        f"__cluster_metadata-0/{START}",
        "meta.properties",
    ]
    assert place.read(MARKER) == b"version=2\nstore=object\n"
    assert created.identity is not None
    assert place.read(START).decode() == f"offset=0\ndirectory.id={created.identity.directory_id}\n"
    assert created.location == "memory://bucket"
    assert created.image.format_version == 2
    assert place.open().image == created.image


def test_second_creation_is_refused_also_when_first_commit_was_removed(place: ObjectPlace) -> None:
    store = place.create()
    with pytest.raises(LogDirError, match="memory://bucket is already a log directory"):
        place.create()
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1"})
    place.remove(commit_names(place)[0])
    with pytest.raises(LogDirError, match="already"):
        place.create()
    assert not is_vacant_store(place.client())


def test_creation_beside_other_objects_is_refused_by_name_of_one(place: ObjectPlace) -> None:
    place.bucket.write("orders-0/00000000000000000000.log", b"")
    assert not is_vacant_store(place.client())
    assert not is_object_root(place.client())
    with pytest.raises(ReadOnlyLogDirError, match=r"contains orders-0/0+\.log"):
        place.create()


def test_store_without_atomic_create_is_refused_before_anything_is_written(place: ObjectPlace) -> None:
    class TwoWinners(FaultyStore):
        def create(self, key: str, body: bytes) -> None:
            self.put(key, body)

    with pytest.raises(StoreUnsuitableError, match="8 concurrent creates"):
        create_object_root(TwoWinners(place.bucket), clock=place.clock, waiting=place.waiting)
    assert place.bucket.keys() == []


@pytest.mark.parametrize(
    "fault", [Fault.FAILS_BEFORE, Fault.FAILS_AFTER, Fault.LANDS_LATE, Fault.CRASH_BEFORE, Fault.CRASH_AFTER]
)
@pytest.mark.slow
def test_creation_stopped_at_any_request_is_finished_by_next_one(fault: Fault) -> None:
    for number in range(200):
        place = ObjectPlace()
        client = place.client(faults={number: fault})
        ids = None
        try:
            create_object_root(client, clock=place.clock, waiting=place.waiting)
        except BaseException as error:
            if not isinstance(error, (Killed, ObjectStoreError, CommitStateUnknownError)):
                raise
            place.bucket.land()
            if "meta.properties" in place.bucket:
                ids = place.bucket.body("meta.properties")
            if not commit_names(place):
                if is_object_root(place.client()):
                    with pytest.raises(LogDirError, match="was not finished"):
                        place.open()
                assert is_vacant_store(place.client())
                place.create()
        if len(client.calls) <= number:
            assert number > 35
            return
        assert place.open().image.format_version == 2
        assert len(commit_names(place)) == 1
        assert ids is None or place.bucket.body("meta.properties") == ids
    raise AssertionError("creation never came through")


def test_racing_creators_make_one_root(place: ObjectPlace) -> None:
    start = threading.Barrier(6)
    outcomes: list[object] = []

    def create() -> None:
        start.wait()
        try:
            outcomes.append(create_object_root(place.client(), clock=place.clock, waiting=place.waiting).identity)
        except LogDirError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    created = [each for each in outcomes if not isinstance(each, LogDirError)]
    assert len(outcomes) == 6
    assert len(created) == 1
    assert place.open().identity == created[0]
    assert len(commit_names(place)) == 1


# Requests


def test_commit_after_own_one_takes_one_create_and_no_get(place: ObjectPlace) -> None:
    store = place.create()
    topic_id = add_topic(store)
    client = client_of(store)
    write_to(store, topic_id, 1)
    assert counted(client) == {"create": 1}


def test_commit_after_pause_takes_one_get_and_one_create(place: ObjectPlace) -> None:
    store = place.create()
    topic_id = add_topic(store)
    place.clock.now_ms += MINUTE_MS
    client = client_of(store)
    write_to(store, topic_id, 1)
    assert counted(client) == {"get": 1, "create": 1}


def test_commit_after_refresh_takes_one_create(place: ObjectPlace) -> None:
    store = place.create()
    topic_id = add_topic(store)
    place.clock.now_ms += MINUTE_MS
    client = client_of(store)
    store.refresh()
    assert counted(client) == {"get": 1}
    write_to(store, topic_id, 1)
    assert counted(client) == {"get": 1, "create": 1}


def test_refresh_without_news_takes_one_get_and_one_more_every_ten_minutes(place: ObjectPlace) -> None:
    store = place.create()
    client = client_of(store)
    for _ in range(60):
        place.clock.now_ms += MINUTE_MS
        assert store.refresh() is store.image
    assert counted(client) == {"get": 60 + 5, "list": 5}


def test_lost_race_costs_create_and_look_at_winner_and_is_tried_on_newest_image(place: ObjectPlace) -> None:
    store = place.create()
    store.refresh()
    add_topic(place.open(), "theirs")
    client = client_of(store)
    seen = []

    def build(image: object) -> object:
        seen.append(set(image.topics))  # type: ignore[attr-defined]
        return create_topic(image, "mine", partitions=1)  # type: ignore[arg-type]

    outcome = store.commit(build, operation="create topic")  # type: ignore[arg-type]
    assert seen == [set(), {"theirs"}]
    assert set(outcome.image.topics) == {"theirs", "mine"}
    assert counted(client) == {"create": 2, "get": 2}


def test_build_that_fails_or_has_nothing_to_do_on_old_image_is_asked_again_on_newest(place: ObjectPlace) -> None:
    store = place.create()
    store.refresh()
    other = place.open()
    add_topic(other, "theirs")
    outcome = store.commit(
        lambda image: create_topic(image, "mine", partitions=len(image.topic("theirs").partitions)), operation="x"
    )
    assert set(outcome.image.topics) == {"theirs", "mine"}
    add_topic(other, "more")
    nothing = store.commit(lambda image: [], operation="x")
    assert nothing.commit is None
    assert set(nothing.image.topics) == {"theirs", "mine", "more"}


@pytest.mark.full
def test_opening_after_many_commits_takes_few_requests(place: ObjectPlace) -> None:
    store = place.create()
    topic_id = add_topic(store)
    most = 0
    for end in range(1, 10_000):
        write_to(store, topic_id, end)
        if end > 9_000 and end % 61 == 0:
            client = place.client()
            assert place.open_with(client).image == store.image
            most = max(most, client.requests.total())
    assert len(snapshot_names(place)) > 10
    assert most <= 9


def test_opening_again_in_same_process_takes_two_requests(place: ObjectPlace) -> None:
    store = place.create()
    add_topic(store)
    client = place.client()
    forget_images()
    ObjectMetadataStore.open(client, clock=place.clock, waiting=place.waiting)
    client.requests.clear()
    again = ObjectMetadataStore.open(client, clock=place.clock, waiting=place.waiting)
    assert counted(client) == {"get": 2}
    assert again.image == store.image


def test_reader_far_behind_takes_few_requests(place: ObjectPlace) -> None:
    store = place.create()
    reader = place.open()
    topic_id = add_topic(store)
    for end in range(1, 500):
        write_to(store, topic_id, end)
    client = client_of(reader)
    assert reader.refresh() == store.image
    assert client.requests.total() <= 8


# What objects hold, and damage


def test_commits_carry_those_before_them_up_to_limit(place: ObjectPlace) -> None:
    store = place.create()
    topic_id = add_topic(store)
    for end in range(1, 800):
        write_to(store, topic_id, end)
    names = commit_names(place)
    bodies = [place.read(name) for name in names]
    assert max(map(len, bodies)) < CARRIED_BYTES_MAX + 1_000
    restarts = 0
    for before, after in pairwise(bodies):
        restarts += not after.endswith(before)
        assert after.endswith(before) == (len(before) < CARRIED_BYTES_MAX)
    assert 1 <= restarts <= 5


def test_process_that_knows_only_a_snapshot_begins_new_chain_that_is_read_back(place: ObjectPlace) -> None:
    store = place.create()
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1"})
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1000000"})
    place.open()  # at the end of the log, by the snapshot
    for number in range(4):
        for _ in range(3):
            add_topic(place.open(), f"t{number}-{_}", 40)
    other = place.open()
    assert len(other.image.topics) == 12
    assert [each.base_offset for each in other.log.replay()] == [int(name[:20]) for name in commit_names(place)]


def test_damaged_commit_is_reported_with_name_and_position(place: ObjectPlace) -> None:
    store = place.create()
    reader = place.open()
    add_topic(store)
    write_to(store, store.image.topic("orders").topic_id, 1)
    first, name, _ = commit_names(place)
    good = place.read(name).removesuffix(place.read(first))
    for bad, position in (
        (b"", "byte 0"),
        (good[:40], "byte"),
        (good[:-1], "byte"),
        (bytes(100), "byte"),
        (b"\0\0\0\0\0\0\0\1" + good[8:], "byte 0: expected base offset 4 by the name"),
        (good[:100] + bytes([good[100] ^ 1]) + good[101:], "byte"),
    ):
        place.write(name, bad)
        reader._backend.log._last_read = None
        with pytest.raises(DiskFormatError, match=rf"memory://bucket/__cluster_metadata-0/{name}.*{position}"):
            reader.refresh()


def test_damage_among_carried_commits_is_reported_when_they_are_read(place: ObjectPlace) -> None:
    store = place.create()
    for number in range(5):
        add_topic(store, f"t{number}")
    newest = commit_names(place)[-1]
    good = place.read(newest)
    own = len(good) - len(place.read(commit_names(place)[-2]))
    for at in (own + 3, own + 10, own + 70, len(good) - 1):
        place.write(newest, good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        with pytest.raises(CorruptRecordError, match=newest):
            place.open()
    place.write(newest, good[: own + 30])
    with pytest.raises(CorruptRecordError, match=newest):
        place.open()
    place.write(newest, good[:own])  # carries none
    assert len(place.open().image.topics) == 5


def test_huge_commit_is_reported_by_name(place: ObjectPlace) -> None:
    store = place.create()
    place.write(f"{store.image.next_offset:020d}.log", bytes(MAX_OBJECT_BYTES + 1))
    with pytest.raises(ObjectStoreError, match=rf"{store.image.next_offset:020d}\.log: expected at most"):
        store.refresh()


def test_lost_commit_is_reported_at_open(place: ObjectPlace) -> None:
    store = place.create()
    for number in range(5):
        add_topic(store, f"t{number}")
        store._loaded = type(store._loaded)(store._loaded.image, type(store._loaded.tail)("x"))  # carries nothing
    lost = commit_names(place)[2]
    place.remove(lost)
    with pytest.raises(CorruptRecordError, match=rf"{lost}.*log has reached .*no such object"):
        place.open()


@pytest.mark.parametrize("marker", [b"", b"version=2\n", b"version=x\nstore=object\n", b"\0" * 10])
def test_damaged_marker_is_reported(place: ObjectPlace, marker: bytes) -> None:
    place.create()
    place.write(MARKER, marker)
    with pytest.raises(DiskFormatError, match=rf"memory://bucket/__cluster_metadata-0/{MARKER}.*store=object"):
        place.open()


def test_newer_format_is_refused(place: ObjectPlace) -> None:
    place.create()
    place.write(MARKER, b"version=3\nstore=object\n")
    with pytest.raises(UnsupportedFormatError, match=r"format version 3.*upgrade pyspark_kafkalog"):
        place.open()


def test_place_without_root_is_refused(place: ObjectPlace) -> None:
    assert is_vacant_store(place.client())
    with pytest.raises(LogDirError, match="is not a native log directory"):
        place.open()


def test_commit_on_store_that_stays_silent_ends_with_unknown_state(place: ObjectPlace) -> None:
    store = place.create()
    client = client_of(store)
    client.faults = lambda call: Fault.TIMEOUT if call.kind == "create" else None
    with pytest.raises(CommitStateUnknownError, match=rf"{commit_key(store.image.next_offset)}"):
        store.make(
            NewCommit(build=lambda image: create_topic(image, "orders", partitions=1), operation="x", key="work")
        )
    client.faults = {}
    assert store.find_commit("work") is None
    outcome = store.make(
        NewCommit(build=lambda image: create_topic(image, "orders", partitions=1), operation="x", key="work")
    )
    assert outcome.commit is not None
    assert len(commit_names(place)) == 2


def test_commit_that_landed_after_error_is_found_by_its_key_and_not_made_twice(place: ObjectPlace) -> None:
    store = place.create()
    store.refresh()
    client = client_of(store)
    place.bucket.late_calls = None
    client.faults = lambda call: Fault.LANDS_LATE if call.kind == "create" else Fault.UNAVAILABLE
    with pytest.raises(CommitStateUnknownError):
        store.make(
            NewCommit(build=lambda image: create_topic(image, "orders", partitions=1), operation="x", key="work")
        )
    client.faults = {}
    place.bucket.land()
    outcome = store.make(
        NewCommit(build=lambda image: create_topic(image, "twice", partitions=1), operation="x", key="work")
    )
    assert set(outcome.image.topics) == {"orders"}
    assert set(place.open().image.topics) == {"orders"}


def make_history(place: ObjectPlace, store: MetadataStore, name: str) -> None:
    """Commits of hours, with clean-up."""
    for number in range(6):
        place.clock.now_ms += 61 * MINUTE_MS
        add_topic(store, f"{name}-{number}")


def test_outcome_asked_for_after_its_commit_was_removed_is_unknown_also_if_the_process_went_on(
    place: ObjectPlace,
) -> None:
    store = place.create()
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1", "metadata.max.retention.ms": "1"})
    client = client_of(store)
    client.faults = lambda call: Fault.FAILS_AFTER if call.kind == "create" else Fault.UNAVAILABLE
    at = store.image.next_offset
    with pytest.raises(CommitStateUnknownError):
        store.make(
            NewCommit(build=lambda image: create_topic(image, "orders", partitions=1), operation="x", key="work")
        )
    client.faults = {}
    make_history(place, store, "later")
    assert commit_key(at) not in place.bucket
    with pytest.raises(CommitStateUnknownError, match="cannot be found out"):
        store.make(NewCommit(build=lambda image: create_topic(image, "twice", partitions=1), operation="x", key="work"))
    assert {"orders", "twice"} & set(place.open().image.topics) == {"orders"}


def test_commit_of_thread_that_slept_at_removed_name_while_others_of_its_process_went_on_is_made_again(
    place: ObjectPlace,
) -> None:
    store = place.create()
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1", "metadata.max.retention.ms": "1"})
    client = client_of(store)
    at = store.image.next_offset

    def sleep(call: Call) -> None:
        if call.kind == "create":
            client.before = None
            make_history(place, store, "other")
            assert commit_key(at) not in place.bucket

    client.before = sleep
    add_topic(store, "slept")
    assert "slept" in place.open().image.topics
    assert commit_key(at) not in place.bucket


# Hints, other roots, history


@pytest.mark.parametrize("content", [None, b"", b"offset=0\n", b"\xff" * 40, "stale"])
def test_lost_damaged_or_stale_start_does_no_harm_and_is_written_again(
    place: ObjectPlace, content: bytes | str | None
) -> None:
    store = place.create()
    reader = place.open()
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1", "metadata.max.retention.ms": "1"})
    before = place.read(START)
    for number in range(6):
        place.clock.now_ms += 61 * MINUTE_MS
        add_topic(store, f"t{number}")
    after = place.read(START)
    assert after != before
    if content is None:
        place.remove(START)
    else:
        place.write(START, before if isinstance(content, str) else content)
    assert place.open().image == store.image
    assert reader.refresh() == store.image
    place.clock.now_ms += 61 * MINUTE_MS
    add_topic(store, "more")
    assert int(place.read(START).split()[0][7:]) > int(after.split()[0][7:])
    assert place.open().image == store.image


@pytest.mark.parametrize("is_stale", [False, True])
def test_slow_commit_counts_without_start_only_if_what_it_follows_is_there(place: ObjectPlace, is_stale: bool) -> None:
    store = place.create()
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1", "metadata.max.retention.ms": "1"})
    stale = place.read(START)
    other = place.open()
    client = client_of(store)

    def sleep(call: Call) -> None:
        if call.kind == "create":
            client.before = None
            place.clock.now_ms += MINUTE_MS

    client.before = sleep
    add_topic(store, "slow")
    assert counted(client)["get_range"] >= 1

    def sleep_long(call: Call) -> None:
        if call.kind == "create":
            client.before = None
            for number in range(6):
                place.clock.now_ms += 61 * MINUTE_MS
                add_topic(other, f"t{number}")
            place.write(START, stale) if is_stale else place.remove(START)

    client.before = sleep_long
    add_topic(store, "slower")
    assert set(place.open().image.topics) == {"slow", "slower", *(f"t{number}" for number in range(6))}
    assert other.refresh() == store.image


def test_other_root_at_same_url_is_noticed(place: ObjectPlace) -> None:
    reader, writer = place.create(), place.open()
    place.bucket.objects.clear()
    place.create()
    place.clock.now_ms += 11 * MINUTE_MS
    for each in (reader.refresh, lambda: add_topic(writer)):
        with pytest.raises(LogDirError, match="found the one with"):
            each()
    place.bucket.objects.clear()
    with pytest.raises(LogDirError, match="has no commits"):
        reader.refresh()


def test_history_is_told_in_both_orders_with_few_requests(place: ObjectPlace) -> None:
    store = place.create()
    for number in range(300):
        add_topic(store, f"t{number}")
    client = client_of(store)
    newest = list(read_history(store.log, store.image.topic_names))
    assert [each.topics for each in newest] == [*((f"t{number}",) for number in reversed(range(300))), ()]
    assert client.requests.total() < 8
    client.requests.clear()
    oldest = list(read_history(store.log, store.image.topic_names, newest_first=False))
    assert oldest == newest[::-1]
    assert client.requests.total() < 12
    some = list(read_history(store.log, store.image.topic_names, topic="t7", limit=2, newest_first=False))
    assert [each.operation for each in some] == ["create topic"]


# Inline data


def merge(store: MetadataStore, topic_id: str) -> None:
    """A commit that replaces all runs of partition 0 by a segment."""

    def build(image: MetadataImage) -> list[MetadataRecord]:
        runs = image.topics[image.topic_names[topic_id]].partitions[0].runs
        base_offset, end_offset = int(runs.table["base_offset"][0]), int(runs.table["end_offset"][-1])
        segment_id = encode_uuid(image.next_offset.to_bytes(16, "big"))
        merged = SegmentObject(segment_id=segment_id, base_offset=base_offset, end_offset=end_offset)
        return [
            SegmentObjectsRecord(
                topic_id=topic_id, planned_at=image.next_offset, replaced_runs=len(runs), segments=(merged,)
            ),
            ObjectsDeletedRecord(dropped_below=image.next_offset),
        ]

    store.commit(build, operation="merge")


def write_inline(store: MetadataStore, topic_id: str, partition: int = 0) -> int:
    """A commit that holds its data; its offset."""
    run = Run(partition=partition, size_bytes=100, offsets_count=1, batches_count=1)
    topics = (TopicRuns(topic_id=topic_id, runs=(run,)),)
    outcome = store.commit(
        lambda image: [
            DataObjectRecord(size_bytes=100, planned_at=image.next_offset, inline_data=bytes(100), topics=topics)
        ],
        operation="write",
    )
    assert outcome.commit is not None
    return outcome.commit.base_offset


def test_commits_stay_as_long_as_their_data_was_not_merged(place: ObjectPlace) -> None:
    store = place.create()
    topic_id = add_topic(store)
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1", "metadata.max.retention.ms": "1"})
    held = write_inline(store, topic_id)
    for end in range(1, 30):
        place.clock.now_ms += 120 * MINUTE_MS
        write_to(store, topic_id, end, partition=1)
    assert store.image.objects.lowest_inline_commit == held
    assert commit_key(held) in place.bucket
    assert len(snapshot_names(place)) <= 3, "snapshots need not wait"
    merge(store, topic_id)
    for end in range(30, 33):
        place.clock.now_ms += 120 * MINUTE_MS
        write_to(store, topic_id, end, partition=1)
    assert commit_key(held) not in place.bucket
    image = store.image
    assert place.open().image == image


def test_writer_that_lost_a_race_looks_for_others_until_there_are_none(place: ObjectPlace) -> None:
    store = place.create()
    store.refresh()
    other = place.open()
    add_topic(other, "theirs-0")
    add_topic(store, "mine-0")  # a create that is lost
    add_topic(other, "theirs-1")
    client = client_of(store)
    for number, expected in ((1, {"get": 1, "create": 1}), (2, {"list": 1, "create": 1}), (3, {"create": 1})):
        place.clock.now_ms += 1_000  # a writer that commits at once is busy, and waits for its turn
        client.requests.clear()
        add_topic(store, f"mine-{number}")
        assert counted(client) == expected


def test_root_replaced_since_it_was_opened_in_this_process_is_opened_as_it_is(place: ObjectPlace) -> None:
    store = place.create()
    add_topic(store, "old")
    client = place.client()

    def opened() -> MetadataStore:
        return ObjectMetadataStore.open(client, clock=place.clock, waiting=place.waiting)

    assert set(opened().image.topics) == {"old"}
    client.bucket.objects.clear()
    with pytest.raises(LogDirError, match="is not a native log directory"):
        opened()
    forget_images()
    add_topic(place.create(), "new")
    assert set(opened().image.topics) == {"new"}
