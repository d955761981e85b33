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
from concurrent.futures import Executor
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)
_LOCAL_INTERVAL_S: Final = 0.005
_STORE_INTERVAL_S: Final = 0.25
_FAILURE_INTERVAL_S: Final = 1.0
#: Looking takes at most a tenth of the event loop's time.
_REST_FACTOR: Final = 9


class PartitionWaiters:
    """The events of waiting requests by partition. Used in the event loop's thread only."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, set[asyncio.Event]] = {}
        self._partitions: dict[asyncio.Event, frozenset[TopicPartition]] = {}
        self._is_waited = asyncio.Event()

    def __len__(self) -> int:
        return len(self._partitions)

    def subscribe(self, partitions: frozenset[TopicPartition]) -> asyncio.Event:
        event = asyncio.Event()
        self._is_waited.set()
        self._partitions[event] = partitions
        for each in partitions:
            self._by_partition.setdefault(each, set()).add(event)
        return event

    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that are waited for."""
        return tuple(self._by_partition)

    def unsubscribe(self, event: asyncio.Event) -> None:
        for each in self._partitions.pop(event, frozenset()):
            waiting = self._by_partition[each]
            waiting.discard(event)
            if not waiting:
                del self._by_partition[each]
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
        for each in partitions:
            for event in self._by_partition.get(each, ()):
                event.set()


class RootWatcher:
    """Refreshes `root` while requests wait, and wakes those whose partitions have changed since the last look.

    `executor` is where an object store is asked, or a broker's directory, which has no commits, is read.
    """

    def __init__(self, root: Root, waiters: PartitionWaiters, executor: Executor, *, is_object_root: bool) -> None:
        self._root = root
        self._waiters = waiters
        self._executor = executor
        self._blocks = is_object_root or root.is_broker_directory
        self._interval_s = _STORE_INTERVAL_S if self._blocks else _LOCAL_INTERVAL_S
        self._version: int | None = None
        self._states: dict[TopicPartition, LogState | None] = {}
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
            # Who has just begun to wait has looked for itself.
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
        if self._root.is_broker_directory:
            self._waiters.notify(None)
        elif self._root.version != self._version:
            self._version = self._root.version
            self._waiters.notify(self._changed(self._root.native().store.image))

    def _changed(self, image: MetadataImage) -> frozenset[TopicPartition]:
        """The partitions waited for that `image` has in another state than the last one that was looked at."""
        states = {each: _state(image, each) for each in self._waiters.partitions()}
        changed = frozenset(each for each, state in states.items() if self._states.get(each) is not state)
        self._states = states
        return changed


def _state(image: MetadataImage, topic_partition: TopicPartition) -> LogState | None:
    """The partition's state; None if it does not exist."""
    topic = image.topics.get(topic_partition.topic)
    if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
        return None
    return topic.partitions[topic_partition.partition].state
