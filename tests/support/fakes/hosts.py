"""A host with several workers in one process: its committer is a thread, which a test may hold back and kill."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from builders.leader_writers import Served
from builders.root_places import RootPlace
from patience import PATIENCE_S

from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches
from pyspark_kafkalog.root.commit.changes import AppendedRange
from pyspark_kafkalog.root.commit.checked_batches import CheckedBatches
from pyspark_kafkalog.root.commit.leader_plan import CheckedResult
from pyspark_kafkalog.server.committer import GroupCommitter
from pyspark_kafkalog.server.event_loop import monotonic_ms
from pyspark_kafkalog.server.host import channel
from pyspark_kafkalog.server.host.channel import CheckedFor, Ended, Kind
from pyspark_kafkalog.server.host.committer import HostCommitter, Link
from pyspark_kafkalog.server.host.process import HostCommits, listening_at

#: Of the committer's end of a connection, in bytes: little, so that answers that are not read soon fill it.
_SEND_BUFFER = 4608


class _Listener(socket.socket):
    """Keeps the connections that it has accepted."""

    def __init__(self, address: Path) -> None:
        super().__init__(fileno=listening_at(address).detach())
        self.accepted: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, object]:
        connected, address = super().accept()
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.accepted.append(connected)
        return connected, address


class Host:
    """The committer of a host over the root at `path`. Its commits wait until `gate` is open.

    `commits` has the number of units of each commit that was made. With `failure` a commit fails.
    """

    def __init__(
        self, address: Path, path: RootPlace, *, interval_ms: int = 0, clock: Callable[[], int] = monotonic_ms
    ) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun = 0
        self.commits: list[int] = []
        self.failure: BaseException | None = None
        self._served = Served(path)
        self._is_killed = self._commits_last = False
        self._listener = _Listener(address)
        self._process = HostCommits(
            self._listener,
            lambda: self,  # type: ignore[arg-type, return-value]
            monotonic_ms=clock,
            interval_ms=interval_ms,
            is_orphaned=lambda: self._is_killed,
        )
        self._thread = threading.Thread(target=self._process.run, name="committer of the host")
        self._thread.start()

    @property
    def connections(self) -> int:
        """How many workers have connected so far."""
        return len(self._listener.accepted)

    @property
    def topics_count(self) -> int:
        """How many topics, with their configurations, it knows of its workers."""
        return len(self._process._known_topics)

    def commit_checked(self, batches: Sequence[CheckedBatches]) -> Sequence[CheckedResult]:
        """As the writer of the root."""
        self.begun += 1
        assert self.gate.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        if self._is_killed and not self._commits_last:
            self._end_connections()
            raise OSError("killed")
        results = self._served.writer.commit_checked(batches)
        self.commits.append(sum(len(each.table) for each in batches))
        if self._is_killed:
            self._end_connections()
        return results

    def close(self) -> None:
        """As the writer of the root."""
        self._served.writer.close()

    def kill(self, *, commits: bool = False) -> None:
        """End as by SIGKILL, without an answer to any unit; if it `commits`, at the end of the commit under way."""
        self._commits_last = commits
        self._is_killed = True
        self.stop()

    def stop(self) -> None:
        """End as by SIGTERM, when all workers have ended."""
        self._process.stop()
        self.gate.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _end_connections(self) -> None:
        """As the kernel does for a process that was killed."""
        for each in self._listener.accepted:
            if each.fileno() >= 0:
                each.shutdown(socket.SHUT_RDWR)


class Worker:
    """A worker of the host, with a root of its own. `by_host` and `by_itself` count the units that were answered."""

    def __init__(self, address: Path, path: RootPlace) -> None:
        self.served = Served(path)
        self.by_host = self.by_itself = 0
        own = GroupCommitter(self.served.writer, lambda changed: None, self._count_own, monotonic_ms=monotonic_ms)
        self.committer = HostCommitter(
            address, self.served.root, own, self._count_host, clock=lambda: self.served.now_ms
        )

    def _count_host(self, units: int) -> None:
        self.by_host += units

    def _count_own(self, units: int) -> None:
        self.by_itself += units


@asynccontextmanager
async def working(address: Path, path: RootPlace, count: int = 1) -> AsyncIterator[list[Worker]]:
    """So many workers, which end in the end."""
    workers = [Worker(address, path) for _ in range(count)]
    for each in workers:
        await each.committer.start()
    try:
        yield workers
    finally:
        await asyncio.gather(*(each.committer.stop() for each in workers))


class BareWorker:
    """The connection of a worker, of which a test sends each message, and reads the answers or does not."""

    def __init__(self, address: Path, topic: CheckedFor) -> None:
        self.link = Link(address)
        self.link.socket.settimeout(PATIENCE_S)
        self._number = self.link.topic_number(topic)

    def send(self, *batches: bytes, partition: int = 0) -> None:
        """Send checked batches."""
        rows = []
        for data in batches:
            at = self.link.copy(as_bytes_array(data))
            assert at is not None
            head = channel.UNIT_HEAD.pack(self._number, partition, at, 0)
            rows.append(head + scan_batches(as_bytes_array(data), file="<test>").batches.tobytes())
        self.link.unsent.append(memoryview(channel.message(Kind.UNITS, *rows)))
        assert self.link.send()

    def results(self, count: int) -> list[object]:
        """The next so many results."""
        found: list[object] = []
        while len(found) < count:
            data = self.link.socket.recv(channel.RECEIVE_BYTES)
            assert data, "the committer has ended the connection"
            for _, content in self.link.messages.read(data):
                found += channel.read_results(content)
        return found

    def close(self) -> None:
        self.link.socket.close()


def results_message(*results: AppendedRange | BaseException) -> bytes:
    """The message with these results."""
    rows: list[tuple[int, ...]] = []
    for each in results:
        if isinstance(each, BaseException):
            rows.append((Ended.REFUSED, 0, 0, 0, 0))
            continue
        ended = Ended.DUPLICATE if each.is_duplicate else Ended.APPENDED
        rows.append((ended, each.first_offset, each.last_offset, each.log_start_offset, each.log_append_time_ms))
    return channel.results_message(
        np.array(rows, channel.RESULTS), [each for each in results if isinstance(each, BaseException)]
    )
