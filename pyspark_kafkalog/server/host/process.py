"""The committer of a host: a process that commits the batches of all workers, those that wait together in one commit.

    receive    messages of all workers that have some; a new worker sends its memory first
    commit     the units that wait, in the order in which they came; their batches are taken from the workers' memory
    answer     each worker gets the results of its units

It is one thread, which does nothing else: while it commits, the next units gather in the sockets. Several hosts over
one log directory have a committer each, which take turns under its lock.

It may be killed at any time. What it has not committed is lost, as with any writer, and the workers find out by the end
of their connections (committer.py). After SIGTERM it ends once no worker is connected any more, so that what
workers have submitted at their end is committed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import KafkalogError, without_frames
from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.root.commit.checked_batches import CheckedBatches
from pyspark_kafkalog.root.commit.committer import LeaderWriter
from pyspark_kafkalog.root.commit.leader_plan import CheckedResult, PlacedBatches
from pyspark_kafkalog.server.committer import in_commits, log_failure
from pyspark_kafkalog.server.host import channel
from pyspark_kafkalog.server.host.channel import ChannelError, CheckedFor, Ended, Kind, Messages
from pyspark_kafkalog.server.request_errors import BoundedLog
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import SECOND_MS

_LOG: Final = logging.getLogger(__name__)
_BACKLOG: Final = 64
#: How often it looks whether the process that started it still runs.
_LOOK_S: Final = 1.0
#: A new worker sends its memory at once.
_GREETING_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Worker:
    """A connected worker: its memory, its topics by number, and the answers that it has not taken yet.

    `known_topics` are those of all workers: a topic that several of them have is one.
    """

    socket: socket.socket
    memory: NDArray[np.uint8]
    known_topics: dict[CheckedFor, CheckedFor]
    messages: Messages = field(default_factory=Messages)
    topics: list[CheckedFor] = field(default_factory=list)
    unsent: bytes = b""
    is_waited_for: bool = False  # for room in its socket

    def units(self, data: bytes) -> Iterator[NDArray[np.void]]:
        """The units (UNITS) of each message that `data`, the next bytes of the socket, completes.

        Raises ChannelError.
        """
        for kind, content in self.messages.read(data):
            if kind is Kind.TOPIC:
                number, topic = channel.read_topic(content)
                if number != len(self.topics) or number >= channel.TOPICS_MAX:
                    raise ChannelError(
                        f"expected topic {len(self.topics)}, and at most {channel.TOPICS_MAX}, found {number}"
                    )
                self.topics.append(self.known_topics.setdefault(topic, topic))
            elif kind is Kind.UNITS:
                yield channel.read_units(content, len(self.topics), len(self.memory))
            else:
                raise ChannelError(f"expected topics or units, found {kind.name}")


@dataclass(frozen=True, slots=True)
class _Message:
    """Units of one worker that arrived together."""

    worker: _Worker
    units: NDArray[np.void]

    @property
    def size_bytes(self) -> int:
        return int(self.units["batch"]["size_bytes"].sum())


class _Commit:
    """The units of some messages, by their partitions, and their results."""

    def __init__(self, messages: Sequence[_Message]) -> None:
        self._messages = messages
        self._rows: dict[tuple[CheckedFor, int], list[int]] = {}
        self._units = np.concatenate([each.units for each in messages])
        self._data: list[NDArray[np.uint8]] = []
        for each in messages:
            self._enter(each)
        starts = [np.full(len(each.units), address_of(each.worker.memory)) for each in messages]
        self._addresses = np.concatenate(starts) + self._units["position"]
        self._results = np.zeros(len(self._units), channel.RESULTS)
        self._errors: dict[int, BaseException] = {}

    def _enter(self, message: _Message) -> None:
        units, worker = message.units, message.worker
        numbers, partitions = units["topic"].tolist(), units["partition"].tolist()
        for number, partition, begin, size in zip(
            numbers, partitions, units["position"].tolist(), units["batch"]["size_bytes"].tolist(), strict=True
        ):
            self._rows.setdefault((worker.topics[number], partition), []).append(len(self._data))
            self._data.append(worker.memory[begin : begin + size])

    def __len__(self) -> int:
        return len(self._units)

    def batches(self) -> list[CheckedBatches]:
        """The batches of each partition."""
        return [
            CheckedBatches(
                TopicPartition(topic.name, partition),
                topic.topic_id,
                topic.config,
                self._units["checked_ms"][rows].tolist(),
                [self._data[row] for row in rows],
                self._addresses[rows],
                self._units["batch"][rows],
            )
            for (topic, partition), rows in self._rows.items()
        ]

    def ended(self, results: Sequence[CheckedResult]) -> None:
        """The commit was made with these results of `batches`."""
        for rows, result in zip(self._rows.values(), results, strict=True):
            if isinstance(result, PlacedBatches):
                self._results["first_offset"][rows] = result.table["base_offset"]
                self._results["last_offset"][rows] = result.table["last_offset"]
                self._results["log_start_offset"][rows] = result.log_start_offset
                self._results["log_append_time_ms"][rows] = -1
                continue
            for row, each in zip(rows, result, strict=True):
                if isinstance(each, BaseException):
                    self._refuse(row, each)
                    continue
                (of,) = each
                ended = Ended.DUPLICATE if of.is_duplicate else Ended.APPENDED
                self._results[row] = (
                    ended, of.first_offset, of.last_offset, of.log_start_offset, of.log_append_time_ms,
                )  # fmt: skip

    def failed(self, error: BaseException) -> None:
        """The commit was not made."""
        for row in range(len(self)):
            self._refuse(row, error)

    def _refuse(self, row: int, error: BaseException) -> None:
        self._results["ended"][row] = Ended.REFUSED
        self._errors[row] = error

    def answers(self) -> Iterator[tuple[_Worker, bytes]]:
        """The messages with the results, for the worker of each message."""
        begin = 0
        for each in self._messages:
            end = begin + len(each.units)
            rows = range(begin, end) if self._errors else ()
            errors = [self._errors[row] for row in rows if row in self._errors]  # bounded: by the units
            yield each.worker, channel.results_message(self._results[begin:end], errors)
            begin = end


class HostCommits:
    """Commits for the workers that connect to `listener`, with the writer that `make_writer` makes.

    A commit begins at least `interval_ms` after the one before. `is_orphaned`: whether the process that has started
    this one is gone.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_writer: Callable[[], LeaderWriter],
        *,
        monotonic_ms: Callable[[], int],
        interval_ms: int = 0,
        is_orphaned: Callable[[], bool] = lambda: False,
    ) -> None:
        self._listener = listener
        self._make_writer = make_writer
        self._writer: LeaderWriter | None = None
        self._monotonic_ms = monotonic_ms
        self._interval_ms = interval_ms
        self._is_orphaned = is_orphaned
        self._next_ms = 0
        self._failures = BoundedLog(_LOG, monotonic_ms, lines_a_second=1)
        self._selector = selectors.DefaultSelector()
        self._workers: set[_Worker] = set()
        self._known_topics: dict[CheckedFor, CheckedFor] = {}
        self._waiting: list[_Message] = []
        self._is_stopping = False
        self._waker, self._woken = socket.socketpair()

    def stop(self) -> None:
        """Have `run` return once no worker is connected. May be called by a signal handler, or another thread."""
        self._is_stopping = True
        with contextlib.suppress(OSError):  # it has ended
            self._waker.send(b"\0")

    def run(self) -> None:
        """Accept, receive, commit and answer until `stop`."""
        with contextlib.ExitStack() as closing:
            for each in (self._selector, self._listener, self._waker, self._woken):
                closing.callback(each.close)
            closing.callback(self._close)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._selector.register(self._woken, selectors.EVENT_READ)
            while (self._workers or self._waiting or not self._is_stopping) and not self._is_orphaned():
                self._receive()
                if self._waiting and self._monotonic_ms() >= self._next_ms:
                    self._commit()

    def _receive(self) -> None:
        rest_s = max(self._next_ms - self._monotonic_ms(), 0) / SECOND_MS if self._waiting else _LOOK_S
        for key, events in self._selector.select(min(rest_s, _LOOK_S)):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                self._woken.recv(channel.RECEIVE_BYTES)
            elif events & selectors.EVENT_WRITE:
                self._send(key.data)
            else:
                self._receive_of(key.data)

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError as error:  # gone again, or too many open files
            self._failures.warning("a worker could not be accepted: %s", error)
            return
        try:
            connected.settimeout(_GREETING_S)
            memory = channel.receive_memory(connected)
            connected.setblocking(False)
        except (OSError, ChannelError) as error:
            self._failures.warning("a worker could not be accepted: %s", without_frames(error))
            connected.close()
            return
        worker = _Worker(connected, memory, self._known_topics)
        self._workers.add(worker)
        self._selector.register(connected, selectors.EVENT_READ, worker)

    def _receive_of(self, worker: _Worker) -> None:
        try:
            data = worker.socket.recv(channel.RECEIVE_BYTES)
            if not data:
                self._drop(worker)
                return
            self._waiting += [_Message(worker, each) for each in worker.units(data) if len(each)]
        except BlockingIOError:
            pass
        except (OSError, ChannelError) as error:
            self._failures.warning("the connection of a worker has failed: %s", without_frames(error))
            self._drop(worker)

    def _drop(self, worker: _Worker) -> None:
        """A worker has ended. What it has submitted is still committed: its batches are in its memory."""
        if worker in self._workers:
            self._workers.discard(worker)
            self._selector.unregister(worker.socket)
            worker.socket.close()
            used = {topic for each in self._workers for topic in each.topics}
            for topic in self._known_topics.keys() - used:
                del self._known_topics[topic]

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        for some in in_commits(waiting, count=lambda each: len(each.units), size_bytes=lambda each: each.size_bytes):
            self._next_ms = self._monotonic_ms() + self._interval_ms
            commit = _Commit(some)
            try:
                if self._writer is None:
                    self._writer = self._make_writer()
                commit.ended(self._writer.commit_checked(commit.batches()))
            except Exception as error:
                log_failure(error, len(commit), self._failures)
                commit.failed(error)
            for worker, answer in commit.answers():
                worker.unsent += answer
                self._send(worker)

    def _send(self, worker: _Worker) -> None:
        if worker not in self._workers:
            return
        try:
            sent = worker.socket.send(worker.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(worker)
            return
        worker.unsent = worker.unsent[sent:]
        if worker.is_waited_for != bool(worker.unsent):
            worker.is_waited_for = bool(worker.unsent)
            writes = selectors.EVENT_WRITE if worker.unsent else 0
            self._selector.modify(worker.socket, selectors.EVENT_READ | writes, worker)

    def _close(self) -> None:
        for worker in tuple(self._workers):
            self._drop(worker)
        if self._writer is not None:
            with contextlib.suppress(KafkalogError, OSError):
                self._writer.close()


def listening_at(address: Path) -> socket.socket:
    """A socket that listens at `address`, where an earlier committer may have listened. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)
        listener.bind(str(address))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def run_until_signal(commits: HostCommits, numbers: Sequence[signal.Signals]) -> None:
    """Run the committer of this process until one of the signals."""
    for number in numbers:
        signal.signal(number, lambda *_: commits.stop())
    commits.run()
