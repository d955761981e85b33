"""Verifies a partition's directory: its file names, its small files, and the order of its segments.

The segments themselves are checked in units that can be separate tasks: a unit begins at a producer snapshot, which has
the state of the producers before it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, KafkalogError
from pyspark_kafkalog.maintenance.verify.findings import (
    NEXT_WRITER,
    REINDEX,
    REPAIR,
    Finding,
    FindingSink,
    Read,
    SegmentOutcome,
    Severity,
    UnitOutcome,
    confirmed,
)
from pyspark_kafkalog.maintenance.verify.producers import read_producers
from pyspark_kafkalog.maintenance.verify.scope import PartitionScope, ScopedUnit, UnreadOffsets
from pyspark_kafkalog.maintenance.verify.segment import check_unit, report_too_short
from pyspark_kafkalog.metadata.local.backend import read_snapshot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.snapshot import reason_and_advice
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    LOG_START_OFFSET_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    EpochEntry,
    read_epochs,
)
from pyspark_kafkalog.storage.artefacts.marker_files import BrokerProcess, read_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.log.read_only import load_read_only
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.names import (
    CLUSTER_METADATA_TOPIC,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_metadata_snapshot,
    segment_file,
)
from pyspark_kafkalog.units import plural

_RESTORE_LOG: Final = "restore the segment from a copy: committed records are missing"


@dataclass(frozen=True, slots=True)
class SegmentUnit(ScopedUnit):
    """Segments to check one after the other, as one task; `next_base` follows the last, None at the log's end.

    The first unit of a partition, which may have no segment, also covers the other files in its directory.
    """

    bases: tuple[int, ...]
    next_base: int | None
    size_bytes: int
    is_first: bool

    def check(self, outcome: UnitOutcome, opened: Callable[[], Root]) -> None:
        """See Unit."""
        if self.is_first:
            outcome.findings += check_directory(self.scope)
        for segment in check_unit(self.scope, self.bases, self.next_base):
            outcome.segments.append(replace(segment, producers=None))


def segment_units(scope: PartitionScope, *, unit_bytes: int) -> list[SegmentUnit]:
    """The partition's segments in units of at least `unit_bytes` (except the last), divided only at snapshots.

    There is always at least one unit, even without a directory.
    """
    sizes, snapshots = _sizes_and_snapshots(scope.directory)
    bases = [base for base in sorted(sizes) if scope.state is None or base <= scope.state.active_base_offset]
    bases = list(scope.live(bases))
    units: list[SegmentUnit] = []
    first, total = 0, 0
    for at, base in enumerate(bases):
        if total >= unit_bytes and base in snapshots:
            units.append(SegmentUnit(scope, tuple(bases[first:at]), base, total, is_first=not units))
            first, total = at, 0
        total += sizes[base]
    units.append(SegmentUnit(scope, tuple(bases[first:]), None, total, is_first=not units))
    return units


def _sizes_and_snapshots(directory: Path) -> tuple[dict[int, int], set[int]]:
    """Sizes of the `.log` files by base offset, and the offsets of the producer snapshots."""
    try:
        listing = PartitionListing.read(directory)
    except OSError:  # a missing or unreadable directory, or a link: check_directory reports it
        return {}, set()
    return _sizes(directory, listing), set(listing.snapshot_offsets)


def _sizes(directory: Path, listing: PartitionListing) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for base_offset in listing.base_offsets:
        with contextlib.suppress(FileNotFoundError):
            sizes[base_offset] = segment_file(directory, base_offset, LOG_SUFFIX).stat().st_size
    return sizes


_UNFINISHED_SWAP: Final = "unfinished-swap"
_SWAP_SECONDS_MAX: Final = 2.0
_SWAP_POLL_SECONDS: Final = 0.005


def check_directory(scope: PartitionScope) -> list[Finding]:
    """The findings on the partition, without its segments, that a second check confirms."""

    def check_renewed() -> list[Finding]:
        renewed = scope.renewed()
        found = [] if renewed is None else _check(renewed)
        if any(each.what == _UNFINISHED_SWAP for each in found) and _swaps_end(scope.directory):
            return [each for each in found if each.what != _UNFINISHED_SWAP]
        return found

    return confirmed(lambda: _check(scope), check_renewed)


def check_names_and_ends(scope: PartitionScope) -> list[Finding]:
    """The findings on the partition that need no batch but the last of a broker's log, of one check that none confirms.

    Raises KafkalogError or OSError for a directory that cannot be read.
    """
    listing = None
    with contextlib.suppress(OSError):  # `_check` reports it
        listing = PartitionListing.read(scope.directory)
    findings = _check(scope, listing)
    sink = FindingSink(scope.topic_partition)
    sizes = {} if listing is None else _sizes(scope.directory, listing)
    if scope.state is not None:
        size_bytes = sizes.get(scope.state.active_base_offset)
        if size_bytes is not None and size_bytes < scope.state.active_size_bytes:
            path = segment_file(scope.directory, scope.state.active_base_offset, LOG_SUFFIX)
            report_too_short(sink, path, size_bytes, scope.state.active_size_bytes)
    elif sizes and scope.topic_partition.topic != CLUSTER_METADATA_TOPIC:
        with contextlib.suppress(DiskFormatError):  # damage in the last segment, which reads report
            end_offset = load_read_only(scope.directory).log_end_offset
            ends = [
                SegmentOutcome(base, end_offset=end_offset, read=Read(batches=sizes[base])) for base in sorted(sizes)
            ]
            _check_log_start(scope, ends, sink)
            _check_log_end(scope, ends, sink)
    return findings + sink.result()


def _swaps_end(directory: Path) -> bool:
    """Whether the directory is without swaps at some moment soon: a running swap takes milliseconds, a slow one more.

    A job that makes one after the other uses the same names again, so seeing a name twice proves nothing.
    """
    give_up = time.monotonic() + _SWAP_SECONDS_MAX
    while True:
        try:
            if not PartitionListing.read(directory).swaps:
                return True
        except FileNotFoundError:
            return True
        if time.monotonic() > give_up:
            return False
        time.sleep(_SWAP_POLL_SECONDS)


def _check(scope: PartitionScope, listing: PartitionListing | None = None) -> list[Finding]:
    """`listing` is that of the directory, if the caller has it."""
    sink = FindingSink(scope.topic_partition)
    if scope.directory.is_symlink():
        sink.add(
            Severity.ERROR,
            "directory-is-a-link",
            scope.directory,
            expected="the partition's directory",
            found="a symbolic link, which is not followed",
            advice="replace the link by the directory, or mount the directory (mount --bind)",
        )
        return sink.result()
    try:
        listing = PartitionListing.read(scope.directory) if listing is None else listing
    except FileNotFoundError:
        is_empty = scope.state is not None and scope.state.log_end_offset == 0
        sink.add(
            Severity.WARNING if is_empty else Severity.ERROR,
            "directory-missing",
            scope.directory,
            expected="the partition's directory",
            found="none",
            advice=REPAIR if is_empty else "restore it from a copy: committed records are missing",
        )
        return sink.result()
    _check_topic_id(scope, sink)
    _check_segments_exist(scope, listing.base_offsets, sink)
    _check_snapshots(scope, listing, sink)
    _check_epochs(scope, sink)
    if scope.unread is not None:
        _report_unread(scope.unread, scope, sink)
    _check_names(scope, listing, sink)
    if listing.deleted:
        found = f"{len(listing.deleted)} files of removed segments"
        _leftover(sink, scope.directory, "deleted-files", found, "they are removed after file.delete.delay.ms")
    return sink.result()


def _report_unread(unread: UnreadOffsets, scope: PartitionScope, sink: FindingSink) -> None:
    """Report a broker's offsets that readers do not see: above the high watermark, or in remote storage."""
    found = unread.found
    if found.offsets_above_high_watermark:
        sink.add(
            Severity.WARNING if unread.process is BrokerProcess.KILLED else Severity.INFO,
            "above-high-watermark",
            scope.root / REPLICATION_OFFSET_CHECKPOINT,
            offset=found.high_watermark,
            expected=f"a high watermark of {found.log_end_offset}, the log end",
            found=f"{found.high_watermark}, with {plural(found.offsets_above_high_watermark, 'offset')} above it",
            advice=reason_and_advice(unread.process),
        )
    if found.remote_offsets_count:
        sink.add(
            Severity.INFO,
            "remote-offsets",
            scope.directory,
            offset=found.log_start_offset,
            expected=f"a segment with the log start {found.log_start_offset}",
            found=f"{found.local_log_start_offset} as the first offset in this directory",
            advice="nothing: the broker has moved earlier segments to remote storage; read from this offset on",
        )


