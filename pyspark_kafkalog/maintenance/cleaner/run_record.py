"""What runs of the cleaner store in the root: how far partitions are clean, and for its metrics what failed.

    cleaner-offset-checkpoint    Kafka's (storage/artefacts/checkpoint_file.py): where the dirty part of a log begins
    kafkalog-uncleanable.json    partitions whose last cleaning failed, each with the reason:
                                 {"version": 1, "partitions": [{"topic": "users", "partition": 0, "topicId": "…",
                                 "sinceMs": 1795…, "reason": "…"}]}
    kafkalog-cleaner-run.json    the totals of the last run

Kafka marks a partition uncleanable for as long as the broker runs; here each run tries again, and success removes the
mark. Each file is replaced as a whole, that of the marks under the root's lock: a crash leaves the old one or the new
one. Of two concurrent runs the one that ends later stores its totals. A broker ignores unknown files in its log
directory. Without a file, or if it cannot be parsed, no partition is marked, or there was no run.

Both the checkpoint and the marks are files of the whole root. So a run writes them for many partitions at once, the
more the longer the file is, and every ten seconds. A killed run loses the lines since then: their partitions are
cleaned again, which removes nothing that should stay.

In an object store they are objects with these names, and nothing locks them: of two marks that are made at once, the
earlier one may be lost, until a cleaning of its partition fails again.

Source of the rules: LogCleanerManager.markPartitionUncleanable.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.maintenance.jobs.partition import ANOTHER_RUN, PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.root.file_root import FileRoot, on_file_system
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, read_text_file
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)

UNCLEANABLE_FILE: Final = "kafkalog-uncleanable.json"
LAST_RUN_FILE: Final = "kafkalog-cleaner-run.json"

_RUN_FILE_BYTES_MAX: Final = 64 << 10

_VERSION: Final = 1
_MARKS_FILE_BYTES_MAX: Final = 64 << 20
_REASON_CHARS_MAX: Final = 1000
_ADVICE: Final = (
    "move the file out of the directory: the next run of kafkalog log-cleaner writes it again; it holds only what "
    "metrics show of earlier runs, no offsets and no records"
)

#: A run stores what it recorded of so many partitions at once, of a larger file an eighth of its entries.
_STORED_AT_ONCE: Final = 128
_SHARE_STORED_AT_ONCE: Final = 8
_STORED_EVERY_MS: Final = 10_000
_CHECKPOINT: Final = CLEANER_OFFSET_CHECKPOINT


@dataclass(frozen=True, slots=True)
class _Mark:
    topic_id: str
    since_ms: int
    reason: str


class RecordPlace(Protocol):
    """Where runs store their files. `__str__` names it in warnings."""

    def read(self, name: str, max_bytes: int) -> bytes:
        """Raises FileNotFoundError, DiskFormatError or ObjectStoreError if it is too large, OSError."""

    def write(self, name: str, data: bytes) -> None:
        """Replace the file as a whole."""

    def delete(self, name: str) -> None:
        """Delete the file, if it is there."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep other writers of the files away for the block, if that is possible there."""


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """The files of a log directory."""

    path: Path
    fs: FileSystem = LOCAL

    def __str__(self) -> str:
        return str(self.path)

    def read(self, name: str, max_bytes: int) -> bytes:
        return read_text_file(self.path / name, max_bytes=max_bytes, kind=DiskFormatError, advice=_ADVICE)

    def write(self, name: str, data: bytes) -> None:
        self.fs.write_file_atomic(self.path / name, data, durable=False)

    def delete(self, name: str) -> None:
        self.fs.unlink_if_there(self.path / name)

    def locked(self) -> AbstractContextManager[None]:
        return root_lock(self.path, fs=self.fs)


@dataclass(frozen=True, slots=True)
class RecordObjects:
    """The objects of a root in an object store."""

    store: ObjectStore

    def __str__(self) -> str:
        return self.store.url

    def read(self, name: str, max_bytes: int) -> bytes:
        return self.store.get(name, max_bytes=max_bytes)

    def write(self, name: str, data: bytes) -> None:
        self.store.put(name, data)

    def delete(self, name: str) -> None:
        self.store.delete([name])

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()


def record_place(root: Root) -> RecordPlace:
    """Where runs over `root` store them; of a broker's directory, where they were stored before it was returned."""
    return for_kind(
        root, lambda root: RecordFiles(root.path, root.fs), lambda root: RecordObjects(root.objects), _files_of_broker
    )


def _files_of_broker(root: Root) -> RecordFiles:
    assert isinstance(root.path, Path)
    return RecordFiles(root.path)


