"""Writing to `__consumer_offsets`: created by the first commit, each change of a group one append and one commit.

A crash leaves a whole change or none, as with any append; one between creating the topic and the append leaves the
topic empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pyspark_kafkalog.errors import TopicExistsError
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, group_partition
from pyspark_kafkalog.record.header import CompressionType
from pyspark_kafkalog.storage.flush_mode import FlushMode

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir
    from pyspark_kafkalog.storage.broker_config import BrokerConfig

_SCHEMA: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def append_records(
    log_dir: LogDir, group: str, records: Mapping[bytes, bytes | None], *, flush: FlushMode = "fsync"
) -> None:
    """Append a group's records, value by key, None for a tombstone; all of them become visible at once."""
    config = log_dir.own_root().broker_config()
    partitions_count = _ensure_topic(log_dir, config)
    log_dir.append(
        OFFSETS_TOPIC,
        pa.table([list(records.keys()), list(records.values())], schema=_SCHEMA),
        partition=group_partition(group, partitions_count),
        compression_type=CompressionType(config.offsets_topic_compression_codec).name.lower(),
        flush=flush,
    )


def _ensure_topic(log_dir: LogDir, config: BrokerConfig) -> int:
    """The number of partitions of the topic, made with Kafka's settings for it where it is not there."""
    if OFFSETS_TOPIC not in log_dir.topics():
        with contextlib.suppress(TopicExistsError):  # another process made it meanwhile
            log_dir.create_topic(
                OFFSETS_TOPIC,
                config.offsets_topic_num_partitions,
                {
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                },
            )
        log_dir.refresh()
    return len(log_dir.topic(OFFSETS_TOPIC).partitions)
