"""A stream's offsets as stored in its checkpoint, with the log directory and the topics that they belong to.

    {"orders": {"0": 23, "1": 42},                            the next offset of each partition
     "kafkalog:root:<cluster id>:<directory id>": {},         the log directory
     "kafkalog:topic:orders:<topic id>": {}}                  the topic of that name

The format is that of Spark's Kafka source (org.apache.spark.sql.kafka010.KafkaSourceOffset), ordered by topic name and
partition number, because Spark takes equal text to mean "no new data". That source, and earlier versions of this one,
ignore a name without partitions, and no topic name contains a colon. So all of them can use the same checkpoint, and
ids are checked if it contains them. Ids are quoted as in URLs; an unknown id is empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.spark.options.positions import SpecificOffsets, parse_offset_spec
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
from pyspark_kafkalog.storage.names import TopicPartition

#: The next offset to read, by partition. A partition that is not in it starts at its earliest offset.
StreamOffsets: TypeAlias = Mapping[TopicPartition, int]

_PREFIX: Final = "kafkalog:"
_ROOT: Final = "root"
_TOPIC: Final = "topic"


@dataclass(frozen=True, slots=True)
class Origin:
    """What offsets belong to: the log directory (None if it or the checkpoint has no ids), and topic ids by name."""

    root: RootIdentity | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)


def to_json(offsets: StreamOffsets, origin: Origin | None = None) -> dict[str, dict[str, int]]:
    """The offsets as a stream reader returns them to Spark."""
    by_topic: dict[str, dict[str, int]] = {}
    for topic_partition in sorted(offsets):
        by_topic.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offsets[topic_partition]
    if origin is not None and origin.root is not None:
        by_topic[_name(_ROOT, origin.root.cluster_id or "", origin.root.directory_id or "")] = {}
    if origin is not None:
        by_topic |= {_name(_TOPIC, topic, origin.topic_ids[topic]): {} for topic in sorted(origin.topic_ids)}
    return by_topic


def from_json(given: dict[str, Any]) -> dict[TopicPartition, int]:
    """The offsets that Spark passes to a stream reader, possibly from a checkpoint.

    Raises InvalidOptionError for content that neither this source nor Spark's Kafka source writes.
    """
    text = json.dumps(given)
    try:
        spec = parse_offset_spec(text)
    except ValueError as error:
        raise _not_ours(text, str(error)) from error
    if not isinstance(spec, SpecificOffsets) or any(offset < 0 for offset in spec.offsets.values()):
        raise _not_ours(text, "expected offsets of 0 and above")
    return dict(spec.offsets)


def origin_from_json(given: dict[str, Any]) -> Origin:
    """The origin of the offsets in `given`, as far as it contains ids. Raises InvalidOptionError as `from_json`."""
    roots: list[RootIdentity] = []
    topic_ids: dict[str, str] = {}
    for name, partitions in given.items():
        if not name.startswith(_PREFIX):
            continue
        kind, *ids = [unquote(part) for part in name.removeprefix(_PREFIX).split(":")]
        if partitions == {} and kind == _ROOT and len(ids) == 2 and any(ids) and not roots:
            roots.append(RootIdentity(ids[0] or None, ids[1] or None))
        elif partitions == {} and kind == _TOPIC and len(ids) == 2 and all(ids) and ids[0] not in topic_ids:
            topic_ids[ids[0]] = ids[1]
        else:
            raise _not_ours(
                json.dumps({name: partitions}),
                f'expected one "{_PREFIX}{_ROOT}:<cluster id>:<directory id>" and a '
                f'"{_PREFIX}{_TOPIC}:<name>:<id>" a topic, without partitions',
            )
    return Origin(roots[0] if roots else None, topic_ids)


def _name(*parts: str) -> str:
    return _PREFIX + ":".join(quote(part, safe="") for part in parts)


def _not_ours(text: str, why: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"option checkpointLocation names a checkpoint with offsets that this source cannot continue from: "
        f"{text[:200]}: {why}; give the query its own checkpoint"
    )
