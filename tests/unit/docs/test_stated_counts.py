"""What is built in the size of a number that an input states is bounded first: a rule about the code that decodes.

A call that takes memory by a number (`np.empty(count)`, `list(range(count))`, `os.pread(fd, size, at)`, `bytes(size)`,
a comprehension over `range(count)`) needs one that is known to be bounded: a constant, the length of something that
exists, the smaller of both, or what `checked_count` returns. Where another place sees to it, a comment at the line
says which: `# bounded: by the file`. A file is read as a whole only with a limit.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cached_property

import pytest
from repository import REPOSITORY

pytestmark = pytest.mark.all_cases

PACKAGE = REPOSITORY / "pyspark_kafkalog"
MARK = "# bounded: "
#: Modules that make what this process was given by its caller into batches and objects, or print what was decoded.
WRITING = (
    "java_regex",
    "notebook",
    "record/arrow.py",
    "record/encode.py",
    "record/partitioner.py",
    "report",
    "spark",
    "storage/objects/upload.py",
    "storage/stager.py",
    "tools/records",
)
ARRAYS = ("arange", "empty", "full", "ones", "repeat", "tile", "zeros")
COLLECTIONS = ("dict", "frozenset", "list", "set", "sorted", "tuple")
#: Of arrays and structs that exist, and the lengths of types.
SIZES = ("itemsize", "nbytes", "shape", "size")
NUMBERS = ("bytes", "count", "length", "room", "size")
STREAMS = ("file", "stream")


class Bounds:
    """Which numbers of a function are bounded by constants and by what exists."""

    def __init__(self, function: ast.AST, outer: Bounds | None = None) -> None:
        self._function = function
        self._outer = outer

    @cached_property
    def names(self) -> frozenset[str]:
        given: dict[str, list[ast.expr | None]] = {}
        for node in ast.walk(self._function):
            for name, value in _assigned(node):
                given.setdefault(name, []).append(value)
        names = (frozenset() if self._outer is None else self._outer.names) - set(given)
        while True:
            # With the name itself: a number that grows by bounded steps from a bounded one.
            more = {name for name, values in given.items() if _Known(names | {name}).hold(values)}
            if more <= names:
                return names
            names |= more

    def holds(self, value: ast.expr) -> bool:
        return _holds(value, lambda name: name in self.names)


class _Known(frozenset[str]):
    """Names that are bounded."""

    def hold(self, values: list[ast.expr | None]) -> bool:
        return all(value is not None and _holds(value, self.__contains__) for value in values)


def _holds(value: ast.expr, is_bounded: Callable[[str], bool]) -> bool:
    """Whether the value is bounded, if the names are of which `is_bounded` says so."""

    def holds(value: ast.expr) -> bool:
        return _holds(value, is_bounded)

    match value:
        case ast.Constant() | ast.Compare():
            return True
        case ast.Name(name):
            return name.lstrip("_").isupper() or is_bounded(name)
        case ast.Attribute(attr=name) | ast.Subscript(value=ast.Attribute(attr=("shape" as name))):
            return name.lstrip("_").isupper() or name in SIZES
        case ast.Call(func=ast.Name("len" | "checked_count")):
            return True
        case ast.Call(func=ast.Name("min"), args=args):
            return any(map(holds, args))
        case ast.Call(func=ast.Name("max" | "int" | "abs"), args=args):
            return all(map(holds, args))
        case ast.BinOp(left, ast.Mod() | ast.BitAnd(), right):
            return holds(left) or holds(right)
        case ast.BinOp(left, ast.Sub() | ast.FloorDiv() | ast.RShift(), _):
            return holds(left)
        case ast.BinOp(left, _, right):
            return holds(left) and holds(right)
        case ast.UnaryOp(_, operand):
            return holds(operand)
        case ast.IfExp(_, body, orelse):
            return holds(body) and holds(orelse)
        case ast.Tuple(elements) | ast.List(elements):
            return all(map(holds, elements))
        case ast.NamedExpr(_, inner):
            return holds(inner)
    return False


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that the node assigns, with the value if it is one that can be judged."""
    match node:
        case ast.Assign(targets, value):
            for target in targets:
                match target, value:
                    case ast.Name(name), _:
                        yield name, value
                    case ast.Tuple(names), ast.Tuple(values) if len(names) == len(values):
                        yield from ((each.id, of) for each, of in zip(names, values, strict=True) if _is_name(each))
                    case _:
                        yield from ((each.id, None) for each in ast.walk(target) if _is_name(each))
        case ast.NamedExpr(ast.Name(name), value) | ast.AugAssign(ast.Name(name), _, value):
            yield name, value
        case ast.AnnAssign(ast.Name(name), _, value):
            yield name, value
        case ast.For(target=target, iter=over) | ast.comprehension(target=target, iter=over):
            is_number = isinstance(target, ast.Name) and _is_call(over, "range")
            for each in ast.walk(target):
                if _is_name(each):
                    yield each.id, ast.Tuple(over.args) if is_number and isinstance(over, ast.Call) else None
        case ast.arg(name):
            yield name, None


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def unbounded(source: str) -> list[tuple[int, str]]:
    """Line and text of each place that builds something of a size that nothing bounds, and that says no reason."""
    lines = source.splitlines()
    found = []
    for node, bounds in _with_bounds(ast.parse(source), Bounds(ast.Module([], []))):
        if isinstance(node, ast.expr) and _is_unbounded(node, bounds):
            at = range(max(node.lineno - 2, 0), node.end_lineno or node.lineno)
            if not any(MARK in lines[line] for line in at):
                found.append((node.lineno, lines[node.lineno - 1].strip()))
    return found


