"""The server's assignors: every partition has one owner, shares are even, and members keep what they can."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from pyspark_kafkalog.groups.consumer_group import Assignment
from pyspark_kafkalog.server.groups.assignors import AssignedMember, assign_range, assign_uniform


def member(
    name: str, topics: str = "ab", current: Assignment | None = None, instance: str | None = None
) -> AssignedMember:
    return AssignedMember(member_id=name, instance_id=instance, topic_ids=frozenset(topics), current=current or {})


def sizes(assigned: Mapping[str, Assignment]) -> dict[str, int]:
    return {name: sum(map(len, parts.values())) for name, parts in assigned.items()}


def test_range_gives_co_partitioned_topics_to_the_same_member() -> None:
    assigned = assign_range([member("m2"), member("m1"), member("m0", instance="z")], {"a": range(4), "b": range(4)})
    assert assigned["m0"] == {"a": {0, 1}, "b": {0, 1}}  # static members come first
    assert assigned["m1"] == {"a": {2}, "b": {2}}
    assert assigned["m2"] == {"a": {3}, "b": {3}}


def test_uniform_moves_only_what_a_new_member_needs() -> None:
    first = assign_uniform([member("m1"), member("m2")], {"a": range(4), "b": range(2)})
    assert sizes(first) == {"m1": 3, "m2": 3}
    second = assign_uniform(
        [member("m1", current=first["m1"]), member("m2", current=first["m2"]), member("m3")],
        {"a": range(4), "b": range(2)},
    )
    assert sizes(second) == {"m1": 2, "m2": 2, "m3": 2}
    for name in ("m1", "m2"):
        assert all(second[name][topic] <= first[name][topic] for topic in second[name])


def test_uniform_takes_back_a_deleted_topic_and_partitions_that_two_members_claim() -> None:
    claims = [
        member("m1", "a", {"a": frozenset({0, 1}), "gone": frozenset({0})}),
        member("m2", "a", {"a": frozenset({1, 7})}),
    ]
    assert assign_uniform(claims, {"a": range(2)}) == {"m1": {"a": {0}}, "m2": {"a": {1}}}


@pytest.mark.parametrize("seed", range(30))
def test_every_partition_with_a_subscriber_has_one_owner_and_no_move_would_even_out(seed: int) -> None:
    draw = random.Random(seed)
    exist = {topic: tuple(sorted(draw.sample(range(12), draw.randint(0, 9)))) for topic in "abcd"}
    members = [
        member(f"m{each}", "".join(draw.sample("abcd", draw.randint(0, 4)))) for each in range(draw.randint(1, 6))
    ]
    for assign in (assign_uniform, assign_range):
        assigned = assign(members, exist)
        owned = [(topic, each) for parts in assigned.values() for topic, numbers in parts.items() for each in numbers]
        subscribed = {topic for each in members for topic in each.topic_ids}
        assert sorted(owned) == sorted((topic, each) for topic in subscribed for each in exist[topic])
        assert all(set(assigned[each.member_id]) <= each.topic_ids for each in members)
    assigned = assign_uniform(members, exist)
    total = sizes(assigned)
    for giver in members:
        for taker in members:
            if any(topic in taker.topic_ids for topic in assigned[giver.member_id]):
                assert total[giver.member_id] <= total[taker.member_id] + 1
