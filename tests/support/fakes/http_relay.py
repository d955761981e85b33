"""An HTTP server that stands before a store: counts its requests, delays them, or answers them itself.

It forwards requests unchanged, also the Host header, so that signatures stay valid. Without an upstream it is a store
that gives nothing but the answers that the test has made up.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from patience import PATIENCE_S

_HOP_BY_HOP: Final = ("connection", "keep-alive", "transfer-encoding")
_UPSTREAM_SECONDS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived. kind: its method, LIST for a listing, POST?delete, POST?uploads, POST?uploadId."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        query = parse_qs(self.query, keep_blank_values=True)
        if self.method == "GET" and ("list-type" in query or query.get("comp") == ["list"]):
            return "LIST"
        names = [name for name in ("delete", "uploads", "uploadId") if name in query]
        return f"{self.method}?{names[0]}" if names else self.method


@dataclass(frozen=True, slots=True)
class Answer:
    """sent_bytes: how much of the body is sent before the connection breaks off; None: all of it."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    sent_bytes: int | None = None

    def cut(self) -> Answer:
        """The same answer, which breaks off in the middle of its body."""
        return replace(self, sent_bytes=len(self.body) // 2)


class HttpRelay:
    """Listens on a free port of 127.0.0.1 while it is entered. `requests` counts by `Request.kind`.

    upstream: "http://127.0.0.1:port" or None. latency_seconds is added to each request and may be changed at any time.
    answer: called for each request; what it returns is the answer, None forwards. HANG_UP as an answer closes the
    connection after the request took effect upstream, REFUSE before it is sent there; CUT forwards, and breaks off in
    the middle of the answer.
    """

    HANG_UP: Final = Answer(0)
    REFUSE: Final = Answer(1)
    CUT: Final = Answer(2)

    def __init__(
        self,
        upstream: str | None = None,
        *,
        latency_seconds: float = 0.0,
        answer: Callable[[Request], Answer | None] | None = None,
    ) -> None:
        self.latency_seconds = latency_seconds
        self.answer = answer
        self.requests: Counter[str] = Counter()
        self.log: list[Request] = []
        self._upstream = urlsplit(upstream).netloc if upstream else None
        self._lock = threading.Lock()
        self._is_ending = threading.Event()
        self._server: _Server | None = None

    @property
    def endpoint(self) -> str:
        assert self._server is not None, "the relay is not entered"
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HttpRelay:
        relay = self

        class Handler(_Handler):
            owner = relay

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._is_ending.set()
            self._server.hang_up()
            self._server.server_close()

    def reset(self) -> None:
        """Count from zero."""
        with self._lock:
            self.requests.clear()
            self.log.clear()

    def take(self, request: Request) -> Answer | None:
        with self._lock:
            self.requests[request.kind] += 1
            self.log.append(request)
        if self.latency_seconds:
            self._is_ending.wait(self.latency_seconds)
        return self.answer(request) if self.answer is not None else None

    def connect(self) -> http.client.HTTPConnection | None:
        return http.client.HTTPConnection(self._upstream, timeout=_UPSTREAM_SECONDS_MAX) if self._upstream else None


class _Server(ThreadingHTTPServer):
    """Knows its connections: a client keeps those that are idle, and each has a thread here until it ends."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connections: set[socket.socket] = set()
        self._ended = threading.Condition()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._ended:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._ended:
            self._connections.discard(request)
            self._ended.notify_all()

    def hang_up(self) -> None:
        """End all connections. Called when no new ones are accepted."""
        with self._ended:
            for each in self._connections:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._ended.wait_for(lambda: not self._connections, PATIENCE_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is no news."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, with one of its own to the upstream."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: HttpRelay

    def setup(self) -> None:
        super().setup()
        self._upstream = self.owner.connect()

    def finish(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        target = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.owner.take(Request(self.command, target.path, target.query, dict(self.headers.items()), body))
        if answer in (None, HttpRelay.HANG_UP, HttpRelay.CUT):
            forwarded = self._forward(body)
            answer = forwarded if answer is None else forwarded.cut() if answer is HttpRelay.CUT else answer
        if answer in (HttpRelay.HANG_UP, HttpRelay.REFUSE):
            self.close_connection = True
            return
        self._send(answer)

    def _forward(self, body: bytes) -> Answer:
        assert self._upstream is not None, "there is no upstream and no answer for this request"
        self._upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self._upstream.putheader(name, value)
        self._upstream.endheaders(body or None)
        response = self._upstream.getresponse()
        headers = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP}
        return Answer(response.status, response.read(), headers)

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "content-length" not in {name.lower() for name in answer.headers}:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: answer.sent_bytes])
            self.close_connection = answer.sent_bytes is not None or self.close_connection

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve
