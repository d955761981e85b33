"""What the handler of a request gets: the request itself, and the server's parts that it may use.

A handler is a coroutine function (context, request) -> response message; None: the request is not answered (Produce
with acks 0). Handlers run in the event loop's thread. What blocks (files, stores, commits of topics) runs by
`ServerContext.run` in a thread; reading the image, and refreshing it on a file system, does not block.

A handler answers errors in the response, as Kafka does. What it raises becomes a response in which everything has that
error (connections/dispatch.py). An error that is no KafkalogError or OSError is a defect: the server logs it, and
answers it as unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.config.group import GroupConfig
from pyspark_kafkalog.errors import ReadOnlyLogDirError
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.server.committer import Committer, PartitionWaiters
from pyspark_kafkalog.server.event_loop import timed_work
from pyspark_kafkalog.values import quick_dataclass

T = TypeVar("T")
BodyT_co = TypeVar("BodyT_co", bound=Message, covariant=True)
_DEFAULTS: Final = BrokerConfig()
ANONYMOUS = "User:ANONYMOUS"
#: Why a change is refused by a server without `ServerContext.native`.
READ_ONLY = "this server only reads the log directory"


class CloseConnection(Exception):
    """Ends a connection without an answer; the text says why, for the log."""


@dataclass(slots=True)
class Session:
    """One connection, as handlers see it. `principal` changes when SASL has authenticated the client.

    `mute_until_ms` (monotonic) is when the connection reads its next request, for quotas.
    """

    host: str
    port: int
    principal: str = ANONYMOUS
    is_authenticated: bool = False
    #: Whether the handshake of TLS is still to come, or under way.
    is_in_handshake: bool = False
    #: Whether it was ended to make room for another connection.
    is_ended: bool = False
    mute_until_ms: int = 0
    #: The connection ends after the answer to this request: the client could not authenticate.
    is_closing: bool = False
    #: State of one request area that lives as long as the connection (the SASL exchange), by name.
    attachments: dict[str, object] = field(default_factory=dict)

    @property
    def owners(self) -> tuple[str, ...]:
        """Those that have a share of memory for all their requests: the host, and the principal if there is one."""
        return (self.host,) if self.principal == ANONYMOUS else (self.host, self.principal)


@quick_dataclass(frozen=True, slots=True)
class Request(Generic[BodyT_co]):
    """One decoded request. `body` is a message of its API; its `records` are views of the request's frame.

    `is_long`: it has thousands of elements, so its handler must let others come first now and then (event_loop.py).
    """

    api_key: int
    api_version: int
    client_id: str
    body: BodyT_co
    session: Session
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One live server, as Metadata describes a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Cluster(Protocol):
    """The live servers over the root, and the leaders and coordinators that they are named as."""

    @property
    def node_id(self) -> int:
        """This server."""
        ...

    @property
    def cluster_id(self) -> str: ...

    def nodes(self) -> tuple[Node, ...]:
        """The live servers by node id, this one among them."""
        ...

    def listed(self) -> tuple[Node, ...]:
        """The servers that Metadata names as brokers: the live ones, and those that died lately, by node id."""
        ...

    def leader(self, topic_id: str, partition: int, client_id: str) -> Node:
        """The server that Metadata names as the partition's leader; any other server takes its requests too."""
        ...

    def coordinator(self, topic: str, partition: int) -> Node:
        """The server that coordinates the groups (`__consumer_offsets`) or transactional ids (`__transaction_state`)
        whose hash is `partition`."""
        ...


class Guard(Protocol):
    """Decides by the root's access control entries, super.users and the host of the connection."""

    def allows(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        logs_denial: bool = True,
    ) -> bool:
        """Whether the session's principal may do `operation`; a denial is logged for the audit.

        `logs_denial` is false where a denial refuses nothing: it shortens a list, or another permission is asked next.
        """
        ...

    def allows_any(self, session: Session, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether it may do `operation` on some resource of the type (Kafka: authorizeByResourceType)."""
        ...


class Traffic(Protocol):
    """Counts the records that clients produce and fetch."""

    def produced(self, topic: str, *, records: int, size_bytes: int) -> None: ...

    def produce_failed(self, topic: str) -> None: ...

    def fetched(self, topic: str, *, size_bytes: int) -> None: ...


class ClientRates(Protocol):
    """Charges a client's quotas, by their names: see `server/security/quotas.py`."""

    def throttle(self, session: Session, client_id: str, quota: str, amount: float) -> int: ...

    def admit(self, session: Session, client_id: str, quota: str, amount: float) -> int: ...

    def give_back(self, session: Session, client_id: str, quota: str, amount: float) -> None: ...


class RecordMemory(Protocol):
    """Bounds the records in memory: see `server/connections/request_bytes.py`."""

    @property
    def is_short(self) -> bool: ...

    async def take(self, size_bytes: int, owners: tuple[str, ...]) -> bool: ...

    def give_back(self, size_bytes: int, owners: tuple[str, ...]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """The parts of one server process in its present role.

    `native` is `root` if this server writes to it, else None: all writes are refused.
    """

    root: Root
    native: NativeRoot | None
    cluster: Cluster
    committer: Committer
    guard: Guard
    waiters: PartitionWaiters
    executor: Executor
    clock: Callable[[], int]  # ms since 1970
    monotonic_ms: Callable[[], int]
    traffic: Traffic
    quotas: ClientRates
    record_memory: RecordMemory

    def coordinates(self, topic: str, partition: int) -> bool:
        """Whether this server names itself as the coordinator of the partition of an internal topic."""
        return self.cluster.coordinator(topic, partition).node_id == self.cluster.node_id

    async def run(self, work: Callable[[], T]) -> T:
        """The result of blocking `work`, from a thread of the executor."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, timed_work(work))

    async def refresh(self) -> None:
        """Bring the root up to date, in a thread if that takes a request to an object store, or lists directories."""
        if self.native is not None and self.root.directories:
            self.root.refresh()
        else:
            await self.run(self.root.refresh)

    def image(self) -> MetadataImage:
        """The newest image as of the last refresh. Only for a native root."""
        return self.root.native().store.image

    def broker_config(self) -> BrokerConfig:
        """The broker-level settings; Kafka's defaults for a broker's directory."""
        native = native_or_none(self.root)
        return _DEFAULTS if native is None else native.broker_config()

    def broker_configs(self) -> Mapping[str, str]:
        """The broker-level settings that are set; none for a broker's directory."""
        native = native_or_none(self.root)
        return {} if native is None else native.broker_configs()

    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        """The configurations of groups by id; none for a broker's directory."""
        native = native_or_none(self.root)
        return {} if native is None else native.group_configs()

    def group_config(self, group_id: str) -> GroupConfig:
        """The configurations of a group of the consumer protocol: its own, else the broker-level ones."""
        return GroupConfig.of(self.broker_config(), self.group_configs().get(group_id, {}))


AnyRequest: TypeAlias = Request[Message]
#: The table of handlers (roles.py) has the API whose message the request's body is.
Handler: TypeAlias = Callable[[ServerContext, Request[Any]], Awaitable[Message | None]]


def why_read_only(context: ServerContext) -> ReadOnlyLogDirError | None:
    """Why this root takes no changes; None if it does."""
    if context.native is not None:
        return None
    try:
        context.root.check_writable()
    except ReadOnlyLogDirError as error:
        return error
    return ReadOnlyLogDirError(f"{context.root.path} is served for reading only")
