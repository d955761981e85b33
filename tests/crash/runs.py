"""Runs a scenario again and again, stopped at another call each time, and checks what is left."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from open_files import descriptors

from pyspark_kafkalog.errors import CommitStateUnknownError, KafkalogError
from pyspark_kafkalog.storage.filesystem import FileSystem
from tests.crash.checks import FileChecks, Seen, describe, look, same
from tests.crash.faults import (
    DATA_POINTS,
    EIO,
    ENOSPC,
    UNSYNCED,
    CountingFileSystem,
    FailingFileSystem,
    KillingFileSystem,
    ShortFileSystem,
)
from tests.crash.power import LOSSES, Disk, PowerFileSystem
from tests.crash.scenarios import Scenario, Step
from tests.crash.writer import Writer

ROOT: Final = "root"
LANES: Final = max(1, min(2, os.cpu_count() or 1))


#: After these the disk holds what it held before them.
_CHANGES_NOTHING: Final = (("close",), ("start_writeback",))


@dataclass
class Points:
    """How many times a scenario was stopped, by kind; what was found wrong then is not among them."""

    kills: int = 0
    torn: int = 0
    errors: int = 0
    short: int = 0
    power: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.kills + self.torn + self.errors + self.short + self.power

    def __add__(self, other: Points) -> Points:
        pairs = [(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)]
        return Points(*(mine + theirs for mine, theirs in pairs))


class Runs:
    """A scenario with its root and what a reader sees before it and after each step, in a run that nothing disturbs."""

    def __init__(self, scenario: Scenario, home: Path, files: FileChecks) -> None:
        self.scenario = scenario
        self._home = home
        self._base = home / "base"
        self._files = files
        self._numbers = itertools.count()
        self._turns = itertools.count()
        self._base.mkdir()
        self._disk = Disk(self._base)
        if scenario.prepare is not None:
            scenario.prepare(Writer(self._base / ROOT, PowerFileSystem(self._disk)))
        self._unsure: Seen | None = None
        if scenario.unsure is not None:
            scenario.unsure(Writer(home / "unsure", UNSYNCED))
            self._unsure = look(home / "unsure")
        root = self.copy()
        fs = CountingFileSystem()
        writer = Writer(root, fs)
        self._expected = [look(root)]
        for step in scenario.steps:
            #: Calls of the steps that a crash may meet: the last one is the write after the crash.
            self.call_names = tuple(fs.names)
            step.act(writer)
            self._expected.append(look(root))
        self._files.check(root)
        self._remove(root)
        self._passed_over = [self._look_passed_over(done) for done in range(len(scenario.steps))]

    def _look_passed_over(self, done: int) -> Seen | None:
        """What a reader sees when the last step follows `done` steps; None where it cannot."""
        writer = Writer(self.copy(), UNSYNCED)
        try:
            for step in (*self.scenario.steps[:done], self.scenario.steps[-1]):
                step.act(writer)
        except KafkalogError:
            return None  # its topic is not there yet
        return look(writer.root)

    def enter(self, lane: int) -> None:
        """Work apart from other lanes from now on."""
        self._home = Path(tempfile.mkdtemp(prefix=f"lane-{lane}-", dir=self._home))
        self._files = FileChecks(self._files.corpus, self._files.seen)

    # Kills

    def kill(self, at: int, *, torn: bool) -> bool:
        """Kill a writer at call `at`, check what it leaves; False when it ended before."""
        root = self.copy()
        returned, was_killed = run_in_child(root, KillingFileSystem(at, torn=torn), self.scenario.steps)
        self._check_and_go_on(Writer(root, UNSYNCED), returned, f"{'torn by a' if torn else 'a'} kill at call {at}")
        self._remove(root)
        return was_killed

    # Errors

    def fail(self, at: int, code: int, *, torn: bool = False) -> bool:
        """Let call `at` fail, check what is left, and that the same writer can go on; False when it ended before."""
        root = self.copy()
        fs = FailingFileSystem(at, code, torn=torn)
        writer = Writer(root, fs)
        open_before = descriptors()
        returned, error = _run(writer, self.scenario.steps)
        fs.armed = False
        what = f"{os.strerror(code)} at call {at}, {fs.found}{' (torn)' if torn else ''}, then {error!r}"
        is_unsure = error is None or isinstance(error, CommitStateUnknownError)
        del error
        writer.close_logs()
        if descriptors() > open_before:
            gc.collect()  # mappings of files are let go of with the frames that the error held
        assert descriptors() == open_before, f"{self.scenario.name}, {what}: descriptors are left open"
        self._check_and_go_on(writer, returned, what, is_unsure=is_unsure)
        self._remove(root)
        return fs.found is not None

    def shorten(self, at: int) -> bool:
        """Let the kernel take few bytes at a time in call `at`, which must go unnoticed; False when it ended before."""
        root = self.copy()
        fs = ShortFileSystem(at)
        returned, error = _run(Writer(root, fs), self.scenario.steps)
        assert error is None, f"{self.scenario.name}, short {fs.found} at call {at}: {error!r}"
        assert returned == len(self.scenario.steps)
        assert same(look(root), self._expected[-1])
        self._remove(root)
        return fs.found is not None

    # Power cuts

    def cut_power(self, at: int) -> int:
        """Cut the power in front of call `at`, or at the end; check each of what may be left. Returns how many."""
        case = self._case()
        root = case / ROOT
        fs = PowerFileSystem(self._disk.moved_to(case), at)
        writer = Writer(root, fs)
        returned = 0
        try:
            for step in self.scenario.steps[:-1]:
                step.act(writer)
                returned += 1
        except BaseException:
            # PowerCut, or what somebody made of it who cleaned up after it.
            if not fs.is_cut:
                raise
        fs.cut()
        for loss in LOSSES:
            left = self._home / f"{case.name}-{loss}"
            fs.disk.restore(left, loss, seed=at)
            what = f"{loss} by a power cut at call {at} of {self.call_names[at - 1 : at]}"
            self._check_and_go_on(Writer(left / ROOT, UNSYNCED), returned, what)
            shutil.rmtree(left)
        shutil.rmtree(case)
        return len(LOSSES)

    # After

    def _check_and_go_on(self, writer: Writer, returned: int, what: str, *, is_unsure: bool = True) -> None:
        """A reader sees all of the commit under way or nothing; whoever writes next needs no repair."""
        steps: Sequence[Step] = self.scenario.steps
        try:
            seen = look(writer.root)
            done = self._find(seen, returned)
            if done > returned and not is_unsure:
                raise AssertionError("it failed, as it says, but it is committed")
            expected = self._expected[-1]
            passed_over = self._passed_over[done] if done < len(steps) and same(seen, self._expected[done]) else None
            # A swap waits, under its suffix, for the next run of maintenance or for a broker's start.
            is_swapping = any(writer.root.glob("*/*.swap"))
            if next(self._turns) % 2 and passed_over is not None and not is_swapping:
                # The one who was stopped never comes back, and the next write is shorter than what it left.
                steps, expected = [*steps[:done], steps[-1]], passed_over
            for number, step in enumerate(steps):
                if number >= done or (number >= returned and step.idempotent):
                    step.act(writer)
            seen = look(writer.root)
            assert same(seen, expected), f"in the end there is {describe(seen)}"
            self._files.check(writer.root)
        except Exception as failure:
            raise AssertionError(f"{self.scenario.name}, {what}, after {returned} steps: {failure}") from failure

    def _find(self, seen: Seen, returned: int) -> int:
        """How many steps are done, of which `returned` have returned."""
        for done in (returned, returned + 1):
            if done < len(self._expected) and same(seen, self._expected[done]):
                return done
        if returned == 0 and self._unsure is not None and same(seen, self._unsure):
            return 0
        raise AssertionError(
            f"a reader sees {describe(seen)}, neither what was before, {describe(self._expected[returned])}, "
            f"nor what was under way, {describe(self._expected[min(returned + 1, len(self._expected) - 1)])}"
        )

    def _case(self) -> Path:
        """A directory with a copy of the root to begin with."""
        # Never the same path twice: this process keeps images of roots by path.
        case = self._home / f"case-{next(self._numbers)}"
        shutil.copytree(self._base, case)
        return case

    def copy(self) -> Path:
        """A root to begin with."""
        return self._case() / ROOT

    def _remove(self, root: Path) -> None:
        shutil.rmtree(root.parent)


def try_calls(runs: Runs, calls: Sequence[int]) -> Points:
    """Stop the scenario at each of the calls, in every way."""
    return in_lanes(lambda lane: _try_some(runs, calls[lane::LANES], lane))


def _try_some(runs: Runs, calls: Sequence[int], lane: int) -> Points:
    """One lane's share of the calls."""
    points = Points()
    runs.enter(lane)
    for at in calls:
        moves_bytes = runs.call_names[at - 1] in DATA_POINTS
        with _noting(points):
            points.kills += runs.kill(at, torn=False)
        for code in (ENOSPC, EIO):
            with _noting(points):
                points.errors += runs.fail(at, code)
        if moves_bytes:
            with _noting(points):
                points.torn += runs.kill(at, torn=True)
            with _noting(points):
                points.errors += runs.fail(at, ENOSPC, torn=True)
            with _noting(points):
                points.short += runs.shorten(at)
    return points


