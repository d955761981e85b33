"""Finds directories of deleted topics that a process, killed after committing the deletion, has not renamed.

    <root>/orders-0/     the topic is not in the image, and a commit has removed the id in partition.metadata

Creating a topic of the same name renames them too. Otherwise they would take space for ever, so retention searches for
them. Only ids that this root's commit log has removed count: a directory that a user put there is not removed. A
bounded number of the newest commits is read, and only if there is such a directory.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from pyspark_kafkalog.metadata.commit_log import CommitLog
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.root.directories import put_aside, topic_id_of
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, TopicPartition, parse_partition_dir

#: Reading so many takes about a second. Retention that runs every few minutes comes long before there are so many.
_COMMITS_MAX: Final = 10_000


def find_left_by_deletions(root: Path, image: MetadataImage, log: CommitLog) -> Mapping[TopicPartition, str]:
    """The partitions whose directories are left, with the id of the topic that was deleted. Raises OSError, and
    CorruptRecordError for a damaged commit."""
    found: dict[TopicPartition, str] = {}
    with os.scandir(root) as entries:
        for entry in entries:
            where = parse_partition_dir(entry.name)
            if where is None or where.topic in image.topics or where.topic == CLUSTER_METADATA_TOPIC:
                continue
            topic_id = topic_id_of(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else None
            if topic_id is not None:
                found[where] = topic_id
    if not found:
        return found
    removed = _removed_ids(log, set(found.values()))
    return {where: topic_id for where, topic_id in found.items() if topic_id in removed}


def put_aside_left(root: Path, image: MetadataImage, left: Mapping[TopicPartition, str], fs: FileSystem) -> None:
    """Rename these for deletion, unless a topic of that name exists by now. The caller holds the root's lock."""
    for where, topic_id in left.items():
        if where.topic not in image.topics and topic_id_of(root / str(where)) == topic_id:
            put_aside(root, where, fs)


def _removed_ids(log: CommitLog, wanted: Collection[str]) -> set[str]:
    removed: set[str] = set()
    for offset in islice(reversed(list_base_offsets(log.directory)), _COMMITS_MAX):
        commit = log.read(offset)
        for each in () if commit is None else commit.records:
            if each.type == "RemoveTopicRecord" and each.fields["topicId"] in wanted:
                removed.add(each.fields["topicId"])
    return removed
