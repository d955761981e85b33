"""Creates a native root: the files or objects that mark it, and the first commit.

*On a file system* they are created under the root's lock, each file atomically, in this order: the commit log's
directory, the marker `kafkalog-format` (metadata/root_format.py), partition.metadata, meta.properties, the first
commit. After a crash between two of them, the next `create_root` finishes the root: with the marker it is recognized as
native, and before the marker it contains nothing that a Kafka broker would have created.

A root in an object store is created by `object_root.create_object_root`, with the same first records.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError, ReadOnlyLogDirError
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.local.log import LocalCommitLog
from pyspark_kafkalog.metadata.messages.metadata_records import (
    CommitRecord,
    FeatureLevelRecord,
    FormatRecord,
    MetadataRecord,
    RegisterBrokerRecord,
)
from pyspark_kafkalog.metadata.root_format import (
    FORMAT_MARKER,
    FORMAT_VERSION,
    HEAD_FILE,
    METADATA_DIR,
    OBJECT_FORMAT_VERSION,
    OffsetHint,
    is_native_root,
    mark_unfinished_copy,
    metadata_dir,
    refuse_unfinished_copy,
    write_marker,
)
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE, root_lock
from pyspark_kafkalog.metadata.store import Clock
from pyspark_kafkalog.storage.artefacts.marker_files import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
    write_topic_id,
)
from pyspark_kafkalog.storage.below_root import split_paths
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, time_ms
from pyspark_kafkalog.storage.names import META_PROPERTIES, PARTITION_METADATA, parse_partition_dir, random_uuid

#: The id that Kafka reserves for the metadata topic (Uuid.METADATA_TOPIC_ID).
METADATA_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
DEFAULT_NODE_ID: Final = 1

_FIRST_OFFSET: Final = 0
METADATA_VERSION_FEATURE: Final = "metadata.version"
METADATA_VERSION_4_1: Final = 27  # MetadataVersion.IBP_4_1_IV1
_CREATE_OPERATION: Final = "create root"


def begin_copy(root: Path, *, fs: FileSystem) -> None:
    """Mark `root`, which must be empty or an unfinished copy, as an unfinished copy, durably."""
    directory = metadata_dir(root)
    make_dir(directory, fs)
    mark_unfinished_copy(directory, fs)
    write_topic_id(directory / PARTITION_METADATA, METADATA_TOPIC_ID, fs=fs)
    fs.fsync_dir(root)


def create_root(
    root: Path,
    *,
    cluster_id: str | None = None,
    node_id: int = DEFAULT_NODE_ID,
    clock: Clock = time_ms,
    rng: random.Random | None = None,
    fs: FileSystem = LOCAL,
) -> LocalMetadataStore:
    """Create a native root at `root`, or finish a creation that a crash interrupted, whose ids are kept; open it.

    Without `cluster_id` the id is random. Raises LogDirError if `root` is native and finished or cannot be created,
    ReadOnlyLogDirError if it contains a Kafka broker's files.
    """
    if len(split_paths(root)) > 1:
        raise LogDirError(
            f"{root} names several directories, and one of them exists: create a log directory at one path"
        )
    rng = rng if rng is not None else random.SystemRandom()
    make_dir(root, fs)
    with root_lock(root, is_new=True, fs=fs):
        _refuse_broker_directory(root)
        directory = metadata_dir(root)
        refuse_unfinished_copy(directory)
        make_dir(directory, fs)
        log = LocalCommitLog(directory, fs=fs)
        if next(log.listed_offsets(), None) is not None:  # the first one may have been removed
            raise LogDirError(f"{root} is already a log directory: open it")
        write_marker(directory, fs)
        OffsetHint(directory / HEAD_FILE, fs).create(_FIRST_OFFSET)
        write_topic_id(directory / PARTITION_METADATA, METADATA_TOPIC_ID, fs=fs)
        properties = _write_ids(root, cluster_id, node_id, rng, fs)
        log.publish(_FIRST_OFFSET, first_records(properties, rng), timestamp_ms=clock())
    return LocalMetadataStore.open(root, clock=clock, rng=rng, fs=fs)


def make_dir(directory: Path, fs: FileSystem) -> None:
    """Create `directory` and its missing parents. Raises LogDirError if that is not possible."""
    if not directory.parent.exists():
        make_dir(directory.parent, fs)
    try:
        fs.mkdir(directory)
        fs.fsync_dir(directory.parent)
    except FileExistsError:
        pass
    except OSError as error:
        raise LogDirError(error.errno, f"cannot create the directory: {error.strerror}", str(directory)) from error
    if not directory.is_dir():
        raise LogDirError(f"{directory} is not a directory")


def is_vacant(root: Path) -> bool:
    """Whether a native root can be created at `root`: it is missing, empty, or a creation has just begun.

    A path that names several directories is not.
    """
    if not root.exists():
        return len(split_paths(root)) == 1
    return root.is_dir() and all(entry.name == LOCK_FILE or _is_begun(entry) for entry in root.iterdir())


def _is_begun(entry: Path) -> bool:
    """Whether this is a commit log's directory as a crash before writing the marker leaves it."""
    return (
        entry.name == METADATA_DIR
        and entry.is_dir()
        and not entry.is_symlink()
        and all(child.name.startswith(FORMAT_MARKER) for child in entry.iterdir())
    )


def _refuse_broker_directory(root: Path) -> None:
    if is_native_root(root):
        return
    for entry in root.iterdir():
        if entry.name == META_PROPERTIES or (parse_partition_dir(entry.name) is not None and not _is_begun(entry)):
            raise ReadOnlyLogDirError(
                f"{root} contains {entry.name}, so it is a Kafka broker's log directory, which is only read"
            )


def _write_ids(root: Path, cluster_id: str | None, node_id: int, rng: random.Random, fs: FileSystem) -> MetaProperties:
    path = root / META_PROPERTIES
    if path.exists():
        return read_meta_properties(path)
    properties = MetaProperties(
        cluster_id=cluster_id if cluster_id is not None else random_uuid(rng),
        node_id=node_id,
        directory_id=random_uuid(rng),
    )
    write_meta_properties(path, properties, fs=fs)
    return properties


def first_records(
    properties: MetaProperties, rng: random.Random, *, format_version: int = FORMAT_VERSION
) -> tuple[MetadataRecord, ...]:
    """The records of the first commit."""
    log_dirs = () if properties.directory_id is None else (properties.directory_id,)
    return (
        CommitRecord(commit_id=random_uuid(rng), operation=_CREATE_OPERATION),
        FormatRecord(format_version=format_version, is_object_root=format_version == OBJECT_FORMAT_VERSION),
        FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION_4_1),
        RegisterBrokerRecord(
            broker_id=DEFAULT_NODE_ID if properties.node_id is None else properties.node_id,
            incarnation_id=random_uuid(rng),
            rack=None,
            fenced=False,
            log_dirs=log_dirs,
        ),
    )
