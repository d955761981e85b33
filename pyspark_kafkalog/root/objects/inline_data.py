"""The bytes of small writes, which are inside their commits (metadata/extents.py).

A commit's object carries the commits before it, up to 64 KiB (metadata/objects/log.py). So inline data is asked for
in groups of neighbouring commits: the object of the last commit of a group holds most of them or all, and the rest is
in the object before the first that it carries. A thousand small writes take some forty requests instead of a thousand.

Groups and data are kept in this process up to a limit, since a commit holds data of many partitions. Commits that were
removed meanwhile, because a merge has replaced their data, are ObjectNotFoundError for a reader that still asks.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Hashable
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.metadata.extents import DataObject, DataObjects
from pyspark_kafkalog.metadata.messages.metadata_records import DataObjectRecord
from pyspark_kafkalog.metadata.objects.log import CARRIED_BYTES_MAX, CommitObject, read_commit_object
from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStore
from pyspark_kafkalog.tiered.index_cache import BytesCache

INLINE_CACHE_BYTES: Final = 32 << 20
_GROUPS_CACHE_BYTES: Final = 8 << 20

#: Most commits have few hundred bytes beside their data.
_OTHER_BYTES: Final = 512
_GROUP_BYTES: Final = CARRIED_BYTES_MAX * 3 // 4

_LOCKS: Final = tuple(threading.Lock() for _ in range(16))


class InlineData:
    """The inline data of `objects` in `store`; thread-safe.

    `root_id` tells data of this root from that of an earlier one at the same URL (ObjectLog). A topic's id would not: a
    follower's topics have the ids of its leader's.
    """

    def __init__(self, store: ObjectStore, root_id: str, objects: DataObjects) -> None:
        self._store = store
        self._root_id = root_id
        self._objects = objects

    def read(self, wanted: DataObject) -> bytes:
        """The data of an object that is inline.

        Raises ObjectNotFoundError if its commit is gone, CorruptRecordError if the commit is damaged or holds no such
        data, ObjectStoreError.
        """
        data, _ = _caches(os.getpid())
        return data.get(self._key(wanted.object_id), lambda: self._load(wanted))

    def _key(self, number: int) -> Hashable:
        return self._store.url, self._root_id, number

    def _load(self, wanted: DataObject) -> tuple[bytes, int]:
        found = self._holder(wanted)
        commit = found.commit(wanted.commit_offset)
        at = wanted.object_id - commit.base_offset
        record = commit.records[at] if 0 <= at < len(commit.records) else None
        if not isinstance(record, DataObjectRecord) or record.inline_data is None:
            raise CorruptRecordError(
                file=name_of_inline(self._store, wanted.object_id),
                position=0,
                expected=f"a DataObjectRecord with {wanted.size_bytes} bytes of data",
                found=type(record).__name__,
            )
        return record.inline_data, len(record.inline_data)

    def _holder(self, wanted: DataObject) -> CommitObject:
        """An object that holds the commit of `wanted`."""
        offset = wanted.commit_offset
        commits, groups = self._groups
        at = bisect_left(commits, offset)
        group = groups[at]
        first, last = bisect_left(groups, group), bisect_left(groups, group + 1)
        key = self._key(commits[last - 1])
        _, cache = _caches(os.getpid())
        with _LOCKS[hash(key) % len(_LOCKS)]:
            held = cache.get(key, lambda: self._load_group(commits[first:last]))
        for each in held:
            if offset in each:
                return each
        own = read_commit_object(self._store, offset)
        if own is None:
            raise ObjectNotFoundError(
                f"{name_of_inline(self._store, wanted.object_id)}: the commit at {offset} is gone"
            )
        return own

    @cached_property
    def _groups(self) -> tuple[list[int], list[int]]:
        """The offsets of the commits with inline data, rising, and the number of the group of each."""
        table = self._objects.table
        table = table[table["is_inline"]]
        commits, first = np.unique(table["commit_offset"], return_index=True)
        sizes = np.add.reduceat(table["size_bytes"].astype(np.int64), first) + _OTHER_BYTES
        return commits.tolist(), ((np.cumsum(sizes) - sizes) // _GROUP_BYTES).tolist()

    def _load_group(self, commits: list[int]) -> tuple[list[CommitObject], int]:
        """The objects that hold `commits`, the newest first, up to one that is gone; their size in bytes."""
        objects: list[CommitObject] = []
        end = len(commits)
        while end > 0:
            found = read_commit_object(self._store, commits[end - 1])
            if found is None:
                break
            objects.append(found)
            end = bisect_left(commits, found.first_offset, 0, end - 1)
        return objects, sum(each.size_bytes for each in objects)


def name_of_inline(store: ObjectStore, object_id: int) -> str:
    """What messages call inline data: the record that holds it."""
    return f"{store.url}: data of the metadata record at offset {object_id}"


@lru_cache(maxsize=1)
def _caches(process_id: int) -> tuple[BytesCache[bytes], BytesCache[list[CommitObject]]]:
    """This process's caches of data, and of the objects of groups."""
    return BytesCache(INLINE_CACHE_BYTES), BytesCache(_GROUPS_CACHE_BYTES)
