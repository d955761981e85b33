"""The partition of `__consumer_offsets` or `__transaction_state` that holds a group or a transactional id.

It decides which server coordinates them. If the topic does not exist yet, the number of partitions with which it will
be created counts. A server that only reads keeps all groups in one place, which is partition 0.

Source of the rule: GroupCoordinatorService.partitionFor, kafka.coordinator.transaction.TransactionStateManager.
"""

from __future__ import annotations

from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, group_partition
from pyspark_kafkalog.root.transactions.states import TRANSACTION_STATE_TOPIC
from pyspark_kafkalog.server.context import ServerContext


def partition_of_group(context: ServerContext, group_id: str) -> int:
    """The partition of `__consumer_offsets` with the group, as of the last refresh."""
    return group_partition(group_id, offsets_partitions_count(context))


def partition_of_transactional_id(context: ServerContext, transactional_id: str) -> int:
    """The partition of `__transaction_state` with the id, as of the last refresh."""
    if context.native is None:
        return 0
    topic = context.image().topics.get(TRANSACTION_STATE_TOPIC)
    count = context.broker_config().transaction_state_log_num_partitions if topic is None else len(topic.partitions)
    return group_partition(transactional_id, count)


def offsets_partitions_count(context: ServerContext) -> int:
    """The number of partitions of `__consumer_offsets`."""
    if context.native is None:
        return 1
    topic = context.image().topics.get(OFFSETS_TOPIC)
    return context.broker_config().offsets_topic_num_partitions if topic is None else len(topic.partitions)
