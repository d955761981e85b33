"""Promotion: a root that follows becomes one that takes writes.

    lock a root on a file system; refresh the image
    one commit: following ends; each partition gets a leader epoch above every one that is known of the leader; the
                next producer id is above those that the leader may have handed out

From then on the follower's commits fail, and anybody may write. What is written has the new leader epoch, so what the
former leader has written since is seen to diverge, and the former leader may follow this root. Transactions that were
open stay open: the server's coordinator goes on with those in `__transaction_state`, and `kafkalog transactions` ends
any of them.

A crash leaves a root that follows, or one that was promoted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import FollowingEndedError
from pyspark_kafkalog.metadata.image import Following, MetadataImage, following_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, PartitionChangeRecord, ProducerIdsRecord
from pyspark_kafkalog.root.native import NativeRoot

_OPERATION: Final = "promote"
#: Brokers hand out producer ids from blocks of this size (ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE in Kafka).
_PRODUCER_ID_BLOCK: Final = 1000
#: Blocks that brokers may hold of which no id was seen here: one a broker and restart, with much to spare.
_UNSEEN_BLOCKS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Promotion:
    """What was promoted: the leader that the root followed, and the number of partitions that got a leader epoch."""

    following: Following
    partitions_count: int


def promote(root: NativeRoot) -> Promotion:
    """End following and let `root` take writes. Raises FollowingEndedError if it does not follow."""
    promoted: list[Promotion] = []

    def build(image: MetadataImage) -> list[MetadataRecord]:
        if image.following is None:
            raise FollowingEndedError(f"{root.path} does not follow a leader: it takes writes already")
        elections = [
            # A change of the leader raises the leader epoch by one, and that of the partition never falls while it
            # follows: it is the highest one known.
            PartitionChangeRecord(partition_id=each.partition, topic_id=topic.topic_id, leader=image.node.broker_id)
            for topic in image.topics.values()
            for each in topic.partitions
        ]
        promoted[:] = [Promotion(image.following, len(elections))]
        next_producer_id = _next_producer_id(image.next_producer_id)
        return [following_record(None), *elections, ProducerIdsRecord(broker_id=-1, next_producer_id=next_producer_id)]

    root.commit(build, operation=_OPERATION)
    return promoted[0]


def _next_producer_id(known: int) -> int:
    """An id above all that the leader may have handed out; those below `known` were seen in what it wrote."""
    return (known // _PRODUCER_ID_BLOCK + _UNSEEN_BLOCKS) * _PRODUCER_ID_BLOCK
