"""The processor time of this process and of all that it has started: Spark's JVM and workers, a store.

Of processes that have ended and were waited for, their parents know the time. A worker that ends unwaited for is not
counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: Of the fields of /proc/<pid>/stat after the name: the parent, and user, system and children's user, system time.
_PARENT, _FIRST_TIME, _AFTER_TIMES = 1, 11, 15


def processor_seconds(*, without: frozenset[int]) -> float:
    """Seconds used so far by this process and its descendants, without the processes `without`."""
    processes = dict(_processes())
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    ticks, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        if pid not in without and pid in processes:
            ticks += processes[pid][1]
            left += children.get(pid, [])
    return ticks / _TICKS_PER_SECOND


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """Of each process its id, its parent's, and the ticks that it and its ended children have used."""
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            yield int(each.name), (int(fields[_PARENT]), sum(map(int, fields[_FIRST_TIME:_AFTER_TIMES])))
