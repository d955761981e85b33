"""Metrics and health over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import socket
import time
from collections.abc import Callable

import pytest
from patience import PATIENCE_S
from prometheus_client import make_wsgi_app

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import FetchPartition
from pyspark_kafkalog.server import metrics as metrics_module
from pyspark_kafkalog.server.config import Address
from pyspark_kafkalog.server.metrics import ServerMetrics, StatusPage, start_pages
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSessions, SessionPartition
from pyspark_kafkalog.server.workers import bound_socket


def pages(metrics: ServerMetrics, *paths: str, check: Callable[[], None] = lambda: None) -> list[tuple[int, str]]:
    """Status and body of the pages of a server with these metrics."""

    async def main() -> list[tuple[int, str]]:
        page = StatusPage(
            Address("127.0.0.1", 0), metrics.registry, check=check, facts=lambda: {"servers": 2}, monotonic_ms=lambda: 0
        )
        await page.start()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                None, lambda: [get(page.address.port, at) for at in paths]
            )
        finally:
            await page.stop()

    return asyncio.run(main())


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_silent_connections_are_bounded_and_the_page_answers_when_they_have_left() -> None:
    def visit(port: int) -> tuple[bytes, int]:
        silent = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(32)]
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as refused:
            received = refused.recv(1)
        for each in silent:
            each.close()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return received, get(port, "/health")[0]
        raise AssertionError("the page does not answer")

    async def main() -> tuple[bytes, int]:
        page = StatusPage(
            Address("127.0.0.1", 0), ServerMetrics().registry, check=lambda: None, facts=dict, monotonic_ms=lambda: 0
        )
        await page.start()
        try:
            return await asyncio.get_running_loop().run_in_executor(None, visit, page.address.port)
        finally:
            await page.stop()

    assert asyncio.run(main()) == (b"", 200)


def test_connection_that_never_ends_its_request_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "_SILENT_MAX_S", 0)
    port, close = start_pages(Address("127.0.0.1", 0), make_wsgi_app(ServerMetrics().registry))
    try:
        begun = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(32)]
        for each in begun:
            each.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert get(port, "/metrics")[0] == 200
        for each in begun:
            each.close()
    finally:
        close()


def test_host_leaves_connections_to_others() -> None:
    port, close = start_pages(Address("127.0.0.1", 0), make_wsgi_app(ServerMetrics().registry))
    address = ("127.0.0.1", port)
    try:
        with contextlib.ExitStack() as opened:
            for _ in range(40):
                opened.enter_context(socket.create_connection(address, PATIENCE_S, source_address=("127.0.0.2", 0)))
            assert get(port, "/metrics")[0] == 200
    finally:
        close()


def test_versions_and_errors_that_kafka_does_not_have_are_one_label() -> None:
    metrics = ServerMetrics()
    metrics.handled(ApiKey.API_VERSIONS, 3, 0.001, ErrorCode.UNSUPPORTED_VERSION)
    for value in range(APIS[ApiKey.API_VERSIONS].versions[-1] + 1, 3000):
        metrics.handled(ApiKey.API_VERSIONS, value, 0.001, value)
    labels = [sample.labels for family in metrics.registry.collect() for sample in family.samples]
    assert {each["version"] for each in labels if "version" in each} == {"3", "unknown"}
    assert {each["error"] for each in labels if "error" in each} <= {"unknown", *ErrorCode.__members__}


def test_metrics_have_the_names_of_a_brokers_beans() -> None:
    metrics = ServerMetrics()
    metrics.watch(connections=lambda: 3, request_bytes=lambda: 0, servers=lambda: 1)
    sessions = FetchSessions(lambda: 7, lambda: 0)
    metrics.watch_fetch_sessions(sessions)
    wanted = SessionPartition(("orders", 0), FetchPartition(), ZERO_UUID, "orders")
    sessions.begin({wanted.key: wanted}, principal="User:ann", uses_topic_ids=False, is_committed=False)
    metrics.handled(ApiKey.FETCH, 17, 0.004, ErrorCode.NONE)
    metrics.handled(ApiKey.HEARTBEAT, 4, 0.001, ErrorCode.REBALANCE_IN_PROGRESS)
    metrics.produced("orders", records=10, size_bytes=700)
    metrics.produce_failed("orders")
    metrics.fetched("orders", size_bytes=70)
    metrics.committed(5)
    ((status, text),) = pages(metrics, "/metrics")
    assert status == 200
    lines = text.splitlines()
    for line in (
        'kafka_network_requestmetrics_requests_total{request="FETCH",version="17"} 1.0',
        'kafka_network_requestmetrics_totaltimems_bucket{le="5.0",request="FETCH"} 1.0',
        'kafka_network_requestmetrics_errors_total{error="REBALANCE_IN_PROGRESS",request="HEARTBEAT"} 1.0',
        'kafka_server_brokertopicmetrics_messagesin_total{topic="orders"} 10.0',
        'kafka_server_brokertopicmetrics_bytesin_total{topic="orders"} 700.0',
        'kafka_server_brokertopicmetrics_bytesout_total{topic="orders"} 70.0',
        'kafka_server_brokertopicmetrics_failedproducerequests_total{topic="orders"} 1.0',
        "kafka_server_socketservermetrics_connection_count 3.0",
        "kafka_server_fetchsessioncache_numincrementalfetchsessions 1.0",
        "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached 1.0",
        "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total 0.0",
        "kafkalog_server_commits_total 1.0",
        "kafkalog_server_commit_units_total 5.0",
    ):
        assert line in lines


def test_health_shows_facts_while_the_root_can_be_used() -> None:
    (health, other) = pages(ServerMetrics(), "/health", "/")
    assert (health[0], json.loads(health[1])) == (200, {"status": "ok", "servers": 2})
    assert other[0] == 404


def test_health_fails_when_the_root_cannot_be_used_and_names_no_path() -> None:
    def check() -> None:
        raise LogDirError("no log directory at /data")

    ((status, text),) = pages(ServerMetrics(), "/health", check=check)
    assert (status, "log directory" in text, "/data" in text) == (503, True, False)


def test_health_fails_when_the_event_loop_hangs() -> None:
    now = [0]
    page = StatusPage(
        Address("127.0.0.1", 0), ServerMetrics().registry, check=lambda: None, facts=dict, monotonic_ms=lambda: now[0]
    )
    now[0] = 10_001
    is_healthy, facts = page.health()
    assert not is_healthy
    assert "10001 ms" in facts["status"]


def test_counters_of_topics_that_come_and_go_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "_TOPICS_MAX", 10)
    metrics = ServerMetrics()
    for number in range(1000):
        metrics.produced(f"t{number}", records=1, size_bytes=2)
        metrics.fetched(f"t{number}", size_bytes=2)
        metrics.produce_failed(f"t{number}")
    samples = [each for metric in metrics.registry.collect() for each in metric.samples if "topic" in each.labels]
    assert 0 < len(samples) <= 4 * 10
    assert {each.labels["topic"] for each in samples} <= {f"t{number}" for number in range(990, 1000)}


def test_address_in_use_is_named_by_the_page_and_by_a_server_that_would_listen_there() -> None:
    with bound_socket(Address("127.0.0.1", 0)) as taken:
        taken.listen()
        address = Address(*taken.getsockname())
        page = StatusPage(address, ServerMetrics().registry, check=lambda: None, facts=dict, monotonic_ms=lambda: 0)
        with pytest.raises(OSError, match=re.escape(str(address))):
            asyncio.run(page.start())
        with pytest.raises(OSError, match=re.escape(str(address))):
            bound_socket(address)
