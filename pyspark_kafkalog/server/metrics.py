"""What a server has done, and the HTTP end point that shows it: `/metrics` for Prometheus, `/health` for supervisors.

Metrics have the names that the usual rules of Prometheus' JMX exporter give to a broker's beans:

    kafka_network_requestmetrics_requests_total{request,version}     kafka.network:type=RequestMetrics,
                                                                     name=RequestsPerSec
    kafka_network_requestmetrics_totaltimems_*{request}              …,name=TotalTimeMs, as a histogram
    kafka_network_requestmetrics_errors_total{request,error}         …,name=ErrorsPerSec
    kafka_server_brokertopicmetrics_messagesin_total{topic}          kafka.server:type=BrokerTopicMetrics,
                                                                     name=MessagesInPerSec
    kafka_server_brokertopicmetrics_bytesin_total{topic}             …,name=BytesInPerSec
    kafka_server_brokertopicmetrics_bytesout_total{topic}            …,name=BytesOutPerSec
    kafka_server_brokertopicmetrics_failedproducerequests_total{topic}
    kafka_server_socketservermetrics_connection_count                kafka.server:type=socket-server-metrics
    kafka_network_requestchannel_requestbytes                        bytes of the requests in memory
    kafka_controller_kafkacontroller_activebrokercount               live servers
    kafka_server_fetchsessioncache_numincrementalfetchsessions       kafka.server:type=FetchSessionCache,
                                                                     name=NumIncrementalFetchSessions
    kafka_server_fetchsessioncache_numincrementalfetchpartitionscached
    kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total
    kafkalog_server_commits_total, kafkalog_server_commit_units_total    commits of this server, and what was in them

Counters begin at 0 with each server; nothing is kept. What clients may name as they like, such as client ids and topics
that do not exist, is no label, and unknown versions of an API are one label.

/health answers 200 while the event loop turns and the root can be refreshed, else 503, with the reason in JSON:

    {"status": "ok", "node_id": 2718, "servers": 2, "connections": 14}

The end point runs in a thread of its own, so that it answers also when the event loop hangs. Every host that reaches
the address reads both pages: names of topics, and counts, and nothing else. Nothing can be changed. Silent connections
are closed after ten seconds. There are 32 at most: another one is closed at once, or takes the place of one that
has been open for ten seconds. A host has 24 of them at most. `kafkalog metrics` and `follow` serve their pages with the
same bounds.
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
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.config import Address
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSessions
from pyspark_kafkalog.server.request_errors import BoundedLog
from pyspark_kafkalog.server.sending import shut_down
from pyspark_kafkalog.server.workers import naming
from pyspark_kafkalog.threads import start

_ERROR_NAMES: Final = {int(each): each.name for each in ErrorCode}
#: The label of all versions, or of all error codes, that Kafka does not have.
_UNKNOWN: Final = "unknown"
#: Topics that are counted. Topics come and go: of too many, all begin at 0 again, as after a restart.
_TOPICS_MAX: Final = 10_000
_TIME_BUCKETS_MS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000)


class _Requests:
    """What is counted of one API: requests by version, by the bucket of their time (the last: above all), and the time
    of all of them."""

    __slots__ = ("buckets", "total_ms", "versions")

    def __init__(self, versions: Iterable[int]) -> None:
        self.versions: dict[int | str, int] = dict.fromkeys((*versions, _UNKNOWN), 0)
        self.buckets = [0] * (len(_TIME_BUCKETS_MS) + 1)
        self.total_ms = 0.0


class _Topic:
    """What is counted of one topic."""

    __slots__ = ("bytes_in", "bytes_out", "failed", "records_in")

    def __init__(self) -> None:
        self.records_in = self.bytes_in = self.bytes_out = self.failed = 0


class ServerMetrics(Collector):
    """The metrics of one server, in `registry`.

    They are counted in plain integers, as each request counts several of them; a scrape, in its own thread, makes
    Prometheus' families of them.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._requests = {int(api.key): _Requests(api.versions) for api in APIS.values()}
        self._errors: dict[tuple[str, ...], int] = {}
        self._topics: dict[str, _Topic] = {}
        self._commits = self._units = 0
        self.registry.register(self)

    def _topic(self, topic: str) -> _Topic:
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            found = self._topics[topic] = _Topic()
        return found

    def _gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        Gauge(name, meaning, registry=self.registry).set_function(value)

    def watch(
        self, *, connections: Callable[[], float], request_bytes: Callable[[], float], servers: Callable[[], float]
    ) -> None:
        """Add the gauges, whose values are asked for at each scrape, in the scraping thread."""
        self._gauge("kafka_server_socketservermetrics_connection_count", "open connections", connections)
        self._gauge("kafka_network_requestchannel_requestbytes", "bytes of the requests in memory", request_bytes)
        self._gauge("kafka_controller_kafkacontroller_activebrokercount", "live servers", servers)

    def watch_fetch_sessions(self, sessions: FetchSessions) -> None:
        """Add what is known of the fetch sessions at each scrape."""
        prefix = "kafka_server_fetchsessioncache_"
        self._gauge(prefix + "numincrementalfetchsessions", "fetch sessions", lambda: len(sessions))
        self._gauge(
            prefix + "numincrementalfetchpartitionscached",
            "partitions of the fetch sessions",
            lambda: sessions.partitions_count,
        )
        self.registry.register(_Evictions(prefix + "incrementalfetchsessionevictions", sessions))

    # Counting

    def handled(self, api_key: ApiKey, version: int, seconds: float, error_code: int) -> None:
        """A request was answered, with this top-level error code. Clients may ask ApiVersions in any version."""
        of, time_ms = self._requests[int(api_key)], seconds * 1000
        of.versions[version if version in of.versions else _UNKNOWN] += 1
        of.buckets[bisect_left(_TIME_BUCKETS_MS, time_ms)] += 1
        of.total_ms += time_ms
        if error_code:
            key = api_key.name, _ERROR_NAMES.get(error_code, _UNKNOWN)
            self._errors[key] = self._errors.get(key, 0) + 1

    def committed(self, units: int) -> None:
        """A commit was made."""
        self._commits += 1
        self._units += units

    def produced(self, topic: str, *, records: int, size_bytes: int) -> None:
        of = self._topics.get(topic) or self._topic(topic)
        of.records_in += records
        of.bytes_in += size_bytes

    def produce_failed(self, topic: str) -> None:
        self._topic(topic).failed += 1

    def fetched(self, topic: str, *, size_bytes: int) -> None:
        self._topic(topic).bytes_out += size_bytes

    # Scraping

    def collect(self) -> Iterable[Metric]:
        """The families of all counters, without those that are 0."""
        network, topics = "kafka_network_requestmetrics_", "kafka_server_brokertopicmetrics_"
        requests = [(ApiKey(key).name, of) for key, of in self._requests.items()]
        by_version: dict[tuple[str, ...], int] = {
            (name, str(at)): count for name, of in requests for at, count in of.versions.items()
        }
        yield _counted(network + "requests", "requests", ("request", "version"), by_version)
        yield _counted(network + "errors", "error codes answered", ("request", "error"), dict(self._errors))
        times = HistogramMetricFamily(network + "totaltimems", "ms from the request to its answer", labels=("request",))
        for name, of in requests:
            counts = list(accumulate(of.buckets))
            if counts[-1]:
                bounds = (*(str(float(each)) for each in _TIME_BUCKETS_MS), "+Inf")
                times.add_metric([name], list(zip(bounds, counts, strict=True)), of.total_ms)
        yield times
        found = list(self._topics.items())
        for name, meaning, count in _OF_TOPIC:
            yield _counted(topics + name, meaning, ("topic",), {(topic,): count(of) for topic, of in found})
        yield CounterMetricFamily("kafkalog_server_commits", "commits", value=self._commits)
        yield CounterMetricFamily("kafkalog_server_commit_units", "units in the commits", value=self._units)


