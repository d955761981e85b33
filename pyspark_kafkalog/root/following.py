"""Begins following a leader, and ends it by a promotion.

The commit log says that a root follows (`Following` in metadata/image.py). Beginning again for the same leader replaces
the id, so that the follower before it, if it still runs, cannot commit any more.

A promotion is one commit: following ends; each partition gets a leader epoch above every one that is known of the
leader; the next producer id is above those that the leader may have handed out. From then on the follower's commits
fail, and anybody may write. What is written has the new leader epoch, so what the former leader has written since is
seen to diverge, and the former leader may follow this root. Transactions that were open stay open: the server's
coordinator continues with those in `__transaction_state`, and `kafkalog transactions` ends any of them.

A crash leaves the root following or not: each of the changes is one commit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import FollowingEndedError, FollowingRootError
from pyspark_kafkalog.metadata.image import Following, MetadataImage, following_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, PartitionChangeRecord, ProducerIdsRecord
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.storage.names import encode_uuid

#: Brokers hand out producer ids from blocks of this size (ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE in Kafka).
_PRODUCER_ID_BLOCK: Final = 1000
#: Blocks that brokers may hold of which no id was seen here: one a broker and restart, with much to spare.
_UNSEEN_BLOCKS: Final = 10_000


def begin_following(root: NativeRoot, *, leader: str, cluster_id: str, topics: str) -> str:
    """Make `root` follow the leader called `leader`, whose cluster has the id `cluster_id`; returns the following id.

    `topics` is the regular expression of the topics that are followed. If the root
    follows the same cluster already, the new follower replaces the old one. Raises FollowingRootError if the root
    follows another cluster.
    """
    # Never from a seeded generator: two followers must not take each other's id for their own.
    following_id = encode_uuid(os.urandom(16))

    def build(image: MetadataImage) -> list[MetadataRecord]:
        known = image.following
        if known is not None and known.cluster_id != cluster_id:
            raise FollowingRootError(
                f"the root follows {known.leader}, whose cluster id is {known.cluster_id}, not {leader} with "
                f"{cluster_id}: kafkalog promote ends following, and then it may follow another leader"
            )
        following = Following(
            following_id=following_id,
            leader=leader,
            cluster_id=cluster_id,
            topics=topics,
            since_ms=root.clock() if known is None else known.since_ms,
            had_records=_has_records(image) if known is None else known.had_records,
        )
        return [following_record(following)]

    root.commit(build, operation="follow")
    return following_id


def _has_records(image: MetadataImage) -> bool:
    states = (each.state for topic in image.topics.values() for each in topic.partitions)
    return any(state.log_start_offset < state.log_end_offset for state in states)


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

    root.commit(build, operation="promote")
    return promoted[0]


def _next_producer_id(known: int) -> int:
    """An id above all that the leader may have handed out; those below `known` were seen in what it wrote."""
    return (known // _PRODUCER_ID_BLOCK + _UNSEEN_BLOCKS) * _PRODUCER_ID_BLOCK
