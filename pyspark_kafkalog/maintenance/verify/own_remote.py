"""Verifies what a root on a file system has copied to remote storage. Read-only; everything else may run meanwhile.

Of a partition its segments there, in units that can be separate tasks, like those of its directory (partition.py). Of
the root the objects, by one listing: names without objects, objects of another size than was committed, and objects
without a name. The storage may be shared: objects of topics that the root does not know are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.maintenance.verify.findings import RESTORE_OBJECT, Finding, FindingSink, Severity, confirmed
from pyspark_kafkalog.maintenance.verify.objects import (
    Read,
    check_segment_object,
    check_sizes,
    named_objects,
    report_unnamed,
)
from pyspark_kafkalog.maintenance.verify.scope import PartitionScope
from pyspark_kafkalog.metadata.extents import planned_at_of
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.storage.log.isolation import SegmentTransactions
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.tiered.extents import TieredExtents
from pyspark_kafkalog.tiered.own_layouts import parse_key
from pyspark_kafkalog.tiered.own_storage import OwnRemoteLog, OwnStorage
from pyspark_kafkalog.tiered.segments import TopicIdPartition

_CLEANER: Final = "kafkalog retention"


@dataclass(frozen=True, slots=True)
class RemoteUnit:
    """Some segments of a partition in remote storage, `log`, to check one after the other."""

    scope: PartitionScope
    log: OwnRemoteLog
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckedRemote:
    """What was found in the segments of a unit, and what was read of each that is still there."""

    findings: tuple[Finding, ...]
    read: tuple[Read, ...]


def remote_units(root: FileRoot, scope: PartitionScope, *, unit_bytes: int) -> list[RemoteUnit]:
    """The partition's segments in remote storage, in units of at least `unit_bytes` (except the last)."""
    partition = root.partition(scope.topic_partition.topic, scope.topic_partition.partition)
    log = None if partition.remote is None else partition.remote.log
    if not isinstance(log, OwnRemoteLog):
        return []
    units: list[RemoteUnit] = []
    some: list[SegmentObject] = []
    for each in log.segments:
        some.append(each)
        if sum(segment.size_bytes for segment in some) >= unit_bytes:
            units.append(_unit(scope, log, some))
            some = []
    return [*units, _unit(scope, log, some)] if some else units


def _unit(scope: PartitionScope, log: OwnRemoteLog, segments: Sequence[SegmentObject]) -> RemoteUnit:
    size_bytes = sum(each.size_bytes for each in segments)
    return RemoteUnit(scope, replace(log, segments=tuple(segments)), size_bytes)


def check_remote_unit(unit: RemoteUnit) -> CheckedRemote:
    """Check the segments of a unit. What the newest image does not name any more has no findings."""
    sink = FindingSink(unit.scope.topic_partition)
    read = []
    transactions = SegmentTransactions()
    for each in unit.log.segments:
        count = len(sink.findings)
        read.append(_check(unit, each, sink, transactions))
        if len(sink.findings) > count:
            transactions = SegmentTransactions()  # without those of a segment that was not read
    if unit.scope.are_records_checked and not sink.findings:
        _check_records(unit, sink)
    return CheckedRemote(tuple(sink.result()), tuple(read))


def _check(unit: RemoteUnit, segment: SegmentObject, sink: FindingSink, transactions: SegmentTransactions) -> Read:
    log, own = unit.log, FindingSink(unit.scope.topic_partition)
    extent = log.storage.extent(log.partition, segment)
    read = Read()
    try:
        read = check_segment_object(extent, own, transactions, may_have_gaps=unit.scope.has_gaps is not False)
    except DiskFormatError as error:
        own.add_damage(Severity.ERROR, "damaged-object", error, advice=RESTORE_OBJECT)
    except (OSError, KafkalogError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        own.add(
            Severity.ERROR,
            "missing-object" if is_missing else "unreadable",
            f"{log.location}: {log.partition}",
            expected="all objects of the log" if is_missing else "objects that can be read",
            found=" ".join(str(error).split()),
            advice=RESTORE_OBJECT if is_missing else "check the store and the permissions, and verify again",
            offset=segment.base_offset,
        )
    if own.findings and _is_named(unit, segment):
        sink.findings += own.result()
    return read


def _is_named(unit: RemoteUnit, segment: SegmentObject) -> bool:
    """Whether the newest image names the segment: retention may have dropped it meanwhile."""
    image = MetadataStore.open(Path(unit.scope.root)).image
    found = image.find(unit.log.partition.topic, unit.log.partition.partition)
    return found is not None and segment in found.segments


def _check_records(unit: RemoteUnit, sink: FindingSink) -> None:
    """Decode the records of compressed batches, too."""
    from pyspark_kafkalog.record.arrow import RECORD_SCHEMA  # loads Arrow, which only this check needs

    segments = unit.log.segments
    reader = LogReader(TieredExtents(unit.log, None, lambda: unit.log), unit.scope.topic_partition)
    try:
        for _ in reader.read(segments[0].base_offset, segments[-1].end_offset, schema=RECORD_SCHEMA):
            pass
    except DiskFormatError as error:
        sink.add_damage(Severity.ERROR, "damaged-record", error, advice=RESTORE_OBJECT)


def check_own_storage(root: FileRoot) -> list[Finding]:
    """The findings on the objects of the root in its remote storage, that a second check confirms."""
    storage = root.remote_storage
    return [] if storage is None else confirmed(lambda: _check_storage(root, storage))


def _check_storage(root: FileRoot, storage: OwnStorage) -> list[Finding]:
    sink = FindingSink(None)
    try:
        listed = {each.key: each.size_bytes for each in storage.store().list_objects("")}
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
    root.refresh()  # behind the listing: what is not listed, and named now, was put since, or is missing
    image = root.store.image
    named: dict[str, int | None] = {}
    for topic in image.topics.values():
        for partition in topic.partitions:
            of = TopicIdPartition(topic.name, topic.topic_id, partition.partition)
            for segment in partition.segments:
                named.update(named_objects(of, segment, storage.layout))
    check_sizes(sink, storage.store().url, named, listed)
    dropped = {segment.segment_id for each in image.dropped for segment in each.segments}
    horizon = image.staging_horizon.offset
    for key in sorted(listed.keys() - named.keys()):
        found = parse_key(key, storage.layout)
        if found is None or found.segment_id in dropped or found.partition.topic_id not in image.topic_names:
            continue
        planned_at = planned_at_of(found.segment_id)
        file = f"{storage.store().url}/{key}"
        report_unnamed(sink, file, listed[key], planned_at=planned_at, horizon=horizon, by=_CLEANER)
    return sink.result()
