"""Verifies a root: batches and CRCs, index entries, snapshots and checkpoints are compared with each other. Read-only.

A native log directory is compared with its image, a broker's directory with its checkpoint files. Writers, readers and
maintenance may continue; files that change meanwhile are checked again. The work is divided into units of whole
segments, which can be separate tasks: `plan_verification` returns them, `run_unit` checks one, `conclude` combines
those of a partition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.groups.group import offsets_of_unknown_topics
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report
from pyspark_kafkalog.maintenance.verify.findings import (
    UNREADABLE,
    Finding,
    FindingSink,
    Severity,
    confirmed,
    count_by_severity,
    for_broker,
)
from pyspark_kafkalog.maintenance.verify.metadata import check_metadata
from pyspark_kafkalog.maintenance.verify.objects import (
    Read,
    check_object_order,
    check_object_partition,
    check_object_root,
)
from pyspark_kafkalog.maintenance.verify.own_remote import (
    CheckedRemote,
    RemoteUnit,
    check_own_storage,
    check_remote_unit,
    remote_units,
)
from pyspark_kafkalog.maintenance.verify.partition import (
    SegmentUnit,
    check_directory,
    check_names_and_ends,
    check_order,
    segment_units,
)
from pyspark_kafkalog.maintenance.verify.replicas import ReplicaUnit, compare, replica_units
from pyspark_kafkalog.maintenance.verify.root import check_broker_root, check_native_root
from pyspark_kafkalog.maintenance.verify.scope import PartitionScope, broker_scopes, native_scopes
from pyspark_kafkalog.maintenance.verify.segment import SegmentOutcome, check_unit
from pyspark_kafkalog.root.brokers.metadata.image import read_topic_configs
from pyspark_kafkalog.root.file_root import directory_of, on_file_system
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.artefacts.partition_listing import list_partitions
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, TopicPartition
from pyspark_kafkalog.units import printable

_LOG: Final = logging.getLogger(__name__)

#: What one task, or a part of it, checks.
Unit: TypeAlias = SegmentUnit | ReplicaUnit | RemoteUnit
#: A partition's findings and report.
Verified: TypeAlias = tuple[list[Finding], PartitionReport]

ACTION: Final = "verify"
#: The least bytes of a unit, for partitions with more than that.
UNIT_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class UnitOutcome:
    """The outcome of one unit of the partition in `directory`."""

    directory: Path
    outcomes: tuple[SegmentOutcome, ...]
    findings: tuple[Finding, ...]
    seconds: float
    remote: CheckedRemote | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """All findings, the root's first, and one report for each partition."""

    findings: list[Finding]
    reports: list[PartitionReport]

    @property
    def is_sound(self) -> bool:
        """Whether there is no error; warnings and leftovers do not count."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def verify(
    root: Root,
    *,
    topics: Collection[str] | None = None,
    partitions: Collection[TopicPartition] | None = None,
    are_records_checked: bool = False,
) -> Verification:
    """Verify a whole root, or some topics or partitions, in this process, one unit after the other.

    With all topics, the root itself is checked too: its commit log, checkpoints, and entries that belong to no
    partition. `are_records_checked`: also check the records of compressed batches, which takes as long as decompressing
    them. Raises UnknownTopicError, LogDirError, and OSError for files that cannot be read.
    """
    findings = verify_root(root) if topics is None and partitions is None else []
    reports = []
    native = None if root.is_broker_directory else root.native()
    if isinstance(native, ObjectRoot):
        native.refresh()
        for each in sorted(partitions_of(root, topics) if partitions is None else partitions):
            found, report = check_object_partition(native, each, are_records_checked=are_records_checked)
            findings += found
            reports.append(report)
        return Verification(findings, reports)
    plan = plan_verification(root, topics=topics, partitions=partitions, are_records_checked=are_records_checked)
    for _, replicas in groupby(plan, key=lambda each: each[0].topic_partition):
        found, report = combine([conclude(scope, [run_unit(unit) for unit in units]) for scope, units in replicas])
        findings += found
        reports.append(report)
    return Verification(findings, reports)


def verify_without_batches(root: Root) -> list[Finding]:
    """The findings on a whole root that need no batch, in this process, that a second check confirms.

    They are those on the metadata log, on checkpoints, and on the names, sizes and small files of all partitions; of an
    object store those on the metadata log and the listing.
    """
    native = None if root.is_broker_directory else root.native()
    if isinstance(native, ObjectRoot):
        findings = check_object_root(native, with_footers=False)
        return findings + [each for one in sorted(native.partitions(None)) for each in check_object_order(native, one)]
    return verify_root(root) + confirmed(lambda: _check_directories(root))


def _check_directories(root: Root) -> list[Finding]:
    root.refresh()
    chosen = partitions_of(root, None)
    if not root.is_broker_directory:
        scopes = native_scopes(on_file_system(root), chosen, are_records_checked=False)
        return [finding for scope in scopes for finding in _names_and_ends(scope)]
    configs = _topic_configs(root)
    findings: list[Finding] = []
    for directory in root.directories:
        member = root if len(root.directories) == 1 else open_root(directory)
        own = sorted(set(chosen) & set(list_partitions(directory)))
        for scope in broker_scopes(member, own, configs, are_records_checked=False):
            findings += map(for_broker, _names_and_ends(scope))
    return findings


def _names_and_ends(scope: PartitionScope) -> list[Finding]:
    try:
        return check_names_and_ends(scope)
    except (OSError, KafkalogError) as error:
        sink = FindingSink(scope.topic_partition)
        _report_unreadable(sink, scope, error)
        return sink.result()


def verify_root(root: Root) -> list[Finding]:
    """The findings on the root itself, without its partitions."""
    if root.is_broker_directory:
        return [for_broker(found) for directory in root.directories for found in check_broker_root(directory)]
    native = root.native()
    if isinstance(native, ObjectRoot):
        return check_object_root(native) + _check_offsets(root)
    found = check_metadata(directory_of(root)) + check_native_root(root) + check_own_storage(on_file_system(root))
    return found + _check_offsets(root)


def _check_offsets(root: Root) -> list[Finding]:
    """Committed offsets that may be of a deleted topic, in a root whose early commits are gone."""
    sink = FindingSink(None)
    try:
        found = offsets_of_unknown_topics(root)
    except (OSError, KafkalogError):
        return []  # damage of the log, which the check of its partition reports
    for group, each in found:
        sink.add(
            Severity.INFO,
            "offset-without-topic-id",
            f"{root.path}: group {printable(group)}",
            expected=f"the id of topic {each.topic} in the committed offset of {each}",
            found="none, and a snapshot of an earlier version does not tell when the topic was created",
            advice="if the topic was deleted and created again before the upgrade, run kafkalog consumer-groups "
            f"--delete-offsets --group {printable(group)} --topic {each.topic}",
        )
    return sink.result()


def plan_verification(
    root: Root,
    *,
    topics: Collection[str] | None = None,
    partitions: Collection[TopicPartition] | None = None,
    are_records_checked: bool = False,
    unit_bytes: int = UNIT_BYTES,
) -> list[tuple[PartitionScope, list[Unit]]]:
    """Each partition, or each of its replicas in several directories, with its units, in their current state.

    Raises UnknownTopicError.
    """
    root.refresh()
    chosen = sorted(partitions_of(root, topics) if partitions is None else partitions)
    if len(root.directories) > 1:
        return _plan_replicas(root, chosen, are_records_checked=are_records_checked, unit_bytes=unit_bytes)
    if root.is_broker_directory:
        scopes = broker_scopes(
            root,
            chosen,
            _topic_configs(root),
            are_records_checked=are_records_checked,
        )
        return [(scope, list(segment_units(scope, unit_bytes=unit_bytes))) for scope in scopes]
    files = on_file_system(root)
    return [
        (scope, [*segment_units(scope, unit_bytes=unit_bytes), *remote_units(files, scope, unit_bytes=unit_bytes)])
        for scope in native_scopes(files, chosen, are_records_checked=are_records_checked)
    ]


def _plan_replicas(
    root: Root, chosen: Sequence[TopicPartition], *, are_records_checked: bool, unit_bytes: int
) -> list[tuple[PartitionScope, list[Unit]]]:
    """The replicas in all directories, those of a partition one after the other, and their comparisons."""
    configs = _topic_configs(root)
    replicas: dict[TopicPartition, list[PartitionScope]] = {}
    for directory in root.directories:
        member = open_root(directory)
        own = [each for each in list_partitions(directory) if each in set(chosen)]
        for scope in broker_scopes(member, own, configs, are_records_checked=are_records_checked):
            replicas.setdefault(scope.topic_partition, []).append(scope)
    plan: list[tuple[PartitionScope, list[Unit]]] = []
    for topic_partition in chosen:
        scopes = replicas.get(topic_partition, [])
        is_compared = len(scopes) > 1 and topic_partition.topic != CLUSTER_METADATA_TOPIC
        comparisons = replica_units(root, scopes) if is_compared else []
        read = {each.scope.directory for each in comparisons}
        for scope in scopes:
            if read and scope.directory not in read:
                scope = replace(scope, unread=None)  # what this replica has above its high watermark is in another one
            units: list[Unit] = list(segment_units(scope, unit_bytes=unit_bytes))
            plan.append((scope, units + [each for each in comparisons if each.scope is scope]))
    return plan


def partitions_of(root: Root, topics: Collection[str] | None) -> list[TopicPartition]:
    """The partitions to verify: all, or those of `topics`; of a broker's directory also that of its metadata log.

    Raises UnknownTopicError.
    """
    if not root.is_broker_directory:
        return root.native().partitions(topics)
    # Includes the broker's metadata log.
    existing = sorted({each for directory in root.directories for each in list_partitions(directory)})
    if topics is None:
        return existing
    for name in topics:
        if name != CLUSTER_METADATA_TOPIC:
            root.topic(name)
    return [each for each in existing if each.topic in set(topics)]


def _topic_configs(root: Root) -> Mapping[str, Mapping[str, str]]:
    try:
        return read_topic_configs(root.directories[0])
    except (KafkalogError, OSError) as error:
        _LOG.warning(
            "the topics' configurations cannot be read, so gaps between offsets are attributed to the cleaner: %s",
            error,
        )
        return {}


def run_unit(unit: Unit) -> UnitOutcome:
    """Check one unit. A file that cannot be read is a finding."""
    began = time.perf_counter()
    scope = unit.scope
    sink = FindingSink(scope.topic_partition)
    outcomes: list[SegmentOutcome] = []
    remote: CheckedRemote | None = None
    try:
        if isinstance(unit, ReplicaUnit):
            sink.findings += compare(unit)
        elif isinstance(unit, RemoteUnit):
            remote = check_remote_unit(unit)
            sink.findings += remote.findings
        else:
            if unit.is_first:
                sink.findings += check_directory(scope)
            for outcome in check_unit(scope, unit.bases, unit.next_base):
                outcomes.append(replace(outcome, producers=None))
    except (OSError, KafkalogError) as error:
        _report_unreadable(sink, scope, error)
    return UnitOutcome(scope.directory, tuple(outcomes), tuple(sink.result()), time.perf_counter() - began, remote)


def _report_unreadable(sink: FindingSink, scope: PartitionScope, error: Exception) -> None:
    sink.add(
        Severity.ERROR,
        UNREADABLE,
        getattr(error, "filename", None) or scope.directory,
        expected="a readable file",
        found=" ".join(str(error).split()),
        advice="check the file system and the permissions, and verify again",
    )


def conclude(scope: PartitionScope, units: Sequence[UnitOutcome]) -> Verified:
    """All findings of a partition, and its report, from the outcomes of its units."""
    began = time.perf_counter()
    outcomes = [outcome for unit in units for outcome in unit.outcomes]
    read = [Read(each.bytes_read, each.batches, each.records) for each in outcomes]
    read += [each for unit in units if unit.remote is not None for each in unit.remote.read]
    findings = [finding for unit in units for finding in unit.findings]
    findings += _of_segments(outcomes)
    findings += check_order(scope, outcomes)
    if scope.is_broker_directory:
        findings = [for_broker(each) for each in findings]
    is_gone = bool(findings) and scope.renewed() is None
    if is_gone:
        findings = []
    counts = count_by_severity(findings)
    report = replace(
        empty_report(scope.topic_partition, ACTION),
        bytes_read=sum(each.bytes_read for each in read),
        records_read=sum(each.records for each in read),
        segments_read=len(read),
        batches_read=sum(each.batches for each in read),
        errors_found=counts[Severity.ERROR],
        warnings_found=counts[Severity.WARNING],
        log_start_offset=_log_start(scope, outcomes),
        skipped="the topic was deleted meanwhile" if is_gone else None,
        seconds=sum(unit.seconds for unit in units) + time.perf_counter() - began,
    )
    return findings, report


def _log_start(scope: PartitionScope, outcomes: Sequence[SegmentOutcome]) -> int:
    """The log start: at a broker the larger of its checkpoint's and the first segment's, unless the log is tiered."""
    is_tiered = scope.unread is not None and scope.unread.found.remote_offsets_count > 0
    if scope.state is not None or is_tiered:
        return scope.log_start_offset
    return max(scope.log_start_offset, min((each.base_offset for each in outcomes), default=0))


def combine(verified: Sequence[Verified]) -> Verified:
    """The findings on the replicas of one partition, and one report on all of them."""
    if len(verified) == 1:
        return verified[0]
    reports = [report for _, report in verified]
    combined = replace(
        reports[0],
        bytes_read=sum(each.bytes_read for each in reports),
        records_read=sum(each.records_read for each in reports),
        segments_read=sum(each.segments_read or 0 for each in reports),
        batches_read=sum(each.batches_read or 0 for each in reports),
        errors_found=sum(each.errors_found or 0 for each in reports),
        warnings_found=sum(each.warnings_found or 0 for each in reports),
        skipped=reports[0].skipped if all(each.skipped for each in reports) else None,
        seconds=sum(each.seconds for each in reports),
    )
    return [finding for findings, _ in verified for finding in findings], combined


def root_report(findings: Sequence[Finding], report: PartitionReport | None = None) -> PartitionReport:
    """The report on the root itself, merged with that on the metadata log if it is a partition."""
    counts = count_by_severity(findings)
    if report is None:
        report = empty_report(TopicPartition(CLUSTER_METADATA_TOPIC, 0), ACTION)
    return replace(
        report,
        errors_found=(report.errors_found or 0) + counts[Severity.ERROR],
        warnings_found=(report.warnings_found or 0) + counts[Severity.WARNING],
    )


def _of_segments(outcomes: Iterable[SegmentOutcome]) -> Iterator[Finding]:
    for outcome in outcomes:
        yield from outcome.findings
