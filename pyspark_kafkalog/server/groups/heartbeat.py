"""The consumer protocol (KIP-848): what a heartbeat does to a group, as the records that it writes.

A member says what it subscribes to and owns, and gets its assignment. In one heartbeat: the member's subscription is
taken; if subscriptions or the partitions of topics have changed, the group's epoch rises and all members get new
targets; then the member takes its next step to its target, and gives up partitions before others get them:

    current ∩ target                       stays assigned
    current - target                       is revoked first: the member stays in its epoch until it does not own it
    target - current, free                 is assigned
    target - current, another's            is unreleased: the member waits for it, in the target's epoch

Everything here is a function of the group's state, the request, the topics and the time. Nothing is changed but by the
records, once they are in the log; a coordinator that takes over reads them and continues.

Source of the rules: the methods consumerGroup... of org.apache.kafka.coordinator.group.GroupMetadataManager,
modern.TargetAssignmentBuilder and modern.consumer.CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark_kafkalog.groups.consumer_group import (
    LEFT_FOR_A_WHILE,
    NO_PARTITIONS,
    Assignment,
    ConsumerGroup,
    ConsumerMember,
    GroupRecord,
    MemberState,
    ResolvedRegex,
    Topics,
    replay,
)
from pyspark_kafkalog.metadata.messages import internal_records as records
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.groups.assignors import ASSIGNORS, AssignedMember
from pyspark_kafkalog.server.request_errors import RequestError

_LEFT: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A ConsumerGroupHeartbeat; None means as before. `member_id` is never empty.

    `classic`: it is a JoinGroup of a member that uses the classic protocol. Then `epoch` is 0 for one without an id.
    `resolved` has the topics of the regular expressions of the group and of the request, if they were looked up.
    """

    member_id: str
    epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topics: tuple[str, ...] | None
    regex: str | None
    assignor: str | None
    owned: Assignment | None
    client_id: str
    client_host: str
    resolved: Mapping[str, ResolvedRegex]
    classic: records.ClassicMemberMetadata | None = None

    @property
    def is_full(self) -> bool:
        """Whether the member states all, as it does after an error; it is then told its assignment."""
        is_subscribed = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and is_subscribed and self.owned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult:
    """The records to write, the group after them, and the answer. `assignment` is None if it has not changed."""

    records: tuple[GroupRecord, ...]
    group: ConsumerGroup
    member_id: str
    member_epoch: int
    assignment: Assignment | None = None


def answered(group: ConsumerGroup, request: Heartbeat, topics: Topics) -> HeartbeatResult | None:
    """The answer to a heartbeat that changes nothing, as nearly all do, however large the group is; None: it does.

    Raises RequestError.
    """
    changes: list[GroupRecord] = []
    before = _member(group, request, changes)
    if changes or request.resolved or before.member_id not in group.members or group.epoch > group.target_epoch:
        return None
    member = _subscribed(before, request)
    is_same = member.topics == before.topics and _subscription_of(member) == _subscription_of(before)
    if not is_same or group.hash_of(topics) != group.metadata_hash:
        return None
    after = _reconciled(group, member, request, topics, has_changed=False)
    return _result(group, request, before, after, changes) if after == member else None


def heartbeat(group: ConsumerGroup, request: Heartbeat, topics: Topics, *, max_size: int) -> HeartbeatResult:
    """What the heartbeat of a member, also a new one, does. Raises RequestError."""
    if len(group.members) >= max_size and request.member_id not in group.members:
        raise RequestError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    changes: list[GroupRecord] = []
    before = _member(group, request, changes)
    group = replay(group, changes)
    subscribed = _subscribed(before, request)
    has_changed = set(subscribed.topics) != set(before.topics) or subscribed.regex != before.regex
    new: list[GroupRecord] = []
    if _subscription_of(subscribed) != _subscription_of(before) or before.member_id not in group.members:
        new.append(subscribed.subscription_record(group.group_id))
        group = replay(group, new)
    updates = _regex_updates(group, request.resolved)
    has_changed |= any(value is not None for _, value in updates)
    group = replay(group, updates)
    changes += [*new, *updates]
    group = _new_epoch(group, topics, changes, is_forced=has_changed)
    group = _new_targets(group, topics, changes)
    after = _reconciled(group, subscribed, request, topics, has_changed=has_changed)
    if after != subscribed:
        changes.append(after.current_record(group.group_id))
        group = replay(group, changes[-1:])
    return _result(group, request, before, after, changes)


def _result(
    group: ConsumerGroup,
    request: Heartbeat,
    before: ConsumerMember,
    after: ConsumerMember,
    changes: Iterable[GroupRecord],
) -> HeartbeatResult:
    is_told = request.epoch == 0 or request.is_full or after.assigned != before.assigned
    return HeartbeatResult(
        records=tuple(changes),
        group=group,
        member_id=after.member_id,
        member_epoch=after.epoch,
        assignment=after.assigned if is_told else None,
    )


# The member


