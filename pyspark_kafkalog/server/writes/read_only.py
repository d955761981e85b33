"""Produce and InitProducerId on a server that only reads its log directory: they are refused.

The APIs are there nevertheless: from the versions of Produce that a broker announces librdkafka tells the record
formats and codecs that it may fetch, and without InitProducerId it takes the server for a Kafka before 0.11.

InitProducerId has no text for the reason. Its errors are the two that all clients take as final: with others,
librdkafka asks again for ever.
"""

from __future__ import annotations

from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from pyspark_kafkalog.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from pyspark_kafkalog.record.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from pyspark_kafkalog.server.context import READ_ONLY, CloseConnection, Request, ServerContext


async def refuse_produce(context: ServerContext, request: Request[ProduceRequest]) -> ProduceResponse:
    """Versions 3 to 13. Raises CloseConnection if the client expects no answer."""
    body = request.body
    if body.acks == 0:
        raise CloseConnection(READ_ONLY)
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    PartitionProduceResponse(
                        index=each.index,
                        error_code=ErrorCode.POLICY_VIOLATION,
                        base_offset=-1,
                        error_message=READ_ONLY,
                    )
                    for each in topic.partition_data
                ),
            )
            for topic in body.topic_data
        )
    )


async def refuse_producer_id(context: ServerContext, request: Request[InitProducerIdRequest]) -> InitProducerIdResponse:
    """For idempotent producers and transactional ones."""
    body = request.body
    error = (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if body.transactional_id is None
        else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
