"""Mutated record batches through both decoders: an error of this package or the same records, from both alike.

The plain decoder is the reference. Most mutations get a right length and CRC again, so that they reach the records. A
crash or a hang of a decoder ends or stalls the whole test run; a failure prints the seed and the batch.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from builders.record_fixtures import decode_batches, decode_log, kafka_logs

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.columns import BinaryColumn, RecordColumns
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CONTROL_MASK,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    RECORDS_AT,
    RECORDS_COUNT_AT,
    BatchHeader,
    crc32c,
)
from pyspark_kafkalog.record.reference import decode_batch, encode_varint, encode_varlong, seal
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs

SEED = 20261121
MUTATIONS_PER_CODEC = 2_500  # times five codecs and two tests
ALL_COLUMNS = frozenset({"key", "value", "headers", "offset", "timestamp", "timestampType"})
FILE = "00000000000000000000.log"

Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]

INTERESTING = [
    *(0, 1, 2, 3, 5, 10, 60, 63, 64, 127, 128, 255, 256, 8191, 8192, 65535, 65536),
    *(2**24, 2**30, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1),
]
FIELDS = [
    *((BASE_OFFSET_AT, 8), (MAGIC_AT, 1), (ATTRIBUTES_AT, 2), (LAST_OFFSET_DELTA_AT, 4), (BASE_TIMESTAMP_AT, 8)),
    *((MAX_TIMESTAMP_AT, 8), (BASE_SEQUENCE_AT, 4), (RECORDS_COUNT_AT, 4)),
]


# --- the two decoders -------------------------------------------------------------------------------------------------


def plain_rows(data: bytes) -> list[Row]:
    batch = decode_batch(data, 0, file=FILE, file_position=0)
    return [
        (r.offset, r.timestamp_ms, int(batch.header.timestamp_type), r.key, r.value, r.headers) for r in batch.records
    ]


def compiled_rows(data: bytes, offsets: range = range(2**63 - 1), times_ms: range | None = None) -> list[Row]:
    view = np.frombuffer(data, dtype=np.uint8)
    scan = scan_batches(view, file=FILE, max_batches=1)
    if scan.fault is not None:
        raise scan.fault
    if not len(scan.batches):
        raise DiskFormatError(file=FILE, position=0, expected="a whole batch", found="part of one")
    verify_crcs(view, scan.batches, data_position=0, file=FILE)
    columns = decode_batches(
        view,
        scan.batches,
        data_position=0,
        file=FILE,
        columns=ALL_COLUMNS,
        start_offset=offsets.start,
        end_offset=offsets.stop,
        min_timestamp_ms=times_ms.start if times_ms else None,
        until_timestamp_ms=times_ms.stop if times_ms else None,
    )
    return column_rows(columns)


def column_rows(columns: RecordColumns) -> list[Row]:
    assert columns.offsets is not None
    assert columns.timestamps_ms is not None
    assert columns.timestamp_types is not None
    assert columns.keys is not None
    assert columns.values is not None
    assert columns.headers is not None
    header_keys, header_values = cells(columns.headers.keys), cells(columns.headers.values)
    bounds = columns.headers.offsets.tolist()
    headers = [
        tuple(zip(header_keys[start:end], header_values[start:end], strict=True)) for start, end in pairwise(bounds)
    ]
    fields = (columns.offsets, columns.timestamps_ms, columns.timestamp_types)
    rows = zip(*(f.tolist() for f in fields), cells(columns.keys), cells(columns.values), headers, strict=True)
    return list(rows)  # type: ignore[arg-type]


def cells(column: BinaryColumn) -> list[bytes | None]:
    bounds = column.offsets.tolist()
    found: list[bytes | None] = [column.data[a:b].tobytes() for a, b in pairwise(bounds)]
    if column.validity is not None:
        valid = np.unpackbits(column.validity, bitorder="little")
        found = [cell if valid[i] else None for i, cell in enumerate(found)]
    return found


def outcome(decode: Callable[[bytes], list[Row]], data: bytes) -> list[Row] | None:
    """The rows, or None where the decoder refuses the batch in the way it should."""
    try:
        return decode(data)
    except DiskFormatError as error:
        refusal = error
    assert refusal.file == FILE
    assert 0 <= refusal.position <= len(data)
    return None


def check(data: bytes, outcomes: Counter[str], label: str) -> None:
    """Hold the two decoders against each other on one batch."""
    plain = outcome(plain_rows, data)
    compiled = outcome(compiled_rows, data)
    if compiled == [] and len(data) > ATTRIBUTES_AT + 1 and data[ATTRIBUTES_AT + 1] & CONTROL_MASK:
        outcomes["control"] += 1  # the compiled decoder passes over control batches without a look
        return
    assert compiled == plain, f"{label}: {data.hex()}"
    if plain:
        check_ranges(data, plain, label)
    outcomes["refused" if plain is None else "read"] += 1


def check_ranges(data: bytes, rows: list[Row], label: str) -> None:
    """Ranges around the middle record give the part of the rows that lies in them."""
    offset, timestamp = rows[len(rows) // 2][:2]
    upper = [row for row in rows if row[0] >= offset]
    assert compiled_rows(data, range(offset, 2**63 - 1)) == upper, f"{label}: offsets {offset}..., {data.hex()}"
    times_ms = range(timestamp, timestamp + 3)
    if max(row[1] for row in rows) > int.from_bytes(data[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8], "big", signed=True):
        return  # the header's max timestamp is wrong, and a time range goes by it
    at_time = [row for row in rows if row[1] in times_ms]
    assert compiled_rows(data, times_ms=times_ms) == at_time, f"{label}: times {times_ms}, {data.hex()}"


# --- mutations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A sound batch: its header's bytes, its records before and after compression."""

    header: bytes
    codec: CompressionType
    records: bytes
    body: bytes


