"""Responses of memory and slices of files over a socket: every byte once and in order, however slow the peer is."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import PATIENCE_S

from pyspark_kafkalog.metadata.messages.schema import Piece
from pyspark_kafkalog.server import sending
from pyspark_kafkalog.server.sending import FileSlice, OpenFile, SendError, SocketTransport, send_pieces

CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = socket.create_connection(server.getsockname())
        sender, _ = server.accept()
    sender.setblocking(False)
    receiver.setblocking(False)
    with sender, receiver:
        yield sender, receiver


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(CONTENT)
    return path


def exchange(pair: tuple[socket.socket, socket.socket], executor: ThreadPoolExecutor, pieces: Sequence[Piece]) -> bytes:
    """What the receiver gets until the sender closes."""
    sender, receiver = pair

    async def send() -> None:
        await send_pieces(SocketTransport(sender, executor), pieces)
        sender.shutdown(socket.SHUT_WR)

    async def receive() -> bytes:
        loop = asyncio.get_running_loop()
        received = bytearray()
        while data := await loop.sock_recv(receiver, 1 << 16):
            received += data
        return bytes(received)

    async def both() -> bytes:
        _, received = await asyncio.wait_for(asyncio.gather(send(), receive()), PATIENCE_S)
        return received

    return asyncio.run(both())


def test_pieces_of_memory_and_files_arrive_in_order(
    pair: tuple[socket.socket, socket.socket], executor: ThreadPoolExecutor, segment: Path
) -> None:
    file = OpenFile(segment)
    pieces: list[Piece] = [
        b"head",
        memoryview(b"fields"),
        FileSlice(file, 100, 5000),
        b"",
        FileSlice(file, 0, 0),
        bytearray(b"tags"),
        FileSlice(file, 7, 1),
    ]
    expected = b"headfields" + CONTENT[100:5100] + b"tags" + CONTENT[7:8]
    assert exchange(pair, executor, pieces) == expected


def test_response_larger_than_all_socket_buffers_arrives_whole(
    pair: tuple[socket.socket, socket.socket], executor: ThreadPoolExecutor, segment: Path
) -> None:
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
    file = OpenFile(segment)
    whole = FileSlice(file, 0, len(CONTENT))
    pieces: list[Piece] = [CONTENT, whole, memoryview(CONTENT)[1:], FileSlice(file, 3, 100_000)]
    assert exchange(pair, executor, pieces) == CONTENT * 2 + CONTENT[1:] + CONTENT[3:100_003]


def test_more_buffers_than_one_call_takes_are_sent_in_several(
    pair: tuple[socket.socket, socket.socket], executor: ThreadPoolExecutor
) -> None:
    pieces = [b"%06d" % number for number in range(3 * sending.BUFFERS_MAX + 1)]
    assert exchange(pair, executor, pieces) == b"".join(pieces)


@pytest.mark.parametrize("is_cached", [True, False])
def test_slice_of_several_chunks_arrives_whether_it_is_cached_or_not(
    pair: tuple[socket.socket, socket.socket],
    executor: ThreadPoolExecutor,
    segment: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_cached: bool,
) -> None:
    monkeypatch.setattr(sending, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(sending, "is_cached", lambda fd, position: is_cached)
    assert exchange(pair, executor, [FileSlice(OpenFile(segment), 11, 123_456)]) == CONTENT[11:123_467]


def test_file_shorter_than_its_slice_is_an_error_not_a_short_frame(
    pair: tuple[socket.socket, socket.socket], executor: ThreadPoolExecutor, segment: Path
) -> None:
    beyond = FileSlice(OpenFile(segment), len(CONTENT) - 10, 20)
    with pytest.raises(SendError, match=f"ends at byte {len(CONTENT)}"):
        exchange(pair, executor, [b"head", beyond])
    with pytest.raises(SendError, match=f"ends at byte {len(CONTENT)}"):
        beyond.read()


def test_peer_that_has_gone_is_an_error(
    pair: tuple[socket.socket, socket.socket], executor: ThreadPoolExecutor, segment: Path
) -> None:
    sender, receiver = pair
    receiver.close()

    async def send() -> None:
        transport = SocketTransport(sender, executor)
        for _ in range(1000):
            await send_pieces(transport, [CONTENT, FileSlice(OpenFile(segment), 0, len(CONTENT))])

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        asyncio.run(asyncio.wait_for(send(), PATIENCE_S))


def test_cancelled_send_leaves_no_writer_in_the_loop(
    pair: tuple[socket.socket, socket.socket], executor: ThreadPoolExecutor
) -> None:
    sender, _ = pair

    async def cancel() -> bool:
        task = asyncio.create_task(send_pieces(SocketTransport(sender, executor), [CONTENT * 100]))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return asyncio.get_running_loop().remove_writer(sender.fileno())

    assert asyncio.run(cancel()) is False


def test_file_stays_open_while_a_slice_refers_to_it_though_deleted(segment: Path) -> None:
    kept = FileSlice(OpenFile(segment), 5, 10)
    descriptor = kept.file.fd
    segment.unlink()
    assert kept.read() == CONTENT[5:15]
    del kept
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_byte_just_written_is_cached_or_the_file_system_cannot_tell(segment: Path) -> None:
    file = OpenFile(segment)
    assert isinstance(sending.is_cached(file.fd, 0), bool)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sending.is_cached(-1, 0)
