"""Puts the parts of a server together: for one root and one configuration, its roles and what they share.

    for the whole time     who may do what, who waits for records, metrics
    in one role            the context, the handlers, the committer, the live servers, the coordinators (roles.py)

A service runs as long as the server, or its role: it is started before the first connection is accepted, in the order
of the list, and stopped after the last one has ended, in reverse.
"""

from __future__ import annotations

import secrets
import time
import uuid
import zlib
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.server import handlers as tables
from pyspark_kafkalog.server.cluster.heartbeats import HeartbeatFiles, HeartbeatObjects, HeartbeatStore
from pyspark_kafkalog.server.cluster.membership import ClusterOfServers, SingleServer
from pyspark_kafkalog.server.committer import GroupCommitter, ReadOnlyCommitter
from pyspark_kafkalog.server.config import Address, ServerConfig
from pyspark_kafkalog.server.context import Handler, Node, RecordMemory, ServerContext
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator
from pyspark_kafkalog.server.groups.offsets import TransactionalCommits
from pyspark_kafkalog.server.metadata.api_versions import api_versions_handler
from pyspark_kafkalog.server.process.metrics import ServerMetrics
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSessions
from pyspark_kafkalog.server.roles import Role, Roles, Service
from pyspark_kafkalog.server.security.connection_policy import Gate
from pyspark_kafkalog.server.transactions.coordinator import TransactionCoordinator
from pyspark_kafkalog.server.transactions.gate import TransactionGate
from pyspark_kafkalog.server.waiters import PartitionWaiters, RootWatcher
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.units import INT32_MAX

#: How often a server shows that it runs, also while it is alone, and how long it counts as alive without: on a file
#: system, in an object store.
_FILE_BEATS: Final = (0.5, 0.5, 3_000)
_STORE_BEATS: Final = (3.0, 9.0, 12_000)
_NODE_ID_MAX: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Parts:
    """A server but for its sockets."""

    roles: Roles
    gate: Gate
    services: Sequence[Service]
    metrics: ServerMetrics


def assemble(
    root: Root,
    config: ServerConfig,
    advertised: Address,
    executor: Executor,
    beating: Executor,
    record_memory: RecordMemory,
) -> Parts:
    """The parts of a server that clients reach at `advertised`. Called in the event loop's thread.

    Requests block in threads of `executor`, signs of life in the thread of `beating`. `record_memory` bounds what they
    read into memory.

    Raises InvalidOptionError for security settings that cannot be used.
    """
    relies_on_entries = config.open_host is not None
    gate = Gate(config.security, root, executor=executor, monotonic_ms=monotonic_ms, stays_closed=relies_on_entries)
    waiters, metrics = PartitionWaiters(), ServerMetrics()
    sessions = FetchSessions(lambda: secrets.randbelow(INT32_MAX) + 1, monotonic_ms)
    metrics.watch_fetch_sessions(sessions)

    def role(writes: bool) -> Role:
        native = root.native() if writes else None
        committer = (
            ReadOnlyCommitter(str(root.path))
            if native is None
            else GroupCommitter(
                native.committer(flush=config.flush), waiters.notify, metrics.committed, monotonic_ms=monotonic_ms
            )
        )
        cluster = _cluster(root, native, config, advertised, beating)
        context = ServerContext(
            root=root,
            native=native,
            cluster=cluster,
            committer=committer,
            guard=gate.guard,
            waiters=waiters,
            executor=executor,
            clock=time_ms,
            monotonic_ms=monotonic_ms,
            traffic=metrics,
            quotas=gate.quotas,
            record_memory=record_memory,
        )
        return _role(context, gate, sessions, [committer, cluster])

    roles = Roles(root, role, gate.refresh, only_reads=config.read_only or native_or_none(root) is None)
    watcher = RootWatcher(root, waiters, executor)
    return Parts(roles, gate, [watcher, gate, roles], metrics)


def _role(context: ServerContext, gate: Gate, sessions: FetchSessions, services: list[Service]) -> Role:
    """The role of `context`; to `services` are added those that handlers need."""
    group_coordinator = GroupCoordinator(context)
    handlers: dict[ApiKey, Handler] = {
        **tables.METADATA_HANDLERS,
        **tables.ADMIN_HANDLERS,
        **tables.read_handlers(context.root, sessions),
        **tables.security_handlers(gate.guard, gate.sasl),
        **tables.group_handlers(group_coordinator),
    }
    native = native_or_none(context.root)
    if native is None:
        handlers |= tables.NO_PRODUCER_IDS
    else:
        # Also where a server only reads: transactions are described, and a client that asks what there is before the
        # role changes finds the same afterwards.
        coordinator = TransactionCoordinator(context, native)
        handlers |= tables.transaction_handlers(coordinator, TransactionalCommits(group_coordinator))
        if context.native is not None:
            services.append(coordinator)
            handlers |= tables.produce_handlers(TransactionGate(coordinator.logs))
    if context.native is None:
        handlers |= tables.READ_ONLY_HANDLERS
    services.append(group_coordinator)
    handlers[ApiKey.API_VERSIONS] = api_versions_handler(frozenset(handlers))
    return Role(context, handlers, group_coordinator, services)


def _cluster(
    root: Root, native: NativeRoot | None, config: ServerConfig, advertised: Address, beating: Executor
) -> ClusterOfServers | SingleServer:
    # The same address has the same id after a restart, so that partitions keep their leaders.
    node_id = zlib.crc32(str(advertised).encode()) & _NODE_ID_MAX if config.node_id is None else config.node_id
    node = Node(node_id, advertised.host, advertised.port, config.rack)
    cluster_id = (root.identity.cluster_id if root.identity else None) or ""
    place: HeartbeatStore
    if isinstance(native, ObjectRoot):
        place, times = HeartbeatObjects(native.objects), _STORE_BEATS
    elif isinstance(native, FileRoot):
        place, times = HeartbeatFiles(native.path), _FILE_BEATS
    else:
        return SingleServer(node, cluster_id)
    interval_s, alone_interval_s, timeout_ms = times
    return ClusterOfServers(
        node,
        cluster_id,
        uuid.uuid4().hex,
        place,
        beating,
        interval_s=interval_s,
        timeout_ms=timeout_ms,
        alone_interval_s=alone_interval_s,
        monotonic_ms=monotonic_ms,
    )


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000
