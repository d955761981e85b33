"""LogDir against a model in memory: after any operation, and wherever a writer is killed, the root equals the model.

Maintenance runs in between: records are deleted, segments are merged and deleted, which the model does not see. A root
is on a file system, tiered or not, or in an object store.

Two LogDirs of one root take turns to write; a third refreshes only when it is asked to. A writer may be stopped at any
call that changes the file system, or of the store, as by SIGKILL; then its write is there whole or not at all, and the
model takes over which of the two it was. KAFKALOG_STATE_MACHINE_EXAMPLES asks for more than a few runs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.controlled import open_log_dir, open_or_create_log_dir
from builders.object_roots import left_objects, named_objects
from builders.root_places import RootPlace, forget, memory_root, open_as, waiting_in
from fakes.faulty_store import Call, Fault, FaultyStore, MemoryBucket, VirtualClock
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiers import examples

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import (
    LowerVersionError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    TopicExistsError,
    UnknownTopicError,
)
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up_root
from pyspark_kafkalog.maintenance.reindex import reindex
from pyspark_kafkalog.maintenance.retention.delete import apply_retention, finish
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.metadata.objects import backend as object_backend
from pyspark_kafkalog.root.file_root import on_file_system
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.storage.filesystem import FileSystem, time_ms
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staged_file import StagedFile
from pyspark_kafkalog.storage.stager import stage_table
from pyspark_kafkalog.units import DAY_MS, HOUR_MS

EXAMPLES = int(os.environ.get("KAFKALOG_STATE_MACHINE_EXAMPLES") or examples(100))
TOPICS = ("orders", "clicks", "users")
CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {"internal.segment.bytes": "700", "index.interval.bytes": "100"},
    {"internal.segment.bytes": "3000", "compression.type": "zstd"},
)
SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "1500", "metadata.max.retention.ms": "0"}
SYNCS = ("fsync", "fsync_dir", "start_writeback")
GONE = b""
#: How many calls may be made until a writer dies: to a file system; to a store by a commit, with reads, snapshot and
#: clean-up, and by a run of maintenance.
CALLS_TO_FILES = 60
CALLS_OF_A_COMMIT = 8
CALLS_OF_A_JOB = 40
#: The time of records that tell their own: later than that is the future.
NOW_MS = 1_700_000_000_000
CHANGES = ("open", "close", "pwrite_all", "copy_range", "truncate", "rename", "link", "unlink", "mkdir", "rmdir")


class Killed(BaseException):
    """The process is gone: nothing catches this, and no call after it does anything."""


class MortalFileSystem(FileSystem):
    """Waits for no disk. Once `left` calls have been made all fail, but for closing."""

    left: int | None = None

    def die_in(self, share: float, *, is_job: bool) -> None:
        self.left = int(share * CALLS_TO_FILES)

    @property
    def is_dead(self) -> bool:
        return self.left is not None and self.left < 0


def _mortal(name: str) -> Callable[..., Any]:
    original = getattr(FileSystem, name)

    def method(self: MortalFileSystem, *arguments: Any, **named: Any) -> Any:
        if self.left is not None:
            self.left -= 1
            if self.left < 0 and name != "close":
                raise Killed
        return None if name in SYNCS else original(self, *arguments, **named)

    return method


for _name in (*CHANGES, *SYNCS):
    setattr(MortalFileSystem, _name, _mortal(_name))


class MortalStore(FaultyStore):
    """A client of a bucket that is killed after `left` more calls, before or after the next one took effect."""

    left: int | None = None

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__(bucket, faults=self._fault)

    def die_in(self, share: float, *, is_job: bool) -> None:
        self.left = int(share * (CALLS_OF_A_JOB if is_job else CALLS_OF_A_COMMIT))

    @property
    def is_dead(self) -> bool:
        return self.left is not None and self.left < 0

    def _fault(self, call: Call) -> Fault | None:
        if self.left is None:
            return None
        self.left -= 1
        if self.left >= 0:
            return None
        return (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_IN_FLIGHT)[call.number % 3]


@dataclass
class Topic:
    configs: dict[str, str]
    partitions: list[list[bytes]]


@dataclass
class Model:
    """What is committed: values by topic and partition, in order; each transactional id's last version and holder.

    The value of a deleted record is GONE.
    """

    topics: dict[str, Topic] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)
    fenced: dict[str, set[str]] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model(
            {
                name: Topic(dict(each.configs), [list(part) for part in each.partitions])
                for name, each in self.topics.items()
            },
            dict(self.versions),
            dict(self.holders),
            {name: set(each) for name, each in self.fenced.items()},
        )

    def hold(self, name: str, incarnation: str) -> None:
        holder = self.holders.get(name)
        if holder is not None and holder != incarnation:
            self.fenced.setdefault(name, set()).add(holder)
        self.holders[name] = incarnation


def see(log_dir: LogDir) -> dict[str, tuple[dict[str, str], list[list[bytes]]]]:
    """All that a reader gets; offsets count from the log start without gaps."""
    seen = {}
    for name in log_dir.topics():
        described = log_dir.topic(name)
        rows = log_dir.read(name, isolation="read_committed")
        assert rows.equals(log_dir.read(name, isolation="read_uncommitted"))
        values = [[GONE] * each.log_start_offset for each in described.partitions]
        for partition, offset, value in zip(
            rows["partition"].to_pylist(), rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True
        ):
            assert offset == len(values[partition])
            values[partition].append(value)
        for each in described.partitions:
            assert each.high_watermark == len(values[each.partition])
        seen[name] = (dict(described.configs), values)
    return seen


def clean_all(root: Root, *, now_ms: int) -> list[PartitionReport]:
    """Clean the compacted topics. Each record has a key of its own, so none goes."""
    native = root.native()
    native.refresh()
    return [
        clean_partition(root, each.topic, each.partition, now_ms=now_ms, force=True) for each in native.partitions()
    ]


class RootMachine(RuleBasedStateMachine):
    root: RootPlace
    jobs: tuple[Callable[..., list[PartitionReport]], ...] = (apply_retention, merge_segments, reindex)
    #: Broker-level settings, and configurations that topics have beside those of CONFIGS.
    root_settings: Mapping[str, str] = {}
    configs: Mapping[str, str] = {}
    first_writes = 0

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.number = 0

    def _open(self, who: int) -> None:
        self.mortals[who], self.writers[who] = self._open_mortal()
        self.runs[who] = uuid.uuid4().hex

    def _open_mortal(self) -> tuple[MortalFileSystem | MortalStore, LogDir]:
        """A writer, and what dies with its process."""
        raise NotImplementedError

    @initialize(snapshots=st.booleans(), configs=st.sampled_from(CONFIGS))
    def begin(self, snapshots: bool, configs: dict[str, str]) -> None:
        self.mortals: dict[int, MortalFileSystem | MortalStore] = {}
        self.writers: dict[int, LogDir] = {}
        self.runs: dict[int, str] = {}
        for who in (0, 1):
            self._open(who)
        if snapshots or self.root_settings:
            self.writers[0].alter_broker_configs(add={**self.root_settings, **(SNAPSHOTS if snapshots else {})})
        self.writers[0].create_topic("orders", 2, {**configs, **self.configs})
        self.model.topics["orders"] = Topic({**configs, **self.configs}, [[], []])
        self.deaths: dict[int, float] = {}
        for _ in range(self.first_writes):
            self.append(0, "orders", 40)
        self.reader = self._opened()
        self.read_model = self.model.copy()

    def _do(self, who: int, act: Callable[[LogDir], Any], after: Model, *, is_job: bool = False) -> Any:
        """Let a writer do `act`, which makes the model `after`; it may die on the way."""
        mortal = self.mortals[who]
        if who in self.deaths:
            mortal.die_in(self.deaths.pop(who), is_job=is_job)
        try:
            result = act(self.writers[who])
        except BaseException:
            # Killed, or what somebody made of it who cleaned up after it.
            if not mortal.is_dead:
                raise
        else:
            if not mortal.is_dead:
                mortal.left = None
            self.model = after
            if mortal.is_dead:
                self._open(who)
            return result
        self._end_requests()
        seen = see(self._opened())
        if not same(seen, self.model) or not self._transactions_are(self.model):
            assert same(seen, after), "half of what a killed writer did is there"
            assert self._transactions_are(after)
            self.model = after
        self._open(who)
        return None

    def _end_requests(self) -> None:
        """Let the requests of a killed writer take effect that are still on their way."""

    def _transactions_are(self, model: Model) -> bool:
        log_dir = self._opened()
        return all(log_dir.last_version(name) == model.versions.get(name) for name in ("query", "job"))

    writer_numbers = st.sampled_from([0, 1])
    topic_names = st.sampled_from(TOPICS)

    @rule(who=writer_numbers, share=st.sampled_from([each / 40 for each in range(40)]))
    def soon_to_die(self, who: int, share: float) -> None:
        self.deaths[who] = share

    @rule(who=writer_numbers, topic=topic_names, partitions=st.integers(1, 3), configs=st.sampled_from(CONFIGS))
    def create_topic(self, who: int, topic: str, partitions: int, configs: dict[str, str]) -> None:
        configs = {**configs, **self.configs}
        if topic in self.model.topics:
            with pytest.raises(TopicExistsError):
                self.writers[who].create_topic(topic, partitions, configs)
            return
        after = self.model.copy()
        after.topics[topic] = Topic(dict(configs), [[] for _ in range(partitions)])
        self._do(who, lambda log_dir: log_dir.create_topic(topic, partitions, configs), after)

    @precondition(lambda self: self.model.topics)
    @rule(who=writer_numbers, data=st.data())
    def add_partitions(self, who: int, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.model.topics)))
        after = self.model.copy()
        after.topics[topic].partitions.append([])
        total = len(after.topics[topic].partitions)
        self._do(who, lambda log_dir: log_dir.add_partitions(topic, total), after)

    @precondition(lambda self: self.model.topics)
    @rule(who=writer_numbers, data=st.data(), configs=st.sampled_from(CONFIGS))
    def alter_topic(self, who: int, data: st.DataObject, configs: dict[str, str]) -> None:
        topic = data.draw(st.sampled_from(sorted(self.model.topics)))
        configs = {**configs, **self.configs}
        after = self.model.copy()
        gone = sorted(after.topics[topic].configs.keys() - configs.keys())
        after.topics[topic].configs = dict(configs)
        self._do(who, lambda log_dir: log_dir.alter_topic(topic, add=configs, delete=gone), after)

    @precondition(lambda self: len(self.model.topics) > 1)
    @rule(who=writer_numbers, data=st.data())
    def delete_topic(self, who: int, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.model.topics)))
        after = self.model.copy()
        del after.topics[topic]
        self._do(who, lambda log_dir: log_dir.delete_topic(topic), after)

    @rule(who=writer_numbers, topic=topic_names, count=st.integers(1, 40))
    def append(self, who: int, topic: str, count: int) -> None:
        """As a user does it: the topic is made if need be, which is a commit of its own."""
        if topic not in self.model.topics:
            made = self.model.copy()
            made.topics[topic] = Topic({}, [[]])
            self._do(who, lambda log_dir: log_dir.ensure_topic(topic), made)
            return
        values = self._values(count)
        partition = self.number % len(self.model.topics[topic].partitions)
        after = self.model.copy()
        after.topics[topic].partitions[partition] += values
        self._do(
            who,
            lambda log_dir: log_dir.append(topic, pa.table({"key": values, "value": values}), partition=partition),
            after,
        )

    def _values(self, count: int) -> list[bytes]:
        self.number += count
        return [b"%06d" % number for number in range(self.number - count, self.number)]

    @precondition(lambda self: self.model.topics)
    @rule(
        who=writer_numbers,
        counts=st.lists(st.integers(1, 60), min_size=1, max_size=4),
        name=st.sampled_from(["query", "job"]),
        step=st.sampled_from([1, 1, 3, 0, 0, -1]),
        flush=st.sampled_from(["fsync", "os"]),
        is_plain=st.sampled_from([True, False, False]),
    )
    def write_to_several(self, who: int, counts: list[int], name: str, step: int, flush: Any, is_plain: bool) -> None:
        """One commit over topics, plain or as the next, the same or an earlier version of a transactional id."""
        places = [
            (topic, at) for topic, each in sorted(self.model.topics.items()) for at in range(len(each.partitions))
        ]
        chosen = [
            (*place, self._values(count)) for place, count in zip(places[self.number % 2 :], counts, strict=False)
        ]
        after = self.model.copy()
        transaction = None
        is_duplicate = False
        if not is_plain:
            version = max(self.model.versions.get(name, -1) + step, 0)
            transaction = WriteTransaction(name, version, self.runs[who])
            last_version = self.model.versions.get(name, -1)
            is_duplicate = version == last_version
            is_zombie = self.runs[who] in self.model.fenced.get(name, set())  # the other run has taken the id over
            if not is_duplicate and (is_zombie or version < last_version):
                with pytest.raises(ProducerFencedError if is_zombie else LowerVersionError):
                    self._commit(self.writers[who], chosen, transaction, flush)
                return
            if not is_duplicate:
                after.versions[name] = version
                after.hold(name, self.runs[who])
        if not is_duplicate:
            for topic, partition, values in chosen:
                after.topics[topic].partitions[partition] += values
        result = self._do(who, lambda log_dir: self._commit(log_dir, chosen, transaction, flush), after)
        assert result is None or result.is_duplicate == is_duplicate

    def _commit(
        self,
        log_dir: LogDir,
        chosen: list[tuple[str, int, list[bytes]]],
        transaction: WriteTransaction | None,
        flush: Any,
    ) -> Any:
        log_dir.refresh()
        staging = log_dir.root.staging(uuid.uuid4().hex)
        staged: list[StagedFile] = []
        topic_ids: dict[str, str] = {}
        for topic, partition, values in chosen:
            described = log_dir.ensure_topic(topic)
            topic_ids[topic] = described.topic_id or ""
            staged += stage_table(
                staging.task,
                topic,
                pa.table({"key": values, "value": values}),
                partitions_count=len(described.partitions),
                partition=partition,
                config=log_dir.log_config(topic),
                asked_compression=None,
                batch_size_bytes=200,
                clock_ms=lambda: NOW_MS,
                fs=staging.fs,
            )
        return log_dir.commit_staged(staging.hand_over(staged, topic_ids), transaction=transaction, flush=flush)

    @precondition(lambda self: self.model.topics)
    @rule(who=writer_numbers, data=st.data())
    def delete_records(self, who: int, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.model.topics)))
        partition = data.draw(st.integers(0, len(self.model.topics[topic].partitions) - 1))
        after = self.model.copy()
        values = after.topics[topic].partitions[partition]
        offset = data.draw(st.integers(-1, len(values)))
        count = len(values) if offset < 0 else offset
        values[:count] = [GONE] * count
        where = TopicPartition(topic, partition)
        self._do(who, lambda log_dir: without_errors(delete_records(log_dir.root, {where: offset})), after)

    @rule(who=writer_numbers, data=st.data())
    def maintain(self, who: int, data: st.DataObject) -> None:
        act = data.draw(st.sampled_from(self.jobs))
        now_ms = self._now_ms()
        self._do(who, lambda log_dir: without_errors(act(log_dir.root, now_ms=now_ms)), self.model.copy(), is_job=True)

    def _now_ms(self) -> int:
        return NOW_MS

    def _opened(self) -> LogDir:
        """The root, opened by one who only looks."""
        return LogDir.open(self.root)

    @rule(who=writer_numbers)
    def reopen(self, who: int) -> None:
        """The process ended and another began."""
        self._open(who)

    @rule()
    def reader_looks_again(self) -> None:
        self.reader.refresh()
        self.read_model = self.model.copy()
        assert same(see(self.reader), self.model)

    @rule()
    def reader_that_does_not_look_again_reads_on(self) -> None:
        """It finds what it knew in other segments, unless the records were deleted; it may notice newer ones."""
        newest = self._opened()
        for topic in set(self.read_model.topics) & set(self.model.topics):
            if self.reader.topic(topic).topic_id != newest.topic(topic).topic_id:
                continue
            for partition, known in enumerate(self.read_model.topics[topic].partitions):
                present = self.model.topics[topic].partitions[partition]
                try:
                    values = self.reader.read(topic, partition=partition)["value"].to_pylist()
                except OffsetOutOfRangeError:
                    assert present.count(GONE) > known.count(GONE)
                    continue
                assert values in (known[known.count(GONE) :], present[present.count(GONE) :])

    @precondition(lambda self: self.model.topics)
    @rule(data=st.data(), isolation=st.sampled_from(["read_uncommitted", "read_committed"]))
    def read_a_range(self, data: st.DataObject, isolation: Any) -> None:
        self.reader.refresh()
        self.read_model = self.model.copy()
        topic = data.draw(st.sampled_from(sorted(self.model.topics)))
        partition = data.draw(st.integers(0, len(self.model.topics[topic].partitions) - 1))
        values = self.model.topics[topic].partitions[partition]
        start = data.draw(st.integers(0, len(values) + 2))
        end = data.draw(st.integers(start, len(values) + 2))
        if start > len(values) or start < values.count(GONE):
            with pytest.raises(OffsetOutOfRangeError):
                self.reader.read(topic, partition=partition, start_offset=start, end_offset=end, isolation=isolation)
            return
        rows = self.reader.read(topic, partition=partition, start_offset=start, end_offset=end, isolation=isolation)
        assert rows["value"].to_pylist() == values[start:end]
        assert rows["offset"].to_pylist() == list(range(start, min(end, len(values))))

    @rule(topic=st.just("nowhere"))
    def read_what_is_not_there(self, topic: str) -> None:
        with pytest.raises(UnknownTopicError):
            self.reader.read(topic)

    @invariant()
    def whoever_opens_the_root_sees_what_is_committed(self) -> None:
        if hasattr(self, "writers"):
            assert same(see(self._opened()), self.model)


def without_errors(reports: list[PartitionReport]) -> None:
    assert [each.error for each in reports] == [None] * len(reports)


def same(seen: dict[str, tuple[dict[str, str], list[list[bytes]]]], model: Model) -> bool:
    return seen == {name: (each.configs, each.partitions) for name, each in model.topics.items()}


class FileRootMachine(RootMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="root-machine-"))
        self.root = self.home / "log"

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    def _open_mortal(self) -> tuple[MortalFileSystem, LogDir]:
        fs = MortalFileSystem()
        return fs, open_or_create_log_dir(self.root, fs=fs)


def tier_and_retain(root: Root, *, now_ms: int) -> list[PartitionReport]:
    return [*tier_segments(root, now_ms=now_ms), *apply_retention(root, now_ms=now_ms)]


class TieredRootMachine(FileRootMachine):
    """Nearly all that is copied goes locally. Writers are also killed at requests that change the store."""

    jobs = (*FileRootMachine.jobs, tier_segments, tier_and_retain, tier_and_retain, tier_and_retain)
    configs: Mapping[str, str] = {"internal.segment.bytes": "700", "remote.storage.enable": "true"}
    first_writes = 5

    def __init__(self) -> None:
        super().__init__()
        self.bucket = MemoryBucket(clock=VirtualClock(NOW_MS))
        self.location = memory_root(FaultyStore(self.bucket, before=self._before, after=self._after))
        self.acting: MortalFileSystem | MortalStore | None = None
        self.root_settings = {
            "rsm.config.location": self.location,
            "remote.log.storage.system.enable": "true",
            "log.local.retention.bytes": "500",
        }

    def _before(self, call: Call) -> None:
        if call.number % 2:
            self._live_on(call)

    def _after(self, call: Call) -> None:
        if not call.number % 2:
            self._live_on(call)

    def _live_on(self, call: Call) -> None:
        """Count a request of the acting writer, whose process may end with it."""
        if self.acting is not None and self.acting.left is not None and call.is_write:
            self.acting.left -= 1
            if self.acting.is_dead:
                raise Killed

    def _do(self, who: int, act: Callable[[LogDir], Any], after: Model, *, is_job: bool = False) -> Any:
        self.acting = self.mortals[who]
        try:
            return super()._do(who, act, after, is_job=is_job)
        finally:
            self.acting = None

    @rule(who=RootMachine.writer_numbers, count=st.integers(60, 200))
    def fill_segments_and_tier_them(self, who: int, count: int) -> None:
        self.append(who, sorted(self.model.topics)[0], count)
        now_ms, unchanged = self._now_ms(), self.model.copy()
        self._do(
            who, lambda log_dir: without_errors(tier_and_retain(log_dir.root, now_ms=now_ms)), unchanged, is_job=True
        )

    def teardown(self) -> None:
        try:
            if hasattr(self, "writers"):
                self._check_objects()
        finally:
            forget(self.location)
            super().teardown()

    def _check_objects(self) -> None:
        """After clean-ups over some days, exactly the objects are there that the image names."""
        root = on_file_system(self._opened().root)
        for days in range(3):
            finish(root, now_ms=time_ms() + 2 * (days + 1) * DAY_MS)
        assert set(self.bucket.keys()) == named_objects(root.store.refresh())
        assert same(see(self._opened()), self.model)

    @precondition(lambda self: self.model.topics)
    @rule(who=RootMachine.writer_numbers, data=st.data(), is_done=st.sampled_from([True, False, False]))
    def switch_off(self, who: int, data: st.DataObject, is_done: bool) -> None:
        """What is in remote storage only is gone."""
        if not is_done:
            return
        topic = data.draw(st.sampled_from(sorted(self.model.topics)))
        after = self.model.copy()
        configs = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        after.topics[topic].configs |= configs
        described = self._opened().topic(topic)
        for values, found in zip(after.topics[topic].partitions, described.partitions, strict=True):
            values[: found.local_log_start_offset] = [GONE] * found.local_log_start_offset
        self._do(who, lambda log_dir: log_dir.alter_topic(topic, add=configs), after)


class ObjectRootMachine(RootMachine):
    """Time passes, so that what was dropped or abandoned is deleted, but not enough for records to expire."""

    jobs = (*RootMachine.jobs, clean_all)
    configs: Mapping[str, str] = {"cleanup.policy": "compact,delete"}

    def __init__(self) -> None:
        super().__init__()
        self.bucket = MemoryBucket(clock=VirtualClock(NOW_MS))
        self.root = memory_root(FaultyStore(self.bucket))
        # Which requests a writer makes depends on how long they take.
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(object_backend, "Waiting", lambda: waiting_in(self.bucket))

    def teardown(self) -> None:
        try:
            if hasattr(self, "writers"):
                self._check_objects()
        finally:
            self.patches.undo()
            forget(str(self.root))

    def _check_objects(self) -> None:
        """After clean-ups over some days, exactly the objects are there that the image names."""
        self.bucket.land()
        root = self._opened().root.native()
        assert isinstance(root, ObjectRoot)
        for _ in range(3):
            self.bucket.clock.advance(2 * DAY_MS)
            clean_up_root(root)
        assert left_objects(self.bucket) == named_objects(root.store.refresh())
        assert same(see(self._opened()), self.model)

    def _end_requests(self) -> None:
        self.bucket.land()

    @rule(hours=st.integers(1, 3))
    def time_passes(self, hours: int) -> None:
        self.bucket.clock.advance(hours * HOUR_MS)

    def _now_ms(self) -> int:
        return self.bucket.clock.now_ms()

    def _opened(self) -> LogDir:
        return open_log_dir(self.root, clock=self._now_ms)

    def _open_mortal(self) -> tuple[MortalStore, LogDir]:
        store = MortalStore(self.bucket)
        open_as(str(self.root), store)
        try:
            return store, open_or_create_log_dir(self.root, clock=self._now_ms)
        finally:
            open_as(str(self.root), FaultyStore(self.bucket))


SETTINGS = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFileRoot = FileRootMachine.TestCase
TestFileRoot.settings = SETTINGS
TestTieredRoot = TieredRootMachine.TestCase
TestTieredRoot.settings = settings(SETTINGS, max_examples=max(EXAMPLES // 4, 5))
TestObjectRoot = ObjectRootMachine.TestCase
TestObjectRoot.settings = SETTINGS
