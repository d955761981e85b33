"""Makes data objects: of the files that a task of a write has staged, and of batches in memory for a server's commit.

A task writes the batches of all its partitions into one object, sorted by partition, or into several of about
`OBJECT_BYTES`. If a task has only a few bytes, they travel with its message to the driver. The driver puts the bytes of
all tasks into the commit if they are few together, else into one object (`settle`).

`compose_body` makes the body of a server's commit, which puts it or carries it inside. The batches of one partition
become one run. Their offsets in the log are replaced by those in the run, which count from 0, and leader epochs by 0:
the CRC covers neither. So the body does not depend on where the log ends when it is committed.

Memory: one object. A crash leaves objects that no commit names; the clean-up deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.record.header import BASE_OFFSET_AT, CONTROL_MASK, LEADER_EPOCH_AT, TRANSACTIONAL_MASK
from pyspark_kafkalog.storage.objects.data_object import (
    TABLE_ENTRY_BYTES,
    DataKey,
    ObjectRun,
    combine_bodies,
    encode_footer,
    encode_table,
    footer_bytes,
)
from pyspark_kafkalog.storage.staged_file import StagedFile
from pyspark_kafkalog.storage.staged_parts import StagedFiles, StagedPart
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX, KIB, MIB
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.leader_append import LeaderBatches  # loads the kernels


@dataclass(frozen=True, slots=True, eq=False)
class NewRun:
    """The batches of one partition for an object, in one part or several, from `first_offset` of the log on."""

    topic_id: str
    partition: int
    first_offset: int
    parts: Sequence[LeaderBatches]

    @property
    def size_bytes(self) -> int:
        """The bytes of the batches."""
        return sum(len(each.data) for each in self.parts)

    @property
    def batches_count(self) -> int:
        return sum(len(each) for each in self.parts)


def compose_body(runs: Sequence[NewRun]) -> tuple[bytes, tuple[ObjectRun, ...]]:
    """The body of an object with `runs`, ordered by topic id and partition.

    Raises InvalidRecordError for a run of more bytes or offsets than an object can say.
    """
    ordered = sorted(runs, key=lambda each: (each.topic_id, each.partition))
    size_bytes = sum(each.size_bytes + each.batches_count * TABLE_ENTRY_BYTES for each in ordered)
    body = np.empty(size_bytes + footer_bytes(len(ordered)), np.uint8)
    made: list[ObjectRun] = []
    position = 0
    for each in ordered:
        made.append(_put_run(body, position, each))
        position = made[-1].end
    body[position:] = np.frombuffer(encode_footer(made), np.uint8)
    return body.tobytes(), tuple(made)


def _put_run(body: NDArray[np.uint8], position: int, run: NewRun) -> ObjectRun:
    """Put the batches of `run` and their table into `body` at `position`."""
    at, row = position, 0
    batches = np.empty(run.batches_count, BATCH_DTYPE)
    for part in run.parts:
        body[at : at + len(part.data)] = part.data
        table = batches[row : row + len(part)]
        table[:] = part.batches
        table["position"] += at
        at += len(part.data)
        row += len(part)
    batches["base_offset"] -= run.first_offset
    batches["last_offset"] -= run.first_offset
    _set_bytes(body, batches["position"] + BASE_OFFSET_AT, batches["base_offset"].astype(">i8"))
    _set_bytes(body, batches["position"] + LEADER_EPOCH_AT, np.zeros(len(batches), ">i4"))
    offsets_count = int(batches["last_offset"][-1]) + 1
    if max(at - position, offsets_count) > INT32_MAX:
        raise InvalidRecordError(
            f"one commit would append {at - position} bytes with {offsets_count} offsets to a partition, more than "
            f"{INT32_MAX}: send less at once"
        )
    made = ObjectRun(
        run.topic_id,
        run.partition,
        position,
        at - position,
        offsets_count=offsets_count,
        records_count=int(batches["records_count"].sum(dtype=np.int64)),
        batches_count=len(batches),
        max_timestamp_ms=int(batches["max_timestamp_ms"].max()),
    )
    body[at : made.end] = np.frombuffer(encode_table(batches), np.uint8)
    return made


def _set_bytes(target: NDArray[np.uint8], positions: NDArray[np.int64], values: NDArray[np.generic]) -> None:
    """Put each of `values` at its position."""
    places = positions[:, None] + np.arange(values.itemsize)
    target[places] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.itemsize)


#: A larger object is cut, between two batches.
OBJECT_BYTES: Final = 64 * MIB
#: Writes of at most this size, over all tasks, are stored inside the commit.
INLINE_BYTES: Final = 128 * KIB

#: Stands for the driver in a key; tasks count from 0.
_NO_TASK: Final = INT64_MAX


@dataclass(frozen=True, slots=True)
class WrittenObject:
    """A data object of a write that is not committed yet; `inline_data` is its body if it is not in the store.

    `planned_at` is the end of the metadata log when the write was planned. `topics`: the names of the runs' topics.
    """

    write_id: str
    key: str
    size_bytes: int
    planned_at: int
    topics: frozenset[str]
    runs: tuple[ObjectRun, ...]
    inline_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class UploadTask:
    """A task of a write: the objects are `data/<write_id>-<task>-<number>-<planned_at>.batches`."""

    write_id: str
    task: int
    planned_at: int

    def key(self, number: int) -> str:
        return str(DataKey(self.write_id, self.task, number, self.planned_at))


@dataclass(frozen=True, slots=True)
class _Piece:
    """The batches [first, last) of a part."""

    staged: StagedPart
    first: int
    last: int

    @property
    def batches(self) -> NDArray[np.void]:
        """The table: offsets from 0."""
        table: NDArray[np.void] = self.staged.batches[self.first : self.last].copy()
        first_offset = self.first_offset
        table["base_offset"] -= first_offset
        table["last_offset"] -= first_offset
        return table

    @property
    def first_offset(self) -> int:
        """The offset, in the part, at which the piece begins."""
        return int(self.staged.batches["last_offset"][self.first - 1]) + 1 if self.first else 0

    @property
    def size_bytes(self) -> int:
        return int(self.staged.batches["size_bytes"][self.first : self.last].sum())


def upload(
    store: ObjectStore,
    task: UploadTask,
    staged: Sequence[StagedFile],
    topic_ids: Mapping[str, str],
    *,
    directory: Path,
    inline_bytes: int = INLINE_BYTES,
) -> list[WrittenObject]:
    """Put the batches of the finished `staged` files, which are below `directory`, into data objects.

    `topic_ids` by topic. If all is at most `inline_bytes`, nothing is put and the one result has `inline_data`. The
    staged files remain.

    Raises InvalidRecordError for transactional and control batches, CorruptRecordError for a staged file that is not as
    long as its table, ObjectStoreError; objects put before that are left to the clean-up.
    """
    objects: list[WrittenObject] = []
    with StagedFiles(directory, staged) as files:
        parts = sorted(files.parts(), key=lambda each: (topic_ids[each.topic_partition.topic], each.topic_partition))
        for each in parts:
            _refuse_special(each)
        planned = list(_cut(parts))
        for number, pieces in enumerate(planned):
            body, runs = _body(pieces, topic_ids)
            topics = frozenset(each.staged.topic_partition.topic for each in pieces)
            if len(planned) == 1 and len(body) <= inline_bytes:
                data = body.tobytes()
                return [WrittenObject(task.write_id, "", len(data), task.planned_at, topics, runs, data)]
            store.put(task.key(number), body)
            objects.append(WrittenObject(task.write_id, task.key(number), len(body), task.planned_at, topics, runs))
    return objects


def settle(
    store: ObjectStore, objects: Sequence[WrittenObject], *, inline_bytes: int = INLINE_BYTES
) -> list[WrittenObject]:
    """The objects of all tasks of one write, ready for the commit: at most one of them, the last, is inline.

    If the inline ones together are above `inline_bytes`, they are put into one object. Raises ObjectStoreError.
    """
    stored = [each for each in objects if each.inline_data is None]
    inline = [(each.inline_data, each.runs) for each in objects if each.inline_data is not None]
    if not inline:
        return stored
    body, runs = combine_bodies(inline)
    write_id, planned_at = objects[0].write_id, min(each.planned_at for each in objects)
    topics = frozenset[str]().union(*(each.topics for each in objects if each.inline_data is not None))
    if len(body) <= inline_bytes:
        return [*stored, WrittenObject(write_id, "", len(body), planned_at, topics, runs, body)]
    key = UploadTask(write_id, _NO_TASK, planned_at).key(0)
    store.put(key, body)
    return [*stored, WrittenObject(write_id, key, len(body), planned_at, topics, runs)]


def _refuse_special(staged: StagedPart) -> None:
    if (staged.batches["attributes"] & (CONTROL_MASK | TRANSACTIONAL_MASK)).any():
        raise InvalidRecordError(
            f"{staged.topic_partition} is staged with transactional or control batches, which cannot be staged"
        )


def _cut(staged: Sequence[StagedPart]) -> Iterator[list[_Piece]]:
    """The pieces of each object."""
    pieces: list[_Piece] = []
    room_bytes = OBJECT_BYTES
    for each in staged:
        ends = np.cumsum(each.batches["size_bytes"] + TABLE_ENTRY_BYTES)
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            last = int(np.searchsorted(ends, before + room_bytes, side="right"))
            last = min(last, _last_within_int32(each, first))
            if last <= first and pieces:
                yield pieces
                pieces, room_bytes = [], OBJECT_BYTES
                continue
            last = max(last, first + 1)  # a batch that is larger than an object
            pieces.append(_Piece(each, first, last))
            room_bytes -= int(ends[last - 1]) - before
            first = last
    if pieces:
        yield pieces


def _last_within_int32(staged: StagedPart, first: int) -> int:
    """The end of the batches from `first` on whose offsets are within an int32 of its first offset."""
    last_offsets = staged.batches["last_offset"]
    first_offset = int(last_offsets[first - 1]) + 1 if first else 0
    return int(np.searchsorted(last_offsets, first_offset + INT32_MAX, side="right"))


def _body(pieces: Sequence[_Piece], topic_ids: Mapping[str, str]) -> tuple[NDArray[np.uint8], tuple[ObjectRun, ...]]:
    """An object's bytes, and its runs."""
    batches_bytes = sum(each.size_bytes + (each.last - each.first) * TABLE_ENTRY_BYTES for each in pieces)
    body = np.empty(batches_bytes + footer_bytes(len(pieces)), np.uint8)
    runs: list[ObjectRun] = []
    position = 0
    for piece in pieces:
        topic_partition, batches = piece.staged.topic_partition, piece.batches
        size_bytes = piece.size_bytes
        piece.staged.read(piece.first, piece.last, body[position : position + size_bytes])
        positions = position + np.cumsum(batches["size_bytes"]) - batches["size_bytes"]
        _set_bytes(body, positions + BASE_OFFSET_AT, batches["base_offset"].astype(">i8"))
        run = ObjectRun(
            topic_ids[topic_partition.topic],
            topic_partition.partition,
            position,
            size_bytes,
            offsets_count=int(batches["last_offset"][-1]) + 1,
            records_count=int(batches["records_count"].sum()),
            batches_count=len(batches),
            max_timestamp_ms=int(batches["max_timestamp_ms"].max()),
        )
        body[position + size_bytes : run.end] = np.frombuffer(encode_table(batches), np.uint8)
        runs.append(run)
        position = run.end
    body[position:] = np.frombuffer(encode_footer(runs), np.uint8)
    return body, tuple(runs)
