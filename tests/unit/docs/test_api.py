"""Public names have docstrings, examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest
from make_site import public_modules
from repository import REPOSITORY

pytestmark = pytest.mark.all_cases

PACKAGE = REPOSITORY / "pyspark_kafkalog"
MODULES_WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", public_modules())
def test_public_names_have_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    assert inspect.getdoc(module)
    assert [qualified for qualified, value in _public(module) if not _docstring(value)] == []


def test_modules_with_examples_are_found() -> None:
    assert "pyspark_kafkalog.notebook" in MODULES_WITH_EXAMPLES


@pytest.mark.parametrize("name", MODULES_WITH_EXAMPLES)
def test_examples_print_what_they_say(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0


def _public(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Functions and classes of a module, and what the classes define: methods, properties, class methods."""
    exported = getattr(module, "__all__", None)
    for name, value in ((name, getattr(module, name)) for name in (exported or vars(module))):
        if name.startswith("_") or not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        if exported is None and value.__module__ != module.__name__:
            continue
        yield name, value
        if inspect.isclass(value):
            yield from ((f"{name}.{member}", found) for member, found in _members(value))


def _members(cls: type) -> Iterator[tuple[str, object]]:
    for name, value in vars(cls).items():
        is_member = inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)
        if is_member and not name.startswith("_"):
            yield name, getattr(cls, name)


def _docstring(value: object) -> str | None:
    text = inspect.getdoc(value)
    # What dataclasses write by themselves is the signature alone.
    return None if text is None or (inspect.isclass(value) and text.startswith(f"{value.__name__}(")) else text