def _check_topic_id(scope: PartitionScope, sink: FindingSink) -> None:
    path = scope.directory / PARTITION_METADATA
    try:
        found = read_topic_id(path)
    except FileNotFoundError:
        if scope.state is not None:
            sink.add(
                Severity.WARNING,
                "topic-id",
                path,
                expected=f"the topic's id {scope.topic_id}",
                found="no file",
                advice=REPAIR,
            )
        return
    except DiskFormatError as error:
        sink.add_damage(Severity.ERROR, "topic-id", error, advice=REPAIR if scope.state is not None else None)
        return
    if scope.topic_id is not None and found != scope.topic_id:
        sink.add(
            Severity.ERROR,
            "topic-id-differs",
            path,
            position=0,
            expected=f"the topic's id {scope.topic_id}",
            found=found,
            advice="find out whose directory this is: a deleted topic's of the same name, or another log directory's",
        )


def _check_segments_exist(scope: PartitionScope, bases: list[int], sink: FindingSink) -> None:
    state = scope.state
    if scope.log_end_offset <= 0:
        return
    if state is not None:
        bases = [base for base in bases if base <= state.active_base_offset]
        if state.active_base_offset not in bases and state.active_size_bytes:
            _missing(scope, state.active_base_offset, "the active segment", sink)
        if not state.active_size_bytes and state.active_base_offset == scope.local_start_offset:
            return  # retention removed all, and had no room for an empty segment: the next writer creates it
    first = bases[0] if bases else scope.log_end_offset
    start = scope.local_start_offset
    if (first > start and state is not None) or not bases:
        what = "local start" if start > scope.log_start_offset else "start"
        _missing(scope, start, f"a segment with the log's {what}, {start}", sink)


