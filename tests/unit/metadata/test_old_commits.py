"""A root that had a burst of commits and rests: the retention job removes all that are due, and only those."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest
from builders.metadata_roots import add_topic, commit_files, forget_images, settings_of, write_to
from builders.root_places import PLACES, LocalPlace, ObjectPlace, Place, client_address, commit_names, snapshot_names
from fakes.clock import Clock
from fakes.faulty_store import Call, Fault
from fakes.stopping_filesystem import Killed, StoppingFileSystem, broken_disk
from kafkalog_command import Command

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.metadata.commit_log import OldCommits
from pyspark_kafkalog.metadata.local.backend import START_FILE, LocalMetadataStore
from pyspark_kafkalog.metadata.objects import backend
from pyspark_kafkalog.metadata.root_format import OffsetHint, metadata_dir
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.filesystem import LOCAL

pytestmark = pytest.mark.usefixtures("one_commit_a_file")

BURST = 40
FEW = 4
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit removes few objects, as it does of a burst of thousands."""
    monkeypatch.setattr(backend, "_OBJECTS_A_RUN", FEW)


def burst(place: Place, *, with_topic: bool = True, **configs: str) -> MetadataStore:
    """A root with a burst of commits, none of which is followed by a snapshot."""
    store = place.create()
    if not with_topic:
        for number in range(BURST + 1):
            settings_of(store, {"log.retention.hours": str(number + 1)})
        return store
    topic_id = add_topic(store, "orders", 1)
    if configs:
        settings_of(store, {name.replace("_", "."): value for name, value in configs.items()})
    for end in range(1, BURST + 1):
        write_to(store, topic_id, end)
    assert snapshot_names(place) == []
    return store


def after_days(place: Place, days: int, store: MetadataStore) -> None:
    """A rest; an object root then gets the commit that each retention makes in a day, which tells the store's time."""
    place.clock.now_ms += days * DAY_MS
    if place.kind == "object":
        settings_of(store, {"log.retention.hours": "24"})


def test_commits_of_a_burst_are_removed_when_the_root_rests(place: Place) -> None:
    store = burst(place)
    after_days(place, 8, store)
    removed = place.open().remove_old_commits()
    left = commit_names(place)
    assert len(left) <= 2
    assert removed.count >= BURST - FEW
    assert removed.size_bytes > removed.count * 61
    assert left[0] == f"{removed.start_offset:020d}.log"
    assert place.open().image == store.refresh()
    assert next(each.base_offset for each in store.log.replay()) == removed.start_offset
    assert place.open().remove_old_commits() == OldCommits()


def test_dry_run_says_what_would_be_removed_and_changes_nothing(place: Place) -> None:
    store = burst(place)
    after_days(place, 8, store)
    before = {name: place.read(name) for name in place.names()}
    said = place.open().remove_old_commits(dry_run=True)
    assert {name: place.read(name) for name in place.names()} == before
    assert said == place.open().remove_old_commits()


def test_young_commits_stay(place: Place) -> None:
    store = burst(place)
    after_days(place, 6, store)
    before = commit_names(place)
    assert place.open().remove_old_commits() == OldCommits()
    assert commit_names(place) == before
    assert len(snapshot_names(place)) == 1  # it was due


def test_retention_below_0_keeps_all_commits(place: Place) -> None:
    store = burst(place, metadata_max_retention_ms="-1")
    after_days(place, 1000, store)
    before = commit_names(place)
    assert place.open().remove_old_commits() == OldCommits()
    assert commit_names(place) == before


def test_commits_in_no_snapshot_stay(place: Place) -> None:
    settings = {
        "metadata_log_max_snapshot_interval_ms": "0",
        "metadata_log_max_record_bytes_between_snapshots": "10000000",
    }
    store = burst(place, **settings)
    after_days(place, 8, store)
    before = commit_names(place)
    assert place.open().remove_old_commits() == OldCommits()
    assert commit_names(place) == before


def test_reader_opened_before_reads_on(place: Place) -> None:
    store = burst(place)
    readers = [place.open() for _ in range(2)]
    topic_id = store.image.topic("orders").topic_id
    write_to(store, topic_id, BURST + 1)
    after_days(place, 8, store)
    place.open().remove_old_commits()
    assert readers[0].refresh() == store.refresh()
    write_to(readers[1], topic_id, BURST + 2)
    assert readers[0].refresh() == store.refresh() == readers[1].image


def test_snapshot_of_another_process_is_read_before_commits_in_it_are_removed(place: Place) -> None:
    """A process that runs for long knows such a snapshot by name only; commits in a damaged one stay."""
    store = burst(place)
    after_days(place, 8, store)
    other = place.open()
    settings_of(other, {"metadata.log.max.snapshot.interval.ms": "1"})
    place.clock.now_ms += 10
    settings_of(other, {"log.retention.hours": "48"})
    name = snapshot_names(place)[-1]
    whole = place.read(name)
    place.write(name, whole[:-20])
    before = commit_names(place)
    with pytest.raises(KafkalogError, match=name):
        store.remove_old_commits()
    assert commit_names(place) == before
    place.write(name, whole)
    assert store.remove_old_commits().count >= BURST - 2 * FEW


