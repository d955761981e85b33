"""Adopts the logs of a broker's directory: recovers each as the broker would, closes it, and returns its state.

A log is opened as by a starting broker, so after an unclean shutdown it ends before its first damaged batch. It is
closed as by a stopping broker: indexes trimmed, a producer snapshot at its end. From then on the log's end is its high
watermark, as on a broker with a single replica. A crash leaves a log that a broker, or the next attempt, opens in the
same way.

The second half finds the open transactions of the directory, which the user has to end. For a dry run, each log is read
up to its last valid batch, because recovery would truncate the rest. Damage that prevents reading transactions is noted
for the user; it fails neither the adoption nor the dry run.

As a starting broker, an adoption does not notice that a `.txnindex` is missing: only reading the whole `.log` shows
whether there was one. A note names the topics where one can be missing, and the command that rebuilds it.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import (
    CorruptIndexError,
    CorruptRecordError,
    DiskFormatError,
    LogDirError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.record.scan import first_bad_crc, verify_crcs
from pyspark_kafkalog.root.adopt.plan import AdoptionPlan
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.root.transactions.states import (
    TRANSACTION_STATE_TOPIC,
    OpenTransaction,
    OpenTransactions,
    TransactionState,
    find_open_transactions,
    open_transactions_of,
    read_transaction_states,
)
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LOG_START_OFFSET_CHECKPOINT, LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.index_file import MAX_RELATIVE_OFFSET
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing, list_base_offsets
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry, read_snapshot
from pyspark_kafkalog.storage.below_root import refuse_link
from pyspark_kafkalog.storage.filesystem import FileSystem, open_to_read
from pyspark_kafkalog.storage.log.loader import has_usable_indexes, kept_bases
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.read_only import load_read_only
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    partition_path,
    segment_file,
)
from pyspark_kafkalog.storage.segment.reader import LocalExtent, SegmentReader
from pyspark_kafkalog.storage.segment.segment import LogSegment, read_chunks
from pyspark_kafkalog.units import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """The broker's data about a log outside of its files: checkpointed offsets, the cluster's leader epoch."""

    recovery_point: int
    log_start_offset: int
    leader_epoch: int
    clean_shutdown: bool


@dataclass(frozen=True, slots=True)
class AdoptedLog:
    """An adopted log: its state, the largest producer id (-1: none), and the bytes truncated from a damaged tail."""

    state: LogState
    largest_producer_id: int
    cut_bytes: int


def adopt_log(
    directory: Path,
    config: LogConfig,
    summary: LogSummary,
    *,
    producer_id_expiration_ms: int,
    clock: Callable[[], int],
    fs: FileSystem,
) -> AdoptedLog:
    """Recover the log in `directory`, which may be empty, and close it.

    The leader epoch is the latest known one; after an unclean shutdown it increases by one, as for any recovered log.
    Raises DiskFormatError for damage that recovery does not truncate.
    """
    found_bytes = _log_bytes(directory)
    largest_producer_id = _largest_snapshot_producer_id(directory)
    # Read before loading, which drops an epoch without records, because a broker would begin another one.
    latest_epoch = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT).latest
    epoch = max(summary.leader_epoch, -1 if latest_epoch is None else latest_epoch.epoch)
    log = UnifiedLog.open(
        directory,
        config,
        recovery_point=summary.recovery_point,
        log_start_offset=summary.log_start_offset,
        clean_shutdown=summary.clean_shutdown,
        producer_id_expiration_ms=producer_id_expiration_ms,
        clock=clock,
        fs=fs,
    )
    try:
        _assign_epoch(log, epoch if summary.clean_shutdown else epoch + 1)
        _count_index_bytes(log.active_segment)
        state = log.state()
        kept_bytes = sum(segment.size_bytes for segment in log.segments)
        log.close()
    except BaseException:
        log.suspend()
        raise
    return AdoptedLog(state, max((largest_producer_id, *log.producers.producers)), max(found_bytes - kept_bytes, 0))


def check_log(
    directory: Path,
    topic_partition: TopicPartition,
    *,
    log_start_offset: int,
    high_watermark: int,
    recovery_point: int | None,
) -> None:
    """Check what `adopt_log` refuses, and that it loses no record; changes nothing.

    The log must be whole up to `high_watermark`, 0 if its recovery from `recovery_point` on decides where it ends; that
    is None after a clean shutdown. Segments that are only read again because indexes are missing must be whole, as the
    segments behind them stay. The log start is the larger of the checkpoint's and the first segment's. Raises
    LogDirError, DiskFormatError.
    """
    refuse_link(directory)
    LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT)
    listing = PartitionListing.read(directory)
    bases = listing.base_offsets
    if not bases or listing.log_swaps:
        return  # recovery finishes swaps first
    for base_offset in bases:
        _check_first_batch(directory, base_offset)
    for base_offset in kept_bases(directory, recovery_point):
        if not has_usable_indexes(directory, base_offset):
            _check_whole(directory, base_offset)
    end_offset = load_read_only(directory).log_end_offset
    if log_start_offset > end_offset > bases[0]:
        raise LogDirError(
            f"{directory}: {LOG_START_OFFSET_CHECKPOINT} has the log start {log_start_offset}, above the end of the "
            f"log, {end_offset}: adopting would delete all records, offsets {bases[0]} to {end_offset - 1}. Bring the "
            "missing segments here, or remove the partition's line from the checkpoint to keep the records"
        )
    if end_offset - bases[-1] > MAX_RELATIVE_OFFSET + 1:
        raise CorruptRecordError(
            file=str(segment_file(directory, bases[-1], LOG_SUFFIX)),
            position=0,
            expected=f"offsets of at most {bases[-1] + MAX_RELATIVE_OFFSET}, the largest that its indexes can hold",
            found=str(end_offset - 1),
            advice="copy the records into a topic of a new root instead: reading the directory as it is returns them",
        )
    if high_watermark > max(log_start_offset, bases[0]):
        LogReader(LocalExtents(directory), topic_partition).check_end(high_watermark)


def _check_first_batch(directory: Path, base_offset: int) -> None:
    """Raise UnsupportedFormatError if the segment begins in an older record format."""
    with SegmentReader(LocalExtent(directory, base_offset)) as reader:
        if reader.skip_old(0):
            raise UnsupportedFormatError(
                file=reader.file,
                position=0,
                expected="record batches (magic 2), which every log of this package has",
                found="messages of a format from before Kafka 0.11 (magic 0 or 1)",
                advice="a broker keeps such a log, but no log of this package has them. Reading the directory as it is "
                "converts them: copy the topic's records into a topic of a new root, or move the topic's folders away "
                "before you adopt the others",
            )


def _check_whole(directory: Path, base_offset: int) -> None:
    """Raise CorruptRecordError for a damaged or torn batch in the segment, which reading it again would cut off."""
    path = segment_file(directory, base_offset, LOG_SUFFIX)
    with open_to_read(path) as file:
        fd = file.fileno()
        size_bytes = os.fstat(fd).st_size
        position = 0
        for chunk in read_chunks(fd, file=str(path), start=0, end=size_bytes, base_offset=base_offset):
            verify_crcs(chunk.data, chunk.batches, data_position=chunk.position, file=str(path))
            last = chunk.batches[-1]
            position = int(last["position"]) + int(last["size_bytes"])
    if position < size_bytes:
        raise CorruptRecordError(
            file=str(path),
            position=position,
            expected=f"whole batches up to byte {size_bytes}, as the segment's indexes are missing or damaged",
            found="a torn batch",
            advice="restore the file, or its indexes, from a copy",
        )


def _assign_epoch(log: UnifiedLog, epoch: int) -> None:
    """Append with leader epoch `epoch` from now on, or with a later one that recovery has found in the log."""
    latest = log.epochs.latest
    if epoch >= 0 and (latest is None or latest.epoch < epoch):
        log.assign_epoch(epoch, log.log_end_offset)


def _count_index_bytes(segment: LogSegment) -> None:
    """Count the bytes after the last index entry, which a commit's state contains; a broker counts from its start."""
    index = segment.offset_index
    if not index.entries:
        segment.bytes_since_last_index_entry = segment.size_bytes
        return
    last = index.entry(index.entries - 1)
    if segment.position_at_or_before(last.offset) == last.position > 0:
        segment.bytes_since_last_index_entry = segment.size_bytes - last.position
    else:
        segment.rebuild_indexes()