def _member(group: ConsumerGroup, request: Heartbeat, changes: list[GroupRecord]) -> ConsumerMember:
    """The member as of now: known, new, or in the place of a static one that has left for a while."""
    is_joining = request.epoch == 0
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None:
            if not is_joining and request.classic is None:
                raise _unknown_member(group, request.member_id)
            return ConsumerMember(member_id=request.member_id)
        _check_epoch(member, request)
        return member
    held_by = group.static_members.get(request.instance_id)
    if not is_joining:
        if held_by is None:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
        _check_holder(held_by, request.member_id, request.instance_id)
        _check_epoch(group.members[held_by], request)
        return group.members[held_by]
    if held_by is None:
        return group.members.get(request.member_id) or ConsumerMember(member_id=request.member_id)
    if held_by == request.member_id and group.members[held_by].epoch != LEFT_FOR_A_WHILE:
        return group.members[held_by]  # it did not get the answer to its first request
    held = group.members[held_by]
    if held.epoch != LEFT_FOR_A_WHILE and held.classic is None and request.classic is None:
        raise RequestError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {held.instance_id} cannot join the group because the "
            f"instance id is owned by {held.member_id} member.",
        )
    return _take_over(group, held, request.member_id, changes)


def _take_over(
    group: ConsumerGroup, held: ConsumerMember, member_id: str, changes: list[GroupRecord]
) -> ConsumerMember:
    """Give the place of a static member to the same instance, which joins with another id."""
    new = replace(held, member_id=member_id, epoch=0, previous_epoch=0)
    target = group.targets.get(held.member_id, NO_PARTITIONS)
    changes += _removal(group, held)
    changes.append(new.subscription_record(group.group_id))
    changes.append(target_record(group.group_id, member_id, target))
    changes.append(new.current_record(group.group_id))
    return new


def _check_holder(held_by: str, member_id: str, instance_id: str) -> None:
    if held_by != member_id:
        raise RequestError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {held_by}.",
        )


def _check_epoch(member: ConsumerMember, request: Heartbeat) -> None:
    """A member may be one epoch behind if it did not get its last answer, and has nothing that it lost by it."""
    if request.classic is not None or request.epoch == member.epoch:
        return
    is_greater = request.epoch > member.epoch
    if is_greater or request.epoch != member.previous_epoch or not _is_subset(request.owned, member.assigned):
        if request.epoch == 0:
            return  # it joins again
        raise RequestError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {'greater' if is_greater else 'smaller'} member epoch ({request.epoch}) "
            f"than the one known by the group coordinator ({member.epoch}). The member must abandon all its partitions "
            "and rejoin.",
        )


def _is_subset(owned: Assignment | None, assigned: Assignment) -> bool:
    if owned is None:
        return False
    return all(numbers <= assigned.get(topic_id, frozenset()) for topic_id, numbers in owned.items())


def _subscribed(member: ConsumerMember, request: Heartbeat) -> ConsumerMember:
    def new(value: str | None, old: str | None) -> str | None:
        return old if value is None else value

    return replace(
        member,
        instance_id=new(request.instance_id, member.instance_id),
        rack_id=new(request.rack_id, member.rack_id),
        assignor=new(request.assignor, member.assignor),
        topics=member.topics if request.topics is None else tuple(sorted(set(request.topics))),
        regex=new(request.regex, member.regex),
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        client_id=request.client_id,
        client_host=request.client_host,
        classic=request.classic,
    )


def _subscription_of(member: ConsumerMember) -> records.ConsumerGroupMemberMetadataValue:
    _, value = member.subscription_record("")
    assert isinstance(value, records.ConsumerGroupMemberMetadataValue)
    return value


def _reconciled(
    group: ConsumerGroup, member: ConsumerMember, request: Heartbeat, topics: Topics, *, has_changed: bool
) -> ConsumerMember:
    if member.is_reconciled_to(group.target_epoch) and not has_changed:
        return member
    after = reconcile(
        member,
        Reconciliation(
            target_epoch=group.target_epoch,
            target=group.targets.get(member.member_id, NO_PARTITIONS),
            owned=request.owned,
            subscribed_ids=_topic_ids(group.topics_of(member), topics),
            has_subscription_changed=has_changed,
            is_released=lambda topic_id, number: group.index.is_free_for(member.member_id, (topic_id, number)),
        ),
    )
    if after is None:
        raise RequestError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
        )
    return after


# The member's next step


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


# Regular expressions


def _regex_updates(group: ConsumerGroup, resolved: Mapping[str, ResolvedRegex]) -> list[GroupRecord]:
    """The records of expressions that were looked up; those without a user are dropped."""
    used = group.index.regexes
    updates: list[GroupRecord] = _unused_regexes(group)
    for regex, found in sorted(resolved.items()):
        known = group.regexes.get(regex)
        if regex in used and (known is None or known.topics != found.topics):
            value = records.ConsumerGroupRegularExpressionValue(
                topics=tuple(sorted(found.topics)), version=found.version, timestamp=found.timestamp_ms
            )
            updates.append((_regex_key(group.group_id, regex), value))
    return updates


def _unused_regexes(group: ConsumerGroup) -> list[GroupRecord]:
    used = group.index.regexes
    return [(_regex_key(group.group_id, each), None) for each in sorted(group.regexes) if each not in used]


