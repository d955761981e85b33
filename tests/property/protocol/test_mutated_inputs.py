"""Mutated commits, snapshots, indexes, manifests, batches and frames: no crash, no hang, no path outside of the root.

Each input is answered, or refused by an error of ours, within ten seconds and 1 GiB of memory
(simulations/mutated_inputs.py).
`make test` takes a sample; KAFKALOG_TIER=full takes 20,000 inputs, and KAFKALOG_MUTATED_INPUTS any number.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulations import mutated_inputs
from tiers import SEED, TIER

COUNT = int(os.environ.get("KAFKALOG_MUTATED_INPUTS", {"check": 40, "test": 150, "full": 20_000}[TIER]))
#: How long the process may be silent: it makes roots and compiles first, and bombs meanwhile.
SILENCE_MAX_S = 120.0
#: Memory that is not given back would count against later inputs.
INPUTS_A_PROCESS = 2000
PROGRAM = Path(mutated_inputs.__file__)


class Worker:
    """A process over the inputs from `first` on, and the lines that it prints."""

    def __init__(self, folder: Path, first: int, count: int) -> None:
        support = [str(PROGRAM.parents[1]), str(PROGRAM.parents[3])]
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(SEED), str(first), str(count)],
            # A module that is imported late, and compiled for the first time, would write its bytecode beside it.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(support),
                "ARROW_DEFAULT_MEMORY_POOL": "system",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Until the process has ended, or is killed for its silence."""
        while True:
            try:
                line = self._lines.get(timeout=SILENCE_MAX_S)
            except queue.Empty:
                self.process.kill()
                yield {"hangs": True}
                break
            if line is None:
                break
            yield json.loads(line)
        self.process.wait()


@pytest.mark.slow
def test_mutated_inputs_are_answered_or_refused_in_bounded_time_and_memory(tmp_path: Path) -> None:
    print(f"KAFKALOG_SEED={SEED}")
    failures: list[str] = []
    first, ended = 0, 0
    while first < COUNT and len(failures) < 20:
        count = min(COUNT - first, INPUTS_A_PROCESS)
        worker = Worker(tmp_path / str(first), first, count)
        begun, outcome = first, ""
        for message in worker.messages():
            begun = message.get("begin", begun)
            ended += "end" in message
            if "failed" in message:
                failures.append(f"input {message['failed']}: {message['error']}\n{message['trace']}")
            if "hangs" in message:
                outcome = f"input {begun} hangs"
        if worker.process.returncode == 0:
            first += count
            continue
        failures.append(outcome or f"input {begun} ends the process with {worker.process.returncode}")
        first = begun + 1
    assert not failures, "\n".join(failures)
    assert ended == COUNT
