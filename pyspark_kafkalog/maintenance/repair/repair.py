"""Repairs a native log directory after a verification, without changing a committed record.

A step is about one partition, or about the root. Everything that steps write can be derived: indexes and snapshots from
the `.log` files, checkpoints from the image and the batches, hints from the files that exist. Damaged records cannot;
they have to be restored from a copy. A kill leaves some steps done and others not; each file is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.repair import steps as repair_steps
from pyspark_kafkalog.maintenance.verify.findings import Finding
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.names import TopicPartition

ACTION: Final = "repair"

_REINDEX: Final = (
    "index-missing",
    "index-length",
    "index-order",
    "index-zeros",
    "offset-index-entry",
    "offset-index-end",
    "time-index-entry",
    "time-index-end",
    "txn-index-entry",
    "txn-index-missing",
    "producer-snapshot",
    "producer-snapshot-missing",
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of step: the findings that it repairs, its description and its function."""

    name: str
    whats: tuple[str, ...]
    does: str
    of_partition: Callable[[NativeRoot, TopicPartition, int], None] | None = None
    of_root: Callable[[NativeRoot, int], None] | None = None


#: In the order of execution.
_KINDS: Final = (
    _Kind(
        "metadata-snapshot",
        ("metadata-snapshot",),
        "write a snapshot of the current metadata, and remove damaged snapshots",
        of_root=repair_steps.replace_snapshots,
    ),
    _Kind(
        "metadata-hints",
        ("metadata-hint",),
        "rewrite kafkalog-newest-snapshot, kafkalog-head and kafkalog-start from the existing files",
        of_root=repair_steps.rewrite_hints,
    ),
    _Kind(
        "metadata-topic-id",
        ("topic-id",),
        "rewrite the metadata log's partition.metadata",
        of_root=repair_steps.write_metadata_topic_id,
    ),
    _Kind(
        "make-directory",
        ("directory-missing",),
        "create the directory of the empty partition",
        of_partition=repair_steps.make_directory,
    ),
    _Kind(
        "topic-id",
        ("topic-id",),
        "rewrite partition.metadata with the topic's id",
        of_partition=repair_steps.write_partition_topic_id,
    ),
    _Kind(
        "finish-swap",
        ("unfinished-swap", "cleaned-file"),
        "finish or undo an interrupted swap of segments, unless another run works on it",
        of_partition=repair_steps.finish_swap,
    ),
    _Kind(
        "drop-snapshots",
        ("producer-snapshot-differs",),
        "remove the producer snapshots that contradict the log",
        of_partition=repair_steps.drop_wrong_snapshots,
    ),
    _Kind(
        "reindex",
        (*_REINDEX, "producer-snapshot-differs"),
        "rebuild missing or wrong indexes and producer snapshots from undamaged .log files",
        of_partition=repair_steps.make_indexes,
    ),
    _Kind(
        "leader-epochs",
        ("leader-epochs", "leader-epoch"),
        "rewrite leader-epoch-checkpoint from the batches",
        of_partition=repair_steps.rewrite_epochs,
    ),
    _Kind(
        "remove-abandoned",
        ("staged-file", "deleted-files"),
        "remove staged files older than staging.retention.ms and .deleted files older than file.delete.delay.ms",
        of_partition=repair_steps.remove_leftovers,
    ),
    _Kind(
        "checkpoints",
        ("checkpoint", "checkpoint-entry"),
        "rewrite wrong offset checkpoint files from the metadata",
        of_root=repair_steps.rewrite_checkpoints,
    ),
    _Kind(
        "remove-deleted-topics",
        ("leftover-directory",),
        "remove the directories of deleted topics older than file.delete.delay.ms",
        of_root=repair_steps.remove_deleted_topics,
    ),
)
_BY_NAME: Final = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One step, for one partition or (None) the root; `because` are the kinds of findings that it repairs."""

    name: str
    partition: TopicPartition | None
    because: tuple[str, ...]

    def tree(self, *, error: str | None = None, is_done: bool = False) -> dict[str, Any]:
        """The step as JSON-compatible values."""
        tree: dict[str, Any] = {
            "action": ACTION,
            "topic": None if self.partition is None else self.partition.topic,
            "partition": None if self.partition is None else self.partition.partition,
            "step": self.name,
            "does": _BY_NAME[self.name].does,
            "because": list(self.because),
            "state": "done" if is_done else "failed" if error else "planned",
        }
        return tree if error is None else {**tree, "error": error}


def plan_steps(findings: Iterable[Finding]) -> list[RepairStep]:
    """The steps that repair the findings, in the order of execution."""
    whats: dict[TopicPartition | None, set[str]] = {}
    for finding in findings:
        whats.setdefault(finding.partition, set()).add(finding.what)
    return [
        RepairStep(kind.name, partition, tuple(sorted(found.intersection(kind.whats))))
        for partition, found in whats.items()
        for kind in _KINDS
        if found.intersection(kind.whats) and (kind.of_root is None) == (partition is not None)
    ]


def take_steps(path: Path, steps: Sequence[RepairStep], *, now_ms: int | None) -> list[tuple[RepairStep, str | None]]:
    """Execute the steps in the native log directory at `path`; return each with None, or with the reason it failed."""
    if not steps:
        return []
    root = open_root(path).native()
    now_ms = root.clock() if now_ms is None else now_ms
    outcomes: list[tuple[RepairStep, str | None]] = []
    for step in steps:
        kind = _BY_NAME[step.name]
        try:
            root.refresh()
            if kind.of_partition is not None and step.partition is not None:
                kind.of_partition(root, step.partition, now_ms)
            elif kind.of_root is not None:
                kind.of_root(root, now_ms)
        except (KafkalogError, OSError, ValueError) as error:
            outcomes.append((step, " ".join(str(error).split())))
        else:
            outcomes.append((step, None))
    return outcomes
