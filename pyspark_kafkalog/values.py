"""Immutable values of which a request or a commit makes several: dataclasses that cost little to make.

    @quick_dataclass(frozen=True, slots=True)
    class AppendedRange:
        first_offset: int
        last_offset: int

Type checkers take it for `dataclass`, and refuse assignments to the fields. At run time the class is not frozen: the
constructor of a frozen dataclass calls `object.__setattr__` for each field, which makes it four to seven times as slow.
Equality and hash are those of a frozen dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["quick_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as quick_dataclass
else:
    from dataclasses import dataclass

    def quick_dataclass(*, frozen: bool, slots: bool, kw_only: bool = False):
        """The decorator of a class; `frozen` has to be True."""
        assert frozen
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True)
