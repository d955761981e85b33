"""Produce on a server that only reads its log directory: every batch is refused.

The API is there nevertheless: from the versions of Produce that a broker announces librdkafka tells the record formats
and codecs that it may fetch.
"""

from __future__ import annotations

from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from pyspark_kafkalog.server.context import READ_ONLY, CloseConnection, Request, ServerContext


async def refuse_produce(context: ServerContext, request: Request) -> ProduceResponse:
    """Versions 3 to 13. Raises CloseConnection if the client expects no answer."""
    body = request.body
    assert isinstance(body, ProduceRequest)
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
