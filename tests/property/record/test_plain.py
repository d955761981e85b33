"""Encoded records are decoded to themselves, over every attribute, codec and shape of record."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.header import RECORDS_AT, BatchHeader, TimestampType, parse_header
from pyspark_kafkalog.record.reference import Record, decode_batch, decode_records, encode_batch, encode_records

FILE = "00000000000000000000.log"
EXAMPLES = settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])

TIMESTAMPS_MS = st.one_of(st.just(-1), st.integers(0, 2**41), st.integers(0, 2**63 - 1))
BYTES = st.one_of(st.just(b""), st.binary(max_size=40), st.binary(min_size=120, max_size=140), st.binary(max_size=9000))
NULLABLE = st.one_of(st.none(), BYTES)
HEADER_KEYS = st.one_of(st.sampled_from(["", "a", "trace-id"]), st.text(max_size=20)).map(str.encode)
HEADERS = st.lists(st.tuples(HEADER_KEYS, st.one_of(st.none(), st.binary(max_size=20))), max_size=4).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, min_size: int = 1) -> list[Record]:
    """Records of rising offsets, with gaps as the cleaner leaves them."""
    gaps = draw(st.lists(st.one_of(st.just(1), st.integers(1, 200)), min_size=min_size, max_size=12))
    offset = draw(st.one_of(st.just(-1), st.integers(-1, 2**62)))
    records = []
    for gap in gaps:
        offset += gap
        records.append(
            Record(
                offset=offset,
                timestamp_ms=draw(TIMESTAMPS_MS),
                key=draw(NULLABLE),
                value=draw(NULLABLE),
                headers=draw(HEADERS),
                attributes=draw(st.integers(0, 255)),
            )
        )
    return records


@st.composite
def batch_options(draw: st.DrawFn) -> dict[str, object]:
    """Every attribute and header field that a batch can have."""
    options: dict[str, object] = {
        "compression": draw(st.sampled_from(CompressionType)),
        "leader_epoch": draw(st.integers(-1, 2**31 - 1)),
        "is_control": draw(st.booleans()),
        "delete_horizon_ms": draw(st.one_of(st.none(), st.integers(0, 2**63 - 1))),
    }
    if draw(st.booleans()):
        options |= {
            "timestamp_type": TimestampType.LOG_APPEND_TIME,
            "max_timestamp_ms": draw(st.integers(0, 2**63 - 1)),
        }
    if draw(st.booleans()):
        options |= {
            "producer_id": draw(st.integers(0, 2**63 - 1)),
            "producer_epoch": draw(st.integers(0, 2**15 - 1)),
            "base_sequence": draw(st.integers(0, 2**31 - 1)),
            "is_transactional": draw(st.booleans()),
        }
    return options


def expected_record(record: Record, header: BatchHeader) -> Record:
    sequence = -1
    if header.base_sequence >= 0:
        sequence = (header.base_sequence + record.offset - header.base_offset) % 2**31
    timestamp_ms = record.timestamp_ms
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        timestamp_ms = header.max_timestamp_ms
    return replace(record, sequence=sequence, timestamp_ms=timestamp_ms)


@EXAMPLES
@given(record_lists(), batch_options(), st.integers(0, 5), st.integers(0, 5))
def test_encoded_batch_decodes_to_same_records(
    records: list[Record], options: dict[str, object], before: int, after: int
) -> None:
    first, last = max(records[0].offset - before, 0), records[-1].offset + after
    data = encode_batch(records, base_offset=first, last_offset=last, **options)  # type: ignore[arg-type]
    batch = decode_batch(b"before" + data + b"after", 6, file=FILE, file_position=6)
    header = batch.header
    assert header.size_bytes == len(data)
    assert (header.base_offset, header.last_offset) == (first, last)
    assert batch.records == tuple(expected_record(record, header) for record in records)
    for name, value in options.items():
        if name == "compression":
            assert header.compression_bits == value
        else:
            assert getattr(header, name) == value
    if header.timestamp_type is TimestampType.CREATE_TIME:
        assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    if options["delete_horizon_ms"] is None:
        assert header.base_timestamp_ms == records[0].timestamp_ms
    assert parse_header(data, 0, file=FILE, file_position=0) == header


@EXAMPLES
@given(record_lists(), batch_options())
def test_stored_timestamps_encode_to_same_bytes(records: list[Record], options: dict[str, object]) -> None:
    """Decoding for rewriting loses nothing, not even the record times under LogAppendTime."""
    options |= {"compression": CompressionType.NONE}
    data = encode_batch(records, **options)  # type: ignore[arg-type]
    header = parse_header(data, 0, file=FILE, file_position=0)
    stored = decode_records(data[RECORDS_AT:], header, file=FILE, file_position=0)
    assert encode_batch(stored, **options) == data  # type: ignore[arg-type]


@EXAMPLES
@given(record_lists(), st.data())
def test_cut_or_extended_records_are_refused(records: list[Record], data: st.DataObject) -> None:
    body = encode_records(records, base_offset=records[0].offset, base_timestamp_ms=0)
    header = BatchHeader(
        base_offset=records[0].offset,
        size_bytes=RECORDS_AT + len(body),
        last_offset_delta=records[-1].offset - records[0].offset,
        records_count=len(records),
    )
    cut = data.draw(st.integers(0, len(body) - 1))
    for damaged in (body[:cut], body + b"\0", body + body):
        try:
            decode_records(damaged, header, file=FILE, file_position=0)
        except DiskFormatError:
            continue
        raise AssertionError(f"{damaged.hex()} was read as {header}")


@EXAMPLES
@given(
    st.sampled_from(CompressionType),
    st.one_of(
        st.binary(max_size=2000),
        st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=300), st.integers(0, 3000)),
    ),
)
def test_compressed_bytes_decompress_to_same_bytes(codec: CompressionType, content: bytes) -> None:
    packed = CODECS[codec].compress(content)
    assert CODECS[codec].decompress(packed, file=FILE, file_position=0).tobytes() == content


@EXAMPLES
@given(st.sampled_from(CompressionType), st.binary(max_size=300), st.integers(0, 3))
def test_arbitrary_bytes_are_decompressed_or_refused(codec: CompressionType, noise: bytes, kept_header: int) -> None:
    """Also behind the first bytes of a valid stream, so that the codec's own parser is reached."""
    prefix = CODECS[codec].compress(b"sound content " * 9)[: 8 * kept_header]
    try:
        content = CODECS[codec].decompress(prefix + noise, file=FILE, file_position=0)
    except DiskFormatError as error:
        refusal = error
    else:
        assert content.size <= 32 * 1024 * 1024
        return
    assert 0 <= refusal.position <= len(prefix + noise)
