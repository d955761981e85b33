"""Keeps a copy of a cluster's metadata log up to date, as an observer of its controllers.

`MetadataObserver` works in steps. Each step asks the active controller for what follows the copy (metadata_copy.py),
and takes the committed part of the answer:

    records      those below the high watermark are checked and appended
    a snapshot   the controllers have no records from there on: it is fetched in pieces, and the log begins at its end
    diverging    the copy has records that the controllers have not: they are cut off

Committed records never change while a majority of the controllers keep their disks; after a recovery from less, they
can, and then the copy follows. When much has come since the last snapshot, the controllers' newest one is fetched,
and what it contains is removed, so the copy stays small.

A kill at any point loses nothing: the next process continues where the files end.

`ActiveController` sends the requests, Fetch and FetchSnapshot, to the active controller, wherever it is. Requests carry
no replica id, so no replica is tracked; they need the listener of the controllers and, with an authorizer, the
permission CLUSTER_ACTION. Any controller says who leads: its answer names the leader, the leader's epoch and the
addresses of the controllers. Records come up to the leader's log end; its high watermark says which are committed.

`observing` does this in a thread, as long as a block runs. A disk that is full or fails, and controllers that do not
answer, are reported and tried again; after an error of the disk the copy is opened again, which brings it to what is on
disk.

Source of the rules: org.apache.kafka.raft.KafkaRaftClient (buildFetchRequest, handleFetchRequest, handleFetchResponse,
handleFetchSnapshotRequest, handleFetchSnapshotResponse), KIP-595, KIP-630, KIP-919.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

from pyspark_kafkalog.errors import DiskFormatError, InvalidConfigError, LeaderUnavailableError, UnsupportedApiError
from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FetchSnapshotRequest,
    FetchSnapshotRequestPartitionSnapshot,
    FetchSnapshotRequestTopicSnapshot,
    FetchSnapshotResponse,
    SnapshotId,
)
from pyspark_kafkalog.protocol.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.replication.cluster.answers import error_text
from pyspark_kafkalog.replication.cluster.connections import (
    NodeAddress,
    NodeConnection,
    OpenClient,
    client_opener,
    parse_addresses,
)
from pyspark_kafkalog.replication.leader import EpochEnd
from pyspark_kafkalog.replication.metadata_copy import SEGMENT_BYTES, MetadataLogCopy, SnapshotName
from pyspark_kafkalog.root.bootstrap import METADATA_TOPIC_ID
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC
from pyspark_kafkalog.threads import start
from pyspark_kafkalog.units import MIB, SECOND_MS

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")

NO_LEADER: Final = -1
_CONTROLLERS: Final = 2  # the type of end points that DescribeCluster is asked for
_FETCH_BYTES_MAX: Final = 8 * MIB
#: How often one controller may name another before the next request has to wait.
_REDIRECTS_MAX: Final = 3
_LEADER_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
#: Kafka's own metadata.log.max.record.bytes.between.snapshots.
_BYTES_BETWEEN_SNAPSHOTS: Final = 20 * MIB
_WAIT_MS: Final = 500
_RECORDS: Final = "<FETCH response of __cluster_metadata>"
#: Between two looks at records that are not committed yet.
_UNCOMMITTED_PAUSE_S: Final = 0.05
_RETRY_S: Final = 1.0
#: How long a step looks for the leader, so that a request to stop takes effect.
_STEP_MS: Final = 5_000
#: How long an election may take.
_CATCH_UP_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class FetchedMetadata:
    """What the leader answers from a position on: records, or where the logs diverge, or a snapshot to begin with.

    `high_watermark` is -1 if the leader does not know it yet. `records` may end with an incomplete batch.
    """

    records: Buffer = b""
    high_watermark: int = -1
    diverging: EpochEnd | None = None
    snapshot: SnapshotName | None = None


@dataclass(frozen=True, slots=True)
class SnapshotPiece:
    """Bytes of a snapshot from the position that was asked for on; `size_bytes` of the whole snapshot."""

    data: Buffer
    size_bytes: int


class _LeaderIdAndEpoch(Protocol):
    @property
    def leader_id(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...


class _Endpoint(Protocol):
    @property
    def node_id(self) -> int: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class _Elsewhere(Exception):
    """The controller that was asked does not lead."""


class ActiveController:
    """The controllers behind `controllers` (host:port,host:port), of which the leader is asked.

    `leader_id` and `leader_epoch` are the newest known. Used by one thread. Raises InvalidConfigError for addresses
    that are none.
    """

    def __init__(
        self,
        controllers: str,
        settings: ClientSettings | None = None,
        *,
        open_client: OpenClient | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = controllers
        self.leader_id = NO_LEADER
        self.leader_epoch = 0
        self._settings = settings or ClientSettings()
        self._open_client = open_client or client_opener(self._settings)
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._given = parse_addresses(controllers)
        self._by_id: dict[int, NodeAddress] = {}
        self._nodes: dict[NodeAddress, NodeConnection] = {}
        self._turn = 0
        self._cluster_id: str | None = None

    def cluster_id(self) -> str:
        """The id of the cluster, which later requests carry. Raises LeaderUnavailableError, InvalidConfigError."""

        def ask(node: NodeConnection) -> str:
            try:
                response = node.call(DescribeClusterRequest(endpoint_type=_CONTROLLERS), DescribeClusterResponse)
            except UnsupportedApiError:
                raise InvalidConfigError(
                    f"{node.name} does not describe its controllers: expected the listener of a controller, of "
                    "Kafka 3.7 or newer"
                ) from None
            if response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE:
                raise InvalidConfigError(f"{node.name} is the listener of a broker: expected that of a controller")
            if response.error_code != ErrorCode.NONE:
                raise LeaderUnavailableError(f"{node.name} does not describe its cluster: {response.error_message}")
            self._learn_addresses(
                (each.broker_id, NodeAddress(each.host, each.port)) for each in response.brokers if each.host
            )
            return response.cluster_id

        self._cluster_id = self._ask(ask)
        return self._cluster_id

    def fetch(self, offset: int, last_epoch: int, *, wait_ms: int) -> FetchedMetadata:
        """What follows `offset`, whose record before is of `last_epoch`; 0 and 0 for the beginning of an empty log.

        Raises LeaderUnavailableError, AuthenticationError, UnsupportedApiError.
        """

        def ask(node: NodeConnection) -> FetchedMetadata:
            partition = FetchPartition(
                current_leader_epoch=max(self.leader_epoch, last_epoch),
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                partition_max_bytes=_FETCH_BYTES_MAX,
            )
            request = FetchRequest(
                cluster_id=self._cluster_id,
                max_wait_ms=min(wait_ms, self._settings.request_timeout_ms // 2),
                min_bytes=1,
                max_bytes=_FETCH_BYTES_MAX,
                topics=(FetchTopic(topic=CLUSTER_METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=(partition,)),),
            )
            return self._fetched(node, node.call(request, FetchResponse))

        return self._ask(ask)

    def _fetched(self, node: NodeConnection, response: FetchResponse) -> FetchedMetadata:
        _check(node, response.error_code)
        found = [each for topic in response.responses for each in topic.partitions]
        if len(found) != 1:
            raise LeaderUnavailableError(f"{node.name} answered FETCH of one partition with {len(found)}")
        answer = found[0]
        self._learn(answer.current_leader, response.node_endpoints)
        _check(node, answer.error_code)
        diverging, snapshot = answer.diverging_epoch, answer.snapshot_id
        if snapshot.end_offset >= 0 and snapshot.epoch >= 0:
            return FetchedMetadata(snapshot=SnapshotName(snapshot.end_offset, snapshot.epoch))
        if diverging.epoch >= 0 and diverging.end_offset >= 0:
            return FetchedMetadata(diverging=EpochEnd(diverging.epoch, diverging.end_offset))
        records = answer.records
        assert records is None or isinstance(records, (bytes, memoryview))
        return FetchedMetadata(records=records or b"", high_watermark=answer.high_watermark)

    def fetch_snapshot(self, name: SnapshotName, position: int) -> SnapshotPiece | None:
        """A piece of a snapshot; None if the leader does not have it any more, or not from there on.

        Raises as `fetch`.
        """

        def ask(node: NodeConnection) -> SnapshotPiece | None:
            partition = FetchSnapshotRequestPartitionSnapshot(
                current_leader_epoch=self.leader_epoch,
                snapshot_id=SnapshotId(end_offset=name.end_offset, epoch=name.epoch),
                position=position,
            )
            request = FetchSnapshotRequest(
                cluster_id=self._cluster_id,
                max_bytes=_FETCH_BYTES_MAX,
                topics=(FetchSnapshotRequestTopicSnapshot(name=CLUSTER_METADATA_TOPIC, partitions=(partition,)),),
            )
            return self._snapshot_piece(node, node.call(request, FetchSnapshotResponse), name, position)

        return self._ask(ask)

    def _snapshot_piece(
        self, node: NodeConnection, response: FetchSnapshotResponse, name: SnapshotName, position: int
    ) -> SnapshotPiece | None:
        _check(node, response.error_code)
        found = [each for topic in response.topics for each in topic.partitions]
        if len(found) != 1:
            raise LeaderUnavailableError(f"{node.name} answered FETCH_SNAPSHOT of one partition with {len(found)}")
        answer = found[0]
        self._learn(answer.current_leader, response.node_endpoints)
        if answer.error_code in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
            return None
        _check(node, answer.error_code)
        records = answer.unaligned_records
        assert records is None or isinstance(records, (bytes, memoryview))
        data = records or b""
        is_other = (answer.snapshot_id.end_offset, answer.snapshot_id.epoch) != (name.end_offset, name.epoch)
        if is_other or answer.position != position or not 0 < len(data) <= answer.size - position:
            raise LeaderUnavailableError(
                f"{node.name} answered FETCH_SNAPSHOT of {name} at byte {position} with {len(data)} bytes of "
                f"{answer.snapshot_id} at byte {answer.position} of {answer.size}"
            )
        return SnapshotPiece(data, answer.size)

    def _learn(self, leader: _LeaderIdAndEpoch, endpoints: Iterable[_Endpoint]) -> None:
        """Note a leader that is newer than the one known, and where controllers are."""
        self._learn_addresses((each.node_id, NodeAddress(each.host, each.port)) for each in endpoints)
        if leader.leader_epoch > self.leader_epoch or (
            leader.leader_epoch == self.leader_epoch and leader.leader_id >= 0
        ):
            self.leader_id, self.leader_epoch = leader.leader_id, leader.leader_epoch

    def _learn_addresses(self, found: Iterable[tuple[int, NodeAddress]]) -> None:
        self._by_id.update(found)

    def _ask(self, ask: Callable[[NodeConnection], _T]) -> _T:
        """The answer of the leader; goes from one controller to the next until there is one."""
        give_up_s = self._monotonic_s() + self._settings.default_api_timeout_ms / SECOND_MS
        backoff_ms = self._settings.retry_backoff_ms
        redirects = 0
        while True:
            leader_id = self.leader_id
            try:
                return ask(self._node(self._next_address()))
            except _Elsewhere as elsewhere:
                failed = LeaderUnavailableError(str(elsewhere))
                redirects += 1
                if self.leader_id in self._by_id and self.leader_id != leader_id and redirects <= _REDIRECTS_MAX:
                    continue  # it was named: no need to wait
            except LeaderUnavailableError as error:
                failed = error
            self.leader_id = NO_LEADER
            self._turn += 1
            if self._monotonic_s() + backoff_ms / SECOND_MS >= give_up_s:
                raise failed
            self._sleep(backoff_ms / SECOND_MS)
            backoff_ms = min(2 * backoff_ms, self._settings.retry_backoff_max_ms)

    def _next_address(self) -> NodeAddress:
        if self.leader_id in self._by_id:
            return self._by_id[self.leader_id]
        known = list(dict.fromkeys((*self._given, *self._by_id.values())))
        return known[self._turn % len(known)]

    def _node(self, address: NodeAddress) -> NodeConnection:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = NodeConnection(
                f"controller {address}",
                address,
                self._open_client,
                self._settings,
                monotonic_s=self._monotonic_s,
                sleep=self._sleep,
            )
        return node

    def close(self) -> None:
        """Close all connections."""
        for node in self._nodes.values():
            node.close()


def _check(node: NodeConnection, code: int) -> None:
    """Raises _Elsewhere or LeaderUnavailableError for an error."""
    if code in _LEADER_ERRORS:
        raise _Elsewhere(f"{node.name} does not lead: {error_text(code)}")
    if code != ErrorCode.NONE:
        raise LeaderUnavailableError(f"{node.name} does not give its metadata log: {error_text(code)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMetadata:
    """How far the copy is: its log end, and the controllers' high watermark, -1 if unknown; who leads."""

    end_offset: int
    high_watermark: int
    leader_id: int
    leader_epoch: int

    @property
    def is_caught_up(self) -> bool:
        return 0 <= self.high_watermark <= self.end_offset


