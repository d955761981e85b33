"""Files in the partition's directory through which tasks of one cleaning exchange large state.

    .maintenance-map            the offset map with all keys, or with those of the first shard
    .maintenance-notes-<n>      the records that stay by the keys of task n's shards

Both are numpy's .npz. They are removed at the end of the cleaning; after a kill, by the next run over the partition.
Kafka ignores them. Only tasks of the cleaning that wrote them read them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.maintenance.cleaner.offset_map import OffsetMap, Shard
from pyspark_kafkalog.maintenance.cleaner.plan import ClosedSegment
from pyspark_kafkalog.maintenance.cleaner.survivors import NotedSurvivors
from pyspark_kafkalog.storage.filesystem import FileSystem, described

_PREFIX: Final = ".maintenance-"
_MAP: Final = _PREFIX + "map"
_NOTES: Final = _PREFIX + "notes-"


def save_map(directory: Path, offset_map: OffsetMap) -> None:
    """Write a map for other tasks."""
    shard = offset_map.shard
    state = np.array([offset_map.entries, offset_map.latest_offset, shard.bits, shard.value], np.int64)
    _write(directory / _MAP, {"table": offset_map.table, "state": state})


def load_map(directory: Path, load_factor: float) -> OffsetMap:
    """The map that another task wrote. Raises DiskFormatError, OSError."""
    path = directory / _MAP
    try:
        with np.load(path, allow_pickle=False) as found:
            entries, latest_offset, bits, value = found["state"].tolist()
            return OffsetMap.of_table(found["table"], load_factor, entries, latest_offset, Shard(bits, value))
    except (ValueError, KeyError, EOFError) as error:
        raise _damaged(path, error) from error


def save_notes(directory: Path, number: int, noted: NotedSurvivors) -> None:
    """Write the notes of one task."""
    path = directory / f"{_NOTES}{number}"
    _write(path, {f"{base}_{chunk}": bits for (base, chunk), bits in noted.bits.items()})


def load_notes(directory: Path, count: int, segments: Sequence[ClosedSegment]) -> NotedSurvivors:
    """The notes of all `count` tasks for these segments, merged. Raises DiskFormatError, OSError."""
    bases = {each.base_offset for each in segments}
    noted = NotedSurvivors()
    for number in range(count):
        path = directory / f"{_NOTES}{number}"
        try:
            with np.load(path, allow_pickle=False) as found:
                keys = [(tuple(map(int, name.split("_"))), name) for name in found.files]
                noted.merge(NotedSurvivors({(key[0], key[1]): found[name] for key, name in keys if key[0] in bases}))
        except (ValueError, KeyError, EOFError) as error:
            raise _damaged(path, error) from error
    return noted


def remove_task_files(directory: Path, *, fs: FileSystem) -> None:
    """Remove the files that cleanings left. The caller holds the partition's maintenance lock."""
    with os.scandir(directory) as entries:
        names = [each.name for each in entries if each.name == _MAP or each.name.startswith(_NOTES)]
    for name in names:
        fs.unlink_if_there(directory / name)


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        with os.fdopen(fd, "wb") as stream:
            np.savez(stream, **arrays)
    except OSError as error:
        raise described(error, path) from None


def _damaged(path: Path, error: Exception) -> DiskFormatError:
    return DiskFormatError(
        file=str(path), position=0, expected="what another task has written", found=str(error), advice="run this again"
    )
