"""Writers, readers, merge, cleaner, retention, clean-up and topic changes of an object root in a process, by one seed.

Each actor stands for a process: a client of the bucket with faults of its own, a LogDir, and a clock that is wrong by a
constant. Actors interrupt each other between any two requests: whoever is about to send one may first have to wait for
whole actions of others, or for hours, in which clean-up passes by. What must hold of the root:

- a record that anybody has read, or whose write returned, has one offset, and that offset this record alone, for ever
- reads return each offset of their range once, in order; they fail only for a fault, or below the log start
- of a compacted partition, they lack at most what a later record replaces (compacted_model.py)
- a write is there whole or not at all; one that failed for certain is never there; a version of a transactional id is
  there once, whatever became of its writers, and however many of them believe that they hold the id
- what the image names is in the store, and what it does not name is deleted in the end
"""

from __future__ import annotations

import pickle
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir, open_log_dir
from builders.metadata_roots import forget_images
from builders.object_roots import left_objects, named_objects
from builders.root_places import client_address, forget, memory_root, waiting_in
from fakes.faulty_store import Call, Fault, FaultyStore, MemoryBucket, VirtualClock
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidRecordError,
    LowerVersionError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    TopicExistsError,
    UnknownTopicError,
)
from pyspark_kafkalog.maintenance.cleaner import record_chunks as record_chunks_module
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up_root
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.metadata import store as store_module
from pyspark_kafkalog.metadata.objects import backend as backend_module
from pyspark_kafkalog.metadata.objects import log as log_module
from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStoreError
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.root import object_log as object_extents
from pyspark_kafkalog.root.object_root import ObjectRoot, PlannedObjects, PlannedRoot
from pyspark_kafkalog.root.writes import CommitResult, WriteTransaction
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects import run_source as run_source_module
from pyspark_kafkalog.storage.objects.upload import UploadTask, WrittenObject, upload
from pyspark_kafkalog.storage.stager import stage_table
from pyspark_kafkalog.tiered import objects as remote_objects
from simulations.compacted_model import (
    COMPACTED_CONFIGS,
    LATEST,
    CompactedModel,
    clean,
    clean_in_tasks,
    cleaned_end,
    identities_of,
    is_tombstone,
    new_identity,
    rows_in,
    rows_of,
)
from simulations.object_commits import CRASHES, ERRORS, HOUR_MS, share_decoded_commits

#: A topic that stays, and one that is deleted and created again; LATEST is compacted.
ORDERS, PASSING = "orders", "passing"
PARTITIONS: Final = (TopicPartition(ORDERS, 0), TopicPartition(ORDERS, 1), TopicPartition(PASSING, 0), LATEST)
#: Small segments, and a log of a few of them.
CONFIGS: Final = {"internal.segment.bytes": "1500", "index.interval.bytes": "200", "retention.bytes": "5000"}
ROOT_CONFIGS: Final = {
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.max.retention.ms": "1",
    "staging.retention.ms": str(HOUR_MS),
    "log.segment.delete.delay.ms": "60000",
}
#: How wrong clocks are at most.
SKEW_MS: Final = 20 * 60_000
_PLANS_KEPT: Final = 8
#: Why a job refuses, without a fault, a partition that others have changed while it slept.
_JOB_REFUSALS: Final = ("has expired", "re-created", "deleted", "there is no topic", "its first segment")
_FAULT_SHARE: Final = 0.03
#: Nobody is interrupted by others that are interrupted by others, and so on, more than so deep.
_DEPTH: Final = 3

T = TypeVar("T")


class _InlinePool:
    """In place of a pool of threads: requests get an order, so that a seed always gives the same run."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def submit(self, task: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(task(*arguments))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: object) -> None: ...


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No threads, and no chance but the seed's."""
    for module in (log_module, backend_module):
        monkeypatch.setattr(module, "side_by_side", lambda requests: [request() for request in requests])
    share_decoded_commits(monkeypatch)
    monkeypatch.setattr(run_source_module, "_POOL", _InlinePool())
    monkeypatch.setattr(remote_objects, "Workers", _InlinePool)
    monkeypatch.setattr(record_chunks_module, "spare_threads", lambda: 0)
    monkeypatch.setattr(object_extents, "_LOCKS", [nullcontext()])  # actors would wait for themselves
    chance = random.Random(0)  # one for all: what is drawn differs
    monkeypatch.setattr(store_module.random, "SystemRandom", lambda: chance)