def fixture_samples(fixtures: Path, codec: CompressionType) -> list[Sample]:
    """Small data batches that brokers and clients wrote, of many files."""
    found: list[Sample] = []
    for path in kafka_logs(fixtures):
        of_file = [
            (data, batch.header)
            for _, data, batch in decode_log(path)
            if batch.header.compression_bits == codec and not batch.header.is_control and len(data) < 1500
        ]
        for data, _ in of_file[:4]:
            body = data[RECORDS_AT:]
            records = body
            if codec is not CompressionType.NONE and body:
                records = CODECS[codec].decompress(body, file=str(path), file_position=0).tobytes()
            found.append(Sample(data[:RECORDS_AT], codec, records, body))
    return found


def mutate_bytes(rng: random.Random, data: bytes, donor: bytes) -> bytes:
    """A few random changes anywhere."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.choice((0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xFE, 0xFF))
        elif kind == 2:
            out[at:at] = rng.choice((b"\xff" * rng.randrange(1, 12), b"\x80" * rng.randrange(1, 12), rng.randbytes(3)))
        elif kind == 3:
            del out[at : at + rng.randrange(1, 8)]
        elif kind == 4:
            del out[at:]
        elif kind == 5:
            source = rng.randrange(len(donor) + 1)
            out[at : at + rng.randrange(20)] = donor[source : source + rng.randrange(40)]
        else:
            number = rng.choice(INTERESTING) * rng.choice((1, -1))
            out[at : at + rng.randrange(1, 4)] = encode_varlong(max(-(2**63), number))
    return bytes(out)


def mutate_header(rng: random.Random, header: bytes) -> bytes:
    out = bytearray(header)
    at, size = rng.choice(FIELDS)
    number = rng.choice(INTERESTING) * rng.choice((1, -1))
    if at == ATTRIBUTES_AT:
        number = rng.randrange(256) & ~CONTROL_MASK
    out[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, "big")
    return bytes(out)


def resealed(rng: random.Random, header: bytes, body: bytes) -> bytes:
    """The batch, nearly always with the length and CRC that it calls for."""
    out = bytearray(header + body)
    if rng.random() < 0.95:
        struct.pack_into(">i", out, LENGTH_AT, len(out) - LOG_OVERHEAD_BYTES)
    if rng.random() < 0.97:
        out[CRC_AT:ATTRIBUTES_AT] = crc32c(bytes(out[ATTRIBUTES_AT:])).to_bytes(4, "big")
    return bytes(out)


def mutated_sample(rng: random.Random, samples: list[Sample]) -> bytes:
    """A fixture's batch with changes in its header, its compressed bytes or its records."""
    sample, donor = rng.choice(samples), rng.choice(samples)
    header, body = sample.header, sample.body
    kind = rng.random()
    if kind < 0.25:
        header = mutate_header(rng, header)
    elif kind < 0.5 and sample.codec is not CompressionType.NONE:
        body = mutate_bytes(rng, body, donor.body)
    else:
        body = CODECS[sample.codec].compress(mutate_bytes(rng, sample.records, donor.records))
    return resealed(rng, header, body)


