"""Values that cost little to load and to make are, but for what they leave out, like usual dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, replace
from typing import Any, ClassVar

import pytest

from pyspark_kafkalog.values import dataclass, quick_dataclass


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    first: int
    rest: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True)
class Pickled:
    first: int
    rest: tuple[int, ...] = field(default=(), compare=False)


def test_frozen_value_with_slots_is_pickled_and_copied() -> None:
    value = Pickled(1, (2,))
    for taken in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert dataclasses.astuple(taken) == (1, (2,))


def classes(dataclass: Callable[..., Callable[[type], Any]], **options: bool) -> tuple[Any, Any, Any]:
    """A class, one below it, and one that has methods of its own."""

    @dataclass(**options)
    class Value:
        first: int
        rest: list[int] = field(default_factory=list, repr=False, hash=False)
        kind: ClassVar[int] = 1

    @dataclass(**options)
    class Below(Value):
        last: int = field(default=3, kw_only=True)
        seen: int = field(default=0, init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "seen", self.seen + self.last)

    @dataclass(**options)
    class Own:
        first: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

    return Value, Below, Own


def outcome(call: Callable[..., object], *arguments: Any, **named: Any) -> object:
    try:
        result = call(*arguments, **named)
    except (TypeError, FrozenInstanceError) as error:
        return type(error), str(error)
    return repr(result) if dataclasses.is_dataclass(result) else result


def outcomes(made: Any) -> list[object]:
    """What can be seen of the class, and of two of its values."""
    found = [outcome(made), outcome(made, 1, 2, 3, 4, 5), outcome(made, 1, other=2), made.__match_args__]
    found += [made.__dict__.get("__slots__"), [each.name for each in dataclasses.fields(made)], made.__hash__ is None]
    one, two = made(1), replace(made(2))
    found += [
        repr(one).partition(" at ")[0],
        outcome(hash, one) == outcome(hash, made(1)),
        one == made(1),
        one == two,
        one != two,
        one.__eq__(1),
    ]
    found += [outcome(getattr, one, name) and outcome(getattr(one, name), two) for name in ("__lt__", "__ge__")]
    found += [outcome(setattr, one, "first", 5), outcome(delattr, one, "first"), dataclasses.asdict(two)]
    return [*found, outcome(setattr, one, "unknown", 5) if made.__dict__.get("__slots__") is None else None]


@pytest.mark.all_cases
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"slots": True},
        {"frozen": True},
        {"frozen": True, "slots": True},
        {"frozen": True, "slots": True, "order": True},
        {"frozen": True, "slots": True, "eq": False, "repr": False},
        {"slots": True, "unsafe_hash": True, "kw_only": False},
    ],
    ids=str,
)
def test_class_whose_methods_are_compiled_late_is_like_a_usual_dataclass(options: dict[str, bool]) -> None:
    for late, usual in zip(classes(dataclass, **options), classes(dataclasses.dataclass, **options), strict=True):
        assert outcomes(late) == outcomes(usual)
        assert str(inspect.signature(late)) == str(inspect.signature(usual))


def test_method_is_compiled_at_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    usual = dataclasses.dataclass

    def counted(cls: type, **options: bool) -> type:
        compiled.append({name for name in ("init", "repr", "eq", "order", "unsafe_hash") if options[name]})
        return usual(cls, **options)  # type: ignore[call-overload, no-any-return]

    value, _, _ = classes(dataclass, frozen=True, slots=True)
    monkeypatch.setattr(dataclasses, "dataclass", counted)
    assert value(1) is not value(2)
    assert compiled == []
    assert value(1) == value(1) == value(1)
    assert {value(1), value(1)} == {value(1)}
    assert compiled == [{"eq"}, {"unsafe_hash"}]
