"""The groups that this server coordinates: the partitions with them, their timers, and their expired offsets.

Which server coordinates a partition of `__consumer_offsets` is what FindCoordinator says. That is routing, not a lock:
two servers may believe it for a while, and what they write is checked in the commit (`shard`). A server that learns
that another one coordinates a partition answers NOT_COORDINATOR, and drops what waits. The first request for a
partition loads it; its groups continue as their records say, and all members have a whole session to send a heartbeat.

One task runs all timers. A key has one timer at most: scheduling it again replaces it, which costs a heap entry, as
heartbeats do all the time. If timers run much later than they were due, the process was stopped: members may have sent
their heartbeats to another server, so no member is expired; all partitions are dropped, and loaded again on demand.

From time to time offsets that are too old are deleted, and groups without members and offsets. Offsets of topics that
were deleted count as too old. A broker deletes them with the topic; here they count no more from then on, and this
removes them. One commit has what expires of many groups, as far as it can be planned in a moment. The rules are those
of `groups.offsets_topic`. A classic group is left alone while it rebalances, and its machine is closed when its records
are gone. A group that was made by a request, and has no record, is dropped too. Offsets that a read-only server has
taken over from its log live on from that time: the log may not have been served for months.

Source of the rules: org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime,
org.apache.kafka.coordinator.group.GroupCoordinatorShard.cleanupGroupMetadata.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Sequence
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError, UnsupportedFormatError
from pyspark_kafkalog.groups.classic_group import ClassicState, classic_key, classic_value
from pyspark_kafkalog.groups.consumer_group import ConsumerGroup, ConsumerMember, MemberState, encoded
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, OffsetAndMetadata
from pyspark_kafkalog.groups.offsets_topic import ensure_offsets_topic, find_expired
from pyspark_kafkalog.metadata.messages.internal_records import GroupMetadataValue
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.context import ServerContext
from pyspark_kafkalog.server.event_loop import in_turns
from pyspark_kafkalog.server.groups.classic import ClassicHost, TimerKey
from pyspark_kafkalog.server.groups.heartbeat import without
from pyspark_kafkalog.server.groups.local_shard import LocalShard, OwnGroups
from pyspark_kafkalog.server.groups.migration import downgraded
from pyspark_kafkalog.server.groups.shard import Planned, Shard
from pyspark_kafkalog.server.metadata import known_topics, offsets_partitions_count, partition_of_group
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MINUTE_MS

_STALE_KEPT: Final = 1000


class Timers:
    """Callbacks by key, each at its time in ms of the owner's monotonic clock."""

    def __init__(self, monotonic_ms: Callable[[], int], *, on_earlier: Callable[[], None] = lambda: None) -> None:
        """`on_earlier` is called when the next due time moves to an earlier one."""
        self._now_ms = monotonic_ms
        self._on_earlier = on_earlier
        self._heap: list[tuple[int, int, Hashable]] = []
        self._live: dict[Hashable, tuple[int, int, Callable[[], None]]] = {}
        self._count = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._live

    def __len__(self) -> int:
        return len(self._live)

    def schedule(self, key: Hashable, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call `callback` in `delay_ms`, instead of what the key was scheduled for."""
        due_ms = self._now_ms() + max(delay_ms, 0)
        self._count += 1
        self._live[key] = (due_ms, self._count, callback)
        is_earlier = not self._heap or due_ms < self._heap[0][0]
        heapq.heappush(self._heap, (due_ms, self._count, key))
        if len(self._heap) > 2 * len(self._live) + _STALE_KEPT:
            self._heap = [(due, count, each) for each, (due, count, _) in self._live.items()]
            heapq.heapify(self._heap)
        if is_earlier:
            self._on_earlier()

    def cancel(self, key: Hashable) -> None:
        self._live.pop(key, None)

    def next_due_ms(self) -> int | None:
        """When `run_due` has something to do; None: nothing is scheduled."""
        while self._heap and self._is_stale(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_due(self) -> None:
        """Call all that is due now, in the order of their times."""
        now_ms = self._now_ms()
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            _, _, key = heapq.heappop(self._heap)
            _, _, callback = self._live.pop(key)
            callback()

    def _is_stale(self, entry: tuple[int, int, Hashable]) -> bool:
        live = self._live.get(entry[2])
        return live is None or live[1] != entry[1]


#: Records of the groups of one commit: each is planned again for it, while others wait.
_RECORDS_TOGETHER: Final = 500
_SETTLED: Final = (ClassicState.EMPTY, ClassicState.STABLE)


async def expire_groups(context: ServerContext, shard: Shard) -> None:
    """Delete what has expired of all groups. Raises RequestError."""
    due: list[tuple[str, Callable[[], Planned]]] = []
    records_count = 0
    async for group_id in in_turns(shard.expiring_groups()):
        plan = _plan_expiry(context, shard, group_id)
        planned = plan()
        if not planned.changes and not planned.result:
            continue
        due.append((group_id, plan))
        records_count += 1 + len(shard.log.records(group_id))
        if records_count >= _RECORDS_TOGETHER:
            await _write_together(shard, due)
            due, records_count = [], 0
    await _write_together(shard, due)


async def _write_together(shard: Shard, due: Sequence[tuple[str, Callable[[], Planned]]]) -> None:
    """Writes that are begun together have one commit."""
    await asyncio.gather(*(shard.write(group_id, plan, is_exclusive=True) for group_id, plan in due))


def _plan_expiry(context: ServerContext, shard: Shard, group_id: str) -> Callable[[], Planned]:
    """The write that deletes what has expired of the group; its result is whether nothing is left of it."""

    def plan() -> Planned:
        machine = shard.classics.get(group_id)
        if machine is not None and (machine.group.state not in _SETTLED or machine.group.pending_joins):
            return Planned({})
        records = shard.log.records(group_id)
        topics = known_topics(context)

        def is_current(topic_partition: TopicPartition, committed: OffsetAndMetadata, key: bytes) -> bool:
            written_at = shard.log.written_at(key)
            topic = topic_partition.topic
            return topics.has_committed(topic, committed.topic_id, written_at) or topics.is_elsewhere(topic, written_at)

        now_ms = context.clock()
        older_than_ms = now_ms - context.broker_config().offsets_retention_minutes * MINUTE_MS
        if shard.kept_since_ms(group_id) > older_than_ms:
            older_than_ms = 0
        found = find_expired(
            shard.log, shard.recorded(group_id), is_current, older_than_ms=older_than_ms, now_ms=now_ms
        )
        is_unused = len(found.keys) == len(records) and not shard.log.pending_keys(group_id)
        is_gone = is_unused and (machine is None or machine.group.state is ClassicState.EMPTY)
        return Planned(
            dict.fromkeys(found.keys),
            is_gone,
            done=lambda: shard.close_classic(group_id, ErrorCode.UNKNOWN_MEMBER_ID) if is_gone else None,
        )

    return plan


_LOG: Final = logging.getLogger(__name__)

#: A request waits so long for its partition to be loaded; then the client shall ask again.
_LOAD_WAIT_S: Final = 1.0
#: How often partitions are looked for that another server coordinates.
_WATCH_MS: Final = 1_000
#: Timers that are later than this show that the process was stopped.
_STOPPED_MS: Final = 5_000


class GroupCoordinator:
    """A service of the server: `start` it before the first request. Used in the event loop's thread."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self._wake = asyncio.Event()
        self._timers = Timers(context.monotonic_ms, on_earlier=self._wake.set)
        self._shards: dict[int, Shard] = {}
        #: The groups in memory, of a server that only reads.
        self.own = OwnGroups()
        self._loading: dict[int, asyncio.Task[Shard]] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._tasks: set[asyncio.Task[object]] = set()

    async def start(self) -> None:
        self._watch()
        self._task = asyncio.create_task(self._run_timers())

    async def stop(self) -> None:
        """Answer who waits, and let commits that are under way end. Requests that come later shall be sent again."""
        self._is_stopping = True  # before Python 3.12 asyncio.wait_for may swallow a cancellation (gh-86296)
        for task in [*self._loading.values(), *([self._task] if self._task else [])]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        shards = list(self._shards.values())
        for shard in shards:
            self._unload(shard)
        for shard in shards:
            await shard.drained()

    async def take_in(self, own: OwnGroups) -> None:
        """Commit where groups have come to in the memory of a server that only read.

        What is committed already is not committed again, so a call that failed may be repeated.

        Raises RequestError if a group could not be written.
        """
        if not own.records:
            return
        await self._ensure_topic()
        by_partition: dict[int, list[str]] = {}
        for group_id in own.records.keys() | own.taken.keys():
            by_partition.setdefault(partition_of_group(self.context, group_id), []).append(group_id)
        for partition, group_ids in by_partition.items():
            async with self._read_for_once(partition) as shard:
                await asyncio.gather(*(self._take_in_one(shard, each, own) for each in group_ids))

    async def _take_in_one(self, shard: Shard, group_id: str, own: OwnGroups) -> None:
        def plan() -> Planned:
            return Planned(own.changes(group_id, shard.log.records(group_id)))

        try:
            await shard.write(group_id, plan, is_exclusive=True)
        except (CorruptRecordError, UnsupportedFormatError) as error:
            _LOG.error("group %s stays as it is in the log, whose records of it are damaged: %s", group_id, error)

    @contextlib.asynccontextmanager
    async def _read_for_once(self, partition: int) -> AsyncIterator[Shard]:
        """A partition that need not be coordinated here, for the block. Raises RequestError."""
        shard = self._new_shard(partition)
        try:
            try:
                await shard.load()
            except (KafkalogError, OSError) as error:
                _LOG.warning("%s-%d could not be read: %s", OFFSETS_TOPIC, partition, error)
                raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
            yield shard
        finally:
            self._unload(shard)

    # Partitions

    async def shard_of(self, group_id: str) -> Shard:
        """The partition of the group, for a request that may change it.

        Raises RequestError if it is not coordinated here, or not loaded yet.
        """
        shard = await self._shard_with(group_id)
        await self._up_to_date(shard, shard.follow)
        shard.take_over(group_id)
        return shard

    def loaded_shard_of(self, group_id: str) -> Shard | None:
        """The partition of the group as it was last read, if it is loaded and coordinated here."""
        if self._is_stopping or OFFSETS_TOPIC not in self.context.image().topics:
            return None
        partition = partition_of_group(self.context, group_id)
        shard = self._shards.get(partition)
        return shard if shard is not None and self.context.coordinates(OFFSETS_TOPIC, partition) else None

    async def read_shard_of(self, group_id: str) -> Shard:
        """The partition of the group, for a request that reads it, with all that others have written to it.

        Raises RequestError as `shard_of` does.
        """
        shard = await self._shard_with(group_id)
        await self._up_to_date(shard, shard.catch_up)
        return shard

    async def offsets_shard_of(self, group_id: str) -> Shard:
        """The partition of the group as its log is now, wherever the group is coordinated: committed offsets are there.

        librdkafka (2.16) never asks again for the offsets of a KIP-848 member after NOT_COORDINATOR, and consumes
        nothing; its admin client crashes. It asks the wrong server just when the coordinator has changed, so the
        partition is read for it alone.

        Raises RequestError as `shard_of` does, but for NOT_COORDINATOR.
        """
        await self._ensure_topic()
        partition = partition_of_group(self.context, group_id)
        if self._is_read_only or self.context.coordinates(OFFSETS_TOPIC, partition):
            try:
                return await self.read_shard_of(group_id)
            except RequestError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:
                    raise
        async with self._read_for_once(partition) as shard:
            return shard

    async def _shard_with(self, group_id: str) -> Shard:
        await self._ensure_topic()
        return await self._shard(partition_of_group(self.context, group_id))

    async def all_shards(self) -> list[Shard]:
        """The partitions that are coordinated here, with all that others have written to them.

        Raises RequestError if one of them is not loaded yet.
        """
        if self._is_read_only:
            return [await self.read_shard_of("")]
        if OFFSETS_TOPIC not in self.context.image().topics:
            await self.context.refresh()
            if OFFSETS_TOPIC not in self.context.image().topics:
                return []
        # bounded: partitions that exist
        partitions = range(offsets_partitions_count(self.context))
        numbers = [each for each in partitions if self.context.coordinates(OFFSETS_TOPIC, each)]
        shards = [await self._shard(each) for each in numbers]
        for shard in shards:
            await self._up_to_date(shard, shard.catch_up)
        return shards

    async def _up_to_date(self, shard: Shard, read: Callable[[], Awaitable[None]]) -> None:
        try:
            await read()
        except (KafkalogError, OSError) as error:
            _LOG.warning("%s-%d could not be read: %s", OFFSETS_TOPIC, shard.partition, error)
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        if shard.is_closed:
            raise RequestError(ErrorCode.NOT_COORDINATOR)

    async def _ensure_topic(self) -> None:
        """Create `__consumer_offsets` if it does not exist, unless groups are kept in memory alone."""
        root = self.context.root
        if not self._is_read_only and OFFSETS_TOPIC not in self.context.image().topics:
            try:
                await self.context.run(lambda: ensure_offsets_topic(root))
            except (KafkalogError, OSError) as error:
                _LOG.warning("%s could not be created: %s", OFFSETS_TOPIC, error)
                raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error

    @property
    def _is_read_only(self) -> bool:
        return self.context.native is None

    async def _shard(self, partition: int) -> Shard:
        if self._is_stopping:
            raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        shard = self._shards.get(partition)
        if not self.context.coordinates(OFFSETS_TOPIC, partition):
            if shard is not None:
                self._unload(shard)
            raise RequestError(ErrorCode.NOT_COORDINATOR)
        if shard is not None:
            return shard
        loading = self._loading.get(partition)
        if loading is None:
            loading = self._loading[partition] = asyncio.create_task(self._load(partition))
            loading.add_done_callback(lambda task: self._loading.pop(partition, None))
        try:
            return await asyncio.wait_for(asyncio.shield(loading), _LOAD_WAIT_S)
        except asyncio.TimeoutError:
            raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from None
        except (KafkalogError, OSError) as error:
            _LOG.warning("%s-%d could not be loaded: %s", OFFSETS_TOPIC, partition, error)
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error

    async def _load(self, partition: int) -> Shard:
        shard = self._new_shard(partition)
        try:
            await shard.load()
        except BaseException:
            self._unload(shard)
            raise
        self._shards[partition] = shard
        _LOG.debug("%s-%d is coordinated here, from offset %d on", OFFSETS_TOPIC, partition, shard.log.end_offset)
        for group in shard.consumers():
            for member in group.members.values():
                self.await_heartbeat(shard, group.group_id, member)
                self.await_revocation(shard, group.group_id, member)
        self._schedule_expiry(shard)
        return shard

    def _new_shard(self, partition: int) -> Shard:
        def host_of(shard: Shard, group_id: str) -> ClassicHost:
            return _GroupHost(self, shard, group_id)

        if self._is_read_only:
            return LocalShard(self.context, host_of, own=self.own)
        return Shard(self.context, partition, host_of, self._followed)

    def _unload(self, shard: Shard) -> None:
        _LOG.debug(
            "%s-%d is coordinated here no more, after offset %d", OFFSETS_TOPIC, shard.partition, shard.log.end_offset
        )
        if self._shards.get(shard.partition) is shard:
            del self._shards[shard.partition]
        shard.close(ErrorCode.NOT_COORDINATOR)

    def _watch(self) -> None:
        """Drop partitions that another server coordinates now: requests for them fail here from now on."""
        for shard in list(self._shards.values()):
            if not self.context.coordinates(OFFSETS_TOPIC, shard.partition):
                self._unload(shard)
        self._timers.schedule("watch", _WATCH_MS, self._watch)

    # Timers

    def schedule(self, shard: Shard, key: TimerKey, group_id: str, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call `callback` in `delay_ms`, if the partition is still coordinated here then."""

        def due() -> None:
            if shard.is_closed:
                return
            if self.context.coordinates(OFFSETS_TOPIC, shard.partition):
                callback()
            else:
                self._unload(shard)

        self._timers.schedule((shard, group_id, key), delay_ms, due)

    def cancel(self, shard: Shard, key: TimerKey, group_id: str) -> None:
        self._timers.cancel((shard, group_id, key))

    async def _run_timers(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            due_ms = self._timers.next_due_ms()
            if due_ms is None:
                await self._wake.wait()
                continue
            wait_ms = due_ms - self.context.monotonic_ms()
            if wait_ms > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), wait_ms / 1000)
                continue
            self.run_due()
            await asyncio.sleep(0)

    def run_due(self) -> None:
        """Do what is due now."""
        due_ms = self._timers.next_due_ms()
        late_ms = 0 if due_ms is None else self.context.monotonic_ms() - due_ms
        if late_ms > _STOPPED_MS:
            _LOG.warning("this process was stopped for %d ms: its groups are loaded again", late_ms)
            for shard in list(self._shards.values()):
                self._unload(shard)
        try:
            self._timers.run_due()
        except Exception:
            _LOG.exception("a timer of a group failed")

    def spawn(self, work: asyncio.Task[object]) -> None:
        """Keep a background task, and note its error."""
        self._tasks.add(work)
        work.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RequestError):
            _LOG.error("the work of a group failed", exc_info=error)

    # Sessions of the consumer protocol

    def await_heartbeat(self, shard: Shard, group_id: str, member: ConsumerMember) -> None:
        """Restart the member's session."""
        timeout_ms = self.context.group_config(group_id).session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._fence_in(shard, group_id, member.member_id, ("session", member.member_id), timeout_ms, lambda _: True)

    def _followed(self, shard: Shard, before: ConsumerGroup | None, after: ConsumerGroup | None) -> None:
        """Another server has written to the group, and may do so no more: its members have their sessions here, too."""
        members = {} if after is None else after.members
        known = {} if before is None else before.members
        group_id = after.group_id if after is not None else before.group_id if before is not None else ""
        for member_id, member in members.items():
            has_changed = before is not None and known.get(member_id) != member
            if has_changed or (shard, group_id, ("session", member_id)) not in self._timers:
                self.await_heartbeat(shard, group_id, member)
                self.await_revocation(shard, group_id, member)
        for member_id in known.keys() - members.keys():
            self.forget_member(shard, group_id, member_id)

    def await_join(self, shard: Shard, group_id: str, member: ConsumerMember) -> None:
        """A classic member that was asked to join again has its rebalance timeout for it, from the first time on."""
        key = ("join", member.member_id)
        if (shard, group_id, key) not in self._timers:
            self._fence_in(shard, group_id, member.member_id, key, member.rebalance_timeout_ms, _is_classic)

    def joined(self, shard: Shard, group_id: str, member: ConsumerMember) -> None:
        """A classic member has joined, and has its rebalance timeout to fetch its assignment."""
        self.cancel(shard, ("join", member.member_id), group_id)
        key = ("sync", member.member_id)
        self._fence_in(shard, group_id, member.member_id, key, member.rebalance_timeout_ms, _is_classic)

    def synced(self, shard: Shard, group_id: str, member: ConsumerMember) -> None:
        """A classic member has its assignment."""
        self.cancel(shard, ("sync", member.member_id), group_id)

    def await_revocation(self, shard: Shard, group_id: str, member: ConsumerMember) -> None:
        """A member that has to give up partitions has its rebalance timeout for it; a classic one has to join."""
        key = ("revocation", member.member_id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS or member.classic is not None:
            self.cancel(shard, key, group_id)
            return
        epoch, timeout_ms = member.epoch, member.rebalance_timeout_ms
        self._fence_in(shard, group_id, member.member_id, key, timeout_ms, lambda found: found.epoch == epoch)

    def forget_member(self, shard: Shard, group_id: str, member_id: str) -> None:
        for what in ("session", "revocation", "join", "sync"):
            self.cancel(shard, (what, member_id), group_id)

    def _fence_in(
        self,
        shard: Shard,
        group_id: str,
        member_id: str,
        key: TimerKey,
        delay_ms: int,
        is_meant: Callable[[ConsumerMember], bool],
    ) -> None:
        def plan() -> Planned:
            group = shard.consumer(group_id)
            member = None if group is None else group.members.get(member_id)
            if group is None or member is None or not is_meant(member):
                return Planned({})
            return self.removal(shard, group, [member_id])

        def due() -> None:
            _LOG.info("group %s: member %s is removed, its %s has timed out", group_id, member_id, key[0])
            self.spawn(asyncio.ensure_future(shard.write(group_id, plan, is_exclusive=True)))

        self.schedule(shard, key, group_id, delay_ms, due)

    def removal(
        self, shard: Shard, group: ConsumerGroup, member_ids: Collection[str], result: object = None
    ) -> Planned:
        """What removes members of a group of the consumer protocol."""
        changes, after = without(group, member_ids, known_topics(self.context))
        classic = self.downgrade(shard, group, after, result, rebalances=True)
        if classic is not None:
            return classic

        def done() -> None:
            shard.set_consumer(after)
            for each in member_ids:
                self.forget_member(shard, group.group_id, each)

        return Planned(encoded(changes), result, done)

    def downgrade(
        self, shard: Shard, before: ConsumerGroup, after: ConsumerGroup, result: object, *, rebalances: bool
    ) -> Planned | None:
        """What makes a classic group of `before`, if no member of the consumer protocol is left `after` a change.

        `rebalances`: members have gone, so the rest joins again, for the generation after that of `before`.
        """
        group_id, context = before.group_id, self.context
        value = downgraded(
            after,
            known_topics(context),
            context.broker_config(),
            generation=before.epoch if rebalances else after.epoch,
            now_ms=context.clock(),
        )
        if value is None:
            return None
        changes: dict[bytes, bytes | None] = dict.fromkeys(shard.log.state_records(group_id))
        changes[classic_key(group_id)] = classic_value(value)

        def done() -> None:
            for each in before.members.keys() | after.members.keys():
                self.forget_member(shard, group_id, each)
            machine = shard.classics.get(group_id)
            if machine is None:
                machine = shard.new_classic(group_id)
                machine.resume()
            if rebalances:
                machine.rebalance()
            _LOG.info("group %s uses the classic protocol again", group_id)

        return Planned(changes, result, done)

    # Expiry of offsets

    def _schedule_expiry(self, shard: Shard) -> None:
        async def expire() -> None:
            await self._up_to_date(shard, shard.catch_up)
            await expire_groups(self.context, shard)

        def due() -> None:
            self.spawn(asyncio.ensure_future(expire()))
            self._schedule_expiry(shard)

        interval_ms = self.context.broker_config().offsets_retention_check_interval_ms
        self.schedule(shard, ("expiry", ""), "", interval_ms, due)


def _is_classic(member: ConsumerMember) -> bool:
    return member.classic is not None


class _GroupHost(ClassicHost):
    """What a classic group has of the coordinator."""

    def __init__(self, coordinator: GroupCoordinator, shard: Shard, group_id: str) -> None:
        self._coordinator = coordinator
        self._shard = shard
        self._group_id = group_id

    def now_ms(self) -> int:
        return self._coordinator.context.clock()

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{uuid.uuid4()}"

    def schedule(self, key: TimerKey, delay_ms: int, callback: Callable[[], None]) -> None:
        self._coordinator.schedule(self._shard, key, self._group_id, delay_ms, callback)

    def cancel(self, key: TimerKey) -> None:
        self._coordinator.cancel(self._shard, key, self._group_id)

    def write(self, value: GroupMetadataValue, done: Callable[[ErrorCode], None]) -> None:
        self._shard.write_classic(self._group_id, value, done)
