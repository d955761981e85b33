"""Assigns records to partitions, and groups the rows by partition.

A record with a key goes to the partition that Kafka's Java clients choose: murmur2 of the key, sign bit cleared, modulo
the number of partitions (org.apache.kafka.clients.producer.internals.BuiltInPartitioner,
org.apache.kafka.common.utils.Utils). A null key counts as no key, an empty key is a key. Records without a key fill one
batch for one partition, then one for the next.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.columns import BinaryColumn, RecordColumns, address_of
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.native import INT32, INT32_IN, INT64, INT64_IN, UINT8_IN, load_byte, load_int32

#: In an array of partitions: the record has no explicit partition.
NO_PARTITION: Final = -1

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_POSITIVE = 0x7FFFFFFF
_LOW_32_BITS = 0xFFFFFFFF

#: Bytes of a record in a batch besides key, value and headers: lengths, deltas, attributes.
_RECORD_OVERHEAD_BYTES = 12


@kernel(types.uint32(types.int64, types.int64))
def murmur2(address, length):
    """murmur2 of the `length` bytes at `address`: Java's int, read as unsigned."""
    # 64-bit words, masked after each product: numba would widen 32-bit words anyway.
    mask, multiplier = np.uint64(_LOW_32_BITS), np.uint64(_MULTIPLIER)
    result = (np.uint64(_SEED) ^ np.uint64(length)) & mask
    at = address
    for _ in range(length >> 2):
        word = ((np.uint64(load_int32(at)) & mask) * multiplier) & mask
        word ^= word >> np.uint64(24)
        word = (word * multiplier) & mask
        result = ((result * multiplier) & mask) ^ word
        at += 4
    left = length & 3
    if left >= 3:
        result ^= np.uint64(load_byte(at + 2)) << np.uint64(16)
    if left >= 2:
        result ^= np.uint64(load_byte(at + 1)) << np.uint64(8)
    if left >= 1:
        result = ((result ^ np.uint64(load_byte(at))) * multiplier) & mask
    result ^= result >> np.uint64(13)
    result = (result * multiplier) & mask
    result ^= result >> np.uint64(15)
    return np.uint32(result)


@kernel(types.void(INT64_IN, INT32_IN, types.int64, UINT8_IN, types.int64, INT32))
def _hash_keys(rows, offsets, data_address, validity, partitions_count, out):
    """Set `out` for rows without a partition whose key is not null. `validity` of length 0 means no nulls."""
    count = np.uint32(partitions_count)
    for i in range(len(rows)):
        row = rows[i]
        if out[i] != NO_PARTITION or (len(validity) and not (validity[row >> 3] >> (row & 7)) & 1):
            continue
        start = np.int64(offsets[row])
        hashed = murmur2(data_address + start, np.int64(offsets[row + 1]) - start) & np.uint32(_POSITIVE)
        out[i] = np.uint32(hashed) % count


@kernel(types.UniTuple(types.int64, 2)(INT64_IN, types.int64, *[types.int64] * 3, INT32))
def _spread(sizes, partitions_count, partition, filled_bytes, turn_bytes, out):
    """Set `out` for rows without a partition: `turn_bytes` of records to each partition in turn."""
    for i in range(len(out)):
        if out[i] != NO_PARTITION:
            continue
        if filled_bytes and filled_bytes + sizes[i] > turn_bytes:
            partition = (partition + 1) % partitions_count
            filled_bytes = 0
        filled_bytes += sizes[i]
        out[i] = partition
    return partition, filled_bytes


@kernel(types.void(INT32_IN, INT64, INT64))
def _group(groups, bounds, order):
    """Stable counting sort: `bounds` is initially zeros, one element more than the number of groups."""
    for group in groups:
        bounds[group + 1] += 1
    for group in range(1, len(bounds)):
        bounds[group] += bounds[group - 1]
    for i in range(len(groups)):
        order[bounds[groups[i]]] = i
        bounds[groups[i]] += 1
    for group in range(len(bounds) - 1, 0, -1):
        bounds[group] = bounds[group - 1]
    bounds[0] = 0


def group_rows(groups: NDArray[np.int32], groups_count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of `groups` in stable order by group, and the bounds of each group among them.

    `groups` is int32[n], each at least 0 and below `groups_count`. Returns order int64[n] and bounds
    int64[groups_count + 1].
    """
    bounds = np.zeros(groups_count + 1, np.int64)
    order = np.empty(len(groups), np.int64)
    _group(groups, bounds, order)
    return order, bounds


class Partitioner:
    """Assigns records of one topic to partitions; each call continues spreading where the last one stopped.

    `turn_bytes` of records without a key go to `first_partition`, then to the next, and so on. Without `hash_keys`
    records with a key are spread as well.
    """

    def __init__(
        self, partitions_count: int, *, turn_bytes: int, first_partition: int = 0, hash_keys: bool = True
    ) -> None:
        self._partitions_count = partitions_count
        self._turn_bytes = turn_bytes
        self._hash_keys = hash_keys
        self._partition = first_partition % partitions_count
        self._filled_bytes = 0

    def assign(
        self, columns: RecordColumns, rows: NDArray[np.int64], given: NDArray[np.int32] | None = None
    ) -> NDArray[np.int32]:
        """Partition of each of `rows` (indices into `columns`); partitions in `given` are kept, unless NO_PARTITION.

        Raises InvalidRecordError if an explicit partition does not exist in the topic.
        """
        partitions = np.full(len(rows), NO_PARTITION, np.int32) if given is None else self._checked(given)
        keys = columns.keys
        if self._hash_keys and keys is not None:
            validity = np.empty(0, np.uint8) if keys.validity is None else keys.validity
            _hash_keys(rows, keys.offsets, address_of(keys.data), validity, self._partitions_count, partitions)
        if (partitions == NO_PARTITION).any():
            self._partition, self._filled_bytes = _spread(
                _sizes_bytes(columns)[rows],
                self._partitions_count,
                self._partition,
                self._filled_bytes,
                self._turn_bytes,
                partitions,
            )
        return partitions

    def _checked(self, given: NDArray[np.int32]) -> NDArray[np.int32]:
        bad = given[(given < NO_PARTITION) | (given >= self._partitions_count)]
        if len(bad):
            raise InvalidRecordError(
                f"a record has partition {bad[0]}, the topic has partitions 0 to {self._partitions_count - 1}; "
                "leave out the column partition, as by select('key', 'value'), to let the key choose, or add partitions"
            )
        return given.astype(np.int32, copy=True)


def _sizes_bytes(columns: RecordColumns) -> NDArray[np.int64]:
    """Approximate size of each record in a batch before compression, in bytes."""
    sizes = np.full(columns.count, _RECORD_OVERHEAD_BYTES, np.int64)
    for column in (columns.keys, columns.values):
        if column is not None:
            sizes += np.diff(column.offsets)
    if columns.headers is not None:
        lists: NDArray[Any] = columns.headers.offsets
        for field in (columns.headers.keys, columns.headers.values):
            sizes += np.diff(_ends(field)[lists])
    return sizes


def _ends(column: BinaryColumn) -> NDArray[np.int64]:
    return column.offsets.astype(np.int64)
