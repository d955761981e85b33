"""Groups of many members: what a request costs does not grow with the group where it need not."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.group_servers import GROUP, GroupServer

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.groups import offsets_topic as group_log
from pyspark_kafkalog.groups.consumer_group import Assignment, ConsumerGroup, LayeredMap, consumer_group_of
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.groups import heartbeat
from pyspark_kafkalog.server.groups import shard as shard_module
from pyspark_kafkalog.server.groups.assignors import AssignedMember, assign_uniform
from pyspark_kafkalog.server.groups.shard import Planned

MEMBERS = 12


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GroupServer]:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
    log_dir.create_topic("a", partitions=30)
    made = GroupServer(tmp_path / "log")
    yield made
    made.close()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many members there were, by each run of the assignor."""
    seen: list[int] = []

    def counted(members: Sequence[AssignedMember], exist: Mapping[str, Sequence[int]]) -> dict[str, Assignment]:
        seen.append(len(members))
        return assign_uniform(members, exist)

    monkeypatch.setattr(heartbeat, "ASSIGNORS", {"uniform": counted})
    return seen


async def settled(server: GroupServer) -> dict[str, Any]:
    """All members with what they shall have: the last answer of each."""
    found: dict[str, Any] = {}
    for _ in range(6):
        for number in range(MEMBERS):
            name = f"m{number}"
            answer = found.get(name)
            said: dict[str, Any] = {}
            if answer is not None and answer.assignment is not None:
                said = {"topic_partitions": answer.assignment.topic_partitions}
            found[name] = await server.beat(name, 0 if answer is None else answer.member_epoch, **said)
    assert len({each.member_epoch for each in found.values()}) == 1
    return found


async def test_each_join_runs_the_assignor_once_also_when_many_arrive_together(
    server: GroupServer, runs: list[int]
) -> None:
    answers = await asyncio.gather(*(server.beat(f"m{each}", 0) for each in range(MEMBERS)))
    assert [each.error_code for each in answers] == [ErrorCode.NONE] * MEMBERS
    assert sorted(runs) == list(range(1, MEMBERS + 1))


def _fails() -> Planned:
    raise ZeroDivisionError


