"""A log directory that a Kafka broker wrote: read without a broker, never written to.

The state that a broker takes from its metadata log is derived from the files: topics from the partition directories,
ids from `partition.metadata`, high watermarks from `replication-offset-checkpoint` (the end of the last valid batch
where that has no line), log start offsets from `log-start-offset-checkpoint`, and configurations from the metadata log
if the directory holds it. If the broker is running or was killed, its checkpoint is some seconds older than the log,
and records above the high watermark are read only with `read_to_log_end`. After a crash a log ends before the first
damaged batch of its tail, as after the broker's recovery; after a clean shutdown such a batch is damage, and reading it
is an error.

The offsets of a tiered topic from the log start offset to the first local segment are in remote storage
(RemoteLogManager).

The batches since the last producer snapshot, up to a whole segment, show which transactions are open, and so the last
stable offset. Repeated requests, as from metrics, read only the batches appended meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.config.definitions import PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, LogDirError
from pyspark_kafkalog.metadata.root_format import is_native_root
from pyspark_kafkalog.root.bootstrap import is_vacant
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.root.planned import LocalPartition
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    REPLICATION_OFFSET_CHECKPOINT,
    EpochEntry,
    LeaderEpochCheckpoint,
    broker_log_starts,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import (
    BrokerProcess,
    broker_process,
    check_identity,
    read_topic_id,
    readable_identity,
    was_clean_shutdown,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import check_log_directory, list_partitions
from pyspark_kafkalog.storage.below_root import refuse_link
from pyspark_kafkalog.storage.log.read_only import ReadOnlyState, checked_end_offset, load_read_only, stable_offset_of
from pyspark_kafkalog.storage.names import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    TopicPartition,
    partition_path,
    segment_file,
)
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.brokers.remote_logs import RemoteLogs
    from pyspark_kafkalog.storage.log.producers import ProducerStateManager


_METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
_REMOTE_STORAGE_ENABLE: Final = "remote.storage.enable"
#: How often a running broker may delete a segment while its batches are read for one answer.
_DELETIONS_MET_MAX: Final = 5


class BrokerRoot(ReadOnlyRoot):
    """One broker's directory as of the last `refresh`. Partitions are read on first access, then cached.

    With `read_to_log_end` high watermarks are the ends of the logs. With `remote_logs`, logs include what the broker
    tiered.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], int],
        read_to_log_end: bool = False,
        remote_logs: RemoteLogs | None = None,
    ) -> None:
        super().__init__(path, readable_identity(path))
        self._remote_logs = remote_logs
        self._read_to_log_end = read_to_log_end
        self.clock = clock
        self._stable_offsets = _StableOffsets()
        self.refresh()

    def refresh(self) -> None:
        """List the root again.

        Raises LogDirError if it cannot be listed, holds nothing of Kafka's, was replaced by another log directory, or
        is native now, as what the files of such a one hold need not be committed.
        """
        check_identity(self.path, self.identity)
        partitions = list_partitions(self.path)
        check_log_directory(self.path, () if is_vacant(self.path) else partitions)
        if is_native_root(self.path):  # a creation makes the marker before anything that would be read here
            raise LogDirError(f"{self.path} is a native log directory, and was none when it was opened: open it again")
        if self._remote_logs is not None:
            self._remote_logs.refresh()
        self._high_watermarks = self._read_high_watermarks()
        self._log_starts = broker_log_starts(self.path)
        self._is_clean = was_clean_shutdown(self.path)
        self._list(partitions)  # last: another thread may read a partition meanwhile, which is cached from now on

    def _read_high_watermarks(self) -> Mapping[TopicPartition, int]:
        """The checkpoint's. A damaged one is the error of each partition that is read up to its high watermark."""
        self._damaged_checkpoint: CorruptIndexError | None = None
        try:
            return read_offset_checkpoint(self.path / REPLICATION_OFFSET_CHECKPOINT)
        except CorruptIndexError as error:
            self._damaged_checkpoint = error
            return {}

    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> LocalPartition:
        remote = None if self._remote_logs is None else self._snapshot(topic_partition).remote
        return LocalPartition(str(self.path), topic_partition, topic_id, self.identity, remote=remote)

    def _read_snapshot(self, topic_partition: TopicPartition) -> PartitionSnapshot:
        directory = partition_path(self.path, topic_partition)
        refuse_link(directory)
        log_start_offset = self._log_starts.get(topic_partition, 0)
        try:
            state = load_read_only(directory, log_start_offset=log_start_offset)
            high_watermark = self._high_watermark(topic_partition, state)
        except PermissionError as error:
            raise LogDirError(error.errno, f"cannot read the partition: {error.strerror}", error.filename) from error
        epochs = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT)
        active_base_offset = state.base_offsets[-1] if state.base_offsets else -1
        high_watermark = max(high_watermark, state.local_log_start_offset)
        found = PartitionSnapshot(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            topic_id=self._topic_id(topic_partition.topic),
            local_directory=directory,
            leader_epoch=0 if epochs.latest is None else epochs.latest.epoch,
            log_start_offset=self._log_start(topic_partition, state, epochs.earliest),
            local_log_start_offset=state.local_log_start_offset,
            high_watermark=high_watermark,
            log_end_offset=high_watermark if self._read_to_log_end else state.log_end_offset,
            active_base_offset=active_base_offset,
            active_size_bytes=_size_bytes(directory, active_base_offset),
            stable=self._last_stable_offset,
        )
        return found if self._remote_logs is None else self._remote_logs.attach(found)

    def _high_watermark(self, topic_partition: TopicPartition, state: ReadOnlyState) -> int:
        """The end for readers: by the checkpoint, or with `read_to_log_end` the end of the batches above it."""
        if self._damaged_checkpoint is not None and not self._read_to_log_end:
            raise self._damaged_checkpoint
        unknown = state.local_log_start_offset if self._damaged_checkpoint else state.log_end_offset
        high_watermark = self._high_watermarks.get(topic_partition, unknown)
        if not self._is_clean:
            high_watermark = min(high_watermark, state.log_end_offset)
        if not self._read_to_log_end or high_watermark >= state.log_end_offset:
            return high_watermark
        return checked_end_offset(
            partition_path(self.path, topic_partition),
            state.base_offsets,
            max(high_watermark, state.local_log_start_offset),
        )

    def _log_start(self, topic_partition: TopicPartition, state: ReadOnlyState, earliest: EpochEntry | None) -> int:
        """Kafka's log start offset: below the first local segment if a tiered topic has offsets in remote storage.

        A broker with tiered storage checkpoints the log start offset of each tiered partition, even if it is 0, and the
        partition's leader epochs begin there. If the broker was killed, both may be older than its last retention run;
        then the topic's configuration decides, if the metadata log is in this directory. The configuration is not read
        at every trigger of a stream.
        """
        local = state.local_log_start_offset
        first_epoch_offset = local if earliest is None else earliest.start_offset
        log_start_offset = self._log_starts.get(topic_partition, first_epoch_offset)
        if log_start_offset >= local or not state.base_offsets or topic_partition.topic in INTERNAL_TOPICS:
            return local
        is_tiered = topic_partition in self._log_starts and first_epoch_offset < local
        is_sure = is_tiered and broker_process(self.path) is not BrokerProcess.KILLED
        if not is_sure and partition_path(self.path, _METADATA_PARTITION).is_dir():
            is_tiered = self._configs_of(topic_partition.topic).get(_REMOTE_STORAGE_ENABLE) == "true"
        return max(log_start_offset, 0) if is_tiered else local

    def _last_stable_offset(self, found: PartitionSnapshot) -> int:
        """The last stable offset of `found`; by the present segments, if the broker has deleted some of it since.

        Those can only have decided more transactions, of which the transaction indexes tell.
        """
        present = found
        for _ in range(_DELETIONS_MET_MAX):
            with contextlib.suppress(FileNotFoundError):
                return min(self._stable_offsets.of(present, self.clock()), found.high_watermark)
            present = self._read_snapshot(found.topic_partition)
        return min(self._stable_offsets.of(present, self.clock()), found.high_watermark)

    def _find_topic_id(self, topic: str) -> str | None:
        """The id in the first partition that has a readable one."""
        return next(filter(None, map(self.partition_topic_id, self._partitions_of(topic))), None)

    def partition_topic_id(self, topic_partition: TopicPartition) -> str | None:
        """The id in the partition's directory; None without a readable one."""
        directory = partition_path(self.path, topic_partition)
        try:
            return None if directory.is_symlink() else read_topic_id(directory / PARTITION_METADATA)
        except (OSError, DiskFormatError):
            return None


