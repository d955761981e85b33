"""A partition's log from the objects of remote storage alone: no broker's directory, no `__remote_log_metadata`.

Which segments count follows from the copies themselves. The newest one, by leader epoch and offset, carries the leader
epochs of the log up to its end; the others must fit them. Copies whose deletion has begun, or whose completion was
never noted, count as long as they are whole: they hold the same records.

What only the broker knew is missing: records after the newest copy, and a log start inside the first segment that was
set after it. A transaction can have records in remote segments and its marker after them: read_committed ends there,
as the producers at the end of the newest copy say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_kafkalog.object_store.store import ObjectMetadata, ObjectNotFoundError
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry, parse_epochs
from pyspark_kafkalog.storage.artefacts.producer_snapshot import decode_snapshot
from pyspark_kafkalog.tiered.layouts.segment_objects import IndexKind
from pyspark_kafkalog.tiered.lineage import readable_segments
from pyspark_kafkalog.tiered.remote_storage import RemoteStorage
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition


@dataclass(frozen=True, slots=True)
class BucketLog:
    """A partition as its remote segments show it: offsets [log_start_offset, end_offset) can be read.

    `copies` are all complete ones, `segments` those to read. `last_stable_offset` is the end for read_committed.
    """

    copies: tuple[RemoteSegment, ...]
    segments: tuple[RemoteSegment, ...]
    epochs: tuple[EpochEntry, ...]
    log_start_offset: int
    end_offset: int
    last_stable_offset: int


def read_bucket_log(
    storage: RemoteStorage, partition: TopicIdPartition, objects: Sequence[ObjectMetadata]
) -> BucketLog | None:
    """The partition whose folder holds `objects`; None without a complete copy.

    Raises ObjectStoreError, DiskFormatError; ObjectNotFoundError if the newest copy is deleted meanwhile.
    """
    store = storage.store()
    copies = storage.layout.segments(store, partition, objects)
    if not copies:
        return None
    newest = max(copies, key=lambda each: (max(each.leader_epochs)[0], each.last_offset))
    epochs = _epochs(storage, partition, newest)
    end_offset = newest.end_offset
    segments = readable_segments(copies, log_end_offset=end_offset, epochs=epochs)
    first = segments[0].start_offset if segments else end_offset
    return BucketLog(
        copies=tuple(copies),
        segments=segments,
        epochs=epochs,
        log_start_offset=max(first, epochs[0].start_offset) if epochs else first,
        end_offset=end_offset,
        last_stable_offset=min(_first_undecided(storage, partition, newest, end_offset), end_offset),
    )


def _epochs(storage: RemoteStorage, partition: TopicIdPartition, newest: RemoteSegment) -> tuple[EpochEntry, ...]:
    index = storage.layout.index(storage.store(), partition, newest, IndexKind.LEADER_EPOCH)
    return newest.leader_epochs if index is None else parse_epochs(bytes(index.data), file=index.name)


def _first_undecided(
    storage: RemoteStorage, partition: TopicIdPartition, newest: RemoteSegment, end_offset: int
) -> int:
    """The first offset of the oldest transaction that is open at the end of the copy."""
    index = storage.layout.index(storage.store(), partition, newest, IndexKind.PRODUCER_SNAPSHOT)
    if index is None:
        raise ObjectNotFoundError(
            f"{storage.location}: the remote segment {newest.segment_id} of {partition} has no producer snapshot"
        )
    producers = decode_snapshot(bytes(index.data), file=index.name)
    open_from = (each.current_txn_first_offset for each in producers if each.current_txn_first_offset >= 0)
    return min(open_from, default=end_offset)
