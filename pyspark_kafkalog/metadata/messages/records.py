"""Records of the metadata log: KRaft's frame around a message.

A record's value is `frame version (1) | api key | message version`, three unsigned varints, then the message; its key
is null. Kafka's own types have the schemas of `schemas/cluster_metadata.json`. This project's have api keys from
20000 up, which Kafka's dump tool reports as unknown and skips (`schemas/kafkalog.json`; all have tagged fields, for
extensions):

    20000 FormatRecord           in the first commit: the version of the rules that all commits follow
    20001 CommitRecord           first in every commit: its random id, by which a writer recognizes its commit, and the
                                 operation. In an object store also the writer and its turn: advice for other writers
                                 (objects/turns.py)
    20002 WriteCommitRecord      what a write appended: transactional id, version and incarnation, producer; offsets,
                                 records and bytes by partition. With a transactional id, its version becomes the last
                                 committed one. Without a producer id the transactional id keeps its producer; without
                                 an incarnation, or with the current one, its incarnation; a new incarnation takes the
                                 id over, and the one before is fenced
    20003 PartitionStateRecord   one partition's LogState after the commit: replaces the previous one
    20004 TransactionalIdRecord  all values of a transactional id: for a new incarnation, and in snapshots. See
                                 TransactionalIdImage, whose `held_by` returns `incarnation` and `fenced` of a new one.
                                 With nothing but the id, the image forgets it
    20005 DataObjectRecord       a data object that a write has put into the store, or its bytes if they are few, and
                                 where in it the batches of each partition are. Each run is appended: its offsets
                                 begin at the log end, its leader epoch is the partition's. A follower states
                                 the leader's epoch, and of a log's first run the base offset, which may be below
                                 the log start. `plannedAt` is the end of
                                 the metadata log when the write was planned. The id of the object is the metadata
                                 offset of its record; only snapshots state it
    20006 SegmentObjectsRecord   segments in the store that follow the partition's last one, or replace exactly the
                                 stated number of runs and the stated segments
    20007 PartitionRunsRecord    in snapshots: runs of a partition as rows of run_dtype, big-endian (extents.py)
    20008 DroppedObjectsRecord   in snapshots: objects that the commit at `commitOffset` replaced or dropped
    20009 ObjectsDeletedRecord   what the commits below `droppedBelow` dropped has been deleted from the store
    20010 StagingHorizonRecord   what was planned below `horizonOffset` has expired: see StagingHorizon in image.py
    20011 FollowingRecord        the root follows this leader from now on, as a copy that only the follower with this
                                 id changes; with an empty id it follows none (invariants.py)

A crash never leaves part of a record: a commit is one file, created as a whole (commit_log.py).

Source of the frame: org.apache.kafka.server.common.serialization.AbstractApiMessageSerde.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Final, TypeVar

from pyspark_kafkalog.errors import UnsupportedFormatError
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.metadata_records import (
    METADATA_RECORDS,
    AppendedBatches,
    CommitRecord,
    MetadataRecord,
    PartitionStateRecord,
    ProducerState,
)
from pyspark_kafkalog.metadata.messages.schema import MessageReader, write_unsigned_varint
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.names import decode_uuid

FRAME_VERSION: Final = 1
NATIVE_API_KEYS_FROM: Final = 20_000
NO_TRANSACTION_VERSION: Final = -1

#: The longest text whose length takes one byte.
_SHORT_TEXT_MAX: Final = 126
#: From the topic's id to the bytes since the last index entry.
STATE: Final = struct.Struct(">16siiqqqqqqqq")
#: Tagged fields: tag, size, that it is not null, the fields of the struct, and that it has no tagged fields itself.
PRODUCER: Final = struct.Struct(">BBBqhiqiqiqB")
APPENDED: Final = struct.Struct(">BBBqqqB")
PRODUCER_HEAD: Final = 0, PRODUCER.size - 2, 1
APPENDED_HEAD: Final = 3, APPENDED.size - 2, 1

_Record = TypeVar("_Record", bound=Message)


@cache
def _types_by_api_key() -> Mapping[int, type[MetadataRecord]]:
    return {each.schema().api_key: each for each in METADATA_RECORDS}


def encode_record(record: Message, *, version: int | None = None) -> bytes:
    """The value of a metadata record, or one of `__remote_log_metadata`, in `version` or the one that Kafka 4.1 writes.

    The records of commits that append are packed at once. Raises InvalidRecordError for values that its schema does not
    allow.
    """
    packed = packed_record(record) if version is None else None
    return encode_by_schema(record, version=version) if packed is None else packed


def encode_by_schema(record: Message, *, version: int | None = None) -> bytes:
    """As `encode_record`, field by field."""
    schema = record.schema()
    version = schema.written_version if version is None else version
    out = bytearray(_frame(schema.api_key, version))
    record.encode_to(out, version)
    return bytes(out)


@cache
def record_frame(record_type: type[Message]) -> bytes:
    """What the value of a record of this type begins with, in the version that is written."""
    schema = record_type.schema()
    return _frame(schema.api_key, schema.written_version)


@cache
def _frame(api_key: int, version: int) -> bytes:
    out = bytearray()
    for number in (FRAME_VERSION, api_key, version):
        write_unsigned_varint(out, number)
    return bytes(out)


def packed_record(record: Message) -> bytes | None:
    """What `encode_by_schema` returns for a record that most commits have; None for another one, or unusual values."""
    try:
        if type(record) is PartitionStateRecord:
            return _packed_state(record)
        if type(record) is CommitRecord:
            return _packed_commit(record)
    except (struct.error, ValueError, TypeError, AttributeError):
        pass  # the schema names the field
    return None


def _packed_commit(record: CommitRecord) -> bytes | None:
    commit_id, operation, *others = CommitRecord.values_of(record)
    text = operation.encode()
    if others != [*CommitRecord.DEFAULTS.values()][2:] or len(text) > _SHORT_TEXT_MAX:
        return None
    return b"%b%b%c%b\0" % (record_frame(CommitRecord), decode_uuid(commit_id), len(text) + 1, text)


def _packed_state(record: PartitionStateRecord) -> bytes | None:
    topic_id, *others = PartitionStateRecord.values_of(record)
    producer, first_unstable_offset, local_log_start_offset, appended, unknown = others[10:]
    if first_unstable_offset != -1 or local_log_start_offset != -1 or unknown:
        return None
    tags_count = (producer is not None) + (appended is not None)
    packed = record_frame(PartitionStateRecord) + STATE.pack(decode_uuid(topic_id), *others[:10]) + b"%c" % tags_count
    if producer is not None:
        *values, unknown = ProducerState.values_of(producer)
        if unknown:
            return None
        packed += PRODUCER.pack(*PRODUCER_HEAD, *values, 0)
    if appended is not None:
        *values, unknown = AppendedBatches.values_of(appended)
        if unknown:
            return None
        packed += APPENDED.pack(*APPENDED_HEAD, *values, 0)
    return packed


def decode_record(value: Buffer, *, file: str = "<record>", file_position: int = 0) -> MetadataRecord:
    """The record in a value. Raises CorruptRecordError, or UnsupportedFormatError for an unknown type or version."""
    return decode_framed(value, _types_by_api_key(), kind="metadata", file=file, file_position=file_position)


def decode_framed(
    value: Buffer, types: Mapping[int, type[_Record]], *, kind: str, file: str, file_position: int
) -> _Record:
    """The record in a value with this frame, of one of `types` by api key. Raises the errors of `decode_record`.

    `kind` names the types in errors.
    """
    reader = MessageReader(value, file=file, file_position=file_position)
    frame_version = reader.unsigned_varint("the frame version")
    if frame_version != FRAME_VERSION:
        raise _unsupported(reader, f"frame version {FRAME_VERSION}", f"frame version {frame_version}")
    api_key = reader.unsigned_varint("the record type")
    record_type = types.get(api_key)
    if record_type is None:
        raise _unsupported(reader, f"a {kind} record type of Kafka 4.4 or of this package", f"type {api_key}")
    version = reader.unsigned_varint("the record version")
    return record_type.decode_from(reader, version)


def _unsupported(reader: MessageReader, expected: str, found: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        file=reader.file,
        position=reader.file_position + reader.at,
        expected=expected,
        found=found,
        advice="a later version of pyspark_kafkalog or of Kafka wrote it: upgrade pyspark_kafkalog",
    )
