"""Patterns of transactional ids: what they match, and that none takes long."""

from __future__ import annotations

import time

import pytest

from pyspark_kafkalog.server.transactions.id_patterns import compile_id_pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["orders-1", "my-orders", ""]),
        ("orders-.*", ["orders-", "orders-1 a/ü"], ["orders"]),
        (".*orders.*", ["my-orders-1"], ["order"]),
        (r"a\.b", ["a.b"], ["axb"]),
        ("app-[0-9]+", ["app-17"], ["app-", "app-x"]),
        ("(a|b)-(c|d)", ["a-c", "b-d"], ["a-", "c-a"]),
        ("[^x]y", ["ay"], ["xy"]),
    ],
)
def test_pattern_matches_whole_ids(pattern: str, matching: list[str], others: list[str]) -> None:
    matches = compile_id_pattern(pattern)
    assert all(matches(each) for each in matching)
    assert not any(matches(each) for each in others)


@pytest.mark.parametrize(
    "pattern",
    ["(", "a)", "(a+)+", "(?i)a", "a**", "*", "a{3}", r"\d", "a?a?a?aaa", ".*.*.*x", "|" * 4, "[a", "a" * 1001, "a\nb"],
)
def test_pattern_that_is_invalid_or_could_take_long_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        compile_id_pattern(pattern)


def test_worst_pattern_on_the_longest_id_ends_soon() -> None:
    matches = compile_id_pattern(".*a.*" + "(a|a)" * 3 + "b")
    started = time.monotonic()
    assert not matches("a" * 1024)
    assert time.monotonic() - started < 5
