"""Making a root: the files that say it is ours, and the first commit.

In this order, under the root's lock, each file whole or not there: the metadata partition's directory, the marker
`kafkalog-format` (root_format.py), partition.metadata, meta.properties, the first commit. A crash between two leaves a
root that the next `create_root` finishes: with the marker it is ours, before it there is nothing a Kafka broker would
have made.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError, ReadOnlyLogDirError
from pyspark_kafkalog.metadata.commit_log import HEAD_FILE, CommitLog
from pyspark_kafkalog.metadata.records import MetadataRecord, record
from pyspark_kafkalog.metadata.root_format import (
    FORMAT_MARKER,
    FORMAT_VERSION,
    is_unfinished_copy,
    mark_unfinished_copy,
    refuse_unfinished_copy,
    write_marker,
)
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE, root_lock
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.meta_properties import MetaProperties, read_meta_properties, write_meta_properties
from pyspark_kafkalog.storage.names import (
    CLUSTER_METADATA_TOPIC,
    META_PROPERTIES,
    PARTITION_METADATA,
    encode_uuid,
    parse_partition_dir,
)
from pyspark_kafkalog.storage.partition_metadata import write_topic_id

METADATA_DIR: Final = f"{CLUSTER_METADATA_TOPIC}-0"
#: The id that Kafka reserves for the metadata topic (Uuid.METADATA_TOPIC_ID).
METADATA_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
DEFAULT_NODE_ID: Final = 1

_FIRST_OFFSET: Final = 0
_METADATA_VERSION_FEATURE: Final = "metadata.version"
_METADATA_VERSION_4_1: Final = 27  # MetadataVersion.IBP_4_1_IV1
_CREATE_OPERATION: Final = "create root"


def metadata_dir(root: Path) -> Path:
    """The commit log's directory in `root`."""
    return root / METADATA_DIR


def is_ours(root: Path) -> bool:
    """Whether `root` has a metadata log of this package: its marker file, or the hint that the commits of one leave.

    Were the marker alone asked, a root that lost it would be read as a broker's, past what was committed.
    """
    directory = metadata_dir(root)
    return (directory / FORMAT_MARKER).is_file() or (directory / HEAD_FILE).is_file()


def is_copied(root: Path) -> bool:
    """Whether `root` is an unfinished copy: being made by an export, or left by one that was killed."""
    return is_unfinished_copy(metadata_dir(root))


def begin_copy(root: Path, *, fs: FileSystem) -> None:
    """Mark `root`, which is empty or an unfinished copy, as an unfinished copy, durably."""
    directory = metadata_dir(root)
    make_dir(directory, fs)
    mark_unfinished_copy(directory, fs)
    write_topic_id(directory / PARTITION_METADATA, METADATA_TOPIC_ID, fs=fs)
    fs.fsync_dir(root)


def random_uuid(rng: random.Random) -> str:
    """A random Uuid in Kafka's text form; as with Kafka, none that begins with a dash: tools take it for an option."""
    while True:
        text = encode_uuid(uuid.UUID(bytes=rng.randbytes(16), version=4).bytes)
        if not text.startswith("-"):
            return text


def create_root(
    root: Path, *, cluster_id: str | None, node_id: int, timestamp_ms: int, rng: random.Random, fs: FileSystem
) -> None:
    """Make `root` ours, or finish what a crash left. Ids that are there already, of an unfinished root, are kept.

    Raises LogDirError when it is ours and finished, ReadOnlyLogDirError when a Kafka broker's files are in it.
    """
    make_dir(root, fs)
    with root_lock(root, is_new=True, fs=fs):
        _refuse_foreign(root)
        directory = metadata_dir(root)
        refuse_unfinished_copy(directory)
        make_dir(directory, fs)
        log = CommitLog(directory, fs=fs)
        if next(log.listed_offsets(), None) is not None:  # the first one may have been retired
            raise LogDirError(f"{root} is a log directory already: open it")
        write_marker(directory, fs)
        write_topic_id(directory / PARTITION_METADATA, METADATA_TOPIC_ID, fs=fs)
        properties = _write_ids(root, cluster_id, node_id, rng, fs)
        log.publish(_FIRST_OFFSET, _first_records(properties, rng), timestamp_ms=timestamp_ms)


def make_dir(directory: Path, fs: FileSystem) -> None:
    """Make `directory`, and what is missing above it."""
    if not directory.parent.exists():
        make_dir(directory.parent, fs)
    with contextlib.suppress(FileExistsError):
        fs.mkdir(directory)
        fs.fsync_dir(directory.parent)
    if not directory.is_dir():
        raise LogDirError(f"{directory} is not a directory")


def is_vacant(root: Path) -> bool:
    """Whether a root of ours may be made at `root`: nothing is there, an empty directory, or one just begun."""
    if not root.exists():
        return True
    return root.is_dir() and all(entry.name == LOCK_FILE or _is_begun(entry) for entry in root.iterdir())


def _is_begun(entry: Path) -> bool:
    """Whether it is a metadata log's directory of ours as a crash before the marker leaves it."""
    return (
        entry.name == METADATA_DIR
        and entry.is_dir()
        and all(child.name.startswith(FORMAT_MARKER) for child in entry.iterdir())
    )


def _refuse_foreign(root: Path) -> None:
    if is_ours(root):
        return
    for entry in root.iterdir():
        if entry.name == META_PROPERTIES or (parse_partition_dir(entry.name) is not None and not _is_begun(entry)):
            raise ReadOnlyLogDirError(
                f"{root} holds {entry.name}, so it is a Kafka broker's log directory: it can be read, not written to"
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


def _first_records(properties: MetaProperties, rng: random.Random) -> tuple[MetadataRecord, ...]:
    log_dirs = () if properties.directory_id is None else (properties.directory_id,)
    return (
        record("CommitRecord", commitId=random_uuid(rng), operation=_CREATE_OPERATION),
        record("FormatRecord", formatVersion=FORMAT_VERSION),
        record("FeatureLevelRecord", name=_METADATA_VERSION_FEATURE, featureLevel=_METADATA_VERSION_4_1),
        record(
            "RegisterBrokerRecord",
            brokerId=properties.node_id,
            incarnationId=random_uuid(rng),
            rack=None,
            fenced=False,
            logDirs=log_dirs,
        ),
    )
