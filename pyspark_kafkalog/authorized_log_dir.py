"""A log directory opened for a principal: refuses operations that the access control entries do not permit.

The checked operations and resources are those that a broker passes to its authorizer. Topics that the principal may not
describe are not listed. Work on the root as a whole (maintenance, `own_root`) needs ALTER on the cluster. The id of a
streaming query is generated, not chosen, and needs no entry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.access_control import AccessControl
from pyspark_kafkalog.groups.group import AnyOffsets, AnyPartition, Group, as_topic_partition
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType, check_principal
from pyspark_kafkalog.root.descriptions import PartitionDescription, TopicDescription
from pyspark_kafkalog.security.authorizer import Authorizer
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staging.staged_file import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.config.log_config import LogConfig
    from pyspark_kafkalog.groups.offset_records import OffsetAndMetadata
    from pyspark_kafkalog.metadata.history import HistoryEntry
    from pyspark_kafkalog.root.broker import ForeignRoot
    from pyspark_kafkalog.root.own import OwnRoot
    from pyspark_kafkalog.root.write_transaction import CommitResult, WriteTransaction
    from pyspark_kafkalog.storage.filesystem import FlushMode
    from pyspark_kafkalog.storage.log.reader import LogReader

_TOPIC, _GROUP, _CLUSTER, _ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)


class AuthorizedLogDir(LogDir):
    """A LogDir whose methods raise AuthorizationError for operations that its principal may not do."""

    def __init__(
        self, root: OwnRoot | ForeignRoot, *, principal: str, clock: Callable[[], int], fs: FileSystem
    ) -> None:
        super().__init__(root, clock=clock, fs=fs)
        self.principal = check_principal(principal)
        self._unchecked = LogDir(root, clock=clock, fs=fs)
        self._authorizer_as_of: tuple[int | None, Authorizer] | None = None

    def refresh(self) -> None:
        super().refresh()
        if self.is_foreign:
            self._authorizer_as_of = None

    def _authorizer(self) -> Authorizer:
        """The entries as of the last refresh."""
        if self._authorizer_as_of is None or self._authorizer_as_of[0] != self.version:
            self._authorizer_as_of = self.version, AccessControl(self._unchecked).authorizer()
        return self._authorizer_as_of[1]

    def check(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """Raises AuthorizationError if the principal may not do `operation` on the resource."""
        self._authorizer().check(self.principal, operation, resource_type, name)

    def check_cluster(self, operation: AclOperation) -> None:
        self.check(operation, _CLUSTER, CLUSTER_NAME)

    def _check_create(self, topic: str) -> None:
        """Creating topics needs CREATE on the cluster, or on the topic."""
        authorizer = self._authorizer()
        if not authorizer.allows(self.principal, AclOperation.CREATE, _CLUSTER, CLUSTER_NAME):
            authorizer.check(self.principal, AclOperation.CREATE, _TOPIC, topic)

    # Describing

    def may_describe(self, topic: str) -> bool:
        """Whether the principal may see that the topic exists, and describe it."""
        return self._authorizer().allows(self.principal, AclOperation.DESCRIBE, _TOPIC, topic)

    def topics(self) -> tuple[str, ...]:
        return tuple(name for name in super().topics() if self.may_describe(name))

    def topic(self, name: str, *, without_links: bool = False) -> TopicDescription:
        """As kafka-topics describes it: without its configuration if the principal may not describe that."""
        self.check(AclOperation.DESCRIBE, _TOPIC, name)
        found = super().topic(name, without_links=without_links)
        if self._authorizer().allows(self.principal, AclOperation.DESCRIBE_CONFIGS, _TOPIC, name):
            return found
        return replace(found, configs={})

    def log_config(self, topic: str) -> LogConfig:
        self.check(AclOperation.DESCRIBE_CONFIGS, _TOPIC, topic)
        return super().log_config(topic)

    def config_for_write(self, topic: str) -> LogConfig:
        self.check_write(topic)
        return super().config_for_write(topic)

    def access_control(self) -> AccessControl:
        self.check_cluster(AclOperation.DESCRIBE)
        return super().access_control()

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        self.check(AclOperation.DESCRIBE, _TOPIC, topic)
        return super().partition_numbers(topic)

    def partition(self, topic: str, partition: int) -> PartitionDescription:
        self.check(AclOperation.DESCRIBE, _TOPIC, topic)
        return super().partition(topic, partition)

    def last_stable_offset(self, topic: str, partition: int) -> int:
        self.check(AclOperation.DESCRIBE, _TOPIC, topic)
        return super().last_stable_offset(topic, partition)

    def broker_configs(self) -> Mapping[str, str]:
        self.check_cluster(AclOperation.DESCRIBE_CONFIGS)
        return super().broker_configs()

    def history(
        self, *, topic: str | None = None, limit: int | None = None, newest_first: bool = True
    ) -> Iterator[HistoryEntry]:
        self.check_cluster(AclOperation.DESCRIBE)
        return super().history(topic=topic, limit=limit, newest_first=newest_first)

    def last_version(self, transactional_id: str) -> int | None:
        self.check(AclOperation.DESCRIBE, _ID, transactional_id)
        return super().last_version(transactional_id)

    # Reading and writing

    def check_read(self, topics: Collection[str]) -> None:
        for topic in topics:
            self.check(AclOperation.READ, _TOPIC, topic)

    def check_write(self, topic: str) -> None:
        self.check(AclOperation.WRITE, _TOPIC, topic)

    def reader(self, topic: str, partition: int) -> LogReader:
        self.check_read([topic])
        return super().reader(topic, partition)

    def commit_staged(
        self,
        staged: Sequence[StagedFile],
        *,
        transaction: WriteTransaction | None = None,
        flush: FlushMode = "fsync",
    ) -> CommitResult:
        for topic in sorted({each.topic_partition.topic for each in staged}):
            self.check_write(topic)
        return super().commit_staged(staged, transaction=transaction, flush=flush)

    def append(
        self,
        topic: str,
        records: pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        compression_type: str | None = None,
        transactional_id: str | None = None,
        transaction_version: int | None = None,
        flush: FlushMode = "fsync",
    ) -> CommitResult:
        self.check_write(topic)  # before anything is staged
        if transactional_id is not None:
            self.check(AclOperation.WRITE, _ID, transactional_id)
        return super().append(
            topic,
            records,
            partition=partition,
            compression_type=compression_type,
            transactional_id=transactional_id,
            transaction_version=transaction_version,
            flush=flush,
        )

    def init_transaction(self, transactional_id: str, incarnation: str) -> None:
        self.check(AclOperation.WRITE, _ID, transactional_id)
        super().init_transaction(transactional_id, incarnation)

    # Changing

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> TopicDescription:
        self._check_create(name)
        return self._unchecked.create_topic(name, partitions, configs)

    def ensure_topic(self, name: str) -> TopicDescription:
        if name not in self._unchecked.topics():
            self._check_create(name)
        return self._unchecked.ensure_topic(name)

    def add_partitions(self, name: str, total: int) -> None:
        self.check(AclOperation.ALTER, _TOPIC, name)
        super().add_partitions(name, total)

    def alter_topic(self, name: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        self.check(AclOperation.ALTER_CONFIGS, _TOPIC, name)
        super().alter_topic(name, add=add, delete=delete)

    def delete_topic(self, name: str) -> None:
        self.check(AclOperation.DELETE, _TOPIC, name)
        super().delete_topic(name)

    def alter_broker_configs(self, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        self.check_cluster(AclOperation.ALTER_CONFIGS)
        super().alter_broker_configs(add=add, delete=delete)

    def own_root(self) -> OwnRoot:
        self.check_cluster(AclOperation.ALTER)
        return super().own_root()

    # Consumer groups

    def group(self, group_id: str) -> Group:
        self.check(AclOperation.DESCRIBE, _GROUP, group_id)
        return _AuthorizedGroup(self._unchecked, group_id, self)

    def groups(self) -> tuple[str, ...]:
        authorizer = self._authorizer()
        return tuple(
            name
            for name in self._unchecked.groups()
            if authorizer.allows(self.principal, AclOperation.DESCRIBE, _GROUP, name)
        )


class _AuthorizedGroup(Group):
    """A group that the principal of the LogDir may describe; changes to it are checked."""

    def __init__(self, log_dir: LogDir, group_id: str, opened: AuthorizedLogDir) -> None:
        super().__init__(log_dir, group_id)
        self._opened = opened

    @property
    def log_dir(self) -> LogDir:
        return self._opened

    def fetch(self, topics: Collection[str] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """As Kafka's OffsetFetch: omits topics that the principal may not describe, and refuses them if named."""
        for topic in topics or ():
            self._opened.check(AclOperation.DESCRIBE, _TOPIC, topic)
        return {each: offset for each, offset in super().fetch(topics).items() if self._opened.may_describe(each.topic)}

    def commit(self, offsets: AnyOffsets, *arguments: Any, **named: Any) -> None:
        self._check_commit(offsets)
        super().commit(offsets, *arguments, **named)

    def reset(self, target: Any, partitions: Iterable[AnyPartition] | None = None, **named: Any) -> Any:
        chosen = None if partitions is None else [as_topic_partition(each) for each in partitions]
        self._check_commit(self.fetch() if chosen is None else chosen)
        return super().reset(target, chosen, **named)

    def delete_offsets(self, partitions: Iterable[AnyPartition]) -> Any:
        chosen = [as_topic_partition(each) for each in partitions]
        self._opened.check(AclOperation.DELETE, _GROUP, self.group_id)
        self._opened.check_read(sorted({each.topic for each in chosen}))
        return super().delete_offsets(chosen)

    def delete(self) -> None:
        self._opened.check(AclOperation.DELETE, _GROUP, self.group_id)
        super().delete()

    def expire_offsets(self, older_than_ms: int) -> Any:
        self._opened.check(AclOperation.DELETE, _GROUP, self.group_id)
        return super().expire_offsets(older_than_ms)

    def _check_commit(self, partitions: Iterable[AnyPartition]) -> None:
        """As Kafka's OffsetCommit: needs READ on the group and on each topic."""
        self._opened.check(AclOperation.READ, _GROUP, self.group_id)
        self._opened.check_read(sorted({as_topic_partition(each).topic for each in partitions}))