@dataclass
class Ledger:
    """What all have seen of the log: values by topic id, partition and offset, and the other way round."""

    values: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    places: dict[bytes, tuple[str, int, int]] = field(default_factory=dict)

    def see(self, topic_id: str, partition: int, offset: int, value: bytes) -> None:
        place = (topic_id, partition, offset)
        before = self.values.setdefault(place, value)
        assert before == value, f"offset {offset} of partition {partition} was {before!r}, is {value!r}"
        at = self.places.setdefault(value, place)
        assert at == place, f"{value!r} is at {at} and at {place}"


@dataclass(frozen=True)
class Write:
    """Values by partition; what they are tells their write, so that each is there once at most.

    `topic_ids` by topic: one that was created again since has nothing of the write.
    """

    name: str
    values: dict[TopicPartition, list[bytes]]
    topic_ids: dict[str, str]
    is_inline: bool
    version: int | None = None


class Actor:
    """A process, started again after it was killed; with a `host`, a thread of that one's.

    `faults` counts those that its client has met.
    """

    def __init__(self, simulation: Simulation, name: str, *, host: Actor | None = None) -> None:
        self.simulation = simulation
        self.name = name
        self.host = self if host is None else host
        self.skew_ms = simulation.rng.randrange(-SKEW_MS, SKEW_MS)
        self.faults = 0
        self._log_dir: LogDir | None = None

    @property
    def log_dir(self) -> LogDir:
        host = self.host
        if host._log_dir is None:
            host._log_dir = self.simulation.open(host)
        return host._log_dir

    @property
    def root(self) -> ObjectRoot:
        root = self.log_dir.root.native()
        assert isinstance(root, ObjectRoot)
        return root

    def must_wait(self) -> bool:
        return self.host._log_dir is not None and self.root.store._refresh_lock.locked()

    def die(self) -> None:
        self.host._log_dir = None

    def act(self) -> None:
        """One action; one that the store made fail, or the death of the process, is no failure of the simulation."""
        before = self.host.faults
        try:
            self._act()
        except Killed:
            self.simulation.counts["killed"] += 1
            self.die()
        except (ObjectStoreError, CommitStateUnknownError, CommitConflictError):
            assert self.host.faults > before, f"{self.name} failed without a fault"

    def _act(self) -> None:
        raise NotImplementedError


class Writer(Actor):
    """Writes to one or several partitions; with `transactional` as the next version of an id of its own.

    A write of unknown outcome is repeated with its staged data until it is known. A version is written until it is
    known to be there, after a crash by the next process, and at times by a second one beside the first.
    """

    def __init__(self, simulation: Simulation, name: str, *, is_transactional: bool, host: Actor | None = None) -> None:
        super().__init__(simulation, name, host=host)
        self.is_transactional = is_transactional
        self.pending: tuple[Write, tuple[WrittenObject, ...]] | None = None
        self.maybe: list[Write] = []
        self.versions: list[Write] = []
        self._writes = 0
        self._process: LogDir | None = None
        self._incarnation = ""

    def _act(self) -> None:
        log_dir = self.log_dir
        if log_dir is not self._process:
            self._begin(log_dir)
        if self.pending is None:
            write = self._next_write(log_dir)
            try:
                self.pending = write, stage(self, write)
            except UnknownTopicError:  # deleted by another thread of the process
                return
        elif self.simulation.rng.random() < 0.3:
            return  # asked again later, perhaps after others of its process have gone on for hours
        write, staged = self.pending
        try:
            result = log_dir.commit_staged(staged, transaction=self._transaction(write))
        except CommitStateUnknownError as error:
            if "cannot be found out" not in str(error):
                raise
            self.die()  # the commits of that time were removed; the next process knows what became of a version
            return
        except (UnknownTopicError, InvalidRecordError, ProducerFencedError) as error:
            self._fail(write, error)  # said of the newest image, which an attempt of unknown outcome is not in
            return
        except (CommitConflictError, ObjectStoreError) as error:
            if staged[0].write_id not in self.root.store._unknown_outcomes:
                self._fail(write, error)
            raise
        self.pending = None
        self.simulation.wrote(write, result)

    def _begin(self, process: LogDir) -> None:
        """The first action of a process: what became of the last one's write, only a version tells."""
        self._process = process
        self._incarnation = uuid.uuid4().hex
        if self.pending is not None and not self.is_transactional:
            self.maybe.append(self.pending[0])
        self.pending = None

    def _next_write(self, log_dir: LogDir) -> Write:
        """The next write; of a transactional id that whose outcome is not known yet, if there is one."""
        if not self.is_transactional:
            self._writes += 1
            return self.simulation.new_write(f"{self.name}.{self._writes}", log_dir)
        log_dir.refresh()
        last = log_dir.last_version(self.name)
        known = -1 if last is None else last
        assert known < len(self.versions)
        if known == len(self.versions) - 1:
            write = self.simulation.new_write(f"{self.name}.{known + 1}", log_dir, version=known + 1)
            self.versions.append(write)
            return write
        return self.versions[-1]

    def _transaction(self, write: Write) -> WriteTransaction | None:
        return None if write.version is None else WriteTransaction(self.name, write.version, self._incarnation)

    def _fail(self, write: Write, error: Exception) -> None:
        """The write was not made for certain; a version is tried again, by a process of its own if it was fenced."""
        self.pending = None
        if isinstance(error, ProducerFencedError):
            self.simulation.counts["fenced"] += 1
            self.die()
        elif not self.is_transactional:
            self.simulation.failed.append(write)


