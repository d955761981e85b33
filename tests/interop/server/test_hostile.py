"""Attacks on a server's process: it stays up and small, attackers get an error or the end, and others are served on."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.hostile_clients import (
    NAMED,
    TOPIC,
    Witness,
    answer_or_end,
    batch_of,
    connected,
    descriptors,
    drawn_frame,
    fetch_of,
    frame_of,
    mutated,
    produce_of,
    resident_bytes,
    sized,
)
from kafka_processes.server_processes import ServerProcess, serving
from patience import wait_until
from tiers import SEED

from pyspark_kafkalog.protocol.api import APIS, ApiKey, encode_request, joined
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.messages.cluster import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.units import MIB

FRAME_MAX = 100 * MIB
QUEUED_MAX = 512 * MIB
#: What commits, sockets and Python take beside the requests.
CONSTANT = 512 * MIB
VERSIONS = sized(frame_of(APIS[ApiKey.API_VERSIONS], 2, ApiVersionsRequest()))


@contextlib.contextmanager
def attacked(root: Path, *, files_max: int | None = None) -> Iterator[ServerProcess]:
    """A server with a topic, beside whose attackers a client produces and consumes. It must end well."""
    print(f"KAFKALOG_SEED={SEED}")
    with serving(root, "--flush", "os", files_max=files_max) as server:
        with WireClient.connect("127.0.0.1", server.port, client_id="setup", timeout_s=30) as client:
            topics = (MetadataRequestTopic(name=TOPIC),)
            client.call(MetadataRequest(topics=topics), MetadataResponse, version=9)
        with Witness(server.port) as witness:
            witness.wait_for_round()
            before = descriptors(server.process.pid)
            yield server
            witness.wait_for_round()
            wait_until(lambda: descriptors(server.process.pid) <= before + 16, "the end of the attackers' connections")
        assert server.stop() == 0
        log = server.log.read_text()
        assert "Traceback" not in log, log[-4000:]
        assert len(log) < 100_000


def garbage(port: int, source: random.Random, count: int) -> None:
    """Random bytes and damaged requests, each of a connection of its own; none may stay without an end."""
    for _ in range(count):
        frame = source.choice((source.randbytes, lambda size: mutated(source, drawn_frame(source))))(50)
        with connected(port) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(source.choice((sized(frame), frame)) or b".")
            sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(TimeoutError):
                answer_or_end(sock, 0.5)


def together(count: int, work: Callable[[], None], watch: Callable[[], None]) -> None:
    """Work in threads, while `watch` is called again and again."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):
        watch()
        time.sleep(0.05)


def test_garbage_and_clients_that_leave_do_not_keep_others_from_being_served(tmp_path: Path) -> None:
    source = random.Random(SEED)
    with attacked(tmp_path / "root") as server:
        garbage(server.port, source, 100)
        with contextlib.ExitStack() as open_sockets:
            for _ in range(50):
                sock = open_sockets.enter_context(connected(server.port))
                sock.sendall(source.choice((b"", b"\0\0", struct.pack(">i", FRAME_MAX) + b"x" * 100)))
            with connected(server.port) as sock:
                sock.sendall(VERSIONS)
                assert answer_or_end(sock)
        assert resident_bytes(server.process.pid) < CONSTANT


@pytest.mark.full
def test_mutated_requests_of_all_apis_are_answered_or_refused(tmp_path: Path) -> None:
    with attacked(tmp_path / "root") as server:
        garbage(server.port, random.Random(SEED), 2000)


@pytest.mark.full
def test_many_maximal_frames_take_bounded_memory(tmp_path: Path) -> None:
    body = sized(frame_of(APIS[ApiKey.PRODUCE], NAMED, produce_of(TOPIC, batch_of(b"x" * (90 * MIB)))))
    with attacked(tmp_path / "root") as server:
        peaks = []

        def send() -> None:
            with connected(server.port) as sock, contextlib.suppress(OSError):
                sock.settimeout(60)
                sock.sendall(body)
                assert sock.recv(100)

        together(24, send, lambda: peaks.append(resident_bytes(server.process.pid)))
        print(f"peak {max(peaks) / MIB:.0f} MiB")
        assert max(peaks) < QUEUED_MAX + CONSTANT


@pytest.mark.full
def test_producer_that_sends_2_gib_in_a_frame_is_cut_off_at_once(tmp_path: Path) -> None:
    with attacked(tmp_path / "root") as server, connected(server.port) as sock:
        sent = 0
        with contextlib.suppress(ConnectionError):
            sock.sendall(struct.pack(">i", 2**31 - 1))
            while sent < 2**31:
                sock.sendall(b"x" * MIB)
                sent += MIB
        assert sent < 64 * MIB