_OF_TOPIC: Final[Sequence[tuple[str, str, Callable[[_Topic], int]]]] = (
    ("messagesin", "records produced", lambda of: of.records_in),
    ("bytesin", "bytes produced", lambda of: of.bytes_in),
    ("bytesout", "bytes fetched", lambda of: of.bytes_out),
    ("failedproducerequests", "batches that were refused", lambda of: of.failed),
)


def _counted(
    name: str, meaning: str, labels: Sequence[str], counts: Mapping[tuple[str, ...], int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, meaning, labels=labels)
    for values, count in counts.items():
        if count:
            family.add_metric(values, count)
    return family


class _Evictions(Collector):
    """A counter whose value is asked for at each scrape."""

    def __init__(self, name: str, sessions: FetchSessions) -> None:
        self._name = name
        self._sessions = sessions

    def collect(self) -> Iterable[CounterMetricFamily]:
        yield CounterMetricFamily(
            self._name, "fetch sessions that made room for others", value=self._sessions.evictions
        )


_TURN_S: Final = 0.5
#: An event loop that has not turned for so long hangs.
_HANGS_AFTER_MS: Final = 10_000
_CONNECTIONS_MAX: Final = 32
_OF_HOST_MAX: Final = 24
_SILENT_MAX_S: Final = 10
#: How long a new connection waits for one that was ended.
_ROOM_MAX_S: Final = 1.0


class StatusPage:
    """Serves the pages at `address`, which has the port in use after the start.

    `check` raises OSError if the root cannot be used; /health shows the `facts`.
    """

    def __init__(
        self,
        address: Address,
        registry: CollectorRegistry,
        *,
        check: Callable[[], None],
        facts: Callable[[], Mapping[str, Any]],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.address = address
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
        port, self._close = start_pages(self.address, self._answer)
        self.address = replace(self.address, port=port)
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
