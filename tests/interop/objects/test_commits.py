"""The commit log of an object root on S3Proxy: requests counted by a relay, lost answers, processes that race."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
from builders.metadata_roots import add_topic, forget_images, settings_of
from fakes.http_relay import Answer, HttpRelay, Request
from kafka_processes.s3_proxy import S3Proxy
from simulations.object_commits import count_in

from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, TransactionalIdRecord
from pyspark_kafkalog.metadata.objects.backend import ObjectMetadataStore
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.root.object_root import create_object_root

PROCESSES = 4
COMMITS = 12


@pytest.fixture
def relay(s3_proxy: S3Proxy) -> Iterator[HttpRelay]:
    with HttpRelay(s3_proxy.endpoint) as relay:
        yield relay


@pytest.fixture
def address(s3_proxy: S3Proxy, relay: HttpRelay) -> StoreAddress:
    url = s3_proxy.new_location().below("log").url
    return StoreAddress.parse(url, s3_proxy.options(relay.endpoint))


def open_anew(address: StoreAddress) -> MetadataStore:
    forget_images()
    return ObjectMetadataStore.open(address.open())


def count(store: MetadataStore, number: int) -> None:
    def build(image: MetadataImage) -> list[MetadataRecord]:
        return [TransactionalIdRecord(transactional_id=str(number), version=count_in(image, number))]

    store.commit(build, operation="count")


def test_commits_refreshes_and_opening_take_the_requests_they_may(address: StoreAddress, relay: HttpRelay) -> None:
    store = create_object_root(address.open())
    for _ in range(400):
        count(store, 0)
    reader = open_anew(address)
    assert reader.image == store.image
    relay.reset()
    count(store, 0)
    assert relay.requests == {"PUT": 1}
    reader.refresh()
    assert relay.requests == {"PUT": 1, "GET": 2}
    assert reader.refresh() is reader.image
    assert relay.requests == {"PUT": 1, "GET": 3}
    relay.reset()
    assert open_anew(address).image == store.image
    assert relay.requests.total() <= 8
    assert len(list(store.log.replay())) == 402


def test_commit_whose_answer_is_lost_is_made_once(address: StoreAddress, relay: HttpRelay) -> None:
    store = create_object_root(address.open())
    lost: list[str] = []

    def hang_up(request: Request) -> Answer | None:
        if request.method == "PUT" and request.path.endswith(".log") and len(lost) < 2:
            lost.append(request.path)
            return HttpRelay.HANG_UP
        return None

    relay.answer = hang_up
    add_topic(store, "orders", 1)
    add_topic(store, "lines", 1)
    assert len(lost) == 2
    assert set(open_anew(address).image.topics) == {"orders", "lines"}
    assert len(list(store.log.replay())) == 3


def _count_up(address: StoreAddress, number: int) -> None:
    store = ObjectMetadataStore.open(address.open())
    for _ in range(COMMITS):
        count(store, number)


def test_racing_processes_commit_all(address: StoreAddress) -> None:
    store = create_object_root(address.open())
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "3000"})
    processes = [
        multiprocessing.get_context("spawn").Process(target=_count_up, args=(address, number))
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    image = store.refresh()
    assert [count_in(image, number) for number in range(PROCESSES)] == [COMMITS] * PROCESSES
    assert open_anew(address).image == image
    assert len(list(store.log.replay())) == PROCESSES * COMMITS + 2
