"""`partition.metadata` of a partition directory: the id of its topic.

    version: 0
    topic_id: <22 characters base64url>

No newline after the last line. Written as a whole under a temporary name and renamed, so a crash leaves the old file or
the new one. The id distinguishes a re-created topic from the deleted one of the same name. Source of the rules:
PartitionMetadataFile and PartitionMetadataReadBuffer in org.apache.kafka.storage.internals.checkpoint.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.storage.artefacts.checkpoint_file import parse_int, read_text_file
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.names import decode_uuid, encode_uuid

_VERSION: Final = 0
_MAX_FILE_BYTES: Final = 4096
_ZERO_UUID: Final = bytes(16)
_LINE_END = re.compile(r"\r\n|\r|\n")
_SEPARATOR = re.compile(r":[ \t\n\x0b\f\r]+")
_ADVICE: Final = "restore the file, or delete it: a broker writes it anew"


def read_topic_id(path: Path) -> str:
    """The topic id, a Uuid in base64url. Raises DiskFormatError, which names the bad line, or FileNotFoundError.

    As in Kafka, later versions of the file are read, too, and lines after the second are ignored.
    """
    data = read_text_file(path, max_bytes=_MAX_FILE_BYTES, kind=DiskFormatError, advice=_ADVICE)
    lines = _LINE_END.split(data.decode(errors="replace"))
    version = _value(lines, 0, path)
    try:
        known = parse_int(version, 32) >= _VERSION
    except ValueError:
        known = False
    if not known:
        raise _error(path, 0, f"a version of {_VERSION} or more on line 1", repr(version[:80]))
    topic_id = _value(lines, 1, path)
    position = len(lines[0]) + 1
    try:
        raw = decode_uuid(topic_id)
    except ValueError as error:
        raise _error(path, position, "a Uuid on line 2", str(error)) from None
    if raw == _ZERO_UUID:
        raise _error(path, position, "a Uuid other than zero on line 2", topic_id)
    return encode_uuid(raw)


def write_topic_id(path: Path, topic_id: str, *, fs: FileSystem = LOCAL, durable: bool = True) -> None:
    """Write `topic_id` (a Uuid in base64url), byte for byte as Kafka does."""
    canonical = encode_uuid(decode_uuid(topic_id))
    fs.write_file_atomic(path, f"version: {_VERSION}\ntopic_id: {canonical}".encode(), durable=durable)


def _value(lines: list[str], index: int, path: Path) -> str:
    line = lines[index] if index < len(lines) else ""
    parts = _SEPARATOR.split(line)
    if len(parts) != 2 or not parts[1]:
        what = ("version", "topic_id")[index]
        position = 0 if index == 0 else len(lines[0]) + 1
        raise _error(path, position, f"'{what}: <value>' on line {index + 1}", repr(line[:80]))
    return parts[1]


def _error(path: Path, position: int, expected: str, found: str) -> DiskFormatError:
    return DiskFormatError(file=str(path), position=position, expected=expected, found=found, advice=_ADVICE)
