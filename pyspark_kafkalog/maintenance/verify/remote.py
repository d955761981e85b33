"""Verifies remote storage: the objects, what brokers noted of them, and the batches in them. Read-only.

    missing objects     a segment that is read, and objects of it do not exist
    unnamed objects     a whole copy that no broker's metadata name: left by a copy or a deletion that failed
    incomplete copy     some objects of a segment: being copied or deleted, or left by a broker that was killed then
    gap, overlap        between the segments that are read
    batches             CRCs, offsets, the end of the last batch; leader epochs and producers can be read
    transactions        the transaction index has those that markers abort, and no other

Without a broker's directory the objects alone say what is read. Brokers may copy and delete meanwhile: a segment
whose objects are missing is looked up again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.maintenance.verify.findings import CHECK_STORE, FindingSink, Read, Severity, Verified, verified
from pyspark_kafkalog.maintenance.verify.objects import read_extent
from pyspark_kafkalog.object_store.store import ObjectMetadata
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.root.brokers.remote_logs import read_remote_log_metadata
from pyspark_kafkalog.root.brokers.remote_storage_root import read_bucket_log
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import parse_epochs
from pyspark_kafkalog.storage.artefacts.producer_snapshot import decode_snapshot
from pyspark_kafkalog.storage.log.isolation import SegmentTransactions
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.remote_log import RemoteExtent
from pyspark_kafkalog.tiered.remote_log_metadata import RemotePartition
from pyspark_kafkalog.tiered.remote_storage import RemoteStorage, RemoteStorageOption
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

_RESTORE: Final = "restore the object from a copy: committed records in it are damaged or missing"
_DELETE: Final = "nothing if a broker is copying or deleting it; else delete the objects"


def verify_remote_storage(
    option: RemoteStorageOption, root: ReadOnlyRoot | None, topics: Collection[str] | None = None
) -> Iterator[Verified]:
    """The findings and the report of each partition that has objects, or that brokers noted segments of.

    `root`: the brokers' directories, opened with the remote storage; None: the objects alone are verified. Raises
    ObjectStoreError if the storage cannot be listed.
    """
    storage = option.find()
    listed = storage.layout.partitions(storage.store())
    noted = {} if root is None else read_remote_log_metadata(root.directories).partitions
    snapshots = {} if root is None else _snapshots(root)
    wanted = {*listed, *snapshots}
    for partition in sorted(wanted):
        if topics is None or partition.topic in topics:
            check = _PartitionCheck(
                storage,
                partition,
                listed.get(partition, []),
                None if root is None else noted.get(partition.key, RemotePartition()),
                snapshots.get(partition),
            )
            yield check.run()


def _snapshots(root: ReadOnlyRoot) -> dict[TopicIdPartition, PartitionSnapshot]:
    """The partitions with a remote part, as the brokers' directories have them."""
    return {
        each.remote.log.partition: each
        for topic in root.topics()
        for each in root.topic(topic, readable_only=True).partitions
        if each.remote is not None and (each.remote.log.copies or each.remote.log.highest_offset >= 0)
    }


