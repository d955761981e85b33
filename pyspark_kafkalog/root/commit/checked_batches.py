"""Batches of clients for one partition that were checked before their commit: each is an append of its own.

Usually they follow each other as one producer has sent them, and the log's last batch. Then all get their offsets in
one call, and their headers are set where they lie. Otherwise each of them is a unit (changes.py), which may be refused
alone, or is a duplicate.

Nothing here writes. The memory of the batches has no other user until their commit has ended; a commit that is planned
again sets their headers again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.record.header import TimestampType
from pyspark_kafkalog.record.kernels.validate import place_batches
from pyspark_kafkalog.root.commit.changes import CommitUnit, LeaderAppend
from pyspark_kafkalog.storage.log.leader_append import LeaderBatches, PreparedBatches, ProducerView
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class CheckedBatches:
    """`table` (BATCH_DTYPE) has a row a batch, with offsets from 0 on; `data` its bytes, which lie at `addresses`.

    They were checked for a topic with `config` at the times `checked_ms`. `topic_id` as in LeaderAppend.
    """

    topic_partition: TopicPartition
    topic_id: str | None
    config: LogConfig
    checked_ms: Sequence[int]
    data: Sequence[NDArray[np.uint8]]
    addresses: NDArray[np.int64]
    table: NDArray[np.void]

    def units(self) -> list[CommitUnit]:
        """A unit of each batch."""
        return [self._unit(at) for at in range(len(self.table))]

    def _unit(self, at: int) -> CommitUnit:
        batches = LeaderBatches(self.data[at], self.table[at : at + 1])
        append = LeaderAppend(
            topic_partition=self.topic_partition,
            data=b"",
            topic_id=self.topic_id,
            prepared=PreparedBatches(batches, self.config, self.checked_ms[at]),
        )
        return CommitUnit(appends=(append,), size_bytes=len(self.data[at]))

    def placed(
        self, config: LogConfig, producers: ProducerView, *, next_offset: int, leader_epoch: int
    ) -> LeaderBatches | None:
        """All batches from `next_offset` on, of which `producers` then has the last; None if each has to be looked at.

        `config` is the topic's now.
        """
        if config.message_timestamp_type is not TimestampType.CREATE_TIME:
            return None
        if config is not self.config and config != self.config:
            return None
        table = self.table.copy()
        producer = producers.expected(int(table["producer_id"][0]))
        if producer is None:
            return None
        rules = np.array((next_offset, leader_epoch, *producer), dtype=np.int64)
        if place_batches(self.addresses, rules, table) < 0:
            return None
        producers.follow(table)
        return LeaderBatches(self.data[0] if len(table) == 1 else np.concatenate(self.data), table)