def _missing(scope: PartitionScope, offset: int, expected: str, sink: FindingSink) -> None:
    sink.add(
        Severity.ERROR,
        "segment-missing",
        segment_file(scope.directory, offset, LOG_SUFFIX),
        offset=offset,
        expected=expected,
        found="no file",
        advice=_RESTORE_LOG,
    )


def _check_snapshots(scope: PartitionScope, listing: PartitionListing, sink: FindingSink) -> None:
    """Check snapshots that are not at a segment's base, and report missing ones; check_unit checks the others."""
    snapshots = set(listing.snapshot_offsets)
    bases = listing.base_offsets
    for offset in sorted(snapshots - set(bases)):
        if offset > scope.log_start_offset and offset <= scope.visible_end:
            path = segment_file(scope.directory, offset, PRODUCER_SNAPSHOT_SUFFIX)
            read_producers(path, offset, sink)
    if scope.state is None:
        return  # a broker's cleaner may have removed them, and its next start creates those it needs
    for base in bases:
        is_needed = base > scope.log_start_offset and base >= scope.local_start_offset
        if is_needed and base <= scope.state.active_base_offset and base not in snapshots:
            sink.add(
                Severity.WARNING,
                "producer-snapshot-missing",
                segment_file(scope.directory, base, PRODUCER_SNAPSHOT_SUFFIX),
                offset=base,
                expected="a producer snapshot at the segment's beginning",
                found="no file",
                advice=REINDEX,
            )


def _check_epochs(scope: PartitionScope, sink: FindingSink) -> None:
    path = scope.directory / LEADER_EPOCH_CHECKPOINT
    advice = REPAIR if scope.state is not None else None
    try:
        entries = read_epochs(path)
    except CorruptIndexError as error:
        sink.add_damage(Severity.ERROR, "leader-epochs", error, advice=advice)
        return
    wrong = _first_that_falls(entries)
    if wrong is not None:
        expected = f"an epoch and a start offset above {entries[wrong - 1]}"
        found: object = entries[wrong]
    elif scope.state is not None and scope.log_end_offset > scope.log_start_offset and not entries:
        expected, found = "the leader epochs of the log", "none"
    elif scope.state is not None and entries and entries[0].start_offset > scope.log_start_offset:
        expected, found = f"a first epoch that starts by offset {scope.log_start_offset}, the log's", entries[0]
    else:
        return
    sink.add(
        Severity.WARNING if wrong is None else Severity.ERROR,
        "leader-epochs",
        path,
        position=0,
        expected=expected,
        found=found,
        advice=REPAIR,
    )


def _first_that_falls(entries: Sequence[EpochEntry]) -> int | None:
    for at in range(1, len(entries)):
        before, entry = entries[at - 1], entries[at]
        if entry.epoch <= before.epoch or entry.start_offset <= before.start_offset:
            return at
    return None


