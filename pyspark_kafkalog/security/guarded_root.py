"""`GuardedRoot`: a root opened for a principal, which refuses operations that the access control entries do not permit.

It has only the methods that this module names: in a table with the check that each needs, or, if a check is not all, in
the class. A method that is not named here does not exist. The checked operations and resources are those that a broker
passes to its authorizer. Topics that the principal may not describe are not listed. Work on the root as a whole
(maintenance, `native`) needs ALTER on the cluster. The id of a streaming query is generated, not chosen, and needs no
entry.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.writes import topics_of
from pyspark_kafkalog.security.access_control import AccessControl
from pyspark_kafkalog.storage.names import TopicPartition, check_principal

if TYPE_CHECKING:
    from pyspark_kafkalog.root.snapshot import PlannedPartition, TopicDescription
    from pyspark_kafkalog.root.writes import CommitResult, Staged, WriteTransaction
    from pyspark_kafkalog.security.access_control import Authorizer
    from pyspark_kafkalog.storage.filesystem import FlushMode

_TOPIC, _CLUSTER, _ID = ResourceType.TOPIC, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID

#: What a method needs: an operation, on a resource of a type that its first argument names; or on the cluster.
_CHECKED: Final[Mapping[str, tuple[AclOperation, ResourceType]]] = {
    "history": (AclOperation.DESCRIBE, _CLUSTER),
    "native": (AclOperation.ALTER, _CLUSTER),
    "broker_configs": (AclOperation.DESCRIBE_CONFIGS, _CLUSTER),
    "alter_broker_configs": (AclOperation.ALTER_CONFIGS, _CLUSTER),
    "alter_group_configs": (AclOperation.ALTER_CONFIGS, ResourceType.GROUP),
    "log_config": (AclOperation.DESCRIBE_CONFIGS, _TOPIC),
    "is_compacted": (AclOperation.DESCRIBE_CONFIGS, _TOPIC),
    "config_for_write": (AclOperation.WRITE, _TOPIC),
    "add_partitions": (AclOperation.ALTER, _TOPIC),
    "alter_topic": (AclOperation.ALTER_CONFIGS, _TOPIC),
    "delete_topic": (AclOperation.DELETE, _TOPIC),
    "partition_numbers": (AclOperation.DESCRIBE, _TOPIC),
    "partition": (AclOperation.DESCRIBE, _TOPIC),
    "high_watermark": (AclOperation.DESCRIBE, _TOPIC),
    "reader": (AclOperation.READ, _TOPIC),
    "init_transaction": (AclOperation.WRITE, _ID),
    "last_version": (AclOperation.DESCRIBE, _ID),
}
#: These reveal nothing that the principal may not know, and change nothing.
_FREE: Final = (
    *("path", "directories", "is_broker_directory", "follows", "identity", "version", "check_writable"),
    *("has_broker_coordinator", "has_broker_configs", "partitions_read", "staging", "has_transactional_id"),
)


class GuardedRoot:
    """A root whose methods raise AuthorizationError for operations that its principal may not do."""

    def __init__(self, root: Root, principal: str) -> None:
        self.principal = check_principal(principal)
        self._root = root
        self._authorizer_as_of: tuple[int | None, Authorizer] | None = None

    def _authorizer(self) -> Authorizer:
        """The entries as of the last refresh."""
        version = self._root.version
        if self._authorizer_as_of is None or self._authorizer_as_of[0] != version:
            self._authorizer_as_of = version, AccessControl(self._root).authorizer()
        return self._authorizer_as_of[1]

    def allows(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        return self._authorizer().allows(self.principal, operation, resource_type, name)

    def check(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        self._authorizer().check(self.principal, operation, resource_type, name)

    def _check_create(self, topic: str) -> None:
        """Creating topics needs CREATE on the cluster, or on the topic."""
        if not self.allows(AclOperation.CREATE, _CLUSTER, CLUSTER_NAME):
            self.check(AclOperation.CREATE, _TOPIC, topic)

    def coordinator_root(self) -> Root:
        return self._root

    def refresh(self) -> None:
        self._root.refresh()
        if self._root.version is None:  # nothing tells whether the entries have changed
            self._authorizer_as_of = None

    # Methods that return only what the principal may describe

    def topics(self) -> tuple[str, ...]:
        return tuple(name for name in self._root.topics() if self.allows(AclOperation.DESCRIBE, _TOPIC, name))

    def topic(self, name: str, *, readable_only: bool = False) -> TopicDescription:
        """As kafka-topics describes it: without its configuration if the principal may not describe that."""
        self.check(AclOperation.DESCRIBE, _TOPIC, name)
        found = self._root.topic(name, readable_only=readable_only)
        return found if self.allows(AclOperation.DESCRIBE_CONFIGS, _TOPIC, name) else replace(found, configs={})

    def topic_name(self, topic_id: str) -> str | None:
        name = self._root.topic_name(topic_id)
        return name if name is not None and self.allows(AclOperation.DESCRIBE, _TOPIC, name) else None

    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        return {
            group_id: configs
            for group_id, configs in self._root.group_configs().items()
            if self.allows(AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP, group_id)
        }

    # Methods whose check is not an operation on the resource that the first argument names

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> TopicDescription:
        self._check_create(name)
        return self._root.create_topic(name, partitions, configs)

    def ensure_topic(self, name: str) -> TopicDescription:
        if name not in self._root.topics():
            self._check_create(name)
        return self._root.ensure_topic(name)

    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> PlannedPartition:
        self.check(AclOperation.READ, _TOPIC, topic_partition.topic)
        return self._root.planned_partition(topic_partition, topic_id)

    def commit_staged(
        self,
        staged: Sequence[Staged],
        *,
        transaction: WriteTransaction | None = None,
        flush: FlushMode = "fsync",
    ) -> CommitResult:
        for topic in sorted(topics_of(staged)):
            self.check(AclOperation.WRITE, _TOPIC, topic)
        return self._root.commit_staged(staged, transaction=transaction, flush=flush)

    def has_committed(self, transaction: WriteTransaction) -> bool:
        self.check(AclOperation.DESCRIBE, _ID, transaction.transactional_id)
        return self._root.has_committed(transaction)


def _forwarded(name: str, needed: tuple[AclOperation, ResourceType] | None) -> object:
    """The member `name` of Root, forwarded to the root beneath, after its check if something is `needed`."""
    member = inspect.getattr_static(Root, name)
    if isinstance(member, property):
        return property(lambda self: getattr(self._root, name), doc=member.__doc__)
    first = next(iter(list(inspect.signature(member).parameters)[1:]), "")

    @functools.wraps(member)
    def method(self: GuardedRoot, *args: Any, **kwargs: Any) -> Any:
        if needed is not None:
            operation, resource_type = needed
            is_cluster = resource_type is _CLUSTER
            self.check(operation, resource_type, CLUSTER_NAME if is_cluster else (args[0] if args else kwargs[first]))
        return getattr(self._root, name)(*args, **kwargs)

    return method


for _name, _needed in (*_CHECKED.items(), *((name, None) for name in _FREE)):
    setattr(GuardedRoot, _name, _forwarded(_name, _needed))
