"""What a write's commit tells its caller."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True)
class CommittedPartition:
    """What a commit appended to one partition: offsets [first_offset, next_offset)."""

    topic_partition: TopicPartition
    first_offset: int
    next_offset: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A published commit: its offset in the metadata log (None when there was nothing to commit), what it wrote.

    With `is_duplicate` the transaction had been committed before and nothing was done; `commit_offset` is that
    commit's, None when a later version has been committed since.
    """

    commit_offset: int | None
    partitions: tuple[CommittedPartition, ...]
    is_duplicate: bool = False