async def test_large_group_is_assigned_outside_of_the_event_loop(
    server: GroupServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned_in: dict[int, bool] = {}

    def noted(members: Sequence[AssignedMember], exist: Mapping[str, Sequence[int]]) -> dict[str, Assignment]:
        assigned_in[len(members)] = threading.current_thread() is threading.main_thread()
        return assign_uniform(members, exist)

    monkeypatch.setattr(heartbeat, "ASSIGNORS", {"uniform": noted})
    monkeypatch.setattr(shard_module, "_LARGE_GROUP", 3)
    for number in range(5):
        assert (await server.beat(f"m{number}", 0)).error_code == ErrorCode.NONE
    assert assigned_in == {1: True, 2: True, 3: True, 4: False, 5: False}
    with pytest.raises(ZeroDivisionError):
        await (await server.coordinator.shard_of(GROUP)).write(GROUP, _fails, is_exclusive=True)


async def test_heartbeat_that_changes_nothing_writes_nothing_and_reads_no_group_anew(
    server: GroupServer, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = await settled(server)
    runs.clear()
    found = await server.coordinator.shard_of(GROUP)
    group, end_offset = found.consumer(GROUP), found.log.end_offset
    assert group is not None

    def must_not(*_: object) -> None:
        raise AssertionError("the group is made of all its records")

    monkeypatch.setattr(group_log, "consumer_group_of", must_not)
    epoch = answers["m0"].member_epoch
    assert (await server.beat("m0", epoch)).error_code == ErrorCode.NONE
    assert (runs, found.log.end_offset, found.consumer(GROUP)) == ([], end_offset, group)
    assert await server.commit(5, member="m0", generation=epoch) is ErrorCode.NONE
    assert (await server.beat("m0", epoch)).error_code == ErrorCode.NONE
    assert found.consumer(GROUP) is group


async def test_groups_of_a_partition_are_made_of_their_records_outside_of_the_event_loop(
    server: GroupServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_in: list[int] = []

    def noted(group_id: str, live: Mapping[bytes, bytes]) -> ConsumerGroup:
        made_in.append(threading.get_ident())
        return consumer_group_of(group_id, live)

    answers = await settled(server)
    found = await server.coordinator.shard_of(GROUP)
    before = found.consumer(GROUP)
    monkeypatch.setattr(group_log, "consumer_group_of", noted)
    await found.load()
    after = found.consumer(GROUP)
    assert after == before
    assert after is not before
    assert len(made_in) == 1
    assert made_in[0] != threading.get_ident()
    assert (await server.beat("m0", answers["m0"].member_epoch)).error_code == ErrorCode.NONE


async def test_members_that_leave_together_cost_one_run_of_the_assignor(server: GroupServer, runs: list[int]) -> None:
    answers = await settled(server)
    runs.clear()
    await asyncio.gather(*(server.beat(f"m{each}", -1) for each in range(1, MEMBERS)))
    left = await server.beat("m0", answers["m0"].member_epoch)
    assert runs == [1]
    assert left.assignment.topic_partitions[0].partitions == tuple(range(30)) or left.member_epoch > 0


async def test_writes_of_a_group_keep_their_order_and_exclusive_ones_are_alone(server: GroupServer) -> None:
    found = await server.coordinator.shard_of(GROUP)
    planned: list[str] = []

    def write(group_id: str, name: str, *, is_exclusive: bool) -> asyncio.Future[Any]:
        def plan() -> Planned:
            planned.append(name)
            return Planned({}, done=lambda: planned.append(f"{name} done"))

        return asyncio.ensure_future(found.write(group_id, plan, is_exclusive=is_exclusive))

    await asyncio.gather(
        write("g", "g1", is_exclusive=False),
        write("g", "g2", is_exclusive=False),
        write("g", "g3", is_exclusive=True),
        write("h", "h1", is_exclusive=True),
        write("g", "g4", is_exclusive=True),
        write("h", "h2", is_exclusive=False),
    )
    of_group = {each: [name for name in planned if name.startswith(each)] for each in "gh"}
    assert of_group["g"] == ["g1", "g2", "g1 done", "g2 done", "g3", "g3 done", "g4", "g4 done"]
    assert of_group["h"] == ["h1", "h1 done", "h2", "h2 done"]
    assert planned.index("h1") < planned.index("g3")  # one group does not hold up another


@pytest.mark.parametrize("seed", range(20))
def test_layered_map_is_the_dict_that_its_changes_make(seed: int) -> None:
    draw = random.Random(seed)
    expected: dict[int, int] = {each: each for each in range(draw.randint(0, 200))}
    found: LayeredMap[int, int] = LayeredMap(expected)
    versions = [(found, dict(expected))]
    for _ in range(60):
        changes = {draw.randint(0, 250): draw.choice([None, draw.randint(1, 9)]) for _ in range(draw.randint(0, 4))}
        found = found.with_changes(changes)
        for key, value in changes.items():
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
        key = draw.randint(0, 250)
        assert (key in found, found.get(key, -1), len(found)) == (key in expected, expected.get(key, -1), len(expected))
        if draw.random() < 0.1:
            assert found == expected
        versions.append((found, dict(expected)))
    assert all(version == content for version, content in versions)
    with pytest.raises(KeyError):
        found[1000]


def changed_members(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> set[str]:
    return {each for each in before.keys() & after.keys() if before[each] != after[each]}


@pytest.mark.parametrize("wants", [lambda _: "abcdef", lambda at: "abcdef"[: 3 + at % 4]], ids=["same", "mixed"])
def test_join_and_leave_of_a_large_group_change_few_members_and_keep_the_others_as_they_are(
    wants: Callable[[int], str],
) -> None:
    exist = dict.fromkeys("abcdef", range(100))

    def assigned(current: Mapping[str, Assignment], numbers: Sequence[int]) -> dict[str, Assignment]:
        members = [
            AssignedMember(f"m{each}", None, frozenset(wants(each)), current.get(f"m{each}", {})) for each in numbers
        ]
        return assign_uniform(members, exist)

    everybody = list(range(120))
    first = assigned({}, everybody)
    joined = assigned(first, [*everybody, 120])
    assert {len(owned) for owned in (first, joined)} == {120, 121}
    assert len(changed_members(first, joined)) <= 600 // 120
    assert all(joined[each] is first[each] for each in first.keys() - changed_members(first, joined))
    left = assigned(joined, everybody)
    assert len(changed_members(joined, left)) <= 600 // 120 + 1
    for owned in (first, joined, left):
        partitions = [
            (topic, number) for mine in owned.values() for topic, numbers in mine.items() for number in numbers
        ]
        assert sorted(partitions) == [(topic, number) for topic in sorted(exist) for number in range(100)]
