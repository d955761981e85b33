"""Verifies what a root has in a store: all of an object root, or the segments that a file root has copied. Read-only.

Of the root, with one listing, and two requests for each data object, beside the commit log (root.py):

    missing, size   objects that the image names and that are not there, or not as long as it says
    footer          of each data object: its runs are those of the image
    unnamed         objects that no commit names: being written, or left by abandoned writes and merges (info)

Of each partition, with the requests of reading it once:

    extents         segments and runs follow each other without a gap, from the log start to the log end
    segments        CRCs, offsets, leader epochs and the largest timestamp; producers; each entry of the indexes
    transactions    the segments' transaction indexes have those that markers abort, and no other
    runs            the commits' rows of the batches of producers are those of the batches

Writers, readers and maintenance may run meanwhile: what changes is checked again. The remote storage of a file root may
be shared: objects of topics that the root does not know are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, KafkalogError
from pyspark_kafkalog.maintenance.cleaner.run_record import LAST_RUN_FILE, UNCLEANABLE_FILE
from pyspark_kafkalog.maintenance.objects.clean_up import Unnamed, unnamed
from pyspark_kafkalog.maintenance.verify.findings import (
    CHECK_STORE,
    RESTORE_OBJECT,
    Finding,
    FindingSink,
    Read,
    Severity,
    UnitOutcome,
    confirmed,
)
from pyspark_kafkalog.maintenance.verify.indexes import IndexChecks, IndexExpectation, KnownEpochs, StoredIndex
from pyspark_kafkalog.maintenance.verify.scope import PartitionScope, ScopedUnit
from pyspark_kafkalog.metadata.extents import DataObject
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.root_format import METADATA_DIR, SERVERS_FOLDER
from pyspark_kafkalog.object_store.store import ObjectMetadata, ObjectNotFoundError
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import parse_epochs
from pyspark_kafkalog.storage.artefacts.producer_snapshot import decode_snapshot
from pyspark_kafkalog.storage.filesystem import in_parallel
from pyspark_kafkalog.storage.log.isolation import SegmentTransactions
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import META_PROPERTIES, TopicPartition
from pyspark_kafkalog.storage.objects.data_object import ObjectRun, read_footer
from pyspark_kafkalog.storage.segment.reader import BatchRun, Extent, SegmentReader
from pyspark_kafkalog.tiered.objects import IndexKind, SegmentStore
from pyspark_kafkalog.tiered.own_segments import OwnLayout, index_place, index_sizes, log_key, segment_keys
from pyspark_kafkalog.tiered.remote_log import RemoteExtent, RemoteLog, tiered_extents
from pyspark_kafkalog.tiered.remote_storage import OwnStorage
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import INT64_MAX

_REQUESTS_AT_ONCE: Final = 8
_SHORT: Final = "short-object"
_CLOSED_INDEX: Final = IndexExpectation(
    visible_end=INT64_MAX,
    may_have_zeros=False,
    severity=Severity.ERROR,
    advice="kafkalog reindex puts the segment again, with indexes rebuilt from its .log",
)
#: Objects beside the folders, of the root and of the cleaner.
_OWN_NAMES: Final = (META_PROPERTIES, LAST_RUN_FILE, UNCLEANABLE_FILE)
_OWN_FOLDERS: Final = (f"{METADATA_DIR}/", f"{SERVERS_FOLDER}/")
_PRODUCER_FIELDS: Final = ("base_offset", "last_offset", "producer_id", "producer_epoch", "base_sequence")


def check_objects(root: ObjectRoot, *, with_footers: bool = True) -> list[Finding]:
    """The findings on all objects but those of the commit log, that a second check confirms. Raises ObjectStoreError.

    `with_footers`: also read the footer of each data object.
    """

    def check() -> list[Finding]:
        sink = FindingSink(None)
        listed = {
            each.key: each
            for each in root.objects.list_objects("")
            if not each.key.startswith(_OWN_FOLDERS) and each.key not in _OWN_NAMES
        }
        root.refresh()  # after the listing, which lacks what is committed meanwhile
        image = root.store.image
        named = dict(_named_by_segments(image, OwnLayout.AIVEN))
        named.update((each.key, each.size_bytes) for each in image.objects if not each.is_inline)
        inventory = _Inventory(root.objects, image, listed, "kafkalog retention or merge-segments", sink)
        inventory.check_named(named)
        inventory.check_unnamed(unnamed(image, listed.values(), OwnLayout.AIVEN))
        if with_footers:
            _check_footers(root, image, listed, sink)
        return sink.result()

    return confirmed(check)


def check_copied_objects(root: FileRoot) -> list[Finding]:
    """The findings on the objects of a file root in its remote storage, that a second check confirms."""

    def check() -> list[Finding]:
        sink = FindingSink(None)
        storage = root.remote_storage
        if storage is None:
            return []
        try:
            store = storage.store()
            listed = {each.key: each for each in store.list_objects("")}
            root.refresh()  # after the listing, which lacks what is committed meanwhile
            image = root.store.image
            inventory = _Inventory(store, image, listed, "kafkalog retention", sink)
            inventory.check_named(dict(_named_by_segments(image, storage.layout)))
            inventory.check_unnamed(
                each for each in unnamed(image, listed.values(), storage.layout) if each.topic_id in image.topic_names
            )
        except (OSError, KafkalogError) as error:
            sink.add(
                Severity.ERROR,
                "unreadable",
                storage.location,
                expected="remote storage that can be listed",
                found=" ".join(str(error).split()),
                advice="check rsm.config.location, the store and the permissions, and verify again",
            )
        return sink.result()

    return confirmed(check)


def _named_by_segments(image: MetadataImage, layout: OwnLayout) -> Iterator[tuple[str, int | None]]:
    """The keys of the segments' objects, with their sizes in bytes; None where no commit knows the size."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            of = TopicIdPartition(topic.name, topic.topic_id, partition.partition)
            for segment in partition.segments:
                yield log_key(of, segment, layout), segment.size_bytes
                sizes = index_sizes(segment)
                if layout is OwnLayout.AIVEN:
                    _, indexes, manifest = segment_keys(of, segment.base_offset, segment.segment_id, layout)
                    yield indexes, sum(sizes.values())
                    yield manifest, None
                    continue
                for kind, size_bytes in sizes.items():
                    if size_bytes or kind is not IndexKind.TRANSACTION:
                        yield index_place(of, segment, kind, layout)[0], size_bytes


