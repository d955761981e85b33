"""The partitions that readers ask for, as snapshots of the root, and the errors of those that cannot be read.

A topic is named by its name or by its id. The snapshot of a native root's partition is made once for each state of it:
as long as nothing is committed to the partition, the same object is returned, which is how a waiting fetch sees that a
partition has not changed.

Another server may have committed a millisecond ago, so no request is answered that something does not exist before the
root was refreshed: `Partitions.refresh`, then again `find`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.server.context import ServerContext, Session
from pyspark_kafkalog.server.error_codes import error_code_of
from pyspark_kafkalog.server.metadata.known_topics import known_topics

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Known:
    """A snapshot, and the part of the image that it was made from."""

    partition: PartitionImage
    broker_configs: Mapping[str, Mapping[str, str]]
    snapshot: PartitionSnapshot


class Partitions:
    """Finds the partitions of one root; for several threads."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Known] = {}
        #: A read-only root lists its directories again while it refreshes, and reads partitions on first access.
        self._lock = threading.Lock()

    async def run(self, context: ServerContext, work: Callable[[], _T]) -> _T:
        """The result of `work` with the snapshots of the root, in a thread if they have to be read from files."""
        return work() if isinstance(context.root, NativeRoot) else await context.run(work)

    async def refresh(self, context: ServerContext) -> None:
        """Bring the root up to date."""

        def work() -> None:
            if isinstance(context.root, NativeRoot):
                context.root.refresh()
            else:
                with self._lock:
                    context.root.refresh()

        await context.run(work)

    def follow(self, context: ServerContext) -> None:
        """Bring a root up to date that other servers commit to, in a thread: for answers that clients compare with what
        other servers have announced them. A broker's directory is not listed again.
        """
        if isinstance(context.root, NativeRoot):
            context.root.refresh()

    def topic_name(self, context: ServerContext, topic_id: str) -> str | None:
        """The topic with that id; None if there is none. Of a read-only root, this reads files."""
        if isinstance(context.root, NativeRoot):
            return known_topics(context).name(topic_id)
        with self._lock:
            return known_topics(context).name(topic_id)

    def find(self, context: ServerContext, topic: str, partition: int) -> PartitionSnapshot | None:
        """The partition; None if it does not exist. Of a read-only root, this reads files.

        Raises what reading a broker's directory raises.
        """
        if isinstance(context.root, NativeRoot):
            return self._of_image(context.root, context.root.store.image, topic, partition)
        with self._lock:
            try:
                return context.root.partition(topic, partition)
            except UnknownTopicError:
                return None

    def version(self, context: ServerContext) -> int | None:
        """A number that is the same as long as no partition changes; None if that is not known."""
        return context.root.store.image.next_offset if isinstance(context.root, NativeRoot) else None

    def are_current(self, context: ServerContext, snapshots: Sequence[PartitionSnapshot | None]) -> Iterable[bool]:
        """Whether `find` gives the same snapshot now. Of a read-only root, this reads files."""
        if isinstance(context.root, NativeRoot):
            return self._are_of_image(context.root.store.image, snapshots)
        return [each is not None and self._is_found(context, each) for each in snapshots]

    def _are_of_image(self, image: MetadataImage, snapshots: Iterable[PartitionSnapshot | None]) -> Iterable[bool]:
        """For thousands of partitions: nothing is made for those that have not changed."""
        topics, known = image.topics, self._known
        for each in snapshots:
            found = None if each is None else known.get((each.topic, each.partition))
            if (
                each is None
                or found is None
                or found.snapshot is not each
                or found.broker_configs is not image.broker_configs
            ):
                yield False
                continue
            topic = topics.get(each.topic)
            partitions = () if topic is None else topic.partitions
            yield each.partition < len(partitions) and partitions[each.partition] is found.partition

    def _is_found(self, context: ServerContext, snapshot: PartitionSnapshot) -> bool:
        try:
            return self.find(context, snapshot.topic, snapshot.partition) is snapshot
        except (KafkalogError, OSError):
            return False  # its reads report the error

    def _of_image(self, root: NativeRoot, image: MetadataImage, topic: str, partition: int) -> PartitionSnapshot | None:
        found = image.find(topic, partition)
        name = topic, partition
        if found is None:
            self._known.pop(name, None)
            return None
        known = self._known.get(name)
        if known is None or known.partition is not found or known.broker_configs is not image.broker_configs:
            try:
                snapshot = root.partition(topic, partition)
            except UnknownTopicError:  # deleted this moment
                return None
            known = self._known[name] = _Known(found, image.broker_configs, snapshot)
        return known.snapshot


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
