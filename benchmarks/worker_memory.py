"""Peak memory of a process that does the work of a Spark Python worker, above the memory of its imports.

    python benchmarks/worker_memory.py read|write ROOT TOPIC BYTES

`read` reads the whole topic as one task would; `write` stages about BYTES of records in one task, without committing.
Prints megabytes (10^6 bytes).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.spark.data_source import KafkalogDataSource

ROWS = 10_000  # Spark's default of spark.sql.execution.arrow.maxRecordsPerBatch
VALUE_BYTES = 100


def status_kb(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def read(root: str, topic: str, _size_bytes: int) -> None:
    source = KafkalogDataSource({"path": root, "subscribe": topic, "maxbytesperpartition": str(1 << 40)})
    reader = source.reader(source.schema())
    for partition in reader.partitions():
        for _ in reader.read(partition):
            pass


def write(_root: str, topic: str, size_bytes: int) -> None:
    from pyspark import TaskContext
    from pyspark.sql.types import BinaryType, StructField, StructType

    context = TaskContext._getOrCreate()  # as Spark's worker makes it
    context._partitionId = 0
    context._taskAttemptId = 0
    schema = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    with tempfile.TemporaryDirectory(dir=Path(_root).parent) as root:
        writer = KafkalogDataSource({"path": root, "topic": topic}).writer(schema, False)
        writer.abort([writer.write(batches(size_bytes))])


def batches(size_bytes: int) -> Iterator[Any]:
    key, value = b"customer-00042", b"v" * VALUE_BYTES
    for first in range(0, size_bytes // (len(key) + VALUE_BYTES), ROWS):
        keys = [b"customer-%05d" % (number % 100_000) for number in range(first, first + ROWS)]
        yield pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array([value] * ROWS, pa.binary())})


def main() -> None:
    action, root, topic, size_bytes = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    import pyspark_kafkalog.record.decode
    import pyspark_kafkalog.record.encode  # noqa: F401  its kernels come from numba's cache

    reset_peak()
    before_kb = status_kb("VmRSS")
    {"read": read, "write": write}[action](root, topic, size_bytes)
    print(f"{(status_kb('VmHWM') - before_kb) * 1024 / 1e6:.1f}")


if __name__ == "__main__":
    main()