@dataclass(frozen=True, slots=True)
class _Inventory:
    """The objects that `image` names, and those that a listing of the store has, by key.

    `cleaner` is the command that deletes leftovers.
    """

    store: SegmentStore
    image: MetadataImage
    listed: Mapping[str, ObjectMetadata]
    cleaner: str
    sink: FindingSink

    def check_named(self, named: Mapping[str, int | None]) -> None:
        """Report objects that are named, and do not exist or have another size in bytes."""
        for key, size_bytes in named.items():
            found = self.listed.get(key)
            if found is None:
                try:
                    found = self.store.head(key)
                except FileNotFoundError:
                    self._error("missing-object", key, "an object that the metadata log names", "no such object")
                    continue
            if size_bytes is not None and found.size_bytes != size_bytes:
                self._error("object-size", key, f"{size_bytes} bytes", f"{found.size_bytes} bytes")

    def _error(self, what: str, key: str, expected: str, found: str) -> None:
        file = f"{self.store.url}/{key}"
        self.sink.add(Severity.ERROR, what, file, expected=expected, found=found, advice=RESTORE_OBJECT)

    def check_unnamed(self, objects: Iterable[Unnamed]) -> None:
        """Report objects that no commit names."""
        for each in sorted(objects, key=lambda each: each.found.key):
            key, size_bytes, planned_at = each.found.key, each.found.size_bytes, each.planned_at
            if planned_at is None:
                self._leftover("stray-object", key, "the key of something else", "nothing, or delete the object")
                continue
            is_expired = planned_at < self.image.staging_horizon.offset
            self._leftover(
                "orphan" if is_expired else "uncommitted-object",
                key,
                f"one planned at metadata offset {planned_at}, of {size_bytes} bytes, that nobody commits",
                f"nothing: the next {self.cleaner} deletes it"
                if is_expired
                else f"nothing: {self.cleaner} deletes it after staging.retention.ms if nobody commits it",
            )

    def _leftover(self, what: str, key: str, found: str, advice: str) -> None:
        file, expected = f"{self.store.url}/{key}", "an object that the metadata log names"
        self.sink.add(Severity.INFO, what, file, expected=expected, found=found, advice=advice)