class Rival(Actor):
    """Another process that believes to hold the transactional id of `writer`, and writes its version too."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer.simulation, f"rival of {writer.name}")
        self.writer = writer

    def _act(self) -> None:
        writer = self.writer
        if not writer.versions:
            return
        write = writer.versions[-1]
        assert write.version is not None
        transaction = WriteTransaction(writer.name, write.version, uuid.uuid4().hex)
        try:
            result = self.log_dir.commit_staged(stage(self, write), transaction=transaction)
        except (UnknownTopicError, InvalidRecordError, LowerVersionError, ProducerFencedError):
            return
        self.simulation.wrote(write, result)


class Reader(Actor):
    """Reads ranges as of its own image, and, much later, what it has planned for tasks."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.plans: list[tuple[bytes, str, int, int]] = []

    def _act(self) -> None:
        rng = self.simulation.rng
        if rng.random() < 0.3:
            self.log_dir.refresh()
        if self.plans and rng.random() < 0.4:
            self._run_task()
            return
        of = rng.choice(PARTITIONS)
        if of.topic not in self.log_dir.topics():
            self.log_dir.refresh()
            return
        partition = self.log_dir.partition(of.topic, of.partition)
        start = rng.randint(partition.log_start_offset, partition.high_watermark)
        end = rng.randint(start, min(partition.high_watermark, start + 40))
        if rng.random() < 0.5:
            planned = self.root.planned_partition(of, partition.topic_id).part(start, end, committed=False)
            self.plans = [*self.plans[-_PLANS_KEPT:], (pickle.dumps(planned), partition.topic_id or "", start, end)]
            return
        self._read(self.log_dir.reader(of.topic, of.partition), partition.topic_id or "", start, end)

    def _run_task(self) -> None:
        """What was planned is read by a process of its own."""
        data, topic_id, start, end = self.plans.pop(self.simulation.rng.randrange(len(self.plans)))
        planned: PlannedObjects = pickle.loads(data)
        address, root = self.simulation.address_of(self), planned.root
        planned = replace(planned, root=PlannedRoot(address, root.identity, root.version))
        planned.check_root()
        start = min(max(start, planned.moved_log_start()), end)
        self._read(LogReader(planned.extents(), planned.topic_partition), topic_id, start, end)
        self.simulation.counts["tasks"] += 1

    def _read(self, reader: LogReader, topic_id: str, start: int, end: int) -> None:
        of = reader.topic_partition
        try:
            table = pa.Table.from_batches(reader.read(start, end, schema=KAFKA_SCHEMA), KAFKA_SCHEMA)
        except OffsetOutOfRangeError:
            newest = self.simulation.open().partition(of.topic, of.partition)
            assert newest.topic_id != topic_id or newest.log_start_offset > start, "a false error"
            return
        except ObjectNotFoundError:
            log_dir = self.simulation.open()
            is_there = of.topic in log_dir.topics() and log_dir.topic(of.topic).topic_id == topic_id
            assert not is_there, "a false error"
            return
        offsets = table["offset"].to_pylist()
        if of == LATEST:
            assert offsets == sorted(set(offsets) & set(range(start, end)))
            newest = partial(rows_in, self.simulation.open(), LATEST)
            self.simulation.compacted.check_range(start, end, offsets, newest)
        else:
            assert offsets == list(range(start, end))
        for offset, value in zip(offsets, identities_of(table), strict=True):
            self.simulation.see(of, topic_id, offset, value)
        self.simulation.counts["rows read"] += len(offsets)


