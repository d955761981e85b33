"""The result of a write's commit."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True)
class CommittedPartition:
    """The offsets [first_offset, next_offset) that a commit appended to one partition."""

    topic_partition: TopicPartition
    first_offset: int
    next_offset: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A published commit: its offset in the commit log, None if there was nothing to commit, and the ranges written.

    `is_duplicate` means that the write had been committed before and nothing was written. `commit_offset` is then that
    commit's offset, or None if a later version has been committed since.
    """

    commit_offset: int | None
    partitions: tuple[CommittedPartition, ...]
    is_duplicate: bool = False
