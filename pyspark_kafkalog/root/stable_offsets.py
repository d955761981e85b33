"""Last stable offsets of the partitions of a broker's directory, each advanced from its previous value.

The batches since the last producer snapshot, up to a whole segment, show which transactions are open. Repeated
requests, as from metrics, read only the batches appended meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.config.definitions import PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.log.log_state import stable_offset_of
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.producers import ProducerStateManager


@dataclass(frozen=True, slots=True)
class _Known:
    """The partition as of the last request, and its producers at the high watermark of that time."""

    found: PartitionSnapshot
    producers: ProducerStateManager

    def leads_to(self, found: PartitionSnapshot) -> bool:
        """Whether `found` is the same log, grown since: a recovered or truncated log has another leader epoch."""
        before = self.found
        return (before.directory, before.leader_epoch, before.local_log_start_offset) == (
            found.directory,
            found.leader_epoch,
            found.local_log_start_offset,
        ) and before.high_watermark <= found.high_watermark


class StableOffsets:
    """The end for read_committed in each partition."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, _Known] = {}

    def of(self, found: PartitionSnapshot, now_ms: int) -> int:
        """The last stable offset of the partition. Raises DiskFormatError for damage in the batches that are read."""
        from pyspark_kafkalog.storage.log.producer_replay import advance, producer_state_at  # imports compiled code

        known = self._known.pop(found.topic_partition, None)
        if known is not None and known.leads_to(found):
            producers = known.producers
            advance(producers, found.high_watermark)
        else:
            producers = producer_state_at(
                found.directory,
                found.high_watermark,
                log_start_offset=found.local_log_start_offset,
                expiration_ms=PRODUCER_ID_EXPIRATION_MS,
                now_ms=now_ms,
            )
        self._known[found.topic_partition] = _Known(found, producers)
        return stable_offset_of(producers, found.local_log_start_offset, found.high_watermark)
