"""Values that cost little to make are, but for assignments, like frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from pyspark_kafkalog.values import quick_dataclass


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    first: int
    rest: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    first: int
    rest: tuple[int, ...] = ()


def test_value_is_equal_and_hashed_by_its_fields() -> None:
    assert Quick(first=1) == replace(Quick(first=2), first=1)
    assert Quick(first=1) != Quick(first=1, rest=(2,))
    assert hash(Quick(first=1, rest=(2,))) == hash(Usual(first=1, rest=(2,)))


def test_value_takes_options_of_dataclasses() -> None:
    assert Quick.__slots__ == ("first", "rest")
    with pytest.raises(TypeError, match="positional"):
        Quick(1)  # type: ignore[call-arg]  # what is tested
