"""What a server does for a root, and the handlers of its requests: it writes, or it only reads.

The body of a handler's request is the message of its API. The role changes while the server runs:

    the root follows a leader     only reads: producers are refused, groups continue in the memory of this server
    it was promoted               writes: groups and transactions have their coordinators in the log

A root is promoted, or begins to follow, by a commit. A few times a second `Roles` looks at the image, which other parts
keep up to date; so does each request, while the root follows, before it might be refused for that.

    stop the groups               who waits is answered, requests for groups shall be sent again
    make and start the new role   it joins the live servers
    take in the groups            members and offsets that were in memory are committed
    use the new role              for requests that come from now on
    stop the old role             what it has submitted is committed, or refused

Connections stay, and their requests under way end in the old role. A role that fails to start is tried again; until
then the log directory is only read. A server that was started for reading only, or over a broker's directory, keeps its
role. A crash in between is one of a server that reads, or of one that writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.root.reads import root_partitions
from pyspark_kafkalog.server.admin.cluster import (
    handle_alter_partition_reassignments,
    handle_alter_replica_log_dirs,
    handle_describe_cluster,
    handle_describe_log_dirs,
    handle_describe_quorum,
    handle_describe_topic_partitions,
    handle_elect_leaders,
    handle_list_config_resources,
    handle_list_partition_reassignments,
    handle_update_features,
)
from pyspark_kafkalog.server.admin.configs import (
    handle_alter_configs,
    handle_describe_configs,
    handle_incremental_alter_configs,
)
from pyspark_kafkalog.server.admin.topics import (
    handle_create_partitions,
    handle_create_topics,
    handle_delete_records,
    handle_delete_topics,
)
from pyspark_kafkalog.server.context import Handler, ServerContext
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator
from pyspark_kafkalog.server.groups.describing import GroupDescriptionHandlers
from pyspark_kafkalog.server.groups.membership import MembershipHandlers
from pyspark_kafkalog.server.groups.offsets import GroupOffsetHandlers, TransactionalCommits
from pyspark_kafkalog.server.metadata import api_versions_handler, handle_find_coordinator, handle_metadata
from pyspark_kafkalog.server.produce import Produces, refuse_produce, refuse_producer_id
from pyspark_kafkalog.server.reads.fetch import Fetches
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSessions
from pyspark_kafkalog.server.reads.log_slices import LogSlices
from pyspark_kafkalog.server.reads.offsets import EpochEnds, OffsetLists
from pyspark_kafkalog.server.security.acls import AclGuard, AclHandlers
from pyspark_kafkalog.server.security.connection_policy import ConnectionPolicy
from pyspark_kafkalog.server.security.quotas import handle_alter_client_quotas, handle_describe_client_quotas
from pyspark_kafkalog.server.security.sasl import SaslAuthenticator, SaslHandlers
from pyspark_kafkalog.server.security.scram import handle_alter_credentials, handle_describe_credentials
from pyspark_kafkalog.server.transactions.coordinator import TransactionCoordinator
from pyspark_kafkalog.server.transactions.describing import TransactionDescriptionHandlers
from pyspark_kafkalog.server.transactions.producing import ProducerHandlers, TransactionalOffsetHandlers
from pyspark_kafkalog.server.transactions.units import TransactionAdmission

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.1
#: A failed change is tried again after this time.
_RETRY_S: Final = 1.0
#: A request waits so long for a change that is under way.
_WAIT_S: Final = 10.0

Handlers: TypeAlias = Mapping[ApiKey, Handler]

#: Of requests that need the context alone.
STATELESS_HANDLERS: Final[Handlers] = {
    ApiKey.METADATA: handle_metadata,
    ApiKey.FIND_COORDINATOR: handle_find_coordinator,
    ApiKey.CREATE_TOPICS: handle_create_topics,
    ApiKey.DELETE_TOPICS: handle_delete_topics,
    ApiKey.CREATE_PARTITIONS: handle_create_partitions,
    ApiKey.DELETE_RECORDS: handle_delete_records,
    ApiKey.DESCRIBE_CONFIGS: handle_describe_configs,
    ApiKey.ALTER_CONFIGS: handle_alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: handle_incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: handle_list_config_resources,
    ApiKey.DESCRIBE_LOG_DIRS: handle_describe_log_dirs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: handle_alter_replica_log_dirs,
    ApiKey.DESCRIBE_CLUSTER: handle_describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: handle_describe_topic_partitions,
    ApiKey.DESCRIBE_QUORUM: handle_describe_quorum,
    ApiKey.UPDATE_FEATURES: handle_update_features,
    ApiKey.ELECT_LEADERS: handle_elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: handle_alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: handle_list_partition_reassignments,
}


def read_handlers(root: Root, sessions: FetchSessions) -> Handlers:
    """The handlers of consumers, which share open segments and the positions of consumers.

    `sessions` are those of the server, whatever role it has.
    """
    partitions = root_partitions(root)
    return {
        ApiKey.FETCH: Fetches(partitions, LogSlices(), sessions).handle,
        ApiKey.LIST_OFFSETS: OffsetLists(partitions).handle,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: EpochEnds(partitions).handle,
    }


def group_handlers(coordinator: GroupCoordinator) -> Handlers:
    """The handlers of groups over one coordinator, which starts before them and stops after them."""
    membership = MembershipHandlers(coordinator)
    offsets = GroupOffsetHandlers(coordinator)
    describing = GroupDescriptionHandlers(coordinator)
    return {
        ApiKey.JOIN_GROUP: membership.join,
        ApiKey.SYNC_GROUP: membership.sync,
        ApiKey.HEARTBEAT: membership.heartbeat,
        ApiKey.LEAVE_GROUP: membership.leave,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: membership.consumer_heartbeat,
        ApiKey.OFFSET_COMMIT: offsets.commit,
        ApiKey.OFFSET_FETCH: offsets.fetch,
        ApiKey.OFFSET_DELETE: offsets.delete,
        ApiKey.LIST_GROUPS: describing.list,
        ApiKey.DESCRIBE_GROUPS: describing.describe,
        ApiKey.CONSUMER_GROUP_DESCRIBE: describing.describe_consumer,
        ApiKey.DELETE_GROUPS: describing.delete,
    }


def transaction_handlers(coordinator: TransactionCoordinator, members: TransactionalCommits) -> Handlers:
    """The handlers of transactions. `members` checks the group's member that commits offsets in a transaction."""
    producers = ProducerHandlers(coordinator)
    offsets = TransactionalOffsetHandlers(coordinator, members)
    describing = TransactionDescriptionHandlers(coordinator)
    return {
        ApiKey.INIT_PRODUCER_ID: producers.init_producer_id,
        ApiKey.ADD_PARTITIONS_TO_TXN: producers.add_partitions,
        ApiKey.ADD_OFFSETS_TO_TXN: producers.add_offsets,
        ApiKey.END_TXN: producers.end,
        ApiKey.WRITE_TXN_MARKERS: describing.write_markers,
        ApiKey.TXN_OFFSET_COMMIT: offsets.commit,
        ApiKey.DESCRIBE_PRODUCERS: describing.describe_producers,
        ApiKey.DESCRIBE_TRANSACTIONS: describing.describe_transactions,
        ApiKey.LIST_TRANSACTIONS: describing.list_transactions,
    }