def read_uncleanable(place: RecordPlace) -> Mapping[TopicPartition, str]:
    """The reason of each partition whose last cleaning failed. Raises OSError if the file cannot be read."""
    return {topic_partition: mark.reason for topic_partition, mark in _read(place).items()}


def store_marks(root: NativeRoot, reasons: Mapping[TopicPartition, str | None], *, now_ms: int) -> int:
    """Mark the partitions with a reason and remove the marks of the others; return the number of marks.

    The time of the first of consecutive failures is kept.
    """
    place = record_place(root)
    with place.locked():
        image = root.store.refresh()
        before = _read(place)
        marks = dict(before)
        for topic_partition, reason in reasons.items():
            topic = image.topics.get(topic_partition.topic)
            known = marks.pop(topic_partition, None)
            if reason is not None and topic is not None:
                since_ms = known.since_ms if known is not None and known.topic_id == topic.topic_id else now_ms
                marks[topic_partition] = _Mark(topic.topic_id, since_ms, reason[:_REASON_CHARS_MAX])
        if marks != before:
            _write(place, image, marks)
        return len(marks)


@dataclass(frozen=True, slots=True)
class CleanOffset:
    """The partition of the topic with that id is clean below `offset`, by a cleaning planned at `planned_at`."""

    topic_partition: TopicPartition
    topic_id: str
    planned_at: int
    offset: int


def store_clean_offsets(root: FileRoot, found: Sequence[CleanOffset]) -> int:
    """Write the lines of these partitions, and remove those of deleted topics; return the number of lines.

    A line is left out if its topic was deleted meanwhile, or if a follower may have truncated the log since the
    cleaning was planned. Another run may have cleaned further: a valid line that is higher stays.
    """
    path = root.path / CLEANER_OFFSET_CHECKPOINT
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        before = read_offset_checkpoint(path)
        offsets = {each: at for each, at in before.items() if each.topic in image.topics}
        for each in found:
            state = image.state_of(each.topic_partition, each.topic_id)
            if state is None or each.planned_at < image.staging_horizon.offset:
                continue
            known = offsets.get(each.topic_partition, -1)
            if not each.offset <= known <= state.log_end_offset:
                offsets[each.topic_partition] = each.offset
        if offsets != before:
            write_offset_checkpoint(path, offsets, fs=root.fs)
        return len(offsets)


def _read(place: RecordPlace) -> dict[TopicPartition, _Mark]:
    try:
        data = place.read(UNCLEANABLE_FILE, _MARKS_FILE_BYTES_MAX)
        return dict(_mark(entry) for entry in json.loads(data)["partitions"])
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        _warn_unparsed(place, UNCLEANABLE_FILE, error)
        return {}


def _warn_unparsed(place: RecordPlace, name: str, error: Exception) -> None:
    _LOG.warning("%s/%s is ignored, it cannot be parsed: %s", place, name, error)


def _mark(entry: Any) -> tuple[TopicPartition, _Mark]:
    topic_partition = TopicPartition(str(entry["topic"]), int(entry["partition"]))
    return topic_partition, _Mark(str(entry["topicId"]), int(entry["sinceMs"]), str(entry["reason"]))


