"""Reindexing as a job, with one task for each partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import Round, run_chunks
from pyspark_kafkalog.maintenance.jobs.tasks import Tasks
from pyspark_kafkalog.maintenance.repair import reindex
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True)
class ReindexJob:
    """Reindex the partitions of the round's topics; only those with the given `numbers`, () for all."""

    numbers: tuple[int, ...] = ()
    force: bool = False
    action: str = field(default=reindex.ACTION, init=False)

    def choose(self, this_round: Round) -> Sequence[TopicPartition]:
        found = this_round.open().own_root().partitions(this_round.topics)
        if not self.numbers:
            return found
        for topic in dict.fromkeys(each.topic for each in found):
            for number in self.numbers:
                if TopicPartition(topic, number) not in found:
                    raise UnknownTopicError(f"topic {topic!r} has no partition {number}")
        return [each for each in found if each.partition in self.numbers]

    def run(self, tasks: Tasks, this_round: Round, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        return run_chunks(tasks, partitions, partial(_reindex, this_round, self.force), action=self.action)


def _reindex(this_round: Round, force: bool, partitions: Sequence[TopicPartition]) -> list[PartitionReport]:
    return reindex.reindex(
        this_round.open(),
        partitions=partitions,
        now_ms=this_round.now_ms,
        dry_run=this_round.dry_run,
        force=force,
    )
