"""One server: puts its parts together, starts and stops them, and accepts connections.

    for the whole time     who may do what, who waits for records, metrics
    in one role            the context, the handlers, the committer, the live servers, the coordinators (roles.py)

    start    listen; start the services in the order of the list; accept
    stop     accept no more; close the connections, whose commits complete; stop the services in reverse

`serve` runs a server in a thread of the calling process, for programs, tests and notebooks. A killed server leaves
nothing that has to be cleaned up: acknowledged requests are committed, and another server continues with the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
import threading
import uuid
import zlib
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, get_args

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.java_regex.patterns import why_no_re2_patterns
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import RootPath
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.security.open import open_or_create_root, open_root
from pyspark_kafkalog.server.cluster import ClusterOfServers, HeartbeatFiles, HeartbeatObjects, SingleServer
from pyspark_kafkalog.server.committer import (
    Committer,
    GroupCommitter,
    PartitionWaiters,
    ReadOnlyCommitter,
    RootWatcher,
)
from pyspark_kafkalog.server.config import Address, ServerConfig
from pyspark_kafkalog.server.connections.connection import ClientTransport, Connection, FrameLimits, PlainTransport
from pyspark_kafkalog.server.connections.dispatch import Dispatcher
from pyspark_kafkalog.server.connections.request_bytes import RequestBytesBySize, ResponseBytes
from pyspark_kafkalog.server.context import Cluster, Node, RecordMemory, ServerContext, Session
from pyspark_kafkalog.server.event_loop import monotonic_ms
from pyspark_kafkalog.server.host.committer import HostCommitter
from pyspark_kafkalog.server.metrics import ServerMetrics, StatusPage
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSessions
from pyspark_kafkalog.server.request_errors import BoundedLog
from pyspark_kafkalog.server.roles import Role, Roles, Service, make_role
from pyspark_kafkalog.server.security.connection_policy import (
    AUTHENTICATION_MS_MAX,
    AUTHENTICATION_REQUEST_BYTES_MAX,
    ConnectionPolicy,
    TooManyConnectionsError,
)
from pyspark_kafkalog.server.workers import bound_socket
from pyspark_kafkalog.storage.filesystem import LOCAL, FlushMode, flushing_file_system, time_ms
from pyspark_kafkalog.threads import Workers, start
from pyspark_kafkalog.units import INT32_MAX, SECOND_MS
from pyspark_kafkalog.values import check_one_of

#: How often a server shows that it runs, also while it is alone, and how long it counts as alive without: on a file
#: system, in an object store.
_FILE_BEATS: Final = (0.5, 0.5, 3_000)
_STORE_BEATS: Final = (3.0, 9.0, 12_000)
_NODE_ID_MAX: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Parts:
    """A server but for its sockets."""

    roles: Roles
    policy: ConnectionPolicy
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
    policy = ConnectionPolicy(
        config.security, root, executor=executor, monotonic_ms=monotonic_ms, stays_closed=relies_on_entries
    )
    waiters, metrics = PartitionWaiters(), ServerMetrics()
    sessions = FetchSessions(lambda: secrets.randbelow(INT32_MAX) + 1, monotonic_ms)
    metrics.watch_fetch_sessions(sessions)

    def role(writes: bool) -> Role:
        native = root.native() if writes else None
        committer = _committer(root, native, config, waiters, metrics)
        cluster = _cluster(root, native, config, advertised, beating)
        context = ServerContext(
            root=root,
            native=native,
            cluster=cluster,
            committer=committer,
            guard=policy.guard,
            waiters=waiters,
            executor=executor,
            clock=time_ms,
            monotonic_ms=monotonic_ms,
            traffic=metrics,
            quotas=policy.quotas,
            record_memory=record_memory,
        )
        return make_role(context, policy, sessions, [committer, cluster])

    roles = Roles(root, role, policy.refresh, only_reads=config.read_only or native_or_none(root) is None)
    watcher = RootWatcher(root, waiters, executor)
    return Parts(roles, policy, [watcher, policy, roles], metrics)


def _committer(
    root: Root, native: NativeRoot | None, config: ServerConfig, waiters: PartitionWaiters, metrics: ServerMetrics
) -> Committer:
    if native is None:
        return ReadOnlyCommitter(str(root.path))
    own = GroupCommitter(
        native.committer(flush=config.flush),
        waiters.notify,
        metrics.committed,
        monotonic_ms=monotonic_ms,
        interval_ms=config.commit_interval_ms,
    )
    if config.committer is None:
        return own
    return HostCommitter(config.committer, native, own, metrics.committed, clock=time_ms)


def _cluster(
    root: Root, native: NativeRoot | None, config: ServerConfig, advertised: Address, beating: Executor
) -> ClusterOfServers | SingleServer:
    # The same address has the same id after a restart, so that partitions keep their leaders.
    node_id = zlib.crc32(str(advertised).encode()) & _NODE_ID_MAX if config.node_id is None else config.node_id
    node = Node(node_id, advertised.host, advertised.port, config.rack)
    cluster_id = (root.identity.cluster_id if root.identity else None) or ""
    if native is None:
        return SingleServer(node, cluster_id)
    place, (interval_s, alone_interval_s, timeout_ms) = for_kind(
        native,
        lambda root: (HeartbeatFiles(root.path), _FILE_BEATS),
        lambda root: (HeartbeatObjects(root.objects), _STORE_BEATS),
    )
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


_LOG: Final = logging.getLogger(__name__)
_BACKLOG: Final = 1024
_ACCEPT_PAUSE_S: Final = 0.1
_CANCEL_AGAIN_S: Final = 0.5
#: Refused connections that stay open for the time that their hosts are throttled.
_REFUSED_MAX: Final = 64
#: OpenSSL's errors for bytes that are no TLS, by its version.
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})

#: For what the event loop itself waits for: names of hosts, and threads that end.
_LOOP_THREADS: Final = 4

T = TypeVar("T")


class Server:
    """One server over one root. Made and used in an event loop's thread."""

    def __init__(self, root: Root, config: ServerConfig) -> None:
        self._root = root
        self._config = config
        self._executor = Workers(config.threads, thread_name_prefix="kafkalog-server")
        # A server whose threads are all busy is alive, and has to show it.
        self._beating = Workers(1, thread_name_prefix="kafkalog-heartbeats")
        self._requests = RequestBytesBySize(config.queued_max_bytes)
        self._responses = ResponseBytes(config.queued_max_bytes, monotonic_ms)
        self._connections: set[asyncio.Task[None]] = set()
        self._refused: set[socket.socket] = set()
        self._status_page: StatusPage | None = None
        self._closing = contextlib.AsyncExitStack()
        self._refusals = BoundedLog(_LOG, monotonic_ms)

    async def start(self) -> Address:
        """Listen and accept; returns the address for clients.

        Raises OSError if the address is in use, InvalidOptionError for security settings that cannot be used.
        """
        self._config.check(self._root)
        missing = why_no_re2_patterns()
        if missing is not None:
            _LOG.warning("%s", missing)
        asyncio.get_running_loop().set_default_executor(Workers(_LOOP_THREADS, "kafkalog-loop"))
        try:
            listeners = [self._closing.enter_context(each) for each in self._listeners()]
            advertised = self._config.advertised or Address(*listeners[0].getsockname()[:2])
            parts = assemble(self._root, self._config, advertised, self._executor, self._beating, self._responses)
            for service in (*parts.services, *self._status_pages(parts)):
                await self._run(service)
            self._closing.push_async_callback(self._end_connections)
            dispatcher = Dispatcher(parts.roles, parts.policy, parts.metrics.handled)
            for listener in listeners:
                accepting = asyncio.create_task(self._accept(listener, dispatcher, parts.policy))
                self._closing.push_async_callback(_cancel, accepting)
        except BaseException:
            await self.stop()
            raise
        return advertised

    def _status_pages(self, parts: Parts) -> Iterator[Service]:
        def cluster() -> Cluster:
            return parts.roles.current.context.cluster

        parts.metrics.watch(
            connections=lambda: len(self._connections),
            request_bytes=lambda: self._requests.used_bytes,
            servers=lambda: len(cluster().nodes()),
        )
        if self._config.status is not None:
            self._status_page = StatusPage(
                self._config.status,
                parts.metrics.registry,
                check=self._root.refresh,
                facts=lambda: {
                    "node_id": cluster().node_id,
                    "servers": len(cluster().nodes()),
                    "writes": parts.roles.current.writes,
                    "connections": len(self._connections),
                },
                monotonic_ms=monotonic_ms,
            )
            yield self._status_page

    @property
    def status_address(self) -> Address | None:
        """Where metrics and health are served; None if nowhere."""
        return None if self._status_page is None else self._status_page.address

    def _listeners(self) -> Iterator[socket.socket]:
        """The sockets that listen, the one with this server's own address first."""
        yield _listening(bound_socket(self._config.listen))
        if self._config.shared is not None:
            yield _listening(bound_socket(self._config.shared, is_shared=True))

    async def _run(self, service: Service) -> None:
        self._closing.push_async_callback(service.stop)
        await service.start()

    async def stop(self) -> None:
        """Accept no more connections, commit what was submitted, close everything."""
        await self._closing.aclose()
        for client in self._refused:
            client.close()
        for each in (self._executor, self._beating):
            each.shutdown(wait=False, cancel_futures=True)

    async def _accept(self, listener: socket.socket, dispatcher: Dispatcher, policy: ConnectionPolicy) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listener)
                client.setblocking(False)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # As in Kafka: a machine that is gone without a word is noticed, if only after hours.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except OSError as error:  # too many open files, for one
                _LOG.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            try:
                session = policy.open(address[0], address[1])
            except TooManyConnectionsError as error:
                self._refusals.info("refusing a connection of %s: %s", address[0], error)
                self._close_later(client, error.throttle_ms)
                continue
            except Exception:  # a defect ends one connection, and not all that would come
                _LOG.exception("refusing a connection of %s", address[0])
                client.close()
                continue
            task = asyncio.create_task(self._serve(client, session, dispatcher, policy))
            policy.watch(session, task.cancel)
            self._connections.add(task)
            task.add_done_callback(partial(self._forget, policy, session, client))
            await asyncio.sleep(0)  # many that come at once are not accepted in one turn of the loop

    def _close_later(self, client: socket.socket, delay_ms: int) -> None:
        """Close a refused connection after the delay; at once if too many wait for that."""
        if not delay_ms or len(self._refused) >= _REFUSED_MAX:
            client.close()
            return

        def close() -> None:
            self._refused.discard(client)
            client.close()

        self._refused.add(client)
        asyncio.get_running_loop().call_later(delay_ms / SECOND_MS, close)

    def _forget(
        self, policy: ConnectionPolicy, session: Session, client: socket.socket, task: asyncio.Task[None]
    ) -> None:
        self._connections.discard(task)
        client.close()  # a task that is cancelled before its first turn closes nothing
        policy.close(session)

    async def _serve(
        self, client: socket.socket, session: Session, dispatcher: Dispatcher, policy: ConnectionPolicy
    ) -> None:
        config = self._config
        deadline = asyncio.get_running_loop().call_later(
            AUTHENTICATION_MS_MAX / SECOND_MS, _end_unauthenticated, asyncio.current_task(), session
        )
        try:
            await policy.refresh()
            transport = await self._transport(client, session, policy)
            if transport is None:
                return
            connection = Connection(
                transport,
                session,
                dispatcher,
                limits=FrameLimits(config.request_max_bytes, AUTHENTICATION_REQUEST_BYTES_MAX, config.idle_max_s),
                requests=self._requests,
                responses=self._responses,
                log=self._refusals,
                monotonic_ms=monotonic_ms,
            )
            await connection.serve()
        finally:
            deadline.cancel()

    async def _transport(
        self, client: socket.socket, session: Session, policy: ConnectionPolicy
    ) -> ClientTransport | None:
        """The transport of a new connection; None if it could not begin, and is closed."""
        if not policy.has_tls:
            return PlainTransport(client, self._executor, idle_max_s=self._config.idle_max_s)
        try:
            return await policy.start_tls(client, session, idle_max_s=self._config.idle_max_s)
        except (OSError, InvalidRecordError, asyncio.TimeoutError) as error:
            reason = str(error) or "the handshake took too long"
            if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
                reason = "the client does not speak TLS: expected security.protocol SSL or SASL_SSL"
            self._refusals.info("no TLS with %s:%d: %s", session.host, session.port, reason)
            return None

    async def _end_connections(self) -> None:
        while self._connections:
            for task in tuple(self._connections):
                task.cancel()
            # Before Python 3.12 asyncio.wait_for may swallow a cancellation (gh-86296): then it is repeated.
            await asyncio.wait(tuple(self._connections), timeout=_CANCEL_AGAIN_S)


