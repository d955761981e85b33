"""Controllers in memory with a metadata log: a test sets their leader, records and snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field

from scripted_cluster import Clock, ScriptedConnection

from pyspark_kafkalog.errors import NetworkError
from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.headers import ParsedRequest
from pyspark_kafkalog.protocol.messages import quorum
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
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
from pyspark_kafkalog.replication.cluster.connections import Address, OpenedClient
from pyspark_kafkalog.root.bootstrap import METADATA_TOPIC_ID

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

    def open_client(self, address: Address) -> OpenedClient:
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
        assert isinstance(body, quorum.FetchSnapshotRequest)
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

    def _fetch_snapshot(self, node: int, body: quorum.FetchSnapshotRequest) -> ApiMessage:
        asked = body.topics[0].partitions[0]
        name = (asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        error = self._error(node, asked.current_leader_epoch)
        found = self.snapshots.get(name)
        if not error and found is None:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        elif not error and found is not None and not 0 <= asked.position < len(found):
            error = ErrorCode.POSITION_OUT_OF_RANGE
        data = b"" if found is None or error else found[asked.position : asked.position + self.piece_bytes]
        part = quorum.FetchSnapshotResponsePartitionSnapshot(
            error_code=error,
            snapshot_id=asked.snapshot_id,
            size=len(found or b""),
            position=asked.position,
            unaligned_records=data,
            current_leader=quorum.LeaderIdAndEpoch(leader_id=self.leader, leader_epoch=self.epoch),
        )
        topic = quorum.FetchSnapshotResponseTopicSnapshot(name="__cluster_metadata", partitions=(part,))
        return quorum.FetchSnapshotResponse(topics=(topic,))
