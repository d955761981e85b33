"""What a request costs `kafkalog serve`: microseconds of CPU for a Produce and a Fetch, by the server's threads.

    python benchmarks/bench_requests.py [--requests N] [--batch-bytes N] [--connections N] [--in-flight N] ...

A process of its own sends record batches that it has made before, as many at once as a Java producer does, and takes
the answers. Then the batches are read as a Java consumer reads them. Nothing of the client is counted, so the figures
hold on a busy machine too; the rate that stands beside them does not. A commit takes all Produce requests that wait,
so each of them costs less the more of them there are: their number a commit stands there as well.

examples:
  python benchmarks/bench_requests.py
  python benchmarks/bench_requests.py --batch-bytes 262144 --codec lz4 --requests 5000
  python benchmarks/bench_requests.py --connections 8 --partitions 4 --flush fsync --workers 2
"""

from __future__ import annotations

import argparse
import re
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from bench_runs import commits_in
from kafka_processes.server_processes import serving

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.protocol.api import APIS, ApiKey, decode_response, encode_request, joined
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.messages.cluster import MetadataRequest, MetadataResponse
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
from pyspark_kafkalog.record.codecs.codec import CODEC_NAMES, codec_named
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, BASE_SEQUENCE_AT, CRC_AT, crc32c
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches
from pyspark_kafkalog.server.config import Address

_TOPIC: Final = "requests"
_CLIENT: Final = "bench-requests"
_WARM_UP_REQUESTS: Final = 500
_READY_MAX_S: Final = 30
_PRODUCE: Final = APIS[ApiKey.PRODUCE]
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_CORRELATION_ID_AT: Final = 8
_RECEIVE_BYTES: Final = 64 << 10
_FIRST_PRODUCER_ID: Final = 1000
_SEQUENCES: Final = 1 << 31
#: As Java consumers have it: max.partition.fetch.bytes, fetch.max.bytes.
_PARTITION_FETCH_BYTES: Final = 1 << 20
_FETCH_BYTES: Final = 50 << 20


