"""Clients that do not keep to the protocol, and one that does, which measures how long it waits beside them."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from patience import wait_until
from simulations.random_messages import RandomMessages

from pyspark_kafkalog.protocol.api import APIS, Api, encode_request, joined
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pyspark_kafkalog.record.reference import Record, encode_batch

HUGE: Final = (
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80" * 9 + b"\x01",
    b"\x7f\xff\xff\xff",
    b"\xff" * 4,
)
#: A version of Produce and of Fetch that names topics.
NAMED: Final = 12
TOPIC: Final = "beside"


def sized(body: bytes) -> bytes:
    """A frame with its size."""
    return struct.pack(">i", len(body)) + body


def frame_of(api: Api, version: int, message: ApiMessage) -> bytes:
    """The frame of a request, behind its size."""
    return joined(encode_request(api, version, 1, "hostile", message))[4:]


def drawn_frame(source: random.Random) -> bytes:
    """A valid request of any API and version, as bytes behind its size."""
    api = source.choice(tuple(APIS.values()))
    version = source.choice(api.versions)
    message = RandomMessages(source).draw(api.request, version)
    assert isinstance(message, ApiMessage)
    return frame_of(api, version, message)


def mutated(source: random.Random, frame: bytes) -> bytes:
    """The frame with a damage: a huge number, bytes that are missing, or others."""
    at = source.randrange(len(frame))
    put = source.choice((*HUGE, b"", b"\0", source.randbytes(2)))
    return source.choice((frame[:at], frame[:at] + put + frame[at + source.choice((0, 1, len(put))) :]))


def produce_of(topic: str, records: bytes, *, acks: int = -1) -> ProduceRequest:
    """A Produce request with one batch for partition 0."""
    partition = PartitionProduceData(index=0, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=(TopicProduceData(name=topic, partition_data=(partition,)),)
    )


def fetch_of(topic: str, offset: int, *, max_wait_ms: int, max_bytes: int = 1 << 20) -> FetchRequest:
    """A Fetch request for partition 0."""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=(FetchTopic(topic=topic, partitions=(partition,)),),
    )


def batch_of(value: bytes) -> bytes:
    """A batch of one record."""
    return encode_batch([Record(offset=0, timestamp_ms=1, key=None, value=value, headers=())], base_offset=0)


class Witness:
    """A well-behaved client of its own thread: produces a record and fetches it, in rounds that it counts.

    A round that waits longer than the client's time-out is an error, which the end of the block raises.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self.error: Exception | None = None

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None and error is None:
            raise self.error

    def _run(self) -> None:
        try:
            with WireClient.connect("127.0.0.1", self._port, client_id="beside", timeout_s=30) as client:
                while not self._stop.wait(0.01):
                    self._round(client)
                    self.rounds += 1
        except Exception as error:
            self.error = error

    def _round(self, client: WireClient) -> None:
        value = b"%d" % self.rounds
        answer = client.call(produce_of(TOPIC, batch_of(value)), ProduceResponse, version=NAMED)
        produced = answer.responses[0].partition_responses[0]
        assert produced.error_code == 0, produced
        fetched = client.call(fetch_of(TOPIC, produced.base_offset, max_wait_ms=1000), FetchResponse, version=NAMED)
        records = fetched.responses[0].partitions[0].records
        assert value in bytes(records or b"")  # type: ignore[arg-type]  # a client's records are bytes

    def wait_for_round(self) -> None:
        """Wait until it has been served once more."""
        before = self.rounds
        wait_until(lambda: self.rounds > before or self.error, "a round beside the attack")


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        yield sock


def answer_or_end(sock: socket.socket, seconds_max: float = 10.0) -> bytes:
    """What the server sends, up to 64 KiB; nothing if it closes the connection. Raises TimeoutError."""
    sock.settimeout(seconds_max)
    try:
        return sock.recv(1 << 16)
    except ConnectionError:
        return b""


def resident_bytes(pid: int) -> int:
    """The memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


def descriptors(pid: int) -> int:
    """The open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
