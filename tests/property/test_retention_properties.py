"""Retention deletes the same segments as a broker that checks them one by one, as Kafka's sources do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.retention.plan import plan_retention
from pyspark_kafkalog.storage.segment.stored import StoredSegment

NOW_MS = 100_000
POLICIES = [("delete",), ("compact",), ("compact", "delete")]


@dataclass
class Segment:
    base: int
    size: int
    timestamp: int
    modified: int


class Broker:
    """A log whose three passes each look at the segments anew, and that rolls before its last segment goes."""

    def __init__(self, segments: list[Segment], log_start: int, log_end: int) -> None:
        self.segments = [replace(each) for each in segments]
        self.log_start = log_start
        self.log_end = log_end
        self.rolled = False

    def delete_old(self, config: LogConfig) -> None:
        self.take(lambda at: at + 1 < len(self.segments) and self.segments[at + 1].base <= self.log_start)
        if "delete" not in config.cleanup_policy:
            return
        spare = sum(each.size for each in self.segments) - config.retention_bytes
        if config.retention_bytes >= 0 and spare >= 0:
            taken = [0]

            def above(at: int) -> bool:
                if spare - taken[0] - self.segments[at].size < 0:
                    return False
                taken[0] += self.segments[at].size
                return True

            self.take(above)
        if config.retention_ms >= 0:
            self.take(lambda at: NOW_MS - self.largest(at) > config.retention_ms)

    def largest(self, at: int) -> int:
        segment = self.segments[at]
        return segment.timestamp if segment.timestamp >= 0 else segment.modified

    def take(self, is_due) -> None:  # type: ignore[no-untyped-def]
        count = 0
        while count < len(self.segments):
            is_empty_active = count == len(self.segments) - 1 and self.segments[count].size == 0
            if not is_due(count) or is_empty_active:
                break
            count += 1
        if count and count == len(self.segments):
            self.segments.append(Segment(self.log_end, 0, -1, NOW_MS))
            self.rolled = True
        del self.segments[:count]
        if count:
            self.log_start = max(self.log_start, self.segments[0].base)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Segment], int, int]:
    count = draw(st.integers(1, 6))
    base = draw(st.integers(0, 3))
    segments = []
    for at in range(count):
        is_active = at == count - 1
        size = draw(st.sampled_from([0, 1, 10, 100]))
        timestamp = draw(st.sampled_from([-1, 0, NOW_MS - 1000, NOW_MS - 500, NOW_MS, NOW_MS + 5000]))
        modified = draw(st.sampled_from([0, NOW_MS - 1000, NOW_MS - 500, NOW_MS + 1]))
        segments.append(Segment(base, size, timestamp if size else -1, modified))
        base += draw(st.integers(0, 5)) if is_active and size == 0 else draw(st.integers(1, 5))
    if segments[-1].size == 0:
        base = segments[-1].base
    log_start = draw(st.integers(segments[0].base, base))
    return segments, log_start, base


@settings(max_examples=examples(1500), deadline=None)
@given(
    log=logs(),
    policy=st.sampled_from(POLICIES),
    retention_ms=st.sampled_from([-1, 0, 499, 500, 999, 1000, 10_000_000]),
    retention_bytes=st.sampled_from([-1, 0, 1, 10, 11, 100, 150, 1000]),
)
def test_retention_plan_equals_what_broker_deletes(
    log: tuple[list[Segment], int, int], policy: tuple[str, ...], retention_ms: int, retention_bytes: int
) -> None:
    segments, log_start, log_end = log
    config = LogConfig(cleanup_policy=policy, retention_ms=retention_ms, retention_bytes=retention_bytes)
    broker = Broker(segments, log_start, log_end)
    broker.delete_old(config)
    timestamps = {each.base: each.timestamp for each in segments}
    plan = plan_retention(
        [_stored(each) for each in segments],
        lambda segment: timestamps[segment.base_offset],
        config,
        log_start_offset=log_start,
        log_end_offset=log_end,
        now_ms=NOW_MS,
    )
    kept = [each.base for each in segments[plan.deleted_count :]] + [log_end] * plan.rolls
    assert kept == [each.base for each in broker.segments]
    assert (plan.log_start_offset, plan.rolls) == (broker.log_start, broker.rolled)


def _stored(segment: Segment) -> StoredSegment:
    return StoredSegment(segment.base, segment.base + 1, segment.size, 0, 0, segment.modified * 1_000_000)
