"""The small files that identify a root and a partition directory, or show whether a broker runs or was stopped.

`meta.properties` in the root of a log directory: the ids of its cluster, node and directory. A Java properties file,
written once, when the directory is formatted.

    version=1                 0 before KRaft: broker.id instead of node.id, and no field is required
    cluster.id=<Uuid>
    node.id=<int>
    directory.id=<Uuid>       since Kafka 3.7

`partition.metadata` of a partition directory: the id of its topic, which distinguishes a re-created topic from the
deleted one of the same name. No newline after the last line.

    version: 0
    topic_id: <22 characters base64url>

`.kafka_cleanshutdown` in the root: the broker was stopped cleanly, and no recovery is needed. Only its presence counts.
It is written last when a broker stops and removed first when it starts, so a crash leaves no such file.

    {"version":0,"brokerEpoch":11}

`.lock` in the root: a broker holds a POSIX record lock on it while it runs. The kernel releases the lock however the
process ends. The lock of a broker on another host is visible only if the file system shares locks between hosts;
otherwise its directory is taken for that of a killed broker.

Each of the others is written as a whole under a temporary name and renamed, so a crash leaves the old file or the new
one. Source of the rules: MetaProperties in org.apache.kafka.metadata.properties; PartitionMetadataFile,
PartitionMetadataReadBuffer and CleanShutdownFileHandler in org.apache.kafka.storage.internals.checkpoint.

The ids in `meta.properties` are the identity of a log directory. A path may later name another log directory: a volume
is unmounted, a directory is replaced. A longer task (a query, a write that is planned, staged and committed by
different processes, a job that loops) therefore keeps the identity that it started with, and checks it before it
continues. A directory without `meta.properties`, such as a manual collection of partition directories, has no identity,
and nothing is checked. A copy keeps the ids of the original, and so does an adopted directory.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.properties_file import format_properties, parse_properties
from pyspark_kafkalog.errors import DiskFormatError, LogDirError, UnsupportedFormatError
from pyspark_kafkalog.object_store.location import RootPath
from pyspark_kafkalog.storage.artefacts.checkpoint_file import parse_int
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, read_text_file
from pyspark_kafkalog.storage.names import META_PROPERTIES, decode_uuid, encode_uuid
from pyspark_kafkalog.units import content_text
from pyspark_kafkalog.values import dataclass

_LATEST_PROPERTIES_VERSION: Final = 1
_MAX_PROPERTIES_BYTES: Final = 1 << 20
_PROPERTIES_ADVICE: Final = "restore the file from another directory of the same broker"
_LOCK_FILE: Final = ".lock"

#: struct flock: type, whence, start, length, process id.
_FLOCK: Final = struct.Struct("hhqqi4x")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The contents of meta.properties. Version 1 always has a cluster and a node; the ids are Uuids in base64url."""

    version: int = _LATEST_PROPERTIES_VERSION
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: str | None = None


def read_properties_file(path: Path, *, advice: str = "name another file") -> dict[str, str]:
    """Keys and values of a Java properties file of at most 1 MiB. Raises DiskFormatError with `advice`, OSError."""
    data = read_text_file(path, max_bytes=_MAX_PROPERTIES_BYTES, kind=DiskFormatError, advice=advice)
    return parse_properties(data, file=str(path))


def read_meta_properties(path: Path) -> MetaProperties:
    """Read the file. Raises DiskFormatError, which names the property, UnsupportedFormatError for later versions."""
    return _meta_properties(read_properties_file(path, advice=_PROPERTIES_ADVICE), str(path))


def parse_meta_properties(data: bytes, file: str) -> MetaProperties:
    """As `read_meta_properties`, of `data` read from `file`."""
    return _meta_properties(parse_properties(data, file=file), file)


def _meta_properties(properties: dict[str, str], file: str) -> MetaProperties:
    version = _int_property(properties, "version", file, default=0)
    if version not in (0, 1):
        raise UnsupportedFormatError(
            file=file,
            position=0,
            expected=f"version 0 to {_LATEST_PROPERTIES_VERSION}",
            found=f"version {version}",
            advice="read it with a release of this package that knows it",
        )
    if version == 0:
        node_id = _int_property(properties, "broker.id", file) if "broker.id" in properties else None
    else:
        node_id = _int_property(properties, "node.id", file)
        if "cluster.id" not in properties:
            raise _properties_error(file, "property cluster.id", "none")
    return MetaProperties(
        version=version,
        cluster_id=properties.get("cluster.id"),
        node_id=node_id,
        directory_id=_uuid_property(properties, "directory.id", file),
    )


