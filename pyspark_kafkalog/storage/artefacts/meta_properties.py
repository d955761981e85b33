"""`meta.properties` in the root of a log directory: the ids of its cluster, node and directory.

    version=1                 0 before KRaft: broker.id instead of node.id, and no field is required
    cluster.id=<Uuid>
    node.id=<int>
    directory.id=<Uuid>       since Kafka 3.7

A Java properties file. Written once, when the directory is formatted. Source of the rules:
org.apache.kafka.metadata.properties.MetaProperties.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.properties_file import format_properties, parse_properties
from pyspark_kafkalog.errors import DiskFormatError, UnsupportedFormatError
from pyspark_kafkalog.storage.artefacts.checkpoint_file import parse_int, read_text_file
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.names import decode_uuid, encode_uuid

_LATEST_VERSION: Final = 1
_MAX_FILE_BYTES: Final = 1 << 20
_ADVICE: Final = "restore the file from another directory of the same broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The contents of meta.properties. Version 1 always has a cluster and a node; the ids are Uuids in base64url."""

    version: int = _LATEST_VERSION
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: str | None = None


def read_meta_properties(path: Path) -> MetaProperties:
    """Read the file. Raises DiskFormatError, which names the property, UnsupportedFormatError for later versions."""
    file = str(path)
    data = read_text_file(path, max_bytes=_MAX_FILE_BYTES, kind=DiskFormatError, advice=_ADVICE)
    properties = parse_properties(data, file=file)
    version = _int(properties, "version", file, default=0)
    if version not in (0, 1):
        raise UnsupportedFormatError(
            file=file,
            position=0,
            expected=f"version 0 to {_LATEST_VERSION}",
            found=f"version {version}",
            advice="read it with a release of this package that knows it",
        )
    if version == 0:
        node_id = _int(properties, "broker.id", file) if "broker.id" in properties else None
    else:
        node_id = _int(properties, "node.id", file)
        if "cluster.id" not in properties:
            raise _error(file, "property cluster.id", "none")
    return MetaProperties(
        version=version,
        cluster_id=properties.get("cluster.id"),
        node_id=node_id,
        directory_id=_uuid(properties, "directory.id", file),
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
    if properties.version != 0 and (properties.cluster_id is None or properties.node_id is None):
        raise ValueError("meta.properties of version 1 needs a cluster id and a node id")
    lines = {
        "broker.id" if properties.version == 0 else "node.id": properties.node_id,
        "directory.id": properties.directory_id,
        "version": properties.version,
        "cluster.id": properties.cluster_id,
    }
    texts = {name: str(value) for name, value in lines.items() if value is not None}
    fs.write_file_atomic(path, format_properties(texts, written_at=written_at), durable=durable)


def _int(properties: dict[str, str], name: str, file: str, default: int | None = None) -> int:
    text = properties.get(name)
    if text is None:
        if default is None:
            raise _error(file, f"property {name}", "none")
        return default
    try:
        return parse_int(text.strip(), 32)
    except ValueError as error:
        raise _error(file, f"for {name} {error}", repr(text[:80])) from None


def _uuid(properties: dict[str, str], name: str, file: str) -> str | None:
    text = properties.get(name)
    if text is None:
        return None
    try:
        return encode_uuid(decode_uuid(text))
    except ValueError as error:
        raise _error(file, f"for {name} a Uuid in base64url", str(error)) from None


def _error(file: str, expected: str, found: str) -> DiskFormatError:
    return DiskFormatError(file=file, position=0, expected=expected, found=found, advice=_ADVICE)
