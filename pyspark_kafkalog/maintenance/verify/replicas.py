"""Verifies that the replicas of a partition, in several directories of brokers, have the same batches.

A follower copies its leader's batches byte for byte, leader epochs included, so offsets below the high watermarks of
two replicas are in the same batches in both. Each is compared by its header, which has the CRC of the rest; that the
CRCs are right is checked with each replica's segments. Replicas divide their logs into segments at different offsets,
which does not matter.

The cleaner works on each replica by itself. What it may have changed is not compared: offsets below the cleaner's
checkpoint of one of the two, or, where a compacted topic has no line in it, below one's active segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.maintenance.verify.findings import Finding, FindingSink, Severity, UnitOutcome
from pyspark_kafkalog.maintenance.verify.scope import PartitionScope, ScopedUnit, checkpoint_or_empty
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, ReplicaState
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT
from pyspark_kafkalog.storage.names import PARTITION_METADATA

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyspark_kafkalog.root.protocol import Root

_COMPARED: Final = ("base_offset", "last_offset", "leader_epoch", "crc", "size_bytes")
_ADVICE: Final = (
    "reads take the replica of the latest leader epoch, as the cluster does, and a broker that starts on this "
    "directory cuts its log off here; if the other records are needed, read this directory alone before that"
)
_DUPLICATE_ADVICE: Final = (
    "Kafka does not start with two directories of one partition, which a broker leaves that dies while it replaces a "
    "replica by its future one: remove the one that is not needed"
)


@dataclass(frozen=True, slots=True)
class ReplicaUnit(ScopedUnit):
    """Offsets [start_offset, end_offset) of the replica of `scope`, which is read, and of another one, to compare.

    `findings` is what was found before that.
    """

    other: Path
    start_offset: int
    end_offset: int
    size_bytes: int
    findings: tuple[Finding, ...]

    def check(self, outcome: UnitOutcome, opened: Callable[[], Root]) -> None:
        """See Unit."""
        outcome.findings += compare(self)


def replica_units(root: Root, scopes: Sequence[PartitionScope]) -> list[ReplicaUnit]:
    """The comparisons of a partition's replicas, whose scopes are given, with the one that is read.

    None if the partition cannot be read, which the checks of its segments report.
    """
    topic_partition = scopes[0].topic_partition
    try:
        found = root.partition(topic_partition.topic, topic_partition.partition)
    except (KafkalogError, OSError):
        return []
    by_directory = {scope.directory: scope for scope in scopes}
    best = by_directory[found.directory]
    units = []
    for other in found.replicas[1:]:
        sink = FindingSink(topic_partition)
        start_offset, end_offset = _compared_offsets(found, other, best, by_directory[other.directory])
        if other.is_of_other_topic:
            _other_topic(found, other, sink)
            end_offset = start_offset
        elif _is_duplicate(found.replicas[0], other):
            _duplicate(found, other, sink)
        size_bytes = _size_bytes(other.directory)
        units.append(ReplicaUnit(best, other.directory, start_offset, end_offset, size_bytes, tuple(sink.result())))
    return units


def _compared_offsets(
    found: PartitionSnapshot, other: ReplicaState, best: PartitionScope, other_scope: PartitionScope
) -> tuple[int, int]:
    start_offset, end_offset = other.common_offsets(found)
    for scope in (best, other_scope):
        start_offset = max(start_offset, _first_uncleaned(scope))
    return start_offset, end_offset


def _first_uncleaned(scope: PartitionScope) -> int:
    """The offset from which on the cleaner has not changed the replica's log."""
    cleaned = checkpoint_or_empty(scope.root / CLEANER_OFFSET_CHECKPOINT).get(scope.topic_partition)
    if cleaned is not None:
        return cleaned
    return max(scope.bases(), default=0) if scope.has_gaps else 0


def _is_duplicate(one: ReplicaState, other: ReplicaState) -> bool:
    """Whether a broker has the partition in two of its log.dirs. Copies of one disk have the same directory id."""
    return one.node_id is not None and one.node_id == other.node_id and one.directory_id != other.directory_id


