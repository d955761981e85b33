"""What a member of a consumer group may have next: it gives up partitions before others get them.

    current ∩ target                       stays assigned
    current - target                       is revoked first: the member stays in its epoch until it does not own it
    target - current, free                 is assigned
    target - current, another's            is unreleased: the member waits for it, in the target's epoch

Source of the rules: org.apache.kafka.coordinator.group.modern.consumer.CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark_kafkalog.groups.consumer_group import NO_PARTITIONS, Assignment, ConsumerMember, MemberState


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What a member's next assignment depends on.

    `owned` is what the member says that it has, None if it did not say. `subscribed_ids` are the topics that it
    subscribes to now. `is_released`: whether no other member has the partition.
    """

    target_epoch: int
    target: Assignment
    owned: Assignment | None
    subscribed_ids: frozenset[str]
    has_subscription_changed: bool
    is_released: Callable[[str, int], bool]


def reconcile(member: ConsumerMember, at: Reconciliation) -> ConsumerMember | None:
    """The member with its next assignment, itself if nothing changes; None: it must join again without partitions."""
    if member.is_reconciled_to(at.target_epoch) and not at.has_subscription_changed:
        return member
    match member.state:
        case MemberState.STABLE if member.epoch == at.target_epoch:
            return _without_unsubscribed(member, at)
        case MemberState.STABLE | MemberState.UNRELEASED_PARTITIONS:
            return _next(member, at, member.epoch)
        case MemberState.UNREVOKED_PARTITIONS:
            if _owns_any(at.owned, member.revoking):
                return _without_unsubscribed(member, at) if at.has_subscription_changed else member
            # The target of the next epoch may not have been computed yet.
            return _next(member, at, min(member.epoch + 1, at.target_epoch))
        case _:
            return _next(member, at, at.target_epoch) if at.owned == {} else None


def _next(member: ConsumerMember, at: Reconciliation, epoch: int) -> ConsumerMember:
    target = {topic_id: numbers for topic_id, numbers in at.target.items() if topic_id in at.subscribed_ids}
    assigned: dict[str, frozenset[int]] = {}
    revoking: dict[str, frozenset[int]] = {}
    added: dict[str, frozenset[int]] = {}
    has_unreleased = False
    for topic_id in sorted(target.keys() | member.assigned.keys()):
        wanted = target.get(topic_id, frozenset())
        current = member.assigned.get(topic_id, frozenset())
        pending = member.revoking.get(topic_id, frozenset())
        _put(assigned, topic_id, current & wanted)
        _put(revoking, topic_id, current - wanted)
        free = {each for each in wanted - current if each in pending or at.is_released(topic_id, each)}
        has_unreleased |= len(free) < len(wanted - current)
        _put(added, topic_id, frozenset(free))
    if revoking and _owns_any(at.owned, revoking):
        return _moved(member, MemberState.UNREVOKED_PARTITIONS, epoch, assigned, revoking)
    for topic_id, numbers in added.items():
        assigned[topic_id] = assigned.get(topic_id, frozenset()) | numbers
    state = MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE
    return _moved(member, state, at.target_epoch, assigned, NO_PARTITIONS)


def _moved(
    member: ConsumerMember, state: MemberState, epoch: int, assigned: Assignment, revoking: Assignment
) -> ConsumerMember:
    previous = member.previous_epoch if epoch == member.epoch else member.epoch
    return replace(
        member, state=state, epoch=epoch, previous_epoch=previous, assigned=dict(assigned), revoking=dict(revoking)
    )


def _without_unsubscribed(member: ConsumerMember, at: Reconciliation) -> ConsumerMember:
    """Take away at once what the member has of topics that it has just unsubscribed from."""
    gone = {topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id not in at.subscribed_ids}
    if not gone:
        return member
    assigned = {topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id not in gone}
    revoking = dict(member.revoking)
    for topic_id, numbers in gone.items():
        revoking[topic_id] = revoking.get(topic_id, frozenset()) | numbers
    if _owns_any(at.owned, revoking):
        return replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=assigned, revoking=revoking)
    return replace(member, assigned=assigned)


def _owns_any(owned: Assignment | None, partitions: Assignment) -> bool:
    """Whether the member has one of the partitions, as far as it said."""
    if not partitions:
        return False
    return owned is None or any(numbers & owned.get(topic_id, frozenset()) for topic_id, numbers in partitions.items())


def _put(into: dict[str, frozenset[int]], topic_id: str, numbers: frozenset[int]) -> None:
    if numbers:
        into[topic_id] = numbers
