"""Which remote segments count: examples of Kafka's own tests, and a plain model of the rule."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.tiered.segments import (
    RemoteSegment,
    RemoteSegmentState,
    clamp_epochs,
    first_remote_offset,
    highest_remote_offset,
    is_within_leader_epochs,
    readable_segments,
    with_records,
)

#: RemoteLogManagerTest.testRemoteSegmentWithinLeaderEpochs (Kafka 4.1).
FINISHED = RemoteSegmentState.COPY_SEGMENT_FINISHED
LOG = ((0, 0), (1, 10), (2, 20), (3, 30), (4, 40), (5, 50), (7, 70))


def epochs(*pairs: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*pair) for pair in pairs)


def segment(
    start: int, last: int, *own: tuple[int, int], state: RemoteSegmentState = FINISHED, name: str = "a"
) -> RemoteSegment:
    return RemoteSegment(
        segment_id=name, start_offset=start, last_offset=last, size_bytes=1, leader_epochs=epochs(*own), state=state
    )


@pytest.mark.parametrize(
    ("start", "last", "own", "expected"),
    [
        (15, 35, ((1, 15), (2, 20), (3, 30)), True),
        (15, 19, ((1, 15),), True),
        (0, 5, ((0, 0),), True),
        (70, 75, ((7, 70),), True),
        (0, 5, ((1, 0),), False),
        (15, 35, ((1, 15), (2, 20), (3, 31)), False),
        (5, 15, ((1, 5),), False),
        (15, 35, ((1, 15), (2, 20), (3, 30), (4, 35)), False),
        (15, 35, ((1, 15), (3, 20)), False),
        (15, 35, ((0, 15),), False),
        (15, 99, ((1, 15), (2, 20), (3, 30), (4, 40), (5, 50), (7, 70)), False),
        (55, 85, ((5, 55), (6, 70), (7, 70)), True),
        (80, 89, ((7, 80),), True),
        (80, 90, ((7, 80),), False),
        (55, 85, ((5, 55), (6, 60), (7, 70)), False),
        (75, 85, ((8, 75),), False),
    ],
)
def test_segment_is_of_the_log_as_in_kafkas_tests(
    start: int, last: int, own: tuple[tuple[int, int], ...], expected: bool
) -> None:
    assert is_within_leader_epochs(segment(start, last, *own), 90, epochs(*LOG)) is expected


def test_segment_may_begin_in_epochs_that_the_log_has_lost_from_its_start() -> None:
    log = epochs((7, 51), (9, 100))
    assert is_within_leader_epochs(segment(14, 150, (5, 14), (7, 15), (9, 100)), 200, log)
    assert not is_within_leader_epochs(segment(5, 50, (5, 5)), 200, log)
    assert not is_within_leader_epochs(segment(14, 150, (5, 14), (7, 15), (8, 90), (9, 100)), 200, log)


def test_only_finished_copies_are_read_and_none_inside_another() -> None:
    found = readable_segments(
        [
            segment(0, 9, (0, 0), name="a"),
            segment(10, 19, (0, 10), name="b"),
            segment(10, 14, (0, 10), name="inside"),
            segment(15, 29, (0, 15), name="c"),
            segment(16, 18, (0, 16), name="inside-c"),
            segment(30, 39, (0, 30), name="copying", state=RemoteSegmentState.COPY_SEGMENT_STARTED),
            segment(40, 49, (0, 40), name="deleting", state=RemoteSegmentState.DELETE_SEGMENT_STARTED),
            segment(50, 59, (0, 50), name="d"),
        ],
        log_end_offset=60,
        epochs=epochs((0, 0)),
    )
    assert [each.segment_id for each in found] == ["a", "b", "c", "d"]


def test_highest_remote_offset_is_that_of_the_latest_epoch_and_within_it() -> None:
    log = epochs((0, 0), (2, 100), (5, 200))
    assert highest_remote_offset({}, log, 300) == -1
    assert highest_remote_offset({0: 50}, log, 300) == 50
    assert highest_remote_offset({0: 150}, log, 300) == 99
    assert highest_remote_offset({0: 99, 2: 180, 3: 400}, log, 300) == 180
    assert highest_remote_offset({5: 299}, log, 250) == 249


def test_first_remote_offset_is_of_the_earliest_epoch_with_segments() -> None:
    log = epochs((2, 100), (5, 200))
    assert first_remote_offset([], log) is None
    assert first_remote_offset([segment(5, 9, (0, 5))], log) is None
    segments = [segment(150, 160, (2, 150)), segment(90, 149, (0, 90), (2, 100)), segment(200, 240, (5, 200))]
    assert first_remote_offset(segments, log) == 90
    assert first_remote_offset(segments[2:], log) == 200


# The model: a log is one leader epoch for each offset. A segment is of the log if the log has the same epoch at each of
# its offsets from the log's first one on, and in the log's first epoch the log may have begun anywhere.


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, list[int]]]]:
    """The epochs of a log's offsets, and segments of it or of a log that was cut off somewhere: (start, epochs)."""
    own = sorted(draw(st.lists(st.integers(0, 5), min_size=1, max_size=25)))
    segments = []
    for _ in range(draw(st.integers(0, 8))):
        same = draw(st.integers(0, len(own)))
        after = draw(st.lists(st.integers(own[same - 1] if same else 0, 6), max_size=10))
        other = own[:same] + sorted(after)
        if other:
            start = draw(st.integers(0, len(other) - 1))
            segments.append((start, other[start : draw(st.integers(start + 1, len(other)))]))
    return own, segments


def starts_of(offsets: Sequence[int], first: int = 0) -> tuple[EpochEntry, ...]:
    """The epochs of offsets as Kafka keeps them."""
    return tuple(
        EpochEntry(epoch, first + at) for at, epoch in enumerate(offsets) if at == 0 or offsets[at - 1] != epoch
    )


@given(histories())
@example(([1, 1], [(0, [0, 1])]))
def test_segments_are_chosen_as_the_model_chooses_them(history: tuple[list[int], list[tuple[int, list[int]]]]) -> None:
    own, copies = history
    segments = [
        segment(start, start + len(found) - 1, *starts_of(found, start), name=str(number))
        for number, (start, found) in enumerate(copies)
    ]
    expected = {str(number) for number, (start, found) in enumerate(copies) if own[start : start + len(found)] == found}
    is_within = {each.segment_id for each in segments if is_within_leader_epochs(each, len(own), starts_of(own))}
    assert is_within == expected
    found = readable_segments(segments, log_end_offset=len(own), epochs=starts_of(own))
    covered = {
        offset
        for each in segments
        if each.segment_id in expected
        for offset in range(each.start_offset, each.end_offset)
    }
    assert {offset for each in found for offset in range(each.start_offset, each.end_offset)} == covered
    starts, ends = [each.start_offset for each in found], [each.last_offset for each in found]
    assert starts == sorted(set(starts))
    assert ends == sorted(set(ends))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.data())
def test_clamped_epochs_are_those_of_the_segments_offsets(offsets: list[int], data: st.DataObject) -> None:
    offsets.sort()
    start = data.draw(st.integers(0, len(offsets) - 1))
    last = data.draw(st.integers(start, len(offsets) - 1))
    assert clamp_epochs(starts_of(offsets), start, last) == starts_of(offsets[start : last + 1], start)
    assert with_records([*starts_of(offsets), EpochEntry(9, len(offsets)), EpochEntry(8, len(offsets))])[-1].epoch == 9
