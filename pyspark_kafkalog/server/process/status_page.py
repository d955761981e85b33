"""The HTTP end point of a server: `/metrics` for Prometheus, `/health` for supervisors and load balancers.

/health answers 200 while the event loop turns and the root can be refreshed, else 503, with the reason in JSON:

    {"status": "ok", "node_id": 2718, "servers": 2, "connections": 14}

It runs in a thread of its own, so that it answers also when the event loop hangs. Whoever reaches the address reads
both pages: names of topics, and counts, and nothing else. Nothing can be changed. Connections that are silent are
closed after ten seconds. There are 32 at most: another one is closed at once, or takes the place of one that has been
open for ten seconds. A host has 24 of them at most. `kafkalog metrics` and `follow` serve their pages with the same
bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from pyspark_kafkalog.server.config import Address
from pyspark_kafkalog.server.process.workers import naming
from pyspark_kafkalog.server.request_errors import BoundedLog
from pyspark_kafkalog.server.sending import shut_down
from pyspark_kafkalog.threads import start

_TURN_S: Final = 0.5
#: An event loop that has not turned for so long hangs.
_HANGS_AFTER_MS: Final = 10_000
_CONNECTIONS_MAX: Final = 32
_OF_HOST_MAX: Final = 24
_SILENT_MAX_S: Final = 10
#: How long a new connection waits for one that was ended.
_ROOM_MAX_S: Final = 1.0


class StatusPage:
    """Serves the pages at `address`. `check` raises OSError if the root cannot be used; /health shows the `facts`."""

    def __init__(
        self,
        address: Address,
        registry: CollectorRegistry,
        *,
        check: Callable[[], None],
        facts: Callable[[], Mapping[str, Any]],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._address = address
        self._metrics = make_wsgi_app(registry)
        self._check = check
        self._facts = facts
        self._monotonic_ms = monotonic_ms
        self._turned_ms = monotonic_ms()
        self._log = BoundedLog(logging.getLogger(__name__), monotonic_ms)
        self._task: asyncio.Task[None] | None = None
        self._close: Callable[[], None] | None = None

    async def start(self) -> None:
        """Listen. Raises OSError, which names the address, if that is in use."""
        self.port, self._close = start_pages(self._address, self._answer)
        self._task = asyncio.create_task(self._turn())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._close is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._close)

    async def _turn(self) -> None:
        while True:
            self._turned_ms = self._monotonic_ms()
            await asyncio.sleep(_TURN_S)

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        """Whether the server can do its work, and what /health shows."""
        silent_ms = self._monotonic_ms() - self._turned_ms
        if silent_ms > _HANGS_AFTER_MS:
            return False, {"status": f"the event loop has not turned for {silent_ms} ms"}
        try:
            self._check()
        except OSError as error:
            # The error names the server's files, and the page has no authentication.
            self._log.warning("/health answers 503: %s", error)
            return False, {"status": "the log directory cannot be read: the server's log says why"}
        return True, {"status": "ok", **self._facts()}

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return cast("Iterable[bytes]", self._metrics(environ, start_response))
        if path != "/health":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"/metrics or /health\n"]
        is_healthy, facts = self.health()
        status = "200 OK" if is_healthy else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(facts).encode() + b"\n"]


def start_pages(address: Address, answer: Callable[..., Any]) -> tuple[int, Callable[[], None]]:
    """Serve the WSGI application `answer` in a thread; returns the port, and what ends it.

    Raises OSError, which names the address, if it cannot be listened on.
    """
    with naming(address):
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        server_class: type[_BoundedServer] = type("_Server", (_BoundedServer,), {"address_family": family})
        server = make_server(address.host, address.port, answer, server_class, handler_class=_QuietHandler)
    thread = threading.Thread(target=server.serve_forever, name="kafkalog-status", daemon=True)
    try:
        start(thread)
    except BaseException:
        server.server_close()
        raise

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return int(server.server_port), close


class _BoundedServer(ThreadingWSGIServer):
    """A thread for each connection, up to a number. Beyond it, a connection that takes long makes room."""

    request_queue_size = _CONNECTIONS_MAX

    def __init__(self, *args: Any, **options: Any) -> None:
        self._free = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._open: dict[Any, tuple[float, str]] = {}  # since when and of which host, the oldest first
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        host = client_address[0]
        of_host = [each for each, (_, owner) in tuple(self._open.items()) if owner == host]
        if len(of_host) >= _OF_HOST_MAX:
            has_room = self._make_room(of_host)
        else:
            has_room = self._free.acquire(blocking=False) or self._make_room(tuple(self._open))
        if not has_room:
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic(), host
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._ended(request)
            raise

    def _make_room(self, requests: Sequence[Any]) -> bool:
        """End the oldest of them if it takes too long: one that sends a byte now and then is not silent."""
        request = requests[0] if requests else None
        began_s, _ = self._open.get(request, (math.inf, ""))
        if request is None or time.monotonic() - began_s < _SILENT_MAX_S:
            return False
        shut_down(request)
        return self._free.acquire(timeout=_ROOM_MAX_S)

    def _ended(self, request: Any) -> None:
        self._open.pop(request, None)
        self._free.release()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is silent or leaves is no news."""


class _QuietHandler(WSGIRequestHandler):
    timeout = _SILENT_MAX_S

    def log_message(self, format: str, *args: object) -> None:
        pass
