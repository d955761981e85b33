"""Which records of a group expire, after `offsets.retention.minutes`: the rule of Kafka's group coordinator.

An offset expires if it is older than the retention. Its age counts from its commit, or, in a classic group that lost
its last member after the commit, from that time. Offsets written by brokers before 2.1 carry their own expiry time,
which is used instead. A group whose last offset expires is deleted. Share groups never expire.

A broker expires only the offsets of topics that no member of the group has subscribed to. Groups have no members here.

Source of the rules: org.apache.kafka.coordinator.group.OffsetMetadataManager.cleanupExpiredOffsets,
OffsetExpirationConditionImpl, and the methods offsetExpirationCondition and shouldExpire of the groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark_kafkalog.groups.group_state import SHARE_TYPES, empty_since_ms
from pyspark_kafkalog.groups.offset_records import NO_EXPIRY, group_of_key, parse_offset_key, parse_offset_value
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True)
class Expired:
    """The keys of a group's records that expire, and the partitions whose offsets these are."""

    keys: Collection[bytes] = ()
    partitions: tuple[TopicPartition, ...] = ()


def find_expired(records: Mapping[bytes, bytes], *, older_than_ms: int, now_ms: int) -> Expired:
    """What expires of a group with these live records, if offsets live until the time `older_than_ms`.

    Raises CorruptRecordError.
    """
    types = {named[0] for named in map(group_of_key, records) if named is not None}
    if types.intersection(SHARE_TYPES):
        return Expired()
    empty_ms = empty_since_ms(records)
    offsets = {key: found for key in records if (found := parse_offset_key(key)) is not None}
    expired = {
        key: found for key, found in offsets.items() if _is_expired(records[key], empty_ms, older_than_ms, now_ms)
    }
    # A group without offsets has no state worth keeping, since it has no members either.
    keys = records if len(expired) == len(offsets) else expired
    return Expired(tuple(keys), tuple(sorted(set(expired.values()))))


def _is_expired(value: bytes, empty_since_ms: int, older_than_ms: int, now_ms: int) -> bool:
    committed = parse_offset_value(value)
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return committed.expire_timestamp_ms <= now_ms
    return max(committed.commit_timestamp_ms, empty_since_ms) < older_than_ms