def _regex_key(group_id: str, regex: str) -> records.ConsumerGroupRegularExpressionKey:
    return records.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)


# Epochs and targets


def _new_epoch(group: ConsumerGroup, topics: Topics, changes: list[GroupRecord], *, is_forced: bool) -> ConsumerGroup:
    metadata_hash = group.hash_of(topics)
    if not (is_forced or group.epoch == 0 or metadata_hash != group.metadata_hash):
        return group
    new: list[GroupRecord] = [epoch_record(group.group_id, group.epoch + 1, metadata_hash)]
    if group.has_partition_record:
        new.append((records.ConsumerGroupPartitionMetadataKey(group_id=group.group_id), None))
    changes += new
    return replay(group, new)


def target_epoch_record(group_id: str, epoch: int) -> GroupRecord:
    """The record of the epoch of the targets, without AssignmentTimestamp, as of Kafka 4.1.

    Later brokers write the time to keep to consumer.assignment.interval.ms: without it they assign as soon as needed.
    """
    value = records.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
    return records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    key = records.ConsumerGroupMetadataKey(group_id=group_id)
    return key, records.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)


def _new_targets(group: ConsumerGroup, topics: Topics, changes: list[GroupRecord]) -> ConsumerGroup:
    if group.epoch <= group.target_epoch:
        return group
    wanted = {each: _topic_ids(group.topics_in(each), topics) for each in group.index.subscriptions}
    # Members of one subscription share the tuple of its names, whose hash takes a while if there are many.
    by_names: dict[tuple[int, str | None], frozenset[str]] = {}
    members = []
    known = dict(group.targets.items())  # to look for each member in the layers takes longer
    for each in group.members.values():
        key = id(each.topics), each.regex
        topic_ids = by_names.get(key)
        if topic_ids is None:
            topic_ids = by_names[key] = wanted[each.topics, each.regex]
        current = known.get(each.member_id, NO_PARTITIONS)
        members.append(AssignedMember(each.member_id, each.instance_id, topic_ids, current))
    numbers = {topic_id: topics.partition_numbers(topic_id) for topic_id in frozenset[str]().union(*wanted.values())}
    targets = ASSIGNORS[group.preferred_assignor(ASSIGNORS)](members, numbers)
    changed = (
        (each.member_id, target)
        for each in members
        if (target := targets[each.member_id]) is not each.current or each.member_id not in known
        if target != each.current or each.member_id not in known
    )
    new = [target_record(group.group_id, *each) for each in sorted(changed, key=lambda each: each[0])]
    new.append(target_epoch_record(group.group_id, group.epoch))
    changes += new
    return replay(group, new)


def target_record(group_id: str, member_id: str, target: Assignment) -> GroupRecord:
    value = records.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=tuple(
            records.ConsumerGroupTargetAssignmentMemberValueTopicPartition(
                topic_id=topic_id, partitions=tuple(sorted(numbers))
            )
            for topic_id, numbers in sorted(target.items())
        )
    )
    return records.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value


def _topic_ids(names: Iterable[str], topics: Topics) -> frozenset[str]:
    found = (topics.topic_id(name) for name in names)
    return frozenset(each for each in found if each is not None)


# Leaving


def leave(group: ConsumerGroup, member_id: str, instance_id: str | None, epoch: int, topics: Topics) -> HeartbeatResult:
    """A member leaves (epoch -1), or a static one for a while (-2). Raises RequestError."""
    if instance_id is None:
        if member_id not in group.members:
            raise _unknown_member(group, member_id)
    else:
        held_by = group.static_members.get(instance_id)
        if held_by is None:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        _check_holder(held_by, member_id, instance_id)
        if epoch == LEFT_FOR_A_WHILE:
            away = replace(group.members[member_id], epoch=LEFT_FOR_A_WHILE, revoking=NO_PARTITIONS)
            change = away.current_record(group.group_id)
            return HeartbeatResult(
                records=(change,), group=replay(group, [change]), member_id=member_id, member_epoch=LEFT_FOR_A_WHILE
            )
    changes, after = without(group, [member_id], topics)
    return HeartbeatResult(records=changes, group=after, member_id=member_id, member_epoch=_LEFT)


def without(
    group: ConsumerGroup, member_ids: Collection[str], topics: Topics
) -> tuple[tuple[GroupRecord, ...], ConsumerGroup]:
    """The records that remove members, which raises the group's epoch, and the group after them."""
    changes: list[GroupRecord] = []
    for member_id in member_ids:
        changes += _removal(group, group.members[member_id])
    rest = replay(group, changes)
    unused = _unused_regexes(rest)
    rest = replay(rest, unused)
    epoch = epoch_record(group.group_id, group.epoch + 1, rest.hash_of(topics))
    return (*changes, *unused, epoch), replay(rest, [epoch])


def _removal(group: ConsumerGroup, member: ConsumerMember) -> list[GroupRecord]:
    group_id, member_id = group.group_id, member.member_id
    return [
        (records.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        (records.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        (records.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def _unknown_member(group: ConsumerGroup, member_id: str) -> RequestError:
    return RequestError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")
