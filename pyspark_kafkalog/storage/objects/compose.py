"""Makes the body of a data object of batches in memory: what a server's commit puts, or carries inside.

The batches of one partition become one run. Their offsets in the log are replaced by those in the run, which count from
0, and leader epochs by 0: the CRC covers neither. So the body does not depend on where the log ends when it is
committed. Memory: one copy of the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.header import BASE_OFFSET_AT, BATCH_DTYPE, LEADER_EPOCH_AT
from pyspark_kafkalog.storage.log.leader_append import LeaderBatches
from pyspark_kafkalog.storage.objects.data_object import (
    TABLE_ENTRY_BYTES,
    ObjectRun,
    encode_footer,
    encode_table,
    footer_bytes,
)
from pyspark_kafkalog.units import INT32_MAX


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
