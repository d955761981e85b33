"""Produce and InitProducerId on a server that only reads."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import PartitionProduceData, ProduceRequest, TopicProduceData
from pyspark_kafkalog.protocol.messages.transactions import InitProducerIdRequest
from pyspark_kafkalog.server.context import CloseConnection, Request, ServerContext, Session
from pyspark_kafkalog.server.produce import refuse_produce, refuse_producer_id


def produce(acks: int) -> Any:
    partitions = tuple(PartitionProduceData(index=each, records=b"") for each in (3, 1))
    body = ProduceRequest(acks=acks, topic_data=(TopicProduceData(name="orders", partition_data=partitions),))
    request = Request(api_key=0, api_version=9, client_id="test", body=body, session=Session("127.0.0.1", 9))
    handler = cast(Any, refuse_produce)
    return asyncio.run(handler(cast(ServerContext, None), request))


def test_every_batch_is_refused() -> None:
    [topic] = produce(acks=-1).responses
    found = [(each.index, each.error_code, each.base_offset) for each in topic.partition_responses]
    assert found == [(3, ErrorCode.POLICY_VIOLATION, -1), (1, ErrorCode.POLICY_VIOLATION, -1)]


def test_client_that_expects_no_answer_loses_its_connection() -> None:
    with pytest.raises(CloseConnection, match="only reads"):
        produce(acks=0)


@pytest.mark.parametrize(
    ("name", "error"),
    [(None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ("t", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)],
)
def test_producer_gets_no_id_and_an_error_that_clients_take_as_final(name: str | None, error: ErrorCode) -> None:
    body = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
    request = Request(api_key=22, api_version=5, client_id="test", body=body, session=Session("127.0.0.1", 9))
    handler = cast(Any, refuse_producer_id)
    response = asyncio.run(handler(cast(ServerContext, None), request))
    assert (response.error_code, response.producer_id, response.producer_epoch) == (error, -1, -1)
