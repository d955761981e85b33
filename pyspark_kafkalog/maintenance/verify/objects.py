"""Verifies a log directory in an object store. Read-only; writers, readers and maintenance may run meanwhile.

Of the root, with one listing and two requests a data object, beside the commit log (metadata.py):

    missing, size   objects that the image names and that are not there, or not as long as it says
    footer          of each data object: its runs are those of the image
    unnamed         objects that no commit names: being written, or left by abandoned writes and merges (info)

Of each partition, with the requests of reading it once:

    extents         segments and runs follow each other without a gap, from the log start to the log end
    batches         tables of runs, CRCs, offsets; leader epochs and producers of segments; each entry of their indexes
    transactions    the segments' transaction indexes have those that markers abort, and no other
    producers       the commits' rows of the batches of producers in runs are those of the batches

Of each segment object, also of those that a root on a file system has copied to remote storage (own_remote.py): leader
epochs and the largest timestamp are those of the commit.

What changes meanwhile is checked again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, KafkalogError
from pyspark_kafkalog.maintenance.cleaner.run_record import LAST_RUN_FILE, UNCLEANABLE_FILE
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report
from pyspark_kafkalog.maintenance.verify.findings import (
    RESTORE_OBJECT,
    Finding,
    FindingSink,
    Severity,
    confirmed,
    count_by_severity,
)
from pyspark_kafkalog.maintenance.verify.indexes import (
    IndexExpectation,
    OffsetIndexCheck,
    TimeIndexCheck,
    open_offset_index,
    open_time_index,
)
from pyspark_kafkalog.maintenance.verify.metadata import check_stored_metadata
from pyspark_kafkalog.metadata.extents import DataObject, planned_at_of
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.objects.layout import name_of
from pyspark_kafkalog.metadata.root_format import METADATA_DIR, SERVERS_FOLDER
from pyspark_kafkalog.object_store.store import ObjectNotFoundError
from pyspark_kafkalog.root.objects.extents import ObjectExtents, ObjectLog
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.artefacts.leader_epochs import parse_epochs
from pyspark_kafkalog.storage.artefacts.producer_snapshot import decode_snapshot as decode_producers
from pyspark_kafkalog.storage.filesystem import in_parallel
from pyspark_kafkalog.storage.log.isolation import SegmentTransactions
from pyspark_kafkalog.storage.names import META_PROPERTIES, TopicPartition
from pyspark_kafkalog.storage.objects.data_object import DataKey, ObjectRun, read_footer
from pyspark_kafkalog.storage.segment.extent import Extent
from pyspark_kafkalog.storage.segment.reader import SegmentReader
from pyspark_kafkalog.tiered.layouts.aiven import parse_key
from pyspark_kafkalog.tiered.layouts.segment_objects import IndexKind
from pyspark_kafkalog.tiered.own_layouts import OwnLayout, index_place, index_sizes, log_key, segment_keys
from pyspark_kafkalog.tiered.own_segments import SegmentObjectExtent
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import INT64_MAX

_ACTION: Final = "verify"
_CLEANER: Final = "kafkalog retention or merge-segments"
_REQUESTS_AT_ONCE: Final = 8
_CLOSED_INDEX: Final = IndexExpectation(
    visible_end=INT64_MAX,
    may_have_zeros=False,
    severity=Severity.ERROR,
    advice="kafkalog reindex puts the segment again, with indexes rebuilt from its .log",
)
#: Objects beside the folders, of the root and of the cleaner.
_OWN_NAMES: Final = (META_PROPERTIES, LAST_RUN_FILE, UNCLEANABLE_FILE)
_PRODUCER_FIELDS: Final = ("base_offset", "last_offset", "producer_id", "producer_epoch", "base_sequence")


def check_object_root(root: ObjectRoot, *, with_footers: bool = True) -> list[Finding]:
    """The findings on the metadata log and on the objects, that a second check confirms. Raises ObjectStoreError.

    `with_footers`: also read the footer of each data object.
    """
    return check_stored_metadata(root.store) + confirmed(lambda: _ObjectsCheck(root).run(with_footers=with_footers))


class _ObjectsCheck:
    """One check of the objects: those in the listing, and those that the image names."""

    def __init__(self, root: ObjectRoot) -> None:
        self._root = root
        self._sink = FindingSink(None)
        self._listed = {
            each.key: each.size_bytes
            for each in root.objects.list_objects("")
            if not each.key.startswith((f"{METADATA_DIR}/", f"{SERVERS_FOLDER}/")) and each.key not in _OWN_NAMES
        }
        root.refresh()  # behind the listing: what is committed meanwhile is looked up
        self._image = root.store.image

    def run(self, *, with_footers: bool) -> list[Finding]:
        named = dict(_named(self._image))
        for key, size_bytes in named.items():
            self._check_object(key, size_bytes)
        dropped = {key for each in self._image.dropped for key in each.data_keys}
        segments = {each.segment_id for record in self._image.dropped for each in record.segments}
        for key in self._listed.keys() - named.keys() - dropped:
            self._check_unnamed(key, segments)
        if with_footers:
            self._check_footers()
        return self._sink.result()

    def _check_object(self, key: str, size_bytes: int | None) -> None:
        found = self._listed.get(key)
        if found is None:
            try:
                found = self._root.objects.head(key).size_bytes
            except ObjectNotFoundError:
                self._add("missing-object", key, "an object that the metadata log names", "no such object")
                return
        if size_bytes is not None and found != size_bytes:
            self._add("object-size", key, f"{size_bytes} bytes", f"{found} bytes")

    def _add(self, what: str, key: str, expected: str, found: str) -> None:
        file = name_of(self._root.objects, key)
        self._sink.add(Severity.ERROR, what, file, expected=expected, found=found, advice=RESTORE_OBJECT)

    def _check_unnamed(self, key: str, dropped_segments: set[str]) -> None:
        data, segment = DataKey.parse(key), parse_key(key)
        if segment is not None and segment.segment_id in dropped_segments:
            return
        file = name_of(self._root.objects, key)
        if data is None and segment is None:
            self._sink.add(
                Severity.INFO,
                "stray-object",
                file,
                expected="an object that the metadata log names",
                found="the key of something else",
                advice="nothing, or delete the object",
            )
            return
        planned_at = data.planned_at if data is not None else planned_at_of(segment.segment_id if segment else "")
        horizon = self._image.staging_horizon.offset
        report_unnamed(self._sink, file, self._listed[key], planned_at=planned_at, horizon=horizon, by=_CLEANER)

    def _check_footers(self) -> None:
        """Compare the footer of each data object with the runs that the image has of it."""
        runs = _runs_by_object(self._image)
        objects = [each for each in self._image.objects if not each.is_inline and each.key in self._listed]
        for at in range(0, len(objects), _REQUESTS_AT_ONCE):
            some = objects[at : at + _REQUESTS_AT_ONCE]
            for each, footer in zip(some, in_parallel([partial(self._footer, each) for each in some]), strict=True):
                for run in runs.get(each.object_id, ()):
                    if footer is not None and run not in footer:
                        self._add("footer", each.key, f"the run {run}", "a footer without it")

    def _footer(self, each: DataObject) -> frozenset[ObjectRun] | None:
        try:
            return frozenset(read_footer(self._root.objects, each.key, each.size_bytes))
        except ObjectNotFoundError:
            return None  # deleted since the listing, after a merge
        except DiskFormatError as error:
            self._sink.add_damage(Severity.ERROR, "footer", error, advice=RESTORE_OBJECT)
            return None


def _named(image: MetadataImage) -> Iterator[tuple[str, int | None]]:
    """The keys of all objects that the log consists of, with their sizes in bytes; None for manifests."""
    for each in image.objects:
        if not each.is_inline:
            yield each.key, each.size_bytes
    for topic in image.topics.values():
        for partition in topic.partitions:
            of = TopicIdPartition(topic.name, topic.topic_id, partition.partition)
            for segment in partition.segments:
                yield from named_objects(of, segment, OwnLayout.AIVEN)


def _runs_by_object(image: MetadataImage) -> dict[int, list[ObjectRun]]:
    """The runs of each data object, as its footer should have them."""
    found: dict[int, list[ObjectRun]] = {}
    for topic in image.topics.values():
        for partition in topic.partitions:
            for row in partition.runs.table:
                run = ObjectRun(
                    topic.topic_id,
                    partition.partition,
                    int(row["position"]),
                    int(row["size_bytes"]),
                    int(row["end_offset"] - row["base_offset"]),
                    int(row["records_count"]),
                    int(row["batches_count"]),
                    int(row["max_timestamp_ms"]),
                )
                found.setdefault(int(row["object_id"]), []).append(run)
    return found


def check_object_partition(
    root: ObjectRoot, topic_partition: TopicPartition, *, are_records_checked: bool
) -> tuple[list[Finding], PartitionReport]:
    """The findings and the report of one partition. `are_records_checked`: also those of compressed batches."""
    return _PartitionCheck(root, topic_partition, are_records_checked).run()


def check_object_order(root: ObjectRoot, topic_partition: TopicPartition) -> list[Finding]:
    """The findings on the order of one partition's segments and runs in the image, without any request."""
    return _PartitionCheck(root, topic_partition, False).order()