@pytest.mark.full
@pytest.mark.parametrize("codec", [each for each in CODECS if each], ids=lambda each: CompressionType(each).name)
def test_decompression_bombs_are_refused_or_stored_in_bounded_memory(tmp_path: Path, codec: CompressionType) -> None:
    bomb = Record(offset=0, timestamp_ms=1, key=None, value=bytes(200 * MIB))
    batch = encode_batch([bomb], base_offset=0, compression=CompressionType(codec))
    frame = sized(frame_of(APIS[ApiKey.PRODUCE], NAMED, produce_of(TOPIC, batch)))
    with attacked(tmp_path / "root") as server:
        peaks = []

        def send() -> None:
            with connected(server.port) as sock:
                for _ in range(3):
                    sock.sendall(frame)
                    assert answer_or_end(sock, 60)

        together(4, send, lambda: peaks.append(resident_bytes(server.process.pid)))
        print(f"{CompressionType(codec).name}: a frame of {len(frame)} bytes, peak {max(peaks) / MIB:.0f} MiB")
        assert max(peaks) < QUEUED_MAX + CONSTANT


@pytest.mark.full
def test_thousands_of_idle_connections_cost_little_and_are_served(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(7_400, (hard - 500) * 3 // 4)
    with attacked(tmp_path / "root") as server, contextlib.ExitStack() as open_sockets:
        before = resident_bytes(server.process.pid)
        socks = [open_sockets.enter_context(connected(server.port)) for _ in range(count)]
        time.sleep(3)
        each = (resident_bytes(server.process.pid) - before) / count
        print(f"{count} connections, {each:.0f} bytes each")
        assert each < 100_000
        for sock in socks:
            sock.sendall(VERSIONS)
        for sock in socks:
            assert answer_or_end(sock, 60)
        open_sockets.close()


@pytest.mark.full
def test_clients_that_wait_forever_and_leave_are_forgotten(tmp_path: Path) -> None:
    frame = sized(frame_of(APIS[ApiKey.FETCH], NAMED, fetch_of(TOPIC, 1 << 40, max_wait_ms=2**31 - 1)))
    with attacked(tmp_path / "root") as server:
        for _ in range(500):
            with connected(server.port) as sock:
                sock.sendall(frame)


@pytest.mark.full
def test_polls_that_wait_forever_make_room_for_other_requests(tmp_path: Path) -> None:
    """Their frames, most of them client ids, fill all the memory that there is for small requests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    poll = fetch_of(TOPIC, 1 << 40, max_wait_ms=2**31 - 1)
    frame = joined(encode_request(APIS[ApiKey.FETCH], NAMED, 1, "x" * 32_000, poll))
    with contextlib.ExitStack() as limits:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        limits.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with attacked(tmp_path / "root") as server, contextlib.ExitStack() as open_sockets:
            for _ in range(min(QUEUED_MAX // 4 // len(frame) + 500, hard - 500)):
                open_sockets.enter_context(connected(server.port)).sendall(frame)
            time.sleep(3)
            with connected(server.port) as sock:
                sock.sendall(VERSIONS)
                assert answer_or_end(sock, 60)
            assert resident_bytes(server.process.pid) < QUEUED_MAX + CONSTANT
            open_sockets.close()


@pytest.mark.full
def test_clients_that_take_no_records_do_not_hold_up_others(tmp_path: Path) -> None:
    produce = sized(frame_of(APIS[ApiKey.PRODUCE], NAMED, produce_of(TOPIC, batch_of(b"x" * 900_000))))
    fetch = sized(frame_of(APIS[ApiKey.FETCH], NAMED, fetch_of(TOPIC, 0, max_wait_ms=0, max_bytes=50 * MIB)))
    with attacked(tmp_path / "root") as server:
        with connected(server.port) as sock:
            for _ in range(50):
                sock.sendall(produce)
                assert answer_or_end(sock, 60)
        with contextlib.ExitStack() as open_sockets:
            socks = [open_sockets.enter_context(connected(server.port)) for _ in range(200)]
            for sock in socks:
                sock.sendall(fetch)
            time.sleep(3)


@pytest.mark.full
def test_connections_leave_descriptors_for_files_and_are_taken_again_later(tmp_path: Path) -> None:
    with attacked(tmp_path / "root", files_max=128) as server:
        with contextlib.ExitStack() as open_sockets:
            for _ in range(300):
                open_sockets.enter_context(connected(server.port))
            time.sleep(2)
        time.sleep(1)
        with connected(server.port) as sock:
            sock.sendall(VERSIONS)
            assert answer_or_end(sock, 60)
