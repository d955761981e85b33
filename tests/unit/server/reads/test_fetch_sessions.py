"""Fetch sessions in memory: who may continue them, which make room for others, and how much they may hold."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import FetchPartition, FetchResponseEpochEndOffset, PartitionData
from pyspark_kafkalog.server.reads import fetch_sessions
from pyspark_kafkalog.server.reads.fetch_sessions import (
    EVICTION_MS,
    NO_SESSION,
    FetchSession,
    FetchSessions,
    PartitionKey,
    SessionPartition,
    next_epoch,
)
from pyspark_kafkalog.units import INT32_MAX

ANN, BOB = "User:ann", "User:bob"


class Cache:
    """FetchSessions with a clock of its own, and short calls."""

    def __init__(self, slots: int = 2) -> None:
        self.now_ms = 0
        ids = random.Random(5)
        self.sessions = FetchSessions(lambda: ids.randint(1, INT32_MAX), lambda: self.now_ms, slots=slots)

    def begin(self, size: int, *, principal: str = ANN, topic: str = "t") -> int:
        return self.sessions.begin(
            partitions(topic, range(size)), principal=principal, uses_topic_ids=False, is_committed=False
        )

    def advance(
        self,
        session_id: int,
        epoch: int,
        added: Iterable[int] = (),
        forgotten: Iterable[int] = (),
        *,
        principal: str = ANN,
        uses_topic_ids: bool = False,
        topic: str = "t",
    ) -> FetchSession | ErrorCode | None:
        return self.sessions.advance(
            session_id,
            epoch,
            partitions(topic, added),
            [(topic, each) for each in forgotten],
            principal=principal,
            uses_topic_ids=uses_topic_ids,
            is_committed=False,
        )


def partitions(topic: str, numbers: Iterable[int]) -> dict[PartitionKey, SessionPartition]:
    keys = [(topic, each) for each in numbers]
    return {key: SessionPartition(key, FetchPartition(partition=key[1]), ZERO_UUID, topic) for key in keys}


def test_session_goes_on_with_each_epoch_once() -> None:
    cache = Cache()
    session = cache.begin(1)
    assert isinstance(cache.advance(session, 1), FetchSession)
    assert cache.advance(session, 1) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert cache.advance(session, 3) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert isinstance(cache.advance(session, 2), FetchSession)
    assert [next_epoch(each) for each in (-1, 0, 7, INT32_MAX)] == [-1, 1, 8, 1]


def test_names_and_ids_of_topics_are_not_mixed_in_a_session() -> None:
    cache = Cache()
    session = cache.begin(1)
    assert cache.advance(session, 1, uses_topic_ids=True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert isinstance(cache.advance(session, 1), FetchSession)


def test_session_belongs_to_the_principal_that_began_it() -> None:
    cache = Cache()
    session = cache.begin(1, principal=ANN)
    assert cache.advance(session, 1, principal=BOB) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    cache.sessions.close(session, BOB)
    assert isinstance(cache.advance(session, 1, principal=ANN), FetchSession)
    cache.sessions.close(session, ANN)
    assert cache.advance(session, 2, principal=ANN) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(cache.sessions), cache.sessions.partitions_count, cache.sessions.evictions) == (0, 0, 0)


def test_partitions_are_counted_as_they_are_added_and_forgotten() -> None:
    cache = Cache()
    session = cache.begin(3)
    cache.advance(session, 1, added=[2, 3, 4], forgotten=[0, 77])
    assert cache.sessions.partitions_count == 4
    cache.begin(2)
    assert cache.sessions.partitions_count == 6
    assert cache.advance(session, 2, forgotten=range(9)) is None
    assert (len(cache.sessions), cache.sessions.partitions_count) == (1, 2)
    assert cache.advance(session, 3) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_full_cache_gives_no_session_until_one_is_unused_for_two_minutes() -> None:
    cache = Cache()
    first, second = cache.begin(5), cache.begin(5)
    assert cache.begin(9) == NO_SESSION
    cache.now_ms = EVICTION_MS
    cache.advance(first, 1)
    assert cache.begin(9) == NO_SESSION
    cache.now_ms += 1
    third = cache.begin(1)  # also of fewer partitions
    assert third != NO_SESSION
    assert cache.advance(second, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert isinstance(cache.advance(first, 2), FetchSession)
    assert cache.sessions.evictions == 1


def test_session_of_two_minutes_makes_room_only_for_one_of_more_partitions() -> None:
    cache = Cache()
    small, large = cache.begin(5), cache.begin(8)
    for epoch, now_ms in ((1, EVICTION_MS), (2, EVICTION_MS + 1)):
        cache.now_ms = now_ms
        for each in (small, large):
            cache.advance(each, epoch)
    assert cache.begin(5) == NO_SESSION
    assert cache.begin(6) != NO_SESSION
    assert cache.advance(small, 3) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert isinstance(cache.advance(large, 3), FetchSession)
    cache.now_ms += 1
    assert cache.begin(6) == NO_SESSION  # the session of six is new, and that of eight is larger


def test_partitions_of_all_sessions_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 10)
    monkeypatch.setattr(fetch_sessions, "SESSION_PARTITIONS_MAX", 8)
    cache = Cache(slots=100)
    assert cache.begin(9) == NO_SESSION
    first = cache.begin(6)
    assert cache.begin(5) == NO_SESSION
    second = cache.begin(4)
    # One that grows beyond the limits is closed: the client begins again.
    assert cache.advance(second, 1, added=[4]) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(cache.sessions), cache.sessions.partitions_count, cache.sessions.evictions) == (1, 6, 1)
    assert cache.advance(first, 1, added=[6, 7, 8]) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    cache.begin(6)
    cache.now_ms = EVICTION_MS + 1
    assert cache.begin(7) != NO_SESSION  # the unused one made room
    assert cache.sessions.partitions_count == 7


def test_names_longer_than_those_of_topics_are_not_kept() -> None:
    cache = Cache()
    assert cache.begin(1, topic="t" * 250) == NO_SESSION
    session = cache.begin(1)
    assert cache.advance(session, 1, added=[0], topic="t" * 250) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.sessions.partitions_count == 0


QUIET = PartitionData(high_watermark=7, log_start_offset=2)


@pytest.mark.parametrize(
    ("changed", "is_news"),
    [
        ({}, False),
        ({"high_watermark": 8}, True),
        ({"log_start_offset": 3}, True),
        ({"last_stable_offset": 3}, False),
        ({"error_code": 1, "high_watermark": -1}, True),
        ({"preferred_read_replica": 1}, True),
        ({"diverging_epoch": FetchResponseEpochEndOffset(epoch=0, end_offset=1)}, True),
        ({"aborted_transactions": ()}, False),
    ],
)
def test_news_are_what_kafka_takes_for_news(changed: dict[str, object], is_news: bool) -> None:
    [partition] = partitions("t", [0]).values()
    assert partition.tell(QUIET, has_records=False)
    assert not partition.tell(QUIET, has_records=False)
    assert partition.tell(QUIET, has_records=True)
    assert partition.tell(QUIET.replace(**changed), has_records=False) is is_news


def test_partition_is_told_again_after_an_error() -> None:
    [partition] = partitions("t", [0]).values()
    partition.tell(QUIET, has_records=False)
    for _ in range(2):
        assert partition.tell(QUIET.replace(error_code=1), has_records=False)
    assert partition.tell(QUIET, has_records=False)
    assert not partition.tell(QUIET, has_records=False)