def _write(place: RecordPlace, image: MetadataImage, marks: Mapping[TopicPartition, _Mark]) -> None:
    """Write the marks of topics that still exist; no file if there are none. The caller holds the root's lock."""
    topics = image.topics
    entries = [
        {
            "topic": topic_partition.topic,
            "partition": topic_partition.partition,
            "topicId": mark.topic_id,
            "sinceMs": mark.since_ms,
            "reason": mark.reason,
        }
        for topic_partition, mark in sorted(marks.items())
        if topic_partition.topic in topics and topics[topic_partition.topic].topic_id == mark.topic_id
    ]
    data = json.dumps({"version": _VERSION, "partitions": entries}, ensure_ascii=False, indent=1)
    if entries:
        place.write(UNCLEANABLE_FILE, data.encode(errors="backslashreplace"))
    else:
        place.delete(UNCLEANABLE_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerRun:
    """One run of the cleaner over a root; bytes are those of the recopying.

    `max_clean_seconds` is that of the slowest partition, `max_dirty_percent` that of the filthiest one before the run.
    """

    began_ms: int
    ended_ms: int
    bytes_read: int = 0
    bytes_written: int = 0
    max_clean_seconds: float = 0.0
    max_dirty_percent: float = 0.0
    partitions_cleaned: int = 0
    partitions_failed: int = 0


def read_last_run(place: RecordPlace) -> CleanerRun | None:
    """The last run, None if there was none. Raises OSError if the file cannot be read."""
    try:
        data = place.read(LAST_RUN_FILE, _RUN_FILE_BYTES_MAX)
        tree = json.loads(data)
        return CleanerRun(
            began_ms=int(tree["began_ms"]),
            ended_ms=int(tree["ended_ms"]),
            bytes_read=int(tree["bytes_read"]),
            bytes_written=int(tree["bytes_written"]),
            max_clean_seconds=float(tree["max_clean_seconds"]),
            max_dirty_percent=float(tree["max_dirty_percent"]),
            partitions_cleaned=int(tree["partitions_cleaned"]),
            partitions_failed=int(tree["partitions_failed"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        _warn_unparsed(place, LAST_RUN_FILE, error)
        return None


def write_last_run(root: NativeRoot, run: CleanerRun) -> None:
    """Replace the stored results of the last run."""
    record_place(root).write(LAST_RUN_FILE, json.dumps(asdict(run)).encode())


class CleanerRecord:
    """Records the outcome of one run; nothing in a dry run.

    A failure to write is logged, and the next write tries it again. `close` raises that of the clean offsets.
    """

    def __init__(self, job_run: JobRun) -> None:
        self._root = job_run.open().native()
        self._is_kept = not job_run.dry_run
        self._marked = set(read_uncleanable(record_place(self._root)))
        now_ms = self._root.clock()
        self._run = CleanerRun(began_ms=now_ms, ended_ms=now_ms)
        #: What is to be stored, and the entries of the files when this was done last.
        self._offsets: list[CleanOffset] = []
        self._reasons: dict[TopicPartition, str | None] = {}
        self._entries = 0
        self._stored_ms = now_ms

    def took(self, report: PartitionReport, offsets: Sequence[CleanOffset] = ()) -> PartitionReport:
        """Record a partition's report, and how far it is clean now; return the report."""
        run = self._run
        is_cleaned = report.skipped is None and report.error is None
        dirty_percent = report.dirty_percent or 0.0
        if is_cleaned or report.error is not None or dirty_percent > run.max_dirty_percent:
            self._run = replace(
                run,
                bytes_read=run.bytes_read + report.bytes_read,
                bytes_written=run.bytes_written + report.bytes_kept,
                max_clean_seconds=max(run.max_clean_seconds, report.seconds if is_cleaned else 0.0),
                max_dirty_percent=max(run.max_dirty_percent, dirty_percent),
                partitions_cleaned=run.partitions_cleaned + is_cleaned,
                partitions_failed=run.partitions_failed + (report.error is not None),
            )
        if self._is_kept:
            self._offsets += offsets
            if report.error is not None and report.skipped != ANOTHER_RUN:
                self._reasons[report.topic_partition] = report.error
            elif report.topic_partition in self._marked and report.skipped != ANOTHER_RUN:
                self._reasons[report.topic_partition] = None
            count = len(self._offsets) + len(self._reasons)
            is_late = self._root.clock() - self._stored_ms >= _STORED_EVERY_MS
            if count and (is_late or count >= max(_STORED_AT_ONCE, self._entries // _SHARE_STORED_AT_ONCE)):
                self.store()
        return report

    def store(self) -> Exception | None:
        """Store what was recorded since the last time; returns the error if the clean offsets could not be written."""
        self._stored_ms = self._root.clock()
        failure = None
        offsets_count = marks_count = 0
        if self._offsets:
            try:
                offsets_count = store_clean_offsets(on_file_system(self._root), self._offsets)
                self._offsets = []
            except (KafkalogError, OSError) as error:
                _LOG.warning("%s is not written, cleaned partitions are cleaned again: %s", _CHECKPOINT, error)
                failure = error
        if self._reasons:
            try:
                marks_count = store_marks(self._root, self._reasons, now_ms=self._root.clock())
                self._reasons = {}
            except (KafkalogError, OSError) as error:
                _LOG.warning("the marks of uncleanable partitions are not changed: %s", error)
        self._entries = max(self._entries, offsets_count, marks_count)
        return failure

    def close(self) -> None:
        """Store the rest, and the totals. Call it when the run has gone through all partitions."""
        if not self._is_kept:
            return
        try:
            write_last_run(self._root, replace(self._run, ended_ms=self._root.clock()))
        except OSError as error:
            _LOG.warning("the totals of this run are not stored: %s", error)
        failure = self.store()
        if failure is not None:
            raise failure
