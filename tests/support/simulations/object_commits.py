"""Writers, readers and clean-up of one object root, in one process, under one seed; and what must hold of it.

Each writer counts up the version of a transactional id of its own, so the image tells how many of its commits there
are. A commit that returned is there; one that failed for certain is not; one of unknown outcome, or of a killed
process, is there at most once. Writers interrupt each other between any two requests: whoever is about to send one may
first have to wait for whole commits of others, or for hours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import pytest
from builders.metadata_roots import settings_of
from builders.root_places import ObjectPlace, commit_names
from fakes.faulty_store import Call, Fault, FaultyStore
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, TransactionalIdRecord
from pyspark_kafkalog.metadata.objects import backend as backend_module
from pyspark_kafkalog.metadata.objects import log as log_module
from pyspark_kafkalog.metadata.objects.log import CommitObject
from pyspark_kafkalog.metadata.store import MetadataStore, NewCommit
from pyspark_kafkalog.object_store.store import ObjectStoreError

HOUR_MS: Final = 3_600_000
ERRORS: Final = (
    Fault.FAILS_BEFORE,
    Fault.FAILS_AFTER,
    Fault.LANDS_LATE,
    Fault.CONFLICT,
    Fault.UNAVAILABLE,
    Fault.TIMEOUT,
)
CRASHES: Final = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_IN_FLIGHT)


@pytest.fixture
def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that go side by side get an order, so that a seed always gives the same run."""
    for module in (log_module, backend_module):
        monkeypatch.setattr(module, "side_by_side", lambda requests: [request() for request in requests])
    share_decoded_commits(monkeypatch)


