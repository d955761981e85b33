"""Checks of values that users give, and immutable values that cost little to make.

The values are those of which a request or a commit makes several: dataclasses.

    @quick_dataclass(frozen=True, slots=True)
    class AppendedRange:
        first_offset: int
        last_offset: int

Type checkers take it for `dataclass`, and refuse assignments to the fields. At run time the class is not frozen: the
constructor of a frozen dataclass calls `object.__setattr__` for each field, which makes it four to seven times as slow.
Equality and hash are those of a frozen dataclass.

The checks are for the public methods: a value of another kind ends in one sentence that says what is expected.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, SupportsIndex

from pyspark_kafkalog.errors import InvalidOptionError

__all__ = ["check_mapping", "check_number", "check_one_of", "check_text", "check_texts", "guess", "quick_dataclass"]


def check_one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise InvalidOptionError unless `value` is one of `allowed`; the closest one is named first."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidOptionError(f"{name} is {value!r}: {guess(value, allowed)}expected one of {', '.join(allowed)}")


def guess(value: object, allowed: Iterable[str]) -> str:
    """A question after the closest of `allowed`, with a space after it; empty if none is close."""
    near = difflib.get_close_matches(str(value), tuple(allowed), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? " if near else ""


def check_text(name: str, value: object) -> None:
    """Raise InvalidOptionError unless `value` is a string."""
    if not isinstance(value, str):
        raise InvalidOptionError(f"{name} is {value!r}: expected a string, not {type(value).__name__}")


def check_texts(name: str, value: object) -> None:
    """Raise InvalidOptionError unless `value` is a collection of strings, and not itself a string."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidOptionError(f"{name} is {value!r}: expected a list of strings, such as [{str(value)!r}]")
    for each in value:
        check_text(f"an element of {name}", each)


def check_number(name: str, value: object, *, least: int | None = None) -> None:
    """Raise InvalidOptionError unless `value` is an integer, which numpy's are too, of at least `least`; or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidOptionError(f"{name} is {value!r}: expected an integer, not {type(value).__name__}")
    if least is not None and value.__index__() < least:
        raise InvalidOptionError(f"{name} is {value}: expected {least} or more")


def check_mapping(name: str, value: object) -> None:
    """Raise InvalidOptionError unless `value` is a mapping, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise InvalidOptionError(f"{name} is {value!r}: expected a dictionary, not {type(value).__name__}")


if TYPE_CHECKING:
    from dataclasses import dataclass as quick_dataclass
else:
    from dataclasses import dataclass

    def quick_dataclass(*, frozen: bool, slots: bool, kw_only: bool = False):
        """The decorator of a class; `frozen` has to be True."""
        assert frozen
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True)
