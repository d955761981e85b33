"""Verifies a root: batches and CRCs, index entries, snapshots and checkpoints are compared with each other. Read-only.

A native root is compared with its image, a broker's directory with its checkpoint files. Writers, readers and
maintenance may continue; what changes meanwhile is checked again. The work is divided into units of whole segments,
which can be separate tasks: `plan_verification` returns them for each partition, `run_unit` checks one, and
`PartitionUnits.conclude` combines those of a partition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, Protocol

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.groups.group import offsets_of_unknown_topics
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, empty_report
from pyspark_kafkalog.maintenance.verify.findings import (
    ACTION,
    UNREADABLE,
    Finding,
    FindingSink,
    SegmentOutcome,
    Severity,
    Unit,
    UnitOutcome,
    Verified,
    confirmed,
    count_by_severity,
    for_broker,
    verified,
)
from pyspark_kafkalog.maintenance.verify.objects import (
    check_copied_objects,
    check_extents,
    check_objects,
    object_units,
    remote_units,
)
from pyspark_kafkalog.maintenance.verify.partition import check_names_and_ends, check_order, segment_units
from pyspark_kafkalog.maintenance.verify.replicas import replica_units
from pyspark_kafkalog.maintenance.verify.root import (
    check_broker_root,
    check_metadata,
    check_native_root,
    check_stored_metadata,
)
from pyspark_kafkalog.maintenance.verify.scope import PartitionScope, broker_scopes, native_scopes
from pyspark_kafkalog.root.brokers.image import read_topic_configs
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.artefacts.partition_listing import list_partitions
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, TopicPartition
from pyspark_kafkalog.units import printable

_LOG: Final = logging.getLogger(__name__)

#: The least bytes of a unit, for partitions with more than that.
UNIT_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Verification:
    """All findings, the root's first, and one report for each partition."""

    findings: list[Finding]
    reports: list[PartitionReport]

    @property
    def is_sound(self) -> bool:
        """Whether there is no error; warnings and leftovers do not count."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


@dataclass(frozen=True, slots=True)
class PartitionUnits:
    """The units of a partition, or of one of its replicas in several directories.

    `scope` is None for a partition of an object root, whose units compare it with the image that they find.
    """

    units: Sequence[Unit]
    scope: PartitionScope | None

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of all units."""
        return self.units[0].topic_partition

    @property
    def place(self) -> Path | str:
        """The directory of the partition, or its name in a store; see Unit."""
        return self.units[0].place

    def conclude(self, outcomes: Sequence[UnitOutcome]) -> Verified:
        """All findings, and the report, from the outcomes of the units."""
        began = time.perf_counter()
        segments = [segment for unit in outcomes for segment in unit.segments]
        findings = [finding for unit in outcomes for finding in unit.findings]
        findings += [finding for segment in segments for finding in segment.findings]
        is_gone = any(unit.is_gone for unit in outcomes)
        log_start_offset = outcomes[0].log_start_offset if outcomes else None
        if self.scope is not None:
            findings += check_order(self.scope, segments)
            if self.scope.is_of_broker:
                findings = [for_broker(each) for each in findings]
            is_gone = bool(findings) and self.scope.renewed() is None
            log_start_offset = _log_start(self.scope, segments)
        return verified(
            self.topic_partition,
            findings,
            [segment.read for segment in segments] + [read for unit in outcomes for read in unit.reads],
            log_start_offset=log_start_offset,
            is_gone=is_gone,
            seconds=sum(unit.seconds for unit in outcomes) + time.perf_counter() - began,
        )


class VerifiableLogs(Protocol):
    """A root of one kind, for verification."""

    def partitions(self, topics: Collection[str] | None) -> list[TopicPartition]:
        """The partitions to verify: all, or those of `topics`. Raises UnknownTopicError."""
        ...

    def check_root(self) -> list[Finding]:
        """The findings on the root itself, without its partitions."""
        ...

    def check_without_batches(self) -> list[Finding]:
        """The findings on the root and its partitions that need no batch, that a second check confirms."""
        ...

    def plan(
        self, partitions: Sequence[TopicPartition], *, are_records_checked: bool, unit_bytes: int
    ) -> list[PartitionUnits]:
        """The units of the partitions, which exist, as of the last refresh."""
        ...


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
    plan = plan_verification(root, topics=topics, partitions=partitions, are_records_checked=are_records_checked)
    for _, replicas in groupby(plan, key=lambda each: each.topic_partition):
        done = [each.conclude([run_unit(unit, lambda: root) for unit in each.units]) for each in replicas]
        found, report = combine(done)
        findings += found
        reports.append(report)
    return Verification(findings, reports)


