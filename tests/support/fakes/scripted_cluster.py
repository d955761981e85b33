"""A cluster in memory that speaks Kafka's protocol, with the brokers, topics and errors that a test gives it.

Requests and responses go through the codec as on a connection; time passes only when somebody sleeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR, create_server
from ssl import SSLContext
from threading import Thread
from typing import Protocol

from patience import PATIENCE_S

from pyspark_kafkalog.errors import NetworkError
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import APIS, FRAME_SIZE, ApiKey, ParsedRequest, joined, parse_request
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    ConfigResource,
    ListConfigResourcesResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pyspark_kafkalog.protocol.messages.records import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderTopicResult,
    PartitionData,
)
from pyspark_kafkalog.protocol.messages.security import DescribeAclsResponse, DescribeClientQuotasResponse
from pyspark_kafkalog.protocol.messages.topics import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.replication.cluster.connections import NodeAddress, OpenedClient
from pyspark_kafkalog.storage.names import TopicPartition


class Clock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleeps: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now_s += seconds


class Answers(Protocol):
    """What answers requests; nodes in `down` do not."""

    down: set[int]

    def answer(self, node: int, request: ParsedRequest) -> ApiMessage: ...


@dataclass
class ScriptedPartition:
    """A partition: its leader, and what a broker answers of it."""

    leader: int
    epoch: int = 0
    data: bytes = b""
    log_start: int = 0
    high_watermark: int = 0
    error: int = 0
    preferred: int = -1
    diverging: FetchResponseEpochEndOffset = field(default_factory=FetchResponseEpochEndOffset)

    def append(self, *, records: int = 1, size: int = 10) -> bytes:
        """A batch at the high watermark, which rises."""
        first = self.high_watermark
        batch = encode_batch(
            [Record(offset=first + at, timestamp_ms=0, key=None, value=b"v" * size) for at in range(records)],
            leader_epoch=self.epoch,
        )
        self.data += batch
        self.high_watermark += records
        return batch


@dataclass
class ScriptedTopic:
    topic_id: str
    partitions: list[ScriptedPartition]
    error: int = 0
    configs_error: int = 0
    configs: dict[str, str] = field(default_factory=dict)


@dataclass
class ScriptedCluster:
    """Brokers by node id listen on port 9000 + id of the host "broker". `down`: those that do not answer.

    `throttle_ms` is said in each Fetch; `newest`: the newest version of an API that the brokers have. `received` counts
    requests by node and API, `requests` has them in order.
    """

    brokers: set[int] = field(default_factory=lambda: {1, 2})
    topics: dict[str, ScriptedTopic] = field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    cluster_id: str = "cluster"
    throttle_ms: int = 0
    newest: dict[ApiKey, int] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    received: Counter[tuple[int, ApiKey]] = field(default_factory=Counter)
    requests: list[tuple[int, ApiMessage]] = field(default_factory=list)
    opened: Counter[int] = field(default_factory=Counter)
    lifetime_ms: int = 0
    frame_bytes_max: int = 1 << 20

    def open_client(self, address: NodeAddress) -> OpenedClient:
        node = address.port - 9000
        self.opened[node] += 1
        if node in self.down:
            raise NetworkError(f"cannot connect to {address}")
        client = WireClient(
            ScriptedConnection(self, node),  # type: ignore[arg-type]
            client_id="c",
            timeout_s=10,
            frame_bytes_max=self.frame_bytes_max,
            monotonic_s=self.clock.monotonic_s,
        )
        client.negotiate()
        return OpenedClient(client, self.lifetime_ms)

    @contextmanager
    def listening(self, context: SSLContext) -> Iterator[NodeAddress]:
        """Broker 1 at an address of this machine, over TLS."""
        with create_server(("127.0.0.1", 0)) as listener:

            def run() -> None:
                while True:
                    try:
                        plain = listener.accept()[0]
                    except OSError:
                        return
                    with suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as connection:
                        received = connection.makefile("rb")
                        while size := received.read(FRAME_SIZE.size):
                            request = parse_request(received.read(FRAME_SIZE.unpack(size)[0]))
                            connection.sendall(joined(request.encode_response(self.answer(1, request))))

            thread = Thread(target=run)
            thread.start()
            yield NodeAddress("127.0.0.1", listener.getsockname()[1])
            listener.shutdown(SHUT_RDWR)
        thread.join(PATIENCE_S)

    def partition(self, partition: TopicPartition) -> ScriptedPartition:
        return self.topics[partition.topic].partitions[partition.partition]

    def of_api(self, node: int, kind: type[ApiMessage]) -> list[ApiMessage]:
        """The requests of this kind to a node."""
        return [each for at, each in self.requests if at == node and isinstance(each, kind)]

    def answer(self, node: int, request: ParsedRequest) -> ApiMessage:
        body = request.body()
        self.received[node, request.api.key] += 1
        self.requests.append((node, body))
        answers: dict[ApiKey, Callable[[int, ParsedRequest, ApiMessage], ApiMessage]] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.FETCH: self._fetch,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self._epoch_end,
            ApiKey.DESCRIBE_CONFIGS: self._configs,
            ApiKey.LIST_CONFIG_RESOURCES: self._config_resources,
            ApiKey.DESCRIBE_ACLS: lambda *_: DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED),
            ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda *_: DescribeClientQuotasResponse(),
        }
        return answers[request.api.key](node, request, body)

    def _api_versions(self, *_: object) -> ApiMessage:
        return ApiVersionsResponse(
            api_keys=tuple(
                ApiVersion(api_key=key, min_version=api.versions[0], max_version=self.newest.get(key, api.versions[-1]))
                for key, api in APIS.items()
            )
        )

    def _metadata(self, _: int, request: ParsedRequest, body: ApiMessage) -> ApiMessage:
        assert isinstance(body, MetadataRequest)
        assert not body.allow_auto_topic_creation
        names = list(self.topics) if body.topics is None else [each.name or "" for each in body.topics]
        has_ids = request.api_version >= 10
        return MetadataResponse(
            cluster_id=self.cluster_id,
            brokers=tuple(
                MetadataResponseBroker(node_id=each, host="broker", port=9000 + each)
                for each in sorted(self.brokers - self.down)
            ),
            topics=tuple(self._topic(each, has_ids) for each in names),
        )

    def _topic(self, name: str, has_ids: bool) -> MetadataResponseTopic:
        topic = self.topics.get(name)
        if topic is None:
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return MetadataResponseTopic(
            name=name,
            topic_id=topic.topic_id if has_ids else ZERO_UUID,
            error_code=topic.error,
            partitions=tuple(
                MetadataResponsePartition(partition_index=at, leader_id=each.leader, leader_epoch=each.epoch)
                for at, each in enumerate(topic.partitions)
            ),
        )

    def _configs(self, _: int, __: ParsedRequest, body: ApiMessage) -> ApiMessage:
        assert isinstance(body, DescribeConfigsRequest)
        return DescribeConfigsResponse(results=tuple(map(self._configs_of, body.resources)))

    def _config_resources(self, *_: object) -> ApiMessage:
        listed = (ConfigResource(resource_name=each, resource_type=32) for each in self.group_configs)
        return ListConfigResourcesResponse(config_resources=tuple(listed))

    def _configs_of(self, resource: DescribeConfigsResource) -> DescribeConfigsResult:
        found = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
        if resource.resource_type == 32:
            own = (
                DescribeConfigsResourceResult(name=name, value=value, config_source=8)
                for name, value in self.group_configs[resource.resource_name].items()
            )
            default = DescribeConfigsResourceResult(name="share.session.timeout.ms", value="45000", config_source=5)
            return found.replace(configs=(default, *own))
        if resource.resource_type != 2:
            return found
        topic = self.topics.get(resource.resource_name)
        if topic is None:
            return found.replace(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        default = DescribeConfigsResourceResult(name="segment.bytes", value="1", config_source=5)
        own = (
            DescribeConfigsResourceResult(name=name, value=value, config_source=1)
            for name, value in topic.configs.items()
        )
        return found.replace(error_code=topic.configs_error, configs=(default, *own))

    def _fetch(self, node: int, request: ParsedRequest, body: ApiMessage) -> ApiMessage:
        assert isinstance(body, FetchRequest)
        assert (body.isolation_level, body.session_id, body.session_epoch) == (0, 0, -1)
        names = {each.topic_id: name for name, each in self.topics.items()}
        by_id = request.api_version >= 13
        answered = []
        for topic in body.topics:
            name = names.get(topic.topic_id) if by_id else topic.topic
            parts = tuple(self._fetched(node, name, each, by_id) for each in topic.partitions)
            answered.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=parts))
        return FetchResponse(throttle_time_ms=self.throttle_ms, responses=tuple(answered))

    def _fetched(self, node: int, name: str | None, asked: FetchPartition, by_id: bool) -> PartitionData:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name is None or name not in self.topics:
            return PartitionData(partition_index=asked.partition, error_code=unknown)
        found = self.topics[name].partitions[asked.partition]
        error = found.error
        if found.leader != node and found.preferred != node:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif asked.current_leader_epoch not in (-1, found.epoch):
            is_old = asked.current_leader_epoch < found.epoch
            error = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
        if error:
            return PartitionData(partition_index=asked.partition, error_code=error, high_watermark=-1)
        is_elsewhere = found.preferred not in (-1, node)
        return PartitionData(
            partition_index=asked.partition,
            high_watermark=found.high_watermark,
            log_start_offset=found.log_start,
            diverging_epoch=found.diverging,
            preferred_read_replica=found.preferred if is_elsewhere else -1,
            records=b"" if is_elsewhere else found.data,
        )

    def _list_offsets(self, node: int, _: ParsedRequest, body: ApiMessage) -> ApiMessage:
        assert isinstance(body, ListOffsetsRequest)
        assert (body.replica_id, body.isolation_level) == (-1, 0)
        topic, asked = body.topics[0], body.topics[0].partitions[0]
        found = self.topics[topic.name].partitions[asked.partition_index]
        error = found.error or (0 if found.leader == node else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        offset = found.log_start if asked.timestamp == -2 else found.high_watermark
        part = ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, error_code=error, offset=-1 if error else offset
        )
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name=topic.name, partitions=(part,)),))

    def _epoch_end(self, node: int, _: ParsedRequest, body: ApiMessage) -> ApiMessage:
        assert isinstance(body, OffsetForLeaderEpochRequest)
        assert body.replica_id == -1
        topic, asked = body.topics[0], body.topics[0].partitions[0]
        found = self.topics[topic.topic].partitions[asked.partition]
        is_known = asked.leader_epoch == found.epoch
        part = OffsetForLeaderEpochResponseEpochEndOffset(
            partition=asked.partition,
            error_code=0 if found.leader == node else ErrorCode.NOT_LEADER_OR_FOLLOWER,
            leader_epoch=found.epoch if is_known else -1,
            end_offset=found.high_watermark if is_known else -1,
        )
        return OffsetForLeaderEpochResponse(topics=(OffsetForLeaderTopicResult(topic=topic.topic, partitions=(part,)),))


class ScriptedConnection:
    """A connection to a node, with what of a socket a client uses."""

    def __init__(self, cluster: Answers, node: int) -> None:
        self._cluster = cluster
        self._node = node
        self._unread = b""

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def sendall(self, frame: bytes) -> None:
        if self._node in self._cluster.down:
            raise ConnectionResetError("the broker is down")
        request = parse_request(frame[FRAME_SIZE.size :])
        self._unread += joined(request.encode_response(self._cluster.answer(self._node, request)))

    def recv_into(self, target: memoryview) -> int:
        count = min(len(target), len(self._unread))
        target[:count] = self._unread[:count]
        self._unread = self._unread[count:]
        return count

    def close(self) -> None:
        self._unread = b""
