"""A stream's offsets as its checkpoint keeps them: {"topicA":{"0":23,"1":42}}, the next offset of each partition.

The form is that of Spark's Kafka source (org.apache.spark.sql.kafka010.KafkaSourceOffset), topics by name and
partitions by number in order: Spark takes equal text for "nothing new".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.spark.offsets import SpecificOffsets, parse_offset_spec
from pyspark_kafkalog.storage.names import TopicPartition

#: The next offset to read, by partition. A partition that is not in it starts at its earliest.
StreamOffsets: TypeAlias = Mapping[TopicPartition, int]


def to_json(offsets: StreamOffsets) -> dict[str, dict[str, int]]:
    """What a stream reader hands to Spark."""
    by_topic: dict[str, dict[str, int]] = {}
    for topic_partition in sorted(offsets):
        by_topic.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offsets[topic_partition]
    return by_topic


def from_json(given: dict[str, Any]) -> dict[TopicPartition, int]:
    """What Spark hands to a stream reader, which may come from a checkpoint.

    Raises InvalidOptionError for what this source, or Spark's Kafka source, cannot have written.
    """
    text = json.dumps(given)
    try:
        spec = parse_offset_spec(text)
    except ValueError as error:
        raise _not_ours(text, str(error)) from error
    if not isinstance(spec, SpecificOffsets) or any(offset < 0 for offset in spec.offsets.values()):
        raise _not_ours(text, "expected offsets of 0 and above")
    return dict(spec.offsets)


def _not_ours(text: str, why: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"option checkpointLocation names a checkpoint with offsets that this source cannot go on from: "
        f"{text[:200]}: {why}; give the query a checkpoint of its own"
    )
