"""Text, paths and numbers are handled like in Java and Scala."""

from __future__ import annotations

import os

import pytest

from pyspark_kafkalog.tools.dump.java_text import (
    ScalaHashOrder,
    absolute_path,
    decode_utf8,
    normalize_path,
    parse_long,
    split_files,
    wrap_int32,
    wrap_int64,
)


@pytest.mark.parametrize(
    ("puts", "kafkas_order"),
    [
        (range(5), [2, 3, 4, 1, 0]),
        (range(11), [8, 2, 3, 10, 6, 7, 9, 5, 4, 1, 0]),
        ([*range(11), 0], [2, 10, 7, 9, 5, 1, 8, 3, 6, 4, 0]),  # the map grows before it sees that 0 is there
        (range(13), [2, 10, 7, 9, 11, 5, 1, 8, 3, 6, 12, 4, 0]),
    ],
)
def test_files_are_in_order_of_scala_map(puts: list[int], kafkas_order: list[int]) -> None:
    order = ScalaHashOrder()
    for number in puts:
        order.put(f"/tmp/kafkalog-gaps/{number}.log")
    assert list(order) == [f"/tmp/kafkalog-gaps/{number}.log" for number in kafkas_order]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"Citro\xc3\xabn", "Citroën"),
        (b"\xf0\x9f\x98\x80", "\U0001f600"),
        (b"\xed\xa0\x80x", "\ufffdx"),
        (b"\xed\xa0x", "\ufffdx"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\x9f\xbf\xed", "\ud7ff\ufffd"),
        (b"\xe2\xed\xa0\x80", "\ufffd\ufffd"),
        (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
        (b"\xf0\x90\x80", "\ufffd"),
        (b"\xf5\x80", "\ufffd\ufffd"),
    ],
)
def test_malformed_utf8_is_decoded_like_java(data: bytes, text: str) -> None:
    assert decode_utf8(data) == text


def test_paths_are_normalized_like_java() -> None:
    assert [normalize_path(path) for path in ("a//b/", "/", "//", "./a/../b", "")] == ["a/b", "/", "/", "./a/../b", ""]
    assert absolute_path("a/../b") == f"{os.getcwd()}/a/../b"
    assert absolute_path("/a") == "/a"
    assert absolute_path("") == os.getcwd()


def test_lists_of_files_are_split_like_java() -> None:
    assert [split_files(text) for text in ("a,b", "a,,b", "a,,", ",", "")] == [
        ["a", "b"],
        ["a", "", "b"],
        ["a"],
        [],
        [""],
    ]


def test_longs_are_parsed_like_java() -> None:
    assert [parse_long(text) for text in ("007", "-5", "+5", str(2**63 - 1), str(-(2**63)))] == [
        7,
        -5,
        5,
        2**63 - 1,
        -(2**63),
    ]
    assert [parse_long(text) for text in ("", "x", "1_0", " 1", "1.0", str(2**63), "9" * 5000)] == [None] * 7


def test_integers_wrap_like_java() -> None:
    assert (wrap_int32(2**31), wrap_int32(-(2**31) - 1)) == (-(2**31), 2**31 - 1)
    assert (wrap_int64(2**63), wrap_int64(-(2**63) - 1)) == (-(2**63), 2**63 - 1)
