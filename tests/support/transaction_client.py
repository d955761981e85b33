"""Kafka's own transactional producers and consumers, driven by tests; see TransactionClient.java."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

from java_processes import QUICK_START, java
from kafka_oracle import kafka_lib

_PROGRAM: Final = Path(__file__).parents[1] / "data" / "TransactionClient.java"
_ANSWER_SECONDS_MAX: Final = 90


class KafkaClientError(Exception):
    """The name of the exception that Kafka's client raised."""


class TransactionClient:
    """A process with Kafka's clients of one cluster."""

    def __init__(self, bootstrap: str, log: Path) -> None:
        lib = kafka_lib()
        command = [
            java(),
            *QUICK_START,
            f"-Dlog4j2.configurationFile={lib.parent / 'log4j2.xml'}",
            "-cp",
            f"{lib}/*",
            str(_PROGRAM),
            bootstrap,
        ]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def __enter__(self) -> TransactionClient:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def __call__(self, *words: object) -> list[str]:
        """The words of the answer. Raises KafkaClientError."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(_ANSWER_SECONDS_MAX, process.kill)
        timer.start()
        try:
            process.stdin.write(" ".join(map(str, words)) + "\n")
            process.stdin.flush()
            kind, *answer = process.stdout.readline().split() or ["error", "NoAnswer"]
        finally:
            timer.cancel()
        if kind != "ok":
            raise KafkaClientError(*answer)
        return answer

    def begin(self, name: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        """Start a producer and initialize its transactional id."""
        self("producer", name, transactional_id, timeout_ms)
        self("init", name)
