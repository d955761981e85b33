"""Where the objects of a root's partitions are, as part of the image: segment objects, runs, data objects.

A partition's log on an object store consists of *segment objects*, then *runs*, in offset order and without gaps. A
segment object is a valid segment, made by a merge or copied from a file system (tiering). A run is a stretch of a data
object, which holds the batches of many partitions as one write appended them; its offsets count from 0 in the object.
A merge turns the oldest runs into segments, so runs never precede segments. A partition of a file root has no runs, and
segment objects only of what was tiered.

    Runs              the runs of one partition: 56 bytes each
    ProducerBatches   the batches of producers in these runs: 51 bytes each
    DataObjects       the data objects that runs refer to, of the whole root, with the number of these runs
    SegmentObject     a message of messages/metadata_records.py, as commits hold it
    DroppedObjectsRecord   also a message: what a commit dropped, and what may be deleted from the store after a delay

All three tables are immutable and share memory: appending to the newest of them writes behind the rows that others
see, so it costs nothing for the rows that exist. Appending to an older one (two candidates for the same commit) copies.

A small write travels inside its commit. Its data object has no key, and the commit must exist as long as a run refers
to it: `DataObjects.lowest_inline_commit`.

An empty table has no array, and the first row loads numpy: a command that only describes a root on a file system does
not need it.
"""

from __future__ import annotations

import bisect
import os
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.metadata.messages.metadata_records import DataObjectRecord, Run, TopicRuns
from pyspark_kafkalog.storage.names import decode_uuid, encode_uuid
from pyspark_kafkalog.storage.objects.data_object import last_of_each_producer, producer_batch_dtype, run_dtype
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyspark_kafkalog.storage.objects.upload import WrittenObject

_FIRST_CAPACITY: Final = 8
#: Serializes the decision who may write behind the rows of a block. Held for microseconds.
_APPENDING: Final = threading.Lock()


@cache
def _object_dtype() -> np.dtype[np.void]:
    """One data object; `runs_count` of them refer to it."""
    import numpy as np

    return np.dtype(
        [
            ("object_id", np.int64),
            ("commit_offset", np.int64),
            ("size_bytes", np.int64),
            ("runs_count", np.int32),
            ("is_inline", np.bool_),
        ]
    )


class _Block:
    """An array with free rows at its end; rows below `used` never change."""

    __slots__ = ("rows", "used")

    def __init__(self, rows: Any, used: int) -> None:
        self.rows = rows
        self.used = used


_NO_ROWS: Final = _Block((), 0)


class _Table:
    """An immutable window of a block. Subclasses state the type of a row."""

    __slots__ = ("_block", "_end", "_start")

    def __init__(self, rows: NDArray[np.void] | None = None) -> None:
        self._start = 0
        self._end = 0 if rows is None else len(rows)
        self._block = _NO_ROWS if rows is None else _Block(rows, self._end)

    @staticmethod
    @abstractmethod
    def dtype() -> np.dtype[np.void]:
        """The type of a row."""

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def table(self) -> NDArray[np.void]:
        """The rows, read-only."""
        if self._block is _NO_ROWS:
            import numpy as np

            return np.empty(0, self.dtype())
        view: NDArray[np.void] = self._block.rows[self._start : self._end]
        view.flags.writeable = False
        return view

    def _window(self, block: _Block, start: int, end: int) -> Any:
        window = object.__new__(type(self))
        window._block, window._start, window._end = block, start, end
        return window

    def _appended(self, values: Sequence[tuple[Any, ...]] | NDArray[np.void]) -> Any:
        """This table with `values` after its own rows."""
        if not len(values):
            return self
        import numpy as np

        rows = np.asarray(values, self.dtype())
        block, end = self._block, self._end + len(rows)
        with _APPENDING:
            if block.used == self._end and end <= len(block.rows):
                block.used = end
                block.rows[self._end : end] = rows
                return self._window(block, self._start, end)
        count = len(self) + len(rows)
        grown = np.empty(max(_FIRST_CAPACITY, 2 * count), self.dtype())  # bounded: twice the rows that there are
        grown[: len(self)] = self.table
        grown[len(self) : count] = rows
        return self._window(_Block(grown, count), 0, count)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self) or len(self) != len(other):
            return False
        return not len(self) or bool((self.table == other.table).all())

    def __hash__(self) -> int:
        return hash(self.table.tobytes() if len(self) else b"")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table.copy(),) if len(self) else ()


