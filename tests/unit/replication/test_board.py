"""The board of a follower: what becomes of answers that come too late."""

from __future__ import annotations

import random

from leader_writers import batch

from pyspark_kafkalog.replication.board import Board, Claim, Followed, Waiting
from pyspark_kafkalog.replication.leader import FetchedPartition, FetchOutcome
from pyspark_kafkalog.replication.partition_state import PartitionState
from pyspark_kafkalog.root.follower.changes import FollowerAppend
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

ORDERS = TopicPartition("orders", 0)


def make_board() -> Board:
    board = Board(
        buffer_bytes=8 * MIB,
        commit_interval_s=0.0,
        monotonic_s=lambda: 1.0,
        rng=random.Random(1),
        on_event=lambda event: None,
    )
    state = PartitionState(topic_partition=ORDERS, topic_id="id", log_start_offset=0, end_offset=0)
    board.add(Followed(state, committed_start_offset=0, committed_end_offset=0, committed_epoch=0))
    return board


def claim_from(board: Board, source: str) -> Claim:
    board.assign({source: [ORDERS]})
    claim = board.claim(source, MIB)
    assert claim is not None
    return claim


def answer(data: bytes, high_watermark: int) -> FetchedPartition:
    return FetchedPartition(
        topic_partition=ORDERS,
        outcome=FetchOutcome.RECORDS,
        data=data,
        high_watermark=high_watermark,
        log_start_offset=0,
    )


def test_answer_of_a_former_source_does_not_take_the_partition_back() -> None:
    board = make_board()
    slow = claim_from(board, "paused broker")
    data = batch([b"one", b"two"])
    assert board.answered(claim_from(board, "new leader"), [answer(data, 2)]) == len(data)
    for late in (answer(b"", 0), answer(data, 2)):
        assert board.answered(slow, [late]) == 0
    (waiting,) = board.next_commit()  # type: ignore[misc,union-attr]
    assert isinstance(waiting, Waiting)
    assert isinstance(waiting.change, FollowerAppend)
    assert bytes(waiting.change.data) == data
    assert board.next_commit() is None
    assert [each.offset for each in claim_from(board, "new leader").positions] == [2]
