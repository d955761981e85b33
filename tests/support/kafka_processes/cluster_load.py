"""Clients that load a cluster until they are stopped: producers of all kinds, Java's and librdkafka's, and groups.

    PLAIN       records with headers in all codecs: of producers without ids, of idempotent ones, and of Java's
    PAYMENTS    transactions, committed and aborted; those of producers that die stay open for a while
    LATEST      a compacted topic with few keys and tombstones, which the brokers clean all the time

What a fault does to a client (an error, a timeout, a fenced producer) makes it begin again with a new connection.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from patience import wait_until

from kafka_processes.cluster import Cluster
from kafka_processes.java_processes import start_server
from kafka_processes.oracle import java_command

PLAIN: Final = "orders"
PAYMENTS: Final = "payments"
LATEST: Final = "latest"
TOPICS: Final[Mapping[str, int]] = {PLAIN: 3, PAYMENTS: 2, LATEST: 2}
GROUP: Final = "readers"
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    PLAIN: {"segment_bytes": "1048576"},
    PAYMENTS: {"segment_bytes": "1048576"},
    LATEST: {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": "0",
        "segment_ms": "1000",
        "delete_retention_ms": "2000",
    },
}
_PAYERS: Final = tuple(f"payer-{number}" for number in range(4))
_JAVA: Final = "java"
_END_SECONDS_MAX: Final = 90
_QUIET: Final[Mapping[str, Any]] = {"log_level": 0, "socket.timeout.ms": 5000, "error_cb": lambda _: None}
_PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"


def create_topics(cluster: Cluster, **configs: str) -> None:
    """The topics of the load, three replicas each, their preferred leaders on all nodes."""
    for topic, partitions in TOPICS.items():
        assignment = [[(at + shift) % 3 + 1 for shift in range(3)] for at in range(partitions)]
        cluster.create_topic(topic, assignment, **{**_CONFIGS[topic], **configs})


class ClusterLoad:
    """Loads the cluster while it is entered. `log` takes what Java's producer says; `rest_s` is between two writes.

    No transaction is open afterwards. The cluster must be able to elect leaders until then.
    """

    def __init__(
        self,
        bootstrap: Callable[[], str],
        rng: random.Random,
        log: Path,
        *,
        with_java: bool = True,
        rest_s: float = 0.02,
    ) -> None:
        self._bootstrap = bootstrap
        self._seed = rng.randrange(1 << 30)
        self._log = log
        self._with_java = with_java
        self._rest_s = rest_s
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._java: Any = None
        #: Writes and transactions by kind, and errors.
        self.done: Counter[str] = Counter()

    def __enter__(self) -> ClusterLoad:
        works = (self._plain, self._idempotent, self._transactions, self._latest, self._group)
        for number, work in enumerate(works):
            rng = random.Random(f"{self._seed} {number}")
            thread = threading.Thread(target=self._repeat, args=(work, rng), daemon=True)
            thread.start()
            self._threads.append(thread)
        if self._with_java:
            self._start_java()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._java is not None:
            self._java.kill()
            self._java.wait(60)
        for thread in self._threads:
            thread.join(120)
        if kind is None:
            assert not any(thread.is_alive() for thread in self._threads)
            self._end_transactions()

    def wait_for_more(self) -> None:
        """Wait until the clients have written more of all kinds, and some segments of PLAIN."""
        more = {PLAIN: 700, PAYMENTS: 20, LATEST: 20, "committed": 2, "aborted": 2}
        wanted = {each: self.done[each] + count for each, count in more.items()}
        wait_until(lambda: all(self.done[each] >= count for each, count in wanted.items()), f"the load {wanted}")

    def _end_transactions(self) -> None:
        """Have the coordinators abort the transactions that dead producers left open, now instead of at a timeout.

        A coordinator answers a producer that begins again with an id only after the markers of the id's transaction
        are written.
        """
        for each in (*_PAYERS, _JAVA):
            self._producer(**{"transactional.id": each}).init_transactions(_END_SECONDS_MAX)

    def _start_java(self) -> None:
        settings = f"bootstrap.servers={self._bootstrap()}", "compression.type=zstd", "linger.ms=20", "batch.size=4000"
        arguments = ["--topic", PLAIN, "--num-records", "10000000", "--record-size", "300", "--throughput", "300"]
        arguments += ["--transactional-id", _JAVA, "--transaction-duration-ms", "700", "--producer-props", *settings]
        with self._log.open("ab") as log:
            self._java = start_server(java_command(_PERFORMANCE, *arguments), log)

    def _repeat(self, work: Callable[[random.Random], None], rng: random.Random) -> None:
        from confluent_kafka import KafkaException

        while not self._stopping.is_set():
            try:
                work(rng)
            except (KafkaException, BufferError) as error:
                self.done[f"{work.__name__}: {error}"[:120]] += 1
                self._stopping.wait(0.3)

    def _producer(self, **settings: Any) -> Any:
        from confluent_kafka import Producer

        return Producer({"bootstrap.servers": self._bootstrap(), **_QUIET, "message.timeout.ms": 20_000, **settings})

    def _send(self, producer: Any, topic: str, rng: random.Random, keys: int = 1000) -> None:
        for _ in range(rng.choice((1, 5, 40))):
            value = None if topic == LATEST and rng.random() < 0.1 else rng.randbytes(rng.choice((0, 10, 200, 2000)))
            headers = [("trace", rng.randbytes(4)), ("trace", None)] if rng.random() < 0.3 else None
            producer.produce(
                topic,
                value,
                key=None if topic != LATEST and rng.random() < 0.3 else b"%d" % rng.randrange(keys),
                partition=rng.randrange(TOPICS[topic]),
                headers=headers,
            )
        self.done[topic] += 1

    def _write(self, topic: str, rng: random.Random, count: int, *, keys: int = 1000, **settings: object) -> None:
        producer = self._producer(**{"compression.type": rng.choice(_CODECS), **settings})
        for _ in range(count):
            if self._stopping.is_set():
                break
            self._send(producer, topic, rng, keys)
            producer.poll(0)
            self._stopping.wait(self._rest_s)
        producer.flush(25)

    def _plain(self, rng: random.Random) -> None:
        self._write(PLAIN, rng, 15, acks=rng.choice((0, 1, "all")))

    def _idempotent(self, rng: random.Random) -> None:
        self._write(PLAIN, rng, 40, **{"enable.idempotence": True})

    def _latest(self, rng: random.Random) -> None:
        self._write(LATEST, rng, 30, keys=30)

    def _transactions(self, rng: random.Random) -> None:
        # One of several ids: what a dead producer has left open stays so until its id is used again, or times out.
        producer = self._producer(
            **{"transactional.id": rng.choice(_PAYERS), "transaction.timeout.ms": 8000, "message.timeout.ms": 8000},
            **{"compression.type": rng.choice(_CODECS)},
        )
        producer.init_transactions(20)
        for _ in range(rng.randrange(1, 12)):
            if self._stopping.is_set():
                return
            producer.begin_transaction()
            for _ in range(rng.randrange(1, 4)):
                self._send(producer, PAYMENTS, rng)
                producer.flush(20)
                self._stopping.wait(self._rest_s)
            if rng.random() < 0.1:
                self.done["left open"] += 1
                return
            if rng.random() < 0.6:
                producer.commit_transaction(20)
                self.done["committed"] += 1
            else:
                producer.abort_transaction(20)
                self.done["aborted"] += 1

    def _group(self, rng: random.Random) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap(),
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **_QUIET,
            }
        )
        try:
            consumer.subscribe([PLAIN, PAYMENTS])
            for _ in range(60):
                if self._stopping.is_set():
                    return
                if consumer.consume(200, timeout=0.3):
                    consumer.commit(asynchronous=False)
                    self.done["commits of groups"] += 1
        finally:
            consumer.close()
