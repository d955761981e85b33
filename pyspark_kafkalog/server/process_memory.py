"""Garbage collection of a process that only serves.

A full collection stops all threads. With the modules of a server it traverses 300,000 objects, which takes 0.1 s of a
core, and a request of a hundred thousand elements causes several. So what a server consists of is excluded from
collection (`gc.freeze`), and collections begin after more new objects than by Python's defaults. Nearly all that a
request takes is freed without any collection, by counting references.
"""

from __future__ import annotations

import gc
from typing import Final

#: New objects until the youngest are collected; such collections until the next older generation is.
_THRESHOLDS: Final = (20_000, 10, 20)


def settle() -> None:
    """To be called once, when the server of this process has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