class MetadataObserver:
    """The copy in the directory `path` of the metadata log behind `controllers` (host:port,host:port)."""

    def __init__(
        self,
        controllers: str,
        path: Path,
        settings: ClientSettings | None = None,
        *,
        bytes_between_snapshots: int = _BYTES_BETWEEN_SNAPSHOTS,
        segment_bytes: int = SEGMENT_BYTES,
        open_client: OpenClient | None = None,
        fs: FileSystem = LOCAL,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connects, and opens or creates the copy, whose files have up to `segment_bytes`.

        Raises LeaderUnavailableError, AuthenticationError, InvalidConfigError, LogDirError, OSError.
        """
        settings = settings or ClientSettings()
        asked = replace(settings, default_api_timeout_ms=min(settings.default_api_timeout_ms, _STEP_MS))
        self._controller = ActiveController(
            controllers, asked, open_client=open_client, monotonic_s=monotonic_s, sleep=sleep
        )
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._bytes_between_snapshots = bytes_between_snapshots
        self._snapshot_asked_bytes = 0
        self._leader = (-1, -1)
        try:
            self._copy = MetadataLogCopy.open(path, self._controller.cluster_id(), fs=fs, segment_bytes=segment_bytes)
        except BaseException:
            self._controller.close()
            raise

    def close(self) -> None:
        """Release the copy and close the connections."""
        self._controller.close()
        self._copy.close()

    def step(self, *, wait_ms: int = _WAIT_MS) -> ObservedMetadata:
        """Take what the controllers have next; waits up to `wait_ms` for it.

        Raises LeaderUnavailableError, also for records that come damaged; AuthenticationError, OSError.
        """
        copy, controller = self._copy, self._controller
        found = controller.fetch(copy.end_offset, copy.last_epoch, wait_ms=wait_ms)
        self._note_leader()
        if found.snapshot is not None:
            self._take_snapshot(found.snapshot)
        elif found.diverging is not None:
            before = copy.end_offset
            copy.truncate_for(found.diverging)
            _LOG.warning(
                "the controllers have other records than this copy: it was cut from offset %d to %d",
                before,
                copy.end_offset,
            )
        elif len(found.records):
            try:
                self._take_records(found.records, found.high_watermark)
            except DiskFormatError as error:
                raise LeaderUnavailableError(f"records of {controller.name} came damaged: {error}") from error
            self._take_newer_snapshot()
        return ObservedMetadata(
            end_offset=copy.end_offset,
            high_watermark=found.high_watermark,
            leader_id=controller.leader_id,
            leader_epoch=controller.leader_epoch,
        )

    def catch_up(self) -> ObservedMetadata:
        """Steps until the copy has all that was committed. Raises as `step`, of the controllers only if no step gets on
        for a minute."""
        end_offset, since_s = self._copy.end_offset, self._monotonic_s()
        while True:
            try:
                observed = self.step(wait_ms=0)
                if observed.is_caught_up:
                    return observed
                failed = LeaderUnavailableError(f"{self._controller.name} does not know what is committed")
                pause_s = _UNCOMMITTED_PAUSE_S
            except LeaderUnavailableError as error:
                failed, pause_s = error, _RETRY_S
            if self._copy.end_offset != end_offset:
                end_offset, since_s = self._copy.end_offset, self._monotonic_s()
                continue
            if self._monotonic_s() - since_s > _CATCH_UP_S:
                raise failed
            self._sleep(pause_s)

    def run(self, *, is_stopping: Callable[[], bool], report: Callable[[ObservedMetadata | Exception], None]) -> None:
        """Steps until `is_stopping`; reports each, and errors of the controllers, after which it continues.

        Raises as `step`, except LeaderUnavailableError.
        """
        while not is_stopping():
            try:
                report(self.step())
            except LeaderUnavailableError as error:
                report(error)
                self._sleep(_RETRY_S)

    def _note_leader(self) -> None:
        leader = (self._controller.leader_id, self._controller.leader_epoch)
        if leader != self._leader and leader[0] >= 0:
            self._copy.write_leader(*leader)
            self._leader = leader

    def _take_records(self, records: Buffer, high_watermark: int) -> None:
        scan = scan_batches(records, file=_RECORDS)
        committed = scan.batches[: int((scan.batches["last_offset"] < high_watermark).sum())]
        if not len(committed):
            if scan.fault is not None:
                raise scan.fault
            self._sleep(_UNCOMMITTED_PAUSE_S)
            return
        data = memoryview(records)[: int(committed["size_bytes"].sum())]
        verify_crcs(data, committed, data_position=0, file=_RECORDS)
        if int(committed["base_offset"][0]) != self._copy.end_offset:
            raise LeaderUnavailableError(
                f"{self._controller.name} answered FETCH of the metadata log from offset {self._copy.end_offset} with "
                f"records from {int(committed['base_offset'][0])} on"
            )
        self._copy.append(data, committed)

    def _take_newer_snapshot(self) -> None:
        """If much has come since the last snapshot: the newest one of the controllers, where they have removed records.

        The controllers name it in answer to a fetch of the beginning of the log, once they have deleted that.
        """
        grown_bytes = self._copy.bytes_since_snapshot - self._snapshot_asked_bytes
        if grown_bytes < self._bytes_between_snapshots:
            return
        self._snapshot_asked_bytes = self._copy.bytes_since_snapshot
        found = self._controller.fetch(0, 0, wait_ms=0).snapshot
        has = self._copy.snapshot
        if found is not None and found.end_offset <= self._copy.end_offset:
            if has is None or found.end_offset > has.end_offset:
                self._take_snapshot(found)
            self._snapshot_asked_bytes = self._copy.bytes_since_snapshot

    def _take_snapshot(self, name: SnapshotName) -> None:
        copy, leader_id = self._copy, self._controller.leader_id
        position = copy.begin_snapshot(name, leader_id)
        while True:
            piece = self._controller.fetch_snapshot(name, position)
            if piece is None or self._controller.leader_id != leader_id:
                copy.drop_snapshot()  # the next step finds out what there is to fetch, and from whom
                return
            copy.add_to_snapshot(position, piece.data)
            position += len(piece.data)
            if position == piece.size_bytes:
                break
        try:
            copy.finish_snapshot(name)
        except DiskFormatError as error:
            raise LeaderUnavailableError(f"a snapshot of {self._controller.name} came damaged: {error}") from error


@contextmanager
def observing(
    controllers: str,
    path: Path,
    settings: ClientSettings | None = None,
    *,
    report: Callable[[ObservedMetadata | Exception], None],
) -> Iterator[None]:
    """Keep the copy in the directory `path` up to date while the block runs; `report` is called in another thread.

    Raises what `MetadataObserver` raises if the copy cannot be begun.
    """
    first = MetadataObserver(controllers, path, settings)
    is_ending = threading.Event()

    def observe() -> None:
        observer: MetadataObserver | None = first
        while not is_ending.is_set():
            try:
                if observer is None:
                    observer = MetadataObserver(controllers, path, settings)
                observer.run(is_stopping=is_ending.is_set, report=report)
            except OSError as error:  # among them those of the network
                report(error)
                if observer is not None:
                    observer.close()
                    observer = None
                is_ending.wait(_RETRY_S)
        if observer is not None:
            observer.close()

    thread = threading.Thread(target=observe, name="kafkalog-metadata", daemon=True)
    start(thread)
    try:
        yield
    finally:
        is_ending.set()
        thread.join()
