"""The history of a root: for each commit its time, operation, transactional id and partitions.

It is read from the retained commit files: commits removed after `metadata.max.retention.ms` are no longer listed. At
most a hundred commits at a time are in memory, and one number for each commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyspark_kafkalog.metadata.commit_log import Commit, CommitLog
from pyspark_kafkalog.metadata.image import TOPIC_RESOURCE
from pyspark_kafkalog.metadata.messages.metadata_records import (
    CommitRecord,
    ConfigRecord,
    DataObjectRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionStateRecord,
    RemoveTopicRecord,
    SegmentObjectsRecord,
    TopicRecord,
    TransactionalIdRecord,
    WriteCommitRecord,
)
from pyspark_kafkalog.metadata.messages.records import NO_TRANSACTION_VERSION
from pyspark_kafkalog.values import dataclass

_BY_TOPIC_ID: Final = (
    RemoveTopicRecord,
    PartitionRecord,
    PartitionChangeRecord,
    PartitionStateRecord,
    SegmentObjectsRecord,
)


@dataclass(frozen=True, slots=True)
class HistoryPartition:
    """A commit's write to one partition: `records` records in `bytes` bytes of batches, from `first_offset`."""

    topic: str
    topic_id: str
    partition: int
    first_offset: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One commit: its offset in the commit log, its time (ms), and its changes.

    `topics` are the names of all topics that it changed, in order. A deleted topic whose creation is no longer in the
    history appears with its id. `version` is None if the commit has no transactional id, or committed no version of it.
    """

    offset: int
    timestamp_ms: int
    operation: str
    topics: tuple[str, ...]
    partitions: tuple[HistoryPartition, ...] = ()
    write_id: str | None = None
    transactional_id: str | None = None
    version: int | None = None
    incarnation: str | None = None

    @property
    def records(self) -> int:
        """Records that the commit wrote, to all partitions."""
        return sum(each.records for each in self.partitions)

    @property
    def bytes(self) -> int:
        """Bytes of record batches that the commit wrote, to all partitions."""
        return sum(each.bytes for each in self.partitions)


def read_history(
    log: CommitLog,
    topic_names: Mapping[str, str],
    *,
    topic: str | None = None,
    limit: int | None = None,
    newest_first: bool = True,
) -> Iterator[HistoryEntry]:
    """The commits in `log`; with `topic`, those that changed it; with `limit`, the newest `limit` of them.

    `topic_names` are the names of the existing topics, by id. A commit that is removed meanwhile is omitted. Raises
    CorruptRecordError or UnsupportedFormatError for a damaged commit.
    """
    names = _Names(log, topic_names)
    if newest_first:
        return _entries(log.newest_first(), names, topic, limit)
    first_offset = 0
    if limit is not None:
        chosen = [entry.offset for entry in _entries(log.newest_first(), names, topic, limit)]
        first_offset = min(chosen, default=0)
    return _entries(log.oldest_first(first_offset), names, topic, limit)


def _entries(commits: Iterator[Commit], names: _Names, topic: str | None, limit: int | None) -> Iterator[HistoryEntry]:
    left = limit
    for commit in commits:
        if left == 0:
            return
        entry = _entry(commit, names)
        if topic is None or topic in entry.topics:
            left = None if left is None else left - 1
            yield entry


class _Names:
    """Names of topics by id, including deleted topics whose creating commit is retained."""

    def __init__(self, log: CommitLog, current: Mapping[str, str]) -> None:
        self._log = log
        self._current = current
        self._former: dict[str, str] | None = None

    def __getitem__(self, topic_id: str) -> str:
        name = self._current.get(topic_id)
        if name is None:
            if self._former is None:
                self._former = self._find_former()
            name = self._former.get(topic_id, topic_id)
        return name

    def _find_former(self) -> dict[str, str]:
        found = {}
        for commit in self._log.newest_first():
            for each in commit.records:
                if isinstance(each, TopicRecord) and each.topic_id not in self._current:
                    found[each.topic_id] = each.name
        return found


def _entry(commit: Commit, names: _Names) -> HistoryEntry:
    operation = ""
    write_id = transactional_id = version = incarnation = None
    topics: dict[str, None] = {}
    written: tuple[HistoryPartition, ...] = ()
    appended: list[HistoryPartition] = []
    for each in commit.records:
        topics.update(dict.fromkeys(_topics(each, names)))
        if isinstance(each, CommitRecord):
            operation = each.operation
        elif isinstance(each, WriteCommitRecord):
            written = _partitions(each, names)
            write_id = each.write_id
            transactional_id, version = each.transactional_id, each.transaction_version
        elif isinstance(each, (PartitionStateRecord, DataObjectRecord)):
            appended += _appended(each, names)
        elif isinstance(each, TransactionalIdRecord):
            transactional_id, version = each.transactional_id, each.version
        if isinstance(each, (WriteCommitRecord, TransactionalIdRecord)):
            incarnation = each.incarnation or None
    return HistoryEntry(
        offset=commit.base_offset,
        timestamp_ms=commit.timestamp_ms,
        operation=operation,
        topics=tuple(topics),
        partitions=written or tuple(appended),
        write_id=write_id,
        transactional_id=transactional_id,
        version=None if version == NO_TRANSACTION_VERSION else version,
        incarnation=incarnation,
    )


def _topics(each: MetadataRecord, names: _Names) -> list[str]:
    if isinstance(each, TopicRecord):
        return [each.name]
    if isinstance(each, ConfigRecord):
        return [each.resource_name] if each.resource_type == TOPIC_RESOURCE else []
    if isinstance(each, _BY_TOPIC_ID):
        return [names[each.topic_id]]
    if isinstance(each, DataObjectRecord):
        return [names[topic.topic_id] for topic in each.topics]
    return []


def _appended(record: PartitionStateRecord | DataObjectRecord, names: _Names) -> Iterator[HistoryPartition]:
    """What a server or follower appended. A write of Spark or `LogDir` has a WriteCommitRecord instead."""
    if isinstance(record, PartitionStateRecord):
        if (each := record.appended) is not None:
            of = names[record.topic_id], record.topic_id, record.partition
            yield HistoryPartition(*of, each.first_offset, each.records, each.bytes)
        return
    for topic in record.topics:
        for run in (each for each in topic.runs if each.first_offset >= 0):
            of = names[topic.topic_id], topic.topic_id, run.partition
            yield HistoryPartition(*of, run.first_offset, run.records_count, run.size_bytes)


def _partitions(write: WriteCommitRecord, names: _Names) -> tuple[HistoryPartition, ...]:
    return tuple(
        HistoryPartition(
            names[each.topic_id], each.topic_id, each.partition, each.first_offset, each.records, each.bytes
        )
        for each in write.partitions
    )
