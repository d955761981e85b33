"""The groups of a server that only reads its log directory: they begin as in the log, and continue in memory.

    in the log      a group is what its records say, of whichever server or broker they are; reads see what comes to the
                    log within a second
    taken over      with the first request that may change it here, the group is this server's: it begins with its
                    committed offsets, without the members, who are another server's, and the log counts no more for it

Nothing is written, unless the root comes to take writes while the server runs: `OwnGroups.changes` says what brings the
log to where the groups are here. The end of the process loses what was committed here; clients then continue as of the
log again. Offsets expire as in a log (coordinator.py), those that were taken over no sooner than
offsets.retention.minutes later.

All partitions of `__consumer_offsets` are one shard: a broker's directory may hold only some of them, so that a group's
own one cannot be told. A partition that cannot be read is logged, and its groups begin without offsets. Open
transactions do not make offsets unstable, since they are not ended here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.groups.consumer_group import ConsumerGroup
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, group_of_key, parse_offset_key, parse_offset_value
from pyspark_kafkalog.groups.offsets_topic import GroupLog, offsets_partitions
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.root.internal_topic import LogTail
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.server.context import ServerContext
from pyspark_kafkalog.server.groups.classic import ClassicHost
from pyspark_kafkalog.server.groups.shard import Changes, Shard

_LOG: Final = logging.getLogger(__name__)
#: The log is looked at so often at most: for a broker's directory, that means to list it and read the ends of logs.
_LOOK_MS: Final = 1_000


@dataclass(slots=True)
class OwnGroups:
    """The groups that were taken over, or have begun here.

    `records` are their live records, value by key, by group; `taken` those that the log had then.
    """

    records: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    taken: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)

    def changes(self, group_id: str, logged: Mapping[bytes, bytes]) -> dict[bytes, bytes | None]:
        """What makes the group in the log, where its records are `logged`, that of this server; None deletes.

        The log may have gone on since: the group's consumers were moved too early, or another server has it too. Of two
        commits of an offset the later one counts, and one counts more than a deletion. Members count as a whole, and
        those of the log if it has changed them.

        Raises CorruptRecordError, UnsupportedFormatError for an offset of the log that has to be compared.
        """
        own, taken = self.records.get(group_id, {}), self.taken.get(group_id, {})
        changes: dict[bytes, bytes | None] = {}
        for key in filter(_is_offset, own.keys() | taken.keys()):
            mine, theirs = own.get(key), logged.get(key)
            if mine in (taken.get(key), theirs):
                continue
            if theirs == taken.get(key) or (mine is not None and _is_later(mine, theirs)):
                changes[key] = mine
        members = _members(own)
        if members and _members(logged) == _members(taken):
            changes |= dict.fromkeys(_members(logged))
            changes |= members
        return changes


def _is_offset(key: bytes) -> bool:
    return parse_offset_key(key) is not None


def _members(records: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The records of a group but its offsets."""
    return {key: value for key, value in records.items() if not _is_offset(key)}


