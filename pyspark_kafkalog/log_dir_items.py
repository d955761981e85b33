"""What a `LogDir` hands out to work with: topics, logs, consumer groups; and how it shows itself in a notebook.

    log_dir["orders"]           a topic                 notebook.topic_log.TopicLog
    log_dir["orders", 0]        one partition's log     notebook.partition_log.PartitionLog
    "orders" in log_dir         is there such a topic?
    for name in log_dir         the topics' names
    log_dir.group("g")          a consumer group        groups.group.Group
    log_dir.access_control()    who may do what         access_control.AccessControl

Their modules load on first use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast, overload

if TYPE_CHECKING:
    from pyspark_kafkalog.access_control import AccessControl
    from pyspark_kafkalog.groups.group import Group
    from pyspark_kafkalog.log_dir import LogDir
    from pyspark_kafkalog.notebook.partition_log import PartitionLog
    from pyspark_kafkalog.notebook.topic_log import TopicLog


class LogDirItems(ABC):
    """The part of `LogDir` whose work is done elsewhere."""

    @abstractmethod
    def topics(self) -> tuple[str, ...]:
        """Names of the topics, in order."""
        ...

    @overload
    def __getitem__(self, item: str) -> TopicLog: ...

    @overload
    def __getitem__(self, item: tuple[str, int]) -> PartitionLog: ...

    def __getitem__(self, item: str | tuple[str, int]) -> TopicLog | PartitionLog:
        """A topic by its name, a partition's log by the topic's name and its number. Raises UnknownTopicError."""
        from pyspark_kafkalog.notebook.topic_log import TopicLog

        log_dir = cast("LogDir", self)
        if isinstance(item, tuple):
            topic, partition = item
            return TopicLog.open(log_dir, topic)[partition]
        return TopicLog.open(log_dir, item)

    def access_control(self) -> AccessControl:
        """The access control entries, and changing them; they hold for who opens with a principal."""
        from pyspark_kafkalog.access_control import AccessControl

        return AccessControl(cast("LogDir", self))

    def __iter__(self) -> Iterator[str]:
        return iter(self.topics())

    def __contains__(self, topic: object) -> bool:
        return topic in self.topics()

    def group(self, group_id: str) -> Group:
        """The consumer group of that name, which may have committed nothing yet. Raises InvalidGroupError."""
        from pyspark_kafkalog.groups.group import Group

        return Group(cast("LogDir", self), group_id)

    def groups(self) -> tuple[str, ...]:
        """Names of all groups in `__consumer_offsets`, in order."""
        from pyspark_kafkalog.groups.group_log import group_names

        return group_names(cast("LogDir", self))

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.topics())

    def _repr_html_(self) -> str:
        from pyspark_kafkalog.notebook.log_dir_html import log_dir_html

        return log_dir_html(cast("LogDir", self))