def _check_footers(root: ObjectRoot, image: MetadataImage, listed: Collection[str], sink: FindingSink) -> None:
    """Compare the footer of each data object with the runs that the image has of it."""

    def footer(data: DataObject) -> frozenset[ObjectRun] | None:
        try:
            return frozenset(read_footer(root.objects, data.key, data.size_bytes))
        except ObjectNotFoundError:
            return None  # deleted since the listing, after a merge
        except DiskFormatError as error:
            sink.add_damage(Severity.ERROR, "footer", error, advice=RESTORE_OBJECT)
            return None

    runs = _runs_by_object(image)
    objects = [each for each in image.objects if not each.is_inline and each.key in listed]
    for at in range(0, len(objects), _REQUESTS_AT_ONCE):
        some = objects[at : at + _REQUESTS_AT_ONCE]
        for data, found in zip(some, in_parallel([partial(footer, each) for each in some]), strict=True):
            for run in runs.get(data.object_id, ()):
                if found is not None and run not in found:
                    sink.add(
                        Severity.ERROR,
                        "footer",
                        f"{root.objects.url}/{data.key}",
                        expected=f"the run {run}",
                        found="a footer without it",
                        advice=RESTORE_OBJECT,
                    )


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


def check_extents(root: ObjectRoot, topic_partition: TopicPartition) -> list[Finding]:
    """The findings on the order of one partition's segments and runs in the image, without any request."""
    sink = FindingSink(topic_partition)
    partition = root.store.image.find(topic_partition.topic, topic_partition.partition)
    if partition is not None:
        log = ObjectLog.of(root.store.image, topic_partition)
        _check_order(log, partition.state, _location(root, topic_partition), sink)
    return sink.result()


def _check_order(log: ObjectLog, state: LogState, location: str, sink: FindingSink) -> None:
    """Check that the segments and runs of a partition follow each other from its log start to its log end."""
    bases = [each.base_offset for each in log.segments] + log.runs.table["base_offset"].tolist()
    ends = [each.end_offset for each in log.segments] + log.runs.table["end_offset"].tolist()
    if not bases:
        bases = ends = [state.log_end_offset]
    first = min(bases[0], state.log_start_offset)
    for reached, following in zip([first, *ends], [*bases, state.log_end_offset], strict=True):
        if following != reached:
            sink.add(
                Severity.ERROR,
                "gap",
                location,
                expected=f"offsets that continue at {reached}",
                found=f"the next ones begin at {following}",
                advice=RESTORE_OBJECT,
                offset=reached,
            )


@dataclass(frozen=True, slots=True)
class ObjectUnit:
    """One partition of an object root, with its segments and runs."""

    topic_partition: TopicPartition
    place: str
    size_bytes: int
    are_records_checked: bool

    def check(self, outcome: UnitOutcome, opened: Callable[[], Root]) -> None:
        """See Unit. The partition is checked as of the root's image, without a refresh before."""
        root = cast(ObjectRoot, opened().native())
        outcome.log_start_offset = _check_partition(root, self, outcome)


def _check_partition(root: ObjectRoot, unit: ObjectUnit, outcome: UnitOutcome) -> int | None:
    topic_partition = unit.topic_partition
    partition = root.store.image.find(topic_partition.topic, topic_partition.partition)
    if partition is None:
        outcome.is_gone = True
        return None
    state, log = partition.state, ObjectLog.of(root.store.image, topic_partition)

    def newest() -> ObjectLog | None:
        """The log as of the newest commit, None if its topic was deleted."""
        root.refresh()
        image = root.store.image
        is_gone = image.state_of(topic_partition, log.topic_id) is None
        return None if is_gone else ObjectLog.of(image, topic_partition)

    def is_named(extent: Extent) -> bool:
        now = newest()
        if now is None:
            return False
        if isinstance(extent, RemoteExtent):
            return extent.segment in now.segments
        return extent.base_offset in now.runs.table["base_offset"].tolist()

    sink = FindingSink(topic_partition)
    _check_order(log, state, unit.place, sink)
    check = StoredLogCheck(unit.place, sink, is_named, log.producer_batches.table, outcome.reads)
    for extent in log.extents(root.objects, lambda: log).current():
        check.check(extent, may_have_gaps=isinstance(extent, RemoteExtent) and extent.segment.is_cleaned)
    if unit.are_records_checked:
        reader = root.reader(topic_partition.topic, topic_partition.partition)
        check.check_records(reader, state.log_start_offset, state.log_end_offset)
    outcome.is_gone = newest() is None
    outcome.findings += sink.result()
    return state.log_start_offset


