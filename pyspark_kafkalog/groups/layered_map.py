"""Immutable mappings of which each version differs a little from the one before, and shares the rest with it.

A version is a dict that it shares with others, and the few entries that differ from it. When these grow to the square
root of the whole, they are merged into a dict of their own: so a change costs far less than a copy. Reading all entries
merges them, too.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Final, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_DIFFERENCES_MIN: Final = 32
_SHARED: Final[Any] = object()


class LayeredMap(Mapping[K, V], Generic[K, V]):
    """A mapping without values of None. Used by one thread."""

    __slots__ = ("_count", "_differences", "_shared")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._shared: dict[K, V] = dict(entries or {})
        self._differences: dict[K, V | None] = {}
        self._count = len(self._shared)

    def with_changes(self, changes: Mapping[K, V | None]) -> LayeredMap[K, V]:
        """The mapping with these values; None removes a key."""
        if not changes:
            return self
        after: LayeredMap[K, V] = LayeredMap.__new__(LayeredMap)
        after._shared = self._shared
        after._differences = {**self._differences, **changes}
        after._count = self._count + sum(
            (value is not None) - (self.get(key) is not None) for key, value in changes.items()
        )
        if len(after._differences) > _DIFFERENCES_MIN and len(after._differences) ** 2 > 2 * len(self._shared):
            after._merge()
        return after

    def _merge(self) -> dict[K, V]:
        """Have all entries in one dict, which is not changed any more."""
        if self._differences:
            merged = dict(self._shared)
            for key, value in self._differences.items():
                if value is None:
                    merged.pop(key, None)
                else:
                    merged[key] = value
            self._shared, self._differences = merged, {}
        return self._shared

    def __getitem__(self, key: K) -> V:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | T) -> V | T: ...
    def get(self, key: K, /, default: Any = None) -> Any:
        """As of a dict; that of Mapping costs several times as much."""
        found = self._differences.get(key, _SHARED)
        if found is _SHARED:
            return self._shared.get(key, default)
        return default if found is None else found

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        return iter(self._merge())

    def keys(self) -> KeysView[K]:
        return self._merge().keys()

    def values(self) -> ValuesView[V]:
        return self._merge().values()

    def items(self) -> ItemsView[K, V]:
        return self._merge().items()