class Frames:
    """The Produce requests of one connection: a batch for each of its partitions, with sequences if idempotent."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        size = options.record_bytes
        self._count = max(1, options.batch_bytes // (size + 10))
        # A tenth of each value changes from record to record.
        values = [b"%0*d" % (size // 10, at) + b"x" * (size - size // 10) for at in range(self._count)]
        batch = encode_batch(
            [Record(offset=at, timestamp_ms=now_ms, key=None, value=each) for at, each in enumerate(values)],
            compression=codec_named(options.codec).compression_type,
            producer_id=_FIRST_PRODUCER_ID + number if options.idempotent else -1,
            producer_epoch=0 if options.idempotent else -1,
            base_sequence=0 if options.idempotent else -1,
        )
        first = number * options.partitions
        partitions = tuple(
            PartitionProduceData(index=each, records=batch) for each in range(first, first + options.partitions)
        )
        topic = TopicProduceData(topic_id=options.topic_id, partition_data=partitions)
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(topic,))
        self._version = _PRODUCE.versions[-1]
        self._frame = bytearray(joined(encode_request(_PRODUCE, self._version, 0, _CLIENT, request)))
        self._batches_at = [match.start() for match in re.finditer(re.escape(batch), self._frame)]
        assert len(self._batches_at) == options.partitions
        self._batch_bytes = len(batch)
        self._is_idempotent = options.idempotent

    def next(self, number: int) -> bytes:
        """The request with this correlation id, which counts from 0."""
        frame = self._frame
        _INT32.pack_into(frame, _CORRELATION_ID_AT, number)
        if self._is_idempotent:
            for at in self._batches_at:
                _INT32.pack_into(frame, at + BASE_SEQUENCE_AT, number * self._count % _SEQUENCES)
                crc = crc32c(memoryview(frame)[at + ATTRIBUTES_AT : at + self._batch_bytes])
                _UINT32.pack_into(frame, at + CRC_AT, crc)
        return bytes(frame)

    def check(self, answer: bytes, number: int) -> None:
        """Raise SystemExit unless this is the answer to the request with that number, and reports no error."""
        correlation_id, response = decode_response(_PRODUCE, self._version, answer, ProduceResponse)
        codes = {each.error_code for topic in response.responses for each in topic.partition_responses}
        if correlation_id != number or codes != {0}:
            raise SystemExit(f"expected the answer to request {number} without errors, found {response}")


class Producer:
    """One connection with some requests under way."""

    def __init__(self, address: Address, frames: Frames, in_flight: int) -> None:
        self._socket = socket.create_connection((address.host, address.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = frames
        self._in_flight = in_flight
        self._due = 0
        self._sent = 0
        self._answered = 0
        self._received = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_done(self) -> bool:
        return self._answered == self._due

    def begin(self, requests: int) -> None:
        """Send the first of so many more requests."""
        self._due += requests
        self._send()

    def _send(self) -> None:
        count = min(self._in_flight - (self._sent - self._answered), self._due - self._sent)
        if count > 0:
            self._socket.sendall(b"".join(self._frames.next(self._sent + at) for at in range(count)))
            self._sent += count

    def receive(self) -> None:
        """Take the answers that have come, and send as many requests."""
        received = self._socket.recv(_RECEIVE_BYTES)
        if not received:
            raise SystemExit("the server has closed the connection")
        self._received += received
        while len(self._received) >= _INT32.size:
            end = _INT32.size + _INT32.unpack_from(self._received)[0]
            if len(self._received) < end:
                break
            self._frames.check(self._received[_INT32.size : end], self._answered)
            self._received = self._received[end:]
            self._answered += 1
        self._send()


def run_load(options: argparse.Namespace) -> None:
    """The process of the client: warms up, says so, waits for a line, sends the rest, says so."""
    addresses = [Address.parse(each) for each in options.load.split(",")]
    producers = [
        Producer(addresses[each % len(addresses)], Frames(options, each), options.in_flight)
        for each in range(options.connections)
    ]
    _produce(producers, _WARM_UP_REQUESTS)
    print("warm", flush=True)
    sys.stdin.readline()
    _produce(producers, options.requests)
    print("done", flush=True)


def _produce(producers: Sequence[Producer], requests: int) -> None:
    with selectors.DefaultSelector() as selector:
        for each in producers:
            each.begin(max(requests // len(producers), 1))
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, Producer)
                key.fileobj.receive()
                if key.fileobj.is_done:
                    selector.unregister(key.fileobj)


def fetch_all(address: Address, topic_id: str, partitions: int) -> int:
    """Read all partitions from the start, as a consumer that asks again when it is answered; the number of answers."""
    offsets = dict.fromkeys(range(partitions), 0)
    with WireClient.connect(address.host, address.port, client_id="bench-requests", timeout_s=60) as client:
        client.negotiate()
        count = 0
        while True:
            asked = tuple(
                FetchPartition(partition=each, fetch_offset=at, partition_max_bytes=_PARTITION_FETCH_BYTES)
                for each, at in offsets.items()
            )
            topics = (FetchTopic(topic_id=topic_id, partitions=asked),)
            request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=_FETCH_BYTES, topics=topics, session_epoch=-1)
            found = False
            for each in client.call(request, FetchResponse).responses[0].partitions:
                assert isinstance(each.records, memoryview)
                batches = scan_batches(as_bytes_array(each.records), file="<answer>").batches
                if len(batches):
                    offsets[each.partition_index] = int(batches["last_offset"][-1]) + 1
                    found = True
            count += 1
            if not found:
                return count


class Threads:
    """The CPU time of a server's threads, in seconds: of the event loop, which is the main thread, and of the others.

    Workers count together.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self.loop_s = sum(_thread_s(Path(f"/proc/{pid}/task/{pid}")) for pid in pids)
        every = sum(_thread_s(task) for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
        self.others_s = every - self.loop_s


def _thread_s(task: Path) -> float:
    """proc(5): the first number of schedstat is the time on a CPU in ns."""
    return int(task.joinpath("schedstat").read_text().split()[0]) / 1e9


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _topic_id(bootstrap: Address, servers: int) -> tuple[str, list[str]]:
    """The id of the topic, and the addresses of the servers once all of them are known."""
    deadline = time.monotonic() + _READY_MAX_S
    while time.monotonic() < deadline:
        with WireClient.connect(bootstrap.host, bootstrap.port, client_id=_CLIENT, timeout_s=60) as client:
            client.negotiate()
            described = client.call(MetadataRequest(topics=None), MetadataResponse)
        if len(described.brokers) == servers:
            found = next(each for each in described.topics if each.name == _TOPIC)
            return found.topic_id, [f"{each.host}:{each.port}" for each in described.brokers]
        time.sleep(0.2)
    raise SystemExit(f"expected {servers} servers, found {len(described.brokers)}")


def measure(title: str, pids: Sequence[int], work: Callable[[], int]) -> int:
    """Print the CPU of a request of `work`, which returns how many it has made."""
    before, began = Threads(pids), time.monotonic()
    count = work()
    seconds, after = time.monotonic() - began, Threads(pids)
    loop_us = (after.loop_s - before.loop_s) / count * 1e6
    others_us = (after.others_s - before.others_s) / count * 1e6
    print(
        f"{title}: {loop_us + others_us:7.1f} us CPU a request: event loop {loop_us:7.1f} us, other threads "
        f"{others_us:7.1f} us  ({count} requests, {count / seconds:.0f}/s)",
        flush=True,
    )
    return count


def run(options: argparse.Namespace, root: Path) -> None:
    partitions = options.connections * options.partitions
    LogDir.create(root).create_topic(_TOPIC, partitions)
    workers = ("--workers", str(options.workers)) if options.workers > 1 else ()
    with serving(root, "--flush", options.flush, *workers) as server:
        address = Address(server.host, server.port)
        topic_id, addresses = _topic_id(address, options.workers)
        pids = _children(server.process.pid) if options.workers > 1 else [server.process.pid]
        command = [sys.executable, *sys.argv, "--load", ",".join(addresses), "--topic-id", topic_id]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        to_client, from_client = client.stdin, client.stdout
        assert to_client is not None
        assert from_client is not None

        def produce() -> int:
            to_client.write("\n")
            to_client.flush()
            from_client.readline()
            return int(options.requests) // int(options.connections) * int(options.connections)

        try:
            from_client.readline()
            before = commits_in(root)
            count = measure("produce", pids, produce)
            print(f"produce: {count / (commits_in(root) - before):7.1f} requests a commit", flush=True)
            measure("fetch  ", pids, lambda: fetch_all(address, topic_id, partitions))
        finally:
            client.kill()
            client.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="Produce requests (default: 20000)")
    parser.add_argument("--connections", type=int, default=1, help="clients, which write to different partitions")
    parser.add_argument("--in-flight", type=int, default=5, help="requests of a client at once (default: 5)")
    parser.add_argument("--partitions", type=int, default=1, help="of a client, a batch in each request for each")
    parser.add_argument("--batch-bytes", type=int, default=16 << 10, help="before compression (default: 16384)")
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--codec", choices=CODEC_NAMES, default="none")
    parser.add_argument("--plain", dest="idempotent", action="store_false", help="producers without ids")
    parser.add_argument("--flush", choices=("os", "fsync"), default="os")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--scratch", type=Path, help="a directory on the disk to be measured")
    parser.add_argument("--load", help=argparse.SUPPRESS)  # the client process: where it connects to
    parser.add_argument("--topic-id", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load is not None:
        run_load(options)
        return
    home = Path(tempfile.mkdtemp(prefix="kafkalog-bench-", dir=options.scratch))
    try:
        run(options, home / "root")
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
