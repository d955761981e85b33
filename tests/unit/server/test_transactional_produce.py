"""What a transactional Produce is answered, whatever else its commit wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builders.leader_writers import batch
from fakes.transaction_servers import SESSION, Coordinated, run

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import PartitionProduceData, ProduceRequest, TopicProduceData
from pyspark_kafkalog.server.context import Request
from pyspark_kafkalog.server.produce import Produces


def test_offset_is_that_of_the_batch_when_the_commit_also_begins_the_transaction(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("a", 1)
    server = Coordinated(tmp_path / "root")

    async def produce(first: int, name: str) -> Any:
        producer = await server.begin(name)
        data = batch([b"1", b"2"], producer=(producer.producer_id, producer.producer_epoch, 0), is_transactional=True)
        partitions = (PartitionProduceData(index=0, records=data),)
        body = ProduceRequest(
            transactional_id=name, acks=-1, topic_data=(TopicProduceData(name="a", partition_data=partitions),)
        )
        response: Any = await Produces(server.admission).handle(server.context, Request(0, 12, "c", body, SESSION))
        (answer,) = response.responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, first)

    async def scenario() -> None:
        for at in range(2):
            await produce(2 * at, f"t{at}")

    run(scenario())
    server.close()