class Runs(_Table):
    """The runs of one partition, in offset order. `table` has `run_dtype`."""

    __slots__ = ()

    @staticmethod
    def dtype() -> np.dtype[np.void]:
        return run_dtype()

    def appended(self, rows: Sequence[tuple[int, ...]] | NDArray[np.void]) -> Runs:
        """These runs and then `rows`, in the order of `run_dtype`."""
        runs: Runs = self._appended(rows)
        return runs

    def without_first(self, count: int) -> Runs:
        """All but the first `count` runs."""
        if not count:
            return self
        if len(self) - count < len(self._block.rows) // 4:  # most of the block would be held for nothing
            return Runs(self.table[count:].copy())
        window: Runs = self._window(self._block, self._start + count, self._end)
        return window

    @property
    def size_bytes(self) -> int:
        """The bytes of their batches."""
        return int(self.table["size_bytes"].sum(dtype="int64")) if len(self) else 0

    def without_last(self, count: int) -> Runs:
        """All but the last `count` runs. What is appended to them does not share their rows."""
        return self if not count else Runs(self.table[: len(self) - count].copy())

    def count_up_to(self, offset: int) -> int:
        """The number of runs that end at or below `offset`."""
        return int(self.table["end_offset"].searchsorted(offset, side="right")) if len(self) else 0


class ProducerBatches(_Table):
    """The batches of producers in the runs of one partition, in offset order. `table` has `producer_batch_dtype`.

    Of runs that were deleted, the last batch of each producer stays until the next merge, which puts it into the
    producer snapshots: sequences and epochs continue after their records are deleted, as in a broker.
    """

    __slots__ = ()

    @staticmethod
    def dtype() -> np.dtype[np.void]:
        return producer_batch_dtype()

    def appended(self, rows: NDArray[np.void]) -> ProducerBatches:
        """These batches and then `rows`."""
        batches: ProducerBatches = self._appended(rows)
        return batches

    def merged_up_to(self, offset: int) -> ProducerBatches:
        """Those from `offset` on: segments hold what is known of those below."""
        count = self._count_below(offset)
        return self if not count else ProducerBatches(self.table[count:].copy())

    def truncated_to(self, offset: int) -> ProducerBatches:
        """Those below `offset`."""
        count = self._count_below(offset)
        return self if count == len(self) else ProducerBatches(self.table[:count].copy())

    def deleted_up_to(self, offset: int) -> ProducerBatches:
        """Those from `offset` on, and the last one of each producer that has none there."""
        count = self._count_below(offset)
        if not count:
            return self
        import numpy as np

        table = self.table
        below = last_of_each_producer(table)
        return ProducerBatches(np.concatenate([below[below["last_offset"] < offset], table[count:]]))

    def _count_below(self, offset: int) -> int:
        return int(self.table["last_offset"].searchsorted(offset)) if len(self) else 0


@dataclass(frozen=True, slots=True)
class DataObject:
    """A data object: its id, key ("" if it is inside the commit at `commit_offset`), size in bytes."""

    object_id: int
    key: str
    size_bytes: int
    commit_offset: int

    @property
    def is_inline(self) -> bool:
        return not self.key


