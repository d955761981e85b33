"""What a worker and the committer of its host tell each other: batches in shared memory, all else through a socket.

    worker      its memory, once          a descriptor, and the size in bytes
                topics                    a number for each topic, with its configuration, before its first batch
                units                     rows of UNITS, in the order of their commits: batches that the worker has
                                          checked, and copied to its memory
    committer   results                   rows of RESULTS in the order of the units; after them the errors of those
                                          that were refused

A message is its size in bytes, its kind and its content, in the byte order of the machine. Everything that is read from
the socket is checked before it is used: a damaged message ends the connection.

The memory is a ring: batches lie in it in the order of their units, none across its end, and are given back in that
order. When nothing is in it, the next batch goes to its beginning again, which the processors' caches still have.

If one of both ends, the other finds the end of the socket. The memory goes with the last process that has it mapped.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError, LogDirError
from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.root.commit.changes import AppendedRange
from pyspark_kafkalog.units import MIB

#: A unit of one batch: the number of its topic, its partition, where the batch begins in the memory, when it was
#: checked, and its row in a table of batches, with offsets that count from 0.
_UNIT_FIELDS: Final = (("topic", "i"), ("partition", "i"), ("position", "q"), ("checked_ms", "q"))
UNIT_HEAD: Final = struct.Struct("=" + "".join(code for _, code in _UNIT_FIELDS))
UNITS: Final = np.dtype([*_UNIT_FIELDS, ("batch", BATCH_DTYPE)])
#: Of a unit that was committed, or refused: how it ended, and the fields of its AppendedRange.
RESULTS: Final = np.dtype(
    [
        ("ended", np.int8),
        ("first_offset", np.int64),
        ("last_offset", np.int64),
        ("log_start_offset", np.int64),
        ("log_append_time_ms", np.int64),
    ]
)

_HEAD: Final = struct.Struct("=IB")
_COUNT: Final = struct.Struct("=I")
_MEMORY: Final = struct.Struct("=q")
_TOPIC: Final = struct.Struct("=i")
#: A worker has so much in flight at most, and no message is longer.
MEMORY_BYTES: Final = 64 * MIB
_MESSAGE_BYTES_MAX: Final = 64 * MIB
#: Numbers of topics on one connection; a topic gets another one when it is created again, or configured.
TOPICS_MAX: Final = 1 << 14
RECEIVE_BYTES: Final = MIB


class Kind(IntEnum):
    """What a message has."""

    MEMORY = 1
    TOPIC = 2
    UNITS = 3
    RESULTS = 4


class Ended(IntEnum):
    """How a unit ended."""

    APPENDED = 0
    DUPLICATE = 1
    REFUSED = 2


class ChannelError(LogDirError):
    """A message between a worker and its committer cannot be read."""


@dataclass(frozen=True, slots=True)
class CheckedFor:
    """The topic of units: its name, the id that it must have (None: it is not checked), and its configuration."""

    name: str
    topic_id: str | None
    config: LogConfig


# Messages


def message(kind: Kind, *parts: bytes) -> bytes:
    """A message of a kind with these parts."""
    return b"".join((_HEAD.pack(sum(map(len, parts)), kind), *parts))


def topic_message(number: int, topic: CheckedFor) -> bytes:
    """The message that gives a topic its number."""
    return message(Kind.TOPIC, _TOPIC.pack(number), pickle.dumps((topic.name, topic.topic_id, topic.config)))


def read_topic(content: bytes) -> tuple[int, CheckedFor]:
    """The number and the topic of a message's content. The other end is a process of the same user and host."""
    with _reading("a topic"):
        topic = CheckedFor(*pickle.loads(content[_TOPIC.size :]))
        if not (isinstance(topic.name, str) and isinstance(topic.topic_id, str | None)):
            raise TypeError(f"the name {topic.name!r} and the id {topic.topic_id!r}")
        if not isinstance(topic.config, LogConfig):
            raise TypeError(f"the configuration {topic.config!r}")
        return _TOPIC.unpack_from(content)[0], topic


def read_units(content: bytes, topics: int, memory_bytes: int) -> NDArray[np.void]:
    """The units (UNITS) of a message's content, for a worker with so many `topics` and so much memory.

    Raises ChannelError for a unit that is not one of theirs.
    """
    if len(content) % UNITS.itemsize:
        raise ChannelError(f"expected units of {UNITS.itemsize} bytes, found {len(content)} bytes")
    units = np.frombuffer(content, UNITS)
    positions, batches = units["position"], units["batch"]
    sizes = batches["size_bytes"]
    is_inside = (positions >= 0) & (sizes <= memory_bytes) & (positions <= memory_bytes - sizes)  # no sum overflows
    is_of_topic = (units["topic"] >= 0) & (units["topic"] < topics) & (units["partition"] >= 0)
    if not (is_inside & is_of_topic).all():
        raise ChannelError(f"expected batches within {memory_bytes} bytes and {topics} topics, found others")
    counts_from_0 = (batches["position"] == 0) & (batches["base_offset"] == 0)
    is_whole = (batches["records_count"] > 0) & (batches["last_offset"] == batches["records_count"] - np.int64(1))
    if not (counts_from_0 & is_whole & (sizes >= RECORD_BATCH_OVERHEAD_BYTES)).all():
        raise ChannelError("expected whole batches whose positions and offsets count from 0, found others")
    return units


def results_message(rows: NDArray[np.void], errors: Sequence[BaseException]) -> bytes:
    """The message with the results (RESULTS) of units, and the errors of those that were refused, in their order."""
    told = [part for error in map(_error_bytes, errors) for part in (_COUNT.pack(len(error)), error)]
    return message(Kind.RESULTS, _COUNT.pack(len(rows)), rows.tobytes(), *told)


