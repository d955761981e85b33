"""The settings of one server process. Those of the root (topics, num.partitions, …) are in its commit log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.server.security.listener import check_entries
from pyspark_kafkalog.server.security.settings import SecuritySettings
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.units import MIB

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root

_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, or what it tells clients to connect to. Port 0: one that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> Address:
        """`HOST:PORT`, an IPv6 address in brackets. Raises InvalidOptionError."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
        if not colon or not host or not port.isdecimal() or int(port) > _PORT_MAX:
            raise InvalidOptionError(f"{text!r} is not an address: expected HOST:PORT, such as 127.0.0.1:9092")
        return Address(host, int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`advertised` is what Metadata tells clients, `listen` with the port found if None.

    `status` is where metrics and health are served over HTTP. `shared` is a second address, which other processes
    listen on too (process/workers.py). `node_id` is the broker id, made from the advertised address if None. `flush`:
    "fsync" answers a write when it is on disk, "os" when the operating system has it, which is what Kafka does.

    `request_max_bytes` is Kafka's socket.request.max.bytes, `queued_max_bytes` (queued.max.request.bytes) the limit of
    the requests in memory together, `threads` run what blocks: files, stores, changes of topics.
    """

    listen: Address = Address("127.0.0.1", 9092)
    shared: Address | None = None
    status: Address | None = None
    advertised: Address | None = None
    node_id: int | None = None
    rack: str | None = None
    flush: FlushMode = "fsync"
    read_only: bool = False
    request_max_bytes: int = 100 * MIB
    queued_max_bytes: int = 512 * MIB
    idle_max_s: float = 600.0
    threads: int = 8
    security: SecuritySettings = field(default_factory=SecuritySettings)

    def check(self, root: Root) -> None:
        """Raises InvalidOptionError if a server over `root` with these settings would be open to others unasked."""
        for host in self.hosts:
            self.security.check(host)
        if self.open_host is not None:
            check_entries(root, self.open_host)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where the server listens."""
        return tuple(each.host for each in (self.listen, self.shared) if each is not None)

    @property
    def open_host(self) -> str | None:
        """Where it listens for clients that need not say who they are (`relies_on_entries`); None: nowhere."""
        return next(filter(self.security.relies_on_entries, self.hosts), None)
