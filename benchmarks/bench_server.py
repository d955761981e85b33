"""Compares `kafkalog serve` with a real broker on this machine, by Kafka's own tools for performance.

    python benchmarks/bench_server.py [--rounds N] [--only PART[,PART]] [--seconds N] [--scratch DIR]

Parts:
    produce      ProducerPerformance: records of 100 bytes and 1 KiB, without compression and with lz4, the client's
                 default batches and batch.size=262144; the broker as it flushes by default beside --flush os
    consume      ConsumerPerformance over what was produced
    fsync        ProducerPerformance, the broker with log.flush.interval.messages=1 beside --flush fsync
    latency      produce and end to end at 1,000 records a second: p50 and p99
    connections  memory of 1,000 idle connections
    fetch        a Fetch over 500 partitions, and one of a session of 2,000 partitions, without news

The contenders take turns, each on its own data and with a JVM for each run of a tool, whose start is not measured. Nor
are the first five seconds of a producer, in which Java compiles it on the cores that the contender needs. Who begins a
round changes, as the disk still writes what the one before has left to it.
Server and client share the cores of the machine. Quote ratios: machines drift. Beside the rates stand the
seconds of CPU that each of the two used for a gigabyte, or in all: they tell what a rate is bound by, also on a busy
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from bench_runs import process_cpu_s, report_limit
from kafka_processes.java_processes import java
from kafka_processes.oracle import Broker, kafka_lib
from kafka_processes.server_processes import serving

from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pyspark_kafkalog.protocol.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic

PARTS: Final = ("produce", "consume", "fsync", "latency", "connections", "fetch")
_HEAP: Final = "-Xmx512m"
_BROKER_JAVA: Final = ("-Xms1g", "-Xmx1g")
_TOOL_SECONDS_MAX: Final = 300
#: A line every five seconds, and one for the whole run.
_SENT: Final = re.compile(r"^([0-9]+) records sent, ([0-9.]+) records/sec", re.MULTILINE)
_PRODUCE_LATENCY: Final = re.compile(r"([0-9.]+) ms 50th.* ([0-9.]+) ms 99th")
_LARGE: Final = ("batch.size=262144", "linger.ms=5")
_FETCH_PARTITIONS: Final = 500
_SESSION_PARTITIONS: Final = 2000
_FIRST_RUN_MB: Final = 100
_CONSUMED_MB: Final = 200
_IDLE_CONNECTIONS: Final = 1000
_LATENCY_RATE: Final = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """Records of one size, and the client's settings."""

    name: str
    record_bytes: int
    settings: tuple[str, ...]
    ratio_min: float


#: The ratios to the broker's rate that are aimed at: for default batches, for large ones, and with fsync.
_DEFAULT_BATCHES_GOALS: Final = {
    ("100 B", "none"): 1.2,
    ("100 B", "lz4"): 1.0,
    ("1 KiB", "none"): 1.0,
    ("1 KiB", "lz4"): 0.9,
}
_LARGE_BATCHES_GOAL: Final = 1.1
_FSYNC_GOAL: Final = 1.2
PRODUCE: Final = tuple(
    Load(f"{size_name} {codec} {batches}", size, (f"compression.type={codec}", *settings), goal)
    for size_name, size in (("100 B", 100), ("1 KiB", 1024))
    for codec in ("none", "lz4")
    for batches, settings, goal in (
        ("default batches", (), _DEFAULT_BATCHES_GOALS[size_name, codec]),
        ("batch.size=262144", _LARGE, _LARGE_BATCHES_GOAL),
    )
)


