"""The outcome of a maintenance run for one partition, and the time and the error of the work that leads to it."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.values import quick_dataclass

#: The reason for skipping a partition that another run works on.
ANOTHER_RUN: Final = "another run has the partition"

#: The counters that each action sets; the others belong to other actions.
COUNTERS: Final[Mapping[str, frozenset[str]]] = {
    "clean": frozenset(
        {
            "bytes_read",
            "bytes_kept",
            "bytes_dropped",
            "records_read",
            "records_kept",
            "records_dropped",
            "records_without_key",
            "segments_dropped",
        }
    ),
    "delete-records": frozenset(),
    "merge-segments": frozenset({"bytes_read", "segments_dropped"}),
    "reindex": frozenset({"bytes_read", "files_written"}),
    "retention": frozenset({"bytes_kept", "bytes_dropped", "segments_dropped"}),
    "tier": frozenset({"bytes_copied", "segments_copied"}),
    "verify": frozenset({"bytes_read", "records_read"}),
}
_ALL_COUNTERS: Final = frozenset[str]().union(*COUNTERS.values())


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """One partition's outcome. `error` is None on success. `log_start_offset` is set by actions that may change it.

    The cleaner also reports the dirty ratio, the dirty range, the part of the bytes read that was rewritten, the number
    of shards of keys, and, if it did nothing, the reason (`skipped`). Retention counts the expired offsets of groups in
    a partition of `__consumer_offsets`, and the expired ids of clients in one of `__transaction_state`; of a partition
    with segments in remote storage, its counters count each offset once, and the local ones what goes from the file
    system. Verification counts segments, batches and findings. Tiering reports the offset after the last one in remote
    storage.
    """

    topic: str
    partition: int
    action: str
    bytes_read: int = 0
    bytes_kept: int = 0
    bytes_dropped: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_dropped: int = 0
    records_without_key: int = 0
    segments_dropped: int = 0
    bytes_copied: int = 0
    segments_copied: int = 0
    segments_read: int | None = None
    batches_read: int | None = None
    errors_found: int | None = None
    warnings_found: int | None = None
    files_written: int = 0
    log_start_offset: int | None = None
    local_log_start_offset: int | None = None
    local_bytes_dropped: int | None = None
    local_segments_dropped: int | None = None
    remote_end_offset: int | None = None
    offsets_expired: int | None = None
    transactional_ids_expired: int | None = None
    recopy_percent: float | None = None
    dirty_percent: float | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    key_shards: int | None = None
    skipped: str | None = None
    seconds: float = 0.0
    error: str | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the report is about."""
        return TopicPartition(self.topic, self.partition)

    @property
    def is_fine(self) -> bool:
        """Whether no operator action is needed."""
        return self.error is None and not self.errors_found


def values(report: PartitionReport) -> dict[str, Any]:
    """The fields of a report that have a value, by name, in the order of the class."""
    names = _names_of(report.action)
    return {name: value for name in names if (value := getattr(report, name)) is not None}


@functools.cache
def _names_of(action: str) -> tuple[str, ...]:
    """The fields of the reports of an action, of which there are few."""
    others = _ALL_COUNTERS - COUNTERS.get(action, _ALL_COUNTERS)
    return tuple(field.name for field in fields(PartitionReport) if field.name not in others)


def empty_report(topic_partition: TopicPartition, action: str) -> PartitionReport:
    """The report of a partition about which nothing is known yet."""
    return PartitionReport(topic=topic_partition.topic, partition=topic_partition.partition, action=action)


def failed(topic_partition: TopicPartition, action: str, error: Exception) -> PartitionReport:
    """The report of a partition of which only the error is known."""
    return replace(empty_report(topic_partition, action), error=str(error))


def left_to_another_run(topic_partition: TopicPartition, action: str) -> PartitionReport:
    """The report of a partition whose maintenance lock another run holds."""
    return replace(empty_report(topic_partition, action), skipped=ANOTHER_RUN)


_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PartitionWork:
    """What a run knows of one partition; subclasses add the results of their steps."""

    topic_partition: TopicPartition
    error: Exception | None = None
    seconds: float = 0.0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step of the work: its time is added up, and an error ends the work on this partition only.

        `what` is what the step is part of, for the warning.
        """
        began = time.perf_counter()
        try:
            yield
        except (KafkalogError, OSError) as error:
            _LOG.warning("%s: %s failed: %s", self.topic_partition, what, error)
            self.error = error
        finally:
            self.seconds += time.perf_counter() - began

    def report(self, action: str, **values: Any) -> PartitionReport:
        """The report with these values, and the time and the error of the steps."""
        error = None if self.error is None else str(self.error)
        return replace(empty_report(self.topic_partition, action), **values, seconds=self.seconds, error=error)
