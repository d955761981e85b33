"""Opens log directories: the one place that decides which kind of `Root` a path has, and guards it for a principal.

`GuardedRoot` is a root opened for a principal: it refuses operations that the access control entries do not permit. It
has only the methods that this module names: in a table with the check that each needs, or, if a check is not all, in
the class. A method that is not named here does not exist. The checked operations and resources are those that a broker
passes to its authorizer. Topics that the principal may not describe are not listed. Work on the root as a whole
(maintenance, `native`) needs ALTER on the cluster. The id of a streaming query is generated, not chosen, and needs no
entry.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pyspark_kafkalog.errors import InvalidOptionError, LogDirError
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.root_format import is_native_root
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import ObjectLocation, RootPath, check_path, is_object_url, parse_location
from pyspark_kafkalog.root.bootstrap import create_root, is_vacant
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.writes import topics_of
from pyspark_kafkalog.security.access_control import AccessControl
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity, another_root_error, check_identity
from pyspark_kafkalog.storage.below_root import split_paths
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, time_ms
from pyspark_kafkalog.storage.names import TopicPartition, check_principal
from pyspark_kafkalog.threads import bound_address_space

if TYPE_CHECKING:
    from pyspark_kafkalog.root.commit.staging import Staged
    from pyspark_kafkalog.root.object_root import ObjectRoot
    from pyspark_kafkalog.root.planned import PlannedPartition
    from pyspark_kafkalog.root.snapshot import TopicDescription
    from pyspark_kafkalog.root.writes import CommitResult, WriteTransaction
    from pyspark_kafkalog.security.access_control import Authorizer
    from pyspark_kafkalog.storage.filesystem import FlushMode
    from pyspark_kafkalog.tiered.remote_storage import RemoteStorageOption

_LOG: Final = logging.getLogger(__name__)
_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})

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

#: What names a log directory: a path or URL, an address with settings, or several paths of brokers' directories.
AnyPath: TypeAlias = str | RootPath | StoreAddress | Sequence[str | Path]


def open_root(
    path: AnyPath | None,
    *,
    principal: str | None = None,
    read_to_log_end: bool = False,
    remote_storage: RemoteStorageOption | None = None,
    store_options: Mapping[str, str] = _NO_OPTIONS,
    identity: RootIdentity | None = None,
    clock: Callable[[], int] = time_ms,
    fs: FileSystem = LOCAL,
) -> Root:
    """Open the log directory at `path`, native or a broker's; or several directories of brokers as one root.

    Several directories are a sequence of paths, or one path with commas between them. With a `principal`, such as
    "User:ann", methods raise AuthorizationError for operations that the access control entries do not permit. With
    `read_to_log_end`, a broker's logs are read up to the last complete, valid batch instead of the high watermark of
    the broker's checkpoint, which may be older than the logs. With `remote_storage`, the logs include what the broker
    tiered there; without a `path`, the root is the remote storage alone. `store_options` are those of the store that a
    native log directory on a file system has copied segments to (object_store/settings).

    Raises LogDirError if `path` is not a log directory, cannot be read, or does not have the given `identity`,
    InvalidOptionError for a URL that names no place for log directories.
    """
    bound_address_space()
    if path is None:
        root = _open_remote_storage(remote_storage)
        return _guarded(root, principal)
    if not isinstance(path, (str, Path, ObjectLocation, StoreAddress)) and len(path) == 1:
        (path,) = path
    place = _place_of(path) if isinstance(path, (str, Path, ObjectLocation, StoreAddress)) else _paths(path)
    if isinstance(place, StoreAddress):
        return _open_object_root(
            place, principal, identity, clock=clock, is_broker=read_to_log_end or remote_storage is not None
        )
    paths = split_paths(place) if isinstance(place, Path) else place
    if len(paths) != 1:
        _check_several(paths)
        root = _open_brokers(
            paths, identity, clock=clock, read_to_log_end=read_to_log_end, remote_storage=remote_storage
        )
        return _guarded(root, principal)
    (path,) = paths
    check_identity(path, identity)
    if is_native_root(path):
        root = _open_native(path, read_to_log_end, remote_storage, store_options, clock=clock, fs=fs)
    else:
        try:
            root = _open_brokers(
                paths, None, clock=clock, read_to_log_end=read_to_log_end, remote_storage=remote_storage
            )
        except LogDirError:
            if not is_native_root(path):
                raise
            # It was created, or adopted, this moment.
            root = _open_native(path, read_to_log_end, remote_storage, store_options, clock=clock, fs=fs)
    return _guarded(root, principal)


def _guarded(root: Root, principal: str | None) -> Root:
    return root if principal is None else cast(Root, GuardedRoot(root, principal))


def _open_native(
    path: Path,
    read_to_log_end: bool,
    remote_storage: RemoteStorageOption | None,
    store_options: Mapping[str, str],
    *,
    clock: Callable[[], int],
    fs: FileSystem,
) -> FileRoot:
    root = FileRoot(LocalMetadataStore.open(path, clock=clock, fs=fs), clock=clock, fs=fs, store_options=store_options)
    if read_to_log_end:
        _LOG.warning("%s is not a broker's: reading to the log end has no effect, all is committed there", path)
    if remote_storage is not None:
        raise InvalidOptionError(
            f"{path} is not a broker's: leave out the remote storage; a native log directory knows its own "
            "(rsm.config.location), which is read in any case"
        )
    return root


def _place_of(path: str | RootPath | StoreAddress) -> StoreAddress | Path:
    """Where a root is; one in an object store with the environment's settings if `path` has none."""
    if isinstance(path, StoreAddress):
        return path
    place = parse_location(path) if isinstance(path, str) else path
    return check_path(place) if isinstance(place, Path) else StoreAddress.parse(place.url, {})