def run_tool(main_class: str, *arguments: str) -> str:
    """The output of one of Kafka's tools."""
    command = [java(), _HEAP, "-cp", f"{kafka_lib()}/*", f"org.apache.kafka.tools.{main_class}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS_MAX, check=False)
    if done.returncode:
        raise SystemExit(f"{main_class} failed:\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def produce(bootstrap: str, topic: str, load: Load, megabytes: float, *, throughput: int = -1) -> str:
    """The output of ProducerPerformance."""
    records = int(megabytes * 1_000_000 / load.record_bytes)
    properties = (f"bootstrap.servers={bootstrap}", "acks=all", *load.settings)
    sizes = ("--num-records", str(records), "--record-size", str(load.record_bytes))
    limits = ("--throughput", str(throughput))
    return run_tool("ProducerPerformance", "--topic", topic, *sizes, *limits, "--producer-props", *properties)


def steady_mb_per_s(output: str, load: Load) -> float:
    """MB/s of ProducerPerformance after its first five seconds; of a shorter run, all of it."""
    sent = [(int(records), float(rate)) for records, rate in _SENT.findall(output)]
    if not sent:
        raise SystemExit(f"no rate in {output[-1000:]!r}")
    records, rate = sent[-1]
    seconds = records / rate
    if len(sent) > 1:
        first_records, first_rate = sent[0]
        records, seconds = records - first_records, seconds - first_records / first_rate
    return records * load.record_bytes / seconds / 1e6


def consume_mb_per_s(bootstrap: str, topic: str, records: int) -> float:
    """MB/s of ConsumerPerformance while it fetched, without the time in which it joined its group."""
    arguments = ("--topic", topic, "--messages", str(records), "--bootstrap-server", bootstrap, "--timeout", "60000")
    lines = run_tool("ConsumerPerformance", *arguments).splitlines()
    header = next(each for each in lines if each.startswith("start.time"))  # after warnings of newer versions
    names = [each.strip() for each in header.split(",")]
    values = dict(zip(names, (each.strip() for each in lines[-1].split(",")), strict=True))
    return float(values["fetch.MB.sec"])


class Contenders:
    """A broker and a server that run side by side, idle while the other one works."""

    def __init__(self, scratch: Path, *, fsync: bool) -> None:
        self._closing = contextlib.ExitStack()
        flush = {"log.flush.interval.messages": "1"} if fsync else {}
        settings = {"auto.create.topics.enable": "true", **flush}
        home = Path(tempfile.mkdtemp(dir=scratch))
        broker = self._closing.enter_context(Broker(home / "broker", settings=settings, java_options=_BROKER_JAVA))
        self.server = self._closing.enter_context(serving(home / "log", "--flush", "fsync" if fsync else "os"))
        self.bootstraps: Mapping[str, str] = {"broker": broker.bootstrap, "kafkalog": self.server.bootstrap}
        self._pids = {"broker": broker.pid, "kafkalog": self.server.process.pid}

    def cpu_s(self, name: str) -> float:
        """The CPU time that the contender has used, in seconds."""
        return process_cpu_s(self._pids[name])

    def __enter__(self) -> Contenders:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()


def compare(
    title: str,
    contenders: Contenders,
    measure: Callable[[str, int], float],
    *,
    rounds: int,
    megabytes: float,
    ratio_min: float,
) -> list[str]:
    """Measure MB/s in turns; print medians and the ratio. Returns a line for a miss."""
    names = contenders.bootstraps
    found: dict[str, list[float]] = {name: [] for name in names}
    cpu_s: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in sorted(names, reverse=number % 2 == 0):
            began_s = contenders.cpu_s(name)
            found[name].append(measure(names[name], number))
            cpu_s[name].append((contenders.cpu_s(name) - began_s) * 1000 / megabytes)
    ours, broker = statistics.median(found["kafkalog"]), statistics.median(found["broker"])
    ratio = ours / broker
    verdict = "met" if ratio >= ratio_min else "MISSED"
    print(
        f"{title:<34} kafkalog {ours:8.1f} MB/s   broker {broker:8.1f} MB/s   {ratio:5.2f} x  "
        f"(goal {ratio_min:.2f}: {verdict})   CPU s/GB: {statistics.median(cpu_s['kafkalog']):6.2f} "
        f"and {statistics.median(cpu_s['broker']):6.2f}",
        flush=True,
    )
    return [] if verdict == "met" else [f"{title}: {ratio:.2f} x, goal {ratio_min:.2f}"]


def bench_produce(contenders: Contenders, rounds: int, seconds: float, *, label: str = "produce") -> list[str]:
    missed = []
    for load in PRODUCE:
        topic = load.name.replace(" ", "-").replace("=", "-")
        bootstraps = contenders.bootstraps.values()
        first = [steady_mb_per_s(produce(each, f"{topic}-first", load, _FIRST_RUN_MB), load) for each in bootstraps]
        megabytes = max(first) * seconds

        def measure(bootstrap: str, number: int) -> float:
            return steady_mb_per_s(produce(bootstrap, f"{topic}-{number}", load, megabytes), load)  # noqa: B023

        missed += compare(
            f"{label} {load.name}",
            contenders,
            measure,
            rounds=rounds,
            megabytes=megabytes,
            ratio_min=_FSYNC_GOAL if label == "fsync" else load.ratio_min,
        )
        for each in bootstraps:
            _delete_topics(each, [f"{topic}-{number}" for number in ("first", *range(rounds))])
    return missed


def _delete_topics(bootstrap: str, topics: Sequence[str]) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_topics(list(topics)).values():
        deleted.result(60)


def bench_consume(contenders: Contenders, rounds: int) -> list[str]:
    missed = []
    for load in (each for each in PRODUCE if each.settings[1:]):
        topic = "consume-" + load.name.replace(" ", "-").replace("=", "-")
        records = int(_CONSUMED_MB * 1_000_000 / load.record_bytes)
        for bootstrap in contenders.bootstraps.values():
            produce(bootstrap, topic, load, _CONSUMED_MB)
            consume_mb_per_s(bootstrap, topic, records)
        missed += compare(
            f"consume {load.name}",
            contenders,
            lambda bootstrap, _: consume_mb_per_s(bootstrap, topic, records),  # noqa: B023
            rounds=rounds,
            megabytes=_CONSUMED_MB,
            ratio_min=1.0,
        )
    return missed


def bench_latency(contenders: Contenders, seconds: float) -> list[str]:
    load = Load("latency", 100, ("linger.ms=0",), 0.0)
    for name, bootstrap in contenders.bootstraps.items():
        began_s = contenders.cpu_s(name)
        output = produce(bootstrap, "latency", load, _LATENCY_RATE * seconds * 100 / 1e6, throughput=_LATENCY_RATE)
        found = _PRODUCE_LATENCY.search(output)
        assert found is not None, output
        ends = end_to_end_ms(bootstrap, seconds)
        print(
            f"latency at {_LATENCY_RATE} records/s, {name:<9} produce p50 {float(found.group(1)):6.1f} ms, "
            f"p99 {float(found.group(2)):6.1f} ms;  end to end p50 {ends[0]:6.1f} ms, p99 {ends[1]:6.1f} ms;  "
            f"CPU {contenders.cpu_s(name) - began_s:.2f} s",
            flush=True,
        )
    return []


def end_to_end_ms(bootstrap: str, seconds: float) -> tuple[float, float]:
    """p50 and p99 from the call that sends a record to the call that gives it to a consumer."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = "end-to-end"
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    producer.produce(topic, b"")
    producer.flush(30)
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "fetch.wait.max.ms": 500}
    consumer = Consumer({**settings, "auto.offset.reset": "latest", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, consumer.get_watermark_offsets(TopicPartition(topic, 0))[1])])
    consumer.poll(2)
    count = int(_LATENCY_RATE * seconds)
    times_ms: list[float] = []

    def receive() -> None:
        deadline = time.monotonic() + seconds + 30
        while len(times_ms) < count and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.1):
                if not message.error():
                    times_ms.append((time.perf_counter_ns() - int(message.value())) / 1e6)

    receiving = threading.Thread(target=receive)
    receiving.start()
    begin = time.perf_counter()
    for number in range(count):
        while time.perf_counter() < begin + number / _LATENCY_RATE:
            time.sleep(0.0002)
        producer.produce(topic, str(time.perf_counter_ns()).encode())
        producer.poll(0)
    producer.flush(30)
    receiving.join()
    consumer.close()
    times_ms.sort()
    return times_ms[len(times_ms) // 2], times_ms[math.ceil(len(times_ms) * 0.99) - 1]


def resident_bytes(pid: int) -> int:
    """The memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found.group(1)) * 1024


def bench_connections(contenders: Contenders) -> list[str]:
    pid = contenders.server.process.pid
    before = resident_bytes(pid)
    with contextlib.ExitStack() as closing:
        clients = []
        for _ in range(_IDLE_CONNECTIONS):
            client = closing.enter_context(
                WireClient.connect(contenders.server.host, contenders.server.port, client_id="idle", timeout_s=30)
            )
            client.negotiate()
            clients.append(client)
        used = resident_bytes(pid) - before
    return report_limit(f"memory of {_IDLE_CONNECTIONS} idle connections", used / 1e6, 100, "MB")


def bench_fetch(contenders: Contenders, rounds: int) -> list[str]:
    full, in_session = {}, {}
    for name, bootstrap in contenders.bootstraps.items():
        host, _, port = bootstrap.rpartition(":")
        with WireClient.connect(host, int(port), client_id="bench", timeout_s=60) as client:
            client.negotiate()
            request = _fetch_request(client, bootstrap, "wide", _FETCH_PARTITIONS)
            began_s = contenders.cpu_s(name)
            times_ms = _call_times_ms(client, [request] * (20 * rounds))
            cpu_ms = (contenders.cpu_s(name) - began_s) * 1000 / len(times_ms)
            full[name] = statistics.median(times_ms) - _client_ms(client, request)
            begins = _fetch_request(client, bootstrap, "wider", _SESSION_PARTITIONS).replace(session_epoch=0)
            session_id = client.call(begins, FetchResponse).session_id
            continued = FetchRequest(max_wait_ms=0, min_bytes=0, session_id=session_id)
            requests = [continued.replace(session_epoch=each) for each in range(1, 20 * rounds + 1)]
            began_s = contenders.cpu_s(name)
            times_ms = _call_times_ms(client, requests)
            session_cpu_ms = (contenders.cpu_s(name) - began_s) * 1000 / len(times_ms)
            in_session[name] = statistics.median(times_ms)
        print(
            f"fetch of {_FETCH_PARTITIONS} partitions, {name:<9} {full[name]:6.2f} ms without the client's own "
            f"time, CPU {cpu_ms:6.2f} ms"
        )
        print(
            f"fetch in a session of {_SESSION_PARTITIONS}, {name:<9} {in_session[name]:6.2f} ms, "
            f"CPU {session_cpu_ms:6.2f} ms"
        )
    return [
        *report_limit(f"fetch of {_FETCH_PARTITIONS} partitions", full["kafkalog"], 10, "ms"),
        *report_limit(f"fetch in a session of {_SESSION_PARTITIONS}", in_session["kafkalog"], 4, "ms"),
    ]


def _fetch_request(client: WireClient, bootstrap: str, topic: str, partitions: int) -> FetchRequest:
    """A full request for all partitions of a new topic."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
    asked = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
    deadline = time.monotonic() + 60
    while True:
        (described,) = client.call(asked, MetadataResponse).topics
        if len(described.partitions) == partitions and not any(each.error_code for each in described.partitions):
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"{bootstrap} has no leaders of all partitions of {topic}")
        time.sleep(0.1)
    wanted = tuple(
        FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1 << 20) for each in range(partitions)
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=(FetchTopic(topic=topic, topic_id=described.topic_id, partitions=wanted),),
        session_epoch=-1,
    )


def _call_times_ms(client: WireClient, requests: Sequence[FetchRequest]) -> list[float]:
    times_ms = []
    for each in requests:
        began = time.perf_counter()
        response = client.call(each, FetchResponse)
        times_ms.append((time.perf_counter() - began) * 1000)
        if response.error_code:
            raise SystemExit(f"a Fetch was answered with error {response.error_code}")
    return times_ms


def _client_ms(client: WireClient, request: FetchRequest) -> float:
    """What this client takes to encode the request and to decode a response like its answer."""
    from pyspark_kafkalog.protocol.api import APIS, ApiKey, decode_response, encode_request, encode_response, joined

    response = client.call(request, FetchResponse)
    api, version = APIS[ApiKey.FETCH], client.version(ApiKey.FETCH)
    frame = joined(encode_response(api, version, 1, response))[4:]
    times_ms = []
    for _ in range(20):
        began = time.perf_counter()
        joined(encode_request(api, version, 1, "bench", request))
        decode_response(api, version, frame, FetchResponse)
        times_ms.append((time.perf_counter() - began) * 1000)
    return statistics.median(times_ms)


def run_parts(parts: Sequence[str], scratch: Path, rounds: int, seconds: float) -> Iterator[str]:
    with Contenders(scratch, fsync=False) as contenders:
        if "produce" in parts:
            yield from bench_produce(contenders, rounds, seconds)
        if "consume" in parts:
            yield from bench_consume(contenders, rounds)
        if "latency" in parts:
            yield from bench_latency(contenders, 10)
        if "fetch" in parts:
            yield from bench_fetch(contenders, rounds)
        if "connections" in parts:
            yield from bench_connections(contenders)
    if "fsync" in parts:
        with Contenders(scratch, fsync=True) as contenders:
            yield from bench_produce(contenders, rounds, seconds, label="fsync")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run of a producer (default: 15)")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--scratch", type=Path, default=None, help="a directory on the disk to be measured")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(dir=options.scratch))
    try:
        missed = list(run_parts(options.only.split(","), scratch, options.rounds, options.seconds))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print("\nall goals met" if not missed else "\nmissed:\n  " + "\n  ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