def write_meta_properties(
    path: Path,
    properties: MetaProperties,
    *,
    fs: FileSystem = LOCAL,
    durable: bool = True,
    written_at: datetime | None = None,
) -> None:
    """Write the file as Kafka does. Raises ValueError if version 1 lacks its cluster or node."""
    fs.write_file_atomic(path, format_meta_properties(properties, written_at=written_at), durable=durable)


def format_meta_properties(properties: MetaProperties, *, written_at: datetime | None = None) -> bytes:
    """The content of the file. Raises ValueError if version 1 lacks its cluster or node."""
    if properties.version != 0 and (properties.cluster_id is None or properties.node_id is None):
        raise ValueError("meta.properties of version 1 needs a cluster id and a node id")
    lines = {
        "broker.id" if properties.version == 0 else "node.id": properties.node_id,
        "directory.id": properties.directory_id,
        "version": properties.version,
        "cluster.id": properties.cluster_id,
    }
    texts = {name: str(value) for name, value in lines.items() if value is not None}
    return format_properties(texts, written_at=written_at)


def _int_property(properties: dict[str, str], name: str, file: str, default: int | None = None) -> int:
    text = properties.get(name)
    if text is None:
        if default is None:
            raise _properties_error(file, f"property {name}", "none")
        return default
    try:
        return parse_int(text.strip(), 32)
    except ValueError as error:
        raise _properties_error(file, f"for {name} {error}", content_text(text)) from None


def _uuid_property(properties: dict[str, str], name: str, file: str) -> str | None:
    text = properties.get(name)
    if text is None:
        return None
    try:
        return encode_uuid(decode_uuid(text))
    except ValueError as error:
        raise _properties_error(file, f"for {name} a Uuid in base64url", str(error)) from None


def _properties_error(file: str, expected: str, found: str) -> DiskFormatError:
    return DiskFormatError(file=file, position=0, expected=expected, found=found, advice=_PROPERTIES_ADVICE)


_TOPIC_ID_VERSION: Final = 0
_MAX_TOPIC_ID_BYTES: Final = 4096
_ZERO_UUID: Final = bytes(16)
_LINE_END = re.compile(r"\r\n|\r|\n")
_SEPARATOR = re.compile(r":[ \t\n\x0b\f\r]+")
_TOPIC_ID_ADVICE: Final = "restore the file, or delete it: a broker writes it again"


def read_topic_id(path: Path) -> str:
    """The topic id, a Uuid in base64url. Raises DiskFormatError, which names the bad line, or FileNotFoundError.

    As in Kafka, later versions of the file are read, too, and lines after the second are ignored.
    """
    data = read_text_file(path, max_bytes=_MAX_TOPIC_ID_BYTES, kind=DiskFormatError, advice=_TOPIC_ID_ADVICE)
    lines = _LINE_END.split(data.decode(errors="replace"))
    version = _topic_id_value(lines, 0, path)
    try:
        known = parse_int(version, 32) >= _TOPIC_ID_VERSION
    except ValueError:
        known = False
    if not known:
        raise _topic_id_error(path, 0, f"a version of {_TOPIC_ID_VERSION} or more on line 1", content_text(version))
    topic_id = _topic_id_value(lines, 1, path)
    position = len(lines[0]) + 1
    try:
        raw = decode_uuid(topic_id)
    except ValueError as error:
        raise _topic_id_error(path, position, "a Uuid on line 2", str(error)) from None
    if raw == _ZERO_UUID:
        raise _topic_id_error(path, position, "a Uuid other than zero on line 2", topic_id)
    return encode_uuid(raw)


def write_topic_id(path: Path, topic_id: str, *, fs: FileSystem = LOCAL, durable: bool = True) -> None:
    """Write `topic_id` (a Uuid in base64url), byte for byte as Kafka does."""
    canonical = encode_uuid(decode_uuid(topic_id))
    fs.write_file_atomic(path, f"version: {_TOPIC_ID_VERSION}\ntopic_id: {canonical}".encode(), durable=durable)


