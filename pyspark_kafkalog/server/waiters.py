"""Wakes Fetch requests that wait for records, when this process or another one has committed.

A commit of this process names the partitions that it changed. Commits of other processes are found by `RootWatcher`,
which refreshes the root while a Fetch waits: on a file system that costs microseconds, so it is done every few
milliseconds; on an object store it is a request, so it is done less often. An idle server is not woken up. A wake-up
of a request is a hint: it looks for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from concurrent.futures import Executor
from itertools import zip_longest
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)
_LOCAL_INTERVAL_S: Final = 0.005
_STORE_INTERVAL_S: Final = 0.25
_FAILURE_INTERVAL_S: Final = 1.0
#: Looking takes at most a tenth of the event loop's time.
_REST_FACTOR: Final = 9
_NOTHING: Final[tuple[frozenset[str], frozenset[TopicPartition]]] = (frozenset(), frozenset())


class PartitionWaiters:
    """The events of waiting requests. Used in the event loop's thread only.

    A request may wait for thousands of partitions, and begins to wait with each Fetch: so it is entered by topics, and
    the partitions are compared when some have changed.
    """

    def __init__(self) -> None:
        self._by_topic: dict[str, set[asyncio.Event]] = {}
        self._partitions: dict[asyncio.Event, tuple[frozenset[str], frozenset[TopicPartition]]] = {}
        self._is_waited = asyncio.Event()

    def __len__(self) -> int:
        return len(self._partitions)

    def subscribe(self, partitions: frozenset[TopicPartition]) -> asyncio.Event:
        event = asyncio.Event()
        self._is_waited.set()
        topics = frozenset(each.topic for each in partitions)
        self._partitions[event] = topics, partitions
        for topic in topics:
            self._by_topic.setdefault(topic, set()).add(event)
        return event

    def topics(self) -> tuple[str, ...]:
        """The topics of the partitions that are waited for."""
        return tuple(self._by_topic)

    def unsubscribe(self, event: asyncio.Event) -> None:
        topics, _ = self._partitions.pop(event, _NOTHING)
        for topic in topics:
            waiting = self._by_topic[topic]
            waiting.discard(event)
            if not waiting:
                del self._by_topic[topic]
        if not self._partitions:
            self._is_waited.clear()

    async def some(self) -> None:
        """Return when a request waits, at once if one does."""
        await self._is_waited.wait()

    def notify(self, partitions: frozenset[TopicPartition] | None) -> None:
        if partitions is None:
            for event in self._partitions:
                event.set()
            return
        for topic in {each.topic for each in partitions}:
            for event in self._by_topic.get(topic, ()):
                if not event.is_set() and not partitions.isdisjoint(self._partitions[event][1]):
                    event.set()


class RootWatcher:
    """Refreshes `root` while requests wait, and wakes those whose partitions have changed since the last look.

    `executor` is where an object store is asked, or a broker's directory, which has no commits, is read.
    """

    def __init__(self, root: Root, waiters: PartitionWaiters, executor: Executor) -> None:
        self._root = root
        self._native = native_or_none(root)
        self._waiters = waiters
        self._executor = executor
        self._blocks = self._native is None or not root.directories
        self._interval_s = _STORE_INTERVAL_S if self._blocks else _LOCAL_INTERVAL_S
        self._version: int | None = None
        self._topics: dict[str, TopicImage | None] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        rest_s = self._interval_s
        while True:
            await self._waiters.some()
            # A request that has just begun to wait has looked itself.
            await asyncio.sleep(rest_s)
            if not len(self._waiters):
                continue
            began = time.monotonic()
            interval_s = self._interval_s
            try:
                await self._look()
            except (KafkalogError, OSError) as error:
                _LOG.warning("%s cannot be refreshed: %s", self._root.path, error)
                interval_s = _FAILURE_INTERVAL_S
            rest_s = max(interval_s, _REST_FACTOR * (time.monotonic() - began))

    async def _look(self) -> None:
        if self._blocks:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._root.refresh)
        else:
            self._root.refresh()
        if self._native is None:
            self._waiters.notify(None)
        elif self._native.version != self._version:
            self._version = self._native.version
            self._waiters.notify(self._changed(self._native.store.image))

    def _changed(self, image: MetadataImage) -> frozenset[TopicPartition]:
        """The partitions of topics waited for that `image` has in another state than the one looked at before."""
        topics = {each: image.topics.get(each) for each in self._waiters.topics()}
        changed = frozenset(
            TopicPartition(topic, partition)
            for topic, found in topics.items()
            for partition in _changed_partitions(self._topics.get(topic), found)
        )
        self._topics = topics
        return changed


def _changed_partitions(before: TopicImage | None, now: TopicImage | None) -> Iterable[int]:
    """The partitions of a topic of which the state is another one, or which are there in one of both alone."""
    if before is now:
        return ()
    pairs = zip_longest(_states(before), _states(now))
    return [partition for partition, (one, other) in enumerate(pairs) if one is not other]


def _states(topic: TopicImage | None) -> list[LogState]:
    return [] if topic is None else [each.state for each in topic.partitions]
