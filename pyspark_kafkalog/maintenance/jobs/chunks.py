"""Retention and merging as jobs over all partitions, and any other job that is one call for each chunk of partitions.

A task does all of its partitions' work, including commits. Up to 128 partitions of retention share a commit, and the
root's lock lets one task commit at a time: 10,000 partitions are about 80 tasks and as many commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark_kafkalog.maintenance.jobs.report import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import Round, run_chunks
from pyspark_kafkalog.maintenance.jobs.tasks import Tasks
from pyspark_kafkalog.maintenance.merge import merge
from pyspark_kafkalog.maintenance.retention import delete as retention
from pyspark_kafkalog.storage.names import TopicPartition

#: A module-level function, so that it can be pickled and sent to a task.
_Work = Callable[[Round, Sequence[TopicPartition]], list[PartitionReport]]


@dataclass(frozen=True, slots=True)
class ChunkJob:
    """`work` over all partitions of the run's topics, up to `partitions_max` of them for each task; then `finish`."""

    action: str
    work: _Work
    partitions_max: int
    finish: Callable[[Round], None] | None = None

    def choose(self, this_round: Round) -> Sequence[TopicPartition]:
        return this_round.open().own_root().partitions(this_round.topics)

    def run(self, tasks: Tasks, this_round: Round, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        work = partial(self.work, this_round)
        yield from run_chunks(tasks, partitions, work, action=self.action, partitions_max=self.partitions_max)
        if self.finish is not None:
            self.finish(this_round)


def _retention(this_round: Round, partitions: Sequence[TopicPartition]) -> list[PartitionReport]:
    return retention.retain(
        this_round.open(), partitions=partitions, now_ms=this_round.now_ms, dry_run=this_round.dry_run
    )


def _finish_retention(this_round: Round) -> None:
    if not this_round.dry_run:
        retention.finish(this_round.open(), now_ms=this_round.now_ms)


def _merge(this_round: Round, partitions: Sequence[TopicPartition]) -> list[PartitionReport]:
    return merge.merge_segments(
        this_round.open(), partitions=partitions, now_ms=this_round.now_ms, dry_run=this_round.dry_run
    )


RETENTION_JOB: Final = ChunkJob(retention.ACTION, _retention, retention.PARTITIONS_A_COMMIT, _finish_retention)
MERGE_JOB: Final = ChunkJob(merge.ACTION, _merge, 1)
