"""`ClusterLeader`: a live Kafka cluster as a leader to follow. Its sources are the brokers.

Each source has a connection of its own for fetches, so that they wait for records side by side; one more connection a
broker serves everything else. Metadata is asked of any broker that answers: the one before, the others, and the
bootstrap servers. It is asked again when a partition's leader is not known or has moved, and after
`metadata_max_age_ms`. What changes rarely (configurations, access control entries, quotas) is asked for at a tenth of
that age, of new topics at once.

A follower in a rack (client.rack) may be sent to a replica that is nearer than the leader (KIP-392). It stays with that
replica for `metadata_max_age_ms`, or until an error there.

Topics are never created by asking for them. Each request ends by `request_timeout_ms`. A fetch makes one; other calls
make a few, but begin none after `default_api_timeout_ms`. A client over its quota waits besides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar, cast

from pyspark_kafkalog.errors import LeaderUnavailableError, UnsupportedApiError
from pyspark_kafkalog.metadata.acl import Acl
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.client import FRAME_BYTES_MAX
from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pyspark_kafkalog.protocol.messages.records import (
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    PartitionData,
)
from pyspark_kafkalog.replication.cluster.answers import (
    NOBODY,
    TOPIC_IDS_FROM,
    ClusterView,
    KnownConfigs,
    TopicView,
    answered,
    broker_configs,
    client_quotas,
    cluster_access,
    error_text,
    fetch_request,
    fetched_partition,
    group_configs,
    parse_broker,
    parse_topic,
    pieces,
    rotated,
)
from pyspark_kafkalog.replication.cluster.connections import (
    FETCH_VERSION_MIN,
    NodeAddress,
    NodeConnection,
    OpenClient,
    client_opener,
    parse_addresses,
)
from pyspark_kafkalog.replication.leader import (
    EpochEnd,
    FetchOutcome,
    FetchPosition,
    LeaderAnswer,
    LeaderDescription,
    LeaderTopic,
    SelectsTopic,
)
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB, SECOND_MS

_R = TypeVar("_R", bound=ApiMessage)
_T = TypeVar("_T")

_EARLIEST: Final = -2
_LATEST: Final = -1
_CONSUMER: Final = -1  # the replica id of a request that comes from no replica
#: How often a leader that moves is asked for something else than records, before the caller has to try again.
_ATTEMPTS: Final = 3
#: Configurations, access control entries and quotas are asked for so often within `metadata_max_age_ms`: every 30 s.
_DESCRIPTIONS_IN_AGE: Final = 10
#: The topics of one Metadata that names them.
_TOPICS_A_REQUEST: Final = 1_000
#: What a response of Fetch has beyond its records, and beyond one batch that is larger than all limits.
_FRAME_OVERHEAD_BYTES: Final = 16 * MIB
_LEADER_ERRORS: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


@dataclass(frozen=True, slots=True)
class _PreferredReplica:
    """The replica to fetch a partition from instead of its leader, until `expires_s`."""

    node_id: int
    expires_s: float


class _FetchSource:
    """A broker's connection for fetches, and how many requests it has had. Used by one thread."""

    def __init__(self, connection: NodeConnection) -> None:
        self.connection = connection
        self.turn = 0