def _check_names(scope: PartitionScope, listing: PartitionListing, sink: FindingSink) -> None:
    """Report leftovers and uncommitted files by their names."""
    for suffix, offsets in listing.files.items():
        for offset in sorted(offsets):
            _check_segment_name(scope, segment_file(scope.directory, offset, suffix), (offset, suffix), sink)
    for swap in sorted(listing.swaps):
        sink.add(
            Severity.WARNING,
            _UNFINISHED_SWAP,
            scope.directory / swap.name,
            expected="no unfinished swap",
            found="a file of one",
            advice=REPAIR if scope.state is not None else "nothing: the broker finishes it when it starts",
        )
    cleaned, later = [each.name for each in listing.cleaned], "it is removed after staging.retention.ms"
    for names, what, found, advice in (
        (cleaned, "cleaned-file", "a file of a running or killed maintenance run", "the next run removes it"),
        (listing.staged, "staged-file", "a file of a running or failed write", later),
        (listing.temporary, "temporary-file", "a small file being written, or left by a crash", NEXT_WRITER),
    ):
        for name in sorted(names):
            _leftover(sink, scope.directory / name, what, found, advice)
    if scope.topic_partition.topic == CLUSTER_METADATA_TOPIC:
        for name in sorted(listing.others):
            if parse_metadata_snapshot(name) is not None:
                _check_metadata_snapshot(scope.directory / name, sink)


def _check_segment_name(scope: PartitionScope, path: Path, parsed: tuple[int, str], sink: FindingSink) -> None:
    offset, suffix = parsed
    state = scope.state
    last = scope.visible_end if suffix == PRODUCER_SNAPSHOT_SUFFIX or state is None else state.active_base_offset
    if offset > last:
        _leftover(sink, path, "uncommitted-file", "a file of a running or failed commit", NEXT_WRITER)
    elif suffix == LOG_SUFFIX and state is not None and offset == state.active_base_offset:
        try:
            size_bytes = path.stat().st_size
        except FileNotFoundError:
            return
        if size_bytes > state.active_size_bytes:
            found = f"{size_bytes - state.active_size_bytes} bytes above what is committed"
            sink.add(
                Severity.INFO,
                "uncommitted-tail",
                path,
                position=state.active_size_bytes,
                offset=state.log_end_offset,
                expected="the end of the file",
                found=found,
                advice=NEXT_WRITER,
            )
    elif suffix not in (LOG_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX) and not path.with_suffix(LOG_SUFFIX).exists():
        _leftover(sink, path, "index-without-log", "no .log of the same name", NEXT_WRITER)


def _leftover(sink: FindingSink, path: Path, what: str, found: str, advice: str) -> None:
    sink.add(Severity.INFO, what, path, expected="no leftover", found=found, advice=advice)


def _check_metadata_snapshot(path: Path, sink: FindingSink) -> None:
    try:
        for _ in read_snapshot(path).records:
            pass
    except FileNotFoundError:
        return
    except DiskFormatError as error:
        sink.add_damage(Severity.ERROR, "metadata-snapshot", error)


def check_order(scope: PartitionScope, outcomes: Iterable[SegmentOutcome]) -> list[Finding]:
    """Offsets missing between segments, and at both ends of a broker's log."""
    found = sorted((each for each in outcomes if each.end_offset >= 0), key=lambda each: each.base_offset)
    sink = FindingSink(scope.topic_partition)
    has_inner_gaps = any(each.inner_gaps for each in found)
    if scope.has_gaps is False or not (scope.has_gaps or has_inner_gaps):
        is_sure = scope.has_gaps is False and not has_inner_gaps
        _check_holes(scope, found, sink, Severity.ERROR if is_sure else Severity.WARNING)
    _check_lost_logs(scope, found, sink)
    if scope.is_of_broker:
        _check_log_start(scope, found, sink)
        _check_log_end(scope, found, sink)
    return sink.result()


def _check_lost_logs(scope: PartitionScope, found: Sequence[SegmentOutcome], sink: FindingSink) -> None:
    """Segments of which only indexes are left, in a compacted log too: no segment has their offsets.

    Deletions and swaps rename all files of a segment, the `.log` first; the new name shows which it is.
    """
    try:
        listing = PartitionListing.read(scope.directory)
    except OSError:
        return  # reported elsewhere
    if listing.swaps or listing.cleaned or not found:
        return
    taken = {*listing.base_offsets, *(each.offset for each in listing.deleted)}
    for base in sorted({*listing.files[INDEX_SUFFIX], *listing.files[TIME_INDEX_SUFFIX]} - taken):
        before = max((each.end_offset for each in found if each.base_offset < base), default=-1)
        if before <= base and scope.local_start_offset <= base < max(found[-1].end_offset, scope.log_end_offset):
            sink.add(
                Severity.ERROR,
                "segment-missing",
                segment_file(scope.directory, base, LOG_SUFFIX),
                offset=base,
                expected="the .log of a segment, whose indexes are here",
                found="none",
                advice=_RESTORE_LOG,
            )


