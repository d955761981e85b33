"""The assignors of the consumer protocol, which run on the server: `uniform` (the default) and `range`.

uniform   spreads all partitions evenly over the members, and moves as few as it can: a member keeps what it has up to
          its share. Members with different subscriptions get partitions of their topics only, as evenly as possible
range     gives each member a range of each topic's partitions, so that partitions of one number of topics with as many
          partitions go to the same member

Ranges and shares are Kafka's. Which of several equal moves `uniform` makes may differ from Kafka's choice.

Source of the rules: org.apache.kafka.coordinator.group.assignor.UniformAssignor and RangeAssignor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

#: Partitions by topic id.
Assignment: TypeAlias = Mapping[str, frozenset[int]]
NO_PARTITIONS: Final[Assignment] = MappingProxyType({})

_Partition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedMember:
    """A member as an assignor sees it: the ids of the topics that it wants and that exist, and what it has."""

    member_id: str
    instance_id: str | None = None
    topic_ids: frozenset[str] = frozenset()
    current: Assignment = field(default_factory=lambda: NO_PARTITIONS)


Assignor: TypeAlias = Callable[[Sequence[AssignedMember], Mapping[str, int]], dict[str, Assignment]]


def assign_range(members: Sequence[AssignedMember], counts: Mapping[str, int]) -> dict[str, Assignment]:
    """The assignment by member id; `counts` are the numbers of partitions by topic id."""
    in_order = sorted(members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id))
    assigned: dict[str, dict[str, frozenset[int]]] = {each.member_id: {} for each in members}
    for topic_id in sorted({topic_id for each in members for topic_id in each.topic_ids}):
        subscribed = [each.member_id for each in in_order if topic_id in each.topic_ids]
        share, extra = divmod(counts[topic_id], len(subscribed))
        start = 0
        for index, member_id in enumerate(subscribed):
            end = start + share + (index < extra)
            if end > start:
                assigned[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(assigned)


def assign_uniform(members: Sequence[AssignedMember], counts: Mapping[str, int]) -> dict[str, Assignment]:
    """The assignment by member id; `counts` are the numbers of partitions by topic id."""
    kept = _kept_partitions(members, counts)
    is_same = len({each.topic_ids for each in members}) <= 1
    owned = _assign_equal(kept, members, counts) if is_same else _assign_different(kept, members, counts)
    return {member_id: _by_topic(partitions) for member_id, partitions in owned.items()}


def _kept_partitions(members: Sequence[AssignedMember], counts: Mapping[str, int]) -> dict[str, list[_Partition]]:
    """What each member has and may keep, each partition with one member."""
    taken: set[_Partition] = set()
    kept: dict[str, list[_Partition]] = {}
    for member in members:
        mine = kept[member.member_id] = []
        for topic_id in sorted(member.topic_ids.intersection(member.current)):
            for number in sorted(member.current[topic_id]):
                if number < counts[topic_id] and (topic_id, number) not in taken:
                    taken.add((topic_id, number))
                    mine.append((topic_id, number))
    return kept


def _unowned(
    owned: Mapping[str, Iterable[_Partition]], topic_ids: Iterable[str], counts: Mapping[str, int]
) -> list[_Partition]:
    taken = {each for partitions in owned.values() for each in partitions}
    every = ((topic_id, number) for topic_id in topic_ids for number in range(counts[topic_id]))
    return [each for each in every if each not in taken]


def _assign_equal(
    kept: dict[str, list[_Partition]], members: Sequence[AssignedMember], counts: Mapping[str, int]
) -> dict[str, list[_Partition]]:
    """All members want the same topics: each gets its share, some of them one partition more."""
    topic_ids = members[0].topic_ids if members else frozenset[str]()
    share, extra = divmod(sum(counts[each] for each in topic_ids), max(len(members), 1))
    # Those that have most get the extra partitions, so that fewer move.
    in_order = sorted(kept, key=lambda member_id: -len(kept[member_id]))
    limits = {member_id: share + (index < extra) for index, member_id in enumerate(in_order)}
    owned = {member_id: partitions[: limits[member_id]] for member_id, partitions in kept.items()}
    unowned = iter(_unowned(owned, sorted(topic_ids), counts))
    for member_id, mine in owned.items():
        while len(mine) < limits[member_id]:
            mine.append(next(unowned))
    return owned


def _assign_different(
    kept: dict[str, list[_Partition]], members: Sequence[AssignedMember], counts: Mapping[str, int]
) -> dict[str, list[_Partition]]:
    """Give each free partition to the subscriber with the fewest, then move partitions while that evens them out."""
    subscribers: dict[str, list[str]] = defaultdict(list)
    for member in members:
        for topic_id in member.topic_ids:
            subscribers[topic_id].append(member.member_id)
    owned = {member_id: set(partitions) for member_id, partitions in kept.items()}
    by_choice = sorted(subscribers, key=lambda topic_id: (len(subscribers[topic_id]), topic_id))
    for partition in _unowned(owned, by_choice, counts):
        fewest = min(subscribers[partition[0]], key=lambda member_id: (len(owned[member_id]), member_id))
        owned[fewest].add(partition)
    _even_out(owned, subscribers)
    return {member_id: sorted(partitions) for member_id, partitions in owned.items()}


def _even_out(owned: dict[str, set[_Partition]], subscribers: Mapping[str, Sequence[str]]) -> None:
    """Move one partition at a time from a member to another that has at least two fewer, until there is none.

    Each move lowers the sum of the squares of the members' numbers of partitions, so this ends.
    """
    has_moved = True
    while has_moved:
        has_moved = False
        for member_id in sorted(owned, key=lambda each: (-len(owned[each]), each)):
            while (move := _best_move(member_id, owned, subscribers)) is not None:
                partition, to = move
                owned[member_id].discard(partition)
                owned[to].add(partition)
                has_moved = True


def _best_move(
    member_id: str, owned: Mapping[str, set[_Partition]], subscribers: Mapping[str, Sequence[str]]
) -> tuple[_Partition, str] | None:
    best: tuple[int, str, _Partition] | None = None
    mine = owned[member_id]
    for topic_id in {topic_id for topic_id, _ in mine}:
        to = min(subscribers[topic_id], key=lambda each: (len(owned[each]), each))
        if len(owned[to]) + 1 < len(mine) and (best is None or len(owned[to]) < best[0]):
            best = len(owned[to]), to, max(each for each in mine if each[0] == topic_id)
    return None if best is None else (best[2], best[1])


def _by_topic(partitions: Iterable[_Partition]) -> dict[str, frozenset[int]]:
    grouped: dict[str, set[int]] = defaultdict(set)
    for topic_id, number in partitions:
        grouped[topic_id].add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in grouped.items()}


#: By the name that clients ask for; the first is the default.
ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType({"uniform": assign_uniform, "range": assign_range})
DEFAULT_ASSIGNOR: Final = next(iter(ASSIGNORS))
