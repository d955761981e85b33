"""Several directories as one path: their paths with commas between, as Kafka's log.dirs has them.

    /disk1/kafka,/disk2/kafka

A comma is also valid in the name of a directory. A path that exists is therefore one path, whatever it contains; and
one that does not exist is several only if one of its parts exists. The same holds for each of several: the longest run
of parts that exists with its commas is one path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pyspark_kafkalog.storage.below_root import follow_root

_COMMA: Final = ","


def split_paths(path: str | Path) -> tuple[Path, ...]:
    """The paths in `path`, in order; `path` itself if it is one. Each is a root that a user named: see `follow_root`.

    White space around a comma is not part of a path, and empty parts do not count, as in Kafka (Csv.parseCsvList).
    """
    paths = _split(path)
    for each in paths:
        follow_root(each)
    return paths


def _split(path: str | Path) -> tuple[Path, ...]:
    text = str(path)
    if _COMMA not in text or os.path.lexists(text):
        return (Path(path),)
    parts = text.split(_COMMA)
    found: list[Path] = []
    at = 0
    while at < len(parts):
        # bounded: the parts of a path
        end = next((end for end in range(len(parts), at, -1) if _exists(parts[at:end])), at + 1)
        part = _COMMA.join(parts[at:end]).strip()
        if part:
            found.append(Path(part))
        at = end
    return tuple(found) if any(os.path.lexists(each) for each in found) else (Path(path),)


def _exists(parts: list[str]) -> bool:
    text = _COMMA.join(parts).strip()
    return bool(text) and os.path.lexists(text)


def join_paths(paths: Iterable[Path]) -> Path:
    """The one path that `split_paths` turns into `paths` as long as they exist."""
    return Path(_COMMA.join(map(str, paths)))


def absolute_paths(path: Path) -> Path:
    """`path` with each of its paths made absolute."""
    return join_paths(each.absolute() for each in split_paths(path))
