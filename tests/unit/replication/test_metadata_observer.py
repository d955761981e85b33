"""The observer of a metadata log: redirects, uncommitted records, snapshots, diverging logs, kills at every change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fakes.scripted_cluster import Clock, ScriptedConnection
from fakes.stopping_filesystem import Killed, StoppingFileSystem, broken_disk

from pyspark_kafkalog.errors import LeaderUnavailableError, LogDirError, NetworkError
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.protocol.api import APIS, ApiKey, ParsedRequest
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import cluster
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FetchSnapshotRequest,
)
from pyspark_kafkalog.protocol.messages.records import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseNodeEndpoint,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.replication.cluster.connections import NodeAddress, OpenedClient
from pyspark_kafkalog.replication.metadata_observer import MetadataObserver, ObservedMetadata
from pyspark_kafkalog.root.bootstrap import METADATA_TOPIC_ID
from pyspark_kafkalog.root.brokers.quorum import read_broker_quorum
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem

_FOOTER_KEY = bytes.fromhex("00000004")
_FOOTER_VALUE = bytes.fromhex("000000")


@dataclass
class Batch:
    base_offset: int
    end_offset: int
    epoch: int
    data: bytes


def snapshot_bytes(batches: int, *, size: int = 100, filler: int = 0) -> bytes:
    """A snapshot of so many batches, and a footer."""
    data = b"".join(
        encode_batch([Record(offset=at, timestamp_ms=0, key=None, value=bytes([filler]) * size)])
        for at in range(batches)
    )
    footer = Record(offset=batches, timestamp_ms=0, key=_FOOTER_KEY, value=_FOOTER_VALUE)
    return data + encode_batch([footer], is_control=True)


@dataclass
class ScriptedControllers:
    """Nodes listen on port 9000 + id of the host "controller". `names_leader`: whether followers say who leads.

    `piece_bytes` of a snapshot are answered at once. `requests` are those of Fetch and FetchSnapshot, by node.
    """

    nodes: tuple[int, ...] = (1, 2, 3)
    leader: int = 1
    epoch: int = 1
    high_watermark: int = 0
    log_start: int = 0
    names_leader: bool = True
    cluster_id: str = "cluster"
    piece_bytes: int = 1 << 20
    log: list[Batch] = field(default_factory=list)
    snapshots: dict[tuple[int, int], bytes] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    clock: Clock = field(default_factory=Clock)
    requests: list[tuple[int, ApiMessage]] = field(default_factory=list)

    def append(self, records: int = 1, *, size: int = 50, committed: bool = True) -> None:
        first = self.log[-1].end_offset if self.log else self.log_start
        value = f"{self.epoch} ".encode() * size
        batch = encode_batch(
            [Record(offset=first + at, timestamp_ms=0, key=None, value=value) for at in range(records)],
            leader_epoch=self.epoch,
        )
        self.log.append(Batch(first, first + records, self.epoch, batch))
        if committed:
            self.high_watermark = first + records

    def bytes_between(self, start: int, end: int) -> bytes:
        return b"".join(each.data for each in self.log if start <= each.base_offset and each.end_offset <= end)

    def take_snapshot(self, end_offset: int, *, batches: int = 5) -> None:
        """A snapshot up to there; records below are gone."""
        epoch = max((each.epoch for each in self.log if each.end_offset <= end_offset), default=1)
        self.snapshots[end_offset, epoch] = snapshot_bytes(batches)
        self.log = [each for each in self.log if each.base_offset >= end_offset]
        self.log_start = end_offset

    def open_client(self, address: NodeAddress) -> OpenedClient:
        node = address.port - 9000
        if node in self.down:
            raise NetworkError(f"cannot connect to {address}")
        client = WireClient(
            ScriptedConnection(self, node),  # type: ignore[arg-type]
            client_id="c",
            timeout_s=10,
            monotonic_s=self.clock.monotonic_s,
        )
        client.negotiate()
        return OpenedClient(client)

    def answer(self, node: int, request: ParsedRequest) -> ApiMessage:
        body = request.body()
        if request.api.key == ApiKey.API_VERSIONS:
            return ApiVersionsResponse(
                api_keys=tuple(
                    ApiVersion(api_key=key, min_version=api.versions[0], max_version=api.versions[-1])
                    for key, api in APIS.items()
                )
            )
        if isinstance(body, DescribeClusterRequest):
            assert body.endpoint_type == 2
            nodes = tuple(
                DescribeClusterBroker(broker_id=each, host="controller", port=9000 + each) for each in self.nodes
            )
            return DescribeClusterResponse(cluster_id=self.cluster_id, brokers=nodes, controller_id=self.leader)
        self.requests.append((node, body))
        if isinstance(body, FetchRequest):
            return self._fetch(node, body)
        assert isinstance(body, cluster.FetchSnapshotRequest)
        return self._fetch_snapshot(node, body)

    def _error(self, node: int, epoch: int) -> int:
        if node != self.leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if epoch != self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE

    def _fetch(self, node: int, body: FetchRequest) -> ApiMessage:
        assert (body.cluster_id, body.topics[0].topic_id) == (self.cluster_id, METADATA_TOPIC_ID)
        asked = body.topics[0].partitions[0]
        error = self._error(node, asked.current_leader_epoch)
        says = self.names_leader or node == self.leader
        part = PartitionData(
            error_code=error,
            current_leader=LeaderIdAndEpoch(leader_id=self.leader, leader_epoch=self.epoch)
            if says
            else LeaderIdAndEpoch(),
            **({} if error else self._records(asked.fetch_offset, asked.last_fetched_epoch)),
        )
        endpoints = tuple(
            FetchResponseNodeEndpoint(node_id=each, host="controller", port=9000 + each) for each in self.nodes
        )
        topic = FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=(part,))
        return FetchResponse(responses=(topic,), node_endpoints=endpoints if says else ())

    def _records(self, offset: int, epoch: int) -> dict[str, object]:
        newest = max(self.snapshots, default=None)
        if newest is not None and offset < self.log_start:
            return {"snapshot_id": SnapshotId(end_offset=newest[0], epoch=newest[1]), "high_watermark": -1}
        before = [each for each in self.log if each.end_offset <= offset]
        known = before[-1].epoch if before else newest[1] if newest else epoch
        end = self.log[-1].end_offset if self.log else self.log_start
        if offset > end or epoch != known:
            of_epoch = [each for each in self.log if each.epoch <= epoch]
            ending = of_epoch[-1] if of_epoch else None
            found = (0, self.log_start) if ending is None else (ending.epoch, ending.end_offset)
            return {"diverging_epoch": FetchResponseEpochEndOffset(epoch=found[0], end_offset=found[1])}
        records = b"".join(each.data for each in self.log if each.base_offset >= offset)
        return {"records": records, "high_watermark": self.high_watermark}

    def _fetch_snapshot(self, node: int, body: cluster.FetchSnapshotRequest) -> ApiMessage:
        asked = body.topics[0].partitions[0]
        name = (asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        error = self._error(node, asked.current_leader_epoch)
        found = self.snapshots.get(name)
        if not error and found is None:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        elif not error and found is not None and not 0 <= asked.position < len(found):
            error = ErrorCode.POSITION_OUT_OF_RANGE
        data = b"" if found is None or error else found[asked.position : asked.position + self.piece_bytes]
        part = cluster.FetchSnapshotResponsePartitionSnapshot(
            error_code=error,
            snapshot_id=asked.snapshot_id,
            size=len(found or b""),
            position=asked.position,
            unaligned_records=data,
            current_leader=cluster.LeaderIdAndEpoch(leader_id=self.leader, leader_epoch=self.epoch),
        )
        topic = cluster.FetchSnapshotResponseTopicSnapshot(name="__cluster_metadata", partitions=(part,))
        return cluster.FetchSnapshotResponse(topics=(topic,))


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
