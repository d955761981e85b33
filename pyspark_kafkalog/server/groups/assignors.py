"""The assignors of the consumer protocol, which run on the server: `uniform` (the default) and `range`.

uniform   spreads all partitions evenly over the members, and moves as few as it can: a member keeps what it has up to
          its share. Members with different subscriptions get partitions of their topics only, as evenly as possible
range     gives each member a range of each topic's partitions, so that partitions of one number of topics with as many
          partitions go to the same member

Ranges and shares are Kafka's. Which of several equal moves `uniform` makes may differ from Kafka's choice.

Source of the rules: org.apache.kafka.coordinator.group.assignor.UniformAssignor and RangeAssignor.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from pyspark_kafkalog.groups.consumer_group import NO_PARTITIONS, Assignment


class AssignedMember(NamedTuple):
    """A member as an assignor sees it: the ids of the topics that it wants and that exist, and what it has.

    A tuple: each new target makes one for each member, and a frozen dataclass takes several times as long.
    """

    member_id: str
    instance_id: str | None = None
    topic_ids: frozenset[str] = frozenset()
    current: Assignment = NO_PARTITIONS


Assignor: TypeAlias = Callable[[Sequence[AssignedMember], Mapping[str, Sequence[int]]], dict[str, Assignment]]


def assign_range(members: Sequence[AssignedMember], numbers: Mapping[str, Sequence[int]]) -> dict[str, Assignment]:
    """The assignment by member id; `numbers` are the partitions that exist, in order, by topic id."""
    in_order = sorted(members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id))
    assigned: dict[str, dict[str, frozenset[int]]] = {each.member_id: {} for each in members}
    for topic_ids, wants in _classes(members):
        subscribed = [each.member_id for each in in_order if each.topic_ids in wants]
        for topic_id in topic_ids:
            share, extra = divmod(len(numbers[topic_id]), len(subscribed))
            start = 0
            for index, member_id in enumerate(subscribed):
                end = start + share + (index < extra)
                if end == start:
                    break  # there are more members than partitions
                assigned[member_id][topic_id] = frozenset(numbers[topic_id][start:end])
                start = end
    return dict(assigned)


def assign_uniform(members: Sequence[AssignedMember], numbers: Mapping[str, Sequence[int]]) -> dict[str, Assignment]:
    """The assignment by member id; `numbers` are the partitions that exist, in order, by topic id.

    Members whose partitions do not change have their `current` in it, as the same object.
    """
    shares = _Shares(members, numbers)
    if len({each.topic_ids for each in members}) <= 1:
        _assign_equal(shares, sum(len(numbers[each]) for each in shares.free))
    else:
        _assign_different(shares, members)
    return shares.assignments()


def _classes(members: Sequence[AssignedMember]) -> list[tuple[list[str], frozenset[frozenset[str]]]]:
    """Topics with the same subscribers, in order, and the subscriptions that have them; those of few come first."""
    wants: dict[str, list[frozenset[str]]] = defaultdict(list)
    for topic_ids in {each.topic_ids for each in members}:
        for topic_id in topic_ids:
            wants[topic_id].append(topic_ids)
    by_wants: dict[frozenset[frozenset[str]], list[str]] = defaultdict(list)
    for topic_id in sorted(wants):
        by_wants[frozenset(wants[topic_id])].append(topic_id)
    return sorted(((topics, each) for each, topics in by_wants.items()), key=lambda each: (len(each[1]), each[0][0]))


class _Shares:
    """The owners of the partitions, beginning with what members have and may keep, each partition with one of them.

    `free` are the partitions without an owner, by topic id, and `sizes` the numbers of partitions by member id.
    """

    def __init__(self, members: Sequence[AssignedMember], numbers: Mapping[str, Sequence[int]]) -> None:
        topic_ids = frozenset[str]().union(*{each.topic_ids for each in members})
        self.free = {topic_id: set(numbers[topic_id]) for topic_id in sorted(topic_ids)}
        self.sizes: dict[str, int] = {}
        self._kept: dict[str, Assignment] = {}
        #: What members have whose partitions change.
        self._changed: dict[str, dict[str, set[int]]] = {}
        for each in members:
            self._keep(each)

    def _keep(self, member: AssignedMember) -> None:
        kept: dict[str, frozenset[int]] = {}
        size, is_whole = 0, True
        for topic_id, numbers in member.current.items():
            if topic_id not in member.topic_ids:
                is_whole = False
                continue
            free = self.free[topic_id]
            mine = numbers if numbers <= free else numbers & free
            is_whole &= mine is numbers
            if mine:
                free -= mine
                kept[topic_id] = mine
                size += len(mine)
        self._kept[member.member_id] = member.current if is_whole else kept
        self.sizes[member.member_id] = size

    def partitions(self, member_id: str) -> Mapping[str, Collection[int]]:
        changed = self._changed.get(member_id)
        return self._kept[member_id] if changed is None else changed

    def give(self, member_id: str, topic_id: str, number: int) -> None:
        """Give the member a partition that is free."""
        self.free[topic_id].discard(number)
        self._own(member_id).setdefault(topic_id, set()).add(number)
        self.sizes[member_id] += 1

    def take(self, member_id: str, topic_id: str, number: int) -> None:
        """Take a partition from the member, so that it is free."""
        numbers = self._own(member_id)[topic_id]
        numbers.discard(number)
        if not numbers:
            del self._own(member_id)[topic_id]
        self.free[topic_id].add(number)
        self.sizes[member_id] -= 1

    def _own(self, member_id: str) -> dict[str, set[int]]:
        own = self._changed.get(member_id)
        if own is None:
            own = self._changed[member_id] = {each: set(numbers) for each, numbers in self._kept[member_id].items()}
        return own

    def assignments(self) -> dict[str, Assignment]:
        changed = {
            member_id: {topic_id: frozenset(numbers) for topic_id, numbers in own.items() if numbers}
            for member_id, own in self._changed.items()
        }
        return {**self._kept, **changed}


def _assign_equal(shares: _Shares, count: int) -> None:
    """All members want the same topics: each gets its share, some of them one partition more."""
    share, extra = divmod(count, max(len(shares.sizes), 1))
    # Those that have most get the extra partitions, so that fewer move.
    in_order = sorted(shares.sizes, key=lambda member_id: -shares.sizes[member_id])
    limits = {member_id: share + (index < extra) for index, member_id in enumerate(in_order)}
    for member_id in in_order:
        if shares.sizes[member_id] <= share:
            break
        if shares.sizes[member_id] > limits[member_id]:
            has = shares.partitions(member_id)
            mine = [(topic_id, number) for topic_id in sorted(has) for number in sorted(has[topic_id])]
            for topic_id, number in mine[limits[member_id] :]:
                shares.take(member_id, topic_id, number)
    free = [(topic_id, number) for topic_id, numbers in shares.free.items() for number in sorted(numbers)]
    unowned = iter(free)
    for member_id, limit in limits.items():
        while shares.sizes[member_id] < limit:
            shares.give(member_id, *next(unowned))


def _assign_different(shares: _Shares, members: Sequence[AssignedMember]) -> None:
    """Give each free partition to the subscriber with the fewest, then move partitions while that evens them out."""
    subscribers: dict[str, _Fewest] = {}
    by_want: dict[frozenset[str], list[_Fewest]] = {each.topic_ids: [] for each in members}
    for topic_ids, wants in _classes(members):
        fewest = _Fewest(shares.sizes, [each.member_id for each in members if each.topic_ids in wants])
        subscribers.update(dict.fromkeys(topic_ids, fewest))
        for each in wants:
            by_want[each].append(fewest)
        for topic_id in topic_ids:
            for number in sorted(shares.free[topic_id]):
                shares.give(fewest.first(), topic_id, number)
    subscribed = {each.member_id: by_want[each.topic_ids] for each in members}
    _even_out(shares, subscribers, subscribed)


class _Fewest:
    """The one of some members that has the fewest partitions."""

    def __init__(self, sizes: Mapping[str, int], member_ids: Iterable[str]) -> None:
        self._sizes = sizes
        self._member_ids = member_ids
        self._heap: list[tuple[int, str]] = []

    def first(self) -> str:
        if not self._heap:
            self._heap = [(self._sizes[each], each) for each in self._member_ids]
            heapq.heapify(self._heap)
        while True:
            size, member_id = self._heap[0]
            if self._sizes[member_id] == size:
                return member_id
            heapq.heapreplace(self._heap, (self._sizes[member_id], member_id))

    def has_less(self, member_id: str) -> None:
        """Called when a member has fewer partitions than before; that one has more is noticed."""
        if self._heap:
            heapq.heappush(self._heap, (self._sizes[member_id], member_id))


def _even_out(shares: _Shares, subscribers: Mapping[str, _Fewest], subscribed: Mapping[str, Sequence[_Fewest]]) -> None:
    """Move one partition at a time from a member to another that has at least two fewer, until there is none.

    Each move lowers the sum of the squares of the members' numbers of partitions, so this ends.
    """
    sizes = shares.sizes
    has_moved = True
    while has_moved:
        has_moved = False
        least = min(sizes.values())
        for member_id in sorted(sizes, key=lambda each: (-sizes[each], each)):
            if sizes[member_id] <= least + 1:
                break
            while (move := _best_move(member_id, shares, subscribers)) is not None:
                topic_id, number, to = move
                shares.take(member_id, topic_id, number)
                for each in subscribed[member_id]:
                    each.has_less(member_id)
                shares.give(to, topic_id, number)
                has_moved = True


def _best_move(member_id: str, shares: _Shares, subscribers: Mapping[str, _Fewest]) -> tuple[str, int, str] | None:
    """A partition of the member, and who shall have it: the one with the fewest of all subscribers of its topics."""
    mine = shares.partitions(member_id)
    fewest = {subscribers[topic_id]: topic_id for topic_id in sorted(mine)}
    found = min(((shares.sizes[to := each.first()], to, topic_id) for each, topic_id in fewest.items()), default=None)
    if found is None or found[0] + 1 >= shares.sizes[member_id]:
        return None
    _, to, topic_id = found
    return topic_id, max(mine[topic_id]), to


#: By the name that clients ask for.
ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType({"uniform": assign_uniform, "range": assign_range})
