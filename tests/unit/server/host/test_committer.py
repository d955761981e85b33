"""Workers of a host hand their batches to its committer: one commit of all, each with its own result, none twice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from builders.controlled import create_log_dir
from builders.leader_writers import T0, append, batch, mark, marker
from builders.root_places import RootPlace
from fakes.hosts import BareWorker, Host, Worker, results_message, working
from open_files import descriptors, descriptors_before
from patience import until

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import (
    CommitStateUnknownError,
    CorruptRecordError,
    InvalidRecordError,
    KafkalogError,
    OutOfOrderSequenceError,
    ReadOnlyLogDirError,
    RecordTooLargeError,
    UnknownTopicError,
)
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit, LeaderAppend
from pyspark_kafkalog.server.host import channel
from pyspark_kafkalog.server.host import committer as committer_module
from pyspark_kafkalog.server.host.channel import CheckedFor, Kind, Ring
from pyspark_kafkalog.storage.log.leader_append import prepare_batches

PRODUCER = 7


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_log_dir(tmp_path / "log", clock=lambda: T0).create_topic("a", 3)
    return tmp_path / "log"


@pytest.fixture
def address(tmp_path: Path) -> Path:
    return tmp_path / "committer"


@pytest.fixture
def host(path: Path, address: Path) -> Iterator[Host]:
    """A committer that runs; a test may kill it."""
    running = Host(address, path)
    yield running
    running.kill()


def unit(value: bytes = b"x", *, sequence: int = -1, producer: int = PRODUCER, **of: object) -> CommitUnit:
    """A batch of one record; with a `sequence` of a producer."""
    data = batch([value], producer=(producer, 0, sequence) if sequence >= 0 else (-1, -1, -1))
    return CommitUnit.of(append(data, **of))  # type: ignore[arg-type]


def offsets(results: list[tuple[AppendedRange, ...]]) -> list[int]:
    return [each.first_offset for (each,) in results]


def values(worker: Worker, partition: int = 0) -> list[bytes]:
    return worker.served.values(partition=partition)


async def held(host: Host, worker: Worker, partition: int = 2) -> asyncio.Future[tuple[AppendedRange, ...]]:
    """A unit whose commit has begun, and waits until the gate is open."""
    begun = host.begun
    host.gate.clear()
    first = worker.committer.submit(unit(b"held", partition=partition))
    await until(lambda: host.begun > begun)
    return first


async def turns() -> None:
    """Let the event loop hand over what was submitted."""
    for _ in range(3):
        await asyncio.sleep(0)


# Results


async def test_batches_are_committed_by_the_host_in_their_order(host: Host, path: Path, address: Path) -> None:
    async with working(address, path) as (worker,):
        units = [worker.committer.submit(unit(b"%d" % at, sequence=at)) for at in range(20)]
        assert offsets(await asyncio.gather(*units)) == list(range(20))
        assert values(worker) == [b"%d" % at for at in range(20)]
        assert (worker.by_host, worker.by_itself) == (20, 0)
    assert sum(host.commits) == 20


async def test_units_of_all_workers_that_wait_are_one_commit(host: Host, path: Path, address: Path) -> None:
    async with working(address, path, 3) as workers:
        await until(lambda: host.connections == 3)
        first = await held(host, workers[0])
        others = [each.committer.submit(unit()) for _ in range(5) for each in workers]
        await turns()
        host.gate.set()
        await asyncio.gather(first, *others)
        assert sorted(offsets([each.result() for each in others])) == list(range(15))
    assert host.commits == [1, 15]


async def test_duplicate_is_answered_with_the_offset_of_the_batch_in_the_log(
    host: Host, path: Path, address: Path
) -> None:
    async with working(address, path, 2) as (one, other):
        for at in range(3):
            await one.committer.commit(unit(sequence=at))
        (found,) = await other.committer.commit(unit(sequence=1))
        assert (found.first_offset, found.is_duplicate) == (1, True)
        assert len(values(one)) == 3


async def test_worker_connects_again_for_more_topics_than_a_connection_has_numbers(
    host: Host, path: Path, address: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "TOPICS_MAX", 2)
    log_dir = LogDir.open(path)
    for topic in "bcde":
        log_dir.create_topic(topic, 1)
    async with working(address, path) as (worker,):
        for first in range(3):
            units = [worker.committer.submit(unit(topic=topic)) for topic in "abcde"]
            assert offsets(await asyncio.gather(*units)) == [first] * 5
        assert (worker.by_host, worker.by_itself) == (15, 0)
        await until(lambda: host.topics_count <= 2)


def damaged() -> CommitUnit:
    data = bytearray(batch([b"damaged"]))
    data[-1] ^= 1
    return CommitUnit.of(append(bytes(data)))


def older_topic() -> CommitUnit:
    return unit(topic_id="AAAAAAAAAAAAAAAAAAAAAA")


REFUSED: dict[str, tuple[Callable[[], CommitUnit], type[KafkalogError]]] = {
    "CRC": (damaged, CorruptRecordError),
    "sequence": (partial(unit, sequence=5, partition=1), OutOfOrderSequenceError),
    "topic": (partial(unit, topic="none"), UnknownTopicError),
    "topic id": (older_topic, UnknownTopicError),
    "partition": (partial(unit, partition=3), UnknownTopicError),
    "control batch": (lambda: CommitUnit.of(append(marker(1, 0, is_commit=True))), InvalidRecordError),
    "truncated": (lambda: CommitUnit.of(append(batch()[:-1])), CorruptRecordError),
    "no batch": (lambda: CommitUnit.of(append(b"x")), CorruptRecordError),
}


@pytest.mark.all_cases
@pytest.mark.parametrize("name", REFUSED)
async def test_refused_batch_fails_alone_with_the_error_of_a_server_without_workers(
    host: Host, path: Path, address: Path, name: str
) -> None:
    make, kind = REFUSED[name]
    async with working(address, path) as (worker,):
        await worker.committer.commit(unit(sequence=0, partition=1))
        (alone,) = worker.served.commit(make())
        before = worker.committer.submit(unit(partition=2))
        refused = worker.committer.submit(make())
        after = worker.committer.submit(unit(sequence=1, partition=1))
        with pytest.raises(kind) as raised:
            await refused
        assert offsets([await before, await after]) == [0, 1]
        assert (type(raised.value), str(raised.value)) == (type(alone), str(alone))


async def test_deleted_and_created_topic_refuses_batches_for_the_earlier_one(
    host: Host, path: Path, address: Path
) -> None:
    async with working(address, path) as (worker,):
        topic_id = worker.served.root.store.image.topic("a").topic_id
        first = await held(host, worker)
        batch_of_earlier = worker.committer.submit(unit(topic_id=topic_id))
        await turns()
        admin = LogDir.open(path)
        admin.delete_topic("a")
        admin.create_topic("a", 3)
        host.gate.set()
        with pytest.raises(UnknownTopicError, match="was deleted; now it has"):
            await batch_of_earlier
        await first


async def test_commit_that_fails_fails_its_units_and_the_next_one_goes_on(
    host: Host, path: Path, address: Path
) -> None:
    async with working(address, path) as (worker,):
        host.failure = OSError(28, "disk full")
        with pytest.raises(OSError, match="disk full"):
            await worker.committer.commit(unit())
        host.failure = None
        assert offsets([await worker.committer.commit(unit())]) == [0]


async def test_cancelled_unit_does_not_disturb_the_others(host: Host, path: Path, address: Path) -> None:
    async with working(address, path) as (worker,):
        first = await held(host, worker)
        units = [worker.committer.submit(each) for each in (unit(sequence=0), damaged(), unit(sequence=1))]
        await turns()
        for each in units[:2]:
            each.cancel()
        host.gate.set()
        await asyncio.gather(first, units[2])
        assert offsets([units[2].result()]) == [1]


# Which way


async def test_units_of_coordinators_and_transactions_are_committed_by_the_worker(
    host: Host, path: Path, address: Path
) -> None:
    units = [
        CommitUnit.of(mark(batch())),
        CommitUnit(appends=lambda image: [append(batch())]),
        CommitUnit(appends=(append(batch()),), records=lambda image, appended: ()),
        CommitUnit.of(append(batch()), append(batch())),
        CommitUnit.of(replace(append(batch(producer=(1, 0, 0), is_transactional=True)), is_transaction_v2=True)),
    ]
    async with working(address, path) as (worker,):
        for each in units:
            await worker.committer.commit(each)
        assert (worker.by_host, worker.by_itself) == (0, len(units))
    assert not host.commits


async def test_batches_stay_in_order_when_one_of_them_is_for_the_worker_itself(
    host: Host, path: Path, address: Path
) -> None:
    """A Produce request of two batches, which clients of today do not send, is not for the memory."""
    two = batch([b"1"], producer=(PRODUCER, 0, 1)) + batch([b"2"], producer=(PRODUCER, 0, 2))
    async with working(address, path) as (worker,):
        made = [unit(b"0", sequence=0), CommitUnit.of(append(two)), unit(b"3", sequence=3), unit(b"4", sequence=4)]
        await asyncio.gather(*map(worker.committer.submit, made))
        assert values(worker) == [b"0", b"1", b"2", b"3", b"4"]
        assert (worker.by_host, worker.by_itself) == (3, 1)


def prepared(worker: Worker, made: LeaderAppend, config: LogConfig | None = None) -> CommitUnit:
    """A unit whose costly batch was checked before it is submitted."""
    image = worker.served.root.store.image
    known = config or worker.served.root.configs.of(image, image.topic("a"))
    return CommitUnit.of(replace(made, prepared=prepare_batches(made.data, known, now_ms=T0)))


async def test_batch_that_was_checked_before_is_committed_by_the_host(host: Host, path: Path, address: Path) -> None:
    async with working(address, path) as (worker,):
        made = append(batch([b"costly"], codec=CompressionType.GZIP))
        await worker.committer.commit(prepared(worker, made))
        assert (values(worker), worker.by_host) == ([b"costly"], 1)


async def test_batch_that_was_checked_for_another_configuration_is_checked_again(
    host: Host, path: Path, address: Path
) -> None:
    async with working(address, path) as (worker,):
        earlier = LogConfig(max_message_bytes=10_000_000)
        made = append(batch([bytes(2_000_000)]))
        with pytest.raises(RecordTooLargeError):
            await worker.committer.commit(prepared(worker, made, earlier))


@pytest.mark.parametrize("codec", [each for each in CompressionType if each], ids=lambda each: each.name)
async def test_compressed_batches_are_committed_by_the_host(
    host: Host, path: Path, address: Path, codec: CompressionType
) -> None:
    async with working(address, path) as (worker,):
        found = [await worker.committer.commit(CommitUnit.of(append(batch(codec=codec)))) for _ in range(2)]
        assert offsets(found) == [0, 3]
        assert (values(worker), worker.by_host) == ([b"a", b"b", b"c"] * 2, 2)


@pytest.mark.parametrize(
    "configs", [{"compression.type": "zstd"}, {"message.timestamp.type": "LogAppendTime"}], ids=str
)
async def test_batches_that_are_rewritten_are_committed_by_the_host(
    host: Host, path: Path, address: Path, configs: dict[str, str]
) -> None:
    LogDir.open(path).alter_topic("a", add=configs)
    async with working(address, path) as (worker,):
        worker.served.root.refresh()
        (found,) = await worker.committer.commit(CommitUnit.of(append(batch())))
        has_append_time = "message.timestamp.type" in configs
        assert found.log_append_time_ms == (worker.served.now_ms if has_append_time else -1)
        assert (values(worker), worker.by_host) == ([b"a", b"b", b"c"], 1)


async def test_batch_larger_than_the_memory_is_committed_by_the_worker_in_its_order(
    host: Host, path: Path, address: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "Ring", partial(Ring, 1000))
    async with working(address, path) as (worker,):
        sizes = [10, 2000, 20, 30]
        units = [worker.committer.submit(unit(bytes(size), sequence=at)) for at, size in enumerate(sizes)]
        assert offsets(await asyncio.gather(*units)) == [0, 1, 2, 3]
        assert [len(each) for each in values(worker)] == sizes
        assert (worker.by_host, worker.by_itself) == (3, 1)


async def test_batches_for_which_the_memory_has_no_room_wait_for_those_before(
    host: Host, path: Path, address: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "Ring", partial(Ring, 3 * len(batch([b"00"])) + 10))
    async with working(address, path) as (worker,):
        units = [worker.committer.submit(unit(b"%02d" % at, sequence=at)) for at in range(20)]
        assert offsets(await asyncio.gather(*units)) == list(range(20))
        assert (worker.by_host, worker.by_itself) == (20, 0)
    assert max(host.commits) <= 3


# Configurations that change


async def answered_after(
    host: Host, path: Path, address: Path, configs: dict[str, str], data: bytes
) -> tuple[AppendedRange, list[bytes]]:
    """The result of a batch whose topic is altered between its check and its commit, and the values in the log."""
    async with working(address, path) as (worker,):
        first = await held(host, worker)
        checked = worker.committer.submit(CommitUnit.of(append(data)))
        await turns()
        LogDir.open(path).alter_topic("a", add=configs)
        host.gate.set()
        await first
        (found,) = await checked
        assert (worker.by_host, worker.by_itself) == (2, 2)  # the host has only answered that the checks are outdated
        await worker.committer.commit(CommitUnit.of(append(batch([b"x"]))))
        assert (worker.by_host, worker.by_itself) == (3, 2)
        return found, values(worker)


async def test_batch_that_has_become_too_large_is_refused(host: Host, path: Path, address: Path) -> None:
    with pytest.raises(RecordTooLargeError):
        await answered_after(host, path, address, {"max.message.bytes": "200"}, batch([bytes(1000)]))


async def test_batch_is_stored_with_the_codec_of_the_new_configuration(host: Host, path: Path, address: Path) -> None:
    _, found = await answered_after(host, path, address, {"compression.type": "gzip"}, batch([b"aa"]))
    assert found == [b"aa", b"x"]
    segment = next(path.glob("a-0/*.log")).read_bytes()
    assert segment[22] & 7 == CompressionType.GZIP


async def test_batch_gets_the_append_time_of_the_new_configuration(host: Host, path: Path, address: Path) -> None:
    configs = {"message.timestamp.type": "LogAppendTime"}
    found, _ = await answered_after(host, path, address, configs, batch([b"aa"]))
    assert found.log_append_time_ms == T0 + 60_000


async def test_worker_that_does_not_know_the_newest_configuration_refuses_no_batch_by_it(
    host: Host, path: Path, address: Path
) -> None:
    LogDir.open(path).alter_topic("a", add={"max.message.bytes": "200"})
    async with working(address, path) as (worker,):
        LogDir.open(path).alter_topic("a", add={"max.message.bytes": "100000"})
        assert offsets([await worker.committer.commit(unit(bytes(1000)))]) == [0]


async def test_batch_for_a_new_configuration_waits_for_those_that_may_be_checked_again(
    host: Host, path: Path, address: Path
) -> None:
    async with working(address, path) as (worker,):
        first = await held(host, worker)
        units = [worker.committer.submit(unit(b"0", sequence=0))]
        await turns()
        LogDir.open(path).alter_topic("a", add={"max.message.bytes": "100000"})
        worker.served.root.refresh()
        units += [worker.committer.submit(unit(b"%d" % at, sequence=at)) for at in (1, 2)]
        await turns()
        host.gate.set()
        assert offsets(await asyncio.gather(*units)) == [0, 1, 2]
        await first


# Ends


@pytest.mark.parametrize("is_committed", [False, True])
async def test_units_of_a_killed_committer_are_committed_once_or_unknown(
    host: Host, path: Path, address: Path, is_committed: bool
) -> None:
    async with working(address, path, 2) as workers:
        first = await held(host, workers[0])
        with_sequences = [
            each.committer.submit(unit(b"%d" % at, sequence=at, producer=number, partition=number))
            for number, each in enumerate(workers)
            for at in range(5)
        ]
        without = [each.committer.submit(unit(b"unknown", partition=2)) for each in workers]
        await turns()
        assert not first.done()
        host.kill(commits=is_committed)
        for each in (first, *without):
            with pytest.raises(CommitStateUnknownError, match="may have committed the batch"):
                await each
        assert offsets(await asyncio.gather(*with_sequences)) == [0, 1, 2, 3, 4] * 2
        for number, each in enumerate(workers):
            assert values(each, number) == [b"%d" % at for at in range(5)]
            assert each.by_itself == 5
        assert values(workers[0], 2) == ([b"held"] if is_committed else [])


async def test_batch_that_the_killed_committer_has_committed_is_found_by_its_sequence(
    root_place: RootPlace, address: Path
) -> None:
    create_log_dir(root_place, clock=lambda: T0).create_topic("a", 3)
    host = Host(address, root_place)
    async with working(address, root_place) as (worker,):
        await worker.committer.commit(unit(b"0", sequence=0))
        host.gate.clear()
        sent = worker.committer.submit(unit(b"1", sequence=1))
        await until(lambda: host.begun == 2)
        host.kill(commits=True)
        (found,) = await sent
        assert (found.first_offset, found.is_duplicate) == (1, True)
        assert values(worker) == [b"0", b"1"]


async def test_worker_commits_by_itself_in_order_until_a_committer_listens_again(
    host: Host, path: Path, address: Path
) -> None:
    async with working(address, path) as (worker,):
        first = await held(host, worker, partition=0)
        sent = [worker.committer.submit(unit(b"%d" % at, sequence=at)) for at in range(3)]
        await turns()
        host.kill()
        sent += [worker.committer.submit(unit(b"%d" % at, sequence=at)) for at in range(3, 6)]
        assert offsets(await asyncio.gather(*sent)) == list(range(6))
        assert (worker.by_host, worker.by_itself) == (0, 6)
        with pytest.raises(CommitStateUnknownError):
            await first

        again = Host(address, path)
        await until(lambda: again.connections)
        sent = [worker.committer.submit(unit(b"%d" % at, sequence=at)) for at in range(6, 9)]
        assert offsets(await asyncio.gather(*sent)) == [6, 7, 8]
        assert (worker.by_host, worker.by_itself) == (3, 6)
    again.stop()
    assert sum(again.commits) == 3


async def test_workers_begin_without_a_committer(path: Path, address: Path) -> None:
    async with working(address, path) as (worker,):
        assert offsets([await worker.committer.commit(unit())]) == [0]
        late = Host(address, path)
        await until(lambda: late.connections)
        assert offsets([await worker.committer.commit(unit())]) == [1]
        assert (worker.by_host, worker.by_itself) == (1, 1)
    late.stop()


async def test_stop_waits_for_what_was_submitted_and_refuses_what_comes_later(
    host: Host, path: Path, address: Path
) -> None:
    async with working(address, path) as (worker,):
        first = await held(host, worker)
        others = [worker.committer.submit(unit(sequence=at)) for at in range(3)]
        await turns()
        others[0].cancel()
        stopping = asyncio.ensure_future(worker.committer.stop())
        await turns()
        assert not stopping.done()
        with pytest.raises(ReadOnlyLogDirError, match="does not write"):
            await worker.committer.commit(unit())
        host.gate.set()
        await stopping
        assert offsets([first.result(), *(each.result() for each in others[1:])]) == [0, 1, 2]
    host.stop()


async def test_committer_that_ends_waits_for_its_workers(host: Host, path: Path, address: Path) -> None:
    async with working(address, path) as (worker,):
        await until(lambda: host.connections)
        ending = asyncio.get_running_loop().run_in_executor(None, host.stop)
        for at in range(3):
            await worker.committer.commit(unit(sequence=at))
        assert not ending.done()
    await ending
    assert sum(host.commits) == 3


# Workers that fail


def topic(path: Path) -> CheckedFor:
    root = LogDir.open(path).root.native()
    image = root.store.image
    return CheckedFor("a", None, root.configs.of(image, image.topic("a")))


async def test_units_of_a_worker_that_was_killed_are_committed(host: Host, path: Path, address: Path) -> None:
    async with working(address, path) as (worker,):
        first = await held(host, worker)
        killed = BareWorker(address, topic(path))
        killed.send(*(batch([b"%d" % at], producer=(PRODUCER, 0, at)) for at in range(3)))
        killed.close()
        other = worker.committer.submit(unit(partition=1))
        host.gate.set()
        await asyncio.gather(first, other)
        await until(lambda: sum(host.commits) == 5)
        assert values(worker) == [b"0", b"1", b"2"]


async def test_worker_that_does_not_read_its_answers_holds_up_no_other(host: Host, path: Path, address: Path) -> None:
    async with working(address, path) as (worker,):
        slow = BareWorker(address, topic(path))
        for _ in range(30):
            slow.send(*[batch([b"s"])] * 20)  # each an answer of 660 bytes, at most
        await until(lambda: sum(host.commits) == 600)
        assert offsets([await worker.committer.commit(unit(partition=1))]) == [0]
        found = await asyncio.get_running_loop().run_in_executor(None, slow.results, 600)
        assert [each.first_offset for each in found if isinstance(each, AppendedRange)] == list(range(600))
        slow.close()


HOSTILE = {
    "nothing": b"",
    "random": bytes(range(1, 200)),
    "large": b"\xff" * 100,
    "results": channel.message(Kind.RESULTS, bytes(4)),
    "second memory": channel.message(Kind.MEMORY, bytes(8)),
    "units of no topic": channel.message(Kind.UNITS, bytes(channel.UNITS.itemsize)),
    "part of a unit": channel.message(Kind.UNITS, b"x"),
    "topic": channel.message(Kind.TOPIC, b"x" * 40),
    "other number": channel.topic_message(5, CheckedFor("a", None, LogConfig())),
}


@pytest.mark.all_cases
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("has_memory", [False, True])
async def test_connection_that_sends_anything_else_is_ended_and_the_others_go_on(
    host: Host, path: Path, address: Path, name: str, has_memory: bool
) -> None:
    async with working(address, path) as (worker,):
        await worker.committer.commit(unit())
        before = descriptors_before()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hostile:
            hostile.connect(str(address))
            if has_memory:
                channel.send_memory(hostile, 1000)
            if data := HOSTILE[name]:
                hostile.sendall(data)
            else:
                hostile.shutdown(socket.SHUT_WR)
            await asyncio.get_running_loop().run_in_executor(None, ended, hostile)
        assert offsets([await worker.committer.commit(unit())]) == [1]
        await until(lambda: descriptors() == before)


def ended(connection: socket.socket) -> None:
    """Return when the other end has ended the connection."""
    connection.settimeout(60)
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(100) == b""


APPENDED = AppendedRange(first_offset=0, last_offset=0, log_start_offset=0)
#: Messages, and the end of the log after them: the first answers three units that were never committed.
UNREADABLE = {
    "more results than units": (results_message(*[APPENDED] * 4), 0),
    "damaged results": (channel.message(Kind.RESULTS, b"\xff" * 50), 3),
    "units": (channel.message(Kind.UNITS, b""), 3),
    "random": (bytes(range(1, 200)), 3),
}


@pytest.mark.all_cases
@pytest.mark.parametrize("name", UNREADABLE)
async def test_worker_leaves_a_committer_whose_answers_it_cannot_read(path: Path, address: Path, name: str) -> None:
    data, end = UNREADABLE[name]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(address))
        listener.listen()
        async with working(address, path) as (worker,):
            sent = [worker.committer.submit(unit(b"%d" % at, sequence=at)) for at in range(3)]
            await turns()
            connected, _ = listener.accept()
            listener.close()
            with connected:
                connected.sendall(data)
                await asyncio.gather(*sent)
            assert offsets([await worker.committer.commit(unit(b"3", sequence=3))]) == [end]


# The interval


async def test_commits_begin_an_interval_apart(path: Path, address: Path) -> None:
    now_ms, looks = 0, 0

    def clock() -> int:
        nonlocal looks
        looks += 1
        return now_ms

    def has_looked(times: int) -> bool:
        return looks > times

    host = Host(address, path, interval_ms=20, clock=clock)
    async with working(address, path, 2) as workers:
        await until(lambda: host.connections == 2)
        await workers[0].committer.commit(unit())
        units = []
        for _ in range(3):
            units += [each.committer.submit(unit()) for each in workers]
            now_ms += 6
            await until(partial(has_looked, looks + 6))
            assert host.commits == [1]
        now_ms += 2
        await asyncio.gather(*units)
        assert host.commits == [1, 6]
    host.stop()
