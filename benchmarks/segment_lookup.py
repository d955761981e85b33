"""The time to find the batch of an offset in a segment, with a warm cache.

    python benchmarks/segment_lookup.py SEGMENT.log [LOOKUPS]

Prints the share of the index, then the median of the whole lookup (offset index, then batch headers), in microseconds.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark_kafkalog.storage.artefacts.index_file import MAX_INDEX_BYTES, OffsetIndex
from pyspark_kafkalog.storage.names import INDEX_SUFFIX
from pyspark_kafkalog.storage.segment.reader import LocalExtent, SegmentReader


def median_us(look_up: Callable[[int], object], offsets: list[int]) -> float:
    """Median over `offsets`, each looked up once in a first pass that does not count."""
    times = []
    for counts in (False, True):
        for offset in offsets:
            start = time.perf_counter_ns()
            look_up(offset)
            if counts:
                times.append((time.perf_counter_ns() - start) / 1000)
    return statistics.median(times)


def main(log: Path, lookups: int) -> None:
    base_offset = int(log.stem)
    index = OffsetIndex.open(log.with_suffix(INDEX_SUFFIX), base_offset, max_index_bytes=MAX_INDEX_BYTES)
    last_offset = index.last_offset
    offsets = [random.Random(1).randrange(base_offset, last_offset) for _ in range(lookups)]
    print(f"{index.entries:,} index entries; the index alone {median_us(index.lookup, offsets):.1f} us")
    with SegmentReader(LocalExtent(log.parent, base_offset)) as segment:
        print(f"{median_us(segment.locate, offsets):.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20_000)
