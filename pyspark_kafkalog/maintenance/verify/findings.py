"""The findings of a verification, each one fault at one place, with advice; and what was read for them.

`error`: bytes are not as they must be, or committed records cannot be read. `warning`: committed records are
unaffected, or the next writer or broker repairs it. `info`: a leftover that will be removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, empty_report
from pyspark_kafkalog.storage.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry

#: The most findings of one kind in one file; one more finding has the number of the others.
_FINDINGS_A_KIND: Final = 100

ACTION: Final = "verify"
RESTORE: Final = "restore the file from a copy: committed records in it are damaged"
RESTORE_OBJECT: Final = "restore the object, from an earlier version of it if the bucket keeps versions"
CHECK_STORE: Final = "check the store and the permissions, and verify again"
REINDEX: Final = "kafkalog verify --repair, or kafkalog reindex, rebuilds the file from the .log"
REPAIR: Final = "kafkalog verify --repair corrects it"
_REFUSED_COMMANDS: Final = ("verify --repair", "kafkalog reindex")
_BROKER_REBUILDS_INDEXES: Final = (
    "if the segment has an .index file, move it away: a broker that starts, and kafkalog adopt, rebuild all indexes of "
    "a segment without one"
)
_BROKER_REBUILDS: Final = (
    "restore the file from a copy, or move it away: a broker that starts rebuilds it from the log or works without "
    "it, and so does kafkalog adopt"
)
_SEGMENT_FILES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
#: The kind of findings on directories and files that cannot be read.
UNREADABLE: Final = "unreadable"
NEXT_WRITER: Final = "nothing: the next writer removes it"


#: Between two checks of files that others may be changing.
_BETWEEN_CHECKS_S: Final = 0.3


class Severity(str, Enum):
    """The severity of a finding, as described above."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault. `what` names its kind and is stable. `position` is a byte of `file`, `offset` that of a record.

    `partition` is None for a fault of the root.
    """

    severity: Severity
    partition: TopicPartition | None
    file: str
    what: str
    expected: str
    found: str
    advice: str
    position: int | None = None
    offset: int | None = None

    def tree(self) -> dict[str, Any]:
        """The finding as JSON-compatible values."""
        return {
            "action": "finding",
            "severity": self.severity.value,
            "topic": None if self.partition is None else self.partition.topic,
            "partition": None if self.partition is None else self.partition.partition,
            "file": self.file,
            "position": self.position,
            "offset": self.offset,
            "what": self.what,
            "expected": self.expected,
            "found": self.found,
            "advice": self.advice,
        }


def for_broker(finding: Finding) -> Finding:
    """The finding in a broker's directory, where the commands that repair a root of this package are refused."""
    if not any(each in finding.advice for each in _REFUSED_COMMANDS):
        return finding
    is_of_segment = finding.file.endswith(_SEGMENT_FILES)
    return replace(finding, advice=_BROKER_REBUILDS_INDEXES if is_of_segment else _BROKER_REBUILDS)


