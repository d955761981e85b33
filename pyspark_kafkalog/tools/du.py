"""`kafkalog du`: disk usage of a log directory, by topic, partition, segment or kind of file, largest first.

SIZE columns add up the lengths of files: LOG of records, INDEX of offset, time and transaction indexes, OTHER of
producer snapshots, staged writes, deleted files and the rest. ON-DISK is the space allocated by the file system, which
is less for files with holes: the indexes of an active segment are preallocated. Files that belong to no partition are
those of "(deleted)" topics, which are removed after file.delete.delay.ms, and of the "(root)" itself. Works on any
directory, also a running broker's.

examples:
  kafkalog du --path /data/log
  kafkalog du --path /data/log --by partition --topic 'orders.*' --limit 20
  kafkalog du --path /data/log --by kind --output json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark_kafkalog.tools.command import NO_VALUE, add_output, add_path, positive, print_json, print_table
from pyspark_kafkalog.tools.partition_files import KINDS, StoredFile, list_root
from pyspark_kafkalog.units import size_text

_DELETED: Final = "(deleted)"
_ROOT: Final = "(root)"
_TOTAL: Final = "(total)"
#: The columns that identify a line, and their value for a file.
_GROUPINGS: Final = {
    "topic": ("TOPIC",),
    "partition": ("TOPIC", "PARTITION"),
    "segment": ("TOPIC", "PARTITION", "SEGMENT"),
    "kind": ("KIND",),
}
_SIZES: Final = ("FILES", "LOG", "INDEX", "OTHER", "TOTAL", "ON-DISK")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, the grouping, the order and the form of the output."""
    add_path(parser)
    parser.add_argument("--by", choices=tuple(_GROUPINGS), default="topic", help="what a line is for (%(default)s)")
    parser.add_argument("--topic", metavar="TOPIC", help="only a topic, or a regular expression of topics")
    parser.add_argument("--sort", choices=("size", "name"), default="size", help="default %(default)s, largest first")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N lines, and the total")
    parser.add_argument("--bytes", action="store_true", help="numbers of bytes instead of KiB, MiB, ...")
    add_output(parser, "one object a line, sizes in bytes, the total last")


class _Usage:
    """Sums of sizes."""

    __slots__ = ("by_kind", "disk_bytes", "files")

    def __init__(self) -> None:
        self.files = 0
        self.disk_bytes = 0
        self.by_kind = dict.fromkeys(KINDS, 0)

    def add(self, file: StoredFile) -> None:
        self.files += 1
        self.disk_bytes += file.disk_bytes
        self.by_kind[file.kind] += file.size_bytes

    @property
    def size_bytes(self) -> int:
        return sum(self.by_kind.values())

    def sizes(self) -> tuple[int, ...]:
        """The columns LOG to ON-DISK."""
        log, index = self.by_kind["log"], self.by_kind["index"]
        return log, index, self.size_bytes - log - index, self.size_bytes, self.disk_bytes


_Name = tuple[Any, ...]


def run(options: argparse.Namespace) -> int:
    """Print the sizes to sys.stdout."""
    by_name, total = _add_up(_files(options), options.by)
    names = sorted(by_name, key=_in_order)
    if options.sort == "size":
        names.sort(key=lambda name: by_name[name].size_bytes, reverse=True)
    shown = [(name, by_name[name]) for name in names[: options.limit]]
    columns = _GROUPINGS[options.by]
    shown.append(((_TOTAL, *[None] * (len(columns) - 1)), total))
    if options.output == "json":
        for name, usage in shown:
            print_json(_tree(columns, name, usage))
    else:
        lines = (tuple(_line(name, usage, in_bytes=options.bytes)) for name, usage in shown)
        print_table((*columns, *_SIZES), lines)
    return 0


def _files(options: argparse.Namespace) -> Iterable[StoredFile]:
    files = list_root(options.path)
    if options.topic is None:
        return files
    from pyspark_kafkalog.tools.topic_filter import topic_pattern

    pattern = topic_pattern(options.topic)
    return (each for each in files if each.topic_partition is not None and pattern.matches(each.topic_partition.topic))


def _add_up(files: Iterable[StoredFile], by: str) -> tuple[dict[_Name, _Usage], _Usage]:
    by_name: dict[_Name, _Usage] = {}
    total = _Usage()
    for file in files:
        total.add(file)
        by_name.setdefault(_name(file, by), _Usage()).add(file)
    return by_name, total


def _name(file: StoredFile, by: str) -> _Name:
    if by == "kind":
        return (file.kind,)
    where = file.topic_partition
    if where is None:
        name: _Name = (_DELETED if file.kind == "deleted" else _ROOT, None, None)
    else:
        name = (where.topic, where.partition, file.base_offset)
    return name[: len(_GROUPINGS[by])]


def _in_order(name: _Name) -> list[tuple[bool, Any]]:
    return [(part is not None, part) for part in name]


def _tree(columns: tuple[str, ...], name: _Name, usage: _Usage) -> dict[str, Any]:
    tree: dict[str, Any] = {column.lower(): part for column, part in zip(columns, name, strict=True)}
    tree |= {"files": usage.files, "sizeBytes": usage.size_bytes, "diskBytes": usage.disk_bytes}
    return tree | {"bytesByKind": usage.by_kind}


def _line(name: _Name, usage: _Usage, *, in_bytes: bool) -> Iterator[str]:
    yield from (NO_VALUE if part is None else str(part) for part in name)
    yield str(usage.files)
    # Without a blank, so that other programs can split the table at blanks.
    yield from (str(size) if in_bytes else size_text(size).replace(" ", "") for size in usage.sizes())