def _with_bounds(tree: ast.AST, bounds: Bounds) -> Iterator[tuple[ast.AST, Bounds]]:
    waiting = [(tree, bounds)]
    while waiting:
        node, of = waiting.pop()
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            waiting.append((child, Bounds(child, of) if is_function else of))
            yield child, of


def _is_unbounded(node: ast.expr, bounds: Bounds) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(ast.Name("np"), name), args=args) if name in ARRAYS:
            sizes = args[1:2] if name in ("repeat", "tile") else args if name == "arange" else args[:1]
            return not all(map(bounds.holds, sizes))
        case ast.Call(func=ast.Name(name), args=[ast.Call(func=ast.Name("range"), args=args)]) if name in COLLECTIONS:
            return not all(map(bounds.holds, args))
        case ast.Call(func=ast.Name("bytes" | "bytearray"), args=[size]):
            return _is_number(size) and not bounds.holds(size)
        case ast.Call(func=ast.Attribute(ast.Name("os"), "pread"), args=[_, size, _]):
            return not bounds.holds(size)
        case ast.Call(func=ast.Attribute(ast.Name("mmap"), "mmap"), args=[_, size, *_]):
            return not bounds.holds(size)
        case ast.Call(func=ast.Attribute(_, "read_bytes" | "read_text" | "readall"), args=[]):
            return True
        case ast.Call(func=ast.Attribute(ast.Name(name), "read"), args=args) if name in STREAMS:
            return not args or not bounds.holds(args[0])
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            ranges = [each.iter for each in node.generators if _is_call(each.iter, "range")]
            return not all(bounds.holds(arg) for each in ranges if isinstance(each, ast.Call) for arg in each.args)
        case ast.BinOp(left, ast.Mult(), right):
            return any(_is_piece(one) and not bounds.holds(other) for one, other in ((left, right), (right, left)))
    return False


def _is_number(size: ast.expr) -> bool:
    """Whether bytes() is given a number, and not something to copy."""
    match size:
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult()):
            return not any(isinstance(each, ast.Call) for each in ast.walk(size))
        case ast.Name(name) | ast.Attribute(attr=name):
            return name.rpartition("_")[2] in NUMBERS
    return False


def _is_piece(value: ast.expr) -> bool:
    return isinstance(value, ast.List) or (isinstance(value, ast.Constant) and isinstance(value.value, bytes))


def test_code_that_decodes_builds_nothing_of_a_size_that_nothing_bounds() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(WRITING):
            found += [f"{name}:{line}: {text}" for line, text in unbounded(path.read_text())]
    assert not found, (
        "compare the number with what the input has room for (errors.checked_count), or say what bounds it in a "
        f"comment `{MARK}...`:\n" + "\n".join(found)
    )


@pytest.mark.parametrize(
    "line",
    [
        "list(range(start, header.next_offset))",
        "set(range(counts[topic]))",
        "[read() for _ in range(count)]",
        "np.empty(header.records_count, np.int64)",
        "np.zeros(count + 1, np.int64)",
        "np.repeat(flags, counts)",
        "bytearray(size_bytes)",
        "bytes(header.length - 4)",
        "os.pread(fd, size, 0)",
        "mmap.mmap(fd, size)",
        "path.read_bytes()",
        "stream.read()",
        "file.read(size)",
        "[0] * count",
        "b'x' * count",
    ],
)
def test_rule_finds_numbers_that_nothing_bounds(line: str) -> None:
    assert unbounded(f"def read(fd, count, counts, header, size, size_bytes, start, topic):\n    return {line}\n")
    assert not unbounded(f"def read(count, size, size_bytes):\n    return {line}  {MARK}by the caller\n")


@pytest.mark.parametrize(
    "line",
    [
        "list(range(len(data)))",
        "np.empty(min(size, _LIMIT), np.uint8)",
        "np.zeros(len(data) + 1, np.int64)",
        "np.empty(checked_count(size, len(data), what='x'), np.uint8)",
        "bytes(data[:size])",
        "os.pread(fd, 4096, 0)",
        "file.read(_LIMIT + 1)",
        "[data[at] for at in range(0, len(data), 8)]",
    ],
)
def test_rule_takes_lengths_constants_and_checked_counts(line: str) -> None:
    assert not unbounded(f"def read(data, fd, size):\n    return {line}\n")
