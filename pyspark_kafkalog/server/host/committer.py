"""A worker's committer: hands the batches of clients to the committer of the host, which commits those of all workers.

    event loop                                        the host's committer (process.py)
      submit(unit) -> future
      at the end of the loop's turn:
        each batch is checked, as its topic wants     all units that wait, of all workers
        it, and its row, are sent (channel.py)        one commit
      results are set                                 results

A worker also has a committer of its own. It commits what depends on the newest image (units of coordinators, and of
transactions; batches that the worker's check refuses), and everything while the host's committer is away: it is killed,
or starts. Units of batches keep their order: those of one way wait until those of the other are committed.

A crash of the host's committer leaves unknown which of the units that it had are committed. Those of producers with
sequences are committed again, where a batch that the log already has is found by its sequence. Others end with
CommitStateUnknownError: the client decides whether it sends them again, as after the crash of a broker. A crash of the
worker loses no more than its clients' answers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CommitStateUnknownError, ReadOnlyLogDirError
from pyspark_kafkalog.record.scan import as_bytes_array
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit, LeaderAppend, OutdatedCheckError
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.server.committer import Appended, Committer, GroupCommitter
from pyspark_kafkalog.server.event_loop import PromptFuture
from pyspark_kafkalog.server.host import channel
from pyspark_kafkalog.server.host.channel import ChannelError, CheckedFor, Kind, Messages, Ring
from pyspark_kafkalog.storage.log.leader_append import PreparedBatches, prepare_batches, prepare_in_place

_LOG: Final = logging.getLogger(__name__)
_CONNECT_AGAIN_S: Final = 0.1
_LOOK_AGAIN_S: Final = 0.01

_Future = PromptFuture[tuple[AppendedRange, ...]]


class EarlierFirstError(Exception):
    """A unit has to wait for the results of earlier ones.

    They fill the memory, or were checked for another configuration of its topic: the committer may leave them to the
    worker, and commit the unit before them. Or its topic needs a new connection, as this one has used all numbers.
    """


class Link:
    """A connection to the host's committer, with the memory for batches. Raises OSError if none can be made."""

    def __init__(self, address: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.setblocking(False)
            self.socket.connect(str(address))
            self.ring = Ring()
            self.memory = channel.send_memory(self.socket, self.ring.size_bytes)
        except BaseException:
            self.socket.close()
            raise
        self.messages = Messages()
        self._topics: dict[CheckedFor, int] = {}
        self._known: dict[tuple[str, str | None], tuple[CheckedFor, int]] = {}
        self.unsent: deque[memoryview] = deque()

    def has_other(self, topic: CheckedFor) -> bool:
        """Whether the last batch of the topic was checked for another configuration."""
        known = self._known.get((topic.name, topic.topic_id))
        return known is not None and known[0].config is not topic.config and known[0].config != topic.config

    def has_number(self, topic: CheckedFor) -> bool:
        """Whether the topic has a number, or can get one."""
        return len(self._topics) < channel.TOPICS_MAX or topic in self._topics

    def topic_number(self, topic: CheckedFor) -> int:
        """The number of a topic; the committer gets it before the first batch."""
        known = self._known.get((topic.name, topic.topic_id))
        if known is not None and known[0].config is topic.config:
            return known[1]
        number = self._topics.setdefault(topic, len(self._topics))
        if number == len(self._topics) - 1:
            self.unsent.append(memoryview(channel.topic_message(number, topic)))
        self._known[topic.name, topic.topic_id] = topic, number
        return number

    def copy(self, data: NDArray[np.uint8]) -> int | None:
        """Where a copy of `data` lies in the memory, as what was taken last; None if it is larger than that.

        Raises EarlierFirstError.
        """
        if len(data) > self.ring.size_bytes:
            return None
        at = self.ring.take(len(data))
        if at is None:
            raise EarlierFirstError
        self.memory[at : at + len(data)] = data
        return at

    def send(self) -> bool:
        """Send what is unsent; whether all of it could be sent now. Raises OSError."""
        while self.unsent:
            data = self.unsent[0]
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                return False
            if sent < len(data):
                self.unsent[0] = data[sent:]
            else:
                self.unsent.popleft()
        return True


class HostCommitter(Committer):
    """Commits units with the committer that listens at `address`, or else with `own`. Used in the event loop's thread.

    `committed` gets the number of units of each answer. `clock` is in ms since 1970.
    """

    def __init__(
        self,
        address: Path,
        root: NativeRoot,
        own: GroupCommitter,
        committed: Callable[[int], None],
        *,
        clock: Callable[[], int],
    ) -> None:
        self._address = address
        self._root = root
        self._own = own
        self._committed = committed
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._waiting: deque[tuple[CommitUnit, _Future]] = deque()
        #: At the host's committer, and whether each may be committed again.
        self._sent: deque[tuple[CommitUnit, _Future, bool]] = deque()
        #: The first that waits, if its check has shown that the own committer has to take it.
        self._for_own: CommitUnit | None = None
        self._own_under_way = 0
        self._is_stopped = False

    async def start(self) -> None:
        await self._own.start()
        self._connect()

    async def stop(self) -> None:
        """Wait for what was submitted, then end the connection. What comes later is refused."""
        self._is_stopped = True
        while self._sent or self._waiting:
            await asyncio.sleep(_LOOK_AGAIN_S)
        if self._link is not None:
            self._end_link()
        await self._own.stop()

    def submit(self, unit: CommitUnit) -> Appended:
        append = unit.only_batch
        if append is None or not len(append.data):
            return self._own.submit(unit)
        future: _Future = PromptFuture(loop=self._loop)
        if self._is_stopped:
            future.set_exception(ReadOnlyLogDirError("this server does not write to the log directory any more"))
            return future
        if not self._waiting:
            self._loop.call_soon(self._hand_over)
        self._waiting.append((unit, future))
        return future

    # Handing over

    def _hand_over(self) -> None:
        """Send the units that wait, or give them to the own committer, unless those before go the other way."""
        link, rows = self._link, []
        while self._waiting and not (link and self._own_under_way):
            unit, future = self._waiting[0]
            row = None
            if link is not None and unit is not self._for_own:
                try:
                    row = self._placed(link, unit)
                except EarlierFirstError:
                    if not self._sent:
                        self._renew()
                    break
                except Exception:  # the own committer decides, by the newest image
                    _LOG.debug("a batch is refused by its check", exc_info=True)
            if row is not None:
                self._waiting.popleft()
                self._sent.append((unit, future, row[1]))
                rows.append(row[0])
            elif self._sent:
                self._for_own = unit
                break
            else:
                self._waiting.popleft()
                self._for_own = None
                self._commit_own(unit, future)
        if link is not None and rows:
            link.unsent.append(memoryview(channel.message(Kind.UNITS, *rows)))
            self._send(link)

    def _placed(self, link: Link, unit: CommitUnit) -> tuple[bytes, bool] | None:
        """The row of a unit whose batch is in the memory now, and whether it may be committed again.

        None for a unit that the own committer has to take. Raises EarlierFirstError, and other errors for a batch that
        is refused.
        """
        append = unit.only_batch
        assert append is not None
        image = self._root.store.image
        topic = image.topics.get(append.topic_partition.topic)
        if topic is None or (append.topic_id is not None and append.topic_id != topic.topic_id):
            return None
        config = self._root.configs.of(image, topic)
        if append.prepared is not None and append.prepared.config != config:
            return None
        checked_for = CheckedFor(append.topic_partition.topic, append.topic_id, config)
        if (self._sent and link.has_other(checked_for)) or not link.has_number(checked_for):
            raise EarlierFirstError
        placed = self._checked_in(link, append, config)
        if placed is None:
            return None
        at, prepared = placed
        number = link.topic_number(checked_for)
        batches = prepared.batches.batches
        head = channel.UNIT_HEAD.pack(number, append.topic_partition.partition, at, prepared.now_ms)
        is_repeatable = bool(batches["producer_id"][0] >= 0 and batches["base_sequence"][0] >= 0)
        return head + batches.tobytes(), is_repeatable

    def _checked_in(self, link: Link, append: LeaderAppend, config: LogConfig) -> tuple[int, PreparedBatches] | None:
        """Where the checked batch lies in the memory, and its row; None if it cannot lie there, or is not one alone."""
        prepared, data = append.prepared, as_bytes_array(append.data)
        if prepared is None:
            at = link.copy(data)
            if at is None:
                return None
            try:
                usual = prepare_in_place(link.memory[at : at + len(data)], config, now_ms=self._clock())
            except BaseException:
                link.ring.take_back()
                raise
            if usual is not None and len(usual.batches) == 1:
                return at, usual
            link.ring.take_back()
            prepared = prepare_batches(data, config, now_ms=self._clock())
        if prepared is None or len(prepared.batches) != 1:
            return None
        at = link.copy(prepared.batches.data)
        return None if at is None else (at, prepared)

    def _commit_own(self, unit: CommitUnit, future: _Future) -> None:
        self._own_under_way += 1
        self._own.submit(unit).add_done_callback(partial(self._own_done, future))

    def _own_done(self, future: _Future, done: Appended) -> None:
        self._own_under_way -= 1
        error = done.exception()
        future.settle(done.result() if error is None else error)
        self._hand_over()

    # The connection

    def _renew(self) -> None:
        """Begin a new connection, with new numbers of topics."""
        self._end_link()
        self._connect()
        self._loop.call_soon(self._hand_over)

    def _connect(self) -> None:
        if self._is_stopped:
            return
        try:
            self._link = link = Link(self._address)
        except OSError:  # it starts, or is to be started again
            self._loop.call_later(_CONNECT_AGAIN_S, self._connect)
            return
        self._loop.add_reader(link.socket, self._receive, link)

    def _send(self, link: Link) -> None:
        try:
            if link.send():
                self._loop.remove_writer(link.socket)
            else:
                self._loop.add_writer(link.socket, self._send, link)
        except OSError as error:
            self._lost(link, error)

    def _receive(self, link: Link) -> None:
        try:
            data = link.socket.recv(channel.RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the committer has ended")
            for kind, content in link.messages.read(data):
                if kind is not Kind.RESULTS:
                    raise ChannelError(f"expected results, found {kind.name}")
                self._take_results(link, content)
        except BlockingIOError:
            return
        except (OSError, ChannelError) as error:
            self._lost(link, error)
        if self._waiting:
            self._hand_over()

    def _take_results(self, link: Link, content: bytes) -> None:
        results = tuple(channel.read_results(content))
        for result in results:
            if not self._sent:
                raise ChannelError("expected results of units that were sent, found more")
            unit, future, _ = self._sent.popleft()
            link.ring.give_back()
            if future.cancelled():
                continue
            if isinstance(result, OutdatedCheckError):
                self._commit_own(unit, future)
            else:
                future.settle(result if isinstance(result, BaseException) else (result,))
        self._committed(len(results))

    def _end_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._loop.remove_reader(link.socket)
            self._loop.remove_writer(link.socket)
            link.socket.close()

    def _lost(self, link: Link, error: Exception) -> None:
        """The connection has ended: see the module for what becomes of the units that were sent."""
        if link is not self._link:
            return
        self._end_link()
        _LOG.warning("the host's committer is away, this worker commits by itself: %s", error)
        sent, self._sent = self._sent, deque()
        self._waiting.extendleft(reversed([(unit, future) for unit, future, may_repeat in sent if may_repeat]))
        for _, future, may_repeat in sent:
            if not may_repeat and not future.cancelled():
                future.set_exception(
                    CommitStateUnknownError("the committer of this host has ended, and may have committed the batch")
                )
        self._loop.call_later(_CONNECT_AGAIN_S, self._connect)
        self._loop.call_soon(self._hand_over)