class _PartitionCheck:
    def __init__(self, root: ObjectRoot, topic_partition: TopicPartition, are_records_checked: bool) -> None:
        self._root = root
        self._topic_partition = topic_partition
        self._are_records_checked = are_records_checked
        self._sink = FindingSink(topic_partition)
        self._bytes_read = self._batches = self._records = 0
        self._log: ObjectLog | None = None
        self._transactions = SegmentTransactions()

    def run(self) -> tuple[list[Finding], PartitionReport]:
        began = time.perf_counter()
        extents: list[Extent] = []
        log_start_offset = None
        partition = self._root.store.image.find(self._topic_partition.topic, self._topic_partition.partition)
        if partition is not None:
            self._log = log = ObjectLog.of(self._root.store.image, self._topic_partition)
            log_start_offset = partition.state.log_start_offset
            self._check_order(log, log_start_offset, partition.state.log_end_offset)
            extents = ObjectExtents(lambda: log, lambda: log, self._root.objects).current()
            for each in extents:
                self._check_extent(each)
            if self._are_records_checked and not self._sink.findings:
                self._check_records(log_start_offset, partition.state.log_end_offset)
        is_gone = self._now() is None
        findings = [] if is_gone else self._sink.result()
        counts = count_by_severity(findings)
        report = replace(
            empty_report(self._topic_partition, _ACTION),
            bytes_read=self._bytes_read,
            records_read=self._records,
            segments_read=len(extents),
            batches_read=self._batches,
            errors_found=counts[Severity.ERROR],
            warnings_found=counts[Severity.WARNING],
            log_start_offset=log_start_offset,
            skipped="the topic was deleted meanwhile" if is_gone else None,
            seconds=time.perf_counter() - began,
        )
        return findings, report

    def order(self) -> list[Finding]:
        partition = self._root.store.image.find(self._topic_partition.topic, self._topic_partition.partition)
        if partition is not None:
            log = ObjectLog.of(self._root.store.image, self._topic_partition)
            self._check_order(log, partition.state.log_start_offset, partition.state.log_end_offset)
        return self._sink.result()

    def _now(self) -> ObjectLog | None:
        """The partition's log in the newest image; None if its topic was deleted."""
        if self._log is None:
            return None
        self._root.refresh()
        image = self._root.store.image
        if image.state_of(self._topic_partition, self._log.topic_id) is None:
            return None
        return ObjectLog.of(image, self._topic_partition)

    def _check_order(self, log: ObjectLog, log_start_offset: int, log_end_offset: int) -> None:
        bases = [each.base_offset for each in log.segments] + log.runs.table["base_offset"].tolist()
        ends = [each.end_offset for each in log.segments] + log.runs.table["end_offset"].tolist()
        if not bases:
            bases = ends = [log_end_offset]
        first = [min(bases[0], log_start_offset)]
        for reached, following in zip([*first, *ends], [*bases, log_end_offset], strict=True):
            if following != reached:
                self._error(
                    "gap", f"offsets that continue at {reached}", f"the next ones begin at {following}", reached
                )

    def _check_extent(self, extent: Extent) -> None:
        try:
            if isinstance(extent, SegmentObjectExtent):
                has_gaps = extent.segment.is_cleaned
                self._count(check_segment_object(extent, self._sink, self._transactions, may_have_gaps=has_gaps))
                return
            self._check_batches(extent)
        except FileNotFoundError as error:
            if self._is_still_there(extent):
                self._error("missing-object", "all objects of the log", str(error), extent.base_offset)
        except DiskFormatError as error:
            if self._is_still_there(extent):
                self._sink.add_damage(Severity.ERROR, "damaged-object", error, advice=RESTORE_OBJECT)
        except (OSError, KafkalogError) as error:
            self._error("unreadable", "objects that can be read", " ".join(str(error).split()), extent.base_offset)
        self._transactions = SegmentTransactions()  # without the transactions of an extent that was not read

    def _check_batches(self, extent: Extent) -> None:
        found: list[NDArray[np.void]] = []
        with SegmentReader(extent) as reader:
            end_offset = extent.end_offset or 0  # known of every extent in a store
            for run in reader.runs(0, start_offset=extent.base_offset, end_offset=end_offset, limit_offset=end_offset):
                self._batches += len(run.batches)
                self._records += int(run.batches["records_count"].sum(dtype=np.int64))
                self._bytes_read += len(run.data)
                found.append(run.batches[run.batches["producer_id"] >= 0])
            if reader.reached_offset != end_offset:
                self._error(
                    "short-object",
                    f"batches up to offset {end_offset - 1}",
                    f"the last one ends at {reader.reached_offset - 1}",
                    reader.reached_offset,
                )
        if found:
            self._check_producers(np.concatenate(found), extent.base_offset, end_offset)

    def _check_producers(self, found: NDArray[np.void], start_offset: int, end_offset: int) -> None:
        """Compare the batches of producers in [start_offset, end_offset) with what commits say of them."""
        assert self._log is not None
        rows = self._log.producer_batches.table
        rows = rows[(rows["base_offset"] >= start_offset) & (rows["base_offset"] < end_offset)]
        stated, stored = (
            np.array([each[name].astype(np.int64) for name in _PRODUCER_FIELDS]).T for each in (rows, found)
        )
        if np.array_equal(stated, stored):
            return
        count = min(len(stated), len(stored))
        differs = (stated[:count] != stored[:count]).any(axis=1)
        at = int(np.argmax(differs)) if differs.any() else count
        self._error(
            "producer-batch",
            _row_text(stored, at),
            f"{_row_text(stated, at)} in the commits",
            int(stored[at][0]) if at < len(stored) else int(stated[at][0]),
        )

    def _count(self, read: Read) -> None:
        self._batches += read.batches
        self._records += read.records
        self._bytes_read += read.bytes_read

    def _check_records(self, start_offset: int, end_offset: int) -> None:
        from pyspark_kafkalog.record.arrow import RECORD_SCHEMA  # loads Arrow, which only this check needs

        reader = self._root.reader(self._topic_partition.topic, self._topic_partition.partition)
        try:
            for _ in reader.read(start_offset, end_offset, schema=RECORD_SCHEMA):
                pass
        except DiskFormatError as error:
            self._sink.add_damage(Severity.ERROR, "damaged-record", error, advice=RESTORE_OBJECT)

    def _is_still_there(self, extent: Extent) -> bool:
        """Whether the newest image has the extent: a merge or retention may have replaced it meanwhile."""
        log = self._now()
        if log is None:
            return False
        if isinstance(extent, SegmentObjectExtent):
            return extent.segment in log.segments
        return int(extent.base_offset) in log.runs.table["base_offset"].tolist()

    def _error(self, what: str, expected: str, found: str, offset: int) -> None:
        self._sink.add(
            Severity.ERROR,
            what,
            f"{self._root.objects.url}: {self._topic_partition}",
            expected=expected,
            found=found,
            advice=RESTORE_OBJECT,
            offset=offset,
        )


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of a segment."""

    bytes_read: int = 0
    batches: int = 0
    records: int = 0


@dataclass(slots=True)
class _Check:
    extent: SegmentObjectExtent
    sink: FindingSink
    transactions: SegmentTransactions
    file: str
    may_have_gaps: bool
    batches: int = 0
    records: int = 0
    bytes_read: int = 0
    largest_ms: int = -1
    starts: NDArray[np.int64] = field(init=False)
    epochs: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        known = self.extent.segment.leader_epochs
        self.starts = np.array([each.start_offset for each in known], np.int64)
        self.epochs = np.array([each.leader_epoch for each in known], np.int64)

    def run(self) -> Read:
        end_offset = self.extent.end_offset
        with ExitStack() as files, SegmentReader(self.extent) as reader:
            offsets, times = self._index_checks(files)
            for run in reader.runs(
                0, start_offset=self.extent.base_offset, end_offset=end_offset, limit_offset=end_offset
            ):
                self._add(run.batches)
                self.transactions.add(run)
                self.bytes_read += len(run.data)
                if offsets is not None:
                    offsets.add(run.batches)
                if times is not None:
                    times.add(run.batches)
            reached = reader.reached_offset
            if offsets is not None:
                offsets.finish(self.extent.segment.size_bytes)
            if times is not None:
                times.finish(is_closed=True)
        if reached != end_offset and not self.may_have_gaps:
            found = f"the last one ends at {reached - 1}"
            self._error("short-object", f"batches up to offset {end_offset - 1}", found, reached)
        known_ms = self.extent.known_max_timestamp_ms
        if self.largest_ms != known_ms:
            self._error("largest-timestamp", f"{known_ms}, as was committed", self.largest_ms, self.extent.base_offset)
        self._check_indexes()
        return Read(self.bytes_read, self.batches, self.records)

    def _add(self, batches: NDArray[np.void]) -> None:
        self.batches += len(batches)
        self.records += int(batches["records_count"].sum(dtype=np.int64))
        self.largest_ms = max(self.largest_ms, int(batches["max_timestamp_ms"].max()))
        if not len(self.starts):
            return
        at = np.searchsorted(self.starts, batches["base_offset"], side="right") - 1
        is_wrong = (at < 0) | (self.epochs[np.maximum(at, 0)] != batches["leader_epoch"])
        is_wrong &= batches["leader_epoch"] >= 0
        if is_wrong.any():
            row = int(is_wrong.argmax())
            expected = f"epoch {int(self.epochs[max(at[row], 0)])}, as was committed"
            self._error("leader-epoch", expected, int(batches["leader_epoch"][row]), int(batches["base_offset"][row]))

    def _index_checks(self, files: ExitStack) -> tuple[OffsetIndexCheck | None, TimeIndexCheck | None]:
        """Checks of the entries of the offset and time index; None of one that cannot be read, which is reported."""
        extent = self.extent

        def copied(kind: IndexKind) -> tuple[int, str, int, FindingSink, IndexExpectation]:
            copy = files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            copy.write(extent.index(kind))
            copy.flush()
            return copy.fileno(), self._index_name(kind), extent.base_offset, self.sink, _CLOSED_INDEX

        offsets = times = None
        if extent.offset_index() is not None:
            offsets = open_offset_index(*copied(IndexKind.OFFSET))
        if extent.time_index() is not None:
            times = open_time_index(*copied(IndexKind.TIMESTAMP))
        return offsets, times

    def _index_name(self, kind: IndexKind) -> str:
        key, _ = index_place(self.extent.partition, self.extent.segment, kind, self.extent.layout)
        return f"{self.extent.store.url}/{key}, {kind.value.lower()} index"

    def _check_indexes(self) -> None:
        """Raises DiskFormatError, FileNotFoundError."""
        extent = self.extent
        if extent.offset_index() is None or extent.time_index() is None:
            self._error("damaged-index", "offset and time indexes", "none that can be read", extent.base_offset)
        try:
            file = self._index_name(IndexKind.TRANSACTION)
            self.transactions.check(extent.aborted_transactions(), file=file)
        except CorruptIndexError as error:
            self.sink.add_damage(Severity.ERROR, "transaction-index", error, advice=_CLOSED_INDEX.advice)
        parse_epochs(bytes(extent.index(IndexKind.LEADER_EPOCH)), file=f"{self.file}, leader epochs")
        decode_producers(bytes(extent.index(IndexKind.PRODUCER_SNAPSHOT)), file=f"{self.file}, producers")

    def _error(self, what: str, expected: object, found: object, offset: int) -> None:
        self.sink.add(
            Severity.ERROR, what, self.file, expected=expected, found=found, advice=RESTORE_OBJECT, offset=offset
        )


def check_segment_object(
    extent: SegmentObjectExtent, sink: FindingSink, transactions: SegmentTransactions, *, may_have_gaps: bool
) -> Read:
    """Check one segment. `may_have_gaps`: its last offsets may be missing, as after a cleaner.

    `transactions` are those of the segments before it.

    Raises FileNotFoundError for a missing object, DiskFormatError for damage, OSError, ObjectStoreError.
    """
    file = f"{extent.store.url}/{log_key(extent.partition, extent.segment, extent.layout)}"
    return _Check(extent, sink, transactions, file, may_have_gaps).run()


def named_objects(of: TopicIdPartition, segment: SegmentObject, layout: OwnLayout) -> Iterator[tuple[str, int | None]]:
    """The keys of the objects that the segment has, with their sizes in bytes; None where no commit knows the size."""
    yield log_key(of, segment, layout), segment.size_bytes
    sizes = index_sizes(segment)
    if layout is OwnLayout.AIVEN:
        _, indexes, manifest = segment_keys(of, segment.base_offset, segment.segment_id, layout)
        yield indexes, sum(sizes.values())
        yield manifest, None
        return
    for kind, size_bytes in sizes.items():
        if size_bytes or kind is not IndexKind.TRANSACTION:
            yield index_place(of, segment, kind, layout)[0], size_bytes


def report_unnamed(sink: FindingSink, file: str, size_bytes: int, *, planned_at: int, horizon: int, by: str) -> None:
    """Report an object that no commit names. `by`: what deletes it. `horizon`: that of the image (StagingHorizon)."""
    is_expired = planned_at < horizon
    sink.add(
        Severity.INFO,
        "orphan" if is_expired else "uncommitted-object",
        file,
        expected="an object that the metadata log names",
        found=f"one planned at metadata offset {planned_at}, of {size_bytes} bytes, that nobody commits",
        advice=f"nothing: the next {by} deletes it"
        if is_expired
        else f"nothing: {by} deletes it after staging.retention.ms if nobody commits it",
    )


def check_sizes(sink: FindingSink, url: str, named: Mapping[str, int | None], listed: Mapping[str, int]) -> None:
    """Report objects that are named, and are not listed or have another size. `listed`: sizes in bytes by key."""
    for key, size_bytes in named.items():
        found = listed.get(key)
        if found is None:
            what, expected, was = "missing-object", "an object that the metadata log names", "no such object"
        elif size_bytes is not None and found != size_bytes:
            what, expected, was = "object-size", f"{size_bytes} bytes", f"{found} bytes"
        else:
            continue
        sink.add(Severity.ERROR, what, f"{url}/{key}", expected=expected, found=was, advice=RESTORE_OBJECT)


def _row_text(rows: NDArray[np.int64], at: int) -> str:
    """The row of _PRODUCER_FIELDS with that number, for a message."""
    if at >= len(rows):
        return "no batch of a producer"
    first, last, producer, epoch, sequence = rows[at].tolist()
    return f"offsets {first} to {last} of producer {producer} with epoch {epoch} from sequence {sequence}"
