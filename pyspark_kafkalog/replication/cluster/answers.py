"""Requests to brokers of a cluster, and what their answers mean: Metadata, configurations, access control, Fetch.

*Metadata* names the brokers, the topics that are followed, and who leads their partitions. A `ClusterView` is replaced
as a whole, so that threads read it without a lock. Metadata of a broker that lags behind may be older than what is
known: an older leader epoch of the same topic never replaces a newer one. Topic ids exist since Kafka 2.8. A topic
without one gets an id that follows from the cluster's id and the topic's name, so each follower of the cluster gives it
the same; that it was created again is not noticed by its id then.

*Configurations*: only what was set is taken: a value that a topic or group has from its broker, or from Kafka, is not
its own. Access control entries and quotas of kinds that this package does not know are left out. Brokers before 4.1 do
not name the groups that have configurations (KIP-1142), so those are not known.

*Fetch* of many partitions from one broker. The follower reads as a consumer: without a replica id, up to the high
watermark, transactions that are open or aborted included. There is no fetch session: each request names all its
partitions. A broker fills the answer in the order of the request, so the order is rotated from request to request, and
no partition starves.

Source of the rules: org.apache.kafka.clients.Metadata (updateLatestMetadata),
org.apache.kafka.clients.admin.KafkaAdminClient, kafka.server.ConfigHelper;
org.apache.kafka.clients.consumer.internals.AbstractFetch and FetchCollector; kafka.server.KafkaApis
(handleFetchRequest); KIP-392, KIP-516, KIP-595.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import Final, Protocol, TypeVar

from pyspark_kafkalog.config.entries import ConfigSource
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.errors import (
    DiskFormatError,
    InvalidConfigError,
    InvalidRecordError,
    LeaderUnavailableError,
    UnsupportedApiError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.metadata.users import QuotaEntity, Quotas, quota_entity
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from pyspark_kafkalog.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pyspark_kafkalog.protocol.messages.security import (
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from pyspark_kafkalog.protocol.messages.topics import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.replication.cluster.connections import NodeAddress
from pyspark_kafkalog.replication.leader import EpochEnd, FetchOutcome, FetchPosition, LeaderAnswer, old_format_answer
from pyspark_kafkalog.storage.names import TopicPartition, encode_uuid

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of the cluster."""

    node_id: int
    address: NodeAddress
    rack: str | None = None

    @property
    def name(self) -> str:
        """The broker in messages, and as a source: broker 1 (host:9092)."""
        return f"broker {self.node_id} ({self.address})"


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Who leads a partition, `NOBODY` for no broker, and in which epoch, -1 if unknown."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic, and the leaders of its partitions from 0 on. `has_own_id`: the cluster gave it its id."""

    name: str
    topic_id: str
    has_own_id: bool
    leaders: tuple[PartitionLeader, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as of one response of Metadata."""

    cluster_id: str = ""
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)

    def leader(self, partition: TopicPartition) -> PartitionLeader:
        """The leader of a partition; `NOBODY` also for one that is not known."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.leaders):
            return PartitionLeader(NOBODY, -1)
        return topic.leaders[partition.partition]

    def broker_named(self, name: str) -> Broker | None:
        """The broker that is the source of this name."""
        return next((each for each in self.brokers.values() if each.name == name), None)


def parse_broker(broker: MetadataResponseBroker) -> Broker:
    """A broker of a response."""
    return Broker(broker.node_id, NodeAddress(broker.host, broker.port), broker.rack)


def parse_topic(cluster_id: str, topic: MetadataResponseTopic, known: TopicView | None) -> TopicView | str:
    """A topic of a response without error, with newer epochs of what is `known`; or why its partitions are not usable.

    Partitions without a leader stay, led by `NOBODY`.
    """
    name = topic.name or ""
    partitions = sorted(topic.partitions, key=lambda each: each.partition_index)
    if not partitions or [each.partition_index for each in partitions] != list(range(len(partitions))):
        numbers = ", ".join(str(each.partition_index) for each in partitions[:10])
        return f"expected partitions from 0 on without a gap, the cluster names {numbers or 'none'}"
    has_own_id = topic.topic_id != ZERO_UUID
    topic_id = topic.topic_id if has_own_id else derived_topic_id(cluster_id, name)
    view = TopicView(
        name, topic_id, has_own_id, tuple(PartitionLeader(each.leader_id, each.leader_epoch) for each in partitions)
    )
    return view if known is None else _with_newer_epochs(view, known)


def _with_newer_epochs(view: TopicView, known: TopicView) -> TopicView:
    if known.topic_id != view.topic_id:
        return view
    leaders = list(view.leaders)
    for at, earlier in enumerate(known.leaders[: len(leaders)]):
        if earlier.epoch > leaders[at].epoch:
            leaders[at] = earlier
    return replace(view, leaders=tuple(leaders))


def derived_topic_id(cluster_id: str, topic: str) -> str:
    """The id of a topic to which the cluster gave none, as Kafka's Uuid text."""
    digest = bytearray(hashlib.sha256(f"{cluster_id}/{topic}".encode()).digest()[:16])
    digest[0] &= 0x3F  # so that the text never begins with a dash, which tools read as an option
    return encode_uuid(bytes(digest))


_R = TypeVar("_R", bound=ApiMessage)
_T = TypeVar("_T")

_LOG: Final = logging.getLogger(__name__)

#: The topics or groups of one DescribeConfigs: an answer has a few KiB a topic.
_RESOURCES_A_REQUEST: Final = 250
_TOPIC: Final = 2  # types of resources with configurations: org.apache.kafka.common.config.ConfigResource
_BROKER: Final = 4
_GROUP: Final = 32
_ANY: Final = 1  # in filters of access control entries
#: Broker settings that topics fall back to.
_TOPIC_DEFAULTS: Final = tuple(
    sorted({synonym.definition.name for config in TOPIC_CONFIGS.values() for synonym in config.synonyms})
)
#: Errors of a cluster that does not let the client read something, or does not have it.
_NOT_PERMITTED: Final = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.SECURITY_DISABLED,
)


