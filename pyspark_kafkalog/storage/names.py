"""Names of topics, groups, principals, partition directories and files, as Kafka builds and checks them.

Source: org.apache.kafka.common.internals.Topic, org.apache.kafka.common.utils.SecurityUtils,
org.apache.kafka.storage.internals.log.LogFileUtils and UnifiedLog.parseTopicPartitionName.
"""

from __future__ import annotations

import base64
import binascii
import random
import re
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from pyspark_kafkalog.errors import (
    InvalidAclError,
    InvalidGroupError,
    InvalidPartitionsError,
    InvalidTopicError,
    LogDirError,
)
from pyspark_kafkalog.units import INT16_MAX, INT32_MAX, INT64_MAX, content_text

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
PRODUCER_SNAPSHOT_SUFFIX: Final = ".snapshot"
#: The files of a segment, the `.log` first: the order in which they are renamed and removed.
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
STAGED_SUFFIX: Final = ".staged"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
CHECKPOINT_SUFFIX: Final = ".checkpoint"

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
META_PROPERTIES: Final = "meta.properties"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"

#: The topic with the committed offsets and the members of groups.
OFFSETS_TOPIC: Final = "__consumer_offsets"
#: Topics for which Kafka 4.1 says internal (org.apache.kafka.common.internals.Topic): `kafka-topics --exclude-internal`
#: leaves out these, and lists __remote_log_metadata.
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state", "__share_group_state"})

_NUMBERED_SUFFIXES: Final = frozenset((*SEGMENT_SUFFIXES, PRODUCER_SNAPSHOT_SUFFIX))
_TOPIC_MAX_CHARS: Final = 249
#: A commit encodes the ids of its topics, which are the same in most commits.
_UUIDS_KEPT: Final = 4096
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_OFFSET_DIGITS: Final = 20
_METADATA_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_PARTITION_DIR = re.compile(r"(.+)-(\d+)")


def validate_topic_name(topic: str) -> str:
    """Return `topic` if Kafka allows it, else raise InvalidTopicError, which names the broken rule."""
    if not topic:
        reason = "the empty string is not allowed"
    elif topic in (".", ".."):
        reason = "'.' and '..' are not allowed"
    elif len(topic) > _TOPIC_MAX_CHARS:
        reason = f"its length of {len(topic)} is over {_TOPIC_MAX_CHARS}"
    elif not _TOPIC.fullmatch(topic):
        reason = "it has a character other than ASCII letters and digits, '.', '_' and '-'"
    else:
        return topic
    raise InvalidTopicError(f"topic name {topic[:_TOPIC_MAX_CHARS]!r} is invalid: {reason}")


def validate_group_id(group: str) -> str:
    """Return `group` if it is a valid name of a consumer group. Raises InvalidGroupError otherwise.

    Any non-empty text is valid, of at most 32,767 bytes of UTF-8, so that it fits the key of a record.
    """
    if not group:
        raise InvalidGroupError("the name of a consumer group cannot be empty")
    try:
        size_bytes = len(group.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidGroupError(f"the name of a consumer group must be text, not {group!r}") from None
    if size_bytes > INT16_MAX:
        raise InvalidGroupError(f"the name of a consumer group has {size_bytes} bytes, at most {INT16_MAX} are allowed")
    return group


def check_principal(principal: str) -> str:
    """`principal`, if it has the form type:name. Raises InvalidAclError."""
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name):
        raise InvalidAclError(f"principal {principal!r}: expected type:name, such as User:alice")
    return principal


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number; `str()` is the name of its directory.

    A tuple, as requests and commits make and look up many of them: it is hashed and compared without calls of Python.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def parse_partition_dir(name: str) -> TopicPartition | None:
    """The partition of a directory named `name`, or None if it is not the name of a partition directory.

    Directories of deleted and stray partitions (`...-delete`, `...-stray`, `...-future`) are not partition directories.
    """
    match = _PARTITION_DIR.fullmatch(name)
    if match is None or not _TOPIC.fullmatch(match[1]) or match[1] in (".", ".."):
        return None
    partition = int(match[2])
    if partition > INT32_MAX or str(partition) != match[2]:
        return None
    return TopicPartition(match[1], partition)


def partition_path(directory: Path, topic_partition: TopicPartition) -> Path:
    """Path of the partition's directory, directly below `directory`. Every path of a partition is made here.

    Raises InvalidTopicError for a topic or number that would name another directory: names come from metadata, a leader
    or a client, and no path may lead out of a log directory.
    """
    topic, number = topic_partition.topic, topic_partition.partition
    if not is_partition_name(topic_partition):
        validate_topic_name(topic)
        raise InvalidPartitionsError(f"expected a partition from 0 to {INT32_MAX}, found {number} of topic {topic!r}")
    return directory / f"{topic}-{number}"


def is_partition_name(topic_partition: TopicPartition) -> bool:
    """Whether a directory can have the partition's name: the topic consists of valid characters, the number fits."""
    topic, number = topic_partition.topic, topic_partition.partition
    return _TOPIC.fullmatch(topic) is not None and topic not in (".", "..") and 0 <= number <= INT32_MAX


def child_path(directory: Path, name: str) -> Path:
    """Path of the file `name` directly in `directory`, for a name from another process.

    Raises LogDirError for a name that would be another place.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise LogDirError(f"expected the name of a file in {directory}, found {name[:_TOPIC_MAX_CHARS]!r}")
    return directory / name


def offset_file_name(offset: int, suffix: str) -> str:
    """`offset` in 20 digits with `suffix`: the name of a segment's file."""
    return f"{offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """The offset and the suffix in the name of a segment's file or a producer snapshot; None for any other name."""
    digits, suffix = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS:]
    if suffix not in _NUMBERED_SUFFIXES or not (digits.isascii() and digits.isdigit()):
        return None
    offset = int(digits)
    return None if offset > INT64_MAX else (offset, suffix)


def parse_metadata_snapshot(name: str) -> tuple[int, int] | None:
    """The end offset and the leader epoch in the name of a metadata snapshot, or None if `name` is not such a name."""
    match = _METADATA_SNAPSHOT.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def segment_file(directory: Path, base_offset: int, suffix: str) -> Path:
    """Path of the file with `suffix` of the segment that starts at `base_offset`."""
    return directory / offset_file_name(base_offset, suffix)


def encode_uuid(raw: bytes) -> str:
    """Kafka's text form of 16 bytes: base64url without padding, 22 characters (org.apache.kafka.common.Uuid)."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def random_uuid(rng: random.Random) -> str:
    """A random Uuid in Kafka's text form. As in Kafka it never begins with a dash, which tools read as an option."""
    while True:
        text = encode_uuid(uuid.UUID(bytes=rng.randbytes(16), version=4).bytes)
        if not text.startswith("-"):
            return text


@lru_cache(maxsize=_UUIDS_KEPT)
def decode_uuid(text: str) -> bytes:
    """The 16 bytes of a Uuid in Kafka's text form. Raises ValueError for other text."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{content_text(text)} is not a Uuid in base64url") from error
    if len(raw) != 16:
        raise ValueError(f"{content_text(text)} holds {len(raw)} bytes, a Uuid has 16")
    return raw