class Job(Actor):
    """A job of maintenance; `work` gives reports, or nothing."""

    def __init__(
        self, simulation: Simulation, name: str, work: Callable[[Job], Sequence[PartitionReport] | None]
    ) -> None:
        super().__init__(simulation, name)
        self.work = work

    def _act(self) -> None:
        before = self.host.faults
        try:
            reports = self.work(self)
        except (UnknownTopicError, TopicExistsError):  # deleted, or created by another process, meanwhile
            return
        for each in reports or ():
            is_fault = self.host.faults > before or each.error is None
            assert is_fault or any(reason in (each.error or "") for reason in _JOB_REFUSALS), each
            self.simulation.counts[each.action] += each.error is None


def merge(job: Job) -> Sequence[PartitionReport]:
    job.root.refresh()
    of = [each for each in PARTITIONS if each.topic in job.log_dir.topics()]
    return merge_segments(job.root, partitions=[job.simulation.rng.choice(of)])


def retain(job: Job) -> Sequence[PartitionReport]:
    return apply_retention(job.root)


def remove_records(job: Job) -> Sequence[PartitionReport]:
    job.root.refresh()
    of = job.simulation.rng.choice([each for each in PARTITIONS if each.topic != PASSING])
    partition = job.log_dir.partition(of.topic, of.partition)
    up_to = min(partition.log_start_offset + job.simulation.rng.randint(0, 20), partition.high_watermark)
    return delete_records(job.root, {of: up_to})


def clean_up(job: Job) -> None:
    cleaned = clean_up_root(job.root)
    job.simulation.counts["dropped objects deleted"] += cleaned.dropped_count
    job.simulation.counts["orphans deleted"] += cleaned.orphans_count


def change_topics(job: Job) -> None:
    job.root.refresh()
    if PASSING in job.log_dir.topics():
        if job.simulation.rng.random() < 0.3:
            job.log_dir.delete_topic(PASSING)
    else:
        job.log_dir.create_topic(PASSING, 1, CONFIGS)


def stage(actor: Actor, write: Write) -> tuple[WrittenObject, ...]:
    """What the tasks of a write hand over: an object each partition, or their bytes for the commit."""
    log_dir, root = actor.log_dir, actor.root
    staging = root.staging(uuid.uuid4().hex)
    objects: list[WrittenObject] = []
    for task, (of, values) in enumerate(write.values.items()):
        files = stage_table(
            staging.task,
            of.topic,
            rows_of(values) if of == LATEST else pa.table({"value": values}),
            partitions_count=2,
            partition=of.partition,
            config=log_dir.log_config(of.topic),
            asked_compression=None,
            batch_size_bytes=100,
            clock_ms=actor.simulation.clock.now_ms,
            fs=staging.fs,
        )
        uploaded = UploadTask(staging.task.write_id, task, root.version)
        inline_bytes = {"inline_bytes": 0} if not write.is_inline else {}
        objects += upload(root.objects, uploaded, files, write.topic_ids, directory=staging.task.root, **inline_bytes)
    staging.discard([])
    return tuple(objects)


