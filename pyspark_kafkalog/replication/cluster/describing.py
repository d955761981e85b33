"""A cluster's own description: brokers, topics and leaders; configurations, access control, quotas.

*Metadata* names the brokers, the topics that are followed, and who leads their partitions. A `ClusterView` is replaced
as a whole, so that threads read it without a lock. Metadata of a broker that lags behind may be older than what is
known: an older leader epoch of the same topic never replaces a newer one. Topic ids exist since Kafka 2.8. A topic
without one gets an id that follows from the cluster's id and the topic's name, so each follower of the cluster gives it
the same; that it was created again is not noticed by its id then.

*Configurations*: only what was set is taken: a value that a topic or group has from its broker, or from Kafka, is not
its own. Access control entries and quotas of kinds that this package does not know are left out. Brokers before 4.1 do
not name the groups that have configurations (KIP-1142), so those are not known.

Source of the rules: org.apache.kafka.clients.Metadata (updateLatestMetadata),
org.apache.kafka.clients.admin.KafkaAdminClient, kafka.server.ConfigHelper.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Protocol, TypeVar

from pyspark_kafkalog.config.entries import ConfigSource
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.errors import (
    InvalidConfigError,
    InvalidRecordError,
    LeaderUnavailableError,
    UnsupportedApiError,
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
from pyspark_kafkalog.replication.cluster.connections import NodeAddress
from pyspark_kafkalog.replication.cluster.fetching import error_text
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
