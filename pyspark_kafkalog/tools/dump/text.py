"""The dump as text, byte for byte what kafka-dump-log 4.1 writes to stdout.

A part of a line is written before the next part is computed: if Kafka's tool fails within a line, this dump fails
there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TextIO

from pyspark_kafkalog.metadata.messages.json_form import json_text
from pyspark_kafkalog.record.header import CompressionType, TimestampType
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.tools.dump.control import describe_control_record
from pyspark_kafkalog.tools.dump.java_text import decode_utf8
from pyspark_kafkalog.tools.dump.printer import AbortedTxnEntry, RecordDecoder
from pyspark_kafkalog.tools.dump.records import DumpRecord, decrement_sequence
from pyspark_kafkalog.tools.dump.walk import DumpedBatch

TIMESTAMP_TYPE_NAMES: Final = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}


def codec_name(batch: DumpedBatch) -> str:
    """Kafka's name of the batch's codec. Raises DumpError for an unknown codec number."""
    try:
        return CompressionType(batch.header.compression_bits).name.lower()
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

    def record(self, batch: DumpedBatch, record: DumpRecord) -> None:
        prefix = "| "
        is_control = batch.header.is_control
        if not self._skip_metadata:
            self._metadata(batch, record)
            prefix = " "
            if is_control:
                self._write(describe_control_record(batch, record).text)
        if self._decoder is not None and not is_control:
            self._contents(self._decoder, record, prefix)
        self._write("\n")

    def _metadata(self, batch: DumpedBatch, record: DumpRecord) -> None:
        header_keys = ",".join([decode_utf8(key) for key, _ in record.headers])
        self._write(
            f"| offset: {record.offset} {TIMESTAMP_TYPE_NAMES[batch.header.timestamp_type]}: {record.timestamp_ms} "
            f"keySize: {-1 if record.key is None else len(record.key)} "
            f"valueSize: {-1 if record.value is None else len(record.value)} "
            f"sequence: {record.sequence} headerKeys: [{header_keys}]"
        )

    def _contents(self, decoder: RecordDecoder, record: DumpRecord, prefix: str) -> None:
        key, payload = decoder(record)
        if key is not None:
            self._write(f"{prefix}key: {_content_text(key)}")
        if payload is not None:
            self._write(f" payload: {_content_text(payload)}")

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