def test_two_jobs_at_once_remove_what_one_would(place: Place) -> None:
    store = burst(place)
    after_days(place, 8, store)
    stores = [place.open(), place.open()]
    with_hint = [each.remove_old_commits() for each in stores]
    assert with_hint[1] == OldCommits()
    assert place.open().image == store.refresh()


@pytest.mark.parametrize("kills", [True, False])
def test_removal_stopped_at_any_call_leaves_a_sound_root_and_the_rest_to_the_next_run(
    tmp_path: Path, kills: bool
) -> None:
    for calls in itertools.count():
        root = tmp_path / str(calls)
        clock = Clock()
        store = create_root(root, clock=clock)
        topic_id = add_topic(store, "orders", 1)
        for end in range(1, 4):
            write_to(store, topic_id, end)
        clock.now_ms += 8 * DAY_MS
        forget_images()
        fs = StoppingFileSystem(calls, error=Killed if kills else broken_disk, once=not kills, torn=True)
        with contextlib.suppress(Killed, OSError):
            LocalMetadataStore.open(root, clock=clock, fs=fs).remove_old_commits()
        forget_images()
        again = LocalMetadataStore.open(root, clock=clock)
        assert again.image == store.image
        history = list(again.log.replay())  # without gaps
        assert history[-1].next_offset == store.image.next_offset
        again.remove_old_commits()
        assert len(commit_files(root)) == 1
        assert OffsetHint(metadata_dir(root) / START_FILE, LOCAL).read() == history[-1].base_offset
        write_to(again, topic_id, 4)
        assert store.refresh() == again.image
        if not fs.has_stopped:
            assert calls > 15
            return


@pytest.mark.parametrize("fault", [Fault.FAILS_BEFORE, Fault.FAILS_AFTER])
def test_removal_on_a_store_that_fails_at_any_request_leaves_a_sound_root(fault: Fault) -> None:
    for number in itertools.count():
        place = ObjectPlace()
        store = burst(place)
        after_days(place, 8, store)
        client = place.client()
        opened = place.open_with(client)
        calls = itertools.count()
        client.faults = lambda call, calls=calls, number=number: fault if next(calls) == number else None
        is_whole = False
        with contextlib.suppress(KafkalogError, OSError):
            opened.remove_old_commits()
            is_whole = next(calls) <= number
        assert place.open().image == store.refresh()
        place.open().remove_old_commits()
        assert len(commit_names(place)) <= 2
        write_to(store, store.image.topic("orders").topic_id, BURST + 1)
        assert place.open().image == store.refresh()
        if is_whole:
            return


def test_boundary_moves_before_objects_are_deleted_in_bulk() -> None:
    place = ObjectPlace()
    store = burst(place)
    after_days(place, 8, store)
    client = place.client()
    opened = place.open_with(client)
    calls: list[Call] = []
    client.before = calls.append
    opened.remove_old_commits()
    kinds = [each.kind for each in calls]
    assert kinds[-2:] == ["put", "delete"]
    assert kinds.count("delete") == 1
    calls.clear()
    opened.remove_old_commits()
    assert [each.kind for each in calls if each.kind != "get"] == ["head", "list"]


def test_nothing_to_remove_costs_the_same_however_many_young_commits_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = PLACES[0](tmp_path)
    store = burst(place)
    place.clock.now_ms += DAY_MS
    store.remove_old_commits()
    log = type(store.log)
    monkeypatch.setattr(log, "listed_offsets", lambda _: pytest.fail("listed"))
    looked_at: list[int] = []
    read_range = log.read_range
    monkeypatch.setattr(log, "read_range", lambda self, offset: looked_at.append(offset) or read_range(self, offset))
    assert store.remove_old_commits() == OldCommits()
    assert looked_at == [0]


def root_of(place: Place) -> NativeRoot:
    forget_images()
    if isinstance(place, ObjectPlace):
        return ObjectRoot(client_address("s3://bucket/log", place.client()), clock=place.clock)
    assert isinstance(place, LocalPlace)
    return FileRoot(LocalMetadataStore.open(place.root, clock=place.clock), clock=place.clock, fs=LOCAL)


def test_retention_reports_old_commits_as_segments_of_the_metadata_log(place: Place) -> None:
    burst(place, with_topic=False)
    place.clock.now_ms += 8 * DAY_MS  # an object root's retention makes a commit, which tells the time
    [said] = apply_retention(root_of(place), dry_run=True)
    [report] = apply_retention(root_of(place))
    assert (said.topic, said.partition, said.segments_dropped) == ("__cluster_metadata", 0, BURST + 1)
    assert said.segments_dropped - FEW < report.segments_dropped <= said.segments_dropped
    assert said.bytes_dropped > 0
    assert len(commit_names(place)) <= 2
    assert apply_retention(root_of(place)) == []


def test_command_removes_old_commits_of_a_root_at_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = LocalPlace(tmp_path)
    burst(place, with_topic=False)  # long ago: the clock of the test begins in 1970
    command = Command("retention", place.root, capsys)
    assert [each["segmentsDropped"] for each in command.json("--dry-run", "--local")] == [BURST + 1]
    assert "segments deleted" in command("--local", "--output", "text")
    assert len(commit_files(place.root)) == 1
    assert command.json("--local") == []
