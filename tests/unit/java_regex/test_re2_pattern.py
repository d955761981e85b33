"""Regular expressions of clients: what they match, and that none takes long."""

from __future__ import annotations

import sys

import pytest

from pyspark_kafkalog.java_regex.patterns import compile_re2_pattern, why_no_re2_patterns


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["orders-1", "my-orders", ""]),
        ("orders-.*", ["orders-", "orders-1 a/ü"], ["orders", "orders-\n"]),
        ("orders|a", ["orders", "a"], ["orders-1", "ab"]),
        (r"a\.b", ["a.b"], ["axb"]),
        (r"app-\d{2,3}", ["app-17", "app-170"], ["app-", "app-1", "app-1700"]),
        ("(?i)(a|b)-[^c]", ["A-b", "b-d"], ["a-", "a-c"]),
        (r"\pL+", ["ü"], ["1"]),
    ],
)
def test_pattern_matches_whole_names(pattern: str, matching: list[str], others: list[str]) -> None:
    matches = compile_re2_pattern(pattern)
    assert all(matches(each) for each in matching)
    assert not any(matches(each) for each in others)


@pytest.mark.parametrize("pattern", ["(", "a)", "*", "[a", r"(a)\1", "(?=a)", "(?<=a)b", "a{1001}", "a" * 32768])
def test_pattern_that_re2_does_not_have_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="regular expression"):
        compile_re2_pattern(pattern)


def test_pattern_whose_automaton_would_be_large_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        compile_re2_pattern(r"(\pL{100}){10}")


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a?){200}a{200}b", "(.*a){50}b", "(a|b)*a(a|b){150}c"])
def test_pattern_that_would_backtrack_for_ever_ends(pattern: str) -> None:
    assert not compile_re2_pattern(pattern)("a" * 249)


def test_without_re2_every_pattern_is_refused_and_the_extra_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_re2_patterns() is None
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(ValueError, match=r"pyspark_kafkalog\[server\]"):
        compile_re2_pattern("a.*")