def open_served_root(path: str | RootPath | StoreAddress, config: ServerConfig) -> Root:
    """The root to serve; one that does not exist is created, unless the server only reads. Raises LogDirError.

    On a file system all commits wait for the disk as `config.flush` says, also those that create topics or change
    configurations: one that waited would have to wait for all earlier ones, and the next writer for it.
    """
    if config.read_only:
        return open_root(path)
    root = open_or_create_root(path, fs=flushing_file_system(LOCAL, config.flush))
    if config.committer is not None:
        root.native().store.join_host(config.committer.parent)
    return root


class RunningServer:
    """A server in a thread of this process. As a context manager it is stopped at the end of the block.

    `bootstrap` is its address, HOST:PORT, which clients take as `bootstrap.servers`.
    """

    def __init__(self, path: str | RootPath | StoreAddress, config: ServerConfig) -> None:
        root = open_served_root(path, config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kafkalog-server", daemon=True)
        self._server = Server(root, config)
        self._path = root.path
        self._is_stopped = False
        start(self._thread)
        try:
            self.bootstrap: str = str(self._run(self._server.start()))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Accept no more connections, commit what was submitted, end the thread. A second call does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        try:
            self._run(self._server.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"RunningServer({self._path}, {'stopped' if self._is_stopped else self.bootstrap})"


def serve(
    path: str | RootPath | StoreAddress,
    *,
    listen: str = "127.0.0.1:0",
    read_only: bool = False,
    flush: FlushMode = "fsync",
) -> RunningServer:
    """Serve the log directory at `path` to Kafka clients, from a thread of this process, until `stop`.

        with serve("/data/log") as server:
            print(server.bootstrap)

    The log directory is created if it does not exist, unless `read_only`. `listen` is HOST:PORT, with port 0 a free
    one. With `flush` "os" a write is acknowledged when the operating system has it. `kafkalog serve` has more options,
    for TLS, SASL and several processes.

    Raises LogDirError, OSError if the address is in use, InvalidOptionError for an address or a log directory that
    would be open to others.
    """
    check_one_of("flush", flush, get_args(FlushMode))
    return RunningServer(path, ServerConfig(listen=Address.parse(listen), read_only=read_only, flush=flush))


def _end_unauthenticated(task: asyncio.Task[Any] | None, session: Session) -> None:
    if task is not None and not session.is_authenticated:
        task.cancel()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _listening(bound: socket.socket) -> socket.socket:
    try:
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
