"""A native log directory: its topics and partitions as of its commit log. Only commits change them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import InvalidConfigError, UnknownTopicError
from pyspark_kafkalog.metadata.history import HistoryEntry, read_history
from pyspark_kafkalog.metadata.image import (
    MetadataImage,
    PartitionImage,
    TopicImage,
    broker_configs,
)
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns, root_lock
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root import admin
from pyspark_kafkalog.root.directories import (
    ensure_partition_directories,
    find_unrenamed_directories,
    has_partition_directories,
    remove_deleted,
    rename_for_deletion,
    rename_left_directories,
)
from pyspark_kafkalog.root.planned import CommitFiles, LocalPartition
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, TopicDescription
from pyspark_kafkalog.root.write_transaction import CommitResult, WriteTransaction, take_over
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
from pyspark_kafkalog.storage.filesystem import FileSystem, FlushMode, flushing_file_system
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staging.staged_file import StagedFile
from pyspark_kafkalog.units import NS_PER_MS

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.reader import LogReader

_LOG: Final = logging.getLogger(__name__)

_Build = Callable[[MetadataImage], Sequence[MetadataRecord]]


class NativeRoot:
    """One native root, as of its last `refresh`; every change refreshes it first."""

    is_broker_directory: Final = False

    def __init__(self, store: MetadataStore, *, clock: Callable[[], int], fs: FileSystem) -> None:
        self.path: Path = store.root
        self.directories: tuple[Path, ...] = (store.root,)
        self._store = store
        self._clock = clock
        self._fs = fs
        self._unflushed_store: MetadataStore | None = None

    def refresh(self) -> None:
        self._store.refresh()

    @property
    def identity(self) -> RootIdentity | None:
        return self._store.identity

    @property
    def version(self) -> int:
        return self._store.image.next_offset

    def native(self) -> NativeRoot:
        return self

    # Only a root that was opened for a principal refuses anything.

    def check_read(self, topics: Collection[str]) -> None:
        pass

    def check_writable(self) -> None:
        pass

    def check_write(self, topic: str) -> None:
        pass

    def check_transactional_id(self, transactional_id: str) -> None:
        pass

    @property
    def store(self) -> MetadataStore:
        """The store with the image as of the last refresh, which also makes the commits."""
        return self._store

    @property
    def clock(self) -> Callable[[], int]:
        return self._clock

    @property
    def fs(self) -> FileSystem:
        return self._fs

    def broker_config(self) -> BrokerConfig:
        """The broker-level configuration, parsed."""
        return admin.broker_config(self._store.image)

    # Describing

    def topics(self) -> tuple[str, ...]:
        return tuple(sorted(self._store.image.topics))

    def partitions(self, topics: Collection[str] | None = None) -> list[TopicPartition]:
        """All partitions, or those of `topics`, in order. Raises UnknownTopicError."""
        names = self.topics() if topics is None else sorted(set(topics))
        return [
            TopicPartition(name, partition.partition)
            for name in names
            for partition in self._store.image.topic(name).partitions
        ]

    def topic(self, name: str, *, without_links: bool = False) -> TopicDescription:
        topic = self._store.image.topic(name)
        partitions = tuple(self._snapshot(topic, partition) for partition in topic.partitions)
        return TopicDescription(name, topic.topic_id, topic.configs, partitions)

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        return tuple(each.partition for each in self._store.image.topic(topic).partitions)

    def partition(self, topic: str, partition: int) -> PartitionSnapshot:
        image = self._store.image
        return self._snapshot(image.topic(topic), image.partition(topic, partition))

    def partitions_read(self) -> tuple[PartitionSnapshot, ...]:
        return ()

    def _snapshot(self, topic: TopicImage, partition: PartitionImage) -> PartitionSnapshot:
        state = partition.state
        return PartitionSnapshot(
            topic=topic.name,
            partition=partition.partition,
            topic_id=topic.topic_id,
            directory=self.path / str(TopicPartition(topic.name, partition.partition)),
            leader_epoch=state.leader_epoch,
            log_start_offset=state.log_start_offset,
            local_log_start_offset=state.log_start_offset,
            high_watermark=state.log_end_offset,
            log_end_offset=state.log_end_offset,
            active_base_offset=state.active_base_offset,
            active_size_bytes=state.active_size_bytes,
            # Only a transaction that was open when a broker's directory was adopted can be open here.
            stable=state.last_stable_offset,
        )

    def reader(self, topic: str, partition: int) -> LogReader:
        from pyspark_kafkalog.storage.log.reader import LogReader  # imports compiled code

        return LogReader(self.partition(topic, partition).extents(), TopicPartition(topic, partition))

    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> LocalPartition:
        last_file, next_file = self._store.last_and_next_file
        return LocalPartition(
            str(self.path),
            str(self.path / str(topic_partition)),
            topic_partition,
            topic_id,
            self.identity,
            CommitFiles(str(last_file), str(next_file)),
        )

    def history(
        self, *, topic: str | None = None, limit: int | None = None, newest_first: bool = True
    ) -> Iterator[HistoryEntry]:
        names = self._store.image.topic_names
        return read_history(self._store.log, names, topic=topic, limit=limit, newest_first=newest_first)

    def log_config(self, topic: str) -> LogConfig:
        image = self._store.image
        return admin.broker_config(image).log_config(image.topic(topic).configs)

    def config_for_write(self, topic: str) -> LogConfig:
        return self.log_config(topic)

    # Changing

    def broker_configs(self) -> Mapping[str, str]:
        return broker_configs(self._store.image)

    def alter_broker_configs(self, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        self.commit(
            lambda image: admin.alter_broker_configs(image, add=add or {}, delete=delete),
            operation="alter broker configs",
            frees_space=True,
        )

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> TopicDescription:
        """Commit the topic, then create its directories. `partitions` None stands for num.partitions."""

        def build(image: MetadataImage) -> list[MetadataRecord]:
            broker = admin.broker_config(image)
            return admin.create_topic(
                image,
                name,
                partitions=broker.num_partitions if partitions is None else partitions,
                configs=configs or {},
                broker_configs=broker.properties,
            )

        self._commit_topic(name, build, "create topic")
        return self.topic(name)

    def ensure_topic(self, name: str) -> TopicDescription:
        """The topic. It and its directories are created if they do not exist, as for a write to it."""
        topic = self._store.refresh().topics.get(name)
        if topic is not None and has_partition_directories(self.path, topic):
            return self.topic(name)  # without the lock: a writer holds it through its commit

        def build(image: MetadataImage) -> list[MetadataRecord]:
            if name in image.topics:
                return []
            broker = admin.broker_config(image)
            if not broker.auto_create_topics_enable:
                image.topic(name)
            return admin.create_topic(image, name, partitions=broker.num_partitions, broker_configs=broker.properties)

        self._commit_topic(name, build, "create topic")
        return self.topic(name)

    def add_partitions(self, name: str, total: int) -> None:
        self._commit_topic(name, lambda image: admin.add_partitions(image, name, total=total), "add partitions")

    def alter_topic(self, name: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        def build(image: MetadataImage) -> list[MetadataRecord]:
            broker = admin.broker_config(image)
            return admin.alter_configs(image, name, add=add or {}, delete=delete, broker_configs=broker.properties)

        self._commit_topic(name, build, "alter topic configs", frees_space=True)

    def delete_topic(self, name: str) -> None:
        """Commit the topic's deletion, then rename its directories; they are removed after file.delete.delay.ms."""
        with self._locked():
            topic = self._store.refresh().topic(name)
            if not admin.broker_config(self._store.image).delete_topic_enable:
                raise InvalidConfigError(f"topic {name} cannot be deleted: delete.topic.enable is false")
            delay_ms = self.log_config(name).file_delete_delay_ms
            self._commit_locked(
                lambda image: admin.delete_topic(image, name), operation="delete topic", frees_space=True
            )
            with _after_commit(
                f"topic {name} is deleted, but some of its directories are not renamed or removed; retention does that"
            ):
                for partition in topic.partitions:
                    rename_for_deletion(self.path, TopicPartition(name, partition.partition), self._fs)
                self._fs.fsync_dir(self.path)
                self._remove_deleted(None, delay_ms)

    def remove_deleted_topics(self, now_ms: int | None = None) -> None:
        """Remove the directories of deleted topics after their delay, and restore the commit log's reserve.

        Directories that a killed deletion did not rename are renamed first. `now_ms` is the current time, by default
        the file system's. Raises OSError, CorruptRecordError.
        """
        left = find_unrenamed_directories(self.path, self._store.refresh(), self._store.log)
        with root_lock(self.path, fs=self._fs):
            rename_left_directories(self.path, self._store.refresh(), left, self._fs)
            delay_ms = self.broker_config().log_config({}).file_delete_delay_ms
            self._remove_deleted(now_ms, delay_ms)
            self._store.log.restore_reserve()

    def _remove_deleted(self, now_ms: int | None, delay_ms: int) -> None:
        if now_ms is None:
            now_ms = file_system_time_ns(self.path, self._fs) // NS_PER_MS
        remove_deleted(self.path, now_ms=now_ms, delay_ms=delay_ms, fs=self._fs)

    def commit_staged(
        self,
        staged: Sequence[StagedFile],
        *,
        transaction: WriteTransaction | None = None,
        flush: FlushMode = "fsync",
    ) -> CommitResult:
        from pyspark_kafkalog.root.write import commit_write  # not needed by readers

        fs = flushing_file_system(self._fs, flush)
        self._store.check_root()
        result = commit_write(self._store_for(fs), staged, transaction, clock=self._clock, fs=fs)
        if fs is not self._fs:
            self._store.refresh()
        return result

    def _store_for(self, fs: FileSystem) -> MetadataStore:
        """The store whose commits use `fs`: this root's own, or one for commits that do not wait for the disk."""
        if fs is self._fs:
            return self._store
        if self._unflushed_store is None:
            self._unflushed_store = MetadataStore(self.path, clock=self._clock, fs=fs)
        return self._unflushed_store

    def init_transaction(self, transactional_id: str, incarnation: str) -> None:
        """Commit `incarnation` as the current one of the transactional id; earlier ones are fenced."""
        self.commit(
            lambda image: take_over(image, transactional_id, incarnation, now_ms=self._clock()),
            operation="init transaction",
        )

    def has_transactional_id(self, transactional_id: str) -> bool:
        return transactional_id in self._store.image.transactional_ids

    def last_version(self, transactional_id: str) -> int | None:
        """The last committed version of the transactional id, made durable; None if it has none."""
        known = self._store.refresh().transactional_ids.get(transactional_id)
        if known is None or known.version < 0:
            return None
        # The writer may have been killed after publishing the commit and before making it durable.
        self._store.log.sync()
        return known.version

    def has_committed(self, transaction: WriteTransaction) -> bool:
        last_version = self.last_version(transaction.transactional_id)
        return last_version is not None and transaction.version <= last_version

    def _commit_topic(self, name: str, build: _Build, operation: str, *, frees_space: bool = False) -> None:
        with self._locked():
            image = self._commit_locked(build, operation=operation, frees_space=frees_space)
            with _after_commit(f"topic {name} has directories that are still to be made, by who writes to it first"):
                ensure_partition_directories(self.path, _topic(image, name), self._fs)

    def commit(self, build: _Build, *, operation: str, frees_space: bool = False) -> None:
        """Commit the records that `build` makes from the newest image, under the root's lock, if there are any.

        `frees_space`: see `CommitLog.publish`.
        """
        with self._locked():
            self._commit_locked(build, operation=operation, frees_space=frees_space)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._store.check_root()
        with root_lock(self.path, fs=self._fs):
            yield

    def _commit_locked(self, build: _Build, *, operation: str, frees_space: bool = False) -> MetadataImage:
        return self._store.commit(build, operation=operation, frees_space=frees_space).image


@contextlib.contextmanager
def _after_commit(what: str) -> Iterator[None]:
    """Log an OSError in the block. Directories are changed after the commit; the next writer repairs a failure."""
    try:
        yield
    except OSError as error:
        _LOG.warning("%s: %s", what, error)


def _topic(image: MetadataImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicError(f"topic {name!r} was deleted by another writer meanwhile")
    return topic
