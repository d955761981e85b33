"""The record batches of the fixtures, and all records of some batches as the compiled decoder gives them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.columns import BinaryColumn, HeaderColumn, RecordColumns
from pyspark_kafkalog.record.decode import decode_slices
from pyspark_kafkalog.record.header import parse_header
from pyspark_kafkalog.record.reference import Record, RecordBatch, decode_batch, encode_batch

#: The logs of fixture `unclean` that end in something other than a batch, and where that begins.
DAMAGED_TAILS = {
    "unclean-badcrc-0/00000000000000000294.log": 1942,
    "unclean-garbage-0/00000000000000000297.log": 1968,
    "unclean-torn-0/00000000000000000291.log": 2330,
}


def kafka_logs(fixtures: Path) -> list[Path]:
    """Every file of record batches that a broker left: segments, and snapshots of the metadata log."""
    found = [*fixtures.glob("*/*-*/*.log"), *fixtures.glob("*/__cluster_metadata-0/*.checkpoint")]
    return sorted(path for path in found if path.stat().st_size and "expected" not in path.parts)


def sound_bytes(path: Path) -> bytes:
    """The file up to its damaged tail, if it has one."""
    data = path.read_bytes()
    return data[: DAMAGED_TAILS.get(f"{path.parent.name}/{path.name}", len(data))]


def kafka_batches(path: Path) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of each sound batch of a file."""
    data = sound_bytes(path)
    at = 0
    while at < len(data):
        size = parse_header(data, at, file=str(path), file_position=at).size_bytes
        yield at, data[at : at + size]
        at += size


def decode_log(path: Path) -> Iterator[tuple[int, bytes, RecordBatch]]:
    """Position, bytes and content of each sound batch of a file."""
    for at, data in kafka_batches(path):
        yield at, data, decode_batch(data, 0, file=str(path), file_position=at)


def encode_like(batch: RecordBatch, records: tuple[Record, ...]) -> bytes:
    """`records`, with their stored timestamps, encoded with every field as in the header of `batch`."""
    header = batch.header
    return encode_batch(
        records,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        compression=CompressionType(header.compression_bits),
        timestamp_type=header.timestamp_type,
        max_timestamp_ms=header.max_timestamp_ms,
        delete_horizon_ms=header.delete_horizon_ms,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
    )


def expected_records(fixture: Path, topic: str) -> dict[int, dict[int, dict[str, object]]]:
    """What Kafka's consumer read uncommitted from a topic: partition -> offset -> record."""
    partitions: dict[int, dict[int, dict[str, object]]] = {}
    for line in (fixture / "expected" / "records" / f"{topic}.read_uncommitted.jsonl").read_text().splitlines():
        row = json.loads(line)
        partitions.setdefault(row["partition"], {})[row["offset"]] = row
    return partitions


def as_expected(record: Record) -> dict[str, object]:
    """Key, value, headers and timestamp of a record in the form of `expected_records`."""
    return {
        "timestamp": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[key.decode(), _text(value)] for key, value in record.headers],
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


_MAX_ROWS: Final = 1 << 20
_MAX_BYTES: Final = 1 << 26


def decode_batches(
    data: NDArray[np.uint8], batches: NDArray[np.void], *, columns: frozenset[str], **arguments: Any
) -> RecordColumns:
    """The one result of `decode_slices`, which takes the same arguments; one without records where that gives none."""
    slices = list(decode_slices(data, batches, columns=columns, max_rows=_MAX_ROWS, max_bytes=_MAX_BYTES, **arguments))
    assert len(slices) <= 1
    return slices[0] if slices else _nothing(columns)


def _nothing(columns: frozenset[str]) -> RecordColumns:
    offsets = np.zeros(1, np.int32)
    binary = BinaryColumn(offsets, np.empty(0, np.uint8), None)
    made = {
        "offset": ("offsets", np.empty(0, np.int64)),
        "timestamp": ("timestamps_ms", np.empty(0, np.int64)),
        "timestampType": ("timestamp_types", np.empty(0, np.int32)),
        "key": ("keys", binary),
        "value": ("values", binary),
        "headers": ("headers", HeaderColumn(offsets, binary, binary)),
    }
    return RecordColumns(count=0, **dict(made[name] for name in columns))  # type: ignore[arg-type]