def _duplicate(found: PartitionSnapshot, other: ReplicaState, findings: FindingSink) -> None:
    findings.add(
        Severity.WARNING,
        "duplicate-directory",
        other.directory,
        expected=f"one directory of the partition in the log.dirs of node {other.node_id}",
        found=f"another one, {found.directory}",
        advice=_DUPLICATE_ADVICE,
    )


def _other_topic(found: PartitionSnapshot, other: ReplicaState, findings: FindingSink) -> None:
    findings.add(
        Severity.INFO,
        "replica-of-deleted-topic",
        other.directory / PARTITION_METADATA,
        expected=f"topic id {found.topic_id}, as in {found.directory}",
        found=str(other.topic_id),
        advice="nothing: it is not read, and a broker of the cluster renames the directory when it starts",
    )


def _size_bytes(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.glob("*.log"))


def compare(unit: ReplicaUnit) -> list[Finding]:
    """The unit's findings, and that about the first batch that differs, if there is one. Raises OSError.

    Where one of the logs is damaged the comparison ends: the check of its segments reports that.
    """
    sink = FindingSink(unit.scope.topic_partition, list(unit.findings))
    ours, others = _Batches(unit.scope.directory, unit), _Batches(unit.other, unit)
    try:
        while True:
            rows, other_rows = ours.rows(), others.rows()
            if rows is None or other_rows is None:
                break
            count = min(len(rows), len(other_rows))
            index = _first_difference(rows[:count], other_rows[:count])
            if index is not None:
                _differs(unit, rows[index], other_rows[index], others.file, sink)
                return sink.result()
            ours.drop(count)
            others.drop(count)
    except (DiskFormatError, FileNotFoundError):
        return sink.result()
    if rows is not None or other_rows is not None:
        row, other_row = (None if each is None else each[0] for each in (rows, other_rows))
        _differs(unit, row, other_row, others.file, sink)
    return sink.result()


def _differs(unit: ReplicaUnit, row: np.void | None, other_row: np.void | None, file: str, sink: FindingSink) -> None:
    offset = min(int(each["base_offset"]) for each in (row, other_row) if each is not None)
    sink.add(
        Severity.ERROR,
        "replica-differs",
        file,
        position=None if other_row is None else int(other_row["position"]),
        offset=offset,
        expected=f"{_described(row)}, as in {unit.scope.directory}",
        found=f"{_described(other_row)}; offsets {max(offset, unit.start_offset)} to {unit.end_offset - 1} are below "
        "both high watermarks",
        advice=_ADVICE,
    )


def _described(row: np.void | None) -> str:
    if row is None:
        return "no further batch"
    return (
        f"a batch of offsets {int(row['base_offset'])} to {int(row['last_offset'])} with leader epoch "
        f"{int(row['leader_epoch'])} and CRC {int(row['crc'])}"
    )


def _first_difference(ours: NDArray[np.void], others: NDArray[np.void]) -> int | None:
    same = ours["base_offset"] == others["base_offset"]
    for name in _COMPARED[1:]:
        same &= ours[name] == others[name]
    return None if bool(same.all()) else int(same.argmin())


class _Batches:
    """The headers of a replica's batches in the range of a unit, a chunk at a time."""

    def __init__(self, directory: Path, unit: ReplicaUnit) -> None:
        self.file = str(directory)
        self._rows: NDArray[np.void] | None = None
        self._chunks = self._read(directory, unit.start_offset, unit.end_offset)

    def rows(self) -> NDArray[np.void] | None:
        """At least one row, read if there are none left; None at the end."""
        while self._rows is None or not len(self._rows):
            self._rows = next(self._chunks, None)
            if self._rows is None:
                return None
        return self._rows

    def drop(self, count: int) -> None:
        """Drop the first `count` rows."""
        if self._rows is not None:
            self._rows = self._rows[count:]

    def _read(self, directory: Path, start_offset: int, end_offset: int) -> Iterator[NDArray[np.void]]:
        from pyspark_kafkalog.storage.log.producer_replay import stored_batches  # imports compiled code

        for chunk, file in stored_batches(directory, start_offset, end_offset):
            self.file = file
            batches = chunk.batches
            yield batches[(batches["last_offset"] >= start_offset) & (batches["base_offset"] < end_offset)]