def _log_bytes(directory: Path) -> int:
    bases = PartitionListing.read(directory).base_offsets
    return sum(segment_file(directory, base, LOG_SUFFIX).stat().st_size for base in bases)


def _largest_snapshot_producer_id(directory: Path) -> int:
    """The largest producer id in all snapshots, which include expired producers."""
    largest = -1
    for offset in PartitionListing.read(directory).snapshot_offsets:
        largest = max((largest, *(entry.producer_id for entry in _snapshot_entries(directory, offset))))
    return largest


def damaged_tail_notes(root: Path, recovered: Iterable[tuple[TopicPartition, int | None]]) -> Iterator[str]:
    """A note on each log that recovery truncates; `recovered` has recovery points, None after a clean stop."""
    for each, recovery_point in recovered:
        directory = partition_path(root, each)
        bases = list_base_offsets(directory)[len(kept_bases(directory, recovery_point)) :]
        for number, base_offset in enumerate(bases):
            path = segment_file(directory, base_offset, LOG_SUFFIX)
            valid_bytes = _valid_bytes(path, base_offset)
            cut_bytes = path.stat().st_size - valid_bytes
            if cut_bytes:
                later = (segment_file(directory, base, LOG_SUFFIX) for base in bases[number + 1 :])
                cut_bytes += sum(log.stat().st_size for log in later)
                where = f"from byte {valid_bytes} of {path.name} on"
                yield f"{each}: {cut_bytes} bytes of a damaged tail would be cut off, {where}"
                break