def verify_without_batches(root: Root) -> list[Finding]:
    """The findings on a whole root that need no batch, in this process, that a second check confirms.

    They are those on the metadata log, on checkpoints, and on the names, sizes and small files of all partitions; of an
    object store those on the metadata log and the listing.
    """
    return _logs_of(root).check_without_batches()


def verify_root(root: Root) -> list[Finding]:
    """The findings on the root itself, without its partitions."""
    return _logs_of(root).check_root()


def partitions_of(root: Root, topics: Collection[str] | None) -> list[TopicPartition]:
    """The partitions to verify: all, or those of `topics`; of a broker's directory also that of its metadata log.

    Raises UnknownTopicError.
    """
    return _logs_of(root).partitions(topics)


def plan_verification(
    root: Root,
    *,
    topics: Collection[str] | None = None,
    partitions: Collection[TopicPartition] | None = None,
    are_records_checked: bool = False,
    unit_bytes: int = UNIT_BYTES,
) -> list[PartitionUnits]:
    """Each partition, or each of its replicas in several directories, with its units, in their current state.

    Raises UnknownTopicError.
    """
    root.refresh()
    logs = _logs_of(root)
    chosen = sorted(logs.partitions(topics) if partitions is None else partitions)
    return logs.plan(chosen, are_records_checked=are_records_checked, unit_bytes=unit_bytes)


def _logs_of(root: Root) -> VerifiableLogs:
    files: Callable[[FileRoot], VerifiableLogs] = partial(_FileLogs, root)
    return for_kind(root, files, partial(_ObjectLogs, root), _BrokerLogs)


@dataclass(frozen=True, slots=True)
class _FileLogs:
    """A root of this package on a file system, with what it has copied to remote storage."""

    root: Root
    files: FileRoot

    def partitions(self, topics: Collection[str] | None) -> list[TopicPartition]:
        return self.files.partitions(topics)

    def check_root(self) -> list[Finding]:
        found = check_metadata(self.files.path) + check_native_root(self.files) + check_copied_objects(self.files)
        return found + _check_offsets(self.root)

    def check_without_batches(self) -> list[Finding]:
        def check() -> list[Finding]:
            self.files.refresh()
            return _names_and_ends(native_scopes(self.files, self.partitions(None), are_records_checked=False))

        return self.check_root() + confirmed(check)

    def plan(
        self, partitions: Sequence[TopicPartition], *, are_records_checked: bool, unit_bytes: int
    ) -> list[PartitionUnits]:
        return [
            PartitionUnits(
                [*segment_units(scope, unit_bytes=unit_bytes), *remote_units(self.files, scope, unit_bytes=unit_bytes)],
                scope,
            )
            for scope in native_scopes(self.files, partitions, are_records_checked=are_records_checked)
        ]


@dataclass(frozen=True, slots=True)
class _ObjectLogs:
    """A root in an object store."""

    root: Root
    objects: ObjectRoot

    def partitions(self, topics: Collection[str] | None) -> list[TopicPartition]:
        return self.objects.partitions(topics)

    def check_root(self) -> list[Finding]:
        return check_stored_metadata(self.objects.store) + check_objects(self.objects) + _check_offsets(self.root)

    def check_without_batches(self) -> list[Finding]:
        found = check_stored_metadata(self.objects.store) + check_objects(self.objects, with_footers=False)
        return found + [each for one in sorted(self.partitions(None)) for each in check_extents(self.objects, one)]

    def plan(
        self, partitions: Sequence[TopicPartition], *, are_records_checked: bool, unit_bytes: int
    ) -> list[PartitionUnits]:
        units = object_units(self.objects, partitions, are_records_checked=are_records_checked)
        return [PartitionUnits([unit], None) for unit in units]


