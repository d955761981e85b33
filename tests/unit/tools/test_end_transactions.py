"""abort and complete end transactions that producers of a server left open, on both kinds of roots."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from builders.root_places import RootPlace, client_address, forget, memory_root, store_of
from fakes.faulty_store import Fault, FaultyStore
from fakes.stopping_filesystem import Killed
from fakes.transaction_servers import Coordinated, run
from kafkalog_command import Command

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.object_store.location import parse_location
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.root.transactions.end_transaction import abort_transactional_id, state_append
from pyspark_kafkalog.root.transactions.metadata import TV2, TransactionMetadata
from pyspark_kafkalog.root.transactions.state_log import removal_append
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch
from pyspark_kafkalog.storage.names import TopicPartition

STATES = TopicPartition("__transaction_state", 0)


@dataclass
class LeftOpen:
    """A root with an open transaction of id t: [1] in a-0, [2] in a-1. `server` still runs."""

    place: RootPlace
    server: Coordinated
    producer: ProducerIdAndEpoch
    tool: Command

    def committed(self) -> list[list[bytes]]:
        """What consumers with read_committed see of the partitions, as a new process reads them."""
        log_dir = LogDir.open(self.place)
        return [log_dir.read("a", partition=each, isolation="read_committed")["value"].to_pylist() for each in range(2)]

    def state(self) -> str:
        (found,) = self.tool.json("describe", "--transactional-id", "t")
        return str(found["transactionState"])

    def metadata(self) -> TransactionMetadata:
        found = self.server.coordinator.logs.find(self.server.served.root.store.refresh(), "t")
        assert found is not None
        return found

    def decide(self, *, is_commit: bool) -> None:
        """What a broker's coordinator writes before it is killed without having written a marker."""
        now_ms = self.server.served.now_ms
        prepared = self.metadata().prepared(is_commit=is_commit, client_version=TV2, now_ms=now_ms)
        topic_id = self.server.context.image().topic(STATES.topic).topic_id
        self.server.served.append(state_append(STATES, [prepared], topic_id=topic_id, now_ms=now_ms))

    def check_sound(self) -> None:
        found = verify(LogDir.open(self.place).root, are_records_checked=True)
        assert found.is_sound, found.findings


@contextlib.contextmanager
def leaving_open(place: RootPlace, capsys: pytest.CaptureFixture[str]) -> Iterator[LeftOpen]:
    log_dir = LogDir.create(place)
    log_dir.create_topic("a", 2)
    log_dir.alter_broker_configs(add={"transaction.state.log.num.partitions": "1"})
    opened = client_address(place, FaultyStore(store_of(place).bucket)) if isinstance(place, str) else place
    server = Coordinated(opened)

    async def begin() -> ProducerIdAndEpoch:
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        await server.produce(producer, [b"2"], partition=1)
        return producer

    producer = run(begin())
    yield LeftOpen(place, server, producer, Command("transactions", parse_location(str(place)), capsys))
    server.close()


@pytest.fixture
def left_open(root_place: RootPlace, capsys: pytest.CaptureFixture[str]) -> Iterator[LeftOpen]:
    with leaving_open(root_place, capsys) as left:
        yield left


@pytest.mark.parametrize("is_merged", [False, True])
def test_abort_ends_the_transaction_in_all_partitions(left_open: LeftOpen, is_merged: bool) -> None:
    if is_merged:
        merge_segments(LogDir.open(left_open.place).root)
    output = left_open.tool("abort", "--transactional-id", "t")
    assert output.count("Aborted the transaction of producer") == 2
    assert "marker at offset 1, last stable offset 2." in output
    assert output.endswith("Transactional id t is in state CompleteAbort.\n")
    assert (left_open.committed(), left_open.state()) == ([[], []], "CompleteAbort")
    assert left_open.tool.json("find-hanging") == []
    assert "has no open transaction" in left_open.tool.fails("abort", "--transactional-id", "t")
    last, *_ = LogDir.open(left_open.place).history()
    assert last.operation == "abort transaction"
    left_open.check_sound()


def test_abort_by_offset_ends_the_transaction_in_all_partitions(left_open: LeftOpen) -> None:
    no_such = left_open.tool.fails("abort", "--topic", "a", "--partition", "1", "--start-offset", "1")
    assert "Could not find any open transactions starting at offset 1 on partition a-1" in no_such
    left_open.tool("abort", "--topic", "a", "--partition", "1", "--start-offset", "0")
    assert (left_open.committed(), left_open.state()) == ([[], []], "CompleteAbort")


def test_hanging_transaction_is_aborted_in_its_partition_alone(left_open: LeftOpen) -> None:
    """One that no coordinator knows: its id has expired."""
    server = left_open.server
    topic_id = server.context.image().topic(STATES.topic).topic_id
    server.served.append(removal_append(STATES, ["t"], topic_id=topic_id, now_ms=server.served.now_ms))
    left_open.tool("abort", "--topic", "a", "--partition", "0", "--start-offset", "0")
    assert [each["partition"] for each in left_open.tool.json("find-hanging")] == [1]
    left_open.check_sound()


def test_decided_transaction_is_completed_and_not_aborted(left_open: LeftOpen) -> None:
    assert "can only be aborted" in left_open.tool.fails("complete", "--transactional-id", "t")
    left_open.decide(is_commit=True)
    assert "use kafkalog transactions complete" in left_open.tool.fails("abort", "--transactional-id", "t")
    output = left_open.tool("complete", "--transactional-id", "t")
    assert output.count("Committed the transaction of producer") == 2
    assert (left_open.committed(), left_open.state()) == ([[b"1"], [b"2"]], "CompleteCommit")
    assert left_open.metadata().producer_epoch == left_open.producer.producer_epoch + 1
    left_open.check_sound()


def test_transaction_that_was_decided_to_abort_is_aborted_with_the_decided_epoch(left_open: LeftOpen) -> None:
    left_open.decide(is_commit=False)
    left_open.tool("abort", "--transactional-id", "t")
    assert (left_open.committed(), left_open.state()) == ([[], []], "CompleteAbort")
    assert left_open.metadata().producer_epoch == left_open.producer.producer_epoch + 1


async def test_running_server_sees_the_abort_and_fences_the_producer(left_open: LeftOpen) -> None:
    left_open.tool("abort", "--transactional-id", "t")
    server, old = left_open.server, left_open.producer
    assert await server.end(old) is ErrorCode.INVALID_TXN_STATE  # it may be a retry, but of an abort
    late = await server.produce(old, [b"late"], sequence=1)
    assert isinstance(late, RequestError)
    assert late.code is ErrorCode.INVALID_PRODUCER_EPOCH
    producer = await server.begin()
    await server.produce(producer, [b"3"])
    await server.end(producer)
    assert left_open.committed() == [[b"3"], []]


@pytest.mark.parametrize("crash", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_abort_killed_at_any_request_happens_whole_or_not_at_all(
    crash: Fault, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a file system: tests/crash/test_abort.py."""
    place = memory_root()
    with leaving_open(place, capsys) as left_open:
        left: list[int] = []
        while not left or left[-1]:
            client = FaultyStore(store_of(place).bucket)
            root = LogDir.open(client_address(place, client)).root.native()
            client.faults = {len(client.calls) + len(left): crash}
            with contextlib.suppress(Killed):
                abort_transactional_id(root, "t")
            left.append(len(left_open.tool.json("find-hanging")))
        assert left == [2] * (len(left) - 1) + [0]
        assert len(left) > 1
        assert (left_open.committed(), left_open.state()) == ([[], []], "CompleteAbort")
        left_open.check_sound()
    forget(place)
