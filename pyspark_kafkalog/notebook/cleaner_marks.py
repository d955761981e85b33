"""The cleaner's progress in each partition of a directory, which separates clean segments from dirty ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.root.broker_metadata.image import read_topic_configs
from pyspark_kafkalog.root.descriptions import PartitionDescription
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir


class CleanerMarks:
    """The cleaner's checkpoint and the compacted topics, read once for any number of partitions."""

    def __init__(self, log_dir: LogDir) -> None:
        self._log_dir = log_dir
        self._configs: Mapping[str, Mapping[str, str]] | None = None
        try:
            self._checkpoint = read_offset_checkpoint(log_dir.path / CLEANER_OFFSET_CHECKPOINT)
        except (DiskFormatError, OSError):
            self._checkpoint = {}

    def first_dirty_offset(self, found: PartitionDescription) -> int | None:
        """The offset below which the log is clean; None if the topic is not known to be compacted."""
        clean_until = self._checkpoint.get(TopicPartition(found.topic, found.partition))
        if clean_until is None and self._is_compacted(found.topic):
            return found.log_start_offset
        return clean_until

    def _is_compacted(self, topic: str) -> bool:
        try:
            if not self._log_dir.is_foreign:
                return self._log_dir.log_config(topic).compact
            if self._configs is None:
                self._configs = read_topic_configs(self._log_dir.path)
        except (KafkalogError, OSError):
            self._configs = {}
            return False
        return "compact" in self._configs.get(topic, {}).get("cleanup.policy", "")
