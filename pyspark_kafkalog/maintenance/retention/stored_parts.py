"""Parts of a log in a store, as retention sees them: the segments that the image holds, in offset order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A segment in a store, or a run; `written_ms` asks when it was written."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    written_ms: Callable[[], int]

    @property
    def modified_ms(self) -> int:
        """When it was written, by the store's clock. Takes a request. Raises ObjectStoreError."""
        return self.written_ms()


def segment_parts(partition: PartitionImage, written_ms: Callable[[SegmentObject], int]) -> list[StoredPart]:
    """The segments of the partition in the store; `written_ms` asks when one was put there."""
    return [
        StoredPart(each.base_offset, each.end_offset, each.size_bytes, each.max_timestamp_ms, partial(written_ms, each))
        for each in partition.segments
    ]
