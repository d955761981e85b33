"""Retention deletes the same segments as a broker that checks them one by one, as Kafka's sources do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.retention.plan import RetentionPlan, plan_retention
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.segment.stored import StoredSegment

NOW_MS = 100_000
POLICIES = [("delete",), ("compact",), ("compact", "delete")]
LIMITS_MS = st.sampled_from([-1, 0, 499, 500, 999, 1000, 10_000_000])
LIMITS_BYTES = st.sampled_from([-1, 0, 1, 10, 11, 100, 150, 1000])
TIMESTAMPS = st.sampled_from([-1, 0, NOW_MS - 1000, NOW_MS - 500, NOW_MS, NOW_MS + 5000])


@dataclass
class Segment:
    base: int
    end: int
    size: int
    timestamp: int
    modified: int

    @property
    def largest(self) -> int:
        return self.timestamp if self.timestamp >= 0 else self.modified


class Broker:
    """The local log of a broker: three passes that each list the segments, and a roll before the last one goes.

    `copied_end`: while it copies to remote storage, how far it has. Then the passes move the start of the local log,
    and the limits are those of local retention.
    """

    def __init__(self, segments: list[Segment], log_start: int, log_end: int, copied_end: int | None = None) -> None:
        self.segments = [replace(each) for each in segments]
        self.log_start = log_start
        self.log_end = log_end
        self.copied_end = copied_end
        self.rolled = False

    def delete_old(self, config: LogConfig, retention_bytes: int, retention_ms: int, local_start: int) -> None:
        self.take_below(local_start)
        if "delete" not in config.cleanup_policy:
            return
        spare = sum(each.size for each in self.segments) - retention_bytes
        if retention_bytes >= 0 and spare >= 0:
            taken = [0]

            def above(at: int) -> bool:
                if spare - taken[0] - self.segments[at].size < 0:
                    return False
                taken[0] += self.segments[at].size
                return True

            self.take(above)
        if retention_ms >= 0:
            self.take(lambda at: NOW_MS - self.segments[at].largest > retention_ms)
        self.take_below(local_start)  # as the next run would: what was active may have been below

    def take_below(self, offset: int) -> None:
        self.take(lambda at: at + 1 < len(self.segments) and self.segments[at + 1].base <= offset)

    def take(self, is_due: Callable[[int], bool]) -> None:
        count = 0
        while count < len(self.segments):
            segment = self.segments[count]
            is_active = count == len(self.segments) - 1
            if not is_due(count) or (is_active and segment.size == 0):
                break
            if self.copied_end is not None:
                if is_active:
                    self.roll()
                if segment.end > self.copied_end and (is_active or segment.end > self.log_start):
                    break
            count += 1
        if count and count == len(self.segments):
            self.roll()
        del self.segments[:count]
        if count and self.copied_end is None:
            self.log_start = max(self.log_start, self.segments[0].base)

    def roll(self) -> None:
        self.segments.append(Segment(self.log_end, self.log_end, 0, -1, NOW_MS))
        self.rolled = True


def remote_after_expiration(
    remote: list[Segment], only_local_bytes: int, config: LogConfig, log_start: int
) -> tuple[list[Segment], int]:
    """What a broker's task keeps of its remote segments, which it looks at one by one, and the log start after it."""
    debt = sum(each.size for each in remote) + only_local_bytes - config.retention_bytes
    if config.retention_bytes < 0:
        debt = 0
    for at, segment in enumerate(remote):
        if segment.end <= log_start:
            debt -= segment.size
        elif config.retention_ms >= 0 and NOW_MS - segment.largest > config.retention_ms:
            debt = max(debt - segment.size, 0)
        elif debt >= segment.size:
            debt -= segment.size
        else:
            return remote[at:], log_start
        log_start = max(log_start, segment.end)
    return [], log_start


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Segment], int, int]:
    count = draw(st.integers(1, 6))
    base = draw(st.integers(0, 3))
    segments = []
    for at in range(count):
        is_active = at == count - 1
        size = draw(st.sampled_from([0, 1, 10, 100]))
        timestamp = draw(TIMESTAMPS)
        modified = draw(st.sampled_from([0, NOW_MS - 1000, NOW_MS - 500, NOW_MS + 1]))
        end = base + (draw(st.integers(0, 5)) if is_active and size == 0 else draw(st.integers(1, 5)))
        segments.append(Segment(base, end, size, timestamp if size else -1, modified))
        base = end
    if segments[-1].size == 0:
        base = segments[-1].end = segments[-1].base
    log_start = draw(st.integers(segments[0].base, base))
    return segments, log_start, base


