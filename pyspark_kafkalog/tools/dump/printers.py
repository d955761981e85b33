"""The output of a dump: text, byte for byte what kafka-dump-log 4.1 writes to stdout, or JSON lines.

A dump passes its items to a `Printer`, in the order of the files. TextPrinter writes a part of a line before the next
part is computed: if Kafka's tool fails within a line, this dump fails there too. JsonPrinter writes one object for each
item; `type` states its kind. In JSON, numbers are numbers, times are ms, and keys and values are strings if they are
UTF-8, else `{"base64": "..."}`; a decoder's output is a JSON tree. Sizes are -1 for null, as in the text form. Problems
are printed to stderr as text.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TextIO

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.metadata.messages.codec import json_text
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.control import (
    ControlRecord,
    EndTransactionMarker,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotHeader,
    Voter,
    parse_control_record,
)
from pyspark_kafkalog.record.header import TimestampType
from pyspark_kafkalog.record.old_formats import OldMessage
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.names import encode_uuid
from pyspark_kafkalog.tools.dump.java_text import decode_utf8
from pyspark_kafkalog.tools.dump.walk import DumpedBatch, DumpError, DumpRecord, decrement_sequence
from pyspark_kafkalog.units import json_line

#: Key and payload of a record as decoded, None if missing: bytes are text in UTF-8, a string is a message of the
#: decoder itself, a mapping is a JSON tree.
Contents = tuple[object | None, object | None]
RecordDecoder = Callable[[DumpRecord], Contents]


@dataclass(frozen=True, slots=True)
class AbortedTxnEntry:
    """One entry of a transaction index; `version` is its first byte, as Kafka's tool shows it."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Printer(Protocol):
    """Receives the items of the dump, in the order of the files."""

    def file(self, path: str) -> None:
        """The next file begins."""

    def log_start(self, offset: int) -> None:
        """The file is a segment's log with this base offset."""

    def staged_start(self) -> None:
        """The file contains staged batches, whose offsets start at 0."""

    def snapshot_start(self, end_offset: int, epoch: int) -> None:
        """The file is a KRaft snapshot."""

    def bootstrap_start(self) -> None:
        """The file is KRaft's bootstrap snapshot."""

    def batch(self, batch: DumpedBatch) -> None:
        """One record batch."""

    def record(self, batch: DumpedBatch, record: DumpRecord) -> None:
        """One record of the preceding batch."""

    def invalid_tail(self, file_name: str, size_bytes: int) -> None:
        """Bytes at the end of a log that are not a complete batch."""

    def empty_index(self, path: str) -> None:
        """The offset index has no entry."""

    def sane_index(self, path: str) -> None:
        """The index passed its sanity check."""

    def offset_index_entry(self, offset: int, position: int) -> None:
        """One entry of an offset index."""

    def time_index_entry(self, timestamp_ms: int, offset: int) -> None:
        """One entry of a time index."""

    def aborted_txn(self, entry: AbortedTxnEntry) -> None:
        """One entry of a transaction index."""

    def producer_state(self, entry: ProducerStateEntry) -> None:
        """One entry of a producer snapshot."""


STRING_DECODER: Final = "org.apache.kafka.tools.api.StringDecoder"
_NUMBER_DECODERS: Final = {
    "org.apache.kafka.tools.api.IntegerDecoder": struct.Struct(">i"),
    "org.apache.kafka.tools.api.LongDecoder": struct.Struct(">q"),
}
DECODER_CLASSES: Final = (STRING_DECODER, *_NUMBER_DECODERS)


class PlainDecoder:
    """Keys and payloads as UTF-8 text, or as numbers by Kafka's decoder classes."""

    def __init__(self, key_class: str = STRING_DECODER, value_class: str = STRING_DECODER) -> None:
        self._key_number = _NUMBER_DECODERS.get(key_class)
        self._value_number = _NUMBER_DECODERS.get(value_class)

    def __call__(self, record: DumpRecord) -> Contents:
        return _plain(record.key, self._key_number, record), _plain(record.value, self._value_number, record)


def _plain(data: bytes | None, number: struct.Struct | None, record: DumpRecord) -> object | None:
    if data is None or number is None:
        return data
    if len(data) < number.size:
        raise DumpError(f"a number of {number.size} bytes expected at offset {record.offset}, found {len(data)} bytes")
    return str(number.unpack_from(data)[0])


_TITLES: Final[Mapping[str, str]] = {
    "LeaderChange": "LeaderChange:",
    "SnapshotHeader": "SnapshotHeader",
    "SnapshotFooter": "SnapshotFooter",
    "KRaftVersion": "KRaftVersion",
    "KRaftVoters": "KRaftVoters",
}


