"""What a group's members have together, kept up to date with each change of a member: looking it up costs no loop.

    instances         the member of each instance id
    owners            the members that have a partition, or have not given it up yet; more than one only if the records
                      of a group that was upgraded say so
    subscriptions     how many members have each subscription: names of topics, and a regular expression
    assignors         how many members ask for each assignor

Source: the maps of org.apache.kafka.coordinator.group.modern.ModernGroup and modern.consumer.ConsumerGroup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias, TypeVar

from pyspark_kafkalog.groups.layered_map import LayeredMap

#: Partitions by topic id.
Assignment: TypeAlias = Mapping[str, frozenset[int]]
NO_PARTITIONS: Final[Assignment] = MappingProxyType({})
#: Names of topics, and a regular expression.
Subscription: TypeAlias = "tuple[tuple[str, ...], str | None]"
_NOBODY: Final[tuple[str, ...]] = ()
_K = TypeVar("_K")


class IndexedMember(Protocol):
    """What the index has of a member."""

    @property
    def member_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...
    @property
    def topics(self) -> tuple[str, ...]: ...
    @property
    def regex(self) -> str | None: ...
    @property
    def assignor(self) -> str | None: ...
    @property
    def assigned(self) -> Assignment: ...
    @property
    def revoking(self) -> Assignment: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupIndex:
    """The index of one version of a group."""

    instances: LayeredMap[str, str] = field(default_factory=LayeredMap)
    owners: LayeredMap[tuple[str, int], tuple[str, ...]] = field(default_factory=LayeredMap)
    subscriptions: LayeredMap[Subscription, int] = field(default_factory=LayeredMap)
    regexes: LayeredMap[str, int] = field(default_factory=LayeredMap)
    assignors: LayeredMap[str, int] = field(default_factory=LayeredMap)

    def after(self, changes: Iterable[tuple[IndexedMember | None, IndexedMember | None]]) -> GroupIndex:
        """The index after changes of members, each given as it was and as it is."""
        changed = [each for each in changes if each[0] is not each[1]]
        if not changed:
            return self
        before = [old for old, _ in changed if old is not None]
        after = [new for _, new in changed if new is not None]
        return GroupIndex(
            instances=self._instances_after(before, after),
            owners=self._owners_after(changed),
            subscriptions=_counted(self.subscriptions, map(_subscription, before), map(_subscription, after)),
            regexes=_counted(self.regexes, map(_regex, before), map(_regex, after)),
            assignors=_counted(self.assignors, map(_assignor, before), map(_assignor, after)),
        )

    def same_topics(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names in the tuple that members with the same subscription have, so that they share it."""
        return next((each for each, _ in self.subscriptions if each == names), names)

    def is_free_for(self, member_id: str, partition: tuple[str, int]) -> bool:
        """Whether no other member has the partition."""
        return all(each == member_id for each in self.owners.get(partition, _NOBODY))

    def _instances_after(self, before: Iterable[IndexedMember], after: Iterable[IndexedMember]) -> LayeredMap[str, str]:
        changes: dict[str, str | None] = {
            each.instance_id: None
            for each in before
            if each.instance_id is not None and self.instances.get(each.instance_id) == each.member_id
        }
        changes |= {each.instance_id: each.member_id for each in after if each.instance_id is not None}
        return self.instances.with_changes(changes)

    def _owners_after(
        self, changed: Iterable[tuple[IndexedMember | None, IndexedMember | None]]
    ) -> LayeredMap[tuple[str, int], tuple[str, ...]]:
        changes: dict[tuple[str, int], tuple[str, ...] | None] = {}

        def owners_of(partition: tuple[str, int]) -> tuple[str, ...]:
            found = changes[partition] if partition in changes else self.owners.get(partition)
            return found or _NOBODY

        for old, new in changed:
            had, has = _partitions(old), _partitions(new)
            for member, topics, others in ((old, had, has), (new, has, had)):
                if member is None:
                    continue
                mine = (member.member_id,)
                for topic_id, numbers in topics.items():
                    for number in numbers - others.get(topic_id, frozenset()):
                        partition = topic_id, number
                        owners = owners_of(partition)
                        if member is new:
                            changes[partition] = owners + mine if owners else mine
                        elif owners == mine:
                            changes[partition] = None
                        else:
                            changes[partition] = tuple(each for each in owners if each != member.member_id) or None
        return self.owners.with_changes(changes)


def _partitions(member: IndexedMember | None) -> Mapping[str, frozenset[int]]:
    """What the member has, or has not given up yet."""
    if member is None:
        return {}
    if not member.revoking:
        return member.assigned
    both = dict(member.assigned)
    for topic_id, numbers in member.revoking.items():
        both[topic_id] = both.get(topic_id, frozenset()) | numbers
    return both


def _subscription(member: IndexedMember) -> Subscription:
    return member.topics, member.regex


def _regex(member: IndexedMember) -> str | None:
    return member.regex or None


def _assignor(member: IndexedMember) -> str | None:
    return member.assignor


def _counted(
    counts: LayeredMap[_K, int], before: Iterable[_K | None], after: Iterable[_K | None]
) -> LayeredMap[_K, int]:
    more: Counter[_K] = Counter(each for each in after if each is not None)
    more.subtract(each for each in before if each is not None)
    return counts.with_changes({key: counts.get(key, 0) + count or None for key, count in more.items() if count})