@dataclass(slots=True)
class FindingSink:
    """Collects the findings of one partition, or of the root, with a limit for each kind and file."""

    partition: TopicPartition | None
    findings: list[Finding] = field(default_factory=list)
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(
        self,
        severity: Severity,
        what: str,
        file: Path | str,
        *,
        expected: object,
        found: object,
        advice: str,
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        """Add one finding."""
        key = (str(file), what)
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] > _FINDINGS_A_KIND:
            return
        self.findings.append(
            Finding(
                severity=severity,
                partition=self.partition,
                file=str(file),
                what=what,
                expected=str(expected),
                found=str(found),
                advice=advice,
                position=position,
                offset=offset,
            )
        )

    def add_damage(self, severity: Severity, what: str, error: DiskFormatError, *, advice: str | None = None) -> None:
        """Add `error` as a finding, with its own advice unless `advice` is given."""
        self.add(
            severity,
            what,
            error.file,
            expected=error.expected,
            found=error.found,
            advice=error.advice if advice is None else advice,
            position=error.position,
        )

    def result(self) -> list[Finding]:
        """All findings, with an additional one for each kind that exceeded the limit."""
        for (file, what), count in self._counts.items():
            if count > _FINDINGS_A_KIND:
                self.findings.append(
                    Finding(
                        severity=Severity.ERROR,
                        partition=self.partition,
                        file=file,
                        what=what,
                        expected="none",
                        found=f"{count - _FINDINGS_A_KIND} more of this kind in the file",
                        advice="see the others",
                    )
                )
        self._counts.clear()
        return self.findings


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of one segment, or of one run or more."""

    bytes_read: int = 0
    batches: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class SegmentOutcome:
    """The outcome for one local segment. `producers` is their state at its end, None if unknown.

    `end_offset` is the offset after its last batch, -1 for a segment that is gone. `inner_gaps` is the number of gaps
    between offsets inside it. `is_damaged`: bytes of the `.log` are no batches, so batches may be missing at its end.
    """

    base_offset: int
    findings: tuple[Finding, ...] = ()
    end_offset: int = -1
    inner_gaps: int = 0
    is_damaged: bool = False
    read: Read = field(default_factory=Read)
    producers: tuple[ProducerStateEntry, ...] | None = None


@dataclass(slots=True)
class UnitOutcome:
    """The outcome of one unit, which adds to it while it is checked: local segments, and what else was read.

    `is_gone`: the partition was deleted meanwhile. `log_start_offset` is set for partitions that are only in a store.
    """

    place: Path | str
    findings: list[Finding] = field(default_factory=list)
    segments: list[SegmentOutcome] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    log_start_offset: int | None = None
    is_gone: bool = False
    seconds: float = 0.0


class Unit(Protocol):
    """What one task, or a part of it, checks: segments of the partition at `place`; can be pickled."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def place(self) -> Path | str:
        """The directory of the partition, or what findings call a partition in a store."""
        ...

    @property
    def size_bytes(self) -> int:
        """The bytes to read."""
        ...

    def check(self, outcome: UnitOutcome, opened: Callable[[], Root]) -> None:
        """Check it, and add to `outcome`. `opened` returns the root in this process.

        Raises OSError or KafkalogError for what cannot be read.
        """
        ...


#: A partition's findings and report.
Verified: TypeAlias = tuple[list[Finding], PartitionReport]


def verified(
    topic_partition: TopicPartition,
    findings: list[Finding],
    reads: Sequence[Read],
    *,
    seconds: float,
    log_start_offset: int | None = None,
    is_gone: bool = False,
) -> Verified:
    """The findings on a partition and its report; no findings if it `is_gone`."""
    findings = [] if is_gone else findings
    counts = count_by_severity(findings)
    report = replace(
        empty_report(topic_partition, ACTION),
        bytes_read=sum(each.bytes_read for each in reads),
        records_read=sum(each.records for each in reads),
        segments_read=len(reads),
        batches_read=sum(each.batches for each in reads),
        errors_found=counts[Severity.ERROR],
        warnings_found=counts[Severity.WARNING],
        log_start_offset=log_start_offset,
        skipped="the topic was deleted meanwhile" if is_gone else None,
        seconds=seconds,
    )
    return findings, report


def count_by_severity(findings: Iterable[Finding]) -> dict[Severity, int]:
    """The number of findings of each severity, including 0."""
    counts = dict.fromkeys(Severity, 0)
    for finding in findings:
        counts[finding.severity] += 1
    return counts


def confirmed(
    check: Callable[[], list[Finding]], check_again: Callable[[], list[Finding]] | None = None
) -> list[Finding]:
    """The findings of `check` that a second check confirms, since others may be changing the files meanwhile."""
    findings = check()
    if all(finding.severity is Severity.INFO for finding in findings):
        return findings
    time.sleep(_BETWEEN_CHECKS_S)
    return [finding for finding in (check_again or check)() if finding in findings]
