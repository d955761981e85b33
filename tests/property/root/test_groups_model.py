"""Groups against dicts: after any commit, reset, deletion, expiry and cleaning, every view equals the model.

Two LogDirs of one root take turns to change; a newly opened one, and one that has been open all the time, must agree
with the model. Machines: a root on a file system, and one in an object store, where merges and the deletion of what
they replaced take part.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
from builders.controlled import create_log_dir, open_log_dir
from builders.root_places import client_address, forget, memory_root
from fakes.clock import Clock
from fakes.faulty_store import FaultyStore, MemoryBucket
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tiers import examples

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidGroupError, UnknownGroupError
from pyspark_kafkalog.groups.group import KnownEnds, expire_offsets, known_lags
from pyspark_kafkalog.groups.offset_records import (
    OFFSETS_TOPIC,
    OffsetAndMetadata,
    group_partition,
    offset_key,
    offset_value,
)
from pyspark_kafkalog.groups.offsets_topic import append_records, ensure_offsets_topic
from pyspark_kafkalog.groups.resets import ShiftBy, ToCurrent, ToEarliest, ToLatest, ToOffset
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up_root
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import HOUR_MS

EXAMPLES = int(os.environ.get("KAFKALOG_STATE_MACHINE_EXAMPLES") or examples(30))
START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
B0 = TopicPartition("b", 0)
ENDS = {TopicPartition("a", 0): 9, TopicPartition("a", 1): 0, B0: 4}
GROUPS = ("one", "two", "three")

groups = st.sampled_from(GROUPS)
some_partitions = st.lists(st.sampled_from(sorted(ENDS)), min_size=1, unique=True)
writers = st.integers(0, 1)


class NoDisk(FileSystem):
    """Waits for no disk."""

    def fsync(self, fd: int) -> None: ...

    def fsync_dir(self, path: Path) -> None: ...


class GroupsMachine(RuleBasedStateMachine):
    """What is the same for all kinds of roots: `created` and `opened` give a LogDir of the root at its place."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, dict[TopicPartition, tuple[int, int]]] = {}  # offset and time of its commit
        self.clock = Clock(START_MS)

    def created(self) -> LogDir:
        raise NotImplementedError

    def opened(self) -> LogDir:
        """The root as another process opens it."""
        raise NotImplementedError

    @initialize(partitions=st.integers(1, 3), codec=st.sampled_from([0, 1, 4]))
    def create(self, partitions: int, codec: int) -> None:
        log_dir = self.created()
        log_dir.alter_broker_configs(
            add={
                "offsets.topic.num.partitions": str(partitions),
                "offsets.topic.compression.codec": str(codec),
                "offsets.retention.minutes": "2",
            }
        )
        for name in ("a", "b"):
            self.create_topic(log_dir, name)
        self.writers = [log_dir, self.opened()]
        self.reader = self.opened()

    def create_topic(self, log_dir: LogDir, name: str) -> None:
        ends = [end for each, end in sorted(ENDS.items()) if each.topic == name]
        log_dir.create_topic(name, partitions=len(ends))
        for partition, end in enumerate(ends):
            if end:
                log_dir.append(name, pa.table({"value": ["v"] * end}), partition=partition)

    @rule(writer=writers, group=groups, partitions=some_partitions, offset=st.integers(0, 9))
    def commit(self, writer: int, group: str, partitions: list[TopicPartition], offset: int) -> None:
        self.writers[writer].refresh()
        self.writers[writer].group(group).commit(dict.fromkeys(partitions, offset))
        self.model.setdefault(group, {}).update(dict.fromkeys(partitions, (offset, self.clock.now_ms)))

    @rule(
        writer=writers,
        group=groups,
        to=st.sampled_from([ToEarliest(), ToLatest(), ToCurrent(), ToOffset(6), ShiftBy(-2), ShiftBy(3)]),
        partitions=st.none() | some_partitions,
        dry_run=st.booleans(),
    )
    def reset(
        self,
        writer: int,
        group: str,
        to: ToEarliest | ToLatest | ToCurrent | ToOffset | ShiftBy,
        partitions: list[TopicPartition] | None,
        dry_run: bool,
    ) -> None:
        there = {each: offset for each, (offset, _) in self.model.get(group, {}).items()}
        wanted = sorted(there) if partitions is None else sorted(partitions)
        try:
            found = self.writers[writer].group(group).reset(to, partitions, dry_run=dry_run, notify=lambda text: None)
        except InvalidGroupError:
            assert isinstance(to, ShiftBy)
            assert not there.keys() >= set(wanted)
            return
        assert found == {each: self.expected(to, each, there) for each in wanted}
        if not dry_run and found:
            now = {each: (offset, self.clock.now_ms) for each, offset in found.items()}
            self.model.setdefault(group, {}).update(now)

    @staticmethod
    def expected(to: object, each: TopicPartition, there: dict[TopicPartition, int]) -> int:
        match to:
            case ToEarliest():
                return 0
            case ToLatest():
                return ENDS[each]
            case ToCurrent():
                return there.get(each, ENDS[each])
            case ToOffset(offset):
                return min(offset, ENDS[each])
            case ShiftBy(count):
                return min(max(there[each] + count, 0), ENDS[each])
        raise AssertionError(to)

    @rule(writer=writers, group=groups)
    def delete(self, writer: int, group: str) -> None:
        try:
            self.writers[writer].group(group).delete()
            assert self.model.pop(group, None) is not None
        except UnknownGroupError:
            assert group not in self.model

    @rule(writer=writers, group=groups, partitions=some_partitions)
    def delete_offsets(self, writer: int, group: str, partitions: list[TopicPartition]) -> None:
        there = self.model.get(group, {})
        try:
            gone = self.writers[writer].group(group).delete_offsets(partitions)
        except UnknownGroupError:
            assert not there
            return
        assert gone == sorted(there.keys() & set(partitions))
        self.drop(group, partitions)

    def drop(self, group: str, partitions: list[TopicPartition]) -> None:
        left = {each: kept for each, kept in self.model.get(group, {}).items() if each not in partitions}
        self.model.pop(group, None)
        if left:
            self.model[group] = left

    @rule(writer=writers, group=groups, offset=st.integers(0, 4))
    def commit_without_id(self, writer: int, group: str, offset: int) -> None:
        """As a broker does in a transaction."""
        root = self.writers[writer].root
        root.refresh()
        number = group_partition(group, ensure_offsets_topic(root))
        committed = OffsetAndMetadata(offset=offset, commit_timestamp_ms=self.clock.now_ms)
        append_records(root, number, {offset_key(group, B0): offset_value(committed)})
        self.model.setdefault(group, {})[B0] = (offset, self.clock.now_ms)

    @rule(minutes=st.integers(0, 2), writer=writers, recreates=st.booleans())
    def expire(self, minutes: int, writer: int, recreates: bool) -> None:
        """`recreates`: topic b is deleted and created again before, so its offsets count no more and expire."""
        self.clock.now_ms += minutes * MINUTE_MS + 1
        if recreates:
            self.writers[writer].delete_topic("b")
            self.create_topic(self.writers[writer], "b")
            self.reader.refresh()
            assert not any(self.reader.group(group).fetch(["b"]) for group in GROUPS)
        oldest_ms = self.clock.now_ms - 2 * MINUTE_MS
        expired = {
            group: sorted(each for each, (_, at_ms) in there.items() if at_ms < oldest_ms or (recreates and each == B0))
            for group, there in self.model.items()
        }
        assert expire_offsets(self.writers[writer].root) == {group: gone for group, gone in expired.items() if gone}
        for group, gone in expired.items():
            self.drop(group, gone)

    @rule(writer=writers)
    def clean(self, writer: int) -> None:
        log_dir = self.writers[writer]
        log_dir.refresh()
        if OFFSETS_TOPIC not in log_dir.topics():
            return
        log_dir.alter_topic(OFFSETS_TOPIC, add={"internal.segment.bytes": "300", "delete.retention.ms": "0"})
        for each in log_dir.topic(OFFSETS_TOPIC).partitions:
            clean_partition(log_dir.root, OFFSETS_TOPIC, each.partition, force=True, now_ms=self.clock.now_ms)

    @rule()
    def reopen(self) -> None:
        self.reader = self.opened()

    @invariant()
    def all_views_agree(self) -> None:
        if not hasattr(self, "reader"):
            return
        self.reader.refresh()
        assert self.reader.groups() == tuple(sorted(self.model))
        for group in GROUPS:
            found = self.reader.group(group)
            assert {
                each: (committed.offset, committed.commit_timestamp_ms) for each, committed in found.fetch().items()
            } == self.model.get(group, {})
            assert {each.topic_partition: each.lag for each in found.lag()} == {
                each: ENDS[each] - offset for each, (offset, _) in self.model.get(group, {}).items()
            }
            assert known_lags(found, KnownEnds(self.reader.root)) == {
                (each.topic, each.partition): ENDS[each] - offset
                for each, (offset, _) in self.model.get(group, {}).items()
            }


