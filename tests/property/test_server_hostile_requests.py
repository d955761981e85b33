"""Valid and damaged requests of all APIs at a running server: none is a defect, and none keeps it from serving."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from pathlib import Path

import pytest
from hostile_clients import answer_or_end, connected, drawn_frame, frame_of, mutated, sized
from tiers import SEED, examples

from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.messages.cluster import ApiVersionsRequest
from pyspark_kafkalog.server.run import serve


@pytest.mark.slow
def test_no_request_is_a_defect_and_the_server_serves_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    print(f"KAFKALOG_SEED={SEED}")
    source = random.Random(SEED)
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
    assert [each.getMessage() for each in caplog.records] == []