def cut_power(runs: Runs, calls: Sequence[int]) -> Points:
    """Cut the power in front of each of the calls; the number after the last one stands for the end."""
    return in_lanes(lambda lane: _cut_some(runs, calls[lane::LANES], lane))


def _cut_some(runs: Runs, calls: Sequence[int], lane: int) -> Points:
    points = Points()
    runs.enter(lane)
    for at in calls:
        if runs.call_names[at - 2 : at - 1] not in _CHANGES_NOTHING:
            with _noting(points):
                points.power += runs.cut_power(at)
    return points


@contextmanager
def _noting(points: Points) -> Iterator[None]:
    try:
        yield
    except AssertionError as failure:
        points.failures.append(str(failure))


def in_lanes(work: Callable[[int], Points]) -> Points:
    """The sum of `work(lane)` over all lanes, each in a process of its own. What one raises fails all."""
    pipes = []
    for lane in range(LANES):
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                with os.fdopen(writing, "wb") as pipe:
                    try:
                        pickle.dump(work(lane), pipe)
                    except BaseException:
                        pickle.dump(Points(failures=[traceback.format_exc()]), pipe)
            finally:
                os._exit(0)
        os.close(writing)
        pipes.append(reading)
    total = Points()
    for reading in pipes:
        with os.fdopen(reading, "rb") as pipe:
            total += pickle.load(pipe)
        os.wait()
    return total


def run_in_child(
    root: Path, fs: FileSystem, steps: Sequence[Step], *, first: Callable[[], None] = lambda: None
) -> tuple[int, bool]:
    """Do `steps`, after `first`, in a process of its own; how many of them returned, and whether it was killed.

    Raises AssertionError with what it said when it ended in another way.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            gc.disable()
            os.close(reading)
            first()
            writer = Writer(root, fs)
            for step in steps:
                step.act(writer)
                os.write(writing, b".")
            os._exit(0)
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert was_killed or status == 0, f"the writer ended with status {status}: {said.decode()}"
    return len(said), was_killed


def _run(writer: Writer, steps: Sequence[Step]) -> tuple[int, Exception | None]:
    """Do `steps` up to the first that fails; how many returned, and the error."""
    for returned, step in enumerate(steps):
        try:
            step.act(writer)
        except (OSError, KafkalogError) as error:
            traceback.clear_frames(error.__traceback__)  # they hold mappings of files, each with a descriptor
            error.__context__ = error.__cause__ = None
            return returned, error.with_traceback(None)
    return len(steps), None
