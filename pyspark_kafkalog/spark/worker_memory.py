"""Keeping what was imported out of the garbage collections of Spark's Python workers.

After each task a worker process (pyspark.daemon) collects all garbage. With numba, numpy and Arrow loaded it walks
130,000 objects for that, 20 ms of a core, more than all else that a task of a small micro-batch does. None of them will
ever be garbage: `gc.freeze` takes them out of the collector's sight.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

_WORKER_MODULE: Final = "pyspark.daemon"
_modules_frozen = 0


def freeze_imports() -> None:
    """Freeze all objects of a Spark worker that has imported anything since the last call; to be called late in a task.

    Frozen objects are freed as ever when nothing refers to them, but for those in reference cycles. Does nothing in
    other processes, a user's driver among them.
    """
    global _modules_frozen
    if len(sys.modules) == _modules_frozen or not _is_worker():
        return
    _modules_frozen = len(sys.modules)
    gc.collect()
    gc.freeze()


def _is_worker() -> bool:
    return getattr(sys.modules["__main__"].__spec__, "name", None) == _WORKER_MODULE