def _error_bytes(error: BaseException) -> bytes:
    """An error for the other process, without what it was raised from."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # of the error's own class: its text is what a client gets
        return pickle.dumps(KafkalogError(str(error)))
    return data


def read_results(content: bytes) -> Iterator[AppendedRange | BaseException]:
    """The results in a message's content. Raises ChannelError."""
    with _reading("results"):
        yield from _results(content)


def _results(content: bytes) -> Iterator[AppendedRange | BaseException]:
    (count,) = _COUNT.unpack_from(content)
    error_at = _COUNT.size + count * RESULTS.itemsize
    if error_at > len(content):
        raise ValueError(f"{count} results in {len(content)} bytes")
    for ended, first, last, start, time_ms in np.frombuffer(content[_COUNT.size : error_at], RESULTS).tolist():
        if Ended(ended) is Ended.REFUSED:
            (size,) = _COUNT.unpack_from(content, error_at)
            error_at += _COUNT.size + size
            error = pickle.loads(content[error_at - size : error_at])
            if not isinstance(error, BaseException):
                raise TypeError(f"the error {error!r}")
            yield error
        else:
            yield AppendedRange(
                first_offset=first,
                last_offset=last,
                log_start_offset=start,
                log_append_time_ms=time_ms,
                is_duplicate=ended == Ended.DUPLICATE,
            )


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Let what fails in the block be a ChannelError."""
    try:
        yield
    except Exception as error:  # unpickling raises what it finds
        raise ChannelError(f"expected {what}, found what cannot be read: {error}") from error


class Messages:
    """The messages in the bytes that a socket has given so far."""

    def __init__(self) -> None:
        self._left = b""

    def read(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """The kinds and contents of the messages that `data` completes. Raises ChannelError."""
        data = self._left + data if self._left else data
        at = 0
        while len(data) - at >= _HEAD.size:
            size, kind = _HEAD.unpack_from(data, at)
            if size > _MESSAGE_BYTES_MAX or kind not in _KINDS:
                raise ChannelError(f"expected a message of up to {_MESSAGE_BYTES_MAX} bytes, found {size} ({kind})")
            begin = at + _HEAD.size
            if len(data) - begin < size:
                break
            at = begin + size
            yield Kind(kind), data[begin:at]
        self._left = data[at:]


_KINDS: Final = frozenset(Kind)


# Memory


class Ring:
    """The memory of a worker, as it uses it: see the module. Only its own process takes from it and gives back."""

    def __init__(self, size_bytes: int = MEMORY_BYTES) -> None:
        self.size_bytes = size_bytes
        self._begin = self._end = 0  # of what is in use, counted on from the first round
        self._ends: deque[int] = deque()

    def take(self, size_bytes: int) -> int | None:
        """Where the next so many bytes are to lie; None if there is no room for them now."""
        if not self._ends:
            self._begin = self._end = 0
        at = self._end % self.size_bytes
        skipped = self.size_bytes - at if at + size_bytes > self.size_bytes else 0
        end = self._end + skipped + size_bytes
        if size_bytes > self.size_bytes or end - self._begin > self.size_bytes:
            return None
        self._end = end
        self._ends.append(end)
        return (end - size_bytes) % self.size_bytes

    def give_back(self) -> None:
        """What was taken first, of all that is in use, is not needed any more."""
        self._begin = self._ends.popleft()

    def take_back(self) -> None:
        """What was taken last is not needed after all."""
        self._ends.pop()
        self._end = self._ends[-1] if self._ends else self._begin


def shared_memory(size_bytes: int) -> int:
    """The descriptor of new memory without a name, which processes can share."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("kafkalog-batches", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size_bytes)
        if hasattr(os, "memfd_create"):  # the committer would be killed for bytes that are gone
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapped(fd: int, size_bytes: int) -> NDArray[np.uint8]:
    """The memory of a descriptor, which this closes. Raises ChannelError, OSError."""
    try:
        if not 0 < size_bytes <= os.fstat(fd).st_size:
            raise ChannelError(f"expected {size_bytes} bytes of memory, found {os.fstat(fd).st_size}")
        return np.frombuffer(mmap.mmap(fd, size_bytes), dtype=np.uint8)  # bounded: by the file's size
    finally:
        os.close(fd)


def send_memory(sender: socket.socket, size_bytes: int) -> NDArray[np.uint8]:
    """New memory of a worker, whose descriptor is sent as the first message. Raises OSError."""
    fd = shared_memory(size_bytes)
    try:
        socket.send_fds(sender, [message(Kind.MEMORY, _MEMORY.pack(size_bytes))], [fd])
    except BaseException:
        os.close(fd)
        raise
    return mapped(fd, size_bytes)


def receive_memory(receiver: socket.socket) -> NDArray[np.uint8]:
    """The memory of a worker that has just connected. Raises ChannelError, OSError."""
    expected = _HEAD.size + _MEMORY.size
    data, fds, _, _ = socket.recv_fds(receiver, expected, 1)
    if data[: _HEAD.size] != _HEAD.pack(_MEMORY.size, Kind.MEMORY) or len(data) != expected or len(fds) != 1:
        for fd in fds:
            os.close(fd)
        raise ChannelError(f"expected {expected} bytes and the descriptor of a worker's memory, found {len(data)}")
    return mapped(fds[0], _MEMORY.unpack_from(data, _HEAD.size)[0])