def _open_object_root(
    address: StoreAddress,
    principal: str | None,
    identity: RootIdentity | None,
    *,
    clock: Callable[[], int],
    is_broker: bool,
) -> Root:
    if is_broker:
        raise InvalidOptionError(f"{address}: reading to the log end and remote storage are for brokers' directories")
    root = _object_roots()(address, clock=clock)
    if identity is not None and not identity.fits(root.identity):
        raise another_root_error(address.location, identity, root.identity)
    return _guarded(root, principal)


def _paths(several: Sequence[str | Path]) -> tuple[Path, ...]:
    for each in several:
        if isinstance(each, str) and is_object_url(each):
            raise LogDirError(f"{each}: several directories can only be brokers', on a file system; open it alone")
    return tuple(map(Path, several))


def _check_several(paths: Sequence[Path]) -> None:
    if not paths:
        raise LogDirError("no path is given: name a log directory")
    for path in paths:
        if is_native_root(path):
            raise LogDirError(f"{path} is not a broker's directory: of several directories each must be; open it alone")


def _open_brokers(
    paths: Sequence[Path],
    identity: RootIdentity | None,
    *,
    clock: Callable[[], int],
    read_to_log_end: bool,
    remote_storage: RemoteStorageOption | None,
) -> Root:
    """See `open_brokers`."""
    from pyspark_kafkalog.root.brokers.broker_directories import open_brokers  # no native root needs it

    return open_brokers(paths, identity, clock=clock, read_to_log_end=read_to_log_end, remote_storage=remote_storage)


def _open_remote_storage(remote_storage: RemoteStorageOption | None) -> Root:
    if remote_storage is None:
        raise LogDirError("no path is given: name a log directory, or the remote storage of a broker")
    from pyspark_kafkalog.root.brokers.remote_storage_root import RemoteStorageRoot  # few reads have no path

    return RemoteStorageRoot(remote_storage)


def _object_roots() -> type[ObjectRoot]:
    """The class of roots in object stores."""
    from pyspark_kafkalog.root.object_root import ObjectRoot  # no root on a file system needs it

    return ObjectRoot


def create_native_root(
    path: str | RootPath | StoreAddress, *, clock: Callable[[], int] = time_ms, fs: FileSystem = LOCAL
) -> NativeRoot:
    """Create an empty native log directory at `path` and open it.

    Raises LogDirError if `path` is already a native log directory or cannot be created, ReadOnlyLogDirError if it
    contains a broker's files.
    """
    place = _place_of(path)
    if isinstance(place, StoreAddress):
        return _object_roots().create(place, clock=clock)
    return FileRoot(create_root(place, clock=clock, fs=fs), clock=clock, fs=fs)


def find_root(
    path: str | RootPath | StoreAddress, *, principal: str | None = None, clock: Callable[[], int] = time_ms
) -> Root | None:
    """The root at `path`; None if there is none, or one whose creation was not finished."""
    place = _place_of(path)
    if isinstance(place, StoreAddress):
        try:
            return _open_object_root(place, principal, None, clock=clock, is_broker=False)
        except LogDirError:
            if _object_roots().is_vacant(place):
                return None
            raise
    try:
        return None if is_vacant(place) else open_root(place, principal=principal, clock=clock)
    except LogDirError:
        if not is_native_root(place):
            raise
        return None


def open_or_create_root(
    path: str | RootPath | StoreAddress,
    *,
    principal: str | None = None,
    clock: Callable[[], int] = time_ms,
    fs: FileSystem = LOCAL,
) -> Root:
    """Open the log directory at `path`; create a native one if `path` does not exist or is an empty directory.

    Concurrent calls are safe, and a call completes a creation that a crash interrupted. `principal` is as for
    `open_root`. A creation logs a warning: the path may be mistyped.
    """
    bound_address_space()
    place = _place_of(path)
    if isinstance(place, StoreAddress):
        root = find_root(place, principal=principal, clock=clock)
        if root is not None:
            return root
        try:
            return _guarded(_created(place, clock=clock), principal)
        except LogDirError:
            root = find_root(place, principal=principal, clock=clock)
            if root is None:  # no other process created it meanwhile
                raise
            return root
    if not is_vacant(place):
        try:
            return open_root(place, principal=principal, clock=clock, fs=fs)
        except LogDirError:
            if not is_native_root(place):
                raise
    try:
        return _guarded(_created(place, clock=clock, fs=fs), principal)
    except LogDirError:
        if is_vacant(place):  # no other process created it meanwhile
            raise
        return open_root(place, principal=principal, clock=clock, fs=fs)


def _created(place: Path | StoreAddress, *, clock: Callable[[], int], fs: FileSystem = LOCAL) -> NativeRoot:
    root = create_native_root(place, clock=clock, fs=fs)
    _LOG.warning("created the log directory %s, as there was none", root.path)
    return root


def open_access_control(root: Root) -> AccessControl:
    """The access control entries of `root`. Raises AuthorizationError without DESCRIBE on the cluster."""
    root.check(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    return AccessControl(root)


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
        self, staged: Sequence[Staged], *, transaction: WriteTransaction | None = None, flush: FlushMode = "fsync"
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
