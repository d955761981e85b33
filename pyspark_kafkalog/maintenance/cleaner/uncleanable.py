"""Partitions whose last cleaning failed, each with the reason: `<root>/kafkalog-uncleanable.json`.

    {"version": 1, "partitions": [{"topic": "users", "partition": 0, "topicId": "…", "sinceMs": 1795…, "reason": "…"}]}

Kafka marks a partition uncleanable for as long as the broker runs; here each run tries again, and success removes the
mark. The file is replaced as a whole under the root's lock: a crash leaves the old one or the new one. A broker ignores
unknown files in its log directory. Without the file, or if it cannot be parsed, no partition is marked. Source of the
rules: LogCleanerManager.markPartitionUncleanable.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.root.own import OwnRoot
from pyspark_kafkalog.storage.filesystem import read_text_file
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)

UNCLEANABLE_FILE: Final = "kafkalog-uncleanable.json"
_VERSION: Final = 1
_MAX_FILE_BYTES: Final = 64 << 20
_REASON_CHARS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class _Mark:
    topic_id: str
    since_ms: int
    reason: str


def read_uncleanable(root: Path) -> Mapping[TopicPartition, str]:
    """The reason of each partition whose last cleaning failed. Raises OSError if the file cannot be read."""
    return {where: mark.reason for where, mark in _read(root).items()}


def mark_uncleanable(root: OwnRoot, where: TopicPartition, reason: str, *, now_ms: int) -> None:
    """Mark the partition: a cleaning failed. The time of the first of consecutive failures is kept."""
    with root_lock(root.path, fs=root.fs):
        topic = root.store.refresh().topics.get(where.topic)
        if topic is None:
            return
        marks = _read(root.path)
        before = marks.get(where)
        is_old = before is not None and before.topic_id == topic.topic_id
        since_ms = before.since_ms if before is not None and is_old else now_ms
        marks[where] = _Mark(topic.topic_id, since_ms, reason[:_REASON_CHARS_MAX])
        _write(root, marks)


def mark_cleanable(root: OwnRoot, where: TopicPartition) -> None:
    """Remove the partition's mark, if it has one."""
    if where not in _read(root.path):
        return
    with root_lock(root.path, fs=root.fs):
        root.store.refresh()
        marks = _read(root.path)
        if marks.pop(where, None) is not None:
            _write(root, marks)


def _read(root: Path) -> dict[TopicPartition, _Mark]:
    path = root / UNCLEANABLE_FILE
    try:
        data = read_text_file(path, max_bytes=_MAX_FILE_BYTES, kind=DiskFormatError, advice="delete the file")
        return dict(_mark(entry) for entry in json.loads(data)["partitions"])
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        _LOG.warning("%s is passed over, it cannot be understood: %s", path, error)
        return {}


def _mark(entry: Any) -> tuple[TopicPartition, _Mark]:
    where = TopicPartition(str(entry["topic"]), int(entry["partition"]))
    return where, _Mark(str(entry["topicId"]), int(entry["sinceMs"]), str(entry["reason"]))


def _write(root: OwnRoot, marks: Mapping[TopicPartition, _Mark]) -> None:
    """Write the marks of topics that still exist; no file if there are none. The caller holds the root's lock."""
    topics = root.store.image.topics
    entries = [
        {
            "topic": where.topic,
            "partition": where.partition,
            "topicId": mark.topic_id,
            "sinceMs": mark.since_ms,
            "reason": mark.reason,
        }
        for where, mark in sorted(marks.items())
        if where.topic in topics and topics[where.topic].topic_id == mark.topic_id
    ]
    path = root.path / UNCLEANABLE_FILE
    if not entries:
        root.fs.unlink_if_there(path)
        return
    data = json.dumps({"version": _VERSION, "partitions": entries}, ensure_ascii=False, indent=1)
    root.fs.write_file_atomic(path, data.encode(errors="backslashreplace"), durable=False)
