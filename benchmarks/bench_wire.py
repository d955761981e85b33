"""What decoding requests and encoding responses costs a server: Fetch of few and of many partitions, and Produce.

    python benchmarks/bench_wire.py

Prints the best of many runs, in milliseconds: the request from its frame, and the response to the pieces that are sent.
The goal is a sum of at most 4 ms for a Fetch of 500 partitions, in the newest version; exit code 1 if it is missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.protocol.api import APIS, ApiKey, encode_request, encode_response, joined, parse_request
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.records import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

GOAL_MS: Final = 4.0
RUNS: Final = 300
TOPIC_ID: Final = "EGc7GxAfRGaDNJO-5OFO6A"
FETCH_VERSION: Final = 17
PRODUCE_VERSION: Final = 13


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Stands for records in a file."""

    size_bytes: int


def fetch(partitions: int) -> tuple[ApiMessage, ApiMessage]:
    numbers = range(partitions)
    asked = tuple(FetchPartition(partition=i, current_leader_epoch=3, fetch_offset=1000 * i) for i in numbers)
    found = tuple(
        PartitionData(
            partition_index=i, high_watermark=2000 * i, last_stable_offset=2000 * i, records=FileSlice(1 << 20)
        )
        for i in numbers
    )
    return (
        FetchRequest(max_wait_ms=500, min_bytes=1, topics=(FetchTopic(topic_id=TOPIC_ID, partitions=asked),)),
        FetchResponse(responses=(FetchableTopicResponse(topic_id=TOPIC_ID, partitions=found),)),
    )


def produce(partitions: int) -> tuple[ApiMessage, ApiMessage]:
    numbers = range(partitions)
    sent = tuple(PartitionProduceData(index=i, records=bytes(16_384)) for i in numbers)
    done = tuple(PartitionProduceResponse(index=i, base_offset=1000 * i, log_start_offset=0) for i in numbers)
    return (
        ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=(TopicProduceData(topic_id=TOPIC_ID, partition_data=sent),)
        ),
        ProduceResponse(responses=(TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=done),)),
    )


def best_ms(run: Callable[[], object]) -> float:
    def once() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return 1000 * min(once() for _ in range(RUNS))


def measure(title: str, key: ApiKey, version: int, messages: tuple[ApiMessage, ApiMessage]) -> float:
    """Print the costs of a request and its response, and return their sum."""
    api = APIS[key]
    request, response = messages
    frame = joined(encode_request(api, version, 1, "consumer-orders-1", request))[4:]
    decode = best_ms(lambda: parse_request(frame).body())
    encode = best_ms(lambda: encode_response(api, version, 1, response))
    print(f"{title:<24}request {decode:7.3f} ms   response {encode:7.3f} ms   sum {decode + encode:7.3f} ms")
    return decode + encode


def main() -> int:
    measure("Fetch, 10 partitions", ApiKey.FETCH, FETCH_VERSION, fetch(10))
    many = measure("Fetch, 500 partitions", ApiKey.FETCH, FETCH_VERSION, fetch(500))
    measure("Produce, 10 partitions", ApiKey.PRODUCE, PRODUCE_VERSION, produce(10))
    print(f"goal for 500 partitions: {GOAL_MS} ms, {'met' if many <= GOAL_MS else 'MISSED'}")
    return int(many > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