@dataclass(frozen=True)
class TieredLog:
    remote: list[Segment]
    local: list[Segment]
    state: LogState


@st.composite
def tiered_logs(draw: st.DrawFn, *, is_aligned: bool = True) -> TieredLog:
    """A log whose first closed segments are in remote storage, and of those the first ones not locally any more.

    A killed run may have left files of those that are gone. Unless `is_aligned`, some local segments that follow each
    other are merged into one since they were copied.
    """
    segments, log_start, log_end = draw(logs())
    for each in segments[:-1]:
        each.size = max(each.size, 1)
    closed = segments[:-1]
    first = sum(each.end <= log_start for each in closed)
    copied = draw(st.integers(first, len(closed)))
    gone = draw(st.integers(first, copied))
    local = segments[draw(st.integers(0, gone)) :]
    if not is_aligned and len(local) > 2 and draw(st.booleans()):
        one, other = local[:2]
        local = [Segment(one.base, other.end, one.size + other.size, other.timestamp, other.modified), *local[2:]]
    local_start = max(segments[gone].base, log_start)
    state = LogState(
        log_start_offset=log_start,
        local_log_start_offset=local_start,
        log_end_offset=log_end,
        active_base_offset=segments[-1].base,
    )
    return TieredLog(segments[first:copied], local, state)


@st.composite
def tiering_configs(draw: st.DrawFn) -> LogConfig:
    return LogConfig(
        cleanup_policy=("delete",),
        remote_storage_enable=True,
        retention_ms=draw(LIMITS_MS),
        retention_bytes=draw(LIMITS_BYTES),
        local_retention_ms=draw(st.one_of(st.just(-2), LIMITS_MS)),
        local_retention_bytes=draw(st.one_of(st.just(-2), LIMITS_BYTES)),
    )


def planned(local: list[Segment], remote: list[Segment], config: LogConfig, state: LogState) -> RetentionPlan:
    timestamps = {(each.base, each.end): each.timestamp for each in [*remote, *local]}
    return plan_retention(
        [stored(each) for each in local],
        [stored(each) for each in remote],
        lambda part: timestamps[part.base_offset, part.end_offset],
        config,
        state,
        now_ms=NOW_MS,
    )


def stored(segment: Segment) -> StoredSegment:
    return StoredSegment(segment.base, segment.end, segment.size, 0, 0, segment.modified * 1_000_000)


@settings(max_examples=examples(1500), deadline=None)
@given(log=logs(), policy=st.sampled_from(POLICIES), retention_ms=LIMITS_MS, retention_bytes=LIMITS_BYTES)
def test_retention_plan_equals_what_broker_deletes(
    log: tuple[list[Segment], int, int], policy: tuple[str, ...], retention_ms: int, retention_bytes: int
) -> None:
    segments, log_start, log_end = log
    config = LogConfig(cleanup_policy=policy, retention_ms=retention_ms, retention_bytes=retention_bytes)
    broker = Broker(segments, log_start, log_end)
    broker.delete_old(config, retention_bytes, retention_ms, log_start)
    plan = planned(segments, [], config, LogState(log_start_offset=log_start, log_end_offset=log_end))
    kept = [each.base for each in segments[plan.deleted_count :]] + [log_end] * plan.rolls
    assert kept == [each.base for each in broker.segments]
    assert (plan.log_start_offset, plan.rolls) == (broker.log_start, broker.rolled)
    assert (plan.local_log_start_offset, plan.local_deleted_count) == (plan.log_start_offset, plan.deleted_count)
    assert plan.deleted_bytes == plan.local_deleted_bytes == sum(each.size for each in segments[: plan.deleted_count])
    assert plan.deleted_bytes + plan.kept_bytes == sum(each.size for each in segments)