class CallNode(Protocol):
    """Sends a request to a node; raises LeaderUnavailableError, UnsupportedApiError."""

    def __call__(self, request: ApiMessage, response: type[_R]) -> _R: ...


def pieces(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """The items, at most `size` at a time."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


@dataclass(frozen=True, slots=True)
class _TopicConfigs:
    """The configurations of the topic with this id, and when they were asked for."""

    topic_id: str
    configs: Mapping[str, str]
    asked_s: float


class KnownConfigs:
    """The configurations of topics as of the last time each was asked for.

    To describe a topic costs a broker about a millisecond. So new topics are asked for at once, and known ones after
    `age_s`, some at a time.
    """

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._known: dict[str, _TopicConfigs] = {}  # what is oldest comes first

    def refresh(self, call: CallNode, topics: Mapping[str, str], now_s: float) -> dict[str, Mapping[str, str] | str]:
        """By topic its configurations, or why they cannot be read; `topics` are ids by name. Topics that are gone are
        left out. Raises LeaderUnavailableError."""
        known = {name: each for name, each in self._known.items() if topics.get(name) == each.topic_id}
        new = sorted(topics.keys() - known.keys())
        old = (name for name, each in known.items() if now_s - each.asked_s >= self._age_s)
        again = list(islice(old, _RESOURCES_A_REQUEST))
        answers = topic_configs(call, [*again, *new])
        for name in again:
            del known[name]
        for name, found in answers.items():
            if name in topics and not isinstance(found, str):
                known[name] = _TopicConfigs(topics[name], found, now_s)
        self._known = known
        refused = {name: found for name, found in answers.items() if isinstance(found, str)}
        return {**{name: each.configs for name, each in known.items()}, **refused}


def topic_configs(call: CallNode, topics: Sequence[str]) -> dict[str, dict[str, str] | str]:
    """By topic the configurations that were set for it, or why they cannot be read. Topics that are gone are left out.

    Raises LeaderUnavailableError.
    """
    found: dict[str, dict[str, str] | str] = {}
    for chunk in pieces(topics, _RESOURCES_A_REQUEST):
        resources = (
            DescribeConfigsResource(resource_type=_TOPIC, resource_name=each, configuration_keys=None) for each in chunk
        )
        response = call(DescribeConfigsRequest(resources=tuple(resources)), DescribeConfigsResponse)
        for result in response.results:
            if result.error_code == ErrorCode.NONE:
                found[result.resource_name] = _set_for(result, ConfigSource.DYNAMIC_TOPIC_CONFIG)
            elif result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                found[result.resource_name] = f"its configurations cannot be read: {error_text(result.error_code)}"
    return found


def _set_for(result: DescribeConfigsResult, source: ConfigSource) -> dict[str, str]:
    return {each.name: each.value for each in result.configs if each.config_source == source and each.value is not None}


def group_configs(call: CallNode) -> dict[str, Mapping[str, str]] | None:
    """By group the configurations that were set for it; None if the cluster does not name such groups, or the client
    may not read them. Raises LeaderUnavailableError."""
    try:
        listed = call(ListConfigResourcesRequest(resource_types=(_GROUP,)), ListConfigResourcesResponse)
    except (UnsupportedApiError, InvalidRecordError):  # its version 0, before Kafka 4.1, cannot ask for groups
        return None
    if listed.error_code in _NOT_PERMITTED:
        return None
    if listed.error_code != ErrorCode.NONE:
        raise LeaderUnavailableError(f"groups with configurations cannot be listed: {error_text(listed.error_code)}")
    found: dict[str, Mapping[str, str]] = {}
    groups = sorted(each.resource_name for each in listed.config_resources if each.resource_type == _GROUP)
    for chunk in pieces(groups, _RESOURCES_A_REQUEST):
        resources = (
            DescribeConfigsResource(resource_type=_GROUP, resource_name=each, configuration_keys=None) for each in chunk
        )
        for result in call(DescribeConfigsRequest(resources=tuple(resources)), DescribeConfigsResponse).results:
            if result.error_code in _NOT_PERMITTED:
                return None
            if result.error_code != ErrorCode.NONE:
                raise LeaderUnavailableError(
                    f"the configurations of the group {result.resource_name} cannot be read: "
                    f"{error_text(result.error_code)}"
                )
            found[result.resource_name] = _set_for(result, ConfigSource.DYNAMIC_GROUP_CONFIG)
    return found


def broker_configs(call: CallNode, node_id: int) -> dict[str, str] | None:
    """The settings of the cluster, or of this broker, that topics fall back to and that are not Kafka's defaults.

    None if the client may not read them. Raises LeaderUnavailableError.
    """
    resource = DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(node_id), configuration_keys=_TOPIC_DEFAULTS
    )
    response = call(DescribeConfigsRequest(resources=(resource,), include_synonyms=True), DescribeConfigsResponse)
    found: dict[str, str] = {}
    for result in response.results:
        if result.error_code in _NOT_PERMITTED:
            return None
        if result.error_code != ErrorCode.NONE:
            raise LeaderUnavailableError(
                f"the settings of broker {node_id} cannot be read: {error_text(result.error_code)}"
            )
        for config in result.configs:
            value = _set_for_cluster([(each.source, each.name, each.value) for each in config.synonyms], config.name)
            if value is not None:
                found[config.name] = value
    return found


def _set_for_cluster(synonyms: Iterable[tuple[int, str, str | None]], name: str) -> str | None:
    """The first value of this very name that is of the whole cluster or of the broker's file."""
    sources = (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, ConfigSource.STATIC_BROKER_CONFIG)
    return next((value for source, each, value in synonyms if source in sources and each == name), None)


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Whether the cluster checks access control entries, and all of them; None if the client may not read them."""

    has_authorizer: bool
    acls: tuple[Acl, ...] | None


def cluster_access(call: CallNode) -> ClusterAccess:
    """The access control entries of the cluster, and whether it checks them. Raises LeaderUnavailableError."""
    request = DescribeAclsRequest(
        resource_type_filter=_ANY,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )
    try:
        response = call(request, DescribeAclsResponse)
    except UnsupportedApiError:
        return ClusterAccess(has_authorizer=False, acls=None)
    if response.error_code in _NOT_PERMITTED:
        return ClusterAccess(response.error_code != ErrorCode.SECURITY_DISABLED, None)
    if response.error_code != ErrorCode.NONE:
        raise LeaderUnavailableError(
            f"the access control entries cannot be read: {response.error_message or error_text(response.error_code)}"
        )
    return ClusterAccess(True, tuple(sorted({acl for resource in response.resources for acl in _acls_of(resource)})))


def _acls_of(resource: DescribeAclsResource) -> Iterator[Acl]:
    for each in resource.acls:
        try:
            yield Acl(
                ResourceType(resource.resource_type),
                resource.resource_name,
                PatternType(resource.pattern_type),
                each.principal,
                each.host,
                AclOperation(each.operation),
                PermissionType(each.permission_type),
            )
        except ValueError as error:
            _LOG.warning("an access control entry of %s is left out: %s", resource.resource_name, error)


def client_quotas(call: CallNode) -> Quotas | None:
    """All quotas of clients; None if the client may not read them. Raises LeaderUnavailableError."""
    try:
        response = call(DescribeClientQuotasRequest(), DescribeClientQuotasResponse)
    except UnsupportedApiError:
        return None
    if response.error_code in _NOT_PERMITTED:
        return None
    if response.error_code != ErrorCode.NONE:
        raise LeaderUnavailableError(
            f"the quotas cannot be read: {response.error_message or error_text(response.error_code)}"
        )
    quotas: dict[QuotaEntity, Mapping[str, float]] = {}
    for entry in response.entries or ():
        try:
            entity = quota_entity([(each.entity_type, each.entity_name) for each in entry.entity])
        except InvalidConfigError as error:
            _LOG.warning("a quota is left out: %s", error)
            continue
        quotas[entity] = {each.key: each.value for each in entry.values}
    return quotas


#: Since this version a request names topics by their ids.
TOPIC_IDS_FROM: Final = 13

_OUTCOMES: Final[Mapping[int, FetchOutcome]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: FetchOutcome.OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: FetchOutcome.TOPIC_CHANGED,
    ErrorCode.UNKNOWN_TOPIC_ID: FetchOutcome.TOPIC_CHANGED,
    ErrorCode.INCONSISTENT_TOPIC_ID: FetchOutcome.TOPIC_CHANGED,
    ErrorCode.LEADER_NOT_AVAILABLE: FetchOutcome.LEADER_MOVED,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: FetchOutcome.LEADER_MOVED,
    ErrorCode.REPLICA_NOT_AVAILABLE: FetchOutcome.LEADER_MOVED,
    ErrorCode.FENCED_LEADER_EPOCH: FetchOutcome.LEADER_MOVED,
    ErrorCode.KAFKA_STORAGE_ERROR: FetchOutcome.LEADER_MOVED,
}


def error_text(code: int) -> str:
    """An error of the protocol in messages: its name and what it says."""
    try:
        known = ErrorCode(code)  # type: ignore[call-arg]  # a lookup by value
    except ValueError:
        return f"error {code}, which Kafka 4.1 does not have"
    return f"{known.name}: {known.message}"


def fetch_request(
    positions: Sequence[FetchPosition],
    leader_epochs: Mapping[TopicPartition, int],
    *,
    version: int,
    wait_ms: int,
    max_bytes: int,
    partition_bytes: int,
    rack: str,
) -> FetchRequest:
    """The request for these positions, in this order. `leader_epochs` are the newest that the cluster has named."""
    topics = []
    for (topic, topic_id), group in groupby(positions, lambda each: (each.topic_partition.topic, each.topic_id)):
        partitions = tuple(
            FetchPartition(
                partition=each.topic_partition.partition,
                current_leader_epoch=max(each.leader_epoch, leader_epochs.get(each.topic_partition, -1)),
                fetch_offset=each.offset,
                last_fetched_epoch=each.last_epoch,
                partition_max_bytes=partition_bytes,
            )
            for each in group
        )
        topics.append(
            FetchTopic(topic_id=topic_id, partitions=partitions)
            if version >= TOPIC_IDS_FROM
            else FetchTopic(topic=topic, partitions=partitions)
        )
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, topics=tuple(topics), rack_id=rack)


def rotated(positions: Sequence[FetchPosition], turn: int) -> list[FetchPosition]:
    """The positions from another one on at each turn, with those of a topic together."""
    if not positions:
        return []
    start = turn % len(positions)
    topics: dict[tuple[str, str], list[FetchPosition]] = {}
    for each in (*positions[start:], *positions[:start]):
        topics.setdefault((each.topic_partition.topic, each.topic_id), []).append(each)
    return [each for group in topics.values() for each in group]


def answered(
    positions: Sequence[FetchPosition], response: FetchResponse, *, version: int, source: str
) -> Iterator[tuple[FetchPosition, PartitionData]]:
    """The position of each partition of the response, with what it says. Raises LeaderUnavailableError.

    Partitions that were not asked for are left out.
    """
    if response.error_code != ErrorCode.NONE:
        raise LeaderUnavailableError(f"{source} answered FETCH with {error_text(response.error_code)}")
    by_id = version >= TOPIC_IDS_FROM
    asked = {
        (each.topic_id if by_id else each.topic_partition.topic, each.topic_partition.partition): each
        for each in positions
    }
    for topic in response.responses:
        for partition in topic.partitions:
            position = asked.pop((topic.topic_id if by_id else topic.topic, partition.partition_index), None)
            if position is not None:
                yield position, partition


def fetched_partition(position: FetchPosition, partition: PartitionData, *, source: str) -> LeaderAnswer:
    """What the answer of a broker means for the partition."""
    topic_partition = position.topic_partition
    if partition.error_code != ErrorCode.NONE:
        return LeaderAnswer(
            topic_partition=topic_partition,
            outcome=_OUTCOMES.get(partition.error_code, FetchOutcome.FAILED),
            log_start_offset=partition.log_start_offset,
            error=f"{source} answered FETCH of {topic_partition} with {error_text(partition.error_code)}",
        )
    diverging = partition.diverging_epoch
    if diverging.end_offset >= 0:
        return LeaderAnswer(
            topic_partition=topic_partition,
            outcome=FetchOutcome.DIVERGING,
            high_watermark=partition.high_watermark,
            log_start_offset=partition.log_start_offset,
            diverging=EpochEnd(diverging.epoch, diverging.end_offset),
        )
    records = partition.records
    try:
        data = b"" if records is None else whole_batches(records, position.offset, partition.high_watermark)
    except UnsupportedFormatError as error:
        return old_format_answer(position, source, error)
    except DiskFormatError as error:
        return LeaderAnswer(
            topic_partition=topic_partition,
            outcome=FetchOutcome.FAILED,
            error=f"{source} sent a damaged batch of {topic_partition} at offset {position.offset}: {error}",
        )
    return LeaderAnswer(
        topic_partition=topic_partition,
        outcome=FetchOutcome.RECORDS,
        data=data,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
    )


def whole_batches(records: Buffer, offset: int, high_watermark: int) -> Buffer:
    """The whole batches of `records` that reach above `offset` and lie below the high watermark, as a view.

    A broker cuts what it sends at its limits, so the last batch may be incomplete. Raises DiskFormatError for a
    first batch with a damaged header.
    """
    if not len(records):
        return b""
    scan = scan_batches(records, file="<FETCH response>")
    batches = scan.batches
    first = int((batches["last_offset"] < offset).sum())
    end = int((batches["last_offset"] < high_watermark).sum())
    if first >= end:
        if scan.fault is not None:
            raise scan.fault
        return b""
    # A fault behind these batches is met again, as the first of the next answer.
    last = batches[end - 1]
    return memoryview(records)[int(batches[first]["position"]) : int(last["position"]) + int(last["size_bytes"])]
