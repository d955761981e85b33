"""Compares `kafkalog serve --workers N` with a real broker on a machine of many cores, by librdkafka's clients.

    python benchmarks/bench_many_cores.py [--workers N] [--clients N] [--seconds S] [--only PART[,PART]] [--rounds N]

Parts, each with one client and with all of them, a process and a partition each:
    default     producers with batches of 16 KiB, of records of 1 KiB
    large       producers with batches of 256 KiB, of records of 1 KiB
    small       producers with batches of 16 KiB, of records of 100 bytes
    consume     consumers of what producers have just written

Contenders take turns, each on its own data in memory (--scratch). Beside the rates stand the cores that the contender
has used. The clients need cores of their own: as many as there are clients, besides those of the contender.

examples:
  python benchmarks/bench_many_cores.py --only default --workers 8,4,1
  python benchmarks/bench_many_cores.py --contenders kafkalog --seconds 3
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from bench_runs import process_cpu_s
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_processes.oracle import Broker
from kafka_processes.server_processes import serving

_BROKER: Final = "broker"
_JAVA: Final = ("-Xms4g", "-Xmx4g")
_TOPIC_SECONDS_MAX: Final = 60
_FLUSH_SECONDS_MAX: Final = 60
_QUEUE_FULL_POLL_S: Final = 0.001
_MESSAGES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Part:
    """What the clients do, and the ratio to the broker that all of them together are to reach."""

    name: str
    record_bytes: int
    batch_bytes: int
    ratio_min: float
    consumes: bool = False


PARTS: Final = (
    Part("default", 1024, 16 << 10, 0.8),
    Part("large", 1024, 256 << 10, 0.8),
    Part("small", 100, 16 << 10, 1.0),
    Part("consume", 1024, 256 << 10, 1.0, consumes=True),
)


# Clients, each in a process of its own


def run_producer(options: argparse.Namespace) -> None:
    """Says that it is ready, waits for a line, produces, and prints the bytes and the seconds that it took."""
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "enable.idempotence": True,
            "batch.size": options.batch_bytes,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 64 << 10,
            "error_cb": lambda error: failures.append(str(error)),
        }
    )
    value = bytes(range(256)) * (options.record_bytes // 256 + 1)
    value = value[: options.record_bytes]
    producer.produce(options.topic, value, partition=options.partition)
    if producer.flush(_FLUSH_SECONDS_MAX):
        raise SystemExit(f"nothing was acknowledged: {failures}")
    _wait_for_start()
    began, count = time.monotonic(), 0
    end = began + options.seconds
    while time.monotonic() < end:
        for _ in range(256):
            try:
                producer.produce(options.topic, value, partition=options.partition)
                count += 1
            except BufferError:
                producer.poll(_QUEUE_FULL_POLL_S)
        producer.poll(0)
    left = producer.flush(_FLUSH_SECONDS_MAX)
    if left:
        raise SystemExit(f"{left} records were not acknowledged: {failures}")
    print(count * options.record_bytes, time.monotonic() - began, flush=True)


def run_consumer(options: argparse.Namespace) -> None:
    """As `run_producer`, of a consumer that reads its partition from the start, again and again."""
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": f"bench-{options.partition}",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "queued.min.messages": 100_000,
            "enable.partition.eof": True,
        }
    )
    start = TopicPartition(options.topic, options.partition, 0)
    consumer.assign([start])
    if not consumer.consume(1, _TOPIC_SECONDS_MAX):
        raise SystemExit("there is nothing to read")
    _wait_for_start()
    began, size = time.monotonic(), 0
    end = began + options.seconds
    while time.monotonic() < end:
        for each in consumer.consume(_MESSAGES, 1.0):
            if each.error() is None:
                size += len(each.value())
            else:
                consumer.seek(start)
    print(size, time.monotonic() - began, flush=True)


def _wait_for_start() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


# Contenders


@dataclass(frozen=True, slots=True)
class Contender:
    """A broker, or servers; `pids` are all their processes."""

    name: str
    bootstrap: str
    pids: Sequence[int]

    def cpu_s(self) -> list[float]:
        """The CPU that each process has used."""
        return [process_cpu_s(each) for each in self.pids]


@contextlib.contextmanager
def contending(name: str, home: Path) -> Iterator[Contender]:
    """The broker, or so many workers as the name says, with data below `home`."""
    if name == _BROKER:
        with Broker(home, java_options=_JAVA) as broker:
            yield Contender(name, broker.bootstrap, [broker.pid])
        return
    workers = name.partition(" ")[0]
    with serving(home / "log", "--flush", "os", "--workers", workers) as server:
        AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=_TOPIC_SECONDS_MAX)
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        try:
            yield Contender(name, server.bootstrap, [server.process.pid, *map(int, children)])
        finally:
            server.stop()  # the workers too, which write to `home`


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic, and wait until the servers name it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(_TOPIC_SECONDS_MAX)
    while len(admin.list_topics(topic, timeout=_TOPIC_SECONDS_MAX).topics[topic].partitions) < partitions:
        time.sleep(0.1)


def delete_topic(bootstrap: str, topic: str) -> None:
    with contextlib.suppress(KafkaException):
        AdminClient({"bootstrap.servers": bootstrap}).delete_topics([topic])[topic].result(_TOPIC_SECONDS_MAX)


def run_clients(kind: str, bootstrap: str, topic: str, part: Part, count: int, seconds: float) -> float:
    """MB/s of so many clients at the same time."""
    command = [sys.executable, __file__, "--client", kind, "--bootstrap", bootstrap, "--topic", topic]
    command += ["--record-bytes", str(part.record_bytes), "--batch-bytes", str(part.batch_bytes)]
    command += ["--seconds", str(seconds)]
    clients = [
        subprocess.Popen([*command, "--partition", str(each)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for each in range(count)
    ]
    try:
        for each in clients:
            assert each.stdout is not None
            if each.stdout.readline() != "ready\n":
                raise SystemExit("a client has failed")
        for each in clients:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        results = [each.communicate()[0].split() for each in clients]
    finally:
        for each in clients:
            each.kill()
    if not all(results):
        raise SystemExit("a client has failed")
    return sum(float(size) / float(took) for size, took in results) / 1e6


def measure(contender: Contender, part: Part, count: int, seconds: float, number: int) -> tuple[float, list[float]]:
    """MB/s of so many clients, and the cores that each process of the contender has used."""
    topic = f"{part.name}-{count}-{number}"
    create_topic(contender.bootstrap, topic, count)
    try:
        if part.consumes:
            run_clients("produce", contender.bootstrap, topic, part, count, 1.0)
        cpu_s, began = contender.cpu_s(), time.monotonic()
        rate = run_clients("consume" if part.consumes else "produce", contender.bootstrap, topic, part, count, seconds)
        took = time.monotonic() - began
        return rate, [(after - before) / took for before, after in zip(cpu_s, contender.cpu_s(), strict=True)]
    finally:
        delete_topic(contender.bootstrap, topic)


def compare(contenders: Sequence[Contender], part: Part, count: int, options: argparse.Namespace) -> None:
    """Measure the contenders in turns, and print medians; ratios are to the broker."""
    found: dict[str, list[tuple[float, list[float]]]] = {each.name: [] for each in contenders}
    for number in range(options.rounds):
        for each in contenders[:: -1 if number % 2 else 1]:
            found[each.name].append(measure(each, part, count, options.seconds, number))
    rates = {name: statistics.median(rate for rate, _ in runs) for name, runs in found.items()}
    for name, runs in found.items():
        cores = statistics.median(sum(used) for _, used in runs)
        busiest = statistics.median(max(used) for _, used in runs)
        ratio = f"{rates[name] / rates[_BROKER]:5.2f} x" if _BROKER in rates else ""
        goal = f"  (goal {part.ratio_min:.2f})" if ratio and name != _BROKER and count == options.clients else ""
        print(
            f"{part.name:<8} {count:2} clients  {name:<10} {rates[name]:8.1f} MB/s  "
            f"{cores:4.1f} cores, {busiest:.1f} in one process  {ratio}{goal}"
        )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="8", help="numbers of workers, with commas between (default: 8)")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--only", default=",".join(each.name for each in PARTS), help="parts, with commas between")
    parser.add_argument("--contenders", default="broker,kafkalog")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run (default: 5)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"))
    for name in ("--client", "--bootstrap", "--topic"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--partition", "--record-bytes", "--batch-bytes"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        (run_consumer if options.client == "consume" else run_producer)(options)
        return
    home = Path(tempfile.mkdtemp(prefix="kafkalog-bench-", dir=options.scratch))
    try:
        with contextlib.ExitStack() as closing:
            names = [_BROKER] if _BROKER in options.contenders else []
            if "kafkalog" in options.contenders:
                names += [f"{each} workers" for each in options.workers.split(",")]
            contenders = [closing.enter_context(contending(name, home / name.replace(" ", "-"))) for name in names]
            for part in PARTS:
                if part.name in options.only.split(","):
                    for count in sorted({1, options.clients}):
                        compare(contenders, part, count, options)
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
