"""What a run of the cleaner stores in the root for its metrics: uncleanable marks, and the run's totals."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.uncleanable import mark_cleanable, mark_uncleanable, read_uncleanable
from pyspark_kafkalog.maintenance.jobs.last_run import CleanerRun, write_last_run
from pyspark_kafkalog.maintenance.jobs.report import ANOTHER_RUN, PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import Round
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)


class CleanerRecord:
    """Records the outcome of one run; nothing in a dry run. A failure to write is logged and otherwise ignored."""

    def __init__(self, this_round: Round) -> None:
        self._root = this_round.open().own_root()
        self._is_kept = not this_round.dry_run
        self._marked = set(read_uncleanable(self._root.path))
        now_ms = self._root.clock()
        self._run = CleanerRun(began_ms=now_ms, ended_ms=now_ms)

    def took(self, report: PartitionReport) -> PartitionReport:
        """Record a partition's report, and return it."""
        run = self._run
        is_cleaned = report.skipped is None and report.error is None
        self._run = replace(
            run,
            bytes_read=run.bytes_read + report.bytes_read,
            bytes_written=run.bytes_written + report.bytes_kept,
            max_clean_seconds=max(run.max_clean_seconds, report.seconds if is_cleaned else 0.0),
            max_dirty_percent=max(run.max_dirty_percent, report.dirty_percent or 0.0),
            partitions_cleaned=run.partitions_cleaned + is_cleaned,
            partitions_failed=run.partitions_failed + (report.error is not None),
        )
        if self._is_kept and report.skipped != ANOTHER_RUN:
            try:
                self._mark(report)
            except (KafkalogError, OSError) as error:
                _LOG.warning("%s-%d: its mark is not changed: %s", report.topic, report.partition, error)
        return report

    def _mark(self, report: PartitionReport) -> None:
        where = TopicPartition(report.topic, report.partition)
        if report.error is not None:
            mark_uncleanable(self._root, where, report.error, now_ms=self._root.clock())
        elif where in self._marked:
            mark_cleanable(self._root, where)

    def close(self) -> None:
        """Store the totals. Call it when the run has gone through all partitions."""
        if not self._is_kept:
            return
        try:
            write_last_run(self._root.path, replace(self._run, ended_ms=self._root.clock()), fs=self._root.fs)
        except OSError as error:
            _LOG.warning("the sums of this run are not on record: %s", error)
