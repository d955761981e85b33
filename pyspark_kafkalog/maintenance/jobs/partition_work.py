"""One partition during a run over several: its time, and the error that ended the work on it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report
from pyspark_kafkalog.storage.names import TopicPartition

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