def _is_later(mine: bytes, theirs: bytes | None) -> bool:
    return (
        theirs is None or parse_offset_value(mine).commit_timestamp_ms > parse_offset_value(theirs).commit_timestamp_ms
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of one partition: all of it, or the rest."""

    log: GroupLog
    tail: LogTail | None = None


class LocalGroupLog(GroupLog):
    """The live records of all groups: those of the log's partitions, but of groups in `own` the ones there."""

    def __init__(self, own: OwnGroups) -> None:
        super().__init__(partition=0)
        self._taken = own.taken
        self._own = own.records
        self._logs: dict[int, GroupLog] = {}
        self._unreadable: dict[int, str] = {}

    def take_over(self, group_id: str) -> bool:
        """Make the group, with its offsets, one of `own`; False if it is, or is not in the log."""
        log = None if group_id in self._own else self._log_of(group_id)
        if log is None:
            return False
        found = log.records(group_id)
        self._taken[group_id] = dict(found)
        self._own[group_id] = {key: value for key, value in found.items() if _is_offset(key)}
        return True

    def own_groups(self) -> set[str]:
        return {group_id for group_id, records in self._own.items() if records}

    # As of a GroupLog

    def groups(self) -> set[str]:
        logged: set[str] = set().union(*(log.groups() for log in self._logs.values()))
        return self.own_groups() | (logged - self._own.keys())

    def has(self, group: str) -> bool:
        return bool(self._own[group]) if group in self._own else self._log_of(group) is not None

    def records(self, group: str) -> Mapping[bytes, bytes]:
        if group in self._own:
            return self._own[group]
        log = self._log_of(group)
        return {} if log is None else log.records(group)

    def written_at(self, key: bytes) -> tuple[int, int] | None:
        named = group_of_key(key)
        log = None if named is None else self._log_of(named[1])
        if named is None or log is None:
            return None
        # Of an offset that was committed here since, only its value can tell the topic.
        is_logged = self.records(named[1]).get(key) == log.records(named[1]).get(key)
        return log.written_at(key) if is_logged else None

    def pending_keys(self, group: str) -> Collection[bytes]:
        return ()

    def pending(self, group: str, key: bytes) -> Iterator[tuple[tuple[int, int], bytes]]:
        return iter(())

    def advance(self, first_offset: int, end_offset: int, changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            named = group_of_key(key)
            assert named is not None
            records = self._own.setdefault(named[1], {})
            if value is None:
                records.pop(key, None)
            else:
                records[key] = value
            if not records and self._log_of(named[1]) is None:
                del self._own[named[1]]
                self._taken.pop(named[1], None)

    # The log

    def read(self, root: Root) -> list[_Read]:
        """The records for `apply_all`: reads files, and changes nothing but the notes on unreadable partitions.

        Raises KafkalogError, OSError if the log directory as a whole cannot be read.
        """
        found = []
        for number in offsets_partitions(root):
            try:
                found.append(self._read_partition(root, number))
            except (KafkalogError, OSError) as error:
                if self._unreadable.get(number) != str(error):
                    self._unreadable[number] = str(error)
                    _LOG.error("%s-%d is left out: its groups have no offsets here: %s", OFFSETS_TOPIC, number, error)
        return found

    def _read_partition(self, root: Root, number: int) -> _Read:
        topic_id = root.topic(OFFSETS_TOPIC, readable_only=True).topic_id
        known = self._logs.get(number)
        if known is not None:
            tail = known.tail(root, topic_id).read()
            if tail is not None:
                return _Read(known, tail)
        log = GroupLog(number)
        log.catch_up(root, topic_id)
        return _Read(log)

    def apply_all(self, found: Sequence[_Read]) -> None:
        """Take over what was read."""
        for each in found:
            if each.tail is not None:
                each.log.apply(each.tail)
        self._logs = {each.log.partition: each.log for each in found}

    def _log_of(self, group_id: str) -> GroupLog | None:
        """The partition that has records of the group."""
        return next((log for log in self._logs.values() if log.has(group_id)), None)


class LocalShard(Shard):
    """All groups of the root. `own` outlives the shard: it has the records of the groups that were taken over."""

    log: LocalGroupLog

    def __init__(self, context: ServerContext, host_of: Callable[[Shard, str], ClassicHost], *, own: OwnGroups) -> None:
        super().__init__(context, 0, host_of, lambda *_: None)
        self.log = LocalGroupLog(own)
        self._looked_ms: int | None = None
        # When groups were taken over, or else this shard was made.
        self._taken_ms: dict[str, int] = dict.fromkeys(own.records, context.clock())

    async def load(self) -> None:
        """Read the log. Raises KafkalogError, OSError."""
        await self.catch_up()
        for group_id in self.log.own_groups():
            self._follow_classic(group_id)

    async def catch_up(self) -> None:
        """Read what has come to the log, unless that was done a moment ago. Raises KafkalogError, OSError."""
        async with self._reading:
            now_ms = self._context.monotonic_ms()
            if self._looked_ms is not None and now_ms - self._looked_ms < _LOOK_MS:
                return
            root, log = self._context.root, self.log

            def look() -> list[_Read]:
                root.refresh()
                return log.read(root)

            log.apply_all(await self._context.run(look))
            self._looked_ms = now_ms
            own = log.own_groups()
            for group_id in self.classics.keys() - own:
                if log.records(group_id) or not self._is_beginning(group_id):
                    self.close_classic(group_id, ErrorCode.NOT_COORDINATOR)
            for group_id in self._modern.keys() - own:
                del self._modern[group_id]

    async def follow(self) -> None:
        """See Shard."""
        await self.catch_up()

    def _is_beginning(self, group_id: str) -> bool:
        """Whether clients join a group that has no records yet."""
        machine = self.classics[group_id]
        return machine.last_record is None and bool(machine.group.members or machine.group.pending_joins)

    def take_over(self, group_id: str) -> None:
        if self.log.take_over(group_id):
            self._taken_ms[group_id] = self._context.clock()
            self.close_classic(group_id, ErrorCode.NOT_COORDINATOR)
            self._modern.pop(group_id, None)
            _LOG.info(
                "group %s continues in this server's memory, from its committed offsets: %s is read-only",
                group_id,
                self._context.root.path,
            )

    def expiring_groups(self) -> set[str]:
        """See Shard: only those that were taken over, or have begun here."""
        own = self.log.own_groups()
        own |= {group_id for group_id in self.classics if not self.log.records(group_id)}
        self._taken_ms = {group_id: taken_ms for group_id, taken_ms in self._taken_ms.items() if group_id in own}
        return own

    def kept_since_ms(self, group_id: str) -> int:
        """See Shard: the log may be that of a broker that has not run for months."""
        return self._taken_ms.get(group_id, 0)

    def consumers(self) -> list[ConsumerGroup]:
        """Those that were taken over: members of the others have their sessions elsewhere."""
        found = (self.consumer(group_id) for group_id in self.log.own_groups())
        return [each for each in found if each is not None]

    def _log_config(self) -> LogConfig:
        """Nothing is written, but the memory has the same bounds."""
        return self._context.broker_config().log_config({})

    async def _follow_log(self) -> None:
        pass  # the log does not count for a group that is written

    async def _append(self, changes: Changes, topic_ids: Mapping[str, str | None]) -> tuple[int, int]:
        return self.log.end_offset, self.log.end_offset