def object_units(
    root: ObjectRoot, partitions: Iterable[TopicPartition], *, are_records_checked: bool
) -> list[ObjectUnit]:
    """One unit for each of the partitions; one that was deleted meanwhile has no findings."""
    units = []
    for each in partitions:
        partition = root.store.image.find(each.topic, each.partition)
        size_bytes = 0 if partition is None else partition.extents_bytes
        units.append(ObjectUnit(each, _location(root, each), size_bytes, are_records_checked))
    return units


def _location(root: ObjectRoot, topic_partition: TopicPartition) -> str:
    """What findings call the log of a partition."""
    return f"{root.objects.url}: {topic_partition}"


@dataclass(frozen=True, slots=True)
class RemoteUnit(ScopedUnit):
    """Some segments of a file root's partition in its remote storage, `log`, to check one after the other."""

    log: RemoteLog
    size_bytes: int

    def check(self, outcome: UnitOutcome, opened: Callable[[], Root]) -> None:
        """See Unit. Segments that the newest image does not name any more have no findings."""
        log, segments, sink = self.log, self.log.segments, FindingSink(self.topic_partition)

        def is_named(extent: Extent) -> bool:
            """Whether the newest image names the segment: retention may have dropped it meanwhile."""
            image = LocalMetadataStore.open(self.scope.root).image
            found = image.find(log.partition.topic, log.partition.partition)
            segments = () if found is None else found.segments
            return isinstance(extent, RemoteExtent) and extent.segment in segments

        check = StoredLogCheck(f"{log.location}: {log.partition}", sink, is_named, reads=outcome.reads)
        for extent in log.extents_below(segments[-1].end_offset):
            check.check(extent, may_have_gaps=self.scope.has_gaps is not False)
        if self.scope.are_records_checked:
            reader = LogReader(tiered_extents(log, None, lambda: log), self.topic_partition)
            check.check_records(reader, segments[0].base_offset, segments[-1].end_offset)
        outcome.findings += sink.result()


def remote_units(root: FileRoot, scope: PartitionScope, *, unit_bytes: int) -> list[RemoteUnit]:
    """The partition's segments in remote storage, in units of at least `unit_bytes` (except the last)."""
    partition = root.partition(scope.topic_partition.topic, scope.topic_partition.partition)
    log = None if partition.remote is None else partition.remote.log
    if log is None or not isinstance(log.storage, OwnStorage):
        return []
    units: list[RemoteUnit] = []
    first = size_bytes = 0
    for at, segment in enumerate(log.segments, start=1):
        size_bytes += segment.size_bytes
        if size_bytes >= unit_bytes or at == len(log.segments):
            units.append(RemoteUnit(scope, replace(log, segments=log.segments[first:at]), size_bytes))
            first, size_bytes = at, 0
    return units


