"""A merge keeps the limits of segments and the boundaries, and repeated merging ends."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.merge import plan_merge
from pyspark_kafkalog.storage.segment.stored import StoredSegment

CONFIG = LogConfig(segment_bytes=1000, segment_index_bytes=400)


@st.composite
def logs(draw: st.DrawFn) -> list[StoredSegment]:
    segments = []
    base = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 30))):
        following = base + draw(st.sampled_from([1, 10, 100, 1 << 30]))
        size = draw(st.integers(0, 1000))
        index, time_index = draw(st.integers(0, 25)) * 8, draw(st.integers(0, 17)) * 12
        segments.append(StoredSegment(base, following, size, index, time_index, 0))
        base = following + draw(st.sampled_from([0, 0, 0, 0, 7]))
    return segments


def joined(group: tuple[StoredSegment, ...]) -> StoredSegment:
    return StoredSegment(
        group[0].base_offset,
        group[-1].end_offset,
        sum(each.size_bytes for each in group),
        sum(each.offset_index_bytes for each in group),
        sum(each.time_index_bytes for each in group),
        0,
    )


@settings(max_examples=examples(500), deadline=None)
@given(segments=logs(), boundaries=st.lists(st.integers(0, 1000), max_size=2))
def test_merge_groups_keep_limits_and_boundaries(segments: list[StoredSegment], boundaries: list[int]) -> None:
    groups = plan_merge(segments, CONFIG, boundaries=boundaries)
    chosen = [each for group in groups for each in group]
    assert chosen == [each for each in segments if each in chosen]
    for group in groups:
        assert len(group) > 1
        for before, after in itertools.pairwise(group):
            assert before.end_offset == after.base_offset
            assert not any(before.base_offset < boundary <= after.base_offset for boundary in boundaries)
        whole = joined(group)
        assert whole.size_bytes <= CONFIG.segment_bytes
        assert max(whole.offset_index_bytes, whole.time_index_bytes) + 8 * len(group) <= CONFIG.segment_index_bytes
        assert whole.end_offset - whole.base_offset <= 1 << 31


@settings(max_examples=examples(300), deadline=None)
@given(segments=logs())
def test_repeated_merging_ends_and_copies_bounded_bytes(segments: list[StoredSegment]) -> None:
    total, copied = sum(each.size_bytes for each in segments), 0
    for _ in range(12):
        groups = plan_merge(segments, CONFIG)
        if not groups:
            break
        copied += sum(each.size_bytes for group in groups for each in group)
        by_base = {group[0].base_offset: joined(group) for group in groups}
        gone = {each.base_offset for group in groups for each in group[1:]}
        segments = [by_base.get(each.base_offset, each) for each in segments if each.base_offset not in gone]
    assert not plan_merge(segments, CONFIG)
    assert copied <= 8 * total
