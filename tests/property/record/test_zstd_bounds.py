"""The compiled check of zstd frames recognizes plain frames only, and its bound of their content is never too low."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.record.codecs.codec import BadCompressedDataError, decompressed_limit_bytes
from pyspark_kafkalog.record.codecs.zstd import _measure_frame, decompress
from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.record.kernels.zstd import ZstdBatchDecoder, bounds_of

CONTENTS = st.one_of(
    st.binary(max_size=300),
    st.integers(0, 300_000).map(bytes),
    st.integers(0, 40_000).map(lambda size: b"%d," * size),
    st.tuples(st.integers(0, 200_000), st.integers(0, 9)).map(
        lambda drawn: np.random.default_rng(drawn[1]).integers(0, 256, drawn[0], np.uint8).tobytes()
    ),
)
FRAMES = st.builds(
    lambda content, level, size, checksum, window_log: zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(
            level, window_log=window_log, write_content_size=size, write_checksum=checksum
        )
    ).compress(content),
    CONTENTS,
    st.sampled_from([-5, 1, 3]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([10, 14, 21]),
)


def bound_of(data: bytes) -> int:
    array = np.frombuffer(data, np.uint8)
    addresses, sizes = np.array([address_of(array)]), np.array([len(data)])
    return int(bounds_of(addresses, sizes)[0])


def decompress_compiled(data: bytes, bound: int) -> bytes | None:
    """The frame's content by the compiled loop; None if it leaves the frame to others."""
    array = np.frombuffer(data, np.uint8)
    scratch = np.empty(bound, np.uint8)
    one = np.array([len(data)])
    frames = ZstdBatchDecoder(
        np.array([address_of(array)]),
        one,
        np.array([bound]),
        np.zeros(1, np.uint32),
        one.copy(),
        stop_bytes=1 << 30,
        bound_max=bound,
        check_crcs=False,
    )
    return None if frames.decompress(scratch) else scratch[: frames.filled].tobytes()


def assert_as_plain(data: bytes) -> None:
    """What has a bound is read as the plain way reads it, which measures the same bound."""
    bound = bound_of(data)
    if bound < 0:
        return
    array = np.frombuffer(data, np.uint8)
    end, most_bytes, stated = _measure_frame(array, 0)
    assert (end, most_bytes) == (len(data), bound)
    assert stated is None or stated <= bound <= decompressed_limit_bytes(len(data))
    content = decompress_compiled(data, bound)
    if content is not None:
        assert content == decompress(array, decompressed_limit_bytes(len(data))).tobytes()
    else:
        with pytest.raises(BadCompressedDataError):
            decompress(array, decompressed_limit_bytes(len(data)))


@given(FRAMES)
@settings(max_examples=examples(60), deadline=None)
def test_plain_frame_is_recognized_and_decompressed_whole(frame: bytes) -> None:
    assert_as_plain(frame)
    if len(frame) >= 14:
        assert bound_of(frame) >= 0
        content = decompress_compiled(frame, bound_of(frame))
        assert content == zstandard.ZstdDecompressor().decompressobj().decompress(frame)


@given(FRAMES, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=3), st.integers(-20, 20))
@settings(max_examples=examples(150), deadline=None)
def test_damaged_frame_with_bound_is_read_as_by_plain_decoder(
    frame: bytes, changes: list[tuple[int, int]], growth: int
) -> None:
    data = bytearray(frame)
    for at, value in changes:
        data[at % len(data)] = value
    assert_as_plain(bytes(data) + bytes(growth) if growth > 0 else bytes(data[: len(data) + growth]))


@given(FRAMES, FRAMES)
@settings(max_examples=examples(20), deadline=None)
def test_two_frames_have_no_bound(one: bytes, other: bytes) -> None:
    assert bound_of(one + other) < 0
