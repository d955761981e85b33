"""A server in a thread of the test, with any settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import RootPath
from pyspark_kafkalog.server.config import Address, ServerConfig
from pyspark_kafkalog.server.run import RunningServer


@contextmanager
def serve(path: str | RootPath | StoreAddress, config: ServerConfig | None = None) -> Iterator[str]:
    """Serve the log directory at `path` while the block runs; gives HOST:PORT, by default a free port of 127.0.0.1."""
    with RunningServer(path, config or ServerConfig(listen=Address("127.0.0.1", 0))) as server:
        yield server.bootstrap
