"""The dump as JSON Lines (`--output json`): one object for each item of the dump; `type` states its kind.

Numbers are JSON numbers, times are ms. Keys and values are strings if they are UTF-8, else `{"base64": "..."}`; a
decoder's output is a JSON tree. Sizes are -1 for null, as in the text form. Problems are printed to stderr as text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TextIO

from pyspark_kafkalog.metadata.messages.json_form import json_text
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.tools.dump.control import describe_control_record
from pyspark_kafkalog.tools.dump.java_text import decode_utf8
from pyspark_kafkalog.tools.dump.printer import AbortedTxnEntry, RecordDecoder
from pyspark_kafkalog.tools.dump.records import DumpRecord
from pyspark_kafkalog.tools.dump.text import TIMESTAMP_TYPE_NAMES, codec_name
from pyspark_kafkalog.tools.dump.walk import DumpedBatch


class JsonPrinter:
    """Writes JSON Lines to `out`. `decoder` None omits records' contents, `skip_metadata` all but the contents."""

    def __init__(self, out: TextIO, *, decoder: RecordDecoder | None, skip_metadata: bool) -> None:
        self._out = out
        self._decoder = decoder
        self._skip_metadata = skip_metadata

    def _line(self, kind: str, **fields: object) -> None:
        self._out.write(json.dumps({"type": kind, **fields}, ensure_ascii=False) + "\n")

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
    return {
        "offset": record.offset,
        "timestampType": TIMESTAMP_TYPE_NAMES[batch.header.timestamp_type],
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