def _valid_bytes(path: Path, base_offset: int) -> int:
    """The bytes of the segment before its first damaged batch."""
    valid_bytes = 0
    with open_to_read(path) as file:
        end = os.fstat(file.fileno()).st_size
        try:
            for chunk in read_chunks(file.fileno(), file=str(path), start=0, end=end, base_offset=base_offset):
                bad = first_bad_crc(chunk.data, chunk.batches, chunk.position)
                if bad >= 0:
                    return int(chunk.batches[bad]["position"])
                valid_bytes = int(chunk.batches["position"][-1] + chunk.batches["size_bytes"][-1])
        except CorruptRecordError:
            pass  # no batch begins there
    return valid_bytes


def transaction_index_notes(root: Path, kept: Iterable[tuple[TopicPartition, int | None]]) -> tuple[str, ...]:
    """A note on each topic in which a `.txnindex` can be missing; `kept` has recovery points, None after a clean stop.

    These are segments with transactions and without the file. If all were committed, there never was a file.
    """
    counts: dict[str, int] = {}
    for each, recovery_point in kept:
        unindexed = _unindexed_transactions(partition_path(root, each), recovery_point)
        if unindexed:
            counts[each.topic] = counts.get(each.topic, 0) + unindexed
    return tuple(
        f"topic {topic}: {plural(count, 'segment')} with transactions without a {TXN_INDEX_SUFFIX} file, which only "
        f"aborted transactions need. If such files can have been lost, rebuild them after the adoption: kafkalog "
        f"reindex --path {shlex.quote(str(root))} --topic {shlex.quote(topic)}"
        for topic, count in counts.items()
    )


def _unindexed_transactions(directory: Path, recovery_point: int | None) -> int:
    """The number of segments with transactions and without a transaction index that recovery does not read again.

    A transaction changes its producer's entry between the snapshots at the segment's begin and end.
    """
    ends = dict(itertools.pairwise((*list_base_offsets(directory), *_last_snapshot_offset(directory))))
    count = 0
    for base_offset in kept_bases(directory, recovery_point):
        path = segment_file(directory, base_offset, TXN_INDEX_SUFFIX)
        if base_offset in ends and not (path.exists() and path.stat().st_size):
            before = set(_snapshot_entries(directory, base_offset))
            count += any(
                each.coordinator_epoch >= 0 and each not in before
                for each in _snapshot_entries(directory, ends[base_offset])
            )
    return count


def _last_snapshot_offset(directory: Path) -> Sequence[int]:
    """The offset of the snapshot behind the last segment's begin, which a clean stop leaves at the log end."""
    listing = PartitionListing.read(directory)
    return [each for each in listing.snapshot_offsets if each > max(listing.base_offsets, default=0)][-1:]


def _snapshot_entries(directory: Path, offset: int) -> Sequence[ProducerStateEntry]:
    try:
        return read_snapshot(segment_file(directory, offset, PRODUCER_SNAPSHOT_SUFFIX))
    except (CorruptIndexError, FileNotFoundError):
        return ()


def transactions_of_plan(plan: AdoptionPlan, clock: Callable[[], int]) -> tuple[OpenTransactions, tuple[str, ...]]:
    """The transactions that would be open after carrying out `plan`, and notes for the user."""
    notes = []
    found = []
    for topic in plan.topics:
        missing = set(topic.missing)
        for number in range(topic.partitions_count):
            if number not in missing:
                found.append(_describe(plan, TopicPartition(topic.name, number)))
    states: Mapping[str, TransactionState] = {}
    in_partitions: list[OpenTransaction] = []
    try:
        states = read_transaction_states(each for each in found if each.topic == TRANSACTION_STATE_TOPIC)
    except DiskFormatError as error:
        notes.append(f"transactional ids cannot be read: {error}")
    for each in found:
        try:
            of_partition = find_open_transactions(
                [each], states, expiration_ms=plan.broker_config.producer_id_expiration_ms, now_ms=clock()
            )
        except DiskFormatError as error:
            notes.append(f"open transactions of {each.topic}-{each.partition} cannot be read: {error}")
        else:
            in_partitions += of_partition.in_partitions
    return OpenTransactions(tuple(in_partitions), tuple(each for each in states.values() if each.is_open)), tuple(notes)


def _describe(plan: AdoptionPlan, topic_partition: TopicPartition) -> PartitionSnapshot:
    directory = partition_path(plan.root, topic_partition)
    state = load_read_only(directory, log_start_offset=plan.log_starts.get(topic_partition, 0))
    return PartitionSnapshot(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        topic_id=None,
        local_directory=directory,
        leader_epoch=-1,
        log_start_offset=state.local_log_start_offset,
        local_log_start_offset=state.local_log_start_offset,
        high_watermark=state.log_end_offset,
        log_end_offset=state.log_end_offset,
        stable=state.log_end_offset,
    )


def transactions_of_root(
    root: Path, clock: Callable[[], int], fs: FileSystem
) -> tuple[OpenTransactions, tuple[str, ...]]:
    """The open transactions of `root`, a native log directory, and notes for the user."""
    try:
        return open_transactions_of(FileRoot(LocalMetadataStore.open(root, clock=clock, fs=fs), clock=clock, fs=fs)), ()
    except DiskFormatError as error:
        return OpenTransactions(), (f"open transactions cannot be read: {error}",)
