"""The extents of a partition, with its remote part, and a partition as of a plan, for the tasks of a reader.

`Root.planned_partition` makes a `PlannedPartition` on the driver, which is pickled into the tasks; they open nothing
else. It has the extents of the partition, and tells what has changed since the plan.

*Log start offsets.* Records below the log start offset are deleted as of the commit that increased it, although their
bytes remain until a retention run removes the segment. A plan can be old: Spark reuses the plan of a DataFrame's first
action. The plan of a native log directory therefore carries the names of two commit files: the last one that it has
read, and the next one. If the first exists and the second does not, nothing has been committed since; this check costs
a task two stats. Otherwise the task reads the image, which a reused worker process caches. A broker's directory has no
such commits: there `log-start-offset-checkpoint` is read, as for the plan.

*Remote segments.* Local retention of a native root moves the local log start by a commit and removes files after it: a
task that finds no file reads the newest image and continues in the remote segments that it names (`OwnLookUp`). Total
retention drops segments by a commit and deletes their objects later: a task that finds no object looks there, too. A
segment that is named there and has lost an object is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.metadata.image import PartitionImage, TopicImage
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.storage.artefacts.checkpoint_file import broker_log_starts
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity, check_identity, read_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import has_log
from pyspark_kafkalog.storage.log.reader import LocalExtents
from pyspark_kafkalog.storage.names import PARTITION_METADATA, TopicPartition, partition_path
from pyspark_kafkalog.tiered.remote_log import RemoteLog, tiered_extents
from pyspark_kafkalog.tiered.remote_storage import OwnStorage, own_remote_log
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.reader import PartitionExtents


@dataclass(frozen=True, slots=True)
class RemotePart:
    """The remote part of a partition's log, and how to look it up again when an object of it is missing.

    `is_all`: the partition has no local directory.
    """

    log: RemoteLog
    look_up: Callable[[], RemoteLog | None]
    is_all: bool = False

    def extents(self, local: LocalExtents | None) -> PartitionExtents:
        """The whole log, with its local segments."""
        return tiered_extents(self.log, None if self.is_all else local, self.look_up)

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> RemotePart:
        """What a task needs that reads the offsets [start_offset, end_offset)."""
        return replace(self, log=self.log.part(start_offset, end_offset, committed=committed))


@dataclass(frozen=True, slots=True)
class OwnLookUp:
    """Looks up the remote part of one partition of the root `root` again; can be pickled.

    `store_options` are those with which the root was opened: the storage itself may be another one by now.
    """

    root: str
    partition: TopicIdPartition
    store_options: tuple[tuple[str, str], ...] = field(repr=False)

    def __call__(self) -> RemoteLog | None:
        """As of the newest commit; None if the topic was deleted, or if nothing is remote any more.

        Raises LogDirError, DiskFormatError, OSError.
        """
        image = LocalMetadataStore.open(Path(self.root)).image
        topic = image.topics.get(self.partition.topic)
        storage = OwnStorage.of(broker_config(image), dict(self.store_options))
        if storage is None or topic is None or topic.topic_id != self.partition.topic_id:
            return None
        return own_remote_log(storage, topic, topic.partitions[self.partition.partition])


def own_remote_part(
    root: Path, storage: OwnStorage, store_options: Mapping[str, str], topic: TopicImage, partition: PartitionImage
) -> RemotePart:
    """The remote part, without segments as long as none was copied: local segments may become remote ones."""
    log = own_remote_log(storage, topic, partition)
    return RemotePart(log, OwnLookUp(str(root), log.partition, tuple(store_options.items())))


class PlannedPartition(Protocol):
    """One partition as of a plan; can be pickled."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition's topic and number."""
        ...

    def extents(self) -> PartitionExtents:
        """What a LogReader of the partition reads. Raises LogDirError if the directory is a symbolic link."""
        ...

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> PlannedPartition:
        """The same for a task that reads the offsets [start_offset, end_offset), without what it does not need."""
        ...

    def moved_log_start(self) -> int:
        """The log start offset; 0 if it cannot have changed since the plan, or if the topic no longer exists.

        Raises LogDirError, DiskFormatError if the metadata cannot be read.
        """
        ...

    def is_same_topic(self) -> bool:
        """Whether the topic is still the planned one, and was not deleted, nor created again under its name."""
        ...

    def check_root(self) -> None:
        """Raise LogDirError if the log directory is not the planned one, or is gone."""
        ...


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """The last commit file that a plan has read, where it ended (-1: it takes no commits), and the name of the next."""

    last: str
    end: int
    next: str

    def has_later_commit(self) -> bool:
        """Whether there are commits that the plan has not read."""
        # In this order, because a commit is only removed when a later one exists.
        if os.path.exists(self.next):
            return True
        try:
            size_bytes = os.stat(self.last).st_size
        except FileNotFoundError:
            return True
        return 0 <= self.end < size_bytes


@dataclass(frozen=True, slots=True)
class LocalPartition:
    """A partition with a directory in the log directory `root`.

    `topic_id` None: a broker's directory has no id for the topic, or the id is not to be checked. `identity`: that of
    the log directory, None if it has no ids. `commits` None: a broker's directory. `remote`: the part of the log in
    remote storage, if that is known.
    """

    root: str
    topic_partition: TopicPartition
    topic_id: str | None
    identity: RootIdentity | None
    commits: CommitFiles | None = None
    remote: RemotePart | None = None

    @property
    def directory(self) -> Path:
        """The partition's directory."""
        return partition_path(Path(self.root), self.topic_partition)

    def extents(self) -> PartitionExtents:
        """See PlannedPartition."""
        local = LocalExtents(self.directory)
        return local if self.remote is None else self.remote.extents(local)

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> LocalPartition:
        """See PlannedPartition."""
        if self.remote is None:
            return self
        return replace(self, remote=self.remote.part(start_offset, end_offset, committed=committed))

    def moved_log_start(self) -> int:
        """See PlannedPartition."""
        root = Path(self.root)
        if self.commits is None:
            return broker_log_starts(root).get(self.topic_partition, 0)
        if not self.commits.has_later_commit():
            return 0
        state = LocalMetadataStore.open(root).image.state_of(self.topic_partition, self.topic_id)
        return 0 if state is None else state.log_start_offset

    def is_same_topic(self) -> bool:
        """See PlannedPartition."""
        directory = self.directory
        if self.topic_id is None:
            return directory.is_dir()
        try:
            return read_topic_id(directory / PARTITION_METADATA) == self.topic_id
        except FileNotFoundError:
            return has_log(directory)  # A directory that is being re-created gets its id first.
        except DiskFormatError:
            return True  # Damage to this file does not affect the records.

    def check_root(self) -> None:
        """See PlannedPartition."""
        check_identity(Path(self.root), self.identity)
