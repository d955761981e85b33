"""A group whose deletion nobody can read any more: the cleaner has removed its tombstones."""

from __future__ import annotations

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, group_partition
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import HOUR_MS

ANOTHER = "another"


def delete_and_clean(log_dir: LogDir, group: str, of: TopicPartition) -> None:
    """Delete the group, and clean its partition until it holds nothing of it.

    `ANOTHER`, in the same partition, commits an offset of `of` several times meanwhile; the last one is 4.
    """
    partitions = len(log_dir.topic(OFFSETS_TOPIC).partitions)
    partition = group_partition(group, partitions)
    assert group_partition(ANOTHER, partitions) == partition
    log_dir.alter_topic(OFFSETS_TOPIC, add={"internal.segment.bytes": "160", "delete.retention.ms": "0"})
    log_dir.group(group).delete()
    for number in range(1, 5):
        log_dir.group(ANOTHER).commit({of: number})
        now_ms = log_dir.root.native().clock() + number * HOUR_MS
        clean_partition(log_dir.root, OFFSETS_TOPIC, partition, force=True, now_ms=now_ms)
    keys = log_dir.read(OFFSETS_TOPIC, partition=partition)["key"].to_pylist()
    assert not [each for each in keys if group.encode() in each]
