"""Rule of the tests: no result depends on a clock or on processor time, which depend on the machine's other load."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from repository import TESTS

#: Clocks that measure; `time.monotonic` may also bound the wait for a condition.
_MEASURES = frozenset(
    {"process_time", "thread_time", "perf_counter", "process_time_ns", "perf_counter_ns", "getrusage"}
)
_CLOCKS = frozenset({"monotonic", "time", "monotonic_ns", "time_ns"})


def measured(source: str) -> Iterator[int]:
    """The lines that measure a time: by a clock for that, or as a clock's difference to an earlier time."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _name(node.func) in _MEASURES:
            yield node.lineno
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Call):
            function = node.left.func
            if isinstance(function, ast.Attribute) and _name(function.value) == "time" and function.attr in _CLOCKS:
                yield from () if isinstance(node.right, ast.Constant) else (node.lineno,)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(
    "source", ["time.process_time()", "assert time.monotonic() - began < 5", "resource.getrusage(0)", "perf_counter()"]
)
def test_measured_time_is_found(source: str) -> None:
    assert list(measured(source)) == [1]


def test_bounded_wait_and_time_of_an_hour_ago_measure_nothing() -> None:
    assert not list(
        measured("deadline = time.monotonic() + 5\nold = time.time() - 3_600\nassert time.time() < deadline")
    )


def test_no_test_measures_a_time() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.parent.name != "soak"  # that prints rates, and draws the times of kills
        for line in measured(path.read_text())
    ]
    assert not found, "count calls, rows or requests instead (tests/support/counted_steps.py)"