@dataclass(frozen=True, slots=True)
class _BrokerLogs:
    """One directory of a broker, or several, perhaps of different brokers, with replicas of the same partitions."""

    root: Root

    def partitions(self, topics: Collection[str] | None) -> list[TopicPartition]:
        # Includes the broker's metadata log.
        existing = sorted({each for directory in self.root.directories for each in list_partitions(directory)})
        if topics is None:
            return existing
        for name in topics:
            if name != CLUSTER_METADATA_TOPIC:
                self.root.topic(name)
        return [each for each in existing if each.topic in set(topics)]

    def check_root(self) -> list[Finding]:
        return [for_broker(found) for directory in self.root.directories for found in check_broker_root(directory)]

    def check_without_batches(self) -> list[Finding]:
        def check() -> list[Finding]:
            self.root.refresh()
            scopes = self._scopes(self.partitions(None), are_records_checked=False)
            return list(map(for_broker, _names_and_ends(scopes)))

        return self.check_root() + confirmed(check)

    def plan(
        self, partitions: Sequence[TopicPartition], *, are_records_checked: bool, unit_bytes: int
    ) -> list[PartitionUnits]:
        """The replicas of a partition are one after the other, and compared."""
        by_partition: dict[TopicPartition, list[PartitionScope]] = {}
        for scope in self._scopes(partitions, are_records_checked=are_records_checked):
            by_partition.setdefault(scope.topic_partition, []).append(scope)
        plan: list[PartitionUnits] = []
        for topic_partition in partitions:
            replicas = by_partition.get(topic_partition, [])
            is_compared = len(replicas) > 1 and topic_partition.topic != CLUSTER_METADATA_TOPIC
            comparisons = replica_units(self.root, replicas) if is_compared else []
            read = {each.scope.directory for each in comparisons}
            for replica in replicas:
                if read and replica.directory not in read:
                    replica = replace(replica, unread=None)  # another replica has what it has above its high watermark
                own = [each for each in comparisons if each.scope is replica]
                plan.append(PartitionUnits([*segment_units(replica, unit_bytes=unit_bytes), *own], replica))
        return plan

    def _scopes(self, partitions: Sequence[TopicPartition], *, are_records_checked: bool) -> list[PartitionScope]:
        """The scopes of the partitions in all directories, one directory after the other."""
        configs = _topic_configs(self.root)
        scopes: list[PartitionScope] = []
        for directory in self.root.directories:
            is_alone = len(self.root.directories) == 1
            existing = set(list_partitions(directory))
            own = [each for each in partitions if is_alone or each in existing]
            member = self.root if is_alone else open_root(directory)
            scopes += broker_scopes(member, own, configs, are_records_checked=are_records_checked)
        return scopes


def _names_and_ends(scopes: Sequence[PartitionScope]) -> list[Finding]:
    findings: list[Finding] = []
    for scope in scopes:
        try:
            findings += check_names_and_ends(scope)
        except (OSError, KafkalogError) as error:
            findings.append(_unreadable(scope.topic_partition, scope.directory, error))
    return findings


def run_unit(unit: Unit, opened: Callable[[], Root]) -> UnitOutcome:
    """Check one unit; `opened` returns the root in this process. What cannot be read is a finding."""
    began = time.perf_counter()
    outcome = UnitOutcome(unit.place)
    try:
        unit.check(outcome, opened)
    except (OSError, KafkalogError) as error:
        outcome.findings.append(_unreadable(unit.topic_partition, unit.place, error))
    outcome.seconds = time.perf_counter() - began
    return outcome


def _unreadable(topic_partition: TopicPartition, place: Path | str, error: Exception) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        partition=topic_partition,
        what=UNREADABLE,
        file=str(getattr(error, "filename", None) or place),
        expected="a readable file",
        found=" ".join(str(error).split()),
        advice="check the file system and the permissions, and verify again",
    )


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


def _topic_configs(root: Root) -> Mapping[str, Mapping[str, str]]:
    try:
        return read_topic_configs(root.directories[0])
    except (KafkalogError, OSError) as error:
        _LOG.warning(
            "the topics' configurations cannot be read, so gaps between offsets are attributed to the cleaner: %s",
            error,
        )
        return {}


def _log_start(scope: PartitionScope, outcomes: Sequence[SegmentOutcome]) -> int:
    """The log start: at a broker the larger of its checkpoint's and the first segment's, unless the log is tiered."""
    if scope.state is not None or scope.is_tiered:
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