class ClusterLeader:
    """The cluster behind `bootstrap`, as a `LeaderEndPoint`. Nothing is connected before the first call.

    `open_client` opens connections, in place of those with `settings`.
    """

    def __init__(
        self,
        bootstrap: str,
        settings: ClientSettings | None = None,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        open_client: OpenClient | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`frame_bytes_max` bounds the batches of a response. Raises InvalidConfigError for an address that is none."""
        self.name = bootstrap
        self._bootstrap = parse_addresses(bootstrap)
        self._settings = settings or ClientSettings()
        self._frame_bytes_max = frame_bytes_max
        self._open_client = open_client or client_opener(
            self._settings, frame_bytes_max=frame_bytes_max + _FRAME_OVERHEAD_BYTES
        )
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._view = ClusterView()
        self._description_age_s = self._settings.metadata_max_age_ms / SECOND_MS / _DESCRIPTIONS_IN_AGE
        self._configs = KnownConfigs(self._description_age_s)
        self._configs_node = NOBODY
        #: By what was asked for its answer, None for a refusal, and until when that is used.
        self._described: dict[str, tuple[object, float]] = {}
        self._refreshed_s = float("-inf")
        self._is_stale = True
        self._calls = threading.RLock()  # held by all but fetches
        self._shared = threading.Lock()  # of the attributes below, which fetches change
        self._preferred: dict[TopicPartition, _PreferredReplica] = {}
        self._fetch_sources: dict[str, _FetchSource] = {}
        self._nodes: dict[NodeAddress, NodeConnection] = {}
        self._last_answered: NodeAddress | None = None
        self._has_authorizer = False  # as of the last answer

    def describe(self, selects: SelectsTopic) -> LeaderDescription:
        """See `LeaderEndPoint`. Also raises AuthenticationError."""
        with self._calls:
            response = self._metadata(None)
            view, unreadable = self._merged(response, selects)
            self._view = view
            ids = {name: topic.topic_id for name, topic in view.topics.items()}
            configs = self._configs.refresh(self._call_any, ids, self._monotonic_s())
            topics = {}
            for name, topic in view.topics.items():
                found = configs.get(name)
                if isinstance(found, str):
                    unreadable[name] = found
                elif found is not None:
                    epochs = tuple(each.epoch for each in topic.leaders)
                    topics[name] = LeaderTopic(name, topic.topic_id, epochs, found)
            return LeaderDescription(
                cluster_id=view.cluster_id,
                topics=topics,
                unreadable=unreadable,
                cluster_configs=self._known_or("configurations", lambda: self._cluster_configs(view)) or {},
                group_configs=self._known_or("groups", lambda: group_configs(self._call_any)),
                acls=self._known_or("entries", self._entries),
                has_authorizer=self._has_authorizer,
                quotas=self._known_or("quotas", lambda: client_quotas(self._call_any)),
                has_topics=bool(response.topics),
            )

    def _entries(self) -> tuple[Acl, ...] | None:
        found = cluster_access(self._call_any)
        self._has_authorizer = found.has_authorizer
        return found.acls

    def _known_or(self, what: str, ask: Callable[[], _T | None]) -> _T | None:
        """What `ask` has returned lately. After None, a refusal, it is asked again only after `metadata_max_age_ms`.

        Answers cost a broker more than metadata, and a follower describes its leader every few seconds. Brokers log
        each refusal.
        """
        now_s = self._monotonic_s()
        known, until_s = self._described.get(what, (None, now_s))
        if now_s < until_s:
            return cast("_T | None", known)
        found = ask()
        age_s = self._settings.metadata_max_age_ms / SECOND_MS if found is None else self._description_age_s
        self._described[what] = found, now_s + age_s
        return found

    def _cluster_configs(self, view: ClusterView) -> Mapping[str, str] | None:
        """Of the broker that answered before, else of the first that does: each knows what stands in its own file."""
        errors = []
        order = sorted(view.brokers.values(), key=lambda each: (each.node_id != self._configs_node, each.node_id))
        for broker in order:
            try:
                configs = broker_configs(self._node(broker.address, broker.name).call, broker.node_id)
            except LeaderUnavailableError as error:
                errors.append(str(error))
                continue
            self._configs_node = broker.node_id
            return configs
        raise LeaderUnavailableError("; ".join(errors))

    def sources(self, partitions: Collection[TopicPartition]) -> Mapping[str, Sequence[TopicPartition]]:
        """See `LeaderEndPoint`."""
        with self._calls:
            if self._needs_refresh(partitions):
                self._refresh()
            view, now_s = self._view, self._monotonic_s()
            with self._shared:
                preferred = {key: each.node_id for key, each in self._preferred.items() if each.expires_s > now_s}
            found: dict[str, list[TopicPartition]] = {}
            for partition in partitions:
                broker = view.brokers.get(preferred.get(partition, NOBODY))
                if broker is None:
                    broker = view.brokers.get(view.leader(partition).node_id)
                if broker is not None:
                    found.setdefault(broker.name, []).append(partition)
            return found

    def _needs_refresh(self, partitions: Collection[TopicPartition]) -> bool:
        view = self._view
        age_ms = (self._monotonic_s() - self._refreshed_s) * SECOND_MS
        return (
            self._is_stale
            or age_ms >= self._settings.metadata_max_age_ms
            or any(view.leader(each).node_id not in view.brokers for each in partitions)
        )

    def _refresh(self) -> None:
        """Ask again for the topics of the view, but not more often than once in `retry_backoff_ms`."""
        rest_s = self._refreshed_s + self._settings.retry_backoff_ms / SECOND_MS - self._monotonic_s()
        if rest_s > 0:
            self._sleep(rest_s)
        names = sorted(self._view.topics)
        topics: dict[str, TopicView] = {}
        view = self._view
        for chunk in pieces(names, _TOPICS_A_REQUEST):
            view, _ = self._merged(self._metadata(chunk), set(chunk).__contains__)
            topics.update(view.topics)
        self._view = replace(view, topics=topics)

    def _metadata(self, topics: Sequence[str] | None) -> MetadataResponse:
        """Of these topics, or of all. Raises LeaderUnavailableError."""
        self._is_stale = False  # what fetches find from now on is newer
        asked = None if topics is None else tuple(MetadataRequestTopic(name=each) for each in topics)
        response = self._call_any(MetadataRequest(topics=asked, allow_auto_topic_creation=False), MetadataResponse)
        if response.error_code != ErrorCode.NONE or not response.brokers:
            self._last_answered = None
            self._is_stale = True
            reason = error_text(response.error_code) if response.error_code else "it names no brokers"
            raise LeaderUnavailableError(f"the metadata of {self.name} cannot be read: {reason}")
        self._refreshed_s = self._monotonic_s()
        return response

    def _merged(self, response: MetadataResponse, selects: SelectsTopic) -> tuple[ClusterView, dict[str, str]]:
        """The view with the selected topics of the response, and by name why others are not readable."""
        cluster_id = response.cluster_id or ""
        if self._view.cluster_id and cluster_id != self._view.cluster_id:
            raise LeaderUnavailableError(
                f"{self.name} is the cluster {cluster_id or 'without an id'} now, and was {self._view.cluster_id}: "
                f"expected bootstrap servers of one cluster"
            )
        topics: dict[str, TopicView] = {}
        unreadable: dict[str, str] = {}
        for topic in response.topics:
            name = topic.name or ""
            if not selects(name) or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if topic.error_code != ErrorCode.NONE:
                unreadable[name] = error_text(topic.error_code)
                continue
            parsed = parse_topic(cluster_id, topic, self._view.topics.get(name))
            if isinstance(parsed, str):
                unreadable[name] = parsed
            else:
                topics[name] = parsed
        brokers = {each.node_id: parse_broker(each) for each in response.brokers}
        return ClusterView(cluster_id, brokers, topics), unreadable

    def fetch(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        """See `LeaderEndPoint`. `max_bytes` is at most `frame_bytes_max`, `wait_ms` half of the request's timeout.

        Also raises AuthenticationError, and UnsupportedApiError for a broker before Kafka 2.7.
        """
        if not positions:
            return []
        view = self._view
        try:
            fetcher = self._fetch_source(source, view)
            version = self._fetch_version(fetcher.connection, positions, view)
            fetcher.turn += 1
            request = fetch_request(
                rotated(positions, fetcher.turn),
                {each.topic_partition: view.leader(each.topic_partition).epoch for each in positions},
                version=version,
                wait_ms=min(wait_ms, self._settings.request_timeout_ms // 2),
                max_bytes=min(max_bytes, self._frame_bytes_max),
                partition_bytes=partition_bytes,
                rack=self._settings.rack,
            )
            response = fetcher.connection.call(request, FetchResponse, version=version)
            found = [
                self._followed(source, view, position, partition)
                for position, partition in answered(positions, response, version=version, source=source)
            ]
        except LeaderUnavailableError:
            self._forget(source, view)
            raise
        if any(each.outcome in (FetchOutcome.LEADER_MOVED, FetchOutcome.TOPIC_CHANGED) for each in found):
            self._is_stale = True
        return found

    def _fetch_source(self, source: str, view: ClusterView) -> _FetchSource:
        with self._shared:
            found = self._fetch_sources.get(source)
            if found is None:
                broker = view.broker_named(source)
                if broker is None:
                    raise LeaderUnavailableError(f"{source} is no broker of {self.name} any more")
                found = _FetchSource(self._connection(broker.address, broker.name))
                self._fetch_sources[source] = found
            return found

    def _fetch_version(self, connection: NodeConnection, positions: Sequence[FetchPosition], view: ClusterView) -> int:
        version = connection.version(ApiKey.FETCH)
        if version < FETCH_VERSION_MIN:
            raise UnsupportedApiError(
                f"{connection.name} has FETCH up to version {version}: a follower needs {FETCH_VERSION_MIN}, "
                f"so brokers of Kafka 2.7 or newer"
            )
        topics = {each.topic_partition.topic for each in positions}
        if all(view.topics[each].has_own_id for each in topics if each in view.topics):
            return version
        return min(version, TOPIC_IDS_FROM - 1)

    def _followed(
        self, source: str, view: ClusterView, position: FetchPosition, partition: PartitionData
    ) -> LeaderAnswer:
        """What the answer means, with the replica that it names remembered, or forgotten after an error there."""
        found = fetched_partition(position, partition, source=source)
        topic_partition = position.topic_partition
        replica = partition.preferred_read_replica
        if partition.error_code == ErrorCode.NONE and replica >= 0 and not found.data:
            expires_s = self._monotonic_s() + self._settings.metadata_max_age_ms / SECOND_MS
            with self._shared:
                self._preferred[topic_partition] = _PreferredReplica(replica, expires_s)
            return LeaderAnswer(topic_partition=topic_partition, outcome=FetchOutcome.LEADER_MOVED)
        if found.outcome in (FetchOutcome.RECORDS, FetchOutcome.DIVERGING):
            return found
        with self._shared:
            preferred = self._preferred.pop(topic_partition, None)
        if preferred is None or found.outcome == FetchOutcome.TOPIC_CHANGED:
            return found
        broker = view.brokers.get(preferred.node_id)
        if broker is not None and broker.name == source:
            return replace(found, outcome=FetchOutcome.LEADER_MOVED)  # the leader knows better
        return found

    def _forget(self, source: str, view: ClusterView) -> None:
        """A source has not answered: where its partitions are has to be asked."""
        self._is_stale = True
        broker = view.broker_named(source)
        with self._shared:
            if broker is None:
                self._fetch_sources.pop(source, None)
            else:
                self._preferred = {key: each for key, each in self._preferred.items() if each.node_id != broker.node_id}

    def range_of(self, position: FetchPosition) -> tuple[int, int]:
        """See `LeaderEndPoint`."""
        with self._calls:
            return self._list_offset(position, _EARLIEST), self._list_offset(position, _LATEST)

    def _list_offset(self, position: FetchPosition, timestamp: int) -> int:
        partition = position.topic_partition

        def ask(node: NodeConnection, leader_epoch: int) -> tuple[int, int]:
            asked = ListOffsetsPartition(
                partition_index=partition.partition, current_leader_epoch=leader_epoch, timestamp=timestamp
            )
            request = ListOffsetsRequest(
                replica_id=_CONSUMER,
                topics=(ListOffsetsTopic(name=partition.topic, partitions=(asked,)),),
                timeout_ms=self._settings.request_timeout_ms,
            )
            response = node.call(request, ListOffsetsResponse)
            answer = _only_partition([each.partitions for each in response.topics], node, ApiKey.LIST_OFFSETS)
            return answer.error_code, answer.offset

        return self._ask_leader(partition, ApiKey.LIST_OFFSETS, ask)

    def epoch_end(self, position: FetchPosition, epoch: int) -> EpochEnd | None:
        """See `LeaderEndPoint`."""
        partition = position.topic_partition

        def ask(node: NodeConnection, leader_epoch: int) -> tuple[int, EpochEnd]:
            asked = OffsetForLeaderPartition(
                partition=partition.partition, current_leader_epoch=leader_epoch, leader_epoch=epoch
            )
            request = OffsetForLeaderEpochRequest(
                replica_id=_CONSUMER, topics=(OffsetForLeaderTopic(topic=partition.topic, partitions=(asked,)),)
            )
            response = node.call(request, OffsetForLeaderEpochResponse)
            answer = _only_partition(
                [each.partitions for each in response.topics], node, ApiKey.OFFSET_FOR_LEADER_EPOCH
            )
            return answer.error_code, EpochEnd(answer.leader_epoch, answer.end_offset)

        with self._calls:
            found = self._ask_leader(partition, ApiKey.OFFSET_FOR_LEADER_EPOCH, ask)
        return None if found.epoch < 0 or found.end_offset < 0 else found

    def _ask_leader(
        self, partition: TopicPartition, key: ApiKey, ask: Callable[[NodeConnection, int], tuple[int, _T]]
    ) -> _T:
        """What the partition's leader answers `ask`, which returns an error code too. Follows a leader that moves."""
        backoff_ms = self._settings.retry_backoff_ms
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._is_stale = True
                self._sleep(backoff_ms / SECOND_MS)
                backoff_ms = min(2 * backoff_ms, self._settings.retry_backoff_max_ms)
            try:
                code, answer = self._attempt(partition, ask)
            except LeaderUnavailableError as error:
                failed = error
                continue
            if code == ErrorCode.NONE:
                return answer
            failed = LeaderUnavailableError(f"{self.name} answered {key.name} of {partition} with {error_text(code)}")
            if code not in _LEADER_ERRORS:
                break
        raise failed

    def _attempt(
        self, partition: TopicPartition, ask: Callable[[NodeConnection, int], tuple[int, _T]]
    ) -> tuple[int, _T]:
        if self._needs_refresh((partition,)):
            self._refresh()
        leader = self._view.leader(partition)
        broker = self._view.brokers.get(leader.node_id)
        if broker is None:
            raise LeaderUnavailableError(f"{partition} of {self.name} has no leader")
        return ask(self._node(broker.address, broker.name), leader.epoch)

    def _call_any(self, request: ApiMessage, response: type[_R]) -> _R:
        """The answer of the first node that gives one: any broker may be asked."""
        give_up_s = self._monotonic_s() + self._settings.default_api_timeout_ms / SECOND_MS
        errors: list[str] = []
        for address, name in self._known_nodes().items():
            if errors and self._monotonic_s() >= give_up_s:
                break
            try:
                answer = self._node(address, name).call(request, response)
            except LeaderUnavailableError as error:
                errors.append(str(error))
                continue
            self._last_answered = address
            return answer
        raise LeaderUnavailableError("; ".join(errors))

    def _known_nodes(self) -> Mapping[NodeAddress, str]:
        """Names of nodes by address, in the order in which they are asked."""
        known = {each.address: each.name for each in self._view.brokers.values()}
        known |= {each: str(each) for each in self._bootstrap if each not in known}
        last = self._last_answered
        return known if last not in known else {last: known[last]} | known

    def _node(self, address: NodeAddress, name: str) -> NodeConnection:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self._connection(address, name)
        node.name = name
        return node

    def _connection(self, address: NodeAddress, name: str) -> NodeConnection:
        return NodeConnection(
            name, address, self._open_client, self._settings, monotonic_s=self._monotonic_s, sleep=self._sleep
        )

    def close(self) -> None:
        """Close all connections. No fetch may be under way."""
        with self._calls, self._shared:
            for connection in (*self._nodes.values(), *(each.connection for each in self._fetch_sources.values())):
                connection.close()
            self._nodes.clear()
            self._fetch_sources.clear()


def _only_partition(topics: Sequence[Sequence[_T]], node: NodeConnection, key: ApiKey) -> _T:
    """The one partition of a response to a request for one. Raises LeaderUnavailableError."""
    found = [each for partitions in topics for each in partitions]
    if len(found) != 1:
        raise LeaderUnavailableError(f"{node.name} answered {key.name} of one partition with {len(found)}")
    return found[0]
