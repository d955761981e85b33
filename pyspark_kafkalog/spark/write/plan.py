"""The plan of a write, which travels from the driver to the tasks and to the commit.

    batch     the driver opens the root, creates root and topic if they do not exist and may be created, and assigns the
              write's id
    stream    the driver creates nothing, because it does not know which micro-batch it plans: the tasks of the first
              micro-batch create root and topic

Planning, tasks and commit run in different processes. The plan contains the identity of its root, and the others check
that this root is still at the path. Nothing is staged yet, so a crash leaves at most an empty topic.

*Kept roots.* Spark's workers are used again: the one that plans micro-batches plans the next one too, and so does the
one that commits. To open a root in an object store each time would cost more requests than the commit itself. So the
root is kept for as long as a commit may be built on its image without a look at the store (30 seconds after the end of
the log was seen): nothing is decided by what the image says. A topic deleted meanwhile, another writer's commit and a
later run of the query are found by the commit. A root opened for a principal is not kept: what it may do is read again
each time.
"""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import InvalidOptionError, LogDirError
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.root.commit.staging import LocalStaging, ObjectStaging, Staging
from pyspark_kafkalog.spark.options.parse import WriteOptions, locate
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity, check_identity
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.staged_file import micro_batch_write_id

if TYPE_CHECKING:
    from pyspark import TaskContext

    from pyspark_kafkalog.root.native import NativeRoot
    from pyspark_kafkalog.root.protocol import Root

_KEPT_MAX: Final = 4
QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
RUN_ID_PROPERTY: Final = "spark.jobGroup.id"

_ADVICE: Final = (
    "the volume may be unmounted, or the directory moved or replaced. Mount it or put it back, and start the query "
    "again. A log directory also forgets a query that has written nothing for writer.id.expiration.ms, 180 days by "
    "default: Spark may repeat its last micro-batch then, so look whether the records are there. To begin a new log "
    "directory take a new checkpoint, or to continue in this one run first: "
    "LogDir.open_or_create({path!r}).init_transaction({query!r}, 'begin')"
)


@dataclass(frozen=True, slots=True)
class TopicTarget:
    """The properties of a topic that a task needs to write to it."""

    topic: str
    topic_id: str
    partitions_count: int
    config: LogConfig

    @classmethod
    def open(cls, root: Root, topic: str) -> TopicTarget:
        """The topic, created with the default number of partitions if it does not exist and may be created.

        Raises UnknownTopicError if the topic does not exist and auto.create.topics.enable is false,
        ReadOnlyLogDirError for a broker's directory, AuthorizationError if the principal may not write to it.
        """
        root.check(AclOperation.WRITE, ResourceType.TOPIC, topic)
        found = root.ensure_topic(topic)
        return cls(topic, found.topic_id or "", len(found.partitions), root.config_for_write(topic))


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The driver's plan for all tasks of a write.

    `identity`: the root's, None if it has none. `target` None: each row names its topic, or the topic does not exist
    yet. `is_new`: the root does not exist yet. `planned_ns`: when a micro-batch was planned, in ns since 1970.
    """

    options: WriteOptions
    path: Path | StoreAddress
    identity: RootIdentity | None
    target: TopicTarget | None
    write_id: str
    is_new: bool = False
    #: The root's version, for the names of objects.
    planned_at: int = 0
    planned_ns: int = 0

    def staging(self, task: int) -> Staging:
        """Where the task with that id stages its records. Raises LogDirError if another root is at the path now."""
        if isinstance(self.path, StoreAddress):
            return ObjectStaging(self.path.open(), self.write_id, task, planned_at=self.planned_at)
        check_identity(self.path, self.identity)
        fs = flushing_file_system(LOCAL, self.options.flush)
        return LocalStaging(self.path, self.write_id, task, planned_ns=self.planned_ns, fs=fs)

    def of(self, micro_batch: MicroBatch) -> WritePlan:
        """The plan of `micro_batch`: in a directory the names of staged files tell query, batch and run.

        A later try of the batch, and the abort of this one, find the files by that.
        """
        if isinstance(self.path, StoreAddress):
            return self
        ids = micro_batch.query_id, micro_batch.batch_id, micro_batch.run_id
        return replace(self, write_id=micro_batch_write_id(*ids))

    def check_identity(self, identity: RootIdentity | None) -> None:
        """Raise LogDirError unless the path has the root with `identity` now; None accepts any."""
        if isinstance(self.path, StoreAddress):
            replace(self, identity=identity).open_root()
        else:
            check_identity(self.path, identity)

    def open_root(self) -> Root:
        """The planned root; in an object store as it was a short time ago, if it was kept.

        Raises LogDirError if the path has another root, or none.
        """
        from pyspark_kafkalog.security.open import open_root  # tasks whose plan has a target do not need it

        kept = _kept_root(self.path, self.options.principal, self.identity, version=self.planned_at)
        if kept is not None:
            return kept
        return _kept(self.path, open_root(self.path, principal=self.options.principal, identity=self.identity))

    def with_new_root(self, micro_batch: MicroBatch) -> WritePlan:
        """The plan with the root, which the tasks of a query's first micro-batch create. Raises LogDirError later."""
        from pyspark_kafkalog.security.open import open_or_create_root

        if not micro_batch.is_first:
            raise micro_batch.missing_error(self.path)
        root = open_or_create_root(self.path)
        return replace(self, identity=root.identity, is_new=False, planned_at=root.version or 0)