class Simulation:
    """A root and its actors. `steps` counts actions, those in between the requests of others too."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, *, is_calm: bool = False) -> None:
        """`is_calm`: no faults, and nobody interrupts."""
        self.rng = random.Random(seed)
        self._is_calm = is_calm
        self.clock = VirtualClock()
        self.bucket = MemoryBucket(clock=self.clock)
        monkeypatch.setattr(backend_module, "Waiting", lambda: waiting_in(self.bucket))
        self.url = memory_root(FaultyStore(self.bucket))
        self.ledger = Ledger()
        self.compacted = CompactedModel()
        self.failed: list[Write] = []
        self.steps = 0
        self.counts: Counter[str] = Counter()
        self._busy: list[Actor] = []
        # Ids are drawn from the same numbers in each run.
        forget_images()
        self.forget_objects()
        log_dir = create_log_dir(self.url, clock=self.clock.now_ms)
        log_dir.alter_broker_configs(add=ROOT_CONFIGS)
        log_dir.create_topic(ORDERS, 2, CONFIGS)
        log_dir.create_topic(PASSING, 1, CONFIGS)
        log_dir.create_topic(LATEST.topic, 1, COMPACTED_CONFIGS)
        self.writers = [Writer(self, f"writer{number}", is_transactional=number % 2 == 1) for number in range(4)]
        self.writers += [
            Writer(self, f"thread{number}", is_transactional=number % 2 == 1, host=self.writers[0]) for number in (4, 5)
        ]
        self.readers = [Reader(self, f"reader{number}") for number in range(2)]
        works = (merge, merge, clean, clean, clean_in_tasks, retain, remove_records, clean_up, clean_up, change_topics)
        self.jobs = [Job(self, work.__name__, work) for work in works]

    # What happens

    def step(self) -> None:
        """One action of somebody, or time that passes."""
        choice = self.rng.random()
        if choice < 0.45:
            self.act(self.rng.choice(self.writers))
        elif choice < 0.75:
            self.act(self.rng.choice(self.readers))
        elif choice < 0.93:
            self.act(self.rng.choice(self.jobs))
        elif choice < 0.95:
            self.act(Rival(self.rng.choice([each for each in self.writers if each.is_transactional])))
        else:
            self.steps += 1
            self.clock.advance(self.rng.choice((1, 1_000, 40_000, 700_000, HOUR_MS, 3 * HOUR_MS)))

    def act(self, actor: Actor) -> None:
        """An action of `actor`, unless it is in the middle of one, or would wait for a thread of its process."""
        if actor in self._busy or actor.must_wait():
            return
        self.steps += 1
        self._busy.append(actor)
        try:
            actor.act()
        finally:
            self._busy.remove(actor)

    def fault_of(self, actor: Actor) -> Callable[[Call], Fault | None]:
        def fault(call: Call) -> Fault | None:
            self.counts["requests"] += 1
            if self._is_calm or self.rng.random() >= _FAULT_SHARE:
                return None
            actor.faults += 1
            self.bucket.late_calls = self.rng.choice((1, 10, 100, 1000))
            found = self.rng.choice(ERRORS if self.rng.random() < 0.85 else CRASHES)
            self.counts[found.name] += 1
            return found

        return fault

    def interrupt(self, call: Call) -> None:
        """Before a request: perhaps others act; before one that writes, perhaps so long that clean-up passes by."""
        if self._is_calm or len(self._busy) >= _DEPTH:
            return
        if call.is_write and self.rng.random() < 0.015:
            self.let_hours_pass(self.rng.randint(1, 3))
        elif self.rng.random() < 0.05:
            self.step()

    def let_hours_pass(self, times: int) -> None:
        """All act, in turn, every two hours: long enough for what they replace to be deleted."""
        self.counts["slept"] += 1
        for _ in range(times):
            self.clock.advance(2 * HOUR_MS)
            for actor in (*self.jobs, *self.writers):
                self.act(actor)

    # Who takes part

    def open(self, actor: Actor | None = None) -> LogDir:
        """The root as a new process opens it: the actor's, or one without faults that nobody interrupts."""
        forget_images()
        if actor is None:
            return open_log_dir(client_address(self.url, FaultyStore(self.bucket)), clock=self.clock.now_ms)
        return open_log_dir(self.address_of(actor), clock=lambda: self.clock.now_ms() + actor.skew_ms)

    def address_of(self, actor: Actor) -> Any:
        """The root's address for a new process of the actor's."""
        client = FaultyStore(self.bucket, faults=self.fault_of(actor), before=self.interrupt)
        return client_address(self.url, client)

    def new_write(self, name: str, log_dir: LogDir, *, version: int | None = None) -> Write:
        """Some records for one or two partitions; with a version, only of the topics that stay."""
        topics = [ORDERS, LATEST.topic] if version is not None else log_dir.topics()
        chosen = self.rng.sample([each for each in PARTITIONS if each.topic in topics], self.rng.randint(1, 2))
        values = {
            each: [f"{name} {each} {at}".encode() for at in range(self.rng.randint(1, 6))] for each in sorted(chosen)
        }
        if LATEST in values:
            values[LATEST] = [new_identity(each, self.rng) for each in values[LATEST]]
            self.compacted.tried.update(filter(is_tombstone, values[LATEST]))
        topic_ids = {each.topic: log_dir.topic(each.topic).topic_id or "" for each in values}
        return Write(name, values, topic_ids, self.rng.random() < 0.5, version)

    def wrote(self, write: Write, result: CommitResult) -> None:
        """A write returned: its records are where it says."""
        self.counts["writes"] += 1
        for each in result.partitions:
            of = each.topic_partition
            for at, value in enumerate(write.values[of]):
                self.see(of, write.topic_ids[of.topic], each.first_offset + at, value)

    def see(self, of: TopicPartition, topic_id: str, offset: int, value: bytes) -> None:
        """Somebody has seen the record there."""
        self.ledger.see(topic_id, of.partition, offset, value)
        if of == LATEST:
            self.compacted.see(offset, value)

    @staticmethod
    def forget_objects() -> None:
        """As in a new process: no data and no index is cached."""
        object_extents._caches.cache_clear()
        remote_objects._cache.cache_clear()

    # What must hold

    def check(self) -> None:
        """A new process that knows nothing reads all there is."""
        self.forget_objects()
        log_dir = self.open()
        there: set[bytes] = set()
        starts: dict[tuple[str, int], int] = {}
        for of in PARTITIONS:
            if of.topic not in log_dir.topics():
                continue
            partition = log_dir.partition(of.topic, of.partition)
            start, end = partition.log_start_offset, partition.high_watermark
            starts[partition.topic_id or "", of.partition] = start
            rows = rows_in(log_dir, of)
            for offset, value in rows.items():
                self.see(of, partition.topic_id or "", offset, value)
            there.update(rows.values())
            if of == LATEST:
                self.compacted.check_all(start, rows, cleaned_end(log_dir))
                there.update(self.compacted.gone_identities())
            else:
                assert list(rows) == list(range(start, end))
        for (topic_id, number, offset), value in self.ledger.values.items():
            # Deleted, with its topic perhaps, or there still.
            assert offset < starts.get((topic_id, number), offset + 1) or value in there, f"{value!r} was lost"
        self._check_writes(there, starts)

    def _check_writes(self, there: set[bytes], starts: dict[tuple[str, int], int]) -> None:
        for write in self.failed:
            for values in write.values.values():
                assert not there & set(values), f"{write.name} failed, and is there"
        writes = [each for writer in self.writers for each in (*writer.versions, *writer.maybe)]
        writes += [writer.pending[0] for writer in self.writers if writer.pending is not None]
        for write in writes:
            parts = {of: [value in there for value in values] for of, values in write.values.items()}
            if any(any(found) for found in parts.values()):
                for of, found in ((of, found) for of, found in parts.items() if of != LATEST):
                    # The beginning, or all, may have been deleted.
                    is_deleted = starts.get((write.topic_ids[of.topic], of.partition), 1) > 0
                    assert all(found) or is_deleted, f"half of {write.name} is there"
                    assert found == sorted(found), f"{write.name} has a hole"

    def end(self) -> None:
        """All that is on its way arrives, all writers know what became of their writes; then nothing is left over."""
        self.bucket.land()
        self._is_calm = True
        for writer in self.writers:
            for _ in range(10):
                if writer.pending is not None or (writer.is_transactional and self._is_behind(writer)):
                    writer.act()
            assert writer.pending is None
        self.check()
        log_dir = self.open()
        for writer in self.writers:
            if writer.is_transactional and writer.versions:
                assert log_dir.last_version(writer.name) == len(writer.versions) - 1
        verification = verify(log_dir.root, are_records_checked=True)
        assert verification.is_sound, verification.findings
        root = log_dir.root.native()
        assert isinstance(root, ObjectRoot)
        for _ in range(3):
            self.clock.advance(12 * HOUR_MS)
            clean_up_root(root)
        assert left_objects(self.bucket) == named_objects(root.store.refresh())
        self.check()

    def _is_behind(self, writer: Writer) -> bool:
        last = self.open().last_version(writer.name)
        return (-1 if last is None else last) < len(writer.versions) - 1

    def close(self) -> None:
        forget(self.url)


@contextmanager
def simulated(seed: int, monkeypatch: pytest.MonkeyPatch, *, is_calm: bool = False) -> Iterator[Simulation]:
    """A simulation that tells its seed if it fails."""
    simulation = Simulation(seed, monkeypatch, is_calm=is_calm)
    try:
        yield simulation
    except BaseException:
        print(f"the simulation failed with seed {seed} after {simulation.steps} steps: {dict(simulation.counts)}")
        raise
    finally:
        simulation.close()
