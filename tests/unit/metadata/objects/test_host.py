"""What the processes of one host share of an object root: their turn, and the newest commit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders.root_places import ObjectPlace
from fakes.faulty_store import FaultyStore, VirtualClock
from fakes.virtual_threads import VirtualThreads

from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import TransactionalIdRecord
from pyspark_kafkalog.metadata.objects.host import HostShare, SharedCommit
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store.retries import Waiting

ROOT = "EGc7GxAfRGaDNJO-5OFO6A"


def share(folder: Path, clock: VirtualClock, root_id: str = ROOT) -> HostShare:
    return HostShare(folder, root_id, Waiting(clock.monotonic, clock.sleep, lambda: 0.5))


def a_record(_image: MetadataImage) -> list[TransactionalIdRecord]:
    return [TransactionalIdRecord(transactional_id="a", version=0)]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def place() -> ObjectPlace:
    place = ObjectPlace()
    place.create()
    return place


def opened(place: ObjectPlace, folder: Path) -> tuple[FaultyStore, MetadataStore]:
    """A process of the host, and its client, which has made no request yet."""
    client = place.client()
    store = place.open_with(client)
    store.join_host(folder)
    client.requests.clear()
    return client, store


def test_writers_of_a_host_take_turns_though_one_of_them_never_rests(tmp_path: Path) -> None:
    threads, order = VirtualThreads(), list[str]()

    def body(name: str, rests_s: float) -> None:
        host = HostShare(tmp_path, ROOT, Waiting(lambda: threads.now_s, threads.wait, lambda: 0.5))
        while threads.now_s < 5:
            with host.turn():
                order.append(name)
                threads.wait(0.05)
            threads.wait(rests_s)

    threads.run([lambda: body("busy", 0), lambda: body("other", 0.01)], until_s=10)
    assert order.count("other") >= 45
    assert "busy busy busy" not in " ".join(order)


def test_process_reads_commits_of_its_host_without_a_request(place: ObjectPlace, tmp_path: Path) -> None:
    (_, one), (client, other) = opened(place, tmp_path), opened(place, tmp_path)
    for _ in range(5):
        one.commit(a_record, operation="test")
    assert other.refresh() == one.image
    assert client.requests == {"get": 1}, "whether there are later commits, of others"


def test_commit_after_those_of_the_host_is_one_request(place: ObjectPlace, tmp_path: Path) -> None:
    processes = [opened(place, tmp_path) for _ in range(3)]
    for _, store in processes:
        store.refresh()
    for client, store in processes * 3:
        place.clock.now_ms += 1_000
        client.requests.clear()
        store.commit(a_record, operation="test")
        assert client.requests == {"create": 1}


def test_commit_of_another_root_is_not_taken_over(clock: VirtualClock, tmp_path: Path) -> None:
    commit = SharedCommit(7, 1.0, 2.0, True, b"object")
    share(tmp_path, clock).put(commit)
    assert share(tmp_path, clock).newest() == commit
    assert share(tmp_path, clock, "AAAAAAAAAAAAAAAAAAAAAA").newest() is None


def test_large_commit_is_not_shared(clock: VirtualClock, tmp_path: Path) -> None:
    host = share(tmp_path, clock)
    host.put(SharedCommit(7, 1.0, 2.0, False, bytes(2 << 20)))
    assert host.newest() is None


def test_writer_waits_for_a_stopped_one_only_once(clock: VirtualClock, tmp_path: Path) -> None:
    stopped, other = share(tmp_path, clock), share(tmp_path, clock)
    waited_s = []
    with stopped.turn():
        for _ in range(3):
            began = clock.monotonic()
            with other.turn():
                waited_s.append(clock.monotonic() - began)
    assert waited_s == pytest.approx([3, 0.02, 0.02], abs=0.01)
    with other.turn():
        pass
    with stopped.turn():
        began = clock.monotonic()
        with other.turn():
            assert clock.monotonic() - began == pytest.approx(3, abs=0.01)


def test_process_commits_after_the_directory_of_its_host_is_gone(place: ObjectPlace, tmp_path: Path) -> None:
    folder = tmp_path / "host"
    folder.mkdir()
    _, store = opened(place, folder)
    store.commit(a_record, operation="test")
    shutil.rmtree(folder)
    before = store.image.next_offset
    store.commit(a_record, operation="test")
    assert store.image.next_offset > before