def _check_holes(scope: PartitionScope, found: Sequence[SegmentOutcome], sink: FindingSink, severity: Severity) -> None:
    """Offsets between segments: only a cleaner leaves such gaps; otherwise a segment was lost or truncated."""
    for before, after in pairwise(found):
        hole = (before.end_offset, after.base_offset)
        if before.end_offset < after.base_offset and not before.is_damaged and _is_empty(scope, *hole):
            sink.add(
                severity,
                "offsets-missing",
                segment_file(scope.directory, before.base_offset, LOG_SUFFIX),
                position=None,
                offset=before.end_offset,
                expected=f"offset {before.end_offset} after the segment's last batch",
                found=f"{after.base_offset}, where the next segment begins",
                advice=_RESTORE_LOG + ", unless the topic was compacted once",
            )


def _check_log_start(scope: PartitionScope, found: Sequence[SegmentOutcome], sink: FindingSink) -> None:
    """Compare a broker's first segment with its leader epochs, and the log start of its checkpoint with the log's end.

    Epochs begin at the log start: a broker that deletes segments moves both (LeaderEpochFileCache.truncateFromStart).
    Only in a tiered log do they begin below the first local segment.
    """
    if not found:
        return
    first, end_offset = found[0], found[-1].end_offset
    if scope.log_start_offset > end_offset and not found[-1].is_damaged:
        sink.add(
            Severity.ERROR,
            "log-start-beyond-end",
            scope.root / LOG_START_OFFSET_CHECKPOINT,
            offset=scope.log_start_offset,
            expected=f"a log start of at most {end_offset}, the end of the log, for {scope.topic_partition}",
            found=f"{scope.log_start_offset}: a broker that starts deletes the whole log, offsets "
            f"{min(scope.bases(), default=end_offset)} to {end_offset - 1}",
            advice="restore the checkpoint or the missing segments from a copy, or remove the partition's line from "
            "the checkpoint to keep the records",
        )
    try:
        epochs = read_epochs(scope.directory / LEADER_EPOCH_CHECKPOINT)
    except (CorruptIndexError, OSError):
        return  # reported by _check_epochs
    if not epochs or scope.is_tiered or scope.topic_partition.topic == CLUSTER_METADATA_TOPIC:
        return
    if max(epochs[0].start_offset, scope.log_start_offset) < first.base_offset:
        is_empty = all(not each.read.batches for each in found)
        sink.add(
            Severity.ERROR if scope.is_clean and not is_empty else Severity.WARNING,
            "segment-missing",
            segment_file(scope.directory, epochs[0].start_offset, LOG_SUFFIX),
            offset=epochs[0].start_offset,
            expected=f"a segment with offset {epochs[0].start_offset}, where the leader epochs begin",
            found=f"{first.base_offset} as the offset of the first segment",
            advice=_RESTORE_LOG + ", unless retention deleted it right before the broker was killed",
        )


def _check_log_end(scope: PartitionScope, found: Sequence[SegmentOutcome], sink: FindingSink) -> None:
    """Check that the last segment, which no cleaner changes, reaches a broker's high watermark."""
    last = found[-1] if found else None
    if last is None or last.is_damaged or last.end_offset >= scope.log_end_offset:
        return
    if last.base_offset != max(scope.bases(), default=last.base_offset):
        return  # a later one could not be read, or was just made
    sink.add(
        Severity.ERROR if scope.is_clean else Severity.WARNING,
        "log-too-short",
        segment_file(scope.directory, last.base_offset, LOG_SUFFIX),
        offset=last.end_offset,
        expected=f"records up to the high watermark {scope.log_end_offset}",
        found=f"the end of the log at offset {last.end_offset}",
        advice=_RESTORE_LOG,
    )


def _is_empty(scope: PartitionScope, start_offset: int, end_offset: int) -> bool:
    """Whether there is no batch in [start, end) now; the segments may have changed since they were checked."""
    renewed = scope.renewed()
    start_offset = max(start_offset, 0 if renewed is None else renewed.log_start_offset)
    if renewed is None or start_offset >= end_offset:
        return False
    try:
        reader = LogReader(LocalExtents(scope.directory), scope.topic_partition)
        return not any(True for _ in reader.runs(start_offset, end_offset))
    except (KafkalogError, OSError):
        return False
