"""The usual commit of a root on a file system: the logs of a few partitions have grown, nothing else has changed.

All that differs from one such commit to the next has a fixed size:

    header    of a batch: its base offset and time, the number of its records, their bytes, a CRC
    records   a CommitRecord with a random id; a PartitionStateRecord for each partition: the state of its log, its last
              producer, what was appended

So the first one is encoded as any commit, and is the template of the next, whose fields are packed in their places. A
writer that makes one holds the end of the log (`HeldEnd` in local/log.py), which shows that its image is the newest.

A crash leaves of it what it leaves of any commit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from pyspark_kafkalog.metadata.messages.metadata_records import (
    AppendedBatches,
    CommitRecord,
    MetadataRecord,
    PartitionStateRecord,
    ProducerState,
)
from pyspark_kafkalog.metadata.messages.records import (
    APPENDED,
    APPENDED_HEAD,
    PRODUCER,
    PRODUCER_HEAD,
    STATE,
    encode_record,
    record_frame,
)
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_TIMESTAMP_AT,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    RECORDS_AT,
    RECORDS_COUNT_AT,
    crc32c,
)
from pyspark_kafkalog.record.reference import encode_pairs
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import decode_uuid, encode_uuid
from pyspark_kafkalog.values import quick_dataclass

#: The place of a record in its batch takes one byte up to here.
STATES_MAX: Final = 63
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_UINT32: Final = struct.Struct(">I")
_TIMES: Final = struct.Struct(">qq")
COMMIT_ID_BYTES: Final = 16
#: In a record of a batch, after its length: attributes, time, its place in the batch.
_PLACE_AT: Final = 2
_ANY_PRODUCER: Final = ProducerState()
_ANY_APPENDED: Final = AppendedBatches()


@quick_dataclass(frozen=True, slots=True)
class AppendedState:
    """The part of a usual commit for one partition: the state of its log, and what was appended to it.

    The log has no open transaction, and does not begin in remote storage.
    """

    topic: str
    topic_id: str
    partition: int
    state: LogState
    first_offset: int
    records_count: int
    size_bytes: int


class UsualCommits:
    """Encodes the usual commits of one operation."""

    def __init__(self, operation: str) -> None:
        head = _batch(CommitRecord(commit_id=encode_uuid(bytes(COMMIT_ID_BYTES)), operation=operation))
        self._head = head
        self._commit_id_at = head.index(record_frame(CommitRecord)) + len(record_frame(CommitRecord))
        self._with_producer = _StateTemplate(_ANY_PRODUCER)
        self._without_producer = _StateTemplate(None)

    def encode(
        self, base_offset: int, timestamp_ms: int, commit_id: bytes, states: Sequence[AppendedState]
    ) -> bytearray:
        """As `encode_commit`. There are at most STATES_MAX `states`, `commit_id` has 16 bytes."""
        data = bytearray(self._head)
        for place, each in enumerate(states, 1):
            template = self._without_producer if each.state.producer is None else self._with_producer
            data += template.filled(place, each)
        _INT64.pack_into(data, BASE_OFFSET_AT, base_offset)
        _INT32.pack_into(data, LENGTH_AT, len(data) - LOG_OVERHEAD_BYTES)
        _INT32.pack_into(data, LAST_OFFSET_DELTA_AT, len(states))
        _TIMES.pack_into(data, BASE_TIMESTAMP_AT, timestamp_ms, timestamp_ms)
        _INT32.pack_into(data, RECORDS_COUNT_AT, 1 + len(states))
        data[self._commit_id_at : self._commit_id_at + COMMIT_ID_BYTES] = commit_id
        _UINT32.pack_into(data, CRC_AT, crc32c(memoryview(data)[ATTRIBUTES_AT:]))
        return data


class _StateTemplate:
    """The record of a partition's state in a batch, whose last writer has a producer id or not."""

    def __init__(self, producer: ProducerState | None) -> None:
        self._data = _batch(PartitionStateRecord(producer=producer, appended=_ANY_APPENDED))[RECORDS_AT:]
        end = len(self._data) - 1  # no headers of the record
        self._appended_at = end - APPENDED.size
        self._producer_at = self._appended_at - (0 if producer is None else PRODUCER.size)
        self._state_at = self._producer_at - 1 - STATE.size  # before the number of tagged fields
        self._place_at = _PLACE_AT + (self._data[0] >> 7) + 1

    def filled(self, place: int, of: AppendedState) -> bytearray:
        data, state = bytearray(self._data), of.state
        data[self._place_at] = 2 * place  # as a varint
        STATE.pack_into(
            data,
            self._state_at,
            _uuid_bytes(of.topic_id),
            of.partition,
            state.leader_epoch,
            state.log_start_offset,
            state.log_end_offset,
            state.active_base_offset,
            state.active_size_bytes,
            state.active_first_timestamp_ms,
            state.active_max_timestamp_ms,
            state.active_max_timestamp_offset,
            state.bytes_since_last_index_entry,
        )
        if (writer := state.producer) is not None:
            PRODUCER.pack_into(
                data,
                self._producer_at,
                *PRODUCER_HEAD,
                writer.producer_id,
                writer.producer_epoch,
                writer.last_sequence,
                writer.last_offset,
                writer.offset_delta,
                writer.last_timestamp_ms,
                writer.coordinator_epoch,
                writer.current_txn_first_offset,
                0,
            )
        appended = of.first_offset, of.records_count, of.size_bytes
        APPENDED.pack_into(data, self._appended_at, *APPENDED_HEAD, *appended, 0)
        return data


def _batch(record: MetadataRecord) -> bytes:
    return encode_pairs([(None, encode_record(record))], base_offset=0, timestamp_ms=0, leader_epoch=0)


@lru_cache(maxsize=256)
def _uuid_bytes(topic_id: str) -> bytes:
    return decode_uuid(topic_id)