@dataclass(frozen=True, slots=True)
class ControlDescription:
    """A control record's content: `text` as kafka-dump-log appends it to the record's line, `tree` for JSON."""

    text: str
    tree: Mapping[str, Any]


def describe_control_record(batch: DumpedBatch, record: DumpRecord) -> ControlDescription:
    """Describe a record of a control batch. Raises DumpError if its key or value is invalid."""
    try:
        parsed = parse_control_record(record.key, record.value, file=batch.file, file_position=batch.position)
    except DiskFormatError as error:
        raise batch.damaged(f"expected {error.expected}, found {error.found}") from error
    if parsed is None:
        type_id = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
        return ControlDescription(f" controlType: UNKNOWN({type_id})", {"controlType": "UNKNOWN", "typeId": type_id})
    if isinstance(parsed, EndTransactionMarker):
        name = parsed.control_type.name
        return ControlDescription(
            f" endTxnMarker: {name} coordinatorEpoch: {parsed.coordinator_epoch}",
            {"controlType": name, "coordinatorEpoch": parsed.coordinator_epoch},
        )
    kind = type(parsed).__name__
    tree = _tree(parsed)
    return ControlDescription(f" {_TITLES[kind]} {json_text(tree)}", {"controlType": kind, "data": tree})


def _tree(record: ControlRecord) -> dict[str, Any]:
    """The fields in the order of Kafka's schemas."""
    if isinstance(record, LeaderChange):
        return {
            "version": record.version,
            "leaderId": record.leader_id,
            "voters": [_leader_change_voter(voter) for voter in record.voters],
            "grantingVoters": [_leader_change_voter(voter) for voter in record.granting_voters],
        }
    if isinstance(record, SnapshotHeader):
        return {"version": record.version, "lastContainedLogTimestamp": record.last_contained_log_timestamp_ms}
    if isinstance(record, KRaftVersion):
        return {"version": record.version, "kRaftVersion": record.kraft_version}
    if isinstance(record, KRaftVoters):
        return {"version": record.version, "voters": [_voter(voter) for voter in record.voters]}
    assert not isinstance(record, EndTransactionMarker)
    return {"version": record.version}


def _leader_change_voter(voter: LeaderChangeVoter) -> dict[str, Any]:
    tree: dict[str, Any] = {"voterId": voter.voter_id}
    if voter.directory_id is not None:
        tree["voterDirectoryId"] = encode_uuid(voter.directory_id.bytes)
    return tree


def _voter(voter: Voter) -> dict[str, Any]:
    return {
        "voterId": voter.voter_id,
        "voterDirectoryId": encode_uuid(voter.directory_id.bytes),
        "endpoints": [
            {"name": endpoint.name, "host": endpoint.host, "port": endpoint.port} for endpoint in voter.endpoints
        ],
        "kRaftVersionFeature": {
            "minSupportedVersion": voter.min_supported_version,
            "maxSupportedVersion": voter.max_supported_version,
        },
    }