@dataclass(slots=True)
class StoredLogCheck:
    """Checks the extents of one partition in a store, in order of their offsets.

    `location` is what findings call the log. `is_named` says whether the newest image still names an extent: one that
    retention or a merge has replaced meanwhile has no findings. `producer_batches` are the rows of the commits.
    """

    location: str
    sink: FindingSink
    is_named: Callable[[Extent], bool]
    producer_batches: NDArray[np.void] | None = None
    reads: list[Read] = field(default_factory=list)
    _transactions: SegmentTransactions = field(default_factory=SegmentTransactions)

    def check(self, extent: Extent, *, may_have_gaps: bool = False) -> None:
        """Check the next extent. `may_have_gaps`: its last offsets may be missing, as after a cleaner."""
        own, read, is_unreadable = FindingSink(self.sink.partition), None, False
        try:
            if isinstance(extent, RemoteExtent):
                read = check_segment_object(extent, own, self._transactions, may_have_gaps=may_have_gaps)
            else:
                read = self._check_run(extent, own)
        except FileNotFoundError as error:
            self._error(own, "missing-object", "all objects of the log", str(error), extent.base_offset)
        except DiskFormatError as error:
            own.add_damage(Severity.ERROR, "damaged-object", error, advice=RESTORE_OBJECT)
        except (OSError, KafkalogError) as error:
            self._error(own, "unreadable", "objects that can be read", str(error), extent.base_offset, CHECK_STORE)
            is_unreadable = True
        self.reads.append(read or Read())
        if read is None or any(finding.what == _SHORT for finding in own.findings):
            self._transactions = SegmentTransactions()  # without those of an extent that was not read whole
        if own.findings and (is_unreadable or self.is_named(extent)):
            self.sink.findings += own.result()

    def _check_run(self, extent: Extent, sink: FindingSink) -> Read:
        batches: list[NDArray[np.void]] = []
        extent_read = read_extent(extent, lambda run: batches.append(run.batches[run.batches["producer_id"] >= 0]))
        end_offset = extent.end_offset or 0  # known of every extent in a store
        if extent_read.reached_offset != end_offset:
            expected, found = extent_read.too_short(end_offset)
            self._error(sink, _SHORT, expected, found, extent_read.reached_offset)
        if batches:
            self._check_producers(np.concatenate(batches), extent.base_offset, end_offset, sink)
        return extent_read.read

    def _check_producers(self, found: NDArray[np.void], start_offset: int, end_offset: int, sink: FindingSink) -> None:
        """Compare the batches of producers in [start_offset, end_offset) with the rows of the commits."""
        rows = self.producer_batches
        assert rows is not None  # only partitions of object roots have runs
        rows = rows[(rows["base_offset"] >= start_offset) & (rows["base_offset"] < end_offset)]
        stated, stored = (
            np.array([each[name].astype(np.int64) for name in _PRODUCER_FIELDS]).T for each in (rows, found)
        )
        if np.array_equal(stated, stored):
            return
        count = min(len(stated), len(stored))
        differs = (stated[:count] != stored[:count]).any(axis=1)
        at = int(np.argmax(differs)) if differs.any() else count
        offset = int(stored[at][0]) if at < len(stored) else int(stated[at][0])
        expected, stated_row = _row_text(stored, at), f"{_row_text(stated, at)} in the commits"
        self._error(sink, "producer-batch", expected, stated_row, offset)

    def _error(
        self, sink: FindingSink, what: str, expected: str, found: str, offset: int, advice: str = RESTORE_OBJECT
    ) -> None:
        found = " ".join(found.split())
        sink.add(Severity.ERROR, what, self.location, expected=expected, found=found, advice=advice, offset=offset)

    def check_records(self, reader: LogReader, start_offset: int, end_offset: int) -> None:
        """Decode the records of compressed batches too, unless there are findings already."""
        from pyspark_kafkalog.record.arrow import RECORD_SCHEMA  # loads Arrow, which only this check needs

        if self.sink.findings:
            return
        try:
            for _ in reader.read(start_offset, end_offset, schema=RECORD_SCHEMA):
                pass
        except DiskFormatError as error:
            self.sink.add_damage(Severity.ERROR, "damaged-record", error, advice=RESTORE_OBJECT)


def _row_text(rows: NDArray[np.int64], at: int) -> str:
    """The row of _PRODUCER_FIELDS with that number, for a message."""
    if at >= len(rows):
        return "no batch of a producer"
    first, last, producer, epoch, sequence = rows[at].tolist()
    return f"offsets {first} to {last} of producer {producer} with epoch {epoch} from sequence {sequence}"


