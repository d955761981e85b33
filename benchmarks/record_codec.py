"""Throughput of encoding and decoding records on one core, without Spark and without a disk.

    python benchmarks/record_codec.py [--records N] [--seconds S]

For each codec and batch size it prints million records and MB (of values) per second, the shares of CRC-32C and
decompression in a decode, and how much faster than a full read a filter on the timestamp reads the first 1%. Seconds
are CPU time, which other work on the machine affects less; each figure is the best of the runs that fit in the given
time. Values are 100 bytes of words, timestamps increase by 1 ms every 10 records, and there are no keys.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.columns import BinaryColumn, RecordColumns
from pyspark_kafkalog.record.decode import decode_slices
from pyspark_kafkalog.record.encode import encode_batches
from pyspark_kafkalog.record.header import RECORDS_AT
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs

VALUE_BYTES = 100
ROWS_OF_ARROW_BATCH = 65536
COMPRESSION_TYPES = (CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD)
BATCH_SIZES_BYTES = (16 * 1024, 256 * 1024)
COLUMNS = frozenset({"key", "value", "offset", "timestamp", "timestampType"})
MAX_OFFSET = 2**63 - 1


def make_columns(records: int) -> list[RecordColumns]:
    """Records in Arrow batches as Spark would hand them over."""
    random = np.random.default_rng(0)
    words = random.integers(97, 123, size=(1000, 20)).astype(np.uint8)
    batches = []
    for first in range(0, records, ROWS_OF_ARROW_BATCH):
        rows = min(ROWS_OF_ARROW_BATCH, records - first)
        values = words[random.integers(0, len(words), rows * VALUE_BYTES // 20)].reshape(-1)
        batches.append(
            RecordColumns(
                count=rows,
                timestamps_ms=1_700_000_000_000 + np.arange(first, first + rows, dtype=np.int64) // 10,
                values=BinaryColumn(np.arange(0, (rows + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32), values),
            )
        )
    return batches


def encode(columns: list[RecordColumns], codec: CompressionType, batch_size_bytes: int) -> list[NDArray[np.uint8]]:
    parts, offset = [], 0
    for each in columns:
        parts.append(
            encode_batches(
                each,
                compression=codec,
                batch_size_bytes=batch_size_bytes,
                max_batch_bytes=1 << 20,
                base_offset=offset,
            ).data
        )
        offset += each.count
    return parts


def decode(data: NDArray[np.uint8], *, first_ms: int | None = None, until_ms: int | None = None) -> int:
    batches = scan_batches(data, file="benchmark").batches
    slices = decode_slices(
        data,
        batches,
        data_position=0,
        file="benchmark",
        columns=COLUMNS,
        start_offset=0,
        end_offset=MAX_OFFSET,
        min_timestamp_ms=first_ms,
        until_timestamp_ms=until_ms,
        check_crcs=True,
    )
    return sum(each.count for each in slices)


def decompress_all(data: NDArray[np.uint8], codec: CompressionType) -> None:
    batches = scan_batches(data, file="benchmark").batches
    for start, size in zip(batches["position"].tolist(), batches["size_bytes"].tolist(), strict=True):
        CODECS[codec].decompress(data[start + RECORDS_AT : start + size], file="benchmark", file_position=start)


def best(run: Callable[[], object], seconds: float) -> float:
    """Processor seconds of the shortest run, tried again until `seconds` have passed."""
    shortest, begin = float("inf"), time.perf_counter()
    while True:
        start = time.process_time()
        run()
        shortest = min(shortest, time.process_time() - start)
        if time.perf_counter() - begin > seconds:
            return shortest


def measure(columns: list[RecordColumns], codec: CompressionType, batch_size_bytes: int, seconds: float) -> str:
    records = sum(each.count for each in columns)
    data = np.concatenate(encode(columns, codec, batch_size_bytes))
    batches = scan_batches(data, file="benchmark").batches
    assert decode(data) == records
    encode_s = best(lambda: encode(columns, codec, batch_size_bytes), seconds)
    decode_s = best(lambda: decode(data), seconds)
    crc_s = best(lambda: verify_crcs(data, batches, data_position=0, file="benchmark"), seconds / 4)
    unpack_s = best(lambda: decompress_all(data, codec), seconds / 4) if codec else 0.0
    last_ms = int(batches["max_timestamp_ms"][-1])
    first_ms = 1_700_000_000_000
    slice_ms = (last_ms - first_ms) // 100
    slice_s = best(lambda: decode(data, first_ms=first_ms, until_ms=first_ms + slice_ms), seconds / 4)
    megabytes = records * VALUE_BYTES / 1e6
    return (
        f"{codec.name.lower():5} {batch_size_bytes // 1024:5} KiB "
        f"{records / encode_s / 1e6:8.1f} {megabytes / encode_s:8.0f} "
        f"{records / decode_s / 1e6:8.1f} {megabytes / decode_s:8.0f} "
        f"{crc_s / decode_s:8.0%} {unpack_s / decode_s:8.0%} {decode_s / slice_s:10.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=1.5, help="time for each of the figures")
    options = parser.parse_args()
    columns = make_columns(options.records)
    print(f"{options.records} records of {VALUE_BYTES} bytes, one core")
    print("codec     batch |      encode     |      decode     |  of the decode  | first 1% by")
    print("                | M rec/s    MB/s | M rec/s    MB/s |   crc    unpack | time: times faster")
    for codec in COMPRESSION_TYPES:
        for batch_size_bytes in BATCH_SIZES_BYTES:
            print(measure(columns, codec, batch_size_bytes, options.seconds), flush=True)


if __name__ == "__main__":
    main()