class DataObjects(_Table):
    """The data objects that runs refer to, by rising id. The id is the metadata offset of the object's record."""

    __slots__ = ("_keys",)

    @staticmethod
    def dtype() -> np.dtype[np.void]:
        return _object_dtype()

    def __init__(self, rows: NDArray[np.void] | None = None, keys: Sequence[str] = ()) -> None:
        super().__init__(rows)
        self._keys = list(keys)  # as the block: shared, and only appended to

    def __iter__(self) -> Iterator[DataObject]:
        return (self._at(row) for row in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return DataObjects, (self.table.copy() if len(self) else None, self._keys[self._start : self._end])

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, DataObjects) and list(self) == list(other)

    __hash__ = _Table.__hash__

    def find(self, object_id: int) -> DataObject | None:
        """The object with that id; None if no run refers to it any more."""
        ids = self.table["object_id"]
        row = bisect.bisect_left(ids, object_id)  # searchsorted would copy the column
        return self._at(row) if row < len(ids) and ids[row] == object_id else None

    def only(self, object_ids: NDArray[np.int64]) -> DataObjects:
        """Those of the objects that have one of the ids, for a reader: the numbers of runs are not theirs."""
        import numpy as np

        rows = self.table["object_id"].searchsorted(np.unique(object_ids))
        return DataObjects(self.table[rows], [self._keys[self._start + row] for row in rows.tolist()])

    @property
    def last_id(self) -> int:
        """The highest id, -1 without an object."""
        return int(self._block.rows["object_id"][self._end - 1]) if len(self) else -1

    @property
    def lowest_inline_commit(self) -> int | None:
        """The offset of the oldest commit whose inline data runs refer to; None without inline data."""
        table = self.table
        offsets = table["commit_offset"][table["is_inline"]]
        return int(offsets.min()) if len(offsets) else None

    def appended(self, objects: Sequence[DataObject], runs_counts: Sequence[int]) -> DataObjects:
        """These objects and `objects`, whose ids are higher, with the number of runs that refer to each."""
        if not objects:
            return self
        rows = [
            (each.object_id, each.commit_offset, each.size_bytes, count, each.is_inline)
            for each, count in zip(objects, runs_counts, strict=True)
        ]
        grown: DataObjects = self._appended(rows)
        keys = self._keys
        if grown._block is not self._block:
            keys = keys[self._start : self._end]
        # Behind the rows of this table only one table can be in the same block, so only one appends keys.
        keys += [each.key for each in objects]
        grown._keys = keys
        return grown

    def without_runs(self, object_ids: NDArray[np.int64]) -> tuple[DataObjects, list[str]]:
        """These objects after the runs with `object_ids` (one each) are gone, and the keys of those without a run."""
        import numpy as np

        ids, counts = np.unique(object_ids, return_counts=True)
        table = self.table.copy()
        table["runs_count"][np.searchsorted(table["object_id"], ids)] -= counts.astype(np.int32)
        is_kept = table["runs_count"] > 0
        keys = self._keys[self._start : self._end]
        kept = DataObjects(table[is_kept], [keys[row] for row in np.flatnonzero(is_kept)])
        return kept, [keys[row] for row in np.flatnonzero(~is_kept) if keys[row]]

    def _at(self, row: int) -> DataObject:
        found = self.table[row]
        key = self._keys[self._start + row]
        return DataObject(int(found["object_id"]), key, int(found["size_bytes"]), int(found["commit_offset"]))


def new_segment_id(planned_at: int) -> str:
    """A random id for a segment whose copy was planned at metadata offset `planned_at`."""
    return encode_uuid(planned_at.to_bytes(8, "big") + os.urandom(8))


def planned_at_of(segment_id: str) -> int:
    """The metadata offset in an id of `new_segment_id`."""
    return int.from_bytes(decode_uuid(segment_id)[:8], "big")


#: The leader epoch of a run that has that of its partition, and the base offset of one that begins at the log end.
EPOCH_OF_PARTITION: Final = -2
AT_LOG_END: Final = -1


@dataclass(frozen=True, slots=True)
class RunAttributes:
    """What a commit states about a run beyond its object.

    `producer_batches`: stored rows of its batches with producer ids. `leader_epoch` and `base_offset` are stated by
    followers, which keep those of the leader. `first_offset` is for the history alone: the image counts.
    """

    producer_batches: bytes = b""
    leader_epoch: int = EPOCH_OF_PARTITION
    base_offset: int = AT_LOG_END
    first_offset: int = -1


def data_object_record(written: WrittenObject, attributes: Sequence[RunAttributes] = ()) -> DataObjectRecord:
    """The record that commits `written`: its runs are appended to their partitions, in their order.

    `attributes`: those of the runs, in the same order; without them all are as the default.
    """
    topics: dict[str, list[Run]] = {}
    for each, given in zip(written.runs, attributes or [RunAttributes()] * len(written.runs), strict=True):
        topics.setdefault(each.topic_id, []).append(
            Run(
                partition=each.partition,
                position=each.position,
                size_bytes=each.size_bytes,
                offsets_count=each.offsets_count,
                records_count=each.records_count,
                batches_count=each.batches_count,
                max_timestamp_ms=each.max_timestamp_ms,
                producer_batches=given.producer_batches,
                leader_epoch=given.leader_epoch,
                base_offset=given.base_offset,
                first_offset=given.first_offset,
            )
        )
    return DataObjectRecord(
        key=written.key,
        size_bytes=written.size_bytes,
        planned_at=written.planned_at,
        inline_data=written.inline_data,
        topics=tuple(TopicRuns(topic_id=topic_id, runs=tuple(runs)) for topic_id, runs in topics.items()),
    )


NO_RUNS: Final = Runs()
NO_PRODUCER_BATCHES: Final = ProducerBatches()
NO_OBJECTS: Final = DataObjects()