def _size_bytes(directory: Path, base_offset: int) -> int:
    """Size of a segment's `.log`, -1 if it does not exist or was deleted since it was listed."""
    if base_offset < 0:
        return -1
    try:
        return segment_file(directory, base_offset, LOG_SUFFIX).stat().st_size
    except FileNotFoundError:
        return -1


@dataclass(frozen=True, slots=True)
class _Known:
    """The partition as of the last request, and its producers at the high watermark of that time."""

    found: PartitionSnapshot
    producers: ProducerStateManager

    def leads_to(self, found: PartitionSnapshot) -> bool:
        """Whether `found` is the same log, grown since: a recovered or truncated log has another leader epoch."""
        before = self.found
        return (before.directory, before.leader_epoch, before.local_log_start_offset) == (
            found.directory,
            found.leader_epoch,
            found.local_log_start_offset,
        ) and before.high_watermark <= found.high_watermark


class _StableOffsets:
    """The end for read_committed in each partition."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, _Known] = {}

    def of(self, found: PartitionSnapshot, now_ms: int) -> int:
        """The last stable offset of the partition. Raises DiskFormatError for damage in the batches that are read."""
        from pyspark_kafkalog.storage.log.producer_replay import advance, producer_state_at  # imports compiled code

        known = self._known.pop(found.topic_partition, None)
        if known is not None and known.leads_to(found):
            producers = known.producers
            advance(producers, found.high_watermark)
        else:
            producers = producer_state_at(
                found.directory,
                found.high_watermark,
                log_start_offset=found.local_log_start_offset,
                expiration_ms=PRODUCER_ID_EXPIRATION_MS,
                now_ms=now_ms,
            )
        self._known[found.topic_partition] = _Known(found, producers)
        return stable_offset_of(producers, found.local_log_start_offset, found.high_watermark)
