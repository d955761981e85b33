"""Two servers on S3Proxy: the requests their commits take, batches sent again to the other one, transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from builders.leader_writers import append, batch, mark, marker
from builders.metadata_roots import forget_images
from confluent_kafka import Consumer, Producer, TopicPartition
from fakes.http_relay import HttpRelay
from kafka_processes.s3_proxy import S3Proxy
from kafka_processes.server_processes import serving

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.root.commit.changes import CommitUnit, LeaderAppend
from pyspark_kafkalog.root.commit.committer import LeaderWriter


@pytest.fixture
def relay(s3_proxy: S3Proxy) -> Iterator[HttpRelay]:
    with HttpRelay(s3_proxy.endpoint) as relay:
        yield relay


@pytest.fixture
def address(s3_proxy: S3Proxy, relay: HttpRelay) -> StoreAddress:
    url = s3_proxy.new_location().below("log").url
    return StoreAddress.parse(url, s3_proxy.options(relay.endpoint))


def send(writer: LeaderWriter, *appends: LeaderAppend) -> list[tuple[int, bool]]:
    """Commit the appends, each as a unit: the first offset of each, and whether it was in the log before."""
    results = writer.commit([CommitUnit.of(each) for each in appends])
    assert all(isinstance(each, tuple) for each in results), results
    return [(each[0].first_offset, each[0].is_duplicate) for each in results if isinstance(each, tuple)]


def test_servers_share_sequences_and_transactions_with_few_requests(address: StoreAddress, relay: HttpRelay) -> None:
    log_dir = LogDir.create(address)
    log_dir.create_topic("a", 2)
    one = log_dir.root.native().committer(flush="fsync")
    forget_images()
    other = LogDir.open(address).root.native().committer(flush="fsync")
    small = append(batch([b"small"], producer=(7, 0, 0)))
    large = append(batch([b"x" * 200_000], producer=(7, 0, 1)))
    opens = batch([b"aborted"], producer=(8, 0, 0), is_transactional=True)
    assert send(one, append(batch([b"first"]), partition=1)) == [(0, False)]
    relay.reset()
    assert send(one, small) == [(0, False)]
    assert relay.requests == {"PUT": 1}
    assert send(one, large) == [(1, False)]
    assert relay.requests == {"PUT": 3}
    assert send(other, large, append(opens), append(opens, partition=1)) == [(1, True), (2, False), (1, False)]
    merge_segments(log_dir.root)
    assert send(one, large, append(batch([b"after"], producer=(7, 0, 2)))) == [(1, True), (3, False)]
    ends = marker(8, 0, is_commit=False)
    assert send(other, mark(ends), mark(ends, partition=1)) == [(4, False), (2, False)]
    log_dir.refresh()
    committed = log_dir.read("a", isolation="read_committed")["value"].to_pylist()
    assert sorted(each[:5] for each in committed) == [b"after", b"first", b"small", b"xxxxx"]
    assert verify(log_dir.root, are_records_checked=True).is_sound


@pytest.mark.full
def test_clients_of_two_server_processes_on_one_bucket(s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idempotent and transactional producers of librdkafka, with merges in between; read by it and by the package."""
    location, options = s3_proxy.new_location().below("log"), s3_proxy.options()
    for name, value in {
        "AWS_ACCESS_KEY_ID": s3_proxy.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_proxy.secret_key,
        "AWS_ENDPOINT_URL": s3_proxy.endpoint,
        "AWS_REGION": options["storeRegion"],
    }.items():
        monkeypatch.setenv(name, value)
    log_dir = LogDir.create(StoreAddress.parse(location.url, options))
    log_dir.create_topic("t", 3)
    with serving(location.url) as one, serving(location.url) as other:
        bootstrap = {"bootstrap.servers": f"{one.bootstrap},{other.bootstrap}"}
        producer = Producer({**bootstrap, "enable.idempotence": True})
        for number in range(300):
            producer.produce("t", b"plain %d" % number, partition=number % 3)
        assert producer.flush(60) == 0
        merge_segments(log_dir.root)
        transactional = Producer({**bootstrap, "transactional.id": "x"})
        transactional.init_transactions(30)
        for number in range(4):
            transactional.begin_transaction()
            for at in range(6):
                transactional.produce("t", b"%d %d" % (number, at), partition=at % 3)
            transactional.flush(30)
            if number == 1:
                log_dir.refresh()
                merge_segments(log_dir.root)
            (transactional.abort_transaction if number % 2 else transactional.commit_transaction)(30)
        expected = sorted(
            [b"plain %d" % each for each in range(300)] + [b"%d %d" % (n, at) for n in (0, 2) for at in range(6)]
        )
        assert sorted(consumed(bootstrap, len(expected))) == expected
    log_dir.refresh()
    assert sorted(log_dir.read("t", isolation="read_committed")["value"].to_pylist()) == expected
    assert verify(log_dir.root, are_records_checked=True).is_sound


def consumed(bootstrap: dict[str, str], count: int) -> list[bytes]:
    """What a consumer with read_committed gets, until it has waited for more than `count` records."""
    consumer = Consumer({**bootstrap, "group.id": "g", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("t", number, 0) for number in range(3)])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None and len(found) >= count:
            break
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
    consumer.close()
    return found
