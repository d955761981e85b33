"""Where a partition's log starts when a task reads it, some time after the read was planned.

Records below the log start are deleted from the moment of the commit that moved it, though their bytes stay until a
retention run removes the segment. A plan can be old: Spark keeps the one of a DataFrame's first action. So it carries
the names of two commit files: the last one that the plan has seen, and the next one. While the first is there and the
second is not, nothing has been committed since, which costs a task two stats. Otherwise the task looks at the image,
which a reused worker process keeps.

A broker's directory has no such commits: there `log-start-offset-checkpoint` tells, as it did for the plan.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.offset_checkpoints import LOG_START_OFFSET_CHECKPOINT, read_offset_checkpoint


@dataclass(frozen=True, slots=True)
class PlannedState:
    """The state of a root as a plan saw it. `last_file` and `next_file` are None for a broker's directory."""

    root: str
    last_file: str | None = None
    next_file: str | None = None

    def moved_log_start(self, topic_partition: TopicPartition, topic_id: str | None) -> int:
        """The partition's log start, or 0 when it cannot have moved since the plan, or its topic is gone.

        Raises what opening the root does, see `MetadataStore.open`; CorruptIndexError for a broker's checkpoint.
        """
        if self.last_file is None or self.next_file is None:
            return read_offset_checkpoint(Path(self.root) / LOG_START_OFFSET_CHECKPOINT).get(topic_partition, 0)
        # In this order: a commit is only removed when a later one is there.
        if not os.path.exists(self.next_file) and os.path.exists(self.last_file):
            return 0
        topic = MetadataStore.open(Path(self.root)).image.topics.get(topic_partition.topic)
        if topic is None or topic.topic_id != topic_id:
            return 0
        return topic.partitions[topic_partition.partition].state.log_start_offset
