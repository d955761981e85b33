"""Offsets that are too old, and groups without members and offsets: deleted by their coordinator from time to time.

Offsets of topics that were deleted count as too old. A broker deletes them with the topic; here they count no more from
then on, and this removes them.

There may be any number of groups. One commit has what expires of many, as far as it can be planned in a moment.

The rules are those of `groups.offsets_topic`. A classic group is left alone while it rebalances, and its machine is
closed when its records are gone. A group that was made by a request, and has no record, is dropped too. Offsets that a
read-only server has taken over from its log live on from that time: the log may not have been served for months.

Source of the rules: org.apache.kafka.coordinator.group.GroupCoordinatorShard.cleanupGroupMetadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.groups.classic_group import ClassicState
from pyspark_kafkalog.groups.offset_records import OffsetAndMetadata
from pyspark_kafkalog.groups.offsets_topic import find_expired
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.event_loop import in_turns
from pyspark_kafkalog.server.groups.shard import Planned, Shard
from pyspark_kafkalog.server.metadata.known_topics import known_topics
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MINUTE_MS

if TYPE_CHECKING:
    from pyspark_kafkalog.server.context import ServerContext

#: Records of the groups of one commit: each is planned again for it, while others wait.
_RECORDS_TOGETHER: Final = 500
_SETTLED: Final = (ClassicState.EMPTY, ClassicState.STABLE)


async def expire_groups(context: ServerContext, shard: Shard) -> None:
    """Delete what has expired of all groups. Raises RequestError."""
    due: list[tuple[str, Callable[[], Planned]]] = []
    records_count = 0
    async for group_id in in_turns(shard.expiring_groups()):
        plan = _plan_expiry(context, shard, group_id)
        planned = plan()
        if not planned.changes and not planned.result:
            continue
        due.append((group_id, plan))
        records_count += 1 + len(shard.log.records(group_id))
        if records_count >= _RECORDS_TOGETHER:
            await _write(shard, due)
            due, records_count = [], 0
    await _write(shard, due)


async def _write(shard: Shard, due: Sequence[tuple[str, Callable[[], Planned]]]) -> None:
    """Writes that are begun together have one commit."""
    await asyncio.gather(*(shard.write(group_id, plan, is_exclusive=True) for group_id, plan in due))


def _plan_expiry(context: ServerContext, shard: Shard, group_id: str) -> Callable[[], Planned]:
    """The write that deletes what has expired of the group; its result is whether nothing is left of it."""

    def plan() -> Planned:
        machine = shard.classics.get(group_id)
        if machine is not None and (machine.group.state not in _SETTLED or machine.group.pending_joins):
            return Planned({})
        records = shard.log.records(group_id)
        topics = known_topics(context)

        def is_current(topic_partition: TopicPartition, committed: OffsetAndMetadata, key: bytes) -> bool:
            written_at = shard.log.written_at(key)
            topic = topic_partition.topic
            return topics.has_committed(topic, committed.topic_id, written_at) or topics.is_elsewhere(topic, written_at)

        now_ms = context.clock()
        older_than_ms = now_ms - context.broker_config().offsets_retention_minutes * MINUTE_MS
        if shard.kept_since_ms(group_id) > older_than_ms:
            older_than_ms = 0
        found = find_expired(
            shard.log, shard.recorded(group_id), is_current, older_than_ms=older_than_ms, now_ms=now_ms
        )
        is_unused = len(found.keys) == len(records) and not shard.log.pending_keys(group_id)
        is_gone = is_unused and (machine is None or machine.group.state is ClassicState.EMPTY)
        return Planned(
            dict.fromkeys(found.keys),
            is_gone,
            done=lambda: shard.close_classic(group_id, ErrorCode.UNKNOWN_MEMBER_ID) if is_gone else None,
        )

    return plan
