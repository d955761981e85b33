"""Consumers of both protocols, and Kafka's tool for groups, at this package's server."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka_processes.oracle import dump_log, run_tool
from kafka_processes.served import serve
from kafka_processes.server_processes import serving
from patience import PATIENCE_S, wait_until

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.groups.offset_records import group_partition

pytestmark = pytest.mark.interop

PARTITIONS = 6
#: The offsets of a group that has read everything.
READ = dict.fromkeys(range(PARTITIONS), 10)
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CLASSIC: dict[str, object] = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 200}
CONSUMER: dict[str, object] = {"group.protocol": "consumer"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.alter_broker_configs(
        add={
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            "group.consumer.heartbeat.interval.ms": "200",
            "group.consumer.session.timeout.ms": "2000",
            "offsets.topic.num.partitions": "3",
        }
    )
    log_dir.create_topic("orders", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        log_dir.append("orders", pa.table({"value": ["v"] * 10}), partition=partition)
    return tmp_path / "log"


class Member(threading.Thread):
    """A confluent-kafka consumer of one group, in a thread. `end` closes it; `vanish` lets it fall silent."""

    def __init__(self, bootstrap: str, settings: dict[str, object]) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Consumer

        self.assigned: set[int] = set()
        self.seen: list[tuple[int, int]] = []
        self._is_ended = False
        common = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        self._consumer: Any = Consumer({**common, "auto.commit.interval.ms": 200, **settings})
        self.start()

    def run(self) -> None:
        self._consumer.subscribe(["orders"])
        while not self._is_ended:
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.seen.append((message.partition(), message.offset()))
            self.assigned = {each.partition for each in self._consumer.assignment()}
        self._consumer.close()

    def end(self) -> None:
        self._is_ended = True
        self.join(PATIENCE_S)


@contextlib.contextmanager
def members(bootstrap: str, *settings: dict[str, object]) -> Iterator[list[Member]]:
    made = [Member(bootstrap, each) for each in settings]
    try:
        yield made
    finally:
        for each in made:
            each.end()


def is_shared(group: list[Member]) -> bool:
    """Whether each partition is assigned once, and each member has its share."""
    owned = [each for member in group for each in member.assigned]
    share = PARTITIONS // len(group)
    return sorted(owned) == list(range(PARTITIONS)) and all(len(each.assigned) >= share for each in group)


def committed(path: Path, name: str = "g") -> dict[int, int]:
    return {each.partition: found.offset for each, found in LogDir.open(path).group(name).fetch().items()}


def test_members_of_both_protocols_share_partitions_and_offsets_survive(path: Path) -> None:
    with serve(path) as bootstrap:
        for settings in (CLASSIC, CONSUMER):
            with members(bootstrap, settings, settings) as group:
                wait_until(lambda group=group: is_shared(group))  # type: ignore[misc]
                group[0].end()
                wait_until(lambda group=group: is_shared(group[1:]))  # type: ignore[misc]
                wait_until(lambda: committed(path) == READ)
    assert committed(path) == READ


@pytest.mark.full
@pytest.mark.parametrize(
    "settings",
    [
        {**CLASSIC, "partition.assignment.strategy": "range"},
        {**CLASSIC, "partition.assignment.strategy": "roundrobin"},
        {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
        CONSUMER,
        {**CONSUMER, "group.remote.assignor": "range"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_three_members_come_and_go(path: Path, settings: dict[str, object]) -> None:
    with serve(path) as bootstrap, members(bootstrap, settings, settings, settings) as group:
        wait_until(lambda: is_shared(group))
        static = Member(bootstrap, {**settings, "group.instance.id": "i"})
        wait_until(lambda: is_shared([*group, static]))
        group[1].end()
        wait_until(lambda: is_shared([group[0], group[2], static]))
        before = static.assigned
        static.end()  # it stays a member until its session ends
        again = Member(bootstrap, {**settings, "group.instance.id": "i"})
        wait_until(lambda: again.assigned == before)
        again.end()
        wait_until(lambda: is_shared([group[0], group[2]]))
        wait_until(lambda: committed(path) == READ)


@pytest.mark.full
@pytest.mark.parametrize("settings", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
def test_groups_go_on_over_both_workers_also_when_one_of_them_is_killed(
    path: Path, settings: dict[str, object]
) -> None:
    """Three groups, of the three partitions of `__consumer_offsets`: each worker coordinates some, or will."""
    longer = {**settings, "session.timeout.ms": 20_000} if settings is CLASSIC else settings
    names = sorted({group_partition(f"g{each}", 3): f"g{each}" for each in range(20)}.values())
    with serving(path, "--workers", "2") as server, contextlib.ExitStack() as stack:
        groups = [stack.enter_context(members(server.bootstrap, *[{**longer, "group.id": name}] * 2)) for name in names]
        for group in groups:
            wait_until(lambda group=group: is_shared(group))  # type: ignore[misc]
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        for partition in range(PARTITIONS):
            LogDir.open(path).append("orders", pa.table({"value": ["w"] * 5}), partition=partition)
        for name, group in zip(names, groups, strict=True):
            wait_until(lambda name=name: committed(path, name) == dict.fromkeys(range(PARTITIONS), 15))  # type: ignore[misc]
            wait_until(lambda group=group: is_shared(group))  # type: ignore[misc]


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("instances", [(None, None), ("one", "two")], ids=["dynamic", "static"])
def test_members_change_their_protocol_one_by_one_and_back(
    path: Path, strategy: str, instances: tuple[str | None, str | None]
) -> None:
    classic = {**CLASSIC, "partition.assignment.strategy": strategy}
    ids = [{} if each is None else {"group.instance.id": each} for each in instances]
    ended: list[Member] = []
    with serve(path) as bootstrap, members(bootstrap, *({**classic, **each} for each in ids)) as group:
        wait_until(lambda: is_shared(group))
        for settings in (CONSUMER, classic, CONSUMER):
            for number, own in enumerate(ids):
                group[number].end()
                ended.append(group[number])
                group[number] = Member(bootstrap, {**settings, **own})
                wait_until(lambda: is_shared(group))
            for partition in range(PARTITIONS):
                LogDir.open(path).append("orders", pa.table({"value": ["w"] * 5}), partition=partition)
        wait_until(lambda: committed(path) == dict.fromkeys(range(PARTITIONS), 25))
    seen = {each for member in (*ended, *group) for each in member.seen}
    assert seen == {(partition, offset) for partition in range(PARTITIONS) for offset in range(25)}


@pytest.mark.full
@pytest.mark.parametrize("settings", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
def test_group_goes_on_when_its_coordinator_is_killed(path: Path, settings: dict[str, object]) -> None:
    with serving(path) as first, serving(path) as second:
        bootstrap = f"{first.bootstrap},{second.bootstrap}"
        longer = {**settings, "session.timeout.ms": 20_000} if settings is CLASSIC else settings
        with members(bootstrap, longer, longer, longer) as group:
            wait_until(lambda: is_shared(group))
            wait_until(lambda: committed(path) == READ)
            first.process.send_signal(signal.SIGKILL)
            for partition in range(PARTITIONS):
                LogDir.open(path).append("orders", pa.table({"value": ["w"] * 5}), partition=partition)
            wait_until(lambda: committed(path) == dict.fromkeys(range(PARTITIONS), 15))
            wait_until(lambda: is_shared(group))


@pytest.mark.full
def test_kafkas_tool_lists_describes_resets_and_deletes_groups(path: Path) -> None:
    def tool(*options: str) -> str:
        return run_tool(TOOL, "--bootstrap-server", bootstrap, *options).stdout

    with serve(path) as bootstrap:
        with members(bootstrap, CONSUMER, CONSUMER) as group:
            wait_until(lambda: is_shared(group))
            wait_until(lambda: committed(path) == READ)
            assert "Stable" in tool("--list", "--state")
            assert tool("--describe", "--group", "g").count("orders") == PARTITIONS
            assert tool("--describe", "--group", "g", "--members", "--verbose").count("orders") >= 2
            assert "Consumer" in tool("--list", "--type")
        assert "Empty" in tool("--describe", "--group", "g", "--state")
        tool("--reset-offsets", "--group", "g", "--topic", "orders:0", "--to-offset", "3", "--execute")
        assert committed(path)[0] == 3
        tool("--delete-offsets", "--group", "g", "--topic", "orders:1")
        assert 1 not in committed(path)
        tool("--delete", "--group", "g")
        assert LogDir.open(path).groups() == ()


@pytest.mark.full
def test_records_of_both_protocols_are_valid_to_kafkas_dump_tool(path: Path) -> None:
    with serve(path) as bootstrap:
        for settings in ((CLASSIC, CLASSIC), (CONSUMER, CONSUMER), (CLASSIC, CONSUMER)):
            with members(bootstrap, *settings) as group:
                wait_until(lambda group=group: is_shared(group))  # type: ignore[misc]
    files = [each for each in path.glob("__consumer_offsets-*/*.log") if each.stat().st_size]
    text = dump_log(files, "--offsets-decoder").stdout
    for record_type in (1, 2, 3, 5, 6, 7, 8):
        assert f'{{"type":"{record_type}","data"' in text
    assert "isvalid: false" not in text
