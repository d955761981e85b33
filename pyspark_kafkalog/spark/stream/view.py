"""The readable partitions of a stream's subscription, all as of one moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.spark.options.positions import Assign, Subscription
from pyspark_kafkalog.spark.read.plan import readable_topics
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot
    from pyspark_kafkalog.storage.log.reader import PartitionExtents

_TRIES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition: [readable_start_offset, readable_end_offset) can be read; those before are in remote storage.

    The readable end is the last stable offset for read_committed, else the high watermark. `topic_id` is None if a
    broker's directory has no id for the topic, `directory` None for a log in object
    stores only. The active segment's base offset and size in bytes are -1 if unknown.
    """

    topic_partition: TopicPartition
    topic_id: str | None
    directory: Path | None
    log_start_offset: int
    readable_start_offset: int
    high_watermark: int
    readable_end_offset: int
    active_base_offset: int
    active_size_bytes: int
    is_broker_directory: bool
    #: What a LogReader of the partition reads.
    extents: Callable[[], PartitionExtents]

    def reaches(self, offset: int) -> bool:
        """Whether the log is long enough that `offset` can be a reader's next offset."""
        return offset <= self.high_watermark or offset <= self.log_end_offset()

    def log_end_offset(self) -> int:
        """The end of the log on disk; in a native log directory the high watermark.

        A broker's checkpoint of high watermarks may be behind the position of a reader, because a partition without a
        line in it is read to the log end offset. The log itself is not behind unless it was truncated.
        """
        if not self.is_broker_directory or self.directory is None:
            return self.high_watermark
        from pyspark_kafkalog.storage.log.log_state import load_read_only

        return load_read_only(self.directory, log_start_offset=self.log_start_offset).log_end_offset

    def known_size_bytes(self, start_offset: int) -> int | None:
        """A bound on the bytes from `start_offset` on, if that is in the active segment and its size is known."""
        is_known = 0 <= self.active_base_offset <= start_offset and self.active_size_bytes >= 0
        return self.active_size_bytes if is_known else None

    def estimated_bytes(self, start_offset: int, end_offset: int) -> int | None:
        """The approximate size in bytes of the offsets [start_offset, end_offset), if in the active segment."""
        size_bytes, span = self.known_size_bytes(start_offset), self.high_watermark - self.active_base_offset
        return None if size_bytes is None or span <= 0 else size_bytes * (end_offset - start_offset) // span


StreamView: TypeAlias = Mapping[TopicPartition, PartitionView]


def take_view(root: Root, subscription: Subscription, *, committed: bool) -> StreamView:
    """The existing subscribed partitions, in order, as of the last refresh of `root`.

    In a running broker's directory a partition may be deleted while it is read: then all are read again.
    """
    for _ in range(_TRIES - 1):
        try:
            return _read_view(root, subscription, committed)
        except (FileNotFoundError, UnknownTopicError):
            root.refresh()
    return _read_view(root, subscription, committed)


def _read_view(root: Root, subscription: Subscription, committed: bool) -> StreamView:
    assigned = frozenset(subscription.partitions) if isinstance(subscription, Assign) else None
    view: dict[TopicPartition, PartitionView] = {}
    for name in readable_topics(root, subscription):
        topic = root.topic(name, readable_only=assigned is not None)
        for number, error in topic.unreadable.items():
            if assigned is not None and TopicPartition(name, number) in assigned:
                raise error
        for found in topic.partitions:
            topic_partition = TopicPartition(name, found.partition)
            if assigned is None or topic_partition in assigned:
                view[topic_partition] = _view(root, found, committed)
    return view


def _view(root: Root, found: PartitionSnapshot, committed: bool) -> PartitionView:
    return PartitionView(
        topic_partition=found.topic_partition,
        topic_id=found.topic_id,
        directory=found.local_directory,
        log_start_offset=found.log_start_offset,
        readable_start_offset=found.readable_start_offset,
        high_watermark=found.high_watermark,
        readable_end_offset=found.readable_end("read_committed" if committed else "read_uncommitted"),
        active_base_offset=found.active_base_offset,
        active_size_bytes=found.active_size_bytes,
        is_broker_directory=root.is_broker_directory and not (found.remote is not None and found.remote.is_all),
        extents=found.extents,
    )
