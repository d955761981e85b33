"""A native root on a file system: directories with segments, which are changed under the root's lock.

The directories follow the commits: a topic is committed, then its directories are created; its deletion is committed,
then its directories are renamed, and removed after file.delete.delay.ms. After a crash in between, the next writer to
the topic, or a retention run, does the rest.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import KafkalogError, LogDirError, UnknownTopicError
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, TopicImage
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore, remove_leftovers
from pyspark_kafkalog.metadata.root_format import metadata_dir, set_marker
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns, root_lock
from pyspark_kafkalog.root.admin import Build
from pyspark_kafkalog.root.directories import (
    ensure_partition_directories,
    find_unrenamed_directories,
    has_partition_directories,
    remove_deleted,
    rename_for_deletion,
    rename_left_directories,
)
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.root.writes import CommitResult, WriteTransaction
from pyspark_kafkalog.storage.filesystem import FileSystem, FlushMode, flushing_file_system
from pyspark_kafkalog.storage.names import TopicPartition, partition_path
from pyspark_kafkalog.tiered.own_location import LOCATION_CONFIG, check_outside, check_permitted
from pyspark_kafkalog.units import NS_PER_MS

if TYPE_CHECKING:
    from pyspark_kafkalog.config.broker import BrokerConfig
    from pyspark_kafkalog.root.commit.file_engine import FileEngine
    from pyspark_kafkalog.root.commit.staging import LocalStaging, Staged
    from pyspark_kafkalog.root.planned import CommitFiles, LocalPartition, RemotePart
    from pyspark_kafkalog.tiered.remote_storage import OwnStorage

_LOG: Final = logging.getLogger(__name__)
#: Directories that are made while the root is locked for it.
_DIRECTORIES_TOGETHER: Final = 200

_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})


class FileRoot(NativeRoot):
    """One native root on a file system, as of its last `refresh`."""

    _store: LocalMetadataStore

    def __init__(
        self,
        store: LocalMetadataStore,
        *,
        clock: Callable[[], int],
        fs: FileSystem,
        store_options: Mapping[str, str] = _NO_OPTIONS,
    ) -> None:
        """`store_options`: how the store of `remote_storage` is reached, where the environment does not tell."""
        super().__init__(store, clock=clock)
        self._store_options = store_options
        #: The configurations that `remote_storage` was made from, and it.
        self._remote_storage: tuple[Mapping[str, Mapping[str, str]], OwnStorage | None] | None = None
        self.directories: tuple[Path, ...] = (store.root,)
        self._fs = fs
        self._unflushed_store: LocalMetadataStore | None = None
        self._planned_commits: CommitFiles | None = None
        self._planned_version = -1

    @property
    def path(self) -> Path:
        return self._store.root

    @property
    def fs(self) -> FileSystem:
        return self._fs

    @property
    def remote_storage(self) -> OwnStorage | None:
        """Where closed segments are copied to; None if that is not configured.

        Raises InvalidConfigError, InvalidOptionError for wrong store options.
        """
        configs = self._store.image.broker_configs
        if self._remote_storage is None or self._remote_storage[0] is not configs:
            self._remote_storage = configs, self._open_storage(self.broker_config())
        return self._remote_storage[1]

    def _open_storage(self, config: BrokerConfig) -> OwnStorage | None:
        if not config.rsm_config_location:
            return None
        from pyspark_kafkalog.tiered.remote_storage import OwnStorage  # few roots have one

        return OwnStorage.of(config, self._store_options)

    def _remote_part(self, topic: TopicImage, partition: PartitionImage) -> RemotePart | None:
        storage = self.remote_storage
        if storage is None:
            return None
        from pyspark_kafkalog.root.planned import own_remote_part  # as in planned_partition

        return own_remote_part(self.path, storage, self._store_options, topic, partition)

    def _snapshot(self, topic: TopicImage, partition: PartitionImage) -> PartitionSnapshot:
        state = partition.state
        return PartitionSnapshot(
            topic=topic.name,
            partition=partition.partition,
            topic_id=topic.topic_id,
            local_directory=partition_path(self.path, TopicPartition(topic.name, partition.partition)),
            leader_epoch=state.leader_epoch,
            log_start_offset=state.log_start_offset,
            local_log_start_offset=state.local_log_start_offset,
            high_watermark=state.log_end_offset,
            log_end_offset=state.log_end_offset,
            active_base_offset=state.active_base_offset,
            active_size_bytes=state.active_size_bytes,
            remote=self._remote_part(topic, partition),
            # Only a transaction that was open when a broker's directory was adopted can be open here.
            stable=state.last_stable_offset,
        )

    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> LocalPartition:
        from pyspark_kafkalog.root.planned import CommitFiles, LocalPartition  # load numpy, which only reads need

        commits = self._planned_commits
        if commits is None or self._planned_version != self.version:
            commits = self._planned_commits = CommitFiles(*self._store.next_places())
            self._planned_version = self.version
        image = self._store.image
        topic, partition = (
            image.topics.get(topic_partition.topic),
            image.find(topic_partition.topic, topic_partition.partition),
        )
        remote = None if topic is None or partition is None else self._remote_part(topic, partition)
        return LocalPartition(str(self.path), topic_partition, topic_id, self.identity, commits, remote)

    def _check_broker_configs(self, configs: Mapping[str, str]) -> None:
        """Raise InvalidConfigError for remote storage in the log directory or around it, or not permitted here.

        The commit that names remote storage raises the format version, which never falls again.
        """
        location = configs.get(LOCATION_CONFIG)
        if location:
            check_outside(location, self.path)
            check_permitted(location)

    def delete_topics(self, topics: Mapping[str, str | None]) -> tuple[KafkalogError | None, ...]:
        """Commit the deletions, then rename the topics' directories, which are removed after file.delete.delay.ms."""
        deletions = self._deletions(topics)
        with self._locked():
            before = self._store.refresh()
            self._commit_locked(deletions.build, operation="delete topic", frees_space=True)
            for name in deletions.made:
                self._rename_directories(before.topic(name))
            if deletions.made:
                delay_ms = min(self._delete_delay_ms(before.topic(name)) for name in deletions.made)
                with _after_commit(
                    f"directories of deleted topics in {self.path} are not removed; retention does that"
                ):
                    self._fs.fsync_dir(self.path)
                    self._remove_deleted(None, delay_ms)
        return deletions.errors

    def _rename_directories(self, topic: TopicImage) -> None:
        with _after_commit(
            f"topic {topic.name} is deleted, but some of its directories are not renamed; retention does that"
        ):
            for partition in topic.partitions:
                rename_for_deletion(self.path, TopicPartition(topic.name, partition.partition), self._fs)

    def _delete_delay_ms(self, topic: TopicImage) -> int:
        return self.configs.of(self._store.image, topic).file_delete_delay_ms

    def remove_deleted_topics(self, now_ms: int | None = None) -> None:
        """Remove directories of deleted topics after their delay, and leftovers; restore the commit log's reserve.

        Directories that a killed deletion did not rename are renamed first. `now_ms` is the current time, by default
        the file system's. Raises OSError, CorruptRecordError.
        """
        left = find_unrenamed_directories(self.path, self._store.refresh(), self._store.log)
        with root_lock(self.path, fs=self._fs):
            rename_left_directories(self.path, self._store.refresh(), left, self._fs)
            delay_ms = self.broker_config().log_config({}).file_delete_delay_ms
            self._remove_deleted(now_ms, delay_ms)
            remove_leftovers(self.path, now_ns=file_system_time_ns(self.path, self._fs), fs=self._fs)
            self._store.log.restore_reserve()

    def _remove_deleted(self, now_ms: int | None, delay_ms: int) -> None:
        if now_ms is None:
            now_ms = file_system_time_ns(self.path, self._fs) // NS_PER_MS
        remove_deleted(self.path, now_ms=now_ms, delay_ms=delay_ms, fs=self._fs)

    def commit_engine(
        self, *, flush: FlushMode = "fsync", operation: str = "append", following_id: str | None = None
    ) -> FileEngine:
        from pyspark_kafkalog.root.commit.file_engine import FileEngine  # not needed by readers

        return FileEngine(self, flush=flush, operation=operation, following_id=following_id)

    def staging(self, write_id: str, *, flush: FlushMode = "fsync") -> LocalStaging:
        from pyspark_kafkalog.root.commit.staging import LocalStaging  # not needed by readers

        return LocalStaging(self.path, write_id, 0, fs=flushing_file_system(self._fs, flush))

    def commit_staged(
        self, staged: Sequence[Staged], *, transaction: WriteTransaction | None = None, flush: FlushMode = "fsync"
    ) -> CommitResult:
        from pyspark_kafkalog.root.commit.open_logs import FileCommits  # not needed by readers
        from pyspark_kafkalog.root.commit.staged_write import commit_files, only_files

        commits = FileCommits(self, flush=flush, operation="write", appends_files=True)
        return commit_files(commits, only_files(staged), transaction)

    def file_system_for(self, flush: FlushMode) -> FileSystem:
        """The calls that change the root's files in commits with the mode `flush`. Raises InvalidOptionError."""
        return flushing_file_system(self._fs, flush)

    def store_for(self, flush: FlushMode) -> LocalMetadataStore:
        """The store for commits with the mode `flush`: this root's own, or one that does not wait for the disk."""
        fs = self.file_system_for(flush)
        if fs is self._fs:
            return self._store
        if self._unflushed_store is None:
            self._unflushed_store = LocalMetadataStore(self.path, clock=self._clock, fs=fs)
        return self._unflushed_store

    def _is_ready(self, topic: str) -> bool:
        image = self._store.refresh().topics.get(topic)
        # Without the lock: a writer holds it through its commit.
        return image is not None and has_partition_directories(self.path, image)

    def _commit_topics(
        self, names: Callable[[], Collection[str]], build: Build, operation: str, *, frees_space: bool = False
    ) -> None:
        with self._locked():
            image = self._commit_locked(build, operation=operation, frees_space=frees_space)
            topics = [_topic(image, name) for name in names()]
            parts = [part for topic in topics for part in _parts(topic)]
            for topic, numbers in parts[:1]:
                self._ensure_directories(topic, numbers)
        for topic, numbers in parts[1:]:
            # Under a lock of its own, so that writers need not wait for the directories of all partitions.
            with self._locked():
                newest = self._store.refresh().topics.get(topic.name)
                if newest is not None and newest.topic_id == topic.topic_id:
                    self._ensure_directories(newest, numbers)

    def follow_topics(self, before: MetadataImage, after: MetadataImage) -> None:
        """Let the directories follow a commit between two images: those of topics that it made, or removed.

        The caller holds the root's lock. Raises nothing: the next writer to a topic, or retention, repairs a failure.
        """
        for name, topic in before.topics.items():
            now = after.topics.get(name)
            if now is None or now.topic_id != topic.topic_id:
                self._rename_directories(topic)
        for name, topic in after.topics.items():
            was = before.topics.get(name)
            if was is None or was.topic_id != topic.topic_id or len(was.partitions) != len(topic.partitions):
                self._ensure_directories(topic)

    def _ensure_directories(self, topic: TopicImage, numbers: range | None = None) -> None:
        left = f"topic {topic.name}: not all partition directories exist yet; the next writer creates them"
        with _after_commit(left):
            ensure_partition_directories(self.path, topic, self._fs, numbers)

    def commit(self, build: Build, *, operation: str, frees_space: bool = False) -> None:
        """As in NativeRoot, under the root's lock; then the marker follows a commit that has raised the version."""
        with self._locked():
            version = self._commit_locked(build, operation=operation, frees_space=frees_space).format_version
            assert version is not None, "the image has the first commit"
            with _after_commit(f"the marker file of {self.path} does not say the format version {version} yet"):
                set_marker(metadata_dir(self.path), self._fs, version)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._store.check_root()
        with root_lock(self.path, fs=self._fs):
            yield

    def _commit_locked(self, build: Build, *, operation: str, frees_space: bool = False) -> MetadataImage:
        return self._store.commit(build, operation=operation, frees_space=frees_space).image


def _parts(topic: TopicImage) -> Iterator[tuple[TopicImage, range]]:
    """The topic with some of its partitions at a time."""
    count = len(topic.partitions)
    for begin in range(0, count, _DIRECTORIES_TOGETHER):
        yield topic, range(begin, min(begin + _DIRECTORIES_TOGETHER, count))


_EXPORT: Final = "`kafkalog export --path URL --to DIR` copies it to files"


def on_file_system(root: Root, *, instead: str = _EXPORT) -> FileRoot:
    """The native root on a file system that `root` is, for work on its files.

    `instead` tells what to do with one on an object store. Raises ReadOnlyLogDirError for a broker's directory,
    LogDirError for a root on an object store.
    """
    native = root.native()
    if isinstance(native, FileRoot):
        return native
    raise LogDirError(f"{root.path} is on an object store, and this works on the files of a log directory: {instead}")


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
