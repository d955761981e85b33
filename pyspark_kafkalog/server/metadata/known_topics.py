"""The topics of a server's root: names, ids, partitions.

Of a native root they are those of the image. Of a broker's directory they are those that it holds: without ids if the
broker was older than 2.8, and with the partitions whose directories are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.metadata.image import may_be_elsewhere
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.messages.offsets import OffsetCommitRequestTopic, OffsetFetchRequestTopics
from pyspark_kafkalog.protocol.messages.transactions import TxnOffsetCommitRequestTopic
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.server.event_loop import in_turns
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.image import MetadataImage
    from pyspark_kafkalog.server.context import ServerContext


_T = TypeVar("_T", OffsetCommitRequestTopic, OffsetFetchRequestTopics, TxnOffsetCommitRequestTopic)


class KnownTopics(Protocol):
    """The topics as of some time."""

    @property
    def version(self) -> int:
        """Grows with each change; 0 if changes are not counted."""
        ...

    def names(self) -> Collection[str]: ...

    def topic_id(self, name: str) -> str | None: ...

    def name(self, topic_id: str) -> str | None: ...

    def partition_numbers(self, topic_id: str) -> Sequence[int]:
        """The numbers of the partitions that exist, in order: of a topic in a broker's directory there may be gaps."""
        ...

    def has(self, name: str, partition: int) -> bool: ...

    def has_committed(self, name: str, topic_id: str | None, written_at: tuple[int, int] | None) -> bool:
        """Whether an offset was committed of the topic that exists now (see MetadataImage)."""
        ...

    def is_elsewhere(self, name: str, written_at: tuple[int, int] | None) -> bool:
        """Whether an offset may be of a topic on another broker (see `may_be_elsewhere`)."""
        ...


def known_topics(context: ServerContext) -> KnownTopics:
    """The topics of the server's root as of its last refresh."""
    root = context.root
    return RootTopics(root) if isinstance(root, ReadOnlyRoot) else ImageTopics(root.native().store.image)


def current_topic_name(context: ServerContext, topic_id: str) -> str | None:
    """The topic with that id, which another server may have created a moment ago; None if there is none."""
    name = known_topics(context).name(topic_id)
    if name is None:
        context.root.refresh()
        name = known_topics(context).name(topic_id)
    return name


async def with_names(context: ServerContext, topics: Sequence[_T], *, has_ids: bool) -> Sequence[_T]:
    """Topics of a request, with their names if it states ids; the name is empty where no topic has the id.

    Another server may have created a topic a moment ago.
    """
    if not has_ids:
        return topics
    known = known_topics(context)
    async for each in in_turns(topics):
        if each.topic_id != ZERO_UUID and known.name(each.topic_id) is None:
            await context.refresh()
            known = known_topics(context)
            break
    return tuple([each.replace(name=known.name(each.topic_id) or "") async for each in in_turns(topics)])


async def know_partitions(context: ServerContext, partitions: Iterable[TopicPartition]) -> None:
    """Bring the root up to date if it lacks one of the partitions: another server may just have created it."""
    known = known_topics(context)
    async for each in in_turns(partitions):
        if not known.has(each.topic, each.partition):
            await context.refresh()
            return


class ImageTopics:
    """The topics of a native root."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image.next_offset

    def names(self) -> Collection[str]:
        return self._image.topics

    def topic_id(self, name: str) -> str | None:
        topic = self._image.topics.get(name)
        return None if topic is None else topic.topic_id

    def name(self, topic_id: str) -> str | None:
        return self._image.topic_names.get(topic_id)

    def partition_numbers(self, topic_id: str) -> Sequence[int]:
        name = self._image.topic_names.get(topic_id)
        return range(0) if name is None else range(len(self._image.topics[name].partitions))

    def has(self, name: str, partition: int) -> bool:
        return self._image.find(name, partition) is not None

    def has_committed(self, name: str, topic_id: str | None, written_at: tuple[int, int] | None) -> bool:
        return self._image.has_committed(name, topic_id, written_at)

    def is_elsewhere(self, name: str, written_at: tuple[int, int] | None) -> bool:
        return may_be_elsewhere(self._image, name, written_at)


class RootTopics:
    """The topics of a broker's directory, or of several. Ids are read from the directories when they are asked for."""

    version = 0

    def __init__(self, root: ReadOnlyRoot) -> None:
        self._root = root

    def names(self) -> Collection[str]:
        return frozenset(self._root.topics())

    def topic_id(self, name: str) -> str | None:
        try:
            return self._root.topic_id(name)
        except UnknownTopicError:
            return None

    def name(self, topic_id: str) -> str | None:
        return self._root.topic_name(topic_id)

    def partition_numbers(self, topic_id: str) -> Sequence[int]:
        name = self.name(topic_id)
        return () if name is None else tuple(sorted(self._numbers(name)))

    def has(self, name: str, partition: int) -> bool:
        return partition in self._numbers(name)

    def has_committed(self, name: str, topic_id: str | None, written_at: tuple[int, int] | None) -> bool:
        """A topic that is not here may be in the directory of another broker."""
        return topic_id is None or self.topic_id(name) in (None, topic_id)

    def is_elsewhere(self, name: str, written_at: tuple[int, int] | None) -> bool:
        return self.topic_id(name) is None

    def _numbers(self, name: str) -> tuple[int, ...]:
        try:
            return self._root.partition_numbers(name)
        except UnknownTopicError:
            return ()
