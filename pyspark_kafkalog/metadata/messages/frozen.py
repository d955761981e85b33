"""Immutable classes of typed fields: frozen dataclasses that cost little to import.

    class TopicRecord(Frozen):
        name: str = ""
        topic_id: str = ZERO_UUID

`dataclass` compiles the methods of each class at import, half a millisecond for a class: too much for dozens of
messages in processes that live for a tenth of a second. Here the methods are those of `Frozen`, and only the
constructor of a class is compiled, with its first instance. Type checkers see frozen dataclasses with keyword-only
fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform  # typing has it from Python 3.11
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        return lambda cls: cls


_F = TypeVar("_F", bound="Frozen")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class FrozenType(type):
    """Turns the annotated attributes of a class, and the `COMMON_FIELDS` of its base after them, into slots.

    A class that states its `__slots__` stays as it is.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> FrozenType:
        if "__slots__" not in namespace:
            own = [*namespace.get("__annotations__", ())]
            common = {name: getattr(base, name) for base in bases for name in getattr(base, "COMMON_FIELDS", ())}
            names = (*own, *common)
            namespace |= {
                "__slots__": names,
                "FIELDS": names,
                "DEFAULTS": {name: namespace.pop(name) for name in own} | common,
                "values_of": staticmethod(_values_getter(names)),
                "_builder": None,
            }
        return super().__new__(mcs, name, bases, namespace)

    def __call__(cls: type[_F], **values: Any) -> _F:  # type: ignore[misc]  # a metaclass of Frozen and its subclasses
        instance: _F = (cls._builder or cls.builder())(**values)
        instance.__class__ = cls
        return instance


def _values_getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) == 1:  # attrgetter returns no tuple for one name
        return lambda instance: (getattr(instance, names[0]),)
    return attrgetter(*names)


class _BuilderType(FrozenType):
    __call__ = type.__call__


class Frozen(metaclass=FrozenType):
    """Base of these classes: equality, hash, text and pickling by the values of the fields.

    Every field of a subclass has a default. A subclass has no fields of other subclasses.
    """

    __slots__ = ()

    #: Class attributes that are fields of every subclass, after its own, with these defaults.
    COMMON_FIELDS: ClassVar[tuple[str, ...]] = ()

    FIELDS: ClassVar[tuple[str, ...]] = ()
    #: The default of each field, in the order of `FIELDS`.
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    #: A function that returns the values of an instance, in the order of `FIELDS`.
    values_of: ClassVar[Callable[[Any], tuple[Any, ...]]]
    #: A mutable class of the same layout, see `builder`; None before the first instance.
    _builder: ClassVar[type | None] = None

    @classmethod
    def builder(cls) -> Callable[..., Any]:
        """A mutable class of the same layout, whose instances become ones of `cls` by assigning `__class__`.

        It takes the values by position or name. Setting the slots of an immutable class one by one takes three times as
        long.
        """
        if cls._builder is None:
            names = cls.FIELDS
            assignments = "; ".join(f"self.{name} = {name}" for name in names)
            compiled: dict[str, Any] = {}
            exec(f"def __init__(self, {', '.join(names)}): {assignments}", compiled)
            compiled["__init__"].__defaults__ = tuple(cls.DEFAULTS.values())
            members = {
                "__slots__": names,
                "__init__": compiled["__init__"],
                "__setattr__": object.__setattr__,
                "__delattr__": object.__delattr__,
            }
            cls._builder = _BuilderType(cls.__name__, cls.__bases__, members)
        return cls._builder

    def replace(self: _F, **changes: Any) -> _F:
        """A copy with other values of the named fields."""
        cls = type(self)
        return cls(**{**dict(zip(cls.FIELDS, cls.values_of(self), strict=True)), **changes})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Frozen) and other.__class__ is self.__class__:
            return type(self).values_of(self) == type(self).values_of(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(type(self).values_of(self))

    def __repr__(self) -> str:
        cls = type(self)
        values = ", ".join(f"{name}={value!r}" for name, value in zip(cls.FIELDS, cls.values_of(self), strict=True))
        return f"{cls.__qualname__}({values})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), type(self).values_of(self))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


def _restore(cls: type[_F], values: tuple[Any, ...]) -> _F:
    instance: _F = cls.builder()(*values)
    instance.__class__ = cls
    return instance
