"""The cleaner's plan covers what Kafka's cleaner would clean, in groups of segments that fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.cleaner.plan import CleanPlan, group_segments, plan_cleaning
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.segment.stored import StoredSegment

NOW_MS = 1_000_000
COMPACT = LogConfig(cleanup_policy=("compact",))


def segments(*bases: int, size_bytes: int = 100) -> list[StoredSegment]:
    following = [*bases[1:], bases[-1] + 10]
    return [
        StoredSegment(base, after, size_bytes, 8, 12, base * 1_000_000)
        for base, after in zip(bases, following, strict=True)
    ]


def state(active: int = 300, *, start: int = 0, unstable: int = -1) -> LogState:
    return LogState(
        log_start_offset=start, log_end_offset=active + 50, active_base_offset=active, first_unstable_offset=unstable
    )


def plan(
    closed: list[StoredSegment],
    log: LogState,
    config: LogConfig = COMPACT,
    *,
    checkpoint: int | None = None,
    largest: dict[int, int] | None = None,
    first: dict[int, int] | None = None,
) -> CleanPlan:
    return plan_cleaning(
        closed,
        log,
        config,
        checkpoint_offset=checkpoint,
        now_ms=NOW_MS,
        largest_timestamp_ms=lambda each: (largest or {})[each.base_offset],
        first_timestamp_ms=lambda each: (first or {})[each.base_offset],
    )


def test_all_closed_segments_are_dirty_without_checkpoint() -> None:
    found = plan(segments(0, 100, 200), state())
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 300)
    assert (found.clean_bytes, found.cleanable_bytes, found.dirty_ratio) == (0, 300, 1.0)
    assert not found.resets_checkpoint


def test_bytes_below_checkpoint_count_as_clean() -> None:
    found = plan(segments(0, 100, 200), state(), checkpoint=200)
    assert (found.clean_bytes, found.cleanable_bytes) == (200, 100)
    assert found.dirty_ratio == pytest.approx(1 / 3)
    assert [each.base_offset for each in found.segments] == [0, 100, 200]


def test_log_clean_up_to_active_segment_needs_no_cleaning() -> None:
    found = plan(segments(0, 100), state(200), checkpoint=200)
    assert (found.clean_bytes, found.cleanable_bytes, found.dirty_ratio) == (200, 0, 0.0)
    assert not found.needs_cleaning(0.0)
    inside = plan(segments(0, 100), state(200), checkpoint=230)
    assert (inside.first_dirty_offset, inside.cleanable_bytes) == (230, 0)
    assert not inside.needs_cleaning(0.0)


@pytest.mark.parametrize("checkpoint", [10, 400])
def test_checkpoint_outside_log_is_reset(checkpoint: int) -> None:
    found = plan(segments(0, 100, 200), state(start=120), checkpoint=checkpoint)
    assert (found.first_dirty_offset, found.resets_checkpoint) == (120, True)
    assert found.cleanable_bytes == 200


def test_segments_from_open_transaction_on_are_not_cleaned() -> None:
    found = plan(segments(0, 100, 200), state(unstable=150))
    assert found.first_uncleanable_offset == 100  # the whole segment that the transaction begins in stays
    assert found.cleanable_bytes == 100


def test_active_segment_is_not_cleaned() -> None:
    found = plan([], state(0))
    assert (found.first_uncleanable_offset, found.cleanable_bytes, found.dirty_ratio) == (0, 0, 0.0)


def test_segments_within_min_compaction_lag_are_not_cleaned() -> None:
    config = replace(COMPACT, min_compaction_lag_ms=1000)
    largest = {0: NOW_MS - 5000, 100: NOW_MS - 999, 200: NOW_MS - 5000}
    assert plan(segments(0, 100, 200), state(), config, largest=largest).first_uncleanable_offset == 100
    largest[100] = NOW_MS - 1000
    assert plan(segments(0, 100, 200), state(), config, largest=largest).first_uncleanable_offset == 300


def test_exceeded_max_compaction_lag_forces_cleaning() -> None:
    config = replace(COMPACT, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=0.9)
    first = {0: 5, 100: NOW_MS - 1000, 200: NOW_MS}
    due = plan(segments(0, 100, 200), state(), config, checkpoint=100, first=first)
    assert not due.is_overdue
    first[100] -= 1
    overdue = plan(segments(0, 100, 200), state(), config, checkpoint=100, first=first)
    assert overdue.is_overdue
    assert overdue.needs_cleaning(0.9)
    assert not due.needs_cleaning(0.9)
    assert due.needs_cleaning(0.5)
    untimed = plan(segments(0, 100), state(), config, first={0: -1, 100: 0})
    assert not untimed.is_overdue


def bases(groups: list[tuple[StoredSegment, ...]]) -> list[list[int]]:
    return [[each.base_offset for each in group] for group in groups]


def test_groups_fit_one_segment_and_its_indexes() -> None:
    config = replace(COMPACT, segment_bytes=300)
    found = group_segments(segments(0, 10, 20, 30, 40), config, first_uncleanable_offset=50)
    assert bases(found) == [[0, 10, 20], [30, 40]]
    config = replace(COMPACT, segment_index_bytes=24)  # two time indexes of 12 bytes
    assert bases(group_segments(segments(0, 10, 20), config, first_uncleanable_offset=50)) == [[0, 10], [20]]
    too_large = segments(0, size_bytes=500) + segments(10)
    assert bases(group_segments(too_large, replace(COMPACT, segment_bytes=300), first_uncleanable_offset=50)) == [
        [0],
        [10],
    ]


def test_offsets_of_group_fit_relative_offsets_of_index() -> None:
    far = 1 << 31
    closed = segments(0, 100, far)
    assert bases(group_segments(closed, COMPACT, first_uncleanable_offset=far + 5)) == [[0, 100], [far]]
    closed = segments(1, 100, far)
    assert bases(group_segments(closed, COMPACT, first_uncleanable_offset=far + 1)) == [[1, 100, far]]
    empty = [*segments(0, 100), StoredSegment(far, far + 5, 0, 0, 0, 0)]
    assert bases(group_segments(empty, COMPACT, first_uncleanable_offset=far + 5)) == [[0, 100, far]]
