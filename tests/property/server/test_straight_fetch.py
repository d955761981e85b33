"""Arbitrary Fetch requests and responses: the straight way reads and writes what the general one does, or nothing."""

from __future__ import annotations

import random
import struct

from fakes.hostile_clients import mutated
from tiers import SEED, examples

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.protocol.api import APIS, ApiKey, encode_request, encode_response, joined, parse_request
from pyspark_kafkalog.protocol.messages.records import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from pyspark_kafkalog.server.straight.fetch import packed_response, parse_usual_fetch
from pyspark_kafkalog.storage.names import encode_uuid

FETCH = APIS[ApiKey.FETCH]
NAMES = ("a", "topic", "x" * 126, "x" * 127, "\u00e4", "")
INT64_MAX = (1 << 63) - 1
ABORTED = (AbortedTransaction(producer_id=1, first_offset=2),)


def drawn_request(source: random.Random) -> bytes:
    is_usual = source.random() < 0.7
    version = source.randrange(12, 19) if is_usual else source.choice(FETCH.versions)
    by_id = version >= 13

    topics_count = source.choice((0, 1, 1, 3) if is_usual else (0, 1, 1, 1, 127))

    def topic() -> FetchTopic:
        counts = (0, 1, 1, 5) if is_usual else (0, 1, 126, 200) if topics_count == 1 else (0, 1)
        partitions = tuple(partition() for _ in range(source.choice(counts)))
        if by_id:
            return FetchTopic(topic_id=encode_uuid(source.randbytes(16)), partitions=partitions)
        return FetchTopic(topic=source.choice(NAMES), partitions=partitions)

    def partition() -> FetchPartition:
        return FetchPartition(
            partition=source.choice((0, 1, -1, 1 << 30)),
            current_leader_epoch=source.choice((-1, 0, 5)) if version >= 9 else -1,
            fetch_offset=source.choice((0, -1, 1 << 40, INT64_MAX)),
            last_fetched_epoch=source.choice((-1, 0, 5)) if version >= 12 else -1,
            log_start_offset=source.choice((-1, 0, 7)) if version >= 5 else -1,
            partition_max_bytes=source.choice((0, 1 << 20, -1)),
            unknown_tags=((30, b"x"),) if not is_usual and version >= 12 and source.random() < 0.1 else (),
        )

    forgotten = ForgottenTopic(topic_id=encode_uuid(source.randbytes(16)), partitions=(1,)) if by_id else None
    request = FetchRequest(
        cluster_id="c" if not is_usual and version >= 12 and source.random() < 0.2 else None,
        replica_id=source.choice((-1, 0, 3)) if version < 15 else -1,
        max_wait_ms=source.randrange(1000),
        min_bytes=source.randrange(100),
        max_bytes=source.choice((0, 1 << 20, -1)),
        isolation_level=source.choice((0, 1)),
        session_id=source.randrange(1 << 31) if version >= 7 else 0,
        session_epoch=source.choice((-1, 0, 5)) if version >= 7 else -1,
        topics=tuple(topic() for _ in range(topics_count)),
        forgotten_topics_data=(forgotten,) if forgotten and not is_usual and source.random() < 0.2 else (),
        rack_id=source.choice(("", "rack", "x" * 126, "x" * 127)) if version >= 11 else "",
    )
    frame = joined(encode_request(FETCH, version, source.randrange(1 << 31), source.choice(("c", "", None)), request))[
        4:
    ]
    if source.random() < 0.2:
        frame = struct.pack(">h", ApiKey.FETCH) + mutated(source, frame)[2:]
    return frame


def test_request_is_read_as_in_the_general_way() -> None:
    print(f"KAFKALOG_SEED={SEED}")
    source = random.Random(SEED)
    straight = 0
    count = examples(6000)  # 45 % are usual, so that with any seed a third of so many is
    for _ in range(count):
        frame = drawn_request(source)
        found = parse_usual_fetch(bytearray(frame))
        if found is None:
            continue
        straight += 1
        parsed, request = found
        try:
            general = parse_request(frame)
            body = general.body()
        except CorruptRecordError as error:
            raise AssertionError(f"read though it is damaged: {frame!r}") from error
        names = ("api", "api_version", "correlation_id", "client_id", "is_supported", "has_many_elements")
        assert [getattr(parsed, each) for each in names] == [getattr(general, each) for each in names]
        assert request == body
    assert straight > count // 3


def drawn_response(source: random.Random, version: int) -> FetchResponse:
    is_usual = source.random() < 0.7

    def partition() -> PartitionData:
        size = source.choice((0, 0, 1, 126, 127, 128, 20_000) if is_usual else (0, 1))
        aborted: tuple[AbortedTransaction, ...] | None = source.choice((None, ()) if is_usual else (None, (), ABORTED))
        found = PartitionData(
            partition_index=source.choice((0, 7, 1 << 30)),
            error_code=source.choice((0, 0, 1, 3)),
            high_watermark=source.choice((-1, 0, 1 << 40)),
            last_stable_offset=source.choice((-1, 0, 1 << 40)),
            log_start_offset=source.choice((-1, 0, 1 << 40)),
            aborted_transactions=aborted,
            preferred_read_replica=source.choice((-1, 3)),
            records=None if not is_usual and source.random() < 0.2 else memoryview(source.randbytes(size)),
        )
        if not is_usual and source.random() < 0.3:
            return found.replace(diverging_epoch=FetchResponseEpochEndOffset(epoch=1, end_offset=5))
        return found

    topics_count = source.choice((0, 1, 1, 3) if is_usual else (0, 1, 1, 1, 127))

    def topic() -> FetchableTopicResponse:
        counts = (0, 1, 1, 4) if is_usual else (1, 127) if topics_count == 1 else (0, 1)
        partitions = tuple(partition() for _ in range(source.choice(counts)))
        if version >= 13:
            return FetchableTopicResponse(topic_id=encode_uuid(source.randbytes(16)), partitions=partitions)
        return FetchableTopicResponse(topic=source.choice(NAMES), partitions=partitions)

    return FetchResponse(
        throttle_time_ms=source.choice((0, 0, 100)),
        error_code=source.choice((0, 0, 70)),
        session_id=source.randrange(1 << 31),
        responses=tuple(topic() for _ in range(topics_count)),
    )


def test_response_is_written_as_in_the_general_way() -> None:
    print(f"KAFKALOG_SEED={SEED}")
    source = random.Random(SEED)
    straight = 0
    count = examples(1000)
    for _ in range(count):
        version, correlation_id = source.randrange(12, 19), source.randrange(1 << 31)
        response = drawn_response(source, version)
        pieces = packed_response(version, correlation_id, response)
        if pieces is not None:
            straight += 1
            assert joined(pieces) == joined(encode_response(FETCH, version, correlation_id, response))
    assert straight > count // 3
