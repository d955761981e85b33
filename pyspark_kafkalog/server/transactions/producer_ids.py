"""Producer ids for clients, in blocks that a commit allocates.

A block of 1,000 ids is one ProducerIdsRecord; ids that a server has not given out when it stops are never used. Writers
of this package (root/write_transaction.py) allocate theirs from the same counter, so no two producers get the same id.

A transactional id of a client and one of a Spark writer that have the same name are two: one is a state in
`__transaction_state`, the other in the commit log, and neither fences the other.

Source of the rules: org.apache.kafka.coordinator.transaction.RPCProducerIdManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, ProducerIdsRecord
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit
from pyspark_kafkalog.server.context import Committer

#: Ids in one block, as many as a broker's.
BLOCK_SIZE: Final = 1000


class ProducerIds:
    """The ids of this server. `follows`: whether the root follows a leader, whose counter gives out the ids then."""

    def __init__(self, committer: Committer, follows: Callable[[], bool]) -> None:
        self._committer = committer
        self._follows = follows
        self._lock = asyncio.Lock()
        self._next = self._end = 0

    async def take(self) -> int:
        """An id that nobody else gets. Raises as Committer.commit does."""
        async with self._lock:
            if self._next == self._end or self._follows():  # then the commit is refused
                self._next = await self._allocate()
                self._end = self._next + BLOCK_SIZE
            self._next += 1
            return self._next - 1

    async def _allocate(self) -> int:
        first = -1

        def records(image: MetadataImage, appended: Sequence[AppendedRange]) -> Sequence[MetadataRecord]:
            nonlocal first
            first = image.next_producer_id
            node = image.node
            return (
                ProducerIdsRecord(
                    broker_id=node.broker_id, broker_epoch=node.broker_epoch, next_producer_id=first + BLOCK_SIZE
                ),
            )

        await self._committer.commit(CommitUnit(appends=lambda image: (), records=records))
        return first
