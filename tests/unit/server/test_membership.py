"""Who is alive by the signs of life in a root, and who leads what."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from builders.object_roots import StoredRoot
from kafka_processes.served import serve
from patience import until, wait_until

from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.messages.records import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.server import cluster as cluster_module
from pyspark_kafkalog.server import run
from pyspark_kafkalog.server.cluster import (
    ClusterOfServers,
    HeartbeatFiles,
    HeartbeatObjects,
    Membership,
    ServerHeartbeat,
    choose,
    in_zone,
    spread,
    zone_of,
)
from pyspark_kafkalog.server.config import Address, ServerConfig
from pyspark_kafkalog.server.context import Node
from pyspark_kafkalog.storage.filesystem import LOCAL

TIMEOUT_MS = 3000


def node(node_id: int, rack: str | None = None) -> Node:
    return Node(node_id, "127.0.0.1", 9000 + node_id, rack)


def heartbeat(node_id: int, count: int, incarnation: str = "a") -> ServerHeartbeat:
    return ServerHeartbeat(node(node_id), incarnation, count)


def alive(membership: Membership) -> list[int]:
    return [each.node_id for each in membership.nodes]


def test_server_without_new_beats_is_dead_after_the_timeout() -> None:
    membership = Membership(node(1), timeout_ms=TIMEOUT_MS)
    membership.observe({2: heartbeat(2, 1), 3: heartbeat(3, 1)}, now_ms=0)
    membership.observe({2: heartbeat(2, 1), 3: heartbeat(3, 2)}, now_ms=2000)
    assert alive(membership) == [1, 2, 3]
    membership.observe({2: heartbeat(2, 1), 3: heartbeat(3, 2)}, now_ms=3001)
    assert alive(membership) == [1, 3]


def test_server_that_beats_again_is_alive_again() -> None:
    membership = Membership(node(1), timeout_ms=TIMEOUT_MS)
    membership.observe({2: heartbeat(2, 7)}, now_ms=0)
    membership.observe({2: heartbeat(2, 7)}, now_ms=9000)
    assert alive(membership) == [1]
    membership.observe({2: heartbeat(2, 8)}, now_ms=9500)
    assert alive(membership) == [1, 2]


def test_restarted_server_counts_as_alive_though_its_count_is_lower() -> None:
    membership = Membership(node(1), timeout_ms=TIMEOUT_MS)
    membership.observe({2: heartbeat(2, 700)}, now_ms=0)
    membership.observe({2: heartbeat(2, 1, "b")}, now_ms=9000)
    assert alive(membership) == [1, 2]


def test_server_whose_sign_is_gone_is_not_listed() -> None:
    membership = Membership(node(1), timeout_ms=TIMEOUT_MS)
    membership.observe({2: heartbeat(2, 1)}, now_ms=0)
    membership.observe({}, now_ms=10)
    assert alive(membership) == [1]
    assert membership.listed == (node(1),)


def test_server_that_left_is_not_alive_but_listed_until_it_is_long_dead() -> None:
    membership = Membership(node(1), timeout_ms=TIMEOUT_MS)
    left = replace(heartbeat(2, 2), has_left=True)
    membership.observe({2: heartbeat(2, 1)}, now_ms=0)
    assert membership.observe({2: left}, now_ms=10) == []
    assert alive(membership) == [1]
    assert membership.listed == (node(1), node(2))
    assert membership.observe({2: left}, now_ms=11 + 10 * TIMEOUT_MS) == [2]


def test_server_that_left_is_alive_again_when_it_is_restarted() -> None:
    membership = Membership(node(1), timeout_ms=TIMEOUT_MS)
    membership.observe({2: replace(heartbeat(2, 7), has_left=True)}, now_ms=0)
    assert alive(membership) == [1]
    membership.observe({2: heartbeat(2, 1, "b")}, now_ms=10)
    assert alive(membership) == [1, 2]


def test_server_that_stands_still_stays_listed_until_its_sign_is_removed() -> None:
    membership = Membership(node(3), timeout_ms=TIMEOUT_MS)
    membership.observe({2: heartbeat(2, 1)}, now_ms=0)
    membership.observe({2: heartbeat(2, 1)}, now_ms=9 * TIMEOUT_MS)
    assert alive(membership) == [3]
    assert membership.listed == (node(2), node(3))


def cluster(node_id: int, root: Path, executor: Executor, *, interval_s: float = 0.4) -> ClusterOfServers:
    return ClusterOfServers(
        node(node_id),
        "cluster",
        f"incarnation {node_id}",
        HeartbeatFiles(root),
        executor,
        interval_s=interval_s,
        timeout_ms=60_000,
        monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
    )


def test_others_have_seen_a_server_when_it_has_started(tmp_path: Path) -> None:
    async def start() -> None:
        first, second, third = (cluster(each, tmp_path, executor) for each in (1, 2, 3))
        await first.start()
        await asyncio.gather(second.start(), third.start())
        for each in (first, second, third):
            assert each.listed() == each.nodes() == (node(1), node(2), node(3))
        for each in (first, second, third):
            await each.stop()

    with ThreadPoolExecutor(2) as executor:
        asyncio.run(start())


def test_server_whose_root_is_away_warns_once_and_says_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = threading.Event()
    heartbeats, write = [], HeartbeatFiles.write

    def write_or_fail(self: HeartbeatFiles, heartbeat: ServerHeartbeat) -> None:
        heartbeats.append(heartbeat)
        if is_away.is_set():
            raise OSError("the root is away")
        write(self, heartbeat)

    monkeypatch.setattr(HeartbeatFiles, "write", write_or_fail)

    async def until_beats(count: int) -> None:
        wanted = len(heartbeats) + count
        await until(lambda: len(heartbeats) >= wanted, f"{wanted} heartbeats")

    async def scenario(executor: Executor) -> None:
        served = cluster(1, tmp_path, executor, interval_s=0.01)
        await served.start()
        is_away.set()
        await until_beats(20)
        is_away.clear()
        await until_beats(3)
        await served.stop()

    with ThreadPoolExecutor(2) as executor:
        asyncio.run(scenario(executor))
    said = [each.getMessage() for each in caplog.records if "that it runs" in each.getMessage()]
    assert [each[:30] for each in said] == [
        "this server cannot show that it runs"[:30],
        "this server shows again that it runs"[:30],
    ]


def test_server_whose_threads_are_all_busy_shows_that_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_busy, go_on, refresh = threading.Event(), threading.Event(), FileRoot.refresh

    def wait_and_refresh(root: FileRoot) -> object:
        if threading.current_thread().name.startswith("kafkalog-server_"):
            is_busy.set()
            assert go_on.wait(60)
        return refresh(root)

    def count() -> int:
        [own] = HeartbeatFiles(tmp_path).read_all().values()
        return own.heartbeat

    monkeypatch.setattr(FileRoot, "refresh", wait_and_refresh)
    with serve(tmp_path, ServerConfig(listen=Address("127.0.0.1", 0), threads=1)) as bootstrap:
        host, _, port = bootstrap.partition(":")
        with WireClient.connect(host, int(port), client_id="c", timeout_s=60) as client:
            wanted = ListOffsetsTopic(name="t", partitions=(ListOffsetsPartition(partition_index=0, timestamp=-1),))
            asking = threading.Thread(
                target=client.call,
                args=(ListOffsetsRequest(topics=(wanted,)), ListOffsetsResponse),
                kwargs={"version": 9},
            )
            asking.start()
            try:
                assert is_busy.wait(60)
                before = count()
                wait_until(lambda: count() >= before + 2)
            finally:
                go_on.set()
                asking.join()


@pytest.mark.parametrize("are_together", [False, True])
def test_last_server_that_is_stopped_removes_the_signs_of_all(tmp_path: Path, are_together: bool) -> None:
    async def start_and_stop() -> None:
        servers = [cluster(each, tmp_path, executor) for each in (1, 2, 3)]
        for each in servers:
            await each.start()
        if are_together:
            await asyncio.gather(*(each.stop() for each in servers))
            return
        for at, each in enumerate(servers):
            assert len(HeartbeatFiles(tmp_path).read_all()) == 3
            await each.stop()
            assert [each.has_left for each in HeartbeatFiles(tmp_path).read_all().values()].count(True) == (at + 1) % 3

    with ThreadPoolExecutor(4) as executor:
        asyncio.run(start_and_stop())
    assert list(tmp_path.iterdir()) == []


def test_own_sign_in_the_root_is_not_a_second_server() -> None:
    membership = Membership(node(1), timeout_ms=TIMEOUT_MS)
    membership.observe({1: heartbeat(1, 1)}, now_ms=0)
    assert alive(membership) == [1]


def test_sign_that_is_long_dead_is_named_for_removal() -> None:
    membership = Membership(node(1), timeout_ms=TIMEOUT_MS)
    assert membership.observe({2: heartbeat(2, 1)}, now_ms=0) == []
    assert membership.observe({2: heartbeat(2, 1)}, now_ms=10 * TIMEOUT_MS) == []
    assert membership.observe({2: heartbeat(2, 1)}, now_ms=10 * TIMEOUT_MS + 1) == [2]


def test_beats_in_files_round_trip(tmp_path: Path) -> None:
    place = HeartbeatFiles(tmp_path)
    place.write(heartbeat(1, 1))
    place.write(ServerHeartbeat(node(2, "zone-b"), "b", 5, has_left=True))
    place.write(heartbeat(1, 2))
    assert place.read_all() == {1: heartbeat(1, 2), 2: ServerHeartbeat(node(2, "zone-b"), "b", 5, has_left=True)}
    place.remove(1)
    place.remove(1)
    assert set(place.read_all()) == {2}


def test_beats_in_objects_round_trip_and_are_no_stray_objects() -> None:
    stored = StoredRoot()
    place = HeartbeatObjects(stored.objects)
    place.write(heartbeat(1, 1))
    place.write(ServerHeartbeat(node(2, "zone-b"), "b", 5))
    place.write(heartbeat(1, 2))
    assert place.read_all() == {1: heartbeat(1, 2), 2: ServerHeartbeat(node(2, "zone-b"), "b", 5)}
    assert verify(stored.opened()).findings == []
    place.remove(1)
    place.remove(1)
    assert set(place.read_all()) == {2}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"node_id": -1, "host": "h", "port": 1, "incarnation": "a", "beat": 1}',
        b'{"node_id": true, "host": "h", "port": 1, "incarnation": "a", "beat": 1}',
        b'{"node_id": 1, "host": 5, "port": 1, "incarnation": "a", "beat": 1}',
        b'{"node_id": 1, "host": "h", "port": 65536, "incarnation": "a", "beat": 1}',
        b'{"node_id": 1, "host": "h", "port": 1, "incarnation": "a"}',
        b'{"node_id": 1, "host": "h", "port": 1, "incarnation": "a", "beat": 1, "has_left": 1}',
        b"\xff\xfe",
        pytest.param(b"[" * 4096, id="deeply nested"),
    ],
)
def test_damaged_sign_is_no_server(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".server-1").write_bytes(content)
    assert HeartbeatFiles(tmp_path).read_all() == {}


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_leaders_of_a_topic_are_spread_evenly(count: int) -> None:
    nodes = tuple(node(each) for each in range(1, count + 1))
    for partitions in (count, 3 * count + count // 2):
        leaders = [spread(nodes, "id", at) for at in range(partitions)]
        counts = [leaders.count(each) for each in nodes]
        assert max(counts) - min(counts) <= 1
    assert leaders == [spread(nodes, "id", at) for at in reversed(range(partitions))][::-1]
    assert len({spread(nodes, f"topic {at}", 0) for at in range(100)}) == count


def test_leaders_of_many_servers_are_found_with_few_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tuple(node(each) for each in range(1, 501))
    counted: list[int] = []
    weight = cluster_module._weight
    monkeypatch.setattr(cluster_module, "_weight", lambda *of: (counted.append(1), weight(*of))[1])
    assert len({spread(nodes, "many", at) for at in range(64)}) == 64
    assert len(counted) <= 64 * 500


def test_coordinators_move_only_from_the_server_that_left() -> None:
    nodes = [node(each) for each in (1, 2, 3, 4)]
    before = {at: choose(nodes, "id", at).node_id for at in range(400)}
    after = {at: choose([each for each in nodes if each.node_id != 3], "id", at).node_id for at in range(400)}
    assert all(after[at] == leader for at, leader in before.items() if leader != 3)
    counts = [list(before.values()).count(each.node_id) for each in nodes]
    assert min(counts) > 60


def test_coordinator_and_leader_do_not_depend_on_the_order_of_the_servers() -> None:
    nodes = [node(each) for each in (5, 9, 2)]
    assert [spread(tuple(nodes), "t", at) for at in range(50)] == [
        spread(tuple(nodes[::-1]), "t", at) for at in range(50)
    ]
    assert [choose(nodes, "t", at) for at in range(50)] == [choose(nodes[::-1], "t", at) for at in range(50)]


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("app", None),
        ("rack=a", "a"),
        ("app,rack=eu-1a", "eu-1a"),
        ("app,ws_az=b,x=y", "b"),
        ("app|diskless_az=c|mm2", "c"),
        ("track=a", None),
        ("", None),
    ],
)
def test_zone_is_taken_from_the_client_id(client_id: str, zone: str | None) -> None:
    assert zone_of(client_id) == zone


def test_client_of_a_zone_without_servers_gets_all() -> None:
    nodes = [node(1, "a"), node(2, "b")]
    assert in_zone(nodes, "b") == [nodes[1]]
    assert in_zone(nodes, "c") == nodes
    assert in_zone(nodes, None) == nodes


def test_idle_server_lists_no_root_that_does_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, other = HeartbeatFiles(tmp_path), HeartbeatFiles(tmp_path)
    listings: list[object] = []
    scandir = os.scandir

    def counted(path: Path) -> object:
        listings.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    for count in range(100):
        place.write(heartbeat(1, count))
        assert place.read_all(but=1) == {}
    assert len(listings) == 5
    other.write(heartbeat(2, 1))
    assert place.read_all(but=1) == {2: heartbeat(2, 1)}
    for count in range(100):
        other.write(heartbeat(2, count))
        assert place.read_all(but=1) == {2: heartbeat(2, count)}
    assert len(listings) == 10


def test_servers_of_earlier_versions_that_replace_their_signs_are_seen(tmp_path: Path) -> None:
    place = HeartbeatFiles(tmp_path)
    sign = '{"node_id": 2, "host": "127.0.0.1", "port": 9002, "rack": null, "incarnation": "a", "beat": %d}'
    for count in range(20):
        place.write(heartbeat(1, count))
        LOCAL.write_file_atomic(tmp_path / ".server-2", (sign % count).encode(), durable=False)
        assert place.read_all(but=1) == {2: heartbeat(2, count)}


@pytest.mark.parametrize("make_other", [os.link, os.symlink])
def test_sign_overwrites_no_file_of_another_name(tmp_path: Path, make_other: Callable[[Path, Path], None]) -> None:
    place, sign, foreign = HeartbeatFiles(tmp_path), tmp_path / ".server-1", tmp_path / "foreign"
    place.write(heartbeat(1, 1))
    foreign.write_bytes(sign.read_bytes())
    sign.unlink()
    make_other(foreign, sign)
    place.write(heartbeat(1, 2))
    assert ServerHeartbeat.decode(foreign.read_bytes()) == heartbeat(1, 1)
    assert place.read_all() == {1: heartbeat(1, 2)}


def test_server_alone_in_a_store_takes_seven_puts_and_listings_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/OBJECT-STORES.md says of a server without clients and without others."""
    stored = StoredRoot()
    store = stored.place.client()
    interval_s, alone_interval_s, timeout_ms = run._STORE_BEATS
    assert 1000 * alone_interval_s < timeout_ms
    passed_s, minutes = 0.0, 10

    async def sleep(seconds: float) -> None:
        nonlocal passed_s
        passed_s += seconds
        if passed_s > minutes * 60:
            raise asyncio.CancelledError

    async def idle(executor: Executor) -> None:
        served = ClusterOfServers(
            node(1),
            "cluster",
            "a",
            HeartbeatObjects(store),
            executor,
            interval_s=interval_s,
            alone_interval_s=alone_interval_s,
            timeout_ms=timeout_ms,
            monotonic_ms=lambda: int(passed_s * 1000),
        )
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await served.start()
        assert served._task is not None
        with contextlib.suppress(asyncio.CancelledError):
            await served._task

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(idle(executor))
    a_minute = {kind: count / minutes for kind, count in store.requests.items()}
    assert a_minute.keys() == {"put", "list"}
    assert all(count < 7 for count in a_minute.values()), a_minute


def test_server_that_joins_one_that_is_slow_waits_until_that_has_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = StoredRoot()
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        raise asyncio.CancelledError

    async def join(others: Mapping[int, ServerHeartbeat], executor: Executor) -> None:
        place = HeartbeatObjects(stored.objects)
        for each in others.values():
            place.write(each)
        served = ClusterOfServers(
            node(1),
            "cluster",
            "a",
            place,
            executor,
            interval_s=3,
            alone_interval_s=9,
            timeout_ms=12_000,
            monotonic_ms=lambda: 0,
        )
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "sleep", sleep)
            with contextlib.suppress(asyncio.CancelledError):
                await served.start()

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(join({2: heartbeat(2, 1)}, executor))
        asyncio.run(join({2: replace(heartbeat(2, 2), is_slow=True)}, executor))
    assert waited[0] == 1.25 * 3
    assert waited[-1] == 1.25 * 9
