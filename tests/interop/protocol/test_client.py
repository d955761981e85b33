"""The client of Kafka's protocol at a real broker: versions, topics, produce and fetch in every version."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from kafka_processes.oracle import KAFKA_VERSION, OLDEST_VERSION, Broker

from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pyspark_kafkalog.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from pyspark_kafkalog.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pyspark_kafkalog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from pyspark_kafkalog.record.reference import Record, decode_batch, encode_batch

#: Starts a broker: the full tier alone.
pytestmark = pytest.mark.full

TIMEOUT_S: Final = 30.0
TOPIC: Final = "orders"
LATEST: Final = -1


@pytest.fixture(scope="module")
def broker(start_broker: Callable[..., Broker]) -> Broker:
    return start_broker()


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[WireClient]:
    host, _, port = broker.bootstrap.partition(":")
    with WireClient.connect(host, int(port), client_id="tests", timeout_s=TIMEOUT_S) as connected:
        connected.negotiate()
        yield connected


@pytest.fixture(scope="module")
def topic_id(client: WireClient) -> str:
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    created = client.call(CreateTopicsRequest(topics=(topic,), timeout_ms=10_000), CreateTopicsResponse)
    assert created.topics[0].error_code == ErrorCode.NONE
    return created.topics[0].topic_id


def test_broker_offers_the_versions_of_the_table(client: WireClient) -> None:
    offered = {each.api_key: (each.min_version, each.max_version) for each in client.negotiate().api_keys}
    for api in APIS.values():
        if api.key != ApiKey.FETCH_SNAPSHOT:  # of controllers
            since = api.request.schema().spec.since
            known = [each for each in api.advertised if since.get(each, OLDEST_VERSION) <= KAFKA_VERSION]
            assert offered[api.key] == (known[0], known[-1]), api.key.name


@pytest.mark.parametrize("version", APIS[ApiKey.METADATA].versions)
def test_metadata_names_topic_and_broker(client: WireClient, topic_id: str, version: int) -> None:
    request = MetadataRequest(topics=(MetadataRequestTopic(name=TOPIC),), allow_auto_topic_creation=True)
    found = client.call(request, MetadataResponse, version=version)
    assert [(each.name, len(each.partitions)) for each in found.topics] == [(TOPIC, 1)]
    assert [each.node_id for each in found.brokers] == [1]
    assert found.topics[0].topic_id == (topic_id if version >= 10 else ZERO_UUID)


@pytest.mark.parametrize("version", APIS[ApiKey.FIND_COORDINATOR].versions)
def test_coordinator_is_found(client: WireClient, version: int) -> None:
    request = FindCoordinatorRequest(key="g") if version < 4 else FindCoordinatorRequest(coordinator_keys=("g",))
    found = client.call(request, FindCoordinatorResponse, version=version)
    errors = [found.error_code, *(each.error_code for each in found.coordinators)]
    assert set(errors) <= {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert len(found.coordinators) == (version >= 4)


def test_batches_of_every_version_of_produce_are_fetched_in_every_version(client: WireClient, topic_id: str) -> None:
    versions = APIS[ApiKey.PRODUCE].versions
    for version in versions:
        batch = encode_batch([Record(offset=0, timestamp_ms=1, key=None, value=b"v%d" % version)])
        client.send(produce(batch, topic_id, version), version=version)
    for at in range(len(versions)):
        response = client.receive(ProduceResponse).responses[0].partition_responses[0]
        assert (response.error_code, response.base_offset) == (ErrorCode.NONE, at)
    partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    for version in APIS[ApiKey.LIST_OFFSETS].versions:
        asked = ListOffsetsRequest(topics=(ListOffsetsTopic(name=TOPIC, partitions=(partition,)),))
        listed = client.call(asked, ListOffsetsResponse, version=version)
        assert listed.topics[0].partitions[0].offset == len(versions)
    for version in APIS[ApiKey.FETCH].versions:
        response = client.call(fetch(topic_id, version), FetchResponse, version=version)
        assert [each.value for each in records(response)] == [b"v%d" % each for each in versions]


def produce(batch: bytes, topic_id: str, version: int) -> ProduceRequest:
    partitions = (PartitionProduceData(index=0, records=batch),)
    if version >= 13:
        topic = TopicProduceData(topic_id=topic_id, partition_data=partitions)
    else:
        topic = TopicProduceData(name=TOPIC, partition_data=partitions)
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=(topic,))


def fetch(topic_id: str, version: int) -> FetchRequest:
    partitions = (FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20),)
    if version >= 13:
        topic = FetchTopic(topic_id=topic_id, partitions=partitions)
    else:
        topic = FetchTopic(topic=TOPIC, partitions=partitions)
    return FetchRequest(max_wait_ms=1000, min_bytes=1, topics=(topic,))


def records(response: FetchResponse) -> list[Record]:
    data = response.responses[0].partitions[0].records
    assert isinstance(data, memoryview)
    found: list[Record] = []
    at = 0
    while at < len(data):
        batch = decode_batch(data, at, file="<fetch>", file_position=at)
        found += batch.records
        at += batch.header.size_bytes
    return found


def test_broker_closes_the_connection_on_a_version_that_it_offers_but_lacks(broker: Broker) -> None:
    host, _, port = broker.bootstrap.partition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(bytes.fromhex("0000000a 0000 0000 00000001 ffff"))  # Produce 0
        assert connection.recv(1) == b""
