"""The shared state of a follower: what becomes of answers that come too late, and what is still fetched."""

from __future__ import annotations

import random

from builders.leader_writers import batch

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.replication.follower_state import Claim, Followed, FollowerState, WaitingChange
from pyspark_kafkalog.replication.leader import FetchOutcome, LeaderAnswer
from pyspark_kafkalog.replication.partition_state import PartitionState
from pyspark_kafkalog.root.commit.changes import FollowerAppend
from pyspark_kafkalog.root.commit.committer import check_changes
from pyspark_kafkalog.storage.log.follower import FollowerBatches
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

ORDERS = TopicPartition("orders", 0)


def make_state(*, is_once: bool = False) -> FollowerState:
    shared = FollowerState(
        buffer_bytes=8 * MIB,
        commit_interval_s=0.0,
        monotonic_s=lambda: 1.0,
        rng=random.Random(1),
        on_event=lambda event: None,
        is_once=is_once,
    )
    state = PartitionState(topic_partition=ORDERS, topic_id="id", log_start_offset=0, end_offset=0)
    shared.add(Followed(state, committed_start_offset=0, committed_end_offset=0, committed_epoch=0))
    return shared


def claim_from(shared: FollowerState, source: str) -> Claim:
    shared.assign({source: [ORDERS]})
    claim = shared.claim(source, MIB)
    assert claim is not None
    return claim


def answer(data: bytes, high_watermark: int) -> LeaderAnswer:
    return LeaderAnswer(
        topic_partition=ORDERS,
        outcome=FetchOutcome.RECORDS,
        data=data,
        high_watermark=high_watermark,
        log_start_offset=0,
    )


def test_answer_of_a_former_source_does_not_take_the_partition_back() -> None:
    shared = make_state()
    slow = claim_from(shared, "paused broker")
    data = batch([b"one", b"two"])
    assert shared.answered(claim_from(shared, "new leader"), [answer(data, 2)]) == len(data)
    for late in (answer(b"", 0), answer(data, 2)):
        assert shared.answered(slow, [late]) == 0
    (waiting,) = shared.next_commit()  # type: ignore[misc,union-attr]
    assert isinstance(waiting, WaitingChange)
    assert isinstance(waiting.change, FollowerAppend)
    assert bytes(waiting.change.raw) == data
    assert shared.next_commit() is None
    assert [each.offset for each in claim_from(shared, "new leader").positions] == [2]


def committed_next(shared: FollowerState, data: bytes) -> FollowerAppend:
    shared.answered(claim_from(shared, "broker"), [answer(data, 1)])
    (waiting,) = shared.next_commit()  # type: ignore[misc,union-attr]
    assert isinstance(waiting, WaitingChange)
    assert isinstance(waiting.change, FollowerAppend)
    assert waiting.size_bytes == len(data)
    assert bytes(waiting.change.raw) == data
    return waiting.change


def test_large_answer_is_checked_before_its_commit() -> None:
    assert isinstance(committed_next(make_state(), batch([bytes(2 * MIB)])).data, FollowerBatches)


def test_damaged_large_answer_is_left_to_the_check_of_its_commit() -> None:
    damaged = bytearray(batch([bytes(2 * MIB)]))
    damaged[MIB] ^= 1
    change = committed_next(make_state(), bytes(damaged))
    assert not isinstance(change.data, FollowerBatches)
    (refused,) = check_changes([change])
    assert isinstance(refused, CorruptRecordError)


def test_small_answer_is_checked_with_its_commit() -> None:
    assert not isinstance(committed_next(make_state(), batch([b"one"])).data, FollowerBatches)


def test_follower_that_is_to_end_fetches_up_to_what_the_leader_had_at_first() -> None:
    shared = make_state(is_once=True)
    first = claim_from(shared, "broker")
    shared.answered(first, [answer(batch([b"one", b"two"]), 3)])
    second = claim_from(shared, "broker")
    assert first.wait_ms < second.wait_ms  # at first it may be that there is nothing to wait for
    assert second.positions[0].offset == 2
    shared.answered(second, [answer((2).to_bytes(8, "big") + batch([b"three"])[8:], 5)])
    assert shared.claim("broker", MIB) is None


def test_follower_that_goes_on_fetches_when_it_has_everything() -> None:
    shared = make_state()
    shared.answered(claim_from(shared, "broker"), [answer(batch([b"one"]), 1)])
    assert claim_from(shared, "broker").positions[0].offset == 1
