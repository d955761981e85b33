"""Valid and damaged requests of all APIs at a running server: none is a defect, and none keeps it from serving."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import struct
from pathlib import Path

import pytest
from fakes.hostile_clients import answer_or_end, connected, drawn_frame, frame_of, mutated, sized
from kafka_processes.served import serve
from tiers import SEED, examples

from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.messages.cluster import ApiVersionsRequest
from pyspark_kafkalog.server import run
from pyspark_kafkalog.server.metrics import ServerMetrics


@pytest.mark.slow
def test_no_request_is_a_defect_and_the_server_serves_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"KAFKALOG_SEED={SEED}")
    source = random.Random(SEED)
    metrics = ServerMetrics()
    monkeypatch.setattr(run, "ServerMetrics", lambda: metrics)
    with caplog.at_level(logging.ERROR), serve(tmp_path / "root") as bootstrap:
        port = int(bootstrap.rpartition(":")[2])
        for _ in range(examples(1500)):
            frame = drawn_frame(source)
            with connected(port) as sock, contextlib.suppress(ConnectionError):
                sock.sendall(sized(mutated(source, frame) if source.random() < 0.6 else frame))
                sock.shutdown(socket.SHUT_WR)
                with contextlib.suppress(TimeoutError):
                    answer_or_end(sock, 0.2)  # some wait, such as a JoinGroup
        with connected(port) as sock:
            sock.sendall(sized(frame_of(APIS[ApiKey.API_VERSIONS], 2, ApiVersionsRequest())))
            assert answer_or_end(sock)
        for _ in range(100):
            with connected(port) as sock:  # of ApiVersions any version is answered
                version = source.randrange(1000, 1 << 15)
                sock.sendall(sized(struct.pack(">hhi", ApiKey.API_VERSIONS, version, 1) + source.randbytes(20)))
                answer_or_end(sock)
    assert [each.getMessage() for each in caplog.records] == []
    labels = [sample.labels for family in metrics.registry.collect() for sample in family.samples]
    known = {str(each) for api in APIS.values() for each in api.versions}
    assert {each["version"] for each in labels if "version" in each} <= {*known, "unknown"}
    topics = {"a", "orders", "x" * 127}  # of the names that are drawn, those that a topic can have
    assert {each["topic"] for each in labels if "topic" in each} <= topics
