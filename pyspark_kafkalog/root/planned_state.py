"""Detects log start offsets that have increased between the planning of a read and its tasks.

Records below the log start offset are deleted as of the commit that increased it, although their bytes remain until a
retention run removes the segment. A plan can be old: Spark reuses the plan of a DataFrame's first action. The plan
therefore carries the names of two commit files: the last one that it has read, and the next one. If the first exists
and the second does not, nothing has been committed since; this check costs a task two stats. Otherwise the task reads
the image, which a reused worker process caches.

A broker's directory has no such commits: there `log-start-offset-checkpoint` is read, as for the plan.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LOG_START_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True)
class PlannedState:
    """The state of a root at planning. `last_file` and `next_file` are None for a broker's directory."""

    root: str
    last_file: str | None = None
    next_file: str | None = None

    def moved_log_start(self, topic_partition: TopicPartition, topic_id: str | None) -> int:
        """The partition's log start offset; 0 if it cannot have changed since planning, or its topic no longer exists.

        Raises the errors of `MetadataStore.open`; CorruptIndexError for a broker's checkpoint.
        """
        if self.last_file is None or self.next_file is None:
            return read_offset_checkpoint(Path(self.root) / LOG_START_OFFSET_CHECKPOINT).get(topic_partition, 0)
        # In this order, because a commit is only removed when a later one exists.
        if not os.path.exists(self.next_file) and os.path.exists(self.last_file):
            return 0
        state = MetadataStore.open(Path(self.root)).image.state_of(topic_partition, topic_id)
        return 0 if state is None else state.log_start_offset
