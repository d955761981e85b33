"""Frames of anybody: each is a request or an error that names the place, quickly and within the memory of its size."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Final

import pytest
from counted_steps import counted_steps
from fakes.hostile_clients import HUGE
from simulations.random_messages import RandomMessages
from tiers import SEED, examples

from pyspark_kafkalog.errors import CorruptRecordError, UnsupportedApiError
from pyspark_kafkalog.metadata.messages.schema import write_unsigned_varint
from pyspark_kafkalog.protocol.api import APIS, Api, ApiKey, encode_request, joined, parse_request
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage

#: Bytes of memory that one byte of a frame may cost, in the worst case of the smallest structs.
MEMORY_PER_BYTE: Final = 50
#: Parsing a request of some dozen bytes takes about 4,400.
STEPS_MAX: Final = 20_000


def parsed(frame: bytes) -> ApiMessage | None:
    """The message of a frame that is one. What is none may only fail in these ways."""
    try:
        request = parse_request(frame)
        return request.body() if request.is_supported else None
    except (CorruptRecordError, UnsupportedApiError):
        return None


def start_of(api: Api, version: int) -> bytes:
    return struct.pack(">hhi", api.key, version, 1) + b"\xff\xff" + b"\0" * api.is_flexible(version)


@pytest.fixture
def source() -> random.Random:
    print(f"KAFKALOG_SEED={SEED}")
    return random.Random(SEED)


def test_random_bytes_are_a_request_or_an_error(source: random.Random) -> None:
    for _ in range(examples(20_000)):
        parsed(source.randbytes(source.choice((0, 1, 7, 8, 10, 30, 300))))


def test_random_messages_are_a_request_or_an_error(source: random.Random) -> None:
    for api in APIS.values():
        for version in api.versions:
            for _ in range(examples(50)):
                parsed(start_of(api, version) + source.randbytes(source.choice((1, 5, 20, 60))))


def test_damaged_requests_are_a_request_or_an_error(source: random.Random) -> None:
    drawn = RandomMessages(source)
    for api in APIS.values():
        for version in api.versions:
            message = drawn.draw(api.request, version)
            assert isinstance(message, ApiMessage)
            frame = joined(encode_request(api, version, 1, "c", message))[4:]
            assert parsed(frame) == message
            for _ in range(examples(25)):
                at = source.randrange(len(frame))
                put = source.choice((*HUGE, b"", b"\0", source.randbytes(2)))
                parsed(frame[:at] + put + frame[at + source.choice((0, 1, len(put))) :])


@pytest.mark.parametrize("huge", HUGE)
def test_huge_counts_cost_few_steps_and_no_memory(huge: bytes) -> None:
    tracemalloc.start()
    try:
        for api in APIS.values():
            for version in api.versions:
                for zeros in range(0, 24, 3):
                    with counted_steps() as steps:
                        parsed(start_of(api, version) + b"\0" * zeros + huge + b"\0" * 30)
                    assert steps.count < STEPS_MAX
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000  # mostly codecs, which stay


@pytest.mark.parametrize(
    ("key", "version", "element"),
    [
        (ApiKey.METADATA, 8, struct.pack(">h", 0)),  # topics: an empty name
        (ApiKey.PRODUCE, 8, struct.pack(">hi", 0, 0)),  # topics: an empty name and no partitions
        (ApiKey.DESCRIBE_GROUPS, 5, b"\x01"),  # groups: an empty name
        (ApiKey.LEAVE_GROUP, 4, b"\x01\x00\x00"),  # members: an empty id, no instance id, no tagged fields
    ],
)
def test_frame_of_small_elements_takes_memory_by_its_size(key: ApiKey, version: int, element: bytes) -> None:
    api = APIS[key]
    count = 20_000 // len(element)
    lead = {ApiKey.PRODUCE: b"\xff\xff\0\0\0\0\0\0", ApiKey.LEAVE_GROUP: b"\x01"}.get(key, b"")
    size = struct.pack(">i", count)
    if api.is_flexible(version):
        out = bytearray()
        write_unsigned_varint(out, count + 1)
        size = bytes(out)
    frame = start_of(api, version) + lead + size + element * count + b"\0" * 3
    assert parsed(frame) is not None
    tracemalloc.start()
    try:
        parsed(frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_PER_BYTE * len(frame)
