"""`GuardedRoot`: a root opened for a principal, which refuses operations that the access control entries do not permit.

It forwards only the methods that it names, each after its check, or with no check because it reveals and changes
nothing. A method that is not named here does not exist. The checked operations and resources are those that a broker
passes to its authorizer. Topics that the principal may not describe are not listed. Work on the root as a whole
(maintenance, `native`) needs ALTER on the cluster. The id of a streaming query is generated, not chosen, and needs no
entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.root.staging import topics_of
from pyspark_kafkalog.security.access_control import AccessControl
from pyspark_kafkalog.storage.names import TopicPartition, check_principal

if TYPE_CHECKING:
    from pyspark_kafkalog.config.topic import LogConfig
    from pyspark_kafkalog.metadata.history import HistoryEntry
    from pyspark_kafkalog.object_store.location import RootPath
    from pyspark_kafkalog.root.native import NativeRoot
    from pyspark_kafkalog.root.planned import PlannedPartition
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot, TopicDescription
    from pyspark_kafkalog.root.staging import Staged, Staging
    from pyspark_kafkalog.root.write_transaction import CommitResult, WriteTransaction
    from pyspark_kafkalog.security.access_control import Authorizer
    from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
    from pyspark_kafkalog.storage.filesystem import FlushMode
    from pyspark_kafkalog.storage.log.reader import LogReader

_TOPIC, _CLUSTER, _ID = ResourceType.TOPIC, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID


class GuardedRoot:
    """A root whose methods raise AuthorizationError for operations that its principal may not do."""

    def __init__(self, root: Root, principal: str) -> None:
        self.principal = check_principal(principal)
        self._root = root
        self._authorizer_as_of: tuple[int | None, Authorizer] | None = None

    # Permissions

    def _authorizer(self) -> Authorizer:
        """The entries as of the last refresh."""
        if self._authorizer_as_of is None or self._authorizer_as_of[0] != self.version:
            self._authorizer_as_of = self.version, AccessControl(self._root).authorizer()
        return self._authorizer_as_of[1]

    def allows(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Whether the principal may do `operation` on the resource."""
        return self._authorizer().allows(self.principal, operation, resource_type, name)

    def check(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """Raises AuthorizationError if the principal may not do `operation` on the resource."""
        self._authorizer().check(self.principal, operation, resource_type, name)

    def check_cluster(self, operation: AclOperation) -> None:
        self.check(operation, _CLUSTER, CLUSTER_NAME)

    def check_read(self, topics: Collection[str]) -> None:
        for topic in topics:
            self.check(AclOperation.READ, _TOPIC, topic)

    def check_writable(self) -> None:
        self._root.check_writable()

    def check_write(self, topic: str) -> None:
        self.check(AclOperation.WRITE, _TOPIC, topic)
        self._root.check_write(topic)

    def check_transactional_id(self, transactional_id: str) -> None:
        self.check(AclOperation.WRITE, _ID, transactional_id)

    def _check_create(self, topic: str) -> None:
        """Creating topics needs CREATE on the cluster, or on the topic."""
        if not self.allows(AclOperation.CREATE, _CLUSTER, CLUSTER_NAME):
            self.check(AclOperation.CREATE, _TOPIC, topic)

    def coordinator_root(self) -> Root:
        """The root without checks, for the package `groups` alone, which checks operations on groups itself.

        A broker's group coordinator also reads and writes `__consumer_offsets` by its own authority.
        """
        return self._root

    # The root as a whole

    @property
    def path(self) -> RootPath:
        return self._root.path

    @property
    def directories(self) -> tuple[Path, ...]:
        return self._root.directories

    @property
    def is_broker_directory(self) -> bool:
        return self._root.is_broker_directory

    @property
    def identity(self) -> RootIdentity | None:
        return self._root.identity

    @property
    def follows(self) -> str | None:
        return self._root.follows

    @property
    def version(self) -> int | None:
        return self._root.version

    def refresh(self) -> None:
        self._root.refresh()
        if self.is_broker_directory:
            self._authorizer_as_of = None

    def history(
        self, *, topic: str | None = None, limit: int | None = None, newest_first: bool = True
    ) -> Iterator[HistoryEntry]:
        self.check_cluster(AclOperation.DESCRIBE)
        return self._root.history(topic=topic, limit=limit, newest_first=newest_first)

    def native(self) -> NativeRoot:
        self.check_cluster(AclOperation.ALTER)
        return self._root.native()

    # Topics

    def topics(self) -> tuple[str, ...]:
        return tuple(name for name in self._root.topics() if self.allows(AclOperation.DESCRIBE, _TOPIC, name))

    def topic(self, name: str, *, readable_only: bool = False) -> TopicDescription:
        """As kafka-topics describes it: without its configuration if the principal may not describe that."""
        self.check(AclOperation.DESCRIBE, _TOPIC, name)
        found = self._root.topic(name, readable_only=readable_only)
        return found if self.allows(AclOperation.DESCRIBE_CONFIGS, _TOPIC, name) else replace(found, configs={})

    def log_config(self, topic: str) -> LogConfig:
        self.check(AclOperation.DESCRIBE_CONFIGS, _TOPIC, topic)
        return self._root.log_config(topic)

    def config_for_write(self, topic: str) -> LogConfig:
        self.check_write(topic)
        return self._root.config_for_write(topic)

    def broker_configs(self) -> Mapping[str, str]:
        self.check_cluster(AclOperation.DESCRIBE_CONFIGS)
        return self._root.broker_configs()

    def alter_broker_configs(self, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        self.check_cluster(AclOperation.ALTER_CONFIGS)
        self._root.alter_broker_configs(add=add, delete=delete)

    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        return {
            group_id: configs
            for group_id, configs in self._root.group_configs().items()
            if self.allows(AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP, group_id)
        }

    def alter_group_configs(
        self, group_id: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()
    ) -> None:
        self.check(AclOperation.ALTER_CONFIGS, ResourceType.GROUP, group_id)
        self._root.alter_group_configs(group_id, add=add, delete=delete)

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> TopicDescription:
        self._check_create(name)
        return self._root.create_topic(name, partitions, configs)

    def ensure_topic(self, name: str) -> TopicDescription:
        if name not in self._root.topics():
            self._check_create(name)
        return self._root.ensure_topic(name)

    def add_partitions(self, name: str, total: int) -> None:
        self.check(AclOperation.ALTER, _TOPIC, name)
        self._root.add_partitions(name, total)

    def alter_topic(self, name: str, *, add: Mapping[str, str] | None = None, delete: Collection[str] = ()) -> None:
        self.check(AclOperation.ALTER_CONFIGS, _TOPIC, name)
        self._root.alter_topic(name, add=add, delete=delete)

    def delete_topic(self, name: str) -> None:
        self.check(AclOperation.DELETE, _TOPIC, name)
        self._root.delete_topic(name)

    # Reading

    def topic_name(self, topic_id: str) -> str | None:
        name = self._root.topic_name(topic_id)
        return name if name is not None and self.allows(AclOperation.DESCRIBE, _TOPIC, name) else None

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        self.check(AclOperation.DESCRIBE, _TOPIC, topic)
        return self._root.partition_numbers(topic)

    def partition(self, topic: str, partition: int) -> PartitionSnapshot:
        self.check(AclOperation.DESCRIBE, _TOPIC, topic)
        return self._root.partition(topic, partition)

    def partitions_read(self) -> tuple[PartitionSnapshot, ...]:
        return self._root.partitions_read()

    def reader(self, topic: str, partition: int) -> LogReader:
        self.check_read([topic])
        return self._root.reader(topic, partition)

    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> PlannedPartition:
        self.check_read([topic_partition.topic])
        return self._root.planned_partition(topic_partition, topic_id)

    # Writing

    def staging(self, write_id: str, *, flush: FlushMode = "fsync") -> Staging:
        return self._root.staging(write_id, flush=flush)

    def commit_staged(
        self,
        staged: Sequence[Staged],
        *,
        transaction: WriteTransaction | None = None,
        flush: FlushMode = "fsync",
    ) -> CommitResult:
        for topic in sorted(topics_of(staged)):
            self.check_write(topic)
        return self._root.commit_staged(staged, transaction=transaction, flush=flush)

    def init_transaction(self, transactional_id: str, incarnation: str) -> None:
        self.check_transactional_id(transactional_id)
        self._root.init_transaction(transactional_id, incarnation)

    def has_transactional_id(self, transactional_id: str) -> bool:
        return self._root.has_transactional_id(transactional_id)

    def last_version(self, transactional_id: str) -> int | None:
        self.check(AclOperation.DESCRIBE, _ID, transactional_id)
        return self._root.last_version(transactional_id)

    def has_committed(self, transaction: WriteTransaction) -> bool:
        self.check(AclOperation.DESCRIBE, _ID, transaction.transactional_id)
        return self._root.has_committed(transaction)