def share_decoded_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all processes of a simulation share what they decode commits to: each reads the same immutable bytes.

    Decoding them again in each would be a third of a simulation's time.
    """
    monkeypatch.setattr(log_module, "CommitObject", lru_cache(maxsize=1024)(CommitObject))
    monkeypatch.setattr(CommitObject, "commit", lru_cache(maxsize=8192)(CommitObject.commit))


@dataclass
class Counted:
    """What a writer knows of its commits: those made for certain, and those that may have been made."""

    made: int = 0
    unknown: int = 0


@dataclass
class Writer:
    """A process that counts up the transactional id `number`; `client` and `store` are new after each crash."""

    place: ObjectPlace
    number: int
    counted: Counted = field(default_factory=Counted)
    client: FaultyStore | None = None
    store: MetadataStore | None = None
    pending: str | None = None  # the key of a commit of unknown outcome
    keys: int = 0

    def count(self, **hooks: Any) -> None:
        """One commit, or the answer to the question what became of the last. `hooks`: those of FaultyStore."""
        try:
            if self.store is None:
                self.client = self.place.client(**hooks)
                self.store = self.place.open_with(self.client)
            assert self.client is not None
            self.client.faults, self.client.before = hooks.get("faults", {}), hooks.get("before")
            self._commit(self.store)
        except Killed:
            self.counted.unknown += self.pending is not None
            self.pending = self.client = self.store = None
        except CommitStateUnknownError as error:
            if "cannot be found out" in str(error):  # the commits of that time were removed
                self.counted.unknown += 1
                self.pending = None
            # else asked again next time, under the same key
        except (CommitConflictError, ObjectStoreError):
            if self.store is not None and self.store._unknown_outcomes.get(self.pending) is None:
                self.pending = None

    def _commit(self, store: MetadataStore) -> None:
        if self.pending is None:
            self.keys += 1
            self.pending = f"{self.number}-{self.keys}"
        store.make(NewCommit(build=self._next, operation="count", key=self.pending))
        self.pending = None
        self.counted.made += 1

    def _next(self, image: MetadataImage) -> Sequence[MetadataRecord]:
        return [TransactionalIdRecord(transactional_id=str(self.number), version=count_in(image, self.number))]


def count_in(image: MetadataImage, writer: int) -> int:
    """How many commits of the writer are in `image`."""
    known = image.transactional_ids.get(str(writer))
    return 0 if known is None else known.version + 1


def make_counts(place: ObjectPlace, *, snapshot_bytes: int = 600) -> None:
    """A root with snapshots every few commits and the least retention."""
    store = place.create()
    settings = {"metadata.log.max.record.bytes.between.snapshots": snapshot_bytes, "metadata.max.retention.ms": 1}
    settings_of(store, {name: str(value) for name, value in settings.items()})


def check(place: ObjectPlace, writers: Sequence[Writer]) -> MetadataImage:
    """A new process finds all commits that returned, and no commit twice."""
    store = place.open()
    for writer in writers:
        there = count_in(store.image, writer.number)
        unsure = writer.counted.unknown + (writer.pending is not None)
        made = writer.counted.made
        assert made <= there <= made + unsure, f"writer {writer.number}: {made} to {made + unsure} made, found {there}"
    commits = list(store.log.replay())
    assert commits[-1].next_offset == store.image.next_offset
    # each object also read by its name alone
    kept = [int(name[:20]) for name in commit_names(place) if int(name[:20]) >= store._backend._start.offset]
    assert [each.base_offset for each in commits] == kept
    fresh = place.open()
    for each in commits:
        fresh._backend.log._last_read = None
        assert fresh.log.read(each.base_offset) == each
    return store.image


@contextmanager
def printed_seed(seed: int) -> Iterator[random.Random]:
    """A generator for a run whose seed is told if it fails."""
    try:
        yield random.Random(seed)
    except BaseException:
        print(f"the simulation failed with seed {seed}")
        raise


class Simulation:
    """Steps chosen by `rng`: commits, refreshes, new processes, and time that passes. `steps` counts all."""

    def __init__(self, rng: random.Random, *, writers: int = 4, readers: int = 2, faults: float = 0.05) -> None:
        self._rng = rng
        self._faults = faults
        self._depth = 0
        self.place = ObjectPlace()
        make_counts(self.place)
        self.writers = [Writer(self.place, number) for number in range(writers)]
        self.readers = [self.place.open() for _ in range(readers)]
        self._busy: set[int] = set()
        self.steps = 0
        self.waits = 0

    def step(self) -> None:
        """One step, and what it is interrupted by."""
        self.steps += 1
        choice = self._rng.random()
        if choice < 0.75:
            self._count()
        elif choice < 0.9:
            self._refresh()
        elif choice < 0.97:
            self.place.clock.now_ms += self._rng.choice((1, 1_000, 40_000, 700_000))
        else:
            self.place.clock.now_ms += self._rng.randrange(HOUR_MS, 4 * HOUR_MS)

    def _count(self) -> None:
        free = [writer for writer in self.writers if writer.number not in self._busy]
        if not free:
            return
        writer = self._rng.choice(free)
        self._busy.add(writer.number)
        writer.count(faults=self._fault, before=self._interrupt)
        self._busy.discard(writer.number)

    def _fault(self, call: Call) -> Fault | None:
        if self._rng.random() >= self._faults:
            return None
        self.place.bucket.late_calls = self._rng.choice((1, 10, 100, 1000))
        kinds = ERRORS if self._rng.random() < 0.8 else CRASHES
        return self._rng.choice(kinds)

    def _interrupt(self, call: Call) -> None:
        """Before a request: perhaps others commit, or, before a create, so many and so long that clean-up passes by."""
        if len(self._busy) >= 3:
            return
        if call.kind == "create" and self._rng.random() < 0.02:
            self.waits += 1
            for _ in range(self._rng.randrange(1, 4)):
                self.place.clock.now_ms += 2 * HOUR_MS
                for _ in range(12):
                    self._count()
        elif self._rng.random() < 0.1:
            self._count()

    def _refresh(self) -> None:
        number = self._rng.randrange(len(self.readers))
        found = self.readers[number].refresh()
        fresh = self.place.open().image
        again = self.readers[number].refresh()
        assert found.next_offset <= fresh.next_offset <= again.next_offset  # a late commit can land in between
        assert fresh in (found, again) or found.next_offset < fresh.next_offset < again.next_offset
        if self._rng.random() < 0.3:
            self.readers[number] = self.place.open()

    def end(self) -> None:
        """All that is on its way arrives, all writers find out what became of their commits; then check."""
        self.place.bucket.land()
        for writer in self.writers:
            writer.count()
            assert writer.pending is None
        image = check(self.place, self.writers)
        for reader in self.readers:
            assert reader.refresh() == image
