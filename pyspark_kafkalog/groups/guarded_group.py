"""Consumer groups of a root, guarded if the root was opened for a principal.

`open_group` and `list_groups` work on any root. For a root opened for a principal, groups that the principal may not
describe are not listed, and a `GuardedGroup` checks each operation as a broker does. The group itself works on the root
beneath, as a broker's group coordinator reads and writes `__consumer_offsets` by its own authority.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pyspark_kafkalog.groups.group import AnyOffsets, AnyPartition, Group, PartitionLag, as_topic_partition
from pyspark_kafkalog.groups.offsets_topic import LeftOut, group_names
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType

if TYPE_CHECKING:
    from pyspark_kafkalog.groups.group_state import GroupDescription
    from pyspark_kafkalog.groups.offset_records import OffsetAndMetadata
    from pyspark_kafkalog.groups.resets import ResetTarget
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.storage.filesystem import FlushMode
    from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)
_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP


class GuardedGroup:
    """A `Group` whose methods raise AuthorizationError for what the principal may not do. See `Group` for each."""

    def __init__(self, root: Root, group_id: str) -> None:
        """Raises AuthorizationError if the principal may not describe the group, InvalidGroupError."""
        root.check(AclOperation.DESCRIBE, _GROUP, group_id)
        self._root = root
        self._group = Group(root.coordinator_root(), group_id)
        self.group_id = self._group.group_id

    def __repr__(self) -> str:
        return repr(self._group)

    @property
    def root(self) -> Root:
        """The guarded root that stores the group."""
        return self._root

    # What DESCRIBE on the group permits

    def exists(self) -> bool:
        return self._group.exists()

    def describe(self) -> GroupDescription:
        return self._group.describe()

    def fetch(self, topics: Collection[str] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """As Kafka's OffsetFetch: omits topics that the principal may not describe, and refuses them if named."""
        self._check_topics(topics)
        return {each: found for each, found in self._group.fetch(topics).items() if self._may_describe(each.topic)}

    def lag(self, topics: Collection[str] | None = None) -> list[PartitionLag]:
        self._check_topics(topics)
        return [each for each in self._group.lag(topics) if self._may_describe(each.topic_partition.topic)]

    def _check_topics(self, topics: Collection[str] | None) -> None:
        for topic in topics or ():
            self._root.check(AclOperation.DESCRIBE, _TOPIC, topic)

    def _may_describe(self, topic: str) -> bool:
        return self._root.allows(AclOperation.DESCRIBE, _TOPIC, topic)

    # As Kafka's OffsetCommit: needs READ on the group and on each topic

    def commit(self, offsets: AnyOffsets, metadata: str = "", *, flush: FlushMode = "fsync") -> None:
        self._check_commit(offsets)
        self._group.commit(offsets, metadata, flush=flush)

    def reset(
        self,
        target: ResetTarget | Literal["earliest", "latest", "current"] | int | datetime,
        partitions: Iterable[AnyPartition] | None = None,
        *,
        dry_run: bool = False,
        notify: Callable[[str], None] = _LOG.warning,
    ) -> dict[TopicPartition, int]:
        chosen = None if partitions is None else [as_topic_partition(each) for each in partitions]
        self._check_commit(self.fetch() if chosen is None else chosen)
        return self._group.reset(target, chosen, dry_run=dry_run, notify=notify)

    def _check_commit(self, partitions: Iterable[AnyPartition]) -> None:
        self._root.check(AclOperation.READ, _GROUP, self.group_id)
        self._check_read(as_topic_partition(each) for each in partitions)

    def _check_read(self, partitions: Iterable[TopicPartition]) -> None:
        for topic in sorted({each.topic for each in partitions}):
            self._root.check(AclOperation.READ, _TOPIC, topic)

    # What DELETE on the group permits

    def delete_offsets(self, partitions: Iterable[AnyPartition]) -> list[TopicPartition]:
        chosen = [as_topic_partition(each) for each in partitions]
        self._root.check(AclOperation.DELETE, _GROUP, self.group_id)
        self._check_read(chosen)
        return self._group.delete_offsets(chosen)

    def delete(self) -> None:
        self._root.check(AclOperation.DELETE, _GROUP, self.group_id)
        self._group.delete()

    def expire_offsets(
        self, older_than_ms: int, *, now_ms: int | None = None, dry_run: bool = False
    ) -> list[TopicPartition]:
        self._root.check(AclOperation.DELETE, _GROUP, self.group_id)
        return self._group.expire_offsets(older_than_ms, now_ms=now_ms, dry_run=dry_run)


#: A group as `open_group` returns it; both classes have the same methods.
AnyGroup: TypeAlias = Group | GuardedGroup


def open_group(root: Root, group_id: str) -> AnyGroup:
    """The consumer group of that name, which need not exist yet. Raises InvalidGroupError for an invalid name."""
    return Group(root, group_id) if root.principal is None else GuardedGroup(root, group_id)


def list_groups(root: Root, *, left_out: LeftOut | None = None) -> tuple[str, ...]:
    """Names of all groups in `__consumer_offsets` that may be described, in order.

    `left_out` takes the errors of partitions that cannot be read; without it they are raised.
    """
    names = group_names(root.coordinator_root(), left_out=left_out)
    return tuple(name for name in names if root.allows(AclOperation.DESCRIBE, _GROUP, name))
