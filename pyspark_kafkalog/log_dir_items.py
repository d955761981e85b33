"""Accessors of a `LogDir` for topics, logs, groups and access control, and its display in a notebook.

    log_dir["orders"]           a topic                      notebook.topic_log.TopicLog
    log_dir["orders", 0]        one partition's log          notebook.partition_log.PartitionLog
    "orders" in log_dir         whether the topic exists
    for name in log_dir         the names of the topics
    log_dir.group("g")          a consumer group             groups.group.Group
    log_dir.access_control()    the access control entries   access_control.AccessControl

The modules of these classes load on first use.
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
    """The methods of `LogDir` that only create objects of other modules."""

    @abstractmethod
    def topics(self) -> tuple[str, ...]:
        """Names of the topics, in order."""
        ...

    @overload
    def __getitem__(self, item: str) -> TopicLog: ...

    @overload
    def __getitem__(self, item: tuple[str, int]) -> PartitionLog: ...

    def __getitem__(self, item: str | tuple[str, int]) -> TopicLog | PartitionLog:
        """A topic, by name; or a partition's log, by topic name and partition number. Raises UnknownTopicError."""
        from pyspark_kafkalog.notebook.topic_log import TopicLog

        log_dir = cast("LogDir", self)
        if isinstance(item, tuple):
            topic, partition = item
            return TopicLog.open(log_dir, topic)[partition]
        return TopicLog.open(log_dir, item)

    def access_control(self) -> AccessControl:
        """Lists and changes the access control entries. They apply to a LogDir opened with a principal."""
        from pyspark_kafkalog.access_control import AccessControl

        return AccessControl(cast("LogDir", self))

    def __iter__(self) -> Iterator[str]:
        return iter(self.topics())

    def __contains__(self, topic: object) -> bool:
        return topic in self.topics()

    def group(self, group_id: str) -> Group:
        """The consumer group of that name, which need not exist yet. Raises InvalidGroupError for an invalid name."""
        from pyspark_kafkalog.groups.group import Group

        return Group(cast("LogDir", self), group_id)

    def groups(self) -> tuple[str, ...]:
        """Names of all groups in `__consumer_offsets`, in order."""
        from pyspark_kafkalog.groups.group_log import group_names

        return group_names(cast("LogDir", self))

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.topics())

    def _repr_html_(self) -> str:
        from pyspark_kafkalog.notebook.log_html import log_dir_html

        return log_dir_html(cast("LogDir", self))
