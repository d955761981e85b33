"""What a writer is doing when it is stopped: each scenario has a root to begin with and steps of one commit each.

A step changes what a reader sees in one go. After a crash the steps that are not done yet are done again, and one that
carries a transactional id is done again even when it is done. Every scenario ends with a step that writes to each
partition, so that each log is taken up again after each crash.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

from pyspark_kafkalog.errors import CommitStateUnknownError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.root.commit.changes import FollowerAppend, FollowerChange, StartAt, Truncation
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition
from pyspark_kafkalog.storage.staged_file import StagingTask
from tests.crash.faults import Call
from tests.crash.power import PowerFileSystem
from tests.crash.writer import NOW_MS, Place, Writer, batch

SMALL_SEGMENTS: Final = {"internal.segment.bytes": "900", "index.interval.bytes": "100"}
#: Any write of half of this adopts its staged file as a segment.
ADOPTING: Final = {"internal.segment.bytes": "4000", "index.interval.bytes": "200"}
_SNAPSHOTS_ALWAYS: Final = {"metadata.log.max.record.bytes.between.snapshots": "1", "metadata.max.retention.ms": "0"}
FINE_INDEX: Final = {"index.interval.bytes": "60"}

Act = Callable[[Writer], None]
#: Makes a follower's change from what the root has; None if it is done.
ChangeOf = Callable[[Writer], FollowerChange | None]


@dataclass(frozen=True)
class Step:
    """One commit. One that is `idempotent` may be done again when it is done."""

    act: Act
    idempotent: bool = False


@dataclass(frozen=True)
class Scenario:
    """`prepare` makes the root, None leaves nothing there. Fewer than `calls_min` calls of the seam are suspicious.

    What a step did that has returned outlives a power cut, unless it is not `is_durable`. `unsure` makes the root as a
    power cut may make it again before the first step has returned: somebody was killed before the names were synced.
    """

    name: str
    prepare: Act | None
    steps: Sequence[Step]
    calls_min: int
    is_durable: bool = True
    unsure: Act | None = None


def created(**topics: tuple[int, Mapping[str, str]]) -> Act:
    """A root with these topics: number of partitions, configs."""

    def prepare(writer: Writer) -> None:
        for topic, (partitions, configs) in topics.items():
            writer.log_dir.create_topic(topic, partitions, configs)

    return prepare


def then(*acts: Act) -> Act:
    def prepare(writer: Writer) -> None:
        for act in acts:
            act(writer)

    return prepare


def writes(ranges: Mapping[Place, range], *, batch_bytes: int = 150, flush: FlushMode = "fsync") -> Act:
    return lambda writer: _ignore(writer.write(ranges, batch_bytes=batch_bytes, flush=flush))


def _write(ranges: Mapping[Place, range], *, batch_bytes: int = 150, flush: FlushMode = "fsync") -> Step:
    return Step(writes(ranges, batch_bytes=batch_bytes, flush=flush))


def _beginning_a_file(step: Step) -> Step:
    """The commits of the step each begin a file of the commit log."""

    def act(writer: Writer) -> None:
        with patch("pyspark_kafkalog.metadata.local.log.COMMIT_FILE_BYTES", 0):
            step.act(writer)

    return replace(step, act=act)


def _write_once(ranges: Mapping[Place, range], version: int) -> Step:
    """A write that carries its version: done again, as by a query that was restarted, it is a duplicate."""
    transaction = WriteTransaction("query", version, "first run")
    return Step(lambda writer: _ignore(writer.write(ranges, batch_bytes=300, transaction=transaction)), idempotent=True)


def serves(ranges: Mapping[Place, range], *, flush: FlushMode = "fsync") -> Act:
    return lambda writer: writer.serve(ranges, flush=flush)


def _serve(ranges: Mapping[Place, range], *, flush: FlushMode = "fsync") -> Step:
    """An append of a server: done again, as by a producer that got no answer, it is a duplicate."""
    return Step(serves(ranges, flush=flush), idempotent=True)


def _appended(
    place: Place, numbers: range, *, at: int | None, epoch: int = 0, log_start: int = -1, is_far_behind: bool = False
) -> ChangeOf:
    """What a follower appends at offset `at`, or at the log end: batches of up to 5 records."""

    def change(writer: Writer) -> FollowerAppend | None:
        of, topic_id, state = writer.followed(place)
        first = state.log_end_offset if at is None else at
        if state.log_end_offset > first:
            return None
        pieces = [numbers[start : start + 5] for start in range(0, len(numbers), 5)]
        data = b"".join(batch(piece, offset=first + 5 * row, leader_epoch=epoch) for row, piece in enumerate(pieces))
        return FollowerAppend(
            topic_partition=of,
            topic_id=topic_id,
            data=data,
            expected_end_offset=first,
            log_start_offset=log_start,
            is_far_behind=is_far_behind,
        )

    return change


def _truncated(place: Place, offset: int) -> ChangeOf:
    def change(writer: Writer) -> Truncation:
        of, topic_id, state = writer.followed(place)
        return Truncation(
            topic_partition=of, topic_id=topic_id, expected_end_offset=state.log_end_offset, end_offset=offset
        )

    return change


def _started(place: Place, offset: int) -> ChangeOf:
    def change(writer: Writer) -> StartAt:
        of, topic_id, state = writer.followed(place)
        return StartAt(
            topic_partition=of, topic_id=topic_id, expected_end_offset=state.log_end_offset, start_offset=offset
        )

    return change


def follows(*changes: ChangeOf, flush: FlushMode = "fsync") -> Act:
    return lambda writer: writer.follow(*changes, flush=flush)


def _follow(*changes: ChangeOf, flush: FlushMode = "fsync") -> Step:
    """A commit of a follower, which looks first where its logs end: done again, it does what is left."""
    return Step(follows(*changes, flush=flush), idempotent=True)


def _back_fill(*changes: ChangeOf) -> Step:
    """A commit of a follower that writes past the page cache what has a few blocks."""

    def act(writer: Writer) -> None:
        with patch("pyspark_kafkalog.storage.segment.segment._UNCACHED_BYTES_MIN", 0):
            writer.follow(*changes)

    return Step(act, idempotent=True)


def _follow_on(*places: Place) -> Step:
    """What a follower appends after the crash."""
    return Step(follows(*(_appended(place, range(900_000, 900_003), at=None, epoch=9) for place in places)))


def killed(act: Act, stops: Callable[[Call], bool]) -> Act:
    """Somebody did `act` and was killed in front of the first call that `stops`; the next one begins afresh."""

    def prepare(writer: Writer) -> None:
        assert isinstance(writer.fs, PowerFileSystem)
        with writer.fs.stopped(stops):
            act(writer)
        writer.forget()

    return prepare


def _publishes(call: Call) -> bool:
    return call.name == "pwrite_all" and _is_of_commits(call)


def _is_of_commits(call: Call) -> bool:
    """Whether the call is on an open file of the commit log."""
    path = Path(os.readlink(f"/proc/self/fd/{call.arguments[0]}"))
    return METADATA_DIR in path.parts and path.suffix == LOG_SUFFIX


class _Nth:
    """Stops at the n-th call that `stops`."""

    def __init__(self, count: int, stops: Callable[[Call], bool]) -> None:
        self._left = count
        self._stops = stops

    def __call__(self, call: Call) -> bool:
        self._left -= self._stops(call)
        return self._left <= 0


def _waits_for_publish(call: Call) -> bool:
    return call.name == "fsync" and _is_of_commits(call)


def _go_on(*places: Place) -> Step:
    """The write after the crash: 3 records to each partition."""
    return _write({place: range(900_000, 900_003) for place in places})


_A0: Final = ("a", 0)
_EIGHT: Final = tuple(itertools.chain((("a", number) for number in range(5)), (("b", number) for number in range(3))))


def _create_root(writer: Writer) -> None:
    assert writer.log_dir.topics() is not None


def _scenarios() -> Iterable[Scenario]:
    yield Scenario(
        "create root", None, [Step(_create_root, idempotent=True), Step(created(a=(1, {}))), _go_on(_A0)], calls_min=45
    )
    yield Scenario(
        "create topic",
        created(a=(1, {})),
        [Step(lambda writer: _ignore(writer.log_dir.create_topic("b", 3, FINE_INDEX))), _go_on(_A0, *_EIGHT[5:])],
        calls_min=24,
    )
    yield Scenario(
        "add partitions",
        then(created(a=(1, FINE_INDEX)), writes({_A0: range(5)})),
        [Step(lambda writer: writer.log_dir.add_partitions("a", 3)), _go_on(*_EIGHT[:3])],
        calls_min=18,
    )
    yield Scenario("first write", created(a=(1, FINE_INDEX)), [_write({_A0: range(20)}), _go_on(_A0)], calls_min=38)
    yield Scenario(
        "append to the active segment",
        then(created(a=(1, FINE_INDEX)), writes({_A0: range(20)})),
        [_write({_A0: range(20, 50)}), _go_on(_A0)],
        calls_min=26,
    )
    yield Scenario(
        "append in a commit that begins a file",
        then(created(a=(1, FINE_INDEX)), writes({_A0: range(20)})),
        [_beginning_a_file(_write({_A0: range(20, 50)})), _go_on(_A0)],
        calls_min=30,
    )
    yield Scenario(
        "roll within the commit",
        then(created(a=(1, SMALL_SEGMENTS)), writes({_A0: range(8)})),
        [_write({_A0: range(100, 108)}), _write({_A0: range(200, 230)}), _go_on(_A0)],
        calls_min=90,
    )
    yield Scenario(
        "adopt a staged file",
        then(created(a=(1, ADOPTING)), writes({_A0: range(8)})),
        [_write({_A0: range(100, 180)}, batch_bytes=800), _write({_A0: range(200, 210)}), _go_on(_A0)],
        calls_min=55,
    )
    yield Scenario(
        "several files of a partition",
        then(created(a=(1, SMALL_SEGMENTS)), writes({_A0: range(8)})),
        [Step(_write_two_files), _go_on(_A0)],
        calls_min=60,
    )
    yield Scenario(
        "tasks with a file for all partitions",
        then(created(a=(2, ADOPTING)), writes({place: range(8) for place in _EIGHT[:2]})),
        [Step(_write_two_tasks), _go_on(*_EIGHT[:2])],
        calls_min=60,
    )
    yield Scenario(
        "several topics and partitions",
        then(
            created(a=(2, SMALL_SEGMENTS), b=(1, ADOPTING)),
            writes({place: range(6) for place in (*_EIGHT[:2], _EIGHT[5])}),
        ),
        [
            _write({("a", 0): range(10, 14), ("a", 1): range(10, 22), ("b", 0): range(10, 90)}, batch_bytes=300),
            _go_on(*_EIGHT[:2], _EIGHT[5]),
        ],
        calls_min=90,
    )
    yield Scenario(
        "transactional writes",
        then(created(a=(2, ADOPTING)), writes({place: range(8) for place in _EIGHT[:2]})),
        [
            _write_once({_A0: range(10, 20)}, 0),
            _write_once({_A0: range(100, 180), ("a", 1): range(20, 30)}, 1),
            _go_on(*_EIGHT[:2]),
        ],
        calls_min=90,
    )
    yield Scenario(
        "flush left to the kernel",
        then(created(a=(1, ADOPTING)), writes({_A0: range(8)})),
        [_write({_A0: range(100, 180)}, batch_bytes=800, flush="os"), _go_on(_A0)],
        calls_min=18,
        is_durable=False,
    )
    yield Scenario(
        "metadata snapshots",
        then(
            lambda writer: writer.log_dir.alter_broker_configs(add=_SNAPSHOTS_ALWAYS),
            created(a=(1, SMALL_SEGMENTS)),
            writes({_A0: range(6)}),
            writes({_A0: range(6, 9)}),
        ),
        [_write({_A0: range(10, 14)}), _write_once({_A0: range(20, 24)}, 7), _go_on(_A0)],
        calls_min=75,
    )
    both = ("a", 0), ("b", 0)
    begun = _write_once({both[0]: range(10, 34), both[1]: range(10, 90)}, 3)
    several = then(created(a=(1, SMALL_SEGMENTS), b=(1, ADOPTING)), writes({place: range(6) for place in both}))
    yield Scenario(
        "recovery from a kill before the publish",
        then(several, killed(begun.act, _publishes)),
        [_write({place: range(50, 60) for place in both}), _go_on(*both)],
        calls_min=60,
    )
    yield Scenario(
        "retry after a kill that followed the publish",
        then(several, killed(begun.act, _waits_for_publish)),
        [begun, _go_on(*both)],
        calls_min=12,
        unsure=several,
    )
    places = (("a", 0), ("a", 1), ("b", 0))
    prepared = then(
        created(a=(2, SMALL_SEGMENTS), b=(1, FINE_INDEX)), serves({place: range(100, 104) for place in places})
    )
    yield Scenario(
        "appends of a server",
        prepared,
        [
            _serve({place: range(104, 108) for place in places}),
            _serve({places[0]: range(108, 120), places[2]: range(108, 140)}),
            _go_on(*places),
        ],
        calls_min=52,
    )
    yield Scenario(
        "appends of a server, left to the kernel",
        prepared,
        [
            _serve({places[0]: range(104, 118), places[1]: range(104, 106)}, flush="os"),
            _serve({places[0]: range(118, 120)}, flush="os"),
            _serve({places[0]: range(120, 132)}, flush="os"),
            _go_on(*places),
        ],
        calls_min=26,
        is_durable=False,
    )
    yield Scenario(
        "appends of a server after one that was killed",
        then(prepared, killed(serves({place: range(104, 130) for place in places}), _publishes)),
        [_serve({place: range(104, 112) for place in places}), _serve({places[0]: range(112, 116)}), _go_on(*places)],
        calls_min=60,
    )
    yield from _follower_scenarios(prepared, places)
    yield Scenario(
        "timestamps of the log",
        then(created(a=(1, {**SMALL_SEGMENTS, "message.timestamp.type": "LogAppendTime"})), writes({_A0: range(6)})),
        [_write({_A0: range(10, 30)}), _go_on(_A0)],
        calls_min=40,
    )
    yield Scenario(
        "alter topic configs",
        then(created(a=(1, SMALL_SEGMENTS)), writes({_A0: range(6)})),
        [
            Step(lambda writer: writer.log_dir.alter_topic("a", add=FINE_INDEX, delete=["internal.segment.bytes"])),
            _go_on(_A0),
        ],
        calls_min=8,
    )
    yield Scenario(
        "delete a topic",
        then(
            created(a=(2, SMALL_SEGMENTS), b=(1, {})), writes({place: range(30) for place in (*_EIGHT[:2], _EIGHT[5])})
        ),
        [
            # Other than with the default delay, the files go in the same call.
            Step(lambda writer: writer.log_dir.alter_topic("a", add={"file.delete.delay.ms": "0"})),
            Step(lambda writer: writer.log_dir.delete_topic("a")),
            _go_on(_EIGHT[5]),
        ],
        calls_min=38,
    )
    kept_for_ever = {**SMALL_SEGMENTS, "retention.ms": "-1", "file.delete.delay.ms": "0"}
    yield Scenario(
        "retention of old segments",
        then(created(a=(2, {**kept_for_ever, "retention.bytes": "1500"})), writes({_A0: range(120)})),
        [Step(_retain, idempotent=True), _go_on(*_EIGHT[:2])],
        calls_min=40,
    )
    yield Scenario(
        "retention of all there is",
        then(created(a=(1, {**kept_for_ever, "retention.ms": "1000"})), writes({_A0: range(20)})),
        [Step(_retain, idempotent=True), _go_on(_A0)],
        calls_min=50,
    )
    yield Scenario(
        "delete records",
        then(created(a=(1, kept_for_ever)), writes({_A0: range(80)})),
        [Step(_delete_records, idempotent=True), Step(_retain, idempotent=True), _go_on(_A0)],
        calls_min=40,
    )
    yield Scenario(
        "merge segments",
        then(
            created(a=(1, kept_for_ever)),
            writes({_A0: range(120)}),
            lambda writer: writer.log_dir.alter_topic("a", add={"internal.segment.bytes": "2500"}),
        ),
        [Step(_merge, idempotent=True), _go_on(_A0)],
        calls_min=90,
    )
    yield Scenario(
        "delete a topic and create it again",
        then(
            created(a=(2, {**SMALL_SEGMENTS, "file.delete.delay.ms": "0"})),
            writes({place: range(30) for place in _EIGHT[:2]}),
        ),
        [Step(lambda writer: writer.log_dir.delete_topic("a")), Step(created(a=(1, FINE_INDEX))), _go_on(_A0)],
        calls_min=44,
    )


def _follower_scenarios(prepared: Act, places: Sequence[Place]) -> Iterable[Scenario]:
    """A follower in the root that `prepared` makes, with 4 records in each of three partitions."""
    yield Scenario(
        "appends of a follower",
        prepared,
        [
            _follow(*(_appended(place, range(104, 112), at=4, epoch=2) for place in places)),
            _follow(
                _appended(places[0], range(112, 160), at=12, epoch=3, log_start=9),
                _appended(places[2], range(112, 130), at=12, epoch=2),
            ),
            _follow_on(*places),
        ],
        calls_min=80,
    )
    yield Scenario(
        "appends of a follower that is far behind",
        prepared,
        [
            _back_fill(_appended(places[2], range(104, 354), at=4, epoch=2, is_far_behind=True)),
            _back_fill(_appended(places[2], range(354, 604), at=254, epoch=2, is_far_behind=True)),
            _follow_on(places[2]),
        ],
        calls_min=50,
    )
    yield Scenario(
        "appends of a follower, left to the kernel",
        prepared,
        [
            _follow(_appended(places[0], range(104, 150), at=4, epoch=2), flush="os"),
            _follow(_appended(places[0], range(150, 160), at=50, epoch=2), flush="os"),
            _follow_on(*places),
        ],
        calls_min=25,
        is_durable=False,
    )
    grown = then(
        prepared,
        follows(
            _appended(places[0], range(104, 160), at=4, epoch=2),
            _appended(places[1], range(104, 130), at=4, epoch=3),
            _appended(places[2], range(104, 130), at=4, epoch=3),
        ),
    )
    yield Scenario(
        "truncations of a follower",
        grown,
        [
            _follow(_truncated(places[0], 14), _truncated(places[1], 4), _truncated(places[2], 0)),
            _follow(_appended(places[0], range(200, 240), at=14, epoch=4)),
            _follow_on(*places),
        ],
        calls_min=60,
    )
    yield Scenario(
        "a follower starts elsewhere",
        grown,
        [
            _follow(_started(places[0], 500), _started(places[1], 2), _started(places[2], 30)),
            _follow(_appended(places[0], range(200, 240), at=500, epoch=4)),
            _follow_on(*places),
        ],
        calls_min=60,
    )
    yield Scenario(
        "a follower after one that was killed",
        then(
            prepared,
            killed(
                follows(*(_appended(place, range(104, 150), at=4, epoch=2) for place in places)), _Nth(2, _publishes)
            ),
        ),
        [
            _follow(*(_appended(place, range(104, 112), at=4, epoch=3) for place in places)),
            _follow(_truncated(places[0], 9), _started(places[1], 100)),
            _follow_on(*places),
        ],
        calls_min=80,
    )


def _ignore(_: object) -> None:
    pass


def _retain(writer: Writer) -> None:
    _raise_errors(apply_retention(writer.log_dir.root, now_ms=NOW_MS))


def _delete_records(writer: Writer) -> None:
    _raise_errors(delete_records(writer.log_dir.root, {TopicPartition("a", 0): 53}))


def _merge(writer: Writer) -> None:
    _raise_errors(merge_segments(writer.log_dir.root, now_ms=NOW_MS))


def _raise_errors(reports: Sequence[PartitionReport]) -> None:
    """What a run notes and goes on from counts as a failure of the step, before its commit or after."""
    for report in reports:
        if report.error is not None:
            raise CommitStateUnknownError(report.error)


def _write_two_files(writer: Writer) -> None:
    first, second = writer.stage({_A0: range(100, 112)}), writer.stage({_A0: range(120, 130)})
    writer.log_dir.commit_staged([*first, *second])


def _write_two_tasks(writer: Writer) -> None:
    """Tasks that write to the same partitions, one of them much to the first one, so that it has a file of its own."""
    first = StagingTask(root=writer.root, write_id=uuid.uuid4().hex, task=0)
    second = replace(first, task=1)
    with patch("pyspark_kafkalog.storage.staged_file.SHARED_BYTES", 900):
        staged = writer.stage_as_task(first, (1, range(20, 26)), (0, range(100, 108)), (0, range(110, 190)))
        staged += writer.stage_as_task(second, (0, range(200, 204)), (1, range(30, 36)))
    assert len(staged) == 3
    writer.log_dir.commit_staged(staged)


SCENARIOS: Final = {scenario.name: scenario for scenario in _scenarios()}