class _PartitionCheck:
    def __init__(
        self,
        storage: RemoteStorage,
        partition: TopicIdPartition,
        objects: Sequence[ObjectMetadata],
        noted: RemotePartition | None,
        found: PartitionSnapshot | None,
    ) -> None:
        self._storage = storage
        self._partition = partition
        self._objects = objects
        self._noted = noted
        self._found = found
        self._copies = storage.layout.copies(objects)
        self._sink = FindingSink(TopicPartition(partition.topic, partition.partition))
        self._reads: list[Read] = []

    def run(self) -> Verified:
        began = time.perf_counter()
        segments: Sequence[RemoteSegment] = ()
        try:
            segments = self._segments()
            self._check_copies(segments)
            self._check_order(segments)
            for each in segments:
                self._check_segment(each)
        except (OSError, KafkalogError) as error:
            self._error(error, "unreadable")
        findings = self._sink.result()
        return verified(self._partition.topic_partition, findings, self._reads, seconds=time.perf_counter() - began)

    def _segments(self) -> Sequence[RemoteSegment]:
        """The segments that readers read."""
        if self._noted is not None:
            return () if self._found is None or self._found.remote is None else self._found.remote.log.copies
        log = read_bucket_log(self._storage, self._partition, self._objects)
        return () if log is None else log.segments

    def _check_copies(self, segments: Sequence[RemoteSegment]) -> None:
        required = self._storage.layout.required
        readable = {each.segment_id for each in segments}
        for (start_offset, segment_id), sizes in sorted(self._copies.items()):
            if segment_id in readable:
                continue
            name = f"{self._folder()}: segment {segment_id} from offset {start_offset}"
            known = None if self._noted is None else self._noted.segments.get(segment_id)
            missing = sorted(required - sizes.keys())
            if missing:
                self._sink.add(
                    Severity.INFO if known is not None else Severity.WARNING,
                    "incomplete-copy",
                    name,
                    expected="all objects of a copy, or none",
                    found=f"no {', '.join(missing)}" + ("" if known is None else f", state {known.state.name}"),
                    advice=_DELETE,
                    offset=start_offset,
                )
            elif self._noted is not None and known is None:
                self._sink.add(
                    Severity.WARNING,
                    "unnamed-objects",
                    name,
                    expected="a segment that __remote_log_metadata names",
                    found=f"{sum(sizes.values())} bytes in {len(sizes)} objects that it does not name",
                    advice=_DELETE,
                    offset=start_offset,
                )
        for each in segments:
            missing = sorted(required - self._copies.get((each.start_offset, each.segment_id), {}).keys())
            if missing and each.custom_metadata is None and self._is_still_read(each):
                self._sink.add(
                    Severity.ERROR,
                    "missing-objects",
                    f"{self._folder()}: segment {each.segment_id} from offset {each.start_offset}",
                    expected="all objects of a segment that is read",
                    found=f"no {', '.join(missing)}",
                    advice=_RESTORE,
                    offset=each.start_offset,
                )

    def _check_order(self, segments: Sequence[RemoteSegment]) -> None:
        reached = segments[0].start_offset if segments else 0
        if self._found is not None:
            reached = self._found.log_start_offset
            local = self._found.local_log_start_offset
            ends = [(each.start_offset, each.end_offset) for each in segments] + [(local, local)]
        else:
            ends = [(each.start_offset, each.end_offset) for each in segments]
        for start_offset, next_offset in ends:
            if start_offset > reached:
                self._sink.add(
                    Severity.ERROR,
                    "gap",
                    self._folder(),
                    expected=f"a segment with offset {reached}",
                    found=f"the next one begins at {start_offset}",
                    advice=_RESTORE,
                    offset=reached,
                )
            reached = max(reached, next_offset)
        for before, after in pairwise(segments):
            if after.start_offset < before.end_offset:
                self._sink.add(
                    Severity.INFO,
                    "overlap",
                    f"{self._folder()}: segment {after.segment_id} from offset {after.start_offset}",
                    expected=f"a start at {before.end_offset}",
                    found=f"offsets that {before.segment_id} has too, as a new leader copies them",
                    advice="nothing: readers read each offset once",
                    offset=after.start_offset,
                )

    def _check_segment(self, segment: RemoteSegment) -> None:
        extent = RemoteExtent(self._storage.store(), self._partition, segment, self._storage.layout)
        transactions = SegmentTransactions()
        read = Read()
        try:
            found = read_extent(extent, transactions.add)
            read = found.read
            if found.reached_offset != extent.end_offset:
                expected, reached = found.too_short(extent.end_offset)
                self._sink.add(
                    Severity.ERROR,
                    "short-segment",
                    found.file,
                    expected=expected,
                    found=reached,
                    advice=_RESTORE,
                    offset=found.reached_offset,
                )
            indexed = extent.aborted_transactions()
            if indexed is not None:
                file = f"{self._folder()}: segment {segment.segment_id}, {IndexKind.TRANSACTION.value.lower()} index"
                transactions.check(indexed, file=file)
            layout, store = self._storage.layout, self._storage.store()
            epochs = layout.index(store, self._partition, segment, IndexKind.LEADER_EPOCH)
            if epochs is not None:
                parse_epochs(bytes(epochs.data), file=epochs.name)
            producers = layout.index(store, self._partition, segment, IndexKind.PRODUCER_SNAPSHOT)
            if producers is not None:
                decode_snapshot(bytes(producers.data), file=producers.name)
        except FileNotFoundError:
            if self._is_still_read(segment):
                self._sink.add(
                    Severity.ERROR,
                    "missing-objects",
                    f"{self._folder()}: segment {segment.segment_id} from offset {segment.start_offset}",
                    expected="all objects of a segment that is read",
                    found="a missing object",
                    advice=_RESTORE,
                    offset=segment.start_offset,
                )
        except (OSError, KafkalogError) as error:
            self._error(error, "damaged-segment")
        self._reads.append(read)

    def _is_still_read(self, segment: RemoteSegment) -> bool:
        """Whether the segment is listed, and noted, now as before: a broker may have deleted it meanwhile."""
        if self._found is not None and self._found.remote is not None:
            log = self._found.remote.look_up()
            return log is not None and segment.segment_id in {each.segment_id for each in log.copies}
        objects = self._storage.layout.objects_of(self._storage.store(), self._partition)
        return (segment.start_offset, segment.segment_id) in self._storage.layout.copies(objects)

    def _error(self, error: Exception, what: str) -> None:
        if isinstance(error, DiskFormatError):
            self._sink.add_damage(Severity.ERROR, what, error, advice=_RESTORE)
            return
        self._sink.add(
            Severity.ERROR,
            what,
            self._folder(),
            expected="objects that can be read",
            found=" ".join(str(error).split()),
            advice=CHECK_STORE,
        )

    def _folder(self) -> str:
        return f"{self._storage.location}: {self._partition}"
