"""Size and speed of LZ4 by block size, for orders as JSON and for random hexadecimal text.

    python benchmarks/lz4_blocks.py [--mib N]

Kafka reads frames with blocks of 64 KiB to 4 MiB and writes 64 KiB. For each block size it prints the compressed share
and MB/s of processor time, the best of five runs; `pyarrow` is the compressor of Arrow's `lz4_raw`, which writes the
same bytes. Larger blocks do not pay: JSON shrinks by less than 1% more at the
same speed. Of text that barely compresses, the fast compressor gives up on blocks larger than 64 KiB: four times as
fast, but not a byte smaller, while blocks of 64 KiB save 7%.
"""

from __future__ import annotations

import argparse
import json
import random
import time

import cramjam
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BLOCK_SIZES_BYTES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)


def orders(size_bytes: int) -> NDArray[np.uint8]:
    rng = random.Random(0)
    out = bytearray()
    while len(out) < size_bytes:
        items = [
            {"sku": f"SKU-{rng.randrange(10_000):05}", "qty": rng.randrange(1, 5)} for _ in range(rng.randrange(1, 4))
        ]
        order = {
            "order_id": rng.randrange(10**9),
            "customer": f"{rng.choice(('alice', 'bob', 'carol', 'dave', 'erin'))}{rng.randrange(1000)}",
            "amount": round(rng.random() * 1000, 2),
            "currency": "EUR",
            "items": items,
            "ts": 1_700_000_000_000 + rng.randrange(10**7),
        }
        out += json.dumps(order).encode() + b"\x00\x10\x02\x01"  # about what a record adds
    return np.frombuffer(bytes(out[:size_bytes]), np.uint8)


def hexadecimal(size_bytes: int) -> NDArray[np.uint8]:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    return digits[np.random.default_rng(0).integers(0, len(digits), size_bytes)]


def measure(data: NDArray[np.uint8], block_bytes: int) -> tuple[float, float, float, float]:
    """Compressed share, and MB/s of compression, of Arrow's compression and of decompression."""
    out, back = np.empty(block_bytes + block_bytes // 255 + 16, np.uint8), np.empty(block_bytes, np.uint8)
    starts = range(0, len(data), block_bytes)
    compress_s = arrow_s = decompress_s = float("inf")
    arrow = pa.Codec("lz4_raw")
    for _ in range(5):
        begin = time.process_time()
        blocks = []
        for at in starts:
            size = cramjam.lz4.compress_block_into(data[at : at + block_bytes], out, store_size=False)
            blocks.append(out[:size].tobytes())
        compress_s = min(compress_s, time.process_time() - begin)
        begin = time.process_time()
        assert blocks == [arrow.compress(data[at : at + block_bytes], asbytes=True) for at in starts]
        arrow_s = min(arrow_s, time.process_time() - begin)
        begin = time.process_time()
        for block in blocks:
            cramjam.lz4.decompress_block_into(block, back, output_len=block_bytes)
        decompress_s = min(decompress_s, time.process_time() - begin)
    stored = sum(min(len(block), block_bytes) for block in blocks)
    compress, by_arrow, decompress = (len(data) / each / 1e6 for each in (compress_s, arrow_s, decompress_s))
    return stored / len(data), compress, by_arrow, decompress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=16, help="MiB of each kind of data")
    size_bytes = parser.parse_args().mib << 20
    print("data     block KiB   share   compress MB/s   pyarrow MB/s   decompress MB/s")
    for name, data in (("json", orders(size_bytes)), ("hex", hexadecimal(size_bytes))):
        for block_bytes in BLOCK_SIZES_BYTES:
            share, *rates = measure(data, block_bytes)
            print(
                f"{name:8} {block_bytes >> 10:9} {share:7.1%} {rates[0]:15.0f} {rates[1]:14.0f} {rates[2]:17.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
