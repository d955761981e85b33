"""Checks of the partitions that readers ask for, and the errors of those that cannot be read.

Another server may have committed a millisecond ago, so no request is answered that something does not exist before the
root was refreshed: `RootPartitions.refresh`, then again `find`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.root.reads import RootPartitions
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.server.context import ServerContext, Session
from pyspark_kafkalog.server.request_errors import error_code_of

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


async def run_with(partitions: RootPartitions, context: ServerContext, work: Callable[[], _T]) -> _T:
    """The result of `work` with snapshots of the root, in a thread if they have to be read from files."""
    return await context.run(work) if partitions.reads_files else work()


def may(context: ServerContext, session: Session, operation: AclOperation, topic: str) -> bool:
    """Whether the client may do this with the topic."""
    return context.guard.allows(session, operation, ResourceType.TOPIC, topic)


def may_act_for_cluster(context: ServerContext, session: Session) -> bool:
    """Whether the client may act as a broker: fetch as a follower does."""
    return context.guard.allows(session, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)


def epoch_error(found: PartitionSnapshot, current_leader_epoch: int) -> ErrorCode | None:
    """What is wrong with a client's current leader epoch, -1 if it does not say (Partition.checkCurrentLeaderEpoch)."""
    if current_leader_epoch in (-1, found.leader_epoch):
        return None
    is_older = current_leader_epoch < found.leader_epoch
    return ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH


def error_code(error: Exception, of: object) -> ErrorCode:
    """The code for an error of reading the partition `of`. It is logged unless it concerns the client alone."""
    if not isinstance(error, (KafkalogError, OSError)):
        raise error
    # As a broker does: the client stops at a damaged batch, which asking again does not mend.
    code = ErrorCode.CORRUPT_MESSAGE if isinstance(error, CorruptRecordError) else error_code_of(error)
    if not isinstance(error, (OffsetOutOfRangeError, UnknownTopicError)):
        _LOG.error("%s: %s", of, error)
    return code
