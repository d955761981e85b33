"""Partitions of a metadata snapshot, decoded a run at a time.

A snapshot consists mostly of two records for each partition, which follow each other:

    PartitionRecord         frame (3) | number (4) | topic id (16) | the rest: an image needs its leader epoch alone
    PartitionStateRecord    frame (5) | topic id (16) | number (4) | leader epoch, offsets, sizes, times (68) | tagged
                            fields: none, or the last idempotent producer alone. Missing if there were no writes

The rest of a PartitionRecord is the same for most partitions of a root. It is decoded once, and found by its bytes
after that. A PartitionStateRecord of one of these two sizes is unpacked in place. `decode_record` decodes everything
else, and is the reference: the image of the runs equals that of the records, and what one refuses the other refuses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, PartitionRecord, PartitionStateRecord
from pyspark_kafkalog.metadata.messages.records import record_frame
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import encode_uuid
from pyspark_kafkalog.values import quick_dataclass

Decode: TypeAlias = Callable[[bytes], MetadataRecord]

#: Rests of PartitionRecords that are remembered: one for each leader epoch.
_RESTS_MAX: Final = 1000

_PARTITION: Final = struct.Struct(">i16s")
_STATE: Final = struct.Struct(">16sii8q")
_PRODUCER: Final = struct.Struct(">qhiqiqiq")
_NO_TAGS: Final = b"\0"
#: One tagged field: its tag, its size, the marker of a struct that is not null. `_NO_TAGS` of the struct is its end.
_PRODUCER_HEAD: Final = bytes((1, 0, _PRODUCER.size + 2, 1))
_REST_BYTES: Final = len(_PRODUCER_HEAD) + _PRODUCER.size + len(_NO_TAGS)


class _Frames(NamedTuple):
    partition: bytes
    state: bytes


@cache
def _frames() -> _Frames:
    return _Frames(record_frame(PartitionRecord), record_frame(PartitionStateRecord))


@quick_dataclass(frozen=True, slots=True)
class StoredPartitions:
    """Partitions of one topic that follow each other, and the values of the records that say so."""

    topic_id: str
    partitions: Sequence[PartitionImage]
    values: Sequence[bytes]
    decode: Decode

    def records(self) -> Iterator[MetadataRecord]:
        """The same partitions as records."""
        return map(self.decode, self.values)


class PartitionRuns:
    """Finds runs of partitions in the values of a snapshot's records."""

    def __init__(self) -> None:
        self._leader_epochs: dict[bytes, int] = {}

    def decode(self, values: Sequence[bytes], decode: Decode) -> Iterator[MetadataRecord | StoredPartitions]:
        """The records of `values`, in order; neighbouring partitions of a topic together. Raises what `decode` raises.

        `decode` is `decode_record` with the location of `values`.
        """
        at = 0
        while at < len(values):
            partitions, end = self._run(values, at, decode)
            if partitions:
                topic_id = encode_uuid(_PARTITION.unpack_from(values[at], len(_frames().partition))[1])
                yield StoredPartitions(topic_id, partitions, values[at:end], decode)
                at = end
            else:
                yield decode(values[at])
                at += 1

    def _run(self, values: Sequence[bytes], at: int, decode: Decode) -> tuple[list[PartitionImage], int]:
        """The partitions from `values[at]` on, and the position after their records."""
        frame, state_frame = _frames()
        number_at, rest_at = len(frame), len(frame) + _PARTITION.size
        expected: tuple[int, bytes] | None = None
        partitions: list[PartitionImage] = []
        while at < len(values):
            value = values[at]
            if not value.startswith(frame) or len(value) < rest_at:
                break
            number, topic_id = found = _PARTITION.unpack_from(value, number_at)
            if expected not in (None, found):
                break
            rest = value[rest_at:]
            leader_epoch = self._leader_epochs.get(rest)
            if leader_epoch is None:
                leader_epoch = self._note_rest(rest, decode(value))
            state = LogState(leader_epoch=leader_epoch)
            at += 1
            if at < len(values) and values[at].startswith(state_frame):
                stored = _state(values[at], len(state_frame), topic_id, number)
                if stored is not None:
                    state = stored
                    at += 1
            partitions.append(PartitionImage(number, state))
            expected = number + 1, topic_id
        return partitions, at

    def _note_rest(self, rest: bytes, record: MetadataRecord) -> int:
        assert isinstance(record, PartitionRecord)
        if len(self._leader_epochs) < _RESTS_MAX:
            self._leader_epochs[rest] = record.leader_epoch
        return record.leader_epoch


def _state(value: bytes, at: int, topic_id: bytes, number: int) -> LogState | None:
    """The state in the PartitionStateRecord `value`, whose fields begin at `at`.

    None if its tagged fields are others, it is another partition's, or its log end is one that no log has.
    """
    rest = value[at + _STATE.size :]
    producer = None
    if rest != _NO_TAGS:
        if len(rest) != _REST_BYTES or not rest.startswith(_PRODUCER_HEAD) or not rest.endswith(_NO_TAGS):
            return None
        producer = ProducerStateEntry(*_PRODUCER.unpack_from(rest, len(_PRODUCER_HEAD)))
    of, partition, leader_epoch, log_start, log_end, base, size, first_ms, max_ms, max_offset, since = (
        _STATE.unpack_from(value, at)
    )
    if of != topic_id or partition != number or log_end < 0:
        return None
    return LogState(
        leader_epoch=leader_epoch,
        log_start_offset=log_start,
        log_end_offset=log_end,
        active_base_offset=base,
        active_size_bytes=size,
        active_first_timestamp_ms=first_ms,
        active_max_timestamp_ms=max_ms,
        active_max_timestamp_offset=max_offset,
        bytes_since_last_index_entry=since,
        producer=producer,
    )
