"""Which of the live servers leads a partition, or coordinates the groups of a partition: rendezvous hashing.

Each server has a weight for each partition, a hash of both; the one with the largest leads. All servers compute the
same, and when one comes or goes only its own partitions move. A client that names its zone gets servers of that
zone, so that its data does not cross zones; for Kafka clients that is a pair in the client id, as peers of this server
take it:

    client.id=app-7,rack=eu-west-1a        also ws_az=, diskless_az=; pairs are separated by commas or |

Coordinators do not depend on the zone: all members of a group must find the same server.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

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
