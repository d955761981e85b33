"""Checks of values that users give, and dataclasses that cost little to load and to make.

`dataclass` is `dataclasses.dataclass`, but compiles `__init__`, `__repr__`, `__eq__`, `__hash__` and the comparisons of
a class when they are first called: a short command loads some 170 classes and calls some 30 of their methods, and the
compilation of all of them takes a third of its time. Values of `InitVar` are not supported.

A request or a commit makes several values of a `quick_dataclass`:

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

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, FrozenInstanceError, fields, is_dataclass
from typing import TYPE_CHECKING, SupportsIndex

from pyspark_kafkalog.errors import InvalidOptionError

__all__ = [
    "check_mapping",
    "check_number",
    "check_one_of",
    "check_text",
    "check_texts",
    "dataclass",
    "guess",
    "quick_dataclass",
]


def check_one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise InvalidOptionError unless `value` is one of `allowed`; the closest one is named first."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidOptionError(f"{name} is {value!r}: {guess(value, allowed)}expected one of {', '.join(allowed)}")


def guess(value: object, allowed: Iterable[str]) -> str:
    """A question after the closest of `allowed`, with a space after it; empty if none is close."""
    import difflib  # for mistakes only

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
    from dataclasses import dataclass
    from dataclasses import dataclass as quick_dataclass
else:
    _COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__")

    def quick_dataclass(*, frozen: bool, slots: bool, kw_only: bool = False):
        """The decorator of a class; `frozen` has to be True."""
        assert frozen
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True)

    def dataclass(
        cls=None, /, *, frozen=False, slots=False, kw_only=False, repr=True, eq=True, order=False, unsafe_hash=False
    ):
        """The decorator of a class, with or without options."""

        def decorated(cls):
            wanted = {"__init__": True, "__repr__": repr, "__eq__": eq, **dict.fromkeys(_COMPARISONS, order)}
            late = [name for name, is_wanted in wanted.items() if is_wanted and name not in cls.__dict__]
            if cls.__dict__.get("__hash__") is None and (unsafe_hash or (eq and frozen)):
                late.append("__hash__")
            elif eq and "__hash__" not in cls.__dict__:
                cls.__hash__ = None
            # Without a docstring the signature would be one, and without __init__ it would be wrong.
            cls.__doc__ = cls.__doc__ or cls.__name__
            # `dataclasses` compiles __setattr__ and __delattr__ of a frozen class, and refuses others below one.
            below_frozen = any(is_dataclass(each) and each.__dataclass_params__.frozen for each in cls.__mro__[1:])
            cls = dataclasses.dataclass(
                cls, init=False, repr=False, eq=False, frozen=below_frozen, slots=slots, kw_only=kw_only
            )
            if frozen and not below_frozen:
                _freeze(cls, slots)
            for name in late:
                setattr(cls, name, _late(cls, name))
            return cls

        return decorated if cls is None else decorated(cls)

    def _late(cls, name):
        """The method of the class until its first call."""

        def method(self, *values, **named):
            return _compiled(cls, name)(self, *values, **named)

        return method

    def _compiled(cls, name):
        """Replace the method with the compiled one; return it."""
        method = _init_of(cls) if name == "__init__" else _method_of_twin(cls, name)
        setattr(cls, name, method)
        return method

    def _method_of_twin(cls, name):
        """The method of a usual dataclass with the same fields."""
        members = {each.name: each for each in fields(cls)}
        members |= {"__annotations__": {each.name: each.type for each in fields(cls)}, "__doc__": cls.__doc__}
        members |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        compares = name in _COMPARISONS
        twin = dataclasses.dataclass(
            type(cls.__name__, (), members),
            init=False,
            repr=name == "__repr__",
            eq=compares or name == "__eq__",
            order=compares,
            unsafe_hash=name == "__hash__",
        )
        return twin.__dict__[name]

    def _init_of(cls):
        """The method as `dataclasses` writes it; a twin that is frozen would compile more than it."""
        is_frozen, has_slots = cls.__dataclass_params__.frozen, "__slots__" in cls.__dict__
        known, parameters, named, body = {"__set": object.__setattr__, "__made": _MADE}, ["self"], ["*"], []
        for name, each in ((each.name, each) for each in fields(cls)):
            value, default = name, ""
            if each.default_factory is not MISSING:
                known[f"__make_{name}"] = each.default_factory
                value, default = f"__make_{name}()", "=__made"
                value = f"{value} if {name} is __made else {name}" if each.init else value
            elif each.default is not MISSING:
                known[f"__default_{name}"] = each.default
                value, default = (name if each.init else f"__default_{name}"), f"=__default_{name}"
            if each.init:
                (named if each.kw_only else parameters).append(name + default)
            if each.init or each.default_factory is not MISSING or (default and has_slots):
                body.append(f"__set(self, {name!r}, {value})" if is_frozen else f"self.{name} = {value}")
        body += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else ["pass"] * (not body)
        parameters += named if named[1:] else []
        made = {}
        exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body), known, made)
        method = made["__init__"]
        method.__module__, method.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
        method.__annotations__ = {each.name: each.type for each in fields(cls) if each.init} | {"return": None}
        return method

    class _Made:
        """The default of a parameter whose value a function makes."""

        def __repr__(self):
            return "<factory>"

    _MADE = _Made()

    def _freeze(cls, slots):
        """Refuse assignments and deletions, and let instances with slots be unpickled nevertheless."""
        names = cls.__dataclass_fields__

        def refused(self, name):
            return type(self) is cls or name in names

        def __setattr__(self, name, value):
            if refused(self, name):
                raise FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def __delattr__(self, name):
            if refused(self, name):
                raise FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        cls.__dataclass_params__.frozen = True
        cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__
        if slots:
            cls.__getstate__ = cls.__dict__.get("__getstate__", _state_of)
            cls.__setstate__ = cls.__dict__.get("__setstate__", _set_state)

    def _state_of(self):
        return [getattr(self, each.name) for each in fields(self)]

    def _set_state(self, state):
        for each, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)
