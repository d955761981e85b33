"""walk_headers equals its plain twin, for whole, cut and damaged batches and any limits."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, BatchHeader, parse_header
from pyspark_kafkalog.record.kernels.scan import BAD_HEADER, END_OF_DATA, LIMIT_REACHED, OFFSET_REACHED, walk_headers

BATCHES = st.lists(
    st.tuples(st.integers(-2, 5), st.integers(-1, 9), st.integers(0, 200), st.integers(0, 0x7F) | st.just(-(1 << 15))),
    max_size=12,
)


def walk_plainly(data: bytes, at: int, limit: int, previous_offset: int, stop_offset: int) -> tuple[int, int, int, int]:
    attributes = 0
    while True:
        if limit - at < RECORD_BATCH_OVERHEAD_BYTES:
            return at, previous_offset, attributes, LIMIT_REACHED
        if len(data) - at < RECORD_BATCH_OVERHEAD_BYTES:
            return at, previous_offset, attributes, END_OF_DATA
        try:
            header = parse_header(data, at, file="x", file_position=at)
        except DiskFormatError:
            return at, previous_offset, attributes, BAD_HEADER
        if header.base_offset <= previous_offset:
            return at, previous_offset, attributes, BAD_HEADER
        if header.last_offset >= stop_offset:
            return at, previous_offset, attributes, OFFSET_REACHED
        if at + header.size_bytes > limit:
            return at, previous_offset, attributes, LIMIT_REACHED
        attributes |= header.attributes
        previous_offset = header.last_offset
        at += header.size_bytes


@settings(max_examples=examples(300), deadline=None)
@given(BATCHES, st.data())
def test_walk_equals_its_plain_twin(batches: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    written, offset = bytearray(), 10
    for gap, delta, body_bytes, attributes in batches:
        size_bytes = RECORD_BATCH_OVERHEAD_BYTES + body_bytes
        header = BatchHeader(
            base_offset=offset + gap, size_bytes=size_bytes, last_offset_delta=delta, attributes=attributes
        )
        written += header.pack() + bytes(body_bytes)
        offset = max(offset + gap + delta + 1, 0)
    end = len(written)
    for position, byte in data.draw(
        st.lists(st.tuples(st.integers(0, max(end - 1, 0)), st.integers(0, 255)), max_size=2)
    ):
        if position % 61 not in range(57, 61) and end:  # the record count, which only parse_header checks
            written[position] = byte
    held = bytes(written[: data.draw(st.integers(0, end))])
    limit, stop = data.draw(st.integers(0, end + 70)), data.draw(st.integers(0, offset + 3))
    previous = data.draw(st.integers(-1, 15))
    found = walk_headers(np.frombuffer(held, np.uint8), 0, limit, previous, stop)
    plain = walk_plainly(held, 0, limit, previous, stop)
    if plain[3] == BAD_HEADER != found[3]:  # a negative count of records, which no walk needs
        count_at = plain[0] + RECORD_BATCH_OVERHEAD_BYTES - 4
        assert int.from_bytes(held[count_at : count_at + 4], "big", signed=True) < 0
        assert found[0] >= plain[0]
    else:
        assert found == plain