def _topic_id_value(lines: list[str], index: int, path: Path) -> str:
    line = lines[index] if index < len(lines) else ""
    parts = _SEPARATOR.split(line)
    if len(parts) != 2 or not parts[1]:
        what = ("version", "topic_id")[index]
        position = 0 if index == 0 else len(lines[0]) + 1
        raise _topic_id_error(path, position, f"'{what}: <value>' on line {index + 1}", content_text(line))
    return parts[1]


def _topic_id_error(path: Path, position: int, expected: str, found: str) -> DiskFormatError:
    return DiskFormatError(file=str(path), position=position, expected=expected, found=found, advice=_TOPIC_ID_ADVICE)


CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"


def was_clean_shutdown(root: Path) -> bool:
    """Whether the last broker on `root` was stopped cleanly."""
    return (root / CLEAN_SHUTDOWN_FILE).exists()


def write_clean_shutdown(root: Path, *, fs: FileSystem = LOCAL) -> None:
    """Mark `root` as left by a broker that was stopped cleanly, durably. It has no broker epoch yet."""
    fs.write_file_atomic(root / CLEAN_SHUTDOWN_FILE, b'{"version":0,"brokerEpoch":-1}')


def remove_clean_shutdown(root: Path, *, fs: FileSystem = LOCAL) -> None:
    """Mark `root` as in use: after a crash from here on, its logs must be recovered."""
    fs.unlink_if_there(root / CLEAN_SHUTDOWN_FILE)


_IDENTITY_ADVICE = (
    "the volume may be unmounted, or the directory moved or replaced; put it back, or begin again with the directory "
    "that is there (a streaming query: with a new checkpoint)"
)


@dataclass(frozen=True, slots=True)
class RootIdentity:
    """The ids of a log directory. At least one is known: brokers before 3.7 write no directory id."""

    cluster_id: str | None
    directory_id: str | None

    def __str__(self) -> str:
        return f"cluster id {self.cluster_id or 'none'}, directory id {self.directory_id or 'none'}"

    def fits(self, found: RootIdentity | None) -> bool:
        """Whether `found` is the same identity. A directory may get an id later, from a broker of version 3.7."""
        if found is None or found.cluster_id != self.cluster_id:
            return False
        return self.directory_id is None or found.directory_id == self.directory_id


def read_identity(root: Path) -> RootIdentity | None:
    """The identity of the log directory at `root`; None if it has none. Raises DiskFormatError, OSError."""
    try:
        properties = read_meta_properties(root / META_PROPERTIES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return identity_of(properties)


def identity_of(properties: MetaProperties) -> RootIdentity | None:
    """The identity in `properties`; None if they have no ids."""
    if not properties.cluster_id and not properties.directory_id:
        return None
    return RootIdentity(properties.cluster_id or None, properties.directory_id)


def readable_identity(root: Path) -> RootIdentity | None:
    """As `read_identity`, but None also for a damaged file, which does not prevent reading records."""
    try:
        return read_identity(root)
    except DiskFormatError:
        return None


def check_identity(root: Path, expected: RootIdentity | None) -> None:
    """Raise LogDirError unless `root` is the log directory `expected`. Checks nothing if `expected` is None."""
    if expected is not None:
        found = read_identity(root)
        if not expected.fits(found):
            raise another_root_error(root, expected, found)


def another_root_error(root: RootPath, expected: RootIdentity, found: RootIdentity | None) -> LogDirError:
    """The error for a path or URL that now names another log directory, or one without an identity."""
    if found is not None:
        what = f"the log directory with {found}"
    elif isinstance(root, Path) and not root.exists():
        what = "no such directory"
    else:
        what = f"no {META_PROPERTIES}"
    return LogDirError(f"{root}: expected the log directory with {expected}, found {what}; {_IDENTITY_ADVICE}")


# The broker's process


class BrokerProcess(Enum):
    """The state of the broker that wrote a log directory. A copy of a running broker's directory is KILLED, too."""

    RUNNING = auto()
    STOPPED = auto()
    KILLED = auto()


def broker_process(root: Path) -> BrokerProcess:
    """The state of the broker on `root`. Takes no lock and writes nothing."""
    if was_clean_shutdown(root):
        return BrokerProcess.STOPPED
    return BrokerProcess.RUNNING if _is_locked(root / _LOCK_FILE) else BrokerProcess.KILLED


def _is_locked(path: Path) -> bool:
    """Whether a process holds a record lock on the file; False if locks cannot be queried."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        fd = open_file(path)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    finally:
        os.close(fd)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
