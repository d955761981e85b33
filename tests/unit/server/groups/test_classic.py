"""The classic protocol of groups: each request and timeout has the effect that it has in Kafka."""

from __future__ import annotations

from fakes.classic_groups import VirtualGroup

from pyspark_kafkalog.groups.classic_group import ClassicGroup, ClassicState, classic_value
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.groups.classic import ClassicLimits, ClassicProtocol


def test_first_member_becomes_leader_and_gets_its_assignment() -> None:
    group = VirtualGroup(limits=ClassicLimits(initial_rebalance_delay_ms=3000))
    group.join()
    group.host.advance(2999)
    assert group.joins == []
    group.host.advance(1)
    (joined,) = group.joins
    assert (joined.error, joined.generation, joined.protocol_name) == (ErrorCode.NONE, 1, "range")
    assert joined.leader == joined.member_id
    assert joined.members == ((joined.member_id, None, b"r"),)
    group.sync(joined.member_id, 1, {joined.member_id: b"all"})
    assert group.syncs[0].assignment == b"all"
    assert group.group.state is ClassicState.STABLE
    assert group.host.written[-1].members[0].assignment == b"all"


def test_initial_delay_is_extended_while_members_arrive() -> None:
    group = VirtualGroup(limits=ClassicLimits(initial_rebalance_delay_ms=3000))
    group.join()
    group.host.advance(2000)
    group.join()
    group.host.advance(2000)
    assert group.joins == []
    group.host.advance(2000)
    assert [each.generation for each in group.joins] == [1, 1]


def test_member_without_id_is_told_to_join_with_one() -> None:
    group = VirtualGroup()
    group.join(must_know_id=True)
    assert group.joins[0].error is ErrorCode.MEMBER_ID_REQUIRED
    member_id = group.joins[0].member_id
    group.join(member_id, must_know_id=True)
    group.host.advance(0)
    assert (group.joins[1].member_id, group.joins[1].generation) == (member_id, 1)


def test_pending_member_expires_with_its_session() -> None:
    group = VirtualGroup()
    group.join(must_know_id=True)
    group.host.advance(10_000)
    group.join(group.joins[0].member_id, must_know_id=True)
    assert group.joins[1].error is ErrorCode.UNKNOWN_MEMBER_ID