def plan_batch(options: WriteOptions) -> tuple[WritePlan, Root]:
    """On the driver: the plan of a batch write, and the root; creates root and topic if they do not exist and may be.

    Raises the errors of `open_or_create_root` and `TopicTarget.open`; InvalidOptionError for a partition's path.
    """
    from pyspark_kafkalog.security.open import open_or_create_root

    path = _root_path(options)
    root = open_or_create_root(path, principal=options.principal)
    root.check_writable()
    target = None if options.topic is None else TopicTarget.open(root, options.topic)
    return WritePlan(options, path, root.identity, target, uuid.uuid4().hex, planned_at=root.version or 0), root


def plan_stream(options: WriteOptions) -> tuple[WritePlan, Root | None]:
    """On the driver: the plan of a micro-batch with root and topic as they are, and the root if it exists.

    Raises ReadOnlyLogDirError for a broker's directory, AuthorizationError if the principal may not write.
    """
    path, write_id, planned_ns = _root_path(options), uuid.uuid4().hex, time.time_ns()
    root = _existing_root(path, options.principal)
    if root is None:
        return WritePlan(options, path, None, None, write_id, is_new=True, planned_ns=planned_ns), None
    root.check_writable()
    target = None
    if options.topic is not None:
        root.check(AclOperation.WRITE, ResourceType.TOPIC, options.topic)
        if options.topic in root.topics():
            target = TopicTarget.open(root, options.topic)
    version = root.version or 0
    return WritePlan(options, path, root.identity, target, write_id, planned_at=version, planned_ns=planned_ns), root


def _existing_root(path: Path | StoreAddress, principal: str | None) -> Root | None:
    """The root at `path`, as in `WritePlan.open_root`; None if it has none, or one whose creation was not finished."""
    from pyspark_kafkalog.security.open import find_root

    kept = _kept_root(path, principal, None, version=0)
    if kept is not None:
        return kept
    root = find_root(path, principal=principal)
    return None if root is None else _kept(path, root)


def _kept_root(
    path: Path | StoreAddress, principal: str | None, identity: RootIdentity | None, *, version: int
) -> Root | None:
    """The root in an object store that was kept, has the identity (None: any), and was up to date a short time ago.

    It is refreshed if it is older than `version`, as of which it is known to exist. Raises the errors of that.
    """
    if principal is not None or not isinstance(path, StoreAddress):
        return None
    root = _kept_roots(os.getpid()).get(path)
    if root is None or not root.store.sees_end or (identity is not None and not identity.fits(root.identity)):
        return None
    if root.version < version:
        root.refresh()
    return root


def _kept(path: Path | StoreAddress, root: Root) -> Root:
    """`root`, kept for the next write if it is in an object store and was opened for no principal."""
    if isinstance(path, StoreAddress) and root.principal is None:
        kept = _kept_roots(os.getpid())
        kept.pop(path, None)
        kept[path] = root.native()
        while len(kept) > _KEPT_MAX:
            del kept[next(iter(kept))]
    return root


@lru_cache(maxsize=1)
def _kept_roots(process_id: int) -> dict[StoreAddress, NativeRoot]:
    """The roots of this process, the one used last at the end."""
    return {}


def _root_path(options: WriteOptions) -> Path | StoreAddress:
    location = locate(options.path, options.store)
    if location.partition is not None:
        raise InvalidOptionError(
            f"option path names the partition directory of {location.partition}: to write, give the root "
            f"{location.root} as path and the topic as option or column"
        )
    return location.root


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The query, the run and the micro-batch that a task belongs to."""

    query_id: str
    run_id: str
    batch_id: int

    @classmethod
    def of_task(cls, context: TaskContext) -> MicroBatch:
        """The micro-batch of the task. Raises InvalidOptionError if the task belongs to none."""
        query_id, run_id, batch_id = (
            context.getLocalProperty(name) for name in (QUERY_ID_PROPERTY, RUN_ID_PROPERTY, BATCH_ID_PROPERTY)
        )
        if not query_id or not run_id or not batch_id:
            raise InvalidOptionError(
                f"a task of a streaming write found {QUERY_ID_PROPERTY}={query_id}, {RUN_ID_PROPERTY}={run_id} and "
                f"{BATCH_ID_PROPERTY}={batch_id} in its local properties: the write needs all three to be made once. "
                "Start the query with writeStream and an ordinary trigger (processingTime, availableNow, once)"
            )
        return cls(query_id, run_id, int(batch_id))

    @property
    def is_first(self) -> bool:
        """Whether it is the query's first micro-batch, which may create the log directory."""
        return self.batch_id == 0

    def check_root(self, root: Root) -> None:
        """Raise LogDirError unless the query's first micro-batch went to `root`, or this is it.

        `root` is refreshed if it has nothing of the query.
        """
        if self.is_first or root.has_transactional_id(self.query_id):
            return
        root.refresh()
        if not root.has_transactional_id(self.query_id):
            raise LogDirError(
                f"{root.path}: expected the log directory that the earlier micro-batches of query {self.query_id} "
                f"went to, found one with {root.identity} that has nothing of it, for micro-batch {self.batch_id}; "
                f"{_ADVICE.format(path=str(root.path), query=self.query_id)}"
            )

    def check_path(self, path: Path | StoreAddress) -> None:
        """As `check_root`, for the log directory at `path`, which need not exist for the first micro-batch."""
        from pyspark_kafkalog.security.open import find_root

        if self.is_first:
            return
        root = find_root(path)
        if root is None:
            raise self.missing_error(path)
        self.check_root(root)

    def missing_error(self, path: Path | StoreAddress) -> LogDirError:
        """The error for a later micro-batch that finds no log directory."""
        is_empty = isinstance(path, StoreAddress) or path.exists()
        return LogDirError(
            f"{path}: expected the log directory that the earlier micro-batches of query {self.query_id} went to, "
            f"found {'an empty directory' if is_empty else 'no such directory'}, for micro-batch {self.batch_id}; "
            f"{_ADVICE.format(path=str(path), query=self.query_id)}"
        )