def odd_varint(rng: random.Random, value: int, encode: Callable[[int], bytes], odds: float) -> bytes:
    """`value`, or now and then another number, or bytes that are none."""
    if rng.random() >= odds:
        return encode(value)
    kind = rng.randrange(4)
    if kind == 0:
        return encode(value + rng.choice((-2, -1, 1, 2)))
    if kind == 1:
        number = rng.choice(INTERESTING) * rng.choice((1, -1))
        return encode(max(-(2**31), min(number, 2**31 - 1)))
    plain = bytearray(encode(value))
    plain[-1] |= 0x80  # the same value in more bytes than it needs; some are too many
    return bytes(plain) + b"\x80" * rng.randrange(9) + rng.choice((b"\x00", b"\x00", b"\x7f", b"\x80"))


def structured_batch(rng: random.Random, codec: CompressionType) -> bytes:
    """A batch put together from fields, most of them right, so that faults lie deep."""
    odds = rng.choice((0.0, 0.01, 0.03, 0.1))
    varint = partial(odd_varint, rng, encode=encode_varint, odds=odds)

    def sized(nullable: bool) -> bytes:
        if nullable and rng.random() < 0.3:
            return varint(-1)
        content = rng.randbytes(rng.choice((0, 0, 1, 3, 10, 31, 32, 33, 100, 300)))
        return varint(len(content)) + content

    body = b""
    count = rng.choice((0, 1, 2, 3, 9, 20))
    delta = -1
    for _ in range(count):
        delta += rng.choice((1, 1, 1, 2, 50))
        headers = rng.choice((0, 0, 0, 1, 2, 5))
        record = rng.choice((b"\x00", b"\x00", b"\xff"))
        record += odd_varint(rng, rng.choice((0, 1, -5, 2**40, -(2**63))), encode_varlong, odds) + varint(delta)
        record += sized(True) + sized(True) + varint(headers)
        record += b"".join(sized(False) + sized(True) for _ in range(headers))
        body += varint(len(record)) + record
    packed = CODECS[codec].compress(body)
    attributes = codec | rng.choice((0, 0, 0x08, 0x10, 0x40, 0x80, 0x7F00))
    header = BatchHeader(
        base_offset=rng.choice((0, 5, 2**40, 2**63 - 2000)),
        size_bytes=RECORDS_AT + len(packed),
        attributes=attributes,
        last_offset_delta=max(delta, 0) + rng.choice((0, 0, 0, 7)) if rng.random() > odds else max(delta - 1, 0),
        base_timestamp_ms=rng.choice((-1, 0, 1_700_000_000_000, 2**63 - 1, -(2**63))),
        max_timestamp_ms=rng.choice((-1, 1_700_000_000_000)),
        records_count=count + rng.choice((-1, 1)) if count and rng.random() < odds else count,
    )
    return seal(header, packed)


# --- tests ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("codec", list(CompressionType))
def test_mutated_batches_of_real_logs_are_read_alike_or_refused(kafka_fixtures: Path, codec: CompressionType) -> None:
    samples = fixture_samples(kafka_fixtures, codec)
    rng = random.Random(SEED + codec)
    outcomes: Counter[str] = Counter()
    print(f"seed {SEED}, {MUTATIONS_PER_CODEC} mutations of {len(samples)} batches")
    for i in range(MUTATIONS_PER_CODEC):
        check(mutated_sample(rng, samples), outcomes, f"seed {SEED}, codec {codec.name}, mutation {i}")
    assert outcomes["refused"] > MUTATIONS_PER_CODEC / 4
    assert outcomes["read"] > MUTATIONS_PER_CODEC / 20, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("codec", list(CompressionType))
def test_batches_with_faults_deep_in_records_are_read_alike_or_refused(codec: CompressionType) -> None:
    rng = random.Random(SEED - 1 - codec)
    outcomes: Counter[str] = Counter()
    print(f"seed {SEED}, {MUTATIONS_PER_CODEC} structured batches")
    for i in range(MUTATIONS_PER_CODEC):
        check(structured_batch(rng, codec), outcomes, f"seed {SEED}, codec {codec.name}, batch {i}")
    assert outcomes["refused"] > MUTATIONS_PER_CODEC / 4
    assert outcomes["read"] > MUTATIONS_PER_CODEC / 4, outcomes