@settings(max_examples=examples(1500), deadline=None)
@given(log=tiered_logs(), config=tiering_configs())
def test_plan_for_tiered_log_equals_what_broker_deletes_remotely_and_then_locally(
    log: TieredLog, config: LogConfig
) -> None:
    state = log.state
    copied_end = log.remote[-1].end if log.remote else 0
    only_local = sum(each.size for each in log.local if each.base >= copied_end)
    remote, log_start = remote_after_expiration(log.remote, only_local, config, state.log_start_offset)
    local_start = max(state.local_log_start_offset, log_start)
    broker = Broker(log.local, log_start, state.log_end_offset, copied_end)
    local_bytes, local_ms = config.local_retention_bytes, config.local_retention_ms
    broker.delete_old(
        config,
        config.retention_bytes if local_bytes == -2 else local_bytes,
        config.retention_ms if local_ms == -2 else local_ms,
        local_start,
    )
    plan = planned(log.local, log.remote, config, state)
    assert plan.log_start_offset == log_start
    assert [each for each in log.remote if each.end > plan.log_start_offset] == remote
    kept = [each.base for each in log.local[plan.local_deleted_count :]] + [state.log_end_offset] * plan.rolls
    assert (kept, plan.rolls) == ([each.base for each in broker.segments], broker.rolled)
    assert plan.local_log_start_offset == max(local_start, broker.segments[0].base)


@settings(max_examples=examples(800), deadline=None)
@given(log=tiered_logs(), config=tiering_configs())
def test_tiered_log_without_copying_is_retained_as_one_log(log: TieredLog, config: LogConfig) -> None:
    copied_end = log.remote[-1].end if log.remote else 0
    whole = [*log.remote, *(each for each in log.local if each.base >= copied_end)]
    plan = planned(log.local, log.remote, replace(config, remote_log_copy_disable=True), log.state)
    as_one = planned(whole, [], replace(config, remote_storage_enable=False), log.state)
    assert (plan.log_start_offset, plan.rolls, plan.deleted_count) == (
        as_one.log_start_offset,
        as_one.rolls,
        as_one.deleted_count,
    )
    assert (plan.deleted_bytes, plan.kept_bytes) == (as_one.deleted_bytes, as_one.kept_bytes)
    assert plan.local_log_start_offset == max(log.state.local_log_start_offset, plan.log_start_offset)


@settings(max_examples=examples(800), deadline=None)
@given(log=tiered_logs(is_aligned=False), config=tiering_configs())
def test_no_offset_is_lost_locally_that_is_not_in_remote_storage(log: TieredLog, config: LogConfig) -> None:
    """Also if a merge has joined local segments since."""
    state = log.state
    plan = planned(log.local, log.remote, config, state)
    copied_end = log.remote[-1].end if log.remote else 0
    assert state.log_start_offset <= plan.log_start_offset <= plan.local_log_start_offset <= state.log_end_offset
    assert plan.log_start_offset <= max(copied_end, state.log_start_offset)
    assert state.local_log_start_offset <= plan.local_log_start_offset
    if plan.local_log_start_offset > max(plan.log_start_offset, state.local_log_start_offset):
        assert plan.local_log_start_offset <= min(copied_end, state.active_base_offset)
    for each in log.local[: plan.local_deleted_count]:
        assert each.end <= plan.local_log_start_offset