def test_second_member_makes_the_first_rejoin() -> None:
    group = VirtualGroup()
    (first,) = group.stable(1)
    group.join()
    assert group.protocol.heartbeat(first, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    group.join(first)
    assert {each.generation for each in group.joins[-2:]} == {2}
    assert len([each for each in group.joins[-2:] if each.members]) == 1


def test_member_that_does_not_rejoin_is_removed_after_the_rebalance_timeout() -> None:
    group = VirtualGroup()
    first, second = group.stable(2)
    group.join(first)
    for _ in range(12):
        group.host.advance(5000)
        group.protocol.heartbeat(second, None, group.group.generation)
    assert list(group.group.members) == [first]
    assert group.protocol.heartbeat(second, None, group.group.generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.joins[-1].leader == first


def test_silent_member_expires_and_group_rebalances() -> None:
    group = VirtualGroup()
    first, second = group.stable(2)
    for _ in range(2):
        group.host.advance(5000)
        group.protocol.heartbeat(first, None, group.group.generation)
    assert list(group.group.members) == [first]
    assert group.group.state is ClassicState.PREPARING_REBALANCE
    assert group.protocol.heartbeat(second, None, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_last_member_leaves_and_group_is_empty_with_a_record() -> None:
    group = VirtualGroup()
    (only,) = group.stable(1)
    assert group.protocol.leave([(only, None), ("other", None)]) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert group.group.state is ClassicState.EMPTY
    last = group.host.written[-1]
    assert (last.generation, last.members, last.protocol, last.protocol_type) == (2, (), None, "consumer")


def test_wrong_generation_instance_or_protocol_is_refused() -> None:
    group = VirtualGroup()
    (only,) = group.stable(1)
    assert group.protocol.heartbeat(only, None, 7) is ErrorCode.ILLEGAL_GENERATION
    assert group.protocol.heartbeat(only, "i", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    group.sync(only, 1, protocol_name="other")
    assert group.syncs[-1].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    group.join(protocols=(("sticky", b""),))
    assert group.joins[-1].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    group.join(protocol_type="connect")
    assert group.joins[-1].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    group.join("unknown")
    assert group.joins[-1].error is ErrorCode.UNKNOWN_MEMBER_ID


def test_protocol_with_most_votes_among_common_ones_is_selected() -> None:
    group = VirtualGroup(limits=ClassicLimits(initial_rebalance_delay_ms=10))
    group.join(protocols=(("a", b""), ("b", b"")))
    group.join(protocols=(("b", b""), ("a", b"")))
    group.join(protocols=(("c", b""), ("b", b""), ("a", b"")))
    group.host.advance(100)
    assert {each.protocol_name for each in group.joins} == {"b"}


def test_follower_sync_waits_for_leader_and_stored_record() -> None:
    group = VirtualGroup(write_at_once=False, limits=ClassicLimits(initial_rebalance_delay_ms=10))
    group.join()
    group.join()
    group.host.advance(100)
    leader = group.joins[0].leader
    follower = next(each.member_id for each in group.joins if each.member_id != leader)
    group.sync(follower, 1)
    group.sync(leader, 1, {follower: b"f", leader: b"l"})
    assert group.syncs == []
    group.host.finish_writes()
    assert sorted(each.assignment for each in group.syncs) == [b"f", b"l"]


def test_failed_write_of_assignment_starts_another_rebalance() -> None:
    group = VirtualGroup(write_at_once=False)
    group.join()
    group.host.advance(0)
    only = group.joins[0].member_id
    group.sync(only, 1, {only: b"x"})
    group.host.finish_writes(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert group.syncs[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.group.state is ClassicState.PREPARING_REBALANCE


def test_member_that_never_syncs_is_removed() -> None:
    group = VirtualGroup(limits=ClassicLimits(initial_rebalance_delay_ms=10))
    group.join()
    group.join()
    group.host.advance(100)
    leader = group.joins[0].leader
    group.sync(leader, 1, {leader: b"l"})
    for _ in range(13):
        for member_id in list(group.group.members):
            group.protocol.heartbeat(member_id, None, 1)
        group.host.advance(5000)
    assert list(group.group.members) == [leader]


def test_static_member_returns_without_rebalance_and_fences_the_old_one() -> None:
    group = VirtualGroup()
    group.join(instance_id="i")
    group.host.advance(0)
    old = group.joins[0].member_id
    group.sync(old, 1, {old: b"x"}, instance_id="i")
    group.join(instance_id="i")
    again = group.joins[-1]
    assert (again.error, again.generation, again.skip_assignment) == (ErrorCode.NONE, 1, True)
    assert again.member_id != old
    assert group.protocol.heartbeat(old, "i", 1) is ErrorCode.FENCED_INSTANCE_ID
    group.sync(again.member_id, 1, instance_id="i")
    assert group.syncs[-1].assignment == b"x"
    assert group.host.written[-1].members[0].member_id == again.member_id


def test_static_member_of_old_client_is_told_the_old_leader() -> None:
    group = VirtualGroup()
    group.join(instance_id="i")
    group.host.advance(0)
    old = group.joins[0].member_id
    group.sync(old, 1, {old: b"x"}, instance_id="i")
    group.join(instance_id="i", may_skip_assignment=False)
    assert (group.joins[-1].leader, group.joins[-1].skip_assignment) == (old, False)


def test_failed_write_of_returning_static_member_restores_the_old_one() -> None:
    group = VirtualGroup()
    group.join(instance_id="i")
    group.host.advance(0)
    old = group.joins[0].member_id
    group.sync(old, 1, {old: b"x"}, instance_id="i")
    group.host.write_at_once = False
    group.join(instance_id="i")
    group.host.finish_writes(ErrorCode.NOT_COORDINATOR)
    assert group.joins[-1].error is ErrorCode.NOT_COORDINATOR
    assert group.protocol.heartbeat(old, "i", 1) is ErrorCode.NONE


def with_static_members(count: int) -> VirtualGroup:
    """A stable group; nothing is written until `finish_writes`."""
    group = VirtualGroup()
    for number in range(count):
        group.join(instance_id=f"i{number}")
    group.host.advance(0)
    ids = dict(group.group.static_members)
    for instance_id, member_id in ids.items():
        group.sync(member_id, 1, dict.fromkeys(ids.values(), b"x"), instance_id=instance_id)
    assert group.group.state is ClassicState.STABLE
    group.host.write_at_once = False
    group.host.written.clear()
    return group


def test_static_members_that_return_during_a_write_share_the_next_one() -> None:
    group = with_static_members(50)
    before = len(group.joins)
    for number in range(50):
        group.join(instance_id=f"i{number}")
    assert len(group.joins) == before
    group.host.finish_writes()
    assert len(group.joins) == before + 1
    group.host.finish_writes()
    assert {each.error for each in group.joins[before:]} == {ErrorCode.NONE}
    assert len(group.joins) == before + 50
    assert group.host.waiting == []
    first, second = group.host.written
    assert len({each.member_id for each in first.members} & set(group.group.members)) == 1
    assert {each.member_id for each in second.members} == set(group.group.members)


def test_static_member_that_returned_twice_during_a_failed_write_is_the_old_one_again() -> None:
    group = with_static_members(2)
    ids = dict(group.group.static_members)
    group.join(instance_id="i0")
    group.join(instance_id="i1")
    group.join(instance_id="i1")
    group.host.finish_writes()
    group.host.finish_writes(ErrorCode.NOT_COORDINATOR)
    assert group.group.static_members["i1"] == ids["i1"]
    assert group.group.static_members["i0"] != ids["i0"]
    assert group.protocol.heartbeat(ids["i1"], "i1", 1) is ErrorCode.NONE
    assert group.host.waiting == []


def test_static_members_that_wait_for_a_write_join_the_rebalance_that_begins() -> None:
    group = with_static_members(2)
    group.join(instance_id="i0")
    group.join(instance_id="i1")
    group.join()
    assert [each.generation for each in group.joins[-3:]] == [2, 2, 2]
    group.host.finish_writes()
    assert group.host.waiting == []  # their ids are in the record of the new generation


def test_static_member_is_removed_by_instance_alone() -> None:
    group = VirtualGroup()
    group.join(instance_id="i")
    group.host.advance(0)
    assert group.protocol.leave([("", "other"), ("", "i")]) == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    assert group.group.members == {}


def test_full_group_refuses_further_members() -> None:
    group = VirtualGroup(limits=ClassicLimits(initial_rebalance_delay_ms=0, max_size=1))
    group.stable(1)
    group.join()
    assert group.joins[-1].error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_unchanged_follower_gets_its_generation_again() -> None:
    group = VirtualGroup()
    leader, follower = group.stable(2)
    generation = group.group.generation
    group.join(follower)
    assert (group.joins[-1].generation, group.joins[-1].members) == (generation, ())
    assert group.group.state is ClassicState.STABLE
    group.join(leader)
    assert group.group.state is ClassicState.PREPARING_REBALANCE


def test_offsets_are_committed_by_members_or_for_an_empty_group() -> None:
    group = VirtualGroup()
    commit = group.protocol.commit_error
    assert commit("", None, -1, is_transactional=False) is ErrorCode.NONE
    assert commit("m", None, 3, is_transactional=False) is ErrorCode.UNKNOWN_MEMBER_ID
    (only,) = group.stable(1)
    assert commit(only, None, 1, is_transactional=False) is ErrorCode.NONE
    assert commit(only, None, 2, is_transactional=False) is ErrorCode.ILLEGAL_GENERATION
    assert commit("", None, -1, is_transactional=False) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("", None, -1, is_transactional=True) is ErrorCode.NONE
    group.join()
    group.join(only)
    assert commit(only, None, 2, is_transactional=False) is ErrorCode.REBALANCE_IN_PROGRESS
    assert commit(only, None, 2, is_transactional=True) is ErrorCode.NONE


def test_group_of_record_is_stable_and_its_members_have_a_session() -> None:
    group = VirtualGroup()
    first, second = group.stable(2)
    taken = ClassicGroup.of_record("g", classic_value(group.host.written[-1]))
    assert taken.state is ClassicState.STABLE
    assert taken.record(taken.assignments()) == group.host.written[-1]
    after = ClassicProtocol(taken, group.host, ClassicLimits())
    after.resume()
    assert after.heartbeat(first, None, taken.generation) is ErrorCode.NONE
    group.host.advance(9_999)
    after.heartbeat(first, None, taken.generation)
    group.host.advance(1)
    assert list(taken.members) == [first]
    assert second not in taken.members


def test_closed_group_answers_all_who_wait() -> None:
    group = VirtualGroup(write_at_once=False, limits=ClassicLimits(initial_rebalance_delay_ms=10))
    group.join()
    group.protocol.close(ErrorCode.NOT_COORDINATOR)
    assert group.joins[0].error is ErrorCode.NOT_COORDINATOR
    assert len(group.host.timers) == 0
    group.join()
    assert group.joins[-1].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
