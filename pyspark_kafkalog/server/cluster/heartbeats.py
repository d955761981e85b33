"""What a server leaves in the root to show that it runs: a small file or object that it writes again and again.

    <root>/.server-<node id>          on a file system; overwritten in place, never waits for the disk
    servers/<node id>                 in an object store

    {"node_id": 2718, "host": "10.0.0.7", "port": 9092, "rack": null, "incarnation": "…", "has_left": false,
     "is_slow": false, "beat": 17}

`beat` counts up. `is_slow`: the server is alone, and looks for others less often until it sees one. Nothing but routing
depends on signs: what a server may write is decided by commits alone. A killed server leaves its file, which others
ignore once it has not changed for a while, and remove later. One that is stopped writes that it has left, and the
others remove its file later too; the last one removes all that are there.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
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
