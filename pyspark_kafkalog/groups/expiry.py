"""Expires the offsets of groups that no longer commit, after `offsets.retention.minutes`.

A broker expires offsets automatically; in a log directory they remain until this is called. Groups have no members
here, so the age of an offset counts from its commit, as a broker counts it for groups without members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import UnknownGroupError
from pyspark_kafkalog.groups.group import Group
from pyspark_kafkalog.groups.group_log import group_names
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MINUTE_MS

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root


def expire_offsets(root: Root) -> dict[str, list[TopicPartition]]:
    """Delete expired offsets, one commit for each group; return their partitions by group.

    Raises ReadOnlyLogDirError for a broker's directory.
    """
    native = root.native()
    root.refresh()
    older_than_ms = native.clock() - native.broker_config().offsets_retention_minutes * MINUTE_MS
    expired: dict[str, list[TopicPartition]] = {}
    for name in group_names(root):
        try:
            gone = Group(root, name).expire_offsets(older_than_ms)
        except UnknownGroupError:
            continue  # deleted meanwhile
        if gone:
            expired[name] = gone
    return expired