@dataclass(frozen=True, slots=True)
class ExtentRead:
    """The batches of an extent as they were read: their number and size, and the offset after the last one."""

    read: Read
    reached_offset: int
    file: str

    def too_short(self, end_offset: int) -> tuple[str, str]:
        """What was expected and found, if the extent should have ended at `end_offset`."""
        return f"batches up to offset {end_offset - 1}", f"the last one ends at {self.reached_offset - 1}"


def read_extent(extent: Extent, *takers: Callable[[BatchRun], None]) -> ExtentRead:
    """Read all batches of an extent in a store, and pass them on.

    Raises FileNotFoundError for a missing object, DiskFormatError for damage, OSError, ObjectStoreError.
    """
    bytes_read = batches = records = 0
    end_offset = extent.end_offset or 0  # known of every extent in a store
    with SegmentReader(extent) as reader:
        for run in reader.runs(0, start_offset=extent.base_offset, end_offset=end_offset, limit_offset=end_offset):
            bytes_read += len(run.data)
            batches += len(run.batches)
            records += int(run.batches["records_count"].sum(dtype=np.int64))
            for take in takers:
                take(run)
        return ExtentRead(Read(bytes_read, batches, records), reader.reached_offset, reader.file)


def check_segment_object(
    extent: RemoteExtent[SegmentObject], sink: FindingSink, transactions: SegmentTransactions, *, may_have_gaps: bool
) -> Read:
    """Check one segment with its indexes, as the commit describes it; `transactions` are those of the ones before it.

    Raises as `read_extent`.
    """
    file = extent.open().name

    def error(what: str, expected: object, found: object, offset: int) -> None:
        sink.add(Severity.ERROR, what, file, expected=expected, found=found, advice=RESTORE_OBJECT, offset=offset)

    epochs = KnownEpochs.of((each.leader_epoch, each.start_offset) for each in extent.segment.leader_epochs)
    largest_ms = -1
    stored = {
        kind: StoredIndex.of_bytes(extent.index_bytes(kind), _index_name(extent, kind))
        for kind, readable in ((IndexKind.OFFSET, extent.offset_index()), (IndexKind.TIMESTAMP, extent.time_index()))
        if readable is not None
    }
    offsets, times = stored.get(IndexKind.OFFSET), stored.get(IndexKind.TIMESTAMP)
    indexes = IndexChecks(extent.base_offset, offsets, times, sink, _CLOSED_INDEX)

    def check(run: BatchRun) -> None:
        nonlocal largest_ms
        batches = run.batches
        largest_ms = max(largest_ms, int(batches["max_timestamp_ms"].max()))
        wrong = epochs.first_wrong(batches, are_whole=True)
        if wrong is not None:
            row, epoch = wrong
            batch = batches[row]
            error(
                "leader-epoch",
                f"epoch {epoch}, as was committed",
                int(batch["leader_epoch"]),
                int(batch["base_offset"]),
            )
        indexes.add(batches)

    found = read_extent(extent, check, transactions.add)
    indexes.finish(extent.segment.size_bytes, is_closed=True)
    if found.reached_offset != extent.end_offset and not may_have_gaps:
        error(_SHORT, *found.too_short(extent.end_offset), found.reached_offset)
    known_ms = extent.known_max_timestamp_ms
    if largest_ms != known_ms:
        error("largest-timestamp", f"{known_ms}, as was committed", largest_ms, extent.base_offset)
    if offsets is None or times is None:
        error("damaged-index", "offset and time indexes", "none that can be read", extent.base_offset)
    try:
        transactions.check(extent.aborted_transactions() or [], file=_index_name(extent, IndexKind.TRANSACTION))
    except CorruptIndexError as damage:
        sink.add_damage(Severity.ERROR, "transaction-index", damage, advice=_CLOSED_INDEX.advice)
    parse_epochs(extent.index_bytes(IndexKind.LEADER_EPOCH), file=f"{file}, leader epochs")
    decode_snapshot(extent.index_bytes(IndexKind.PRODUCER_SNAPSHOT), file=f"{file}, producers")
    return found.read


def _index_name(extent: RemoteExtent[SegmentObject], kind: IndexKind) -> str:
    key, _ = index_place(extent.partition, extent.segment, kind, cast(OwnLayout, extent.layout))
    return f"{extent.store.url}/{key}, {kind.value.lower()} index"
