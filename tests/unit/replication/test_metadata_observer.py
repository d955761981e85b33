"""The observer of a metadata log: redirects, uncommitted records, snapshots, diverging logs, kills at every change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_controllers import ScriptedControllers, snapshot_bytes
from stopping_filesystem import Killed, StoppingFileSystem, broken_disk

from pyspark_kafkalog.errors import LeaderUnavailableError, LogDirError
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.protocol.messages.quorum import FetchSnapshotRequest
from pyspark_kafkalog.protocol.messages.records import FetchRequest
from pyspark_kafkalog.replication.metadata.observer import MetadataObserver, ObservedMetadata
from pyspark_kafkalog.root.brokers.metadata.quorum import read_broker_quorum
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem

METADATA = "__cluster_metadata-0"


@pytest.fixture
def controllers() -> ScriptedControllers:
    controllers = ScriptedControllers()
    for _ in range(5):
        controllers.append(records=3)
    return controllers


def observer_of(
    controllers: ScriptedControllers,
    path: Path,
    *,
    fs: FileSystem = LOCAL,
    bootstrap: str = "controller:9001,controller:9002",
    bytes_between_snapshots: int = 1 << 30,
) -> MetadataObserver:
    return MetadataObserver(
        bootstrap,
        path,
        ClientSettings(default_api_timeout_ms=5000),
        bytes_between_snapshots=bytes_between_snapshots,
        segment_bytes=1000,
        open_client=controllers.open_client,
        fs=fs,
        monotonic_s=controllers.clock.monotonic_s,
        sleep=controllers.clock.sleep,
    )


def catch_up(controllers: ScriptedControllers, path: Path, **options: int) -> ObservedMetadata:
    observer = observer_of(controllers, path, **options)
    try:
        return observer.catch_up()
    finally:
        observer.close()


def files(path: Path, pattern: str) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted((path / METADATA).glob(pattern))}


def segments(path: Path) -> bytes:
    return b"".join(files(path, "*.log").values())


def test_copy_has_the_bytes_of_the_log_in_files_of_a_bounded_size(
    controllers: ScriptedControllers, tmp_path: Path
) -> None:
    for _ in range(20):
        controllers.append()
        observed = catch_up(controllers, tmp_path / "copy")
    assert (observed.end_offset, observed.high_watermark, observed.leader_id) == (35, 35, 1)
    assert segments(tmp_path / "copy") == controllers.bytes_between(0, 35)
    found = files(tmp_path / "copy", "*.log")
    assert len(found) > 3
    assert all(len(data) <= 1000 for data in list(found.values())[1:])


def test_what_is_not_committed_is_not_taken(controllers: ScriptedControllers, tmp_path: Path) -> None:
    observer = observer_of(controllers, tmp_path)
    observer.catch_up()
    controllers.append(committed=False)
    assert observer.step().end_offset == 15
    controllers.append(committed=False)
    controllers.high_watermark = 16
    assert observer.step().end_offset == 16
    controllers.high_watermark = -1
    assert not observer.step().is_caught_up
    observer.close()
    assert segments(tmp_path) == controllers.bytes_between(0, 16)


@pytest.mark.parametrize("names_leader", [True, False])
def test_leader_is_found_from_any_controller_and_followed_when_it_changes(
    controllers: ScriptedControllers, tmp_path: Path, names_leader: bool
) -> None:
    controllers.names_leader = names_leader
    controllers.leader, controllers.epoch = 3, 7
    observer = observer_of(controllers, tmp_path, bootstrap="controller:9001")
    controllers.append()
    assert observer.catch_up().leader_epoch == 7
    controllers.leader, controllers.epoch = 2, 8
    controllers.append()
    observed = observer.catch_up()
    assert (observed.end_offset, observed.leader_id, observed.leader_epoch) == (17, 2, 8)
    controllers.down.add(2)
    controllers.leader, controllers.epoch = 1, 9
    controllers.append()
    assert observer.catch_up().leader_id == 1
    observer.close()
    found = read_broker_quorum(tmp_path)
    assert (found.leader_id, found.leader_epoch, found.high_watermark) == (1, 9, 18)
    found_by_verify = {each.what for each in verify(open_root(tmp_path)).findings}
    assert found_by_verify == {"metadata-log"}  # the scripted records are none of Kafka's
    assert found.cluster_id == "cluster"


def test_named_leader_is_asked_at_once(controllers: ScriptedControllers, tmp_path: Path) -> None:
    controllers.leader = 3
    catch_up(controllers, tmp_path)
    assert [node for node, _ in controllers.requests] == [1, 3]
    assert sum(controllers.clock.sleeps) == 0


def test_controllers_without_a_leader_are_an_error_after_a_while(
    controllers: ScriptedControllers, tmp_path: Path
) -> None:
    observer = observer_of(controllers, tmp_path)
    controllers.leader = -1
    with pytest.raises(LeaderUnavailableError, match="does not lead: NOT_LEADER_OR_FOLLOWER"):
        observer.step()
    assert 3 <= controllers.clock.now_s <= 6
    controllers.down.update(controllers.nodes)
    with pytest.raises(LeaderUnavailableError, match=r"controller controller:900\d does not answer FETCH"):
        observer.step()
    reports: list[ObservedMetadata | Exception] = []

    def report(observed: ObservedMetadata | Exception) -> None:
        reports.append(observed)
        controllers.down.clear()
        controllers.leader = 2

    observer.run(is_stopping=lambda: len(reports) == 2, report=report)
    assert isinstance(reports[0], LeaderUnavailableError)
    assert isinstance(reports[1], ObservedMetadata)
    observer.close()


@pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
def test_snapshot_comes_in_pieces_and_the_log_follows_it(
    controllers: ScriptedControllers, tmp_path: Path, piece_bytes: int
) -> None:
    controllers.piece_bytes = piece_bytes
    controllers.take_snapshot(9)
    observed = catch_up(controllers, tmp_path)
    assert observed.end_offset == 15
    name = f"{9:020d}-{1:010d}.checkpoint"
    assert files(tmp_path, "*.checkpoint*") == {name: snapshot_bytes(5)}
    assert files(tmp_path, "*.log") == {f"{9:020d}.log": controllers.bytes_between(9, 15)}


def test_snapshot_on_its_way_is_continued_and_another_one_replaces_it(
    controllers: ScriptedControllers, tmp_path: Path
) -> None:
    controllers.take_snapshot(9)
    controllers.piece_bytes = 100
    fs = StoppingFileSystem()
    observer = observer_of(controllers, tmp_path, fs=fs)
    fs.stops_at, fs.changes = 9, 0  # some pieces
    with pytest.raises(Killed):
        observer.catch_up()
    observer.close()
    (part,) = files(tmp_path, "*.part").values()
    assert 0 < len(part) < len(snapshot_bytes(5))
    del controllers.requests[:]
    assert catch_up(controllers, tmp_path).end_offset == 15
    positions = [
        each.topics[0].partitions[0].position
        for _, each in controllers.requests
        if isinstance(each, FetchSnapshotRequest)
    ]
    assert positions[0] == len(part)


def test_snapshot_that_the_controllers_drop_meanwhile_is_left_for_their_newest(
    controllers: ScriptedControllers, tmp_path: Path
) -> None:
    controllers.take_snapshot(6)
    observer = observer_of(controllers, tmp_path)
    first = dict(controllers.snapshots)
    controllers.piece_bytes = 100

    real = controllers.answer

    def answer(node: int, request: object) -> object:
        if len(controllers.requests) == 4:
            controllers.snapshots.clear()
            controllers.take_snapshot(12)
        return real(node, request)  # type: ignore[arg-type]

    controllers.answer = answer  # type: ignore[method-assign, assignment]
    observer.catch_up()
    observer.close()
    assert first
    assert list(files(tmp_path, "*.checkpoint*")) == [f"{12:020d}-{1:010d}.checkpoint"]


def test_snapshot_is_never_put_together_from_two_controllers(controllers: ScriptedControllers, tmp_path: Path) -> None:
    controllers.take_snapshot(9)
    controllers.piece_bytes = len(snapshot_bytes(1)) - len(snapshot_bytes(0))  # a batch
    other = snapshot_bytes(5, filler=7)
    assert len(other) == len(snapshot_bytes(5))
    real = controllers.answer

    def answer(node: int, request: object) -> object:
        if len(controllers.requests) == 5:
            controllers.leader, controllers.epoch = 2, 2
            controllers.snapshots[9, 1] = other
        return real(node, request)  # type: ignore[arg-type]

    controllers.answer = answer  # type: ignore[method-assign, assignment]
    assert catch_up(controllers, tmp_path).end_offset == 15
    assert list(files(tmp_path, "*.checkpoint*").values()) == [other]


@pytest.mark.parametrize("damage", ["cut", "bit", "no footer"])
def test_damaged_snapshot_is_refused_and_fetched_again(
    controllers: ScriptedControllers, tmp_path: Path, damage: str
) -> None:
    controllers.take_snapshot(9)
    whole = snapshot_bytes(5)
    flipped = bytearray(whole)
    flipped[150] ^= 1
    damaged = {"cut": whole[:-1], "bit": bytes(flipped), "no footer": whole[: -len(snapshot_bytes(0))]}
    controllers.snapshots[9, 1] = damaged[damage]
    observer = observer_of(controllers, tmp_path)
    with pytest.raises(LeaderUnavailableError, match=r"a snapshot of .* came damaged"):
        observer.step()
    assert not files(tmp_path, "*.checkpoint*")
    controllers.snapshots[9, 1] = whole
    assert observer.catch_up().end_offset == 15
    observer.close()


def test_damaged_records_are_refused(controllers: ScriptedControllers, tmp_path: Path) -> None:
    data = bytearray(controllers.log[1].data)
    data[-3] ^= 1
    right, controllers.log[1].data = controllers.log[1].data, bytes(data)
    observer = observer_of(controllers, tmp_path)
    with pytest.raises(LeaderUnavailableError, match="came damaged"):
        observer.step()
    controllers.log[1].data = right
    assert observer.catch_up().end_offset == 15
    observer.close()


def test_newer_snapshot_replaces_what_it_contains(controllers: ScriptedControllers, tmp_path: Path) -> None:
    observer = observer_of(controllers, tmp_path, bytes_between_snapshots=2500)
    observer.catch_up()
    for _ in range(30):
        controllers.append()
        observer.step()
    end = controllers.high_watermark
    controllers.take_snapshot(end - 4)
    for _ in range(20):
        controllers.append()
        observer.step()
    observer.close()
    assert list(files(tmp_path, "*.checkpoint")) == [f"{end - 4:020d}-{1:010d}.checkpoint"]
    kept = segments(tmp_path)
    assert kept.endswith(controllers.bytes_between(end - 4, controllers.high_watermark))
    assert len(kept) < 5000


def test_copy_is_cut_where_the_controllers_have_other_records(controllers: ScriptedControllers, tmp_path: Path) -> None:
    controllers.epoch = 3
    for _ in range(8):
        controllers.append()
    catch_up(controllers, tmp_path)
    controllers.log = controllers.log[:6]
    controllers.epoch = 4
    controllers.leader = 2
    controllers.append(records=4)
    observed = catch_up(controllers, tmp_path)
    assert observed.end_offset == 20
    assert segments(tmp_path) == controllers.bytes_between(0, 20)


def test_copy_whose_snapshot_the_controllers_never_had_begins_again(
    controllers: ScriptedControllers, tmp_path: Path
) -> None:
    controllers.take_snapshot(15)
    controllers.append()
    catch_up(controllers, tmp_path)
    controllers.log, controllers.log_start = [], 0
    controllers.snapshots.clear()
    controllers.epoch = 5
    controllers.append(records=2)
    assert catch_up(controllers, tmp_path).end_offset == 2
    assert segments(tmp_path) == controllers.bytes_between(0, 2)
    assert not files(tmp_path, "*.checkpoint")


def test_other_directories_and_clusters_are_refused(controllers: ScriptedControllers, tmp_path: Path) -> None:
    catch_up(controllers, tmp_path / "copy")
    controllers.cluster_id = "another"
    with pytest.raises(LogDirError, match="of cluster cluster, the controllers are of cluster another"):
        catch_up(controllers, tmp_path / "copy")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(LogDirError, match="expected an empty directory"):
        catch_up(controllers, tmp_path / "full")


def story(controllers: ScriptedControllers, path: Path, fs: FileSystem, seen: list[int]) -> None:
    """Appends with new files, a cut, a snapshot to begin with, a newer one. `seen`: how far the copy said it was."""
    observer = observer_of(controllers, path, fs=fs, bytes_between_snapshots=1500)
    try:
        for number in range(3):
            observed = observer.catch_up()
            seen.append(observed.end_offset)
            controllers.append(records=2, size=100 * number)
        seen.append(observer.catch_up().end_offset)
        controllers.log = controllers.log[:-2]
        controllers.epoch += 1
        controllers.append()
        del seen[:]
        observer.catch_up()
        for _ in range(4):
            controllers.append()
        controllers.take_snapshot(controllers.high_watermark - 2)
        observer.catch_up()
        controllers.append(size=400)
        observer.catch_up()
        controllers.take_snapshot(controllers.high_watermark - 1)
        controllers.append(size=400)
        seen.append(observer.catch_up().end_offset)
    finally:
        observer.close()


def new_controllers() -> ScriptedControllers:
    controllers = ScriptedControllers()
    for _ in range(3):
        controllers.append(records=2)
    return controllers


@pytest.mark.parametrize(
    ("error", "torn"),
    [
        (Killed, True),
        pytest.param(Killed, False, marks=pytest.mark.full),
        pytest.param(broken_disk, True, marks=pytest.mark.full),
        pytest.param(broken_disk, False, marks=pytest.mark.full),
    ],
)
def test_copy_goes_on_after_a_kill_or_a_failure_at_every_change(
    tmp_path: Path, error: Callable[[], BaseException], torn: bool
) -> None:
    stops_at = 0
    while True:
        fs = StoppingFileSystem(stops_at, error=error, torn=torn)
        path, controllers, seen = tmp_path / f"{stops_at}", new_controllers(), [0]
        with contextlib.suppress(Killed, OSError):
            story(controllers, path, fs, seen)
        if not fs.has_stopped:
            break
        observer = observer_of(controllers, path)
        assert observer.step(wait_ms=0).end_offset >= max(seen, default=0)
        observed = observer.catch_up()
        observer.close()
        assert observed.end_offset == controllers.high_watermark
        start = int(min(files(path, "*.log"), default=f"{observed.end_offset}.log").removesuffix(".log"))
        assert segments(path).endswith(controllers.bytes_between(start, observed.end_offset))
        assert files(path, "*.checkpoint").keys() <= {
            f"{end:020d}-{epoch:010d}.checkpoint" for end, epoch in controllers.snapshots
        }
        stops_at += 1
    assert stops_at > 60


def test_fetches_say_how_far_the_copy_is(controllers: ScriptedControllers, tmp_path: Path) -> None:
    controllers.epoch = 2
    controllers.append()
    catch_up(controllers, tmp_path)
    catch_up(controllers, tmp_path)
    _, last = controllers.requests[-1]
    assert isinstance(last, FetchRequest)
    asked = last.topics[0].partitions[0]
    assert (asked.fetch_offset, asked.last_fetched_epoch, asked.current_leader_epoch) == (16, 2, 2)
