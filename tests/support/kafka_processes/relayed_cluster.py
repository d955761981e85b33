"""A cluster of three brokers that a follower reaches through relays only; see fakes/tcp_relay.py and cluster.py.

Brokers and other clients speak to each other directly, so that a fault of a relay concerns the follower alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fakes.tcp_relay import TcpRelay

from kafka_processes.cluster import Cluster
from kafka_processes.java_processes import free_port

_LISTENER: Final = "RELAYED"


class RelayedCluster(Cluster):
    """The nodes 1 to 3, with `relays` by their numbers."""

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(home, settings)
        self.relays: dict[int, TcpRelay] = {}
        for number, node in self.nodes.items():
            port = free_port()
            self.relays[number] = TcpRelay(port)
            node.java_options = ("-Xms64m", "-Xmx256m", *node.java_options[2:])
            node.more_listeners = {_LISTENER: port}
            node.advertised_ports = {_LISTENER: self.relays[number].port}
            protocols = ",".join(f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", _LISTENER))
            node.settings = {**node.settings, "listener.security.protocol.map": protocols}

    def __enter__(self) -> RelayedCluster:
        for relay in self.relays.values():
            relay.__enter__()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for relay in self.relays.values():
            relay.__exit__()

    @property
    def relayed(self) -> str:
        """The addresses of the relays."""
        return ",".join(f"127.0.0.1:{each.port}" for each in self.relays.values())

    def heal(self) -> None:
        """Let all relays forward everything at once."""
        for relay in self.relays.values():
            relay.heal()
