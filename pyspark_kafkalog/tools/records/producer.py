"""`kafkalog console-producer` while it runs: pieces of the input, and a commit for each."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.log_dir import FlushMode, LogDir
from pyspark_kafkalog.storage.names import validate_topic_name
from pyspark_kafkalog.tools.command import UsageError
from pyspark_kafkalog.tools.records.commands import LINE_READER
from pyspark_kafkalog.tools.records.record_format import LineFormat
from pyspark_kafkalog.tools.running import ending_cleanly, parse_properties_options

_READ_BYTES: Final = 1 << 20
_COMMIT_BYTES: Final = 32 << 20
_LINE_BYTES_MAX: Final = 256 << 20


def run(options: argparse.Namespace) -> int:
    """Write the lines of sys.stdin until its end."""
    if options.line_reader != LINE_READER:
        raise UsageError(f"--line-reader {options.line_reader} is not known, only {LINE_READER}")
    validate_topic_name(options.topic)
    line_format = LineFormat.from_properties(parse_properties_options(options.properties, options.reader_config))
    log_dir = LogDir.open_or_create(options.path)
    log_dir.root.check_writable()  # before lines are read that could not be written
    produce = _Producer(log_dir, line_format, options)
    with ending_cleanly():
        for text in _texts(sys.stdin.fileno(), linger_s=0 if options.sync else options.timeout / 1000):
            produce(text)
    return 0


class _Producer:
    """Writes pieces of text, each of which consists of whole lines."""

    def __init__(self, log_dir: LogDir, line_format: LineFormat, options: argparse.Namespace) -> None:
        self._log_dir = log_dir
        self._format = line_format
        self._topic: str = options.topic
        self._codec: str = options.compression_codec
        self._flush: FlushMode = options.flush
        self._is_sync: bool = options.sync
        self._line_number = 1

    def __call__(self, text: bytes) -> None:
        if not text:
            return

        lines = pc.split_pattern(pa.array([text], pa.binary()), pattern="\n").values
        if text.endswith(b"\n"):
            lines = lines[:-1]
        batch, error = self._format.parse(lines, self._line_number)
        self._line_number += len(lines)
        step = 1 if self._is_sync else max(len(batch), 1)
        for at in range(0, len(batch), step):
            rows = batch[at : at + step]
            self._log_dir.append(self._topic, rows, compression_type=self._codec, flush=self._flush)
        if error is not None:
            raise error


def _texts(fd: int, *, linger_s: float) -> Iterator[bytes]:
    """The input on `fd`, in pieces of whole lines with Unix line ends; the last line may lack its end.

    A piece is yielded `linger_s` after its first byte arrived, or when it has _COMMIT_BYTES. On an interrupt, the bytes
    read so far are yielded first.
    """
    has_prompt = os.isatty(fd) and sys.stdout.isatty()
    pending = bytearray()
    due_s = 0.0
    while True:
        if has_prompt:
            sys.stdout.write(">")
            sys.stdout.flush()
        try:
            data = _read(fd, max(due_s - time.monotonic(), 0.0) if pending else None)
        except KeyboardInterrupt:
            yield _as_lines(pending)
            raise
        if data == b"":
            break
        if not pending:
            due_s = time.monotonic() + linger_s
        pending += data or b""
        if data is None or len(pending) >= _COMMIT_BYTES or time.monotonic() >= due_s:
            end = pending.rfind(b"\n") + 1
            if end:
                yield _as_lines(pending[:end])
                del pending[:end]
            if len(pending) > _LINE_BYTES_MAX:
                raise UsageError(f"a line of more than {_LINE_BYTES_MAX} bytes: expected lines of text")
            due_s = time.monotonic() + linger_s
    yield _as_lines(pending)


def _read(fd: int, timeout_s: float | None) -> bytes | None:
    """The next bytes; b"" at the end of the input, None if no byte arrived within `timeout_s`."""
    poll = select.poll()  # takes any descriptor; select() none above 1023
    poll.register(fd, select.POLLIN)
    ready = poll.poll(None if timeout_s is None else timeout_s * 1000)
    return os.read(fd, _READ_BYTES) if ready else None


def _as_lines(text: bytearray) -> bytes:
    """`text` with line ends of Windows and old Macs converted to those of Unix, as Java reads lines."""
    data = bytes(text)
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
