"""The servers over one root: which are alive, and which of them clients are sent to.

A server leaves a sign of life in the root, a small file or object that it writes again and again:

    <root>/.server-<node id>          on a file system; overwritten in place, never waits for the disk
    servers/<node id>                 in an object store

    {"node_id": 2718, "host": "10.0.0.7", "port": 9092, "rack": null, "incarnation": "…", "has_left": false,
     "is_slow": false, "beat": 17}

`beat` counts up. `is_slow`: the server is alone, and looks for others less often until it sees one. Nothing but routing
depends on signs: what a server may write is decided by commits alone. A killed server leaves its file, which others
ignore once it has not changed for a while, and remove later. One that is stopped writes that it has left, and the
others remove its file later too; the last one removes all that are there.

The live servers are those whose sign of life has changed lately, by this server's own clock:

    every heartbeat write the own sign, read those of the others. While no other sign is there, heartbeats are slow, and
                    the sign says so: a server that joins then waits for longer
    alive           this server, and each other one whose sign has changed within `timeout_ms`; one that is seen for the
                    first time counts as alive until then
    left            a server that is stopped says so in its sign, and is not alive from then on
    long dead       a sign that has not changed for ten times as long is removed
    listed          all whose signs are there: Metadata names them as brokers until they are long dead

No clocks are compared and no lock is held. Two servers that see different members tell clients different leaders for a
while, which costs requests to another server and nothing else. `Membership` is pure; `ClusterOfServers` runs it.

Lists of brokers must not differ or change without need. librdkafka (2.10 and later) drops a server that one Metadata
response leaves out, with the requests under way to it, and some of them are then never repeated: a consumer waits for
metadata that it does not ask for again, and `send_offsets_to_transaction` fails or hangs. It also hangs when the server
that was dropped is the group's coordinator, even if that server has come back meanwhile: `rd_kafka_broker_decommission`
leaves it in the producer's cache of coordinators, and `rd_kafka_coord_req_fsm` then waits, without a timeout, for a
connection without a client. So a server that stands still or was stopped stays listed, long enough for a restart, and
a new one waits until the others have seen it before it accepts connections.

Rendezvous hashing decides which of the live servers coordinates the groups of a partition. Each server has a weight for
each partition, a hash of both; the server with the largest weight coordinates. All servers compute the same, and when
one comes or goes only its own partitions move.

Leaders are spread evenly: of as many partitions of a topic in a row as there are servers, each server leads one. The
first of them gets the server with the largest weight, each other one that of those that are left. By hashes alone, of
eight servers three would lead none of the eight partitions of a topic, and another one three. More partitions move when
a server comes or goes, which costs their clients little: any server takes their requests.

A client that names its zone gets servers of that
zone, so that its data does not cross zones; a Kafka client names it by a pair in the client id, in the form that
comparable servers take:

    client.id=app-7,rack=eu-west-1a        also ws_az=, diskless_az=; pairs are separated by commas or |

Coordinators do not depend on the zone: all members of a group must find the same server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata.root_format import SERVERS_FOLDER
from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStore
from pyspark_kafkalog.server.context import Node
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import LOCAL, open_to_read
from pyspark_kafkalog.units import INT32_MAX

_PREFIX: Final = ".server-"
_HEARTBEAT_MAX_BYTES: Final = 4096
_PORT_MAX: Final = 65535
#: Listings of a root after each change of its names.
_LISTINGS: Final = 5
#: More servers than this are not looked at.
_SERVERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class ServerHeartbeat:
    """One server's sign of life."""

    node: Node
    incarnation: str
    heartbeat: int
    has_left: bool = False
    is_slow: bool = False

    def encode(self) -> bytes:
        """The sign as JSON. Only the digits of `beat` differ between two of the same state, and the length does not."""
        node = self.node
        fields = {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
        fields |= {"incarnation": self.incarnation, "has_left": self.has_left, "is_slow": self.is_slow}
        return f'{json.dumps(fields)[:-1]}, "beat": {self.heartbeat:20}}}'.encode()

    @staticmethod
    def decode(data: bytes) -> ServerHeartbeat | None:
        """None for anything that is not such a sign: it is then as if it were not there."""
        try:
            fields = json.loads(data)
            node_id, host, port, rack = fields["node_id"], fields["host"], fields["port"], fields.get("rack")
            incarnation, heartbeat, has_left = fields["incarnation"], fields["beat"], fields.get("has_left", False)
            is_slow = fields.get("is_slow") is True
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        numbers_are_valid = (
            _is_between(node_id, INT32_MAX) and _is_between(port, _PORT_MAX) and isinstance(heartbeat, int)
        )
        texts_are_valid = isinstance(host, str) and isinstance(incarnation, str) and isinstance(rack, (str, type(None)))
        if not (numbers_are_valid and texts_are_valid and isinstance(has_left, bool)):
            return None
        return ServerHeartbeat(Node(node_id, host, port, rack), incarnation, heartbeat, has_left, is_slow)


def _is_between(value: Any, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit


class HeartbeatStore(Protocol):
    """Where the servers of one root leave their signs of life. All methods raise OSError."""

    def write(self, heartbeat: ServerHeartbeat) -> None:
        """Replace the server's sign."""
        ...

    def read_all(self, *, but: int | None = None) -> Mapping[int, ServerHeartbeat]:
        """The signs of all servers but one, dead ones too, by node id."""
        ...

    def remove(self, node_id: int) -> None:
        """Remove a sign, if it is there."""
        ...


@dataclass(slots=True)
class HeartbeatFiles:
    """Files at the top of a root on a file system. Their names are no partition's, so Kafka ignores them.

    A root may have 50,000 other names, so it is listed only if it has changed. A heartbeat does not change it: the
    server overwrites the file that it has made. A reader may find digits of two heartbeats mixed, which is another
    heartbeat, too. Servers of earlier versions replace their files, so their heartbeats are found by listings, as they
    find these.
    """

    root: Path
    _own: tuple[int, int] | None = None
    _names: tuple[str, ...] = ()
    _listed: tuple[int, int] | None = None
    _listings_left: int = 0

    def write(self, heartbeat: ServerHeartbeat) -> None:
        path, data = self._path(heartbeat.node.node_id), heartbeat.encode()
        if not self._overwrite(path, data):
            LOCAL.write_file_atomic(path, data, durable=False)
            status = os.lstat(path)
            self._own = (status.st_dev, status.st_ino)

    def _overwrite(self, path: Path, data: bytes) -> bool:
        """Overwrite the file if it is the one that this server has made, and no other name's; False if not."""
        try:
            fd = open_file(path, os.O_WRONLY)
        except (FileNotFoundError, LogDirError):
            return False
        try:
            status = os.fstat(fd)
            found = (status.st_dev, status.st_ino)
            if found != self._own or status.st_nlink != 1 or status.st_size != len(data):
                return False
            LOCAL.pwrite_all(fd, data, 0)
            return True
        finally:
            os.close(fd)

    def read_all(self, *, but: int | None = None) -> dict[int, ServerHeartbeat]:
        heartbeats = {}
        self._list()
        for name in self._names:
            if but is not None and name == f"{_PREFIX}{but}":
                continue
            # A link or a pipe is no server's sign.
            with contextlib.suppress(FileNotFoundError, LogDirError), open_to_read(self.root / name) as file:
                heartbeat = ServerHeartbeat.decode(file.read(_HEARTBEAT_MAX_BYTES))
                if heartbeat is not None:
                    heartbeats[heartbeat.node.node_id] = heartbeat
        return heartbeats

    def _list(self) -> None:
        """List the root if it has changed lately: times may have a resolution of seconds."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # on NFS the times are new after an open
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        now = (status.st_ino, status.st_mtime_ns)
        if now != self._listed:
            self._listings_left = _LISTINGS
        if self._listings_left:
            with os.scandir(self.root) as entries:
                names = [each.name for each in entries if each.name.startswith(_PREFIX) and each.name[-1].isdecimal()]
            self._names = tuple(sorted(names)[:_SERVERS_MAX])
            self._listings_left -= 1
        self._listed = now

    def remove(self, node_id: int) -> None:
        LOCAL.unlink_if_there(self._path(node_id))

    def _path(self, node_id: int) -> Path:
        return self.root / f"{_PREFIX}{node_id}"


@dataclass(frozen=True, slots=True)
class HeartbeatObjects:
    """Objects beside those of a root in an object store."""

    store: ObjectStore

    def write(self, heartbeat: ServerHeartbeat) -> None:
        self.store.put(f"{SERVERS_FOLDER}/{heartbeat.node.node_id}", heartbeat.encode())

    def read_all(self, *, but: int | None = None) -> dict[int, ServerHeartbeat]:
        heartbeats = {}
        for _, each in zip(range(_SERVERS_MAX), self.store.list_objects(SERVERS_FOLDER), strict=False):
            if but is not None and each.key == f"{SERVERS_FOLDER}/{but}":
                continue
            with contextlib.suppress(ObjectNotFoundError):
                heartbeat = ServerHeartbeat.decode(self.store.get(each.key, max_bytes=_HEARTBEAT_MAX_BYTES))
                if heartbeat is not None:
                    heartbeats[heartbeat.node.node_id] = heartbeat
        return heartbeats

    def remove(self, node_id: int) -> None:
        self.store.delete([f"{SERVERS_FOLDER}/{node_id}"])


_ZONE: Final = re.compile(r"(?:^|[,|\s])(?:rack|ws_az|diskless_az)=([^,|\s]+)")


def zone_of(client_id: str) -> str | None:
    """The zone that a client id names; None without one."""
    found = _ZONE.search(client_id)
    return found.group(1) if found else None


def in_zone(nodes: Sequence[Node], zone: str | None) -> Sequence[Node]:
    """The servers of the zone; all if it has none, or a client's thread or task has appended a suffix to its name."""
    if zone is None:
        return nodes
    return [each for each in nodes if each.rack == zone] or nodes


def choose(nodes: Sequence[Node], name: str, partition: int) -> Node:
    """The server of `nodes`, which is not empty, with the largest weight for partition `partition` of `name`."""
    return max(nodes, key=lambda node: (_weight(node.node_id, name, partition), node.node_id))


#: Partitions in a row that are spread over all servers; of more servers only a part leads some of them.
_RUN_MAX: Final = 64
_RUNS_KEPT: Final = 4096


def spread(nodes: tuple[Node, ...], name: str, partition: int) -> Node:
    """The server of `nodes`, which is not empty, that leads partition `partition` of `name`."""
    run, at = divmod(partition, min(len(nodes), _RUN_MAX))
    return _leaders_of_run(nodes, name, run)[at]


@lru_cache(maxsize=_RUNS_KEPT)
def _leaders_of_run(nodes: tuple[Node, ...], name: str, run: int) -> tuple[Node, ...]:
    """The leaders of one run of partitions of `name`, each another server."""
    free, leaders = list(nodes), list[Node]()
    length = min(len(nodes), _RUN_MAX)
    for partition in range(run * length, (run + 1) * length):
        leaders.append(choose(free, name, partition))
        free.remove(leaders[-1])
    return tuple(leaders)


def _weight(node_id: int, name: str, partition: int) -> bytes:
    return hashlib.blake2b(f"{node_id}/{name}/{partition}".encode(), digest_size=8).digest()


_LOG: Final = logging.getLogger(__name__)
_FORGET_FACTOR: Final = 10
#: The others look at the signs every interval, and take a while for it.
_JOIN_FACTOR: Final = 1.25
#: How often a server says that it cannot show that it runs: each heartbeat would fill the log while the root is away.
_WARN_MS: Final = 60_000


@dataclass(slots=True)
class _Seen:
    heartbeat: ServerHeartbeat
    changed_ms: int


class Membership:
    """The signs of life that one server has seen. `timeout_ms` is how long a server lives without a new one."""

    def __init__(self, own: Node, *, timeout_ms: int) -> None:
        self._own = own
        self._timeout_ms = timeout_ms
        self._seen: dict[int, _Seen] = {}
        self._nodes: tuple[Node, ...] = (own,)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The live servers by node id, as of the last `observe`."""
        return self._nodes

    @property
    def listed(self) -> tuple[Node, ...]:
        """The live servers, and those that died or left lately, by node id."""
        seen = [each.heartbeat.node for each in self._seen.values()]
        return tuple(sorted([self._own, *seen], key=lambda node: node.node_id))

    def observe(self, heartbeats: Mapping[int, ServerHeartbeat], now_ms: int) -> list[int]:
        """Take note of all signs that there are; returns the node ids of those that are long dead."""
        others = {node_id: heartbeat for node_id, heartbeat in heartbeats.items() if node_id != self._own.node_id}
        for node_id in set(self._seen) - set(others):
            del self._seen[node_id]
        for node_id, heartbeat in others.items():
            seen = self._seen.get(node_id)
            if seen is None or seen.heartbeat != heartbeat:
                self._seen[node_id] = _Seen(heartbeat, now_ms)
        alive = [
            each.heartbeat.node
            for each in self._seen.values()
            if not each.heartbeat.has_left and now_ms - each.changed_ms <= self._timeout_ms
        ]
        self._nodes = tuple(sorted([self._own, *alive], key=lambda node: node.node_id))
        limit_ms = self._timeout_ms * _FORGET_FACTOR
        return [node_id for node_id, each in self._seen.items() if now_ms - each.changed_ms > limit_ms]


class ClusterOfServers:
    """The `Cluster` of context.py: heartbeats every `interval_s`, in a thread, since a store or a slow disk may block.

    While it is alone it heartbeats every `alone_interval_s`, which must be less than `timeout_ms`.
    """

    def __init__(
        self,
        node: Node,
        cluster_id: str,
        incarnation: str,
        place: HeartbeatStore,
        executor: Executor,
        *,
        interval_s: float,
        timeout_ms: int,
        alone_interval_s: float | None = None,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self._cluster_id = cluster_id
        self._incarnation = incarnation
        self._place = place
        self._executor = executor
        self._interval_s = interval_s
        self._alone_interval_s = interval_s if alone_interval_s is None else alone_interval_s
        self._is_slow = self._are_others_slow = False
        self._monotonic_ms = monotonic_ms
        self._membership = Membership(node, timeout_ms=timeout_ms)
        self._count = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def node_id(self) -> int:
        return self._node.node_id

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    def nodes(self) -> tuple[Node, ...]:
        return self._membership.nodes

    def listed(self) -> tuple[Node, ...]:
        return self._membership.listed

    def leader(self, topic_id: str, partition: int, client_id: str) -> Node:
        return spread(tuple(in_zone(self.nodes(), zone_of(client_id))), topic_id, partition)

    def coordinator(self, topic: str, partition: int) -> Node:
        return choose(self.nodes(), topic, partition)

    async def start(self) -> None:
        """Join: the others have seen this server when this returns. Raises OSError if the root cannot be written."""
        await self._beat()
        self._task = asyncio.create_task(self._run())
        if len(self.nodes()) > 1:
            slowest_s = self._alone_interval_s if self._are_others_slow else self._interval_s
            await asyncio.sleep(_JOIN_FACTOR * slowest_s)

    async def stop(self) -> None:
        """Deregister, so that Metadata names the remaining servers. The last server removes the signs of all."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        with contextlib.suppress(OSError):
            await self._beat(has_left=True)
            if len(self.nodes()) == 1:
                for each in self.listed():
                    await self._remove(each.node_id)

    async def _run(self) -> None:
        failing_since_ms: int | None = None
        warned_ms: int | None = None
        while True:
            await asyncio.sleep(self._alone_interval_s if self._is_slow else self._interval_s)
            try:
                await self._beat()
            except OSError as error:
                now_ms = self._monotonic_ms()
                failing_since_ms = now_ms if failing_since_ms is None else failing_since_ms
                if warned_ms is None or now_ms - warned_ms >= _WARN_MS:
                    warned_ms = now_ms
                    _LOG.warning("this server cannot show that it runs: %s", error)
            else:
                if failing_since_ms is not None:
                    failed_s = (self._monotonic_ms() - failing_since_ms) / 1000
                    _LOG.warning("this server shows again that it runs, after %.0f s in which it could not", failed_s)
                failing_since_ms = warned_ms = None

    async def _beat(self, *, has_left: bool = False) -> None:
        self._count += 1
        is_alone = self._count > 1 and len(self.listed()) == 1
        is_slow = is_alone and not has_left and self._alone_interval_s > self._interval_s
        own = ServerHeartbeat(self._node, self._incarnation, self._count, has_left, is_slow)
        await self._in_thread(lambda: self._place.write(own))
        heartbeats: dict[int, ServerHeartbeat] = {}
        await self._in_thread(lambda: heartbeats.update(self._place.read_all(but=self.node_id)))
        self._are_others_slow = any(each.is_slow and not each.has_left for each in heartbeats.values())
        self._is_slow = is_slow and not heartbeats
        before = self.nodes()
        dead = self._membership.observe(heartbeats, self._monotonic_ms())
        if self.nodes() != before:
            _LOG.info("live servers: %s", ", ".join(f"{each.node_id} {each.host}:{each.port}" for each in self.nodes()))
        for node_id in dead:
            await self._remove(node_id)

    async def _remove(self, node_id: int) -> None:
        await self._in_thread(lambda: self._place.remove(node_id))

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)


class SingleServer:
    """The `Cluster` of a server over a root that it cannot write to: it knows of no other server."""

    def __init__(self, node: Node, cluster_id: str) -> None:
        self._node = node
        self.cluster_id = cluster_id
        self.node_id = node.node_id

    def nodes(self) -> tuple[Node, ...]:
        return (self._node,)

    def listed(self) -> tuple[Node, ...]:
        return (self._node,)

    def leader(self, topic_id: str, partition: int, client_id: str) -> Node:
        return self._node

    def coordinator(self, topic: str, partition: int) -> Node:
        return self._node

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass
