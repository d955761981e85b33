"""The transactional ids of one partition of `__transaction_state`, followed from its log.

The log is the state. It is read once; then each commit that appends to it, by any writer (this server, another one,
`kafkalog transactions`), is read from where the last reading ended. What this server appended it need not read.

    find, all     the ids as of an image: the records up to the log end in the image are read first
    expired       the ids that are due; servers and the retention job remove them, by `removals`
    unfinished    of these, the ones with a transaction that is open or not completed: a sweep looks at no others
    appended      the records of a commit of this process; taken over if they follow what was read so far

Of records with the same key the last one counts; one without a value removes the id. A topic that was deleted and
created again is read from its start, and so is a log that has become shorter (a root restored from a backup).

A crash loses only memory. All methods may be called by any thread.

Source of the rules: kafka.coordinator.transaction.TransactionStateManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from pyspark_kafkalog.errors import CommitConflictError, KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.commit.changes import CommitUnit, LeaderAppend
from pyspark_kafkalog.root.commit.committer import LeaderWriter
from pyspark_kafkalog.root.internal_topic import FollowedLog, ReplayStep
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.transactions.end_transaction import coordinator_append
from pyspark_kafkalog.root.transactions.metadata import TransactionMetadata, record_key
from pyspark_kafkalog.root.transactions.states import TRANSACTION_STATE_TOPIC, parse_transaction_record
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import KIB

_LOG: Final = logging.getLogger(__name__)
_EXPIRE_OPERATION: Final = "expire transactional ids"
#: Bounds of one batch with removals: the segments of `__transaction_state` may be as small as 1 MiB.
_REMOVED_IDS_MAX: Final = 1_000
_REMOVED_BYTES_MAX: Final = 256 * KIB


class StateLog(FollowedLog):
    """One partition of `__transaction_state`, as far as it was read.

    `find` and `all` raise CommitConflictError if more of the log was read than the image has, which is then not the
    newest image, and DiskFormatError for damage.
    """

    def __init__(self, root: NativeRoot, partition: int) -> None:
        super().__init__()
        self.topic_partition: Final = TopicPartition(TRANSACTION_STATE_TOPIC, partition)
        self._root = root
        self._lock = threading.Lock()
        self._topic_id = ""
        self._by_id: dict[str, TransactionMetadata] = {}
        self._unfinished: dict[str, TransactionMetadata] = {}

    def find(self, image: MetadataImage, transactional_id: str) -> TransactionMetadata | None:
        """The id as of `image`, None if it is not known."""
        with self._lock:
            self._catch_up(image)
            return self._by_id.get(transactional_id)

    def all(self, image: MetadataImage) -> tuple[TransactionMetadata, ...]:
        """All ids as of `image`."""
        with self._lock:
            self._catch_up(image)
            return tuple(self._by_id.values())

    def unfinished(self, image: MetadataImage) -> tuple[TransactionMetadata, ...]:
        """The ids as of `image` whose transaction is open, or decided and not completed."""
        with self._lock:
            self._catch_up(image)
            return tuple(self._unfinished.values())

    def expired(self, image: MetadataImage, now_ms: int, expiration_ms: int) -> tuple[str, ...]:
        """The ids as of `image` that were not used for `expiration_ms`."""
        return tuple(each.transactional_id for each in self.all(image) if each.is_expired(now_ms, expiration_ms))

    def appended(self, topic_id: str, first_offset: int, steps: Iterable[TransactionMetadata]) -> None:
        """A commit of this process appended a record for each of `steps`, from `first_offset` on."""
        with self._lock:
            if topic_id != self._topic_id or first_offset != self.end_offset:
                return  # they were read already, or what is before them was not: the next reading finds both
            for each in steps:
                self._set(each)
                self.end_offset += 1

    def _catch_up(self, image: MetadataImage) -> None:
        topic = image.topics.get(self.topic_partition.topic)
        found = image.find(self.topic_partition.topic, self.topic_partition.partition)
        topic_id = "" if topic is None else topic.topic_id
        end_offset = 0 if found is None else found.high_watermark
        if topic_id == self._topic_id and end_offset == self.end_offset:
            return
        # What was read may be of a newer image than this one; before the first reading, nothing was.
        is_other = topic_id != self._topic_id or end_offset < self.end_offset
        if self._topic_id and is_other and self._root.store.refresh().next_offset > image.next_offset:
            raise CommitConflictError(f"metadata offset {image.next_offset} is not the end of the commit log")
        self._topic_id = topic_id
        if found is None:
            self._clear()
            self.end_offset = 0
        else:
            topic_partition = self.topic_partition
            self.follow(self._root.partition_in(image, topic_partition.topic, topic_partition.partition), topic_id)

    def _clear(self) -> None:
        self._by_id.clear()
        self._unfinished.clear()

    def _take(self, step: ReplayStep) -> Iterable[str]:
        for _, key, value in step.changes:
            self._replay(key, value)
        return ()

    def _replay(self, key: bytes | None, value: bytes | None) -> None:
        parsed = parse_transaction_record(key, value, self.topic_partition.partition)
        if parsed is None:
            return
        name, state = parsed
        if state is None:
            self._by_id.pop(name, None)
            self._unfinished.pop(name, None)
            return
        metadata = TransactionMetadata.of_record(state, self._by_id.get(name))
        if metadata is None:
            _LOG.warning("%s: a record of %r with status %d is skipped", self.topic_partition, name, state.status)
        else:
            self._set(metadata)

    def _set(self, metadata: TransactionMetadata) -> None:
        name = metadata.transactional_id
        self._by_id[name] = metadata
        if metadata.is_finished:
            self._unfinished.pop(name, None)
        else:
            self._unfinished[name] = metadata


def removals(
    log: StateLog,
    names: Sequence[str],
    *,
    now_ms: int,
    expiration_ms: int,
    is_in_use: Callable[[MetadataImage, str], bool] = lambda image, name: False,
) -> Iterator[CommitUnit]:
    """Units that remove the ids `names` of `log`, unless the newest image has one that is not expired any more.

    `is_in_use`: whether another unit of the same commit has decided about an id.
    """

    def unit(some: Sequence[str]) -> CommitUnit:
        def appends(image: MetadataImage) -> Sequence[LeaderAppend]:
            found = [(name, log.find(image, name)) for name in some if not is_in_use(image, name)]
            due = [name for name, known in found if known is not None and known.is_expired(now_ms, expiration_ms)]
            if not due:
                return ()
            topic_id = image.topic(TRANSACTION_STATE_TOPIC).topic_id
            return (removal_append(log.topic_partition, due, topic_id=topic_id, now_ms=now_ms),)

        return CommitUnit(appends=appends)

    some: list[str] = []
    size_bytes = 0
    for name in names:
        key_bytes = len(record_key(name))
        if some and (len(some) >= _REMOVED_IDS_MAX or size_bytes + key_bytes > _REMOVED_BYTES_MAX):
            yield unit(some)
            some, size_bytes = [], 0
        some.append(name)
        size_bytes += key_bytes
    if some:
        yield unit(some)


def expire_ids(
    root: NativeRoot, *, partitions: Collection[int] | None = None, now_ms: int, dry_run: bool = False
) -> int:
    """Remove the ids of clients that were not used for transactional.id.expiration.ms; returns how many.

    `partitions` are those of `__transaction_state` to go through, None: all. Servers beside it follow the log, and so
    they find the ids removed. With `dry_run` nothing is removed. A root that follows has the ids of its leader.
    Raises DiskFormatError, and the errors of `LeaderWriter.commit`.
    """
    image = root.store.refresh()
    topic = image.topics.get(TRANSACTION_STATE_TOPIC)
    if topic is None or image.following is not None:
        return 0
    expiration_ms = root.broker_config().transactional_id_expiration_ms
    count = 0
    writer: LeaderWriter | None = None
    try:
        for each in topic.partitions:
            if each.high_watermark == 0 or (partitions is not None and each.partition not in partitions):
                continue
            log = StateLog(root, each.partition)
            expired = log.expired(image, now_ms, expiration_ms)
            count += len(expired)
            for unit in () if dry_run else removals(log, expired, now_ms=now_ms, expiration_ms=expiration_ms):
                writer = writer or root.committer(flush="fsync", operation=_EXPIRE_OPERATION)
                (result,) = writer.commit([unit])
                if isinstance(result, KafkalogError):
                    raise result
    finally:
        if writer is not None:
            writer.close()
    return count


def removal_append(
    topic_partition: TopicPartition, transactional_ids: Sequence[str], *, topic_id: str, now_ms: int
) -> LeaderAppend:
    """One batch with records that remove the ids."""
    records = [
        Record(offset=at, timestamp_ms=now_ms, key=record_key(each), value=None)
        for at, each in enumerate(transactional_ids)
    ]
    return coordinator_append(topic_partition, encode_batch(records), topic_id)