def security_handlers(guard: AclGuard, sasl: SaslAuthenticator | None) -> Handlers:
    """The handlers of a listener that authenticates by `sasl`; None: by TLS or not at all."""
    by_sasl = SaslHandlers(sasl)
    acls = AclHandlers(guard)
    return {
        ApiKey.SASL_HANDSHAKE: by_sasl.handshake,
        ApiKey.SASL_AUTHENTICATE: by_sasl.authenticate,
        ApiKey.DESCRIBE_ACLS: acls.describe,
        ApiKey.CREATE_ACLS: acls.create,
        ApiKey.DELETE_ACLS: acls.delete,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: handle_describe_credentials,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: handle_alter_credentials,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: handle_describe_client_quotas,
        ApiKey.ALTER_CLIENT_QUOTAS: handle_alter_client_quotas,
    }


class Service(Protocol):
    """A part of the server that runs beside the connections."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Role:
    """What answers requests. The services, `groups` among them, are started in their order, and stopped in reverse."""

    context: ServerContext
    handlers: Mapping[ApiKey, Handler]
    groups: GroupCoordinator
    services: Sequence[Service]

    @property
    def writes(self) -> bool:
        return self.context.native is not None

    async def start(self) -> None:
        for each in self.services:
            await each.start()

    async def stop(self) -> None:
        """Also of a role that was started in part, or was stopped."""
        for each in reversed(self.services):
            await each.stop()


def make_role(
    context: ServerContext, policy: ConnectionPolicy, sessions: FetchSessions, services: list[Service]
) -> Role:
    """The role of `context`; to `services` are added those that handlers need."""
    group_coordinator = GroupCoordinator(context)
    handlers: dict[ApiKey, Handler] = {
        **STATELESS_HANDLERS,
        **read_handlers(context.root, sessions),
        **security_handlers(policy.guard, policy.sasl),
        **group_handlers(group_coordinator),
    }
    native = native_or_none(context.root)
    if native is None:
        handlers[ApiKey.INIT_PRODUCER_ID] = refuse_producer_id
    else:
        # Also where a server only reads: transactions are described, and a client that asks what there is before the
        # role changes finds the same afterwards.
        coordinator = TransactionCoordinator(context, native)
        handlers |= transaction_handlers(coordinator, TransactionalCommits(group_coordinator))
        if context.native is not None:
            services.append(coordinator)
            handlers[ApiKey.PRODUCE] = Produces(TransactionAdmission(coordinator.logs)).handle
    if context.native is None:
        handlers[ApiKey.PRODUCE] = refuse_produce
    services.append(group_coordinator)
    handlers[ApiKey.API_VERSIONS] = api_versions_handler(frozenset(handlers))
    return Role(context, handlers, group_coordinator, services)


class Roles:
    """The present role of one server, a service. Used in the event loop's thread only."""

    def __init__(
        self, root: Root, make: Callable[[bool], Role], refresh: Callable[[], Awaitable[None]], *, only_reads: bool
    ) -> None:
        """`make` makes a role that writes, or only reads. `refresh` brings the root up to date, not too often.

        `only_reads`: the role never changes. Raises KafkalogError, OSError if the first role cannot be made.
        """
        self._root = root
        self._make = make
        self._refresh = refresh
        self._only_reads = only_reads
        if not only_reads:
            root.refresh()
        self._role = make(self._should_write())
        self._has_failed = False
        self._task: asyncio.Task[None] | None = None

    @property
    def current(self) -> Role:
        return self._role

    async def for_request(self) -> Role:
        """The role that answers a request now. One that finds the root promoted waits until this server writes."""
        if self._only_reads or self._role.writes:
            return self._role
        await self._refresh()
        deadline = asyncio.get_running_loop().time() + _WAIT_S
        while self._is_outdated() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_LOOK_S / 4)
        return self._role

    async def start(self) -> None:
        await self._role.start()
        if not self._only_reads:
            self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._role.stop()

    def _should_write(self) -> bool:
        return not self._only_reads and self._root.follows is None

    def _is_outdated(self) -> bool:
        return self._has_failed or self._role.writes is not self._should_write()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._is_outdated():
                try:
                    await self._change()
                except (KafkalogError, OSError) as error:
                    _LOG.error("this server cannot take its new role, and tries again: %s", error)
                    await asyncio.sleep(_RETRY_S)

    async def _change(self) -> None:
        old = self._role
        self._has_failed = True  # the groups are stopped, so another role has to be there, whatever the root does now
        await old.groups.stop()
        new = self._make(self._should_write())
        try:
            if not new.writes:
                new.groups.own = old.groups.own
            await new.start()
            if new.writes:
                await new.groups.take_in(old.groups.own)
        except BaseException:
            await new.stop()
            raise
        self._role, self._has_failed = new, False
        if new.writes:
            _LOG.warning("%s was promoted: this server writes to it now", self._root.path)
        else:
            _LOG.warning("%s follows %s: this server only reads it now", self._root.path, self._root.follows)
        await old.stop()