class FileGroupsMachine(GroupsMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="groups-"))

    def created(self) -> LogDir:
        return create_log_dir(self.folder / "log", clock=self.clock, fs=NoDisk())

    def opened(self) -> LogDir:
        return open_log_dir(self.folder / "log", clock=self.clock, fs=NoDisk())

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class ObjectGroupsMachine(GroupsMachine):
    """A root in a bucket in memory, of which each LogDir is a client of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = MemoryBucket()
        self.place = memory_root(FaultyStore(self.bucket))

    def created(self) -> LogDir:
        return create_log_dir(self.place, clock=self.clock)

    def opened(self) -> LogDir:
        return open_log_dir(client_address(self.place, FaultyStore(self.bucket)), clock=self.clock)

    @rule(writer=writers, clean_up=st.booleans())
    def merge(self, writer: int, clean_up: bool) -> None:
        root = self.writers[writer].root.native()
        assert isinstance(root, ObjectRoot)
        for each in merge_segments(root):
            assert each.error is None, each
        if clean_up:
            self.clock.now_ms += HOUR_MS + 1
            clean_up_root(root)

    def teardown(self) -> None:
        forget(self.place)


SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestFileGroups = FileGroupsMachine.TestCase
TestFileGroups.settings = SETTINGS
TestObjectGroups = ObjectGroupsMachine.TestCase
TestObjectGroups.settings = SETTINGS
