"""Kernels stay within their input, which ends where unreadable memory begins."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own, which dies of a segmentation fault where a kernel reads one byte too many.
SCRIPT = """
import ctypes, mmap, random
import numpy as np
from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record import reference as plain
from pyspark_kafkalog.record.columns import BinaryColumn, RecordColumns
from pyspark_kafkalog.record.decode import decode_slices
from pyspark_kafkalog.record.encode import encode_batches
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.scan import scan_batches

SIZE = 64 * 1024
area = mmap.mmap(-1, SIZE + mmap.PAGESIZE)
readable = np.frombuffer(area, np.uint8)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(readable.ctypes.data + SIZE), mmap.PAGESIZE, 0) == 0

def at_the_end(data):
    view = readable[SIZE - len(data):SIZE]
    view[:] = np.frombuffer(data, np.uint8)
    return view

rng = random.Random(7)
faults = 0
for length in list(range(0, 140)) * 4 + [255, 256, 257, 300, 8192]:
    record = plain.Record(offset=0, timestamp_ms=5, key=b"k" * (length % 7), value=b"v" * length,
                          headers=((b"h", b"w" * length),) if length % 2 else ())
    stored = bytearray(plain.encode_batch([record]))
    if rng.random() < 0.7:  # what a changed byte makes of lengths
        stored[rng.randrange(61, len(stored))] = rng.choice([0x7F, 0x80, 0xFE, 0xFF, 0, 2])
    data = at_the_end(bytes(stored))
    batches = scan_batches(data, file="x").batches
    for columns in ({"key", "value", "headers"}, {"value"}, {"offset"}):
        for until_ms in (None, 5):
            try:
                list(decode_slices(data, batches, data_position=0, file="x", columns=frozenset(columns),
                                   start_offset=0, end_offset=9, until_timestamp_ms=until_ms))
            except DiskFormatError:
                faults += 1
    scan_batches(at_the_end(bytes(stored[: length % 61])), file="x")
    values = BinaryColumn(np.array([0, length], np.int32), at_the_end(b"v" * length))
    encode_batches(RecordColumns(count=1, timestamps_ms=np.zeros(1, np.int64), values=values),
                   compression=CompressionType.NONE, batch_size_bytes=0, max_batch_bytes=10**6)
print("faults", faults > 100)
"""


@pytest.mark.slow
def test_kernels_read_nothing_past_end_of_input() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "faults True", "")
