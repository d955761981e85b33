"""Reads a range of offsets from one partition of a root: its end by isolation level, and checks of the offsets."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.config.definitions import PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.root.brokers.notices import reading_notices, remote_offsets
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.filesystem import time_ms

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import IsolationLevel

_LOG: Final = logging.getLogger(__name__)


def open_transaction_text(found: PartitionSnapshot) -> str:
    """A message text: the open transaction at which read_committed ends, below the high watermark."""
    from pyspark_kafkalog.root.transactions.open_transactions import producers_of

    producers = producers_of(found, expiration_ms=PRODUCER_ID_EXPIRATION_MS, now_ms=time_ms())
    first_offsets = {
        each.current_txn_first_offset: each.producer_id for each in producers if each.current_txn_first_offset >= 0
    }
    end_offset = found.last_stable_offset
    who = f"producer {first_offsets[min(first_offsets)]} has" if first_offsets else "a producer has"
    first_offset = min(first_offsets, default=end_offset)
    return (
        f"{who} a transaction open since offset {first_offset}, and read_committed ends there, at the last stable "
        f"offset {end_offset}, until it is committed or aborted (kafkalog transactions find-hanging)"
    )


def read_table(
    root: Root,
    partitions: Iterable[PartitionSnapshot],
    start_offset: int | None,
    end_offset: int | None,
    isolation: IsolationLevel,
    columns: Sequence[str] | None,
    *,
    local_only: bool = False,
) -> pa.Table:
    """Records of all the partitions in one table, with the given columns, or all.

    Logs a warning if the read goes to the end of a log that has complete batches above its high watermark.
    """
    import pyarrow as pa

    from pyspark_kafkalog.record.arrow import schema_of

    schema = schema_of(columns)
    partitions = tuple(partitions)
    to_the_end = [each for each in partitions if end_offset is None or end_offset > each.high_watermark]
    for notice in reading_notices(to_the_end):
        _LOG.warning(notice)
    batches = [
        batch
        for each in partitions
        for batch in read_partition(root, each, start_offset, end_offset, isolation, schema, local_only=local_only)
    ]
    return pa.Table.from_batches(batches, schema)


def read_partition(
    root: Root,
    found: PartitionSnapshot,
    start_offset: int | None,
    end_offset: int | None,
    isolation: IsolationLevel,
    schema: pa.Schema,
    *,
    local_only: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Records of [start_offset, end_offset), by default all readable ones, as batches of `schema`.

    With `local_only`, a start offset in remote storage is increased to the local log start offset.

    Raises OffsetOutOfRangeError, before the first batch, for a start offset that is outside of
    [log start offset, readable end], or, without `local_only`, in remote storage.
    """
    end_of_log = found.readable_end(isolation)
    start = found.log_start_offset if start_offset is None else start_offset
    if found.log_start_offset <= start < found.readable_start_offset:
        if not local_only:
            raise OffsetOutOfRangeError(f"{remote_offsets(found)}: start there, or read with local_only")
        start = found.readable_start_offset
    end = end_of_log if end_offset is None else min(end_offset, end_of_log)
    if end_of_log < start <= found.high_watermark:
        raise OffsetOutOfRangeError(
            f"offset {start} of {found.topic}-{found.partition} cannot be read as read_committed yet: "
            f"{open_transaction_text(found)}"
        )
    if not found.log_start_offset <= start <= end_of_log:
        raise OffsetOutOfRangeError(
            f"offset {start} of {found.topic}-{found.partition} is not in [{found.log_start_offset}, {end_of_log}]"
        )
    reader = root.reader(found.topic, found.partition)
    if end == found.high_watermark > start:
        reader.check_end(end)
    return reader.read(start, end, schema=schema, committed=isolation == "read_committed")
