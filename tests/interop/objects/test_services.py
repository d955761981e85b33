"""Services on a store in trouble: `serve` with real clients, and streaming queries of Spark, behind a relay.

Every few requests the relay answers in the store's place, with each fault in turn, and for some seconds it answers
nothing at all. What was acknowledged is there once, in order.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders.metadata_roots import forget_images
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from fakes.http_relay import Answer, HttpRelay, Request
from fakes.troubled_stores import FAULTS
from kafka_processes.s3_proxy import S3Proxy
from kafka_processes.server_processes import serving
from patience import PATIENCE_S
from pyspark.sql import SparkSession

from pyspark_kafkalog import register
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.object_store.address import StoreAddress

#: Of so many requests one meets a fault; no divisor of what an operation takes.
_EVERY = 7
_OUTAGE_S = 3.0


def faults_in_turn() -> Callable[[Request], Answer | None]:
    """Each fault that passes in turn, at every seventh request."""
    lock, numbers = threading.Lock(), itertools.count(1)
    passing = itertools.cycle(each.answer for each in FAULTS["s3proxy"].values() if each.passes)

    def answer(request: Request) -> Answer | None:
        with lock:
            return next(passing)(request) if next(numbers) % _EVERY == 0 else None

    return answer


@pytest.fixture
def relay(s3_proxy: S3Proxy) -> Iterator[HttpRelay]:
    with HttpRelay(s3_proxy.endpoint) as relay:
        yield relay
        relay.answer = None


@pytest.fixture
def address(s3_proxy: S3Proxy, relay: HttpRelay, monkeypatch: pytest.MonkeyPatch) -> StoreAddress:
    """Where a root is to be; processes that are started find the relay in their environment."""
    options = s3_proxy.options(relay.endpoint)
    for name, value in {
        "AWS_ACCESS_KEY_ID": s3_proxy.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_proxy.secret_key,
        "AWS_ENDPOINT_URL": relay.endpoint,
        "AWS_REGION": options["storeRegion"],
    }.items():
        monkeypatch.setenv(name, value)
    return StoreAddress.parse(s3_proxy.new_location().below("log").url, options)


def check_sound(address: StoreAddress) -> LogDir:
    forget_images()
    log_dir = LogDir.open(address)
    assert [each for each in verify(log_dir.root).findings if each.severity.name == "ERROR"] == []
    return log_dir


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2])
def test_clients_of_a_server_on_a_store_in_trouble_lose_and_double_nothing(
    address: StoreAddress, relay: HttpRelay, workers: int
) -> None:
    LogDir.create(address).create_topic("orders", partitions=1)
    acknowledged: list[bytes] = []

    def done(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        acknowledged.append(message.value())

    with serving(address.location.url, "--workers", str(workers)) as server:
        clients = {"bootstrap.servers": server.bootstrap}
        producer = Producer({**clients, "enable.idempotence": True, "linger.ms": 5})
        group = {"group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({**clients, **group})
        consumer.subscribe(["orders"])
        relay.answer = faults_in_turn()
        read: list[bytes] = []
        for number in range(60):
            if number == 30:
                relay.answer = lambda request: HttpRelay.REFUSE
                producer.produce("orders", b"in an outage", on_delivery=done)
                time.sleep(_OUTAGE_S)
                relay.answer = faults_in_turn()
            producer.produce("orders", b"%d" % number, on_delivery=done)
            assert producer.flush(PATIENCE_S) == 0
            read += polled(consumer, 1.0 if number == 59 else 0.05)
        deadline = time.monotonic() + PATIENCE_S
        while len(read) < 61 and time.monotonic() < deadline:
            read += polled(consumer, 1.0)
        consumer.commit(offsets=[TopicPartition("orders", 0, 61)], asynchronous=False)
        consumer.close()
        assert server.process.poll() is None
        assert server.stop() == 0
    relay.answer = None
    expected = [b"%d" % each for each in range(30)] + [b"in an outage"] + [b"%d" % each for each in range(30, 60)]
    assert acknowledged == expected
    assert read == expected
    log_dir = check_sound(address)
    assert log_dir.read("orders")["value"].to_pylist() == expected
    assert {each.offset for each in log_dir.group("billing").fetch().values()} == {61}


def polled(consumer: Consumer, seconds: float) -> list[bytes]:
    """The values that come in that time."""
    found = []
    while (message := consumer.poll(seconds)) is not None:
        assert message.error() is None, message.error()
        found.append(message.value())
    return found


@pytest.mark.full
@pytest.mark.spark
def test_streams_on_a_store_in_trouble_lose_and_double_nothing(
    spark: SparkSession, address: StoreAddress, relay: HttpRelay, s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    """Into a topic, and from there into another one; each query is started again and goes on."""
    register(spark)
    options, url = s3_proxy.options(relay.endpoint), address.location.url
    LogDir.create(address).create_topic("first", partitions=2)
    relay.answer = faults_in_turn()

    def run(source: str, target: str) -> None:
        rows = spark.readStream.format("kafkalog").options(**options, subscribe=source, startingOffsets="earliest")
        query = (
            rows.option("maxOffsetsPerTrigger", "30")
            .load(url)
            .selectExpr("key", "value")
            .writeStream.format("kafkalog")
            .options(**options, topic=target, checkpointLocation=str(tmp_path / target))
            .trigger(availableNow=True)
            .start(url)
        )
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None

    for start in (0, 40):
        frame = spark.range(start, start + 40, 1, 2).selectExpr(
            "cast(id % 7 as string) key", "cast(id as string) value"
        )
        frame.write.format("kafkalog").mode("append").options(**options, topic="first").save(url)
        run("first", "second")
        run("second", "third")
    relay.answer = None
    log_dir = check_sound(address)
    for topic in ("first", "second", "third"):
        found = sorted(int(each) for each in log_dir.read(topic)["value"].to_pylist())
        assert found == list(range(80)), topic
