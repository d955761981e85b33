"""The live servers: those whose sign of life has changed lately, by this server's own clock.

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

Rendezvous hashing decides which of the live servers leads a partition, or coordinates the groups of a partition. Each
server has a weight for each partition, a hash of both; the server with the largest weight leads. All servers compute
the same, and when one comes or goes only its own partitions move. A client that names its zone gets servers of that
zone, so that its data does not cross zones; a Kafka client names it by a pair in the client id, in the form that
comparable servers take:

    client.id=app-7,rack=eu-west-1a        also ws_az=, diskless_az=; pairs are separated by commas or |

Coordinators do not depend on the zone: all members of a group must find the same server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.server.cluster.heartbeats import HeartbeatStore, ServerHeartbeat
from pyspark_kafkalog.server.context import Node

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
        return choose(in_zone(self.nodes(), zone_of(client_id)), topic_id, partition)

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
