"""One partition of `__consumer_offsets` at its coordinator: the groups whose records it holds.

    GroupLog                    the live records, as far as this server has read and written them
    classic groups              their state machines, made of the newest record; what waits in them is only here
    consumer groups             made of the records

*Writes* queue up. One coroutine takes all that wait, lets each write plan its records on the state that was read, and
commits them as one unit. The unit is refused if the partition's end in the newest image is not the one that was read:
then the tail is read and all is planned again. So whatever writes here, another server that believes to be the
coordinator, Spark or a tool, no writer overwrites a decision that it has not seen. A write that depends on its group's
members is the only one of its group in its batch.

If somebody else has written a classic group's record, its machine here is closed, and the group continues as in the
log.

A crash loses what was not committed; those who wait for it have no answer yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CommitConflictError, CorruptRecordError, KafkalogError, UnsupportedFormatError
from pyspark_kafkalog.groups.classic_group import ClassicGroup, classic_key, classic_value
from pyspark_kafkalog.groups.consumer_group import ConsumerGroup
from pyspark_kafkalog.groups.group_state import OtherGroup
from pyspark_kafkalog.groups.offset_records import OFFSET_TYPES, OFFSETS_TOPIC, group_of_key, is_offset
from pyspark_kafkalog.groups.offsets_topic import AnyGroup, GroupLog, encode_records, groups_changed
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.internal_records import GroupMetadataValue
from pyspark_kafkalog.object_store.store import ObjectStoreError
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.root.commit.changes import AppendOrigin, CommitUnit, LeaderAppend
from pyspark_kafkalog.server.context import ServerContext
from pyspark_kafkalog.server.event_loop import Eager, PromptFuture
from pyspark_kafkalog.server.groups.classic import ClassicHost, ClassicLimits, ClassicProtocol
from pyspark_kafkalog.server.metadata import ImageTopics
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)
#: How often a batch is planned again because somebody else wrote to the partition meanwhile.
_CONFLICTS_MAX: Final = 50
_BATCH_WRITES: Final = 1000
#: With so many members, the plan of a change takes longer than a turn of the event loop should.
_LARGE_GROUP: Final = 50
#: What a batch has besides the key and the value of its only record.
_OVERHEAD_BYTES: Final = 128
#: A group's members may have so many times the bytes of protocols that its record may have: only one is recorded.
_PROTOCOLS_FACTOR: Final = 8
#: In an object store the newest commit is asked for so often at most, to answer what changes nothing. A server that has
#: shown no sign of life is replaced after a longer time (`server.process.assembly`).
_LOOK_MS: Final = 2_000

#: Records as values by key; None deletes.
Changes = Mapping[bytes, "bytes | None"]


class TailMovedError(KafkalogError):
    """Somebody else has written to the partition since it was read."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a write does: its records, its result, and what to do once they are in the log.

    `topic_ids`: the ids that topics have, by name; if one has another in the commit, all is planned again.
    """

    changes: Changes
    result: Any = None
    done: Callable[[], None] = lambda: None
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Write:
    group_id: str
    plan: Callable[[], Planned]
    is_exclusive: bool = False
    may_be_behind: bool = False
    result: PromptFuture[Any] = field(default_factory=lambda: PromptFuture(loop=asyncio.get_running_loop()))


class Shard:
    """The groups of one partition. Used in the event loop's thread only."""

    def __init__(
        self,
        context: ServerContext,
        partition: int,
        host_of: Callable[[Shard, str], ClassicHost],
        followed: Callable[[Shard, ConsumerGroup | None, ConsumerGroup | None], None],
    ) -> None:
        """`followed` is told the groups of the consumer protocol that others have written to, before (if that is known)
        and after."""
        self.partition = partition
        self.log = GroupLog(partition)
        self.classics: dict[str, ClassicProtocol] = {}
        self.is_closed = False
        self._context = context
        self._host_of = host_of
        self._followed = followed
        #: The groups of other protocols, made of their records; None for classic groups.
        self._modern: dict[str, ConsumerGroup | OtherGroup | None] = {}
        self._topic_id = ""
        #: The writes that wait, by group, each with those of its group in order.
        self._queue: dict[str, deque[_Write]] = {}
        #: Done once the writes that are under way have ended.
        self._writing: asyncio.Future[None] | None = None
        self._reading = asyncio.Lock()
        self._following = asyncio.Lock()
        self._refreshed_ms = 0

    # Reading

    async def load(self) -> None:
        """Read the partition. Raises KafkalogError, OSError."""
        async with self._reading:
            await self._refresh()
            await self._load()

    async def _load(self) -> None:
        root = self._context.root
        log = GroupLog(self.partition)
        self._topic_id = root.topic(OFFSETS_TOPIC, readable_only=True).topic_id or ""

        def read() -> tuple[dict[str, ConsumerGroup | OtherGroup | None], set[str]]:
            log.catch_up(root, self._topic_id)
            return _groups_of(log)

        modern, with_members = await self._context.run(read)
        self.log = log
        self._modern = modern
        for group_id in with_members | self.classics.keys():
            self._follow_classic(group_id)

    async def catch_up(self) -> None:
        """Read what others have written. Raises KafkalogError, OSError."""
        await self._refresh()
        root = self._context.root
        if self._is_at_end():
            return
        async with self._reading:
            tail = await self._context.run(
                self.log.tail(root, root.topic(OFFSETS_TOPIC, readable_only=True).topic_id).read
            )
            if tail is None:
                await self._load()
                for group in self.consumers():
                    self._followed(self, None, group)
                return
            if tail.start_offset != self.log.end_offset:
                return  # an own write was taken over meanwhile: the next caller reads on
            start_offset = self.log.end_offset
            changed = self.log.apply(tail)
            _LOG.debug("%s-%d: read %d to %d", OFFSETS_TOPIC, self.partition, start_offset, self.log.end_offset)
            for group_id in changed or ():
                before = self._modern.pop(group_id, None)
                self._follow_classic(group_id)
                self._followed(self, _if_consumer(before), self.consumer(group_id))

    async def follow(self) -> None:
        """Read what others have written, unless the partition was looked at a moment ago.

        A process that stood still may be the coordinator again, after another one was: its state here is then an old
        one, and members that it answers from memory would be told partitions that are another's. Raises KafkalogError,
        OSError.
        """
        asked_ms = self._context.monotonic_ms()
        async with self._following:  # who comes while the store is asked shares the next answer
            is_due = asked_ms - self._refreshed_ms >= _LOOK_MS
            if is_due or self._context.root.directories or not self._is_at_end():
                await self.catch_up()

    async def _refresh(self) -> None:
        refreshed_ms = self._context.monotonic_ms()
        await self._context.refresh()
        self._refreshed_ms = refreshed_ms

    def _is_at_end(self) -> bool:
        """Whether all is read that the partition has in the image. Raises UnknownTopicError."""
        topic = self._context.image().topic(OFFSETS_TOPIC)
        found = topic.partitions[self.partition]
        return topic.topic_id == self._topic_id and found.high_watermark == self.log.end_offset

    def _follow_classic(self, group_id: str) -> None:
        """Have the machine of a group with members, as its record says; close one that another server has replaced."""
        newest = self.log.records(group_id).get(classic_key(group_id))
        machine = self.classics.get(group_id)
        if machine is not None:
            if newest is not None and newest == machine.record_under_way:
                machine.last_record = newest  # an own write, read before its commit was answered
            if machine.last_record == newest:
                return
            self.close_classic(group_id, ErrorCode.NOT_COORDINATOR)
        if newest is not None and ClassicGroup.of_record(group_id, newest).members:
            self.new_classic(group_id).resume()

    def take_over(self, group_id: str) -> None:
        """Called before a request that may change the group: here, groups always are this server's."""

    # Groups

    def group(self, group_id: str) -> AnyGroup | None:
        """The group as it is here, of whatever kind; None if there is none."""
        machine = self.classics.get(group_id)
        if machine is not None:
            return machine.group
        return self.recorded(group_id) if self.log.has(group_id) else None

    def recorded(self, group_id: str) -> AnyGroup:
        """The group as its records make it."""
        return self._modern_group(group_id) or ClassicGroup.of_records(group_id, self.log.records(group_id))

    def classic(self, group_id: str) -> ClassicProtocol | None:
        """The machine of the group, if it is one of the classic protocol, or has only offsets."""
        machine = self.classics.get(group_id)
        if machine is None and self.log.has(group_id) and self._modern_group(group_id) is None:
            return self.new_classic(group_id)
        return machine

    def new_classic(self, group_id: str) -> ClassicProtocol:
        """The machine of a group that has none, in the state of its record."""
        records = self.log.records(group_id)
        group = ClassicGroup.of_records(group_id, records, now_ms=self._context.clock())
        config = self._context.broker_config()
        limits = ClassicLimits(
            max_size=config.group_max_size,
            max_protocol_bytes=self._record_bytes_max() * _PROTOCOLS_FACTOR,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        )
        machine = ClassicProtocol(group, self._host_of(self, group_id), limits)
        machine.last_record = records.get(classic_key(group_id))
        self.classics[group_id] = machine
        return machine

    def close_classic(self, group_id: str, error: ErrorCode) -> None:
        machine = self.classics.pop(group_id, None)
        if machine is not None:
            machine.close(error)

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        """The group, if it is one of the consumer protocol."""
        return _if_consumer(self._modern_group(group_id))

    def _modern_group(self, group_id: str) -> ConsumerGroup | OtherGroup | None:
        """The group as its records make it, unless it is a classic one."""
        if group_id not in self._modern:
            if not self.log.records(group_id):
                return None  # not noted: clients make up names at will
            found = self.log.group(group_id)
            self._modern[group_id] = None if isinstance(found, ClassicGroup) else found
        return self._modern[group_id]

    def consumers(self) -> list[ConsumerGroup]:
        found = (self.consumer(group_id) for group_id in self.log.groups())
        return [each for each in found if each is not None]

    def set_consumer(self, group: ConsumerGroup) -> None:
        """Take over the state that was planned, so that it need not be made of the records."""
        self._modern[group.group_id] = group

    def group_ids(self) -> set[str]:
        return self.log.groups() | self.classics.keys()

    def expiring_groups(self) -> set[str]:
        """Those whose offsets expire here."""
        return self.group_ids()

    def kept_since_ms(self, group_id: str) -> int:
        """The offsets of the group count as no older than this time (ms since 1970)."""
        return 0

    def unchanged(self, group_id: str) -> Callable[[MetadataImage], bool]:
        """Whether the members of the group are, in a later image, as they are here; any thread may ask.

        What is only in memory here, such as a rebalance that is going on, gives no member partitions before its record
        is in the log.
        """
        root, topic_id, partition, read_offset = self._context.root, self._topic_id, self.partition, self.log.end_offset

        def is_unchanged(image: MetadataImage) -> bool:
            topic = image.topics.get(OFFSETS_TOPIC)
            if topic is None or topic.topic_id != topic_id:
                return False
            end_offset = topic.partitions[partition].high_watermark
            if end_offset == read_offset:
                return True
            if end_offset < read_offset:
                return False
            snapshot = root.native().partition_in(image, OFFSETS_TOPIC, partition)
            return group_id not in groups_changed(snapshot, read_offset, end_offset)

        return is_unchanged

    # Writing

    async def write(
        self, group_id: str, plan: Callable[[], Planned], *, is_exclusive: bool = False, may_be_behind: bool = False
    ) -> Any:
        """Commit what `plan` makes of the newest state; its result. It may be called again.

        `is_exclusive`: nothing else of the group is planned on the same state. `may_be_behind`: the caller has not
        asked `follow`, so that a refusal by `plan` counts only once all is read that others have written. Raises what
        `plan` raises, and RequestError if the commit fails.
        """
        return await self._submit(_Write(group_id, plan, is_exclusive, may_be_behind))

    def write_classic(self, group_id: str, value: GroupMetadataValue, done: Callable[[ErrorCode], None]) -> None:
        """Commit a classic group's record, if its machine is still the one that writes it."""
        machine = self.classics.get(group_id)
        record = classic_value(value)

        def plan() -> Planned:
            if machine is None or self.classics.get(group_id) is not machine:
                raise RequestError(ErrorCode.NOT_COORDINATOR)
            machine.record_under_way = record
            return Planned({classic_key(group_id): record}, done=lambda: setattr(machine, "last_record", record))

        def finished(result: asyncio.Future[Any]) -> None:
            if machine is not None and machine.record_under_way is record:
                machine.record_under_way = None
            error = None if result.cancelled() else result.exception()
            if error is not None and not isinstance(error, RequestError):
                _LOG.error("group %s could not be written", group_id, exc_info=error)
            code = error.code if isinstance(error, RequestError) else ErrorCode.UNKNOWN_SERVER_ERROR
            done(ErrorCode.NONE if error is None and not result.cancelled() else code)

        self._submit(_Write(group_id, plan, is_exclusive=True)).add_done_callback(finished)

    def _submit(self, write: _Write) -> PromptFuture[Any]:
        if self.is_closed:
            write.result.set_exception(RequestError(ErrorCode.NOT_COORDINATOR))
            return write.result
        self._queue.setdefault(write.group_id, deque()).append(write)
        if self._writing is None:
            loop = asyncio.get_running_loop()
            self._writing = loop.create_future()
            loop.call_soon(self._write_all)
        return write.result

    def _write_all(self) -> None:
        """Write all that waits. No task can be cancelled meanwhile: the state here must follow what is committed."""
        Eager(self._write_batches(), self._written)

    def _written(self, ended: Eager[None]) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.set_result(None)

    async def _write_batches(self) -> None:
        while self._queue:
            await self._write_batch(self._take_batch())

    def _take_batch(self) -> list[_Write]:
        """Writes that wait: of each group one that is exclusive, or those before the next one that is."""
        batch: list[_Write] = []
        late: dict[str, deque[_Write]] = {}
        while self._queue and len(batch) < _BATCH_WRITES:
            group_id = next(iter(self._queue))
            waiting = self._queue.pop(group_id)
            batch.append(waiting.popleft())
            if not batch[-1].is_exclusive:
                while waiting and not waiting[0].is_exclusive and len(batch) < _BATCH_WRITES:
                    batch.append(waiting.popleft())
            if waiting:
                late[group_id] = waiting
        self._queue.update(late)  # other groups come first next time
        return batch

    async def _write_batch(self, batch: Sequence[_Write]) -> None:
        for attempt in range(_CONFLICTS_MAX):
            try:
                is_behind = not attempt and self._may_plan_behind()
                if not is_behind:
                    await self._follow_log()
                batch = [each for each in batch if not each.result.done()]
                planned = [(each, await self._planned(each, is_behind=is_behind)) for each in batch]
                await self._commit([(each, its) for each, its in planned if its is not None])
                return
            except (TailMovedError, CommitConflictError):
                continue
            except (KafkalogError, OSError, ObjectStoreError) as failure:
                _LOG.warning("%s-%d could not be written: %s", OFFSETS_TOPIC, self.partition, failure)
                _fail(batch, RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure)))
                return
            except (Exception, asyncio.CancelledError) as failure:
                _fail(batch, failure)
                return
        _fail(batch, RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _may_plan_behind(self) -> bool:
        """Whether to plan on what was read, and to let the commit find out whether somebody else has written since.

        A file system tells the commit at once. In an object store a lost race costs more than to ask before.
        """
        native = self._context.native
        return native is not None and bool(native.directories) and self._is_at_end()

    async def _planned(self, write: _Write, *, is_behind: bool) -> Planned | None:
        """What the write does now; None if it is refused: a record that is too large must not fail the others' commit.

        All members of a large group may get other partitions, which takes a while: other clients come first meanwhile.
        Raises TailMovedError if it is refused, and others may have written since the request came.
        """
        group = self._modern.get(write.group_id)
        is_large = isinstance(group, ConsumerGroup) and len(group.members) >= _LARGE_GROUP
        refusal: Exception
        try:
            planned = await self._context.run(write.plan) if is_large and write.is_exclusive else write.plan()
        except Exception as error:
            if is_behind and write.may_be_behind:
                raise TailMovedError("the request may be right by what others have written") from error
            refusal = error
        else:
            limit = self._record_bytes_max()
            largest = max([len(key) + len(value or b"") for key, value in planned.changes.items()], default=0)
            if largest <= limit:
                return planned
            _LOG.warning("group %s: a record of %d bytes is refused, %d are allowed", write.group_id, largest, limit)
            refusal = RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a record of the group would have {largest} bytes")
        _fail([write], refusal)
        return None

    def _record_bytes_max(self) -> int:
        """What a record may have, so that its batch is not above max.message.bytes of the topic."""
        return self._log_config().max_message_bytes - _OVERHEAD_BYTES

    def _log_config(self) -> LogConfig:
        return self._context.root.log_config(OFFSETS_TOPIC)

    async def _follow_log(self) -> None:
        """Read all that writes have to be planned on."""
        await self.catch_up()

    async def _commit(self, writes: Sequence[tuple[_Write, Planned]]) -> None:
        changes: dict[bytes, bytes | None] = {}
        topic_ids: dict[str, str | None] = {}
        for _, planned in writes:
            changes.update(planned.changes)
            topic_ids.update(planned.topic_ids)
        if changes:
            first, end = await self._append(changes, topic_ids)
            if first == self.log.end_offset:
                self.log.advance(first, end, changes)
                for key, value in changes.items():
                    if value is not None and key[:2] in OFFSET_TYPES:
                        continue  # it makes no other group of one that there is
                    named = group_of_key(key)
                    if named is not None and not (is_offset(named[0]) and self.log.has(named[1])):
                        self._modern.pop(named[1], None)
        for _, planned in writes:
            planned.done()
        for write, planned in writes:
            if not write.result.done():
                write.result.set_result(planned.result)

    async def _append(self, changes: Changes, topic_ids: Mapping[str, str | None]) -> tuple[int, int]:
        """Commit the records, if the topics have these ids; the offsets that they got."""
        context, expected_offset, topic_id = self._context, self.log.end_offset, self._topic_id
        codec = CompressionType(context.broker_config().offsets_topic_compression_codec)
        data = b"".join(encode_records(changes, self._log_config(), codec, now_ms=context.clock()))
        topic_partition = TopicPartition(OFFSETS_TOPIC, self.partition)
        append = LeaderAppend(
            topic_partition=topic_partition, data=data, topic_id=topic_id, origin=AppendOrigin.COORDINATOR
        )

        def appends(image: MetadataImage) -> Sequence[LeaderAppend]:
            topic = image.topics.get(OFFSETS_TOPIC)
            if topic is None or topic.topic_id != topic_id:
                raise TailMovedError(f"{OFFSETS_TOPIC} is another topic now")
            if topic.partitions[self.partition].high_watermark != expected_offset:
                raise TailMovedError(f"{topic_partition} was written to by somebody else")
            if topic_ids and topic_ids != {name: ImageTopics(image).topic_id(name) for name in topic_ids}:
                raise TailMovedError(f"a topic of {', '.join(topic_ids)} was deleted")
            return (append,)

        (appended,) = await context.committer.submit(CommitUnit(appends=appends, size_bytes=len(data)))
        return appended.first_offset, appended.last_offset + 1

    # The end

    def close(self, error: ErrorCode) -> None:
        """Answer all who wait: this server does not coordinate the partition any more."""
        self.is_closed = True
        queue, self._queue = self._queue, {}
        for waiting in queue.values():
            _fail(waiting, RequestError(error))
        for group_id in list(self.classics):
            self.close_classic(group_id, error)

    async def drained(self) -> None:
        """Return when the write that is under way has ended."""
        if self._writing is not None:
            await asyncio.shield(self._writing)


def _if_consumer(group: AnyGroup | None) -> ConsumerGroup | None:
    return group if isinstance(group, ConsumerGroup) else None


def _groups_of(log: GroupLog) -> tuple[dict[str, ConsumerGroup | OtherGroup | None], set[str]]:
    """The groups of the log, None for classic ones, and the classic ones that need a machine.

    A damaged group is left out, and a request for it fails. There may be any number of groups: any thread may call it.
    """
    modern: dict[str, ConsumerGroup | OtherGroup | None] = {}
    with_members = set()
    for group_id in log.groups():
        with contextlib.suppress(CorruptRecordError, UnsupportedFormatError):
            found = log.group(group_id)
            if not isinstance(found, ClassicGroup):
                modern[group_id] = found
                continue
            modern[group_id] = None
            if found.members:
                with_members.add(group_id)
    return modern, with_members


def _fail(writes: Iterable[_Write], error: BaseException) -> None:
    for write in writes:
        if not write.result.done():
            write.result.set_exception(error)