TIMESTAMP_TYPE_NAMES: Final = {
    None: "NoTimestampType",  # of messages of format 0
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


def codec_name(batch: DumpedBatch) -> str:
    """Kafka's name of the batch's codec. Raises DumpError for an unknown codec number."""
    try:
        return CODECS[CompressionType(batch.header.compression_bits)].name
    except ValueError as error:
        raise batch.damaged(f"Unknown compression type id: {batch.header.compression_bits}") from error


class TextPrinter:
    """Writes text to `out`. `decoder` None omits records' contents, `skip_metadata` all but the contents."""

    def __init__(self, out: TextIO, *, decoder: RecordDecoder | None, skip_metadata: bool) -> None:
        self._write = out.write
        self._decoder = decoder
        self._skip_metadata = skip_metadata

    def file(self, path: str) -> None:
        self._write(f"Dumping {path}\n")

    def log_start(self, offset: int) -> None:
        self._write(f"Log starting offset: {offset}\n")

    def staged_start(self) -> None:
        self._write("Staged batches, offsets counted from 0\n")

    def snapshot_start(self, end_offset: int, epoch: int) -> None:
        self._write(f"Snapshot end offset: {end_offset}, epoch: {epoch}\n")

    def bootstrap_start(self) -> None:
        self._write("KRaft bootstrap snapshot\n")

    def batch(self, batch: DumpedBatch) -> None:
        if batch.old is not None:
            self._old_message(batch, batch.old)
            return
        header = batch.header
        self._write(
            f"baseOffset: {header.base_offset} lastOffset: {batch.last_offset} count: {header.records_count} "
            f"baseSequence: {header.base_sequence} lastSequence: {batch.last_sequence} "
            f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
            f"partitionLeaderEpoch: {header.leader_epoch} isTransactional: {_bool(header.is_transactional)} "
            f"isControl: {_bool(header.is_control)} deleteHorizonMs: {_optional_long(header.delete_horizon_ms)}"
        )
        self._write(
            f" position: {batch.position} {TIMESTAMP_TYPE_NAMES[header.timestamp_type]}: {header.max_timestamp_ms} "
            f"size: {batch.size_bytes} magic: {header.magic} compresscodec: {codec_name(batch)} "
            f"crc: {header.crc} isvalid: {_bool(batch.is_valid())}\n"
        )

    def _old_message(self, batch: DumpedBatch, message: OldMessage) -> None:
        self._write(
            f"offset: {message.offset} position: {batch.position} {TIMESTAMP_TYPE_NAMES[message.timestamp_type]}: "
            f"{message.timestamp_ms} size: {batch.size_bytes} magic: {message.magic} "
            f"compresscodec: {codec_name(batch)} crc: {message.crc} isvalid: {_bool(message.is_valid)}\n"
        )

    def record(self, batch: DumpedBatch, record: DumpRecord) -> None:
        line, prefix = "", "| "
        is_control = batch.header.is_control
        try:
            if not self._skip_metadata:
                line, prefix = self._metadata(batch, record), " "
                if is_control:
                    line += describe_control_record(batch, record).text
            if self._decoder is not None and not is_control:
                line += self._contents(self._decoder, record, prefix)
        except DumpError:  # Kafka's tool has printed this much
            self._write(line)
            raise
        self._write(line + "\n")

    def _metadata(self, batch: DumpedBatch, record: DumpRecord) -> str:
        sizes = (
            f"keySize: {-1 if record.key is None else len(record.key)} "
            f"valueSize: {-1 if record.value is None else len(record.value)}"
        )
        if record.old is not None:
            name = TIMESTAMP_TYPE_NAMES[record.old.timestamp_type]
            return (
                f"| offset: {record.offset} {name}: {record.timestamp_ms} {sizes} "
                f"isValid: {_bool(record.old.is_valid)} crc: {record.old.crc}}}"  # the brace is Kafka's
            )
        header_keys = ",".join([decode_utf8(key) for key, _ in record.headers]) if record.headers else ""
        return (
            f"| offset: {record.offset} {TIMESTAMP_TYPE_NAMES[batch.header.timestamp_type]}: {record.timestamp_ms} "
            f"{sizes} sequence: {record.sequence} headerKeys: [{header_keys}]"
        )

    def _contents(self, decoder: RecordDecoder, record: DumpRecord, prefix: str) -> str:
        key, payload = decoder(record)
        text = ""
        if key is not None:
            text, prefix = f"{prefix}key: {_content_text(key)}", " "
        return text if payload is None else f"{text}{prefix}payload: {_content_text(payload)}"

    def invalid_tail(self, file_name: str, size_bytes: int) -> None:
        self._write(f"Found {size_bytes} invalid bytes at the end of {file_name}\n")

    def empty_index(self, path: str) -> None:
        self._write(f"{path} is empty.\n")

    def sane_index(self, path: str) -> None:
        self._write(f"{path} passed sanity check.\n")

    def offset_index_entry(self, offset: int, position: int) -> None:
        self._write(f"offset: {offset} position: {position}\n")

    def time_index_entry(self, timestamp_ms: int, offset: int) -> None:
        self._write(f"timestamp: {timestamp_ms} offset: {offset}\n")

    def aborted_txn(self, entry: AbortedTxnEntry) -> None:
        self._write(
            f"version: {entry.version} producerId: {entry.producer_id} firstOffset: {entry.first_offset} "
            f"lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}\n"
        )

    def producer_state(self, entry: ProducerStateEntry) -> None:
        txn_first_offset = entry.current_txn_first_offset if entry.current_txn_first_offset >= 0 else None
        line = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: {_optional_long(txn_first_offset)} "
            f"lastTimestamp: {entry.last_timestamp_ms} "
        )
        if entry.last_offset >= 0:
            line += (
                f"firstSequence: {decrement_sequence(entry.last_sequence, entry.offset_delta)} "
                f"lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset} "
                f"offsetDelta: {entry.offset_delta} timestamp: {entry.last_timestamp_ms}"
            )
        self._write(line + "\n")


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _optional_long(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _content_text(content: object) -> str:
    if isinstance(content, bytes):
        return decode_utf8(content)
    return json_text(content) if isinstance(content, Mapping) else str(content)


class JsonPrinter:
    """Writes JSON Lines to `out`. `decoder` None omits records' contents, `skip_metadata` all but the contents."""

    def __init__(self, out: TextIO, *, decoder: RecordDecoder | None, skip_metadata: bool) -> None:
        self._out = out
        self._decoder = decoder
        self._skip_metadata = skip_metadata

    def _line(self, kind: str, **fields: object) -> None:
        self._out.write(json_line({"type": kind, **fields}))

    def file(self, path: str) -> None:
        self._line("file", file=path)

    def log_start(self, offset: int) -> None:
        self._line("log", startingOffset=offset)

    def staged_start(self) -> None:
        self._line("staged", startingOffset=0)

    def snapshot_start(self, end_offset: int, epoch: int) -> None:
        self._line("snapshot", endOffset=end_offset, epoch=epoch)

    def bootstrap_start(self) -> None:
        self._line("bootstrapSnapshot")

    def batch(self, batch: DumpedBatch) -> None:
        if batch.old is not None:
            self._old_message(batch, batch.old)
            return
        header = batch.header
        self._line(
            "batch",
            baseOffset=header.base_offset,
            lastOffset=batch.last_offset,
            count=header.records_count,
            baseSequence=header.base_sequence,
            lastSequence=batch.last_sequence,
            producerId=header.producer_id,
            producerEpoch=header.producer_epoch,
            partitionLeaderEpoch=header.leader_epoch,
            isTransactional=header.is_transactional,
            isControl=header.is_control,
            deleteHorizonMs=header.delete_horizon_ms,
            position=batch.position,
            timestampType=TIMESTAMP_TYPE_NAMES[header.timestamp_type],
            maxTimestamp=header.max_timestamp_ms,
            size=batch.size_bytes,
            magic=header.magic,
            compresscodec=codec_name(batch),
            crc=header.crc,
            isvalid=batch.is_valid(),
        )

    def _old_message(self, batch: DumpedBatch, message: OldMessage) -> None:
        self._line(
            "message",
            offset=message.offset,
            position=batch.position,
            timestampType=TIMESTAMP_TYPE_NAMES[message.timestamp_type],
            timestamp=message.timestamp_ms,
            size=batch.size_bytes,
            magic=message.magic,
            compresscodec=codec_name(batch),
            crc=message.crc,
            isvalid=message.is_valid,
        )

    def record(self, batch: DumpedBatch, record: DumpRecord) -> None:
        fields: dict[str, object] = {}
        is_control = batch.header.is_control
        if not self._skip_metadata:
            fields = _metadata(batch, record)
            if is_control:
                fields.update(describe_control_record(batch, record).tree)
        if self._decoder is not None and not is_control:
            key, payload = self._decoder(record)
            fields["key"] = _content(key)
            fields["payload"] = _content(payload)
            fields["headers"] = [{"key": _content(name), "value": _content(value)} for name, value in record.headers]
        self._line("record", **fields)

    def invalid_tail(self, file_name: str, size_bytes: int) -> None:
        self._line("invalidBytes", file=file_name, size=size_bytes)

    def empty_index(self, path: str) -> None:
        self._line("emptyIndex", file=path)

    def sane_index(self, path: str) -> None:
        self._line("sanityCheck", file=path, passed=True)

    def offset_index_entry(self, offset: int, position: int) -> None:
        self._line("offsetIndexEntry", offset=offset, position=position)

    def time_index_entry(self, timestamp_ms: int, offset: int) -> None:
        self._line("timeIndexEntry", timestamp=timestamp_ms, offset=offset)

    def aborted_txn(self, entry: AbortedTxnEntry) -> None:
        self._line(
            "abortedTransaction",
            version=entry.version,
            producerId=entry.producer_id,
            firstOffset=entry.first_offset,
            lastOffset=entry.last_offset,
            lastStableOffset=entry.last_stable_offset,
        )

    def producer_state(self, entry: ProducerStateEntry) -> None:
        self._line(
            "producerState",
            producerId=entry.producer_id,
            producerEpoch=entry.producer_epoch,
            coordinatorEpoch=entry.coordinator_epoch,
            currentTxnFirstOffset=None if entry.current_txn_first_offset < 0 else entry.current_txn_first_offset,
            lastTimestamp=entry.last_timestamp_ms,
            lastSequence=entry.last_sequence,
            lastOffset=entry.last_offset,
            offsetDelta=entry.offset_delta,
        )


def _metadata(batch: DumpedBatch, record: DumpRecord) -> dict[str, object]:
    timestamp_type = batch.header.timestamp_type if record.old is None else record.old.timestamp_type
    return {
        "offset": record.offset,
        "timestampType": TIMESTAMP_TYPE_NAMES[timestamp_type],
        "timestamp": record.timestamp_ms,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": record.sequence,
        "headerKeys": [decode_utf8(key) for key, _ in record.headers],
    }


def _content(content: object | None) -> object | None:
    if isinstance(content, bytes):
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(content).decode("ascii")}
    if isinstance(content, Mapping):
        return json.loads(json_text(content))  # type: ignore[no-any-return]  # as Kafka writes it: NaN is a string
    return content
