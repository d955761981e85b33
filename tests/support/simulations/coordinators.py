"""Servers whose coordinators take over from each other, and members of a group that copy records in transactions.

Two servers serve one root, each a loop of event_loops.py with its own coordinators, committer and signs of life.
Members, loops too, share the partitions of topic `in`: they copy its values to `out`, with their offsets in the
transaction. Servers are frozen at any step, even between a decision and its commit, and go on later as if nothing had
happened; they are killed with what they had submitted, and stopped. Members freeze too, and are replaced.

In the end each value of `in` is in `out` once, as read_committed sees it, and the group has committed all offsets.

Members of KIP-848 say no more than Kafka's clients do: what they own until that was answered, everything after a
heartbeat that failed, as Java's, or not even then, as librdkafka's. No partition is ever two members' in the log, and
what a member that is no zombie believes to own is its own there. In the end each partition has one member.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from builders.controlled import open_log_dir
from builders.leader_writers import T0, append, batch
from builders.root_places import RootPlace
from fakes.group_servers import subscription
from fakes.transaction_servers import SESSION, NoWaiters, Permissions
from fakes.unlimited import unlimited

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.groups.consumer_group import consumer_group_of
from pyspark_kafkalog.groups.offset_records import group_partition
from pyspark_kafkalog.groups.offsets_topic import GroupLogs
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import consumer_groups, groups, offsets, transactions
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.server.cluster import ClusterOfServers, HeartbeatFiles, HeartbeatObjects
from pyspark_kafkalog.server.context import Node, Request, ServerContext
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator
from pyspark_kafkalog.server.groups.offsets import TransactionalCommits
from pyspark_kafkalog.server.roles import STATELESS_HANDLERS, group_handlers, transaction_handlers
from pyspark_kafkalog.server.transactions.coordinator import TransactionCoordinator
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch
from pyspark_kafkalog.server.transactions.units import TransactionAdmission
from simulations.event_loops import LateExecutor, SimulatedLoop, SimulatedTime

GROUP: Final = "g"
PARTITIONS: Final = 3
VALUES: Final = 40
FAULTS: Final = 12
CONFIGS: Final = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
_SESSION_MS: Final = 6_000
_TRANSACTION_MS: Final = 10_000
_REQUEST_S: Final = 15.0
_LATENCY_S: Final = 0.02
_AGAIN: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
)


class LateCommitter:
    """Commits what was submitted a little later, and tells it a little later than that."""

    def __init__(self, root: Any, loop: SimulatedLoop, rng: random.Random) -> None:
        self._writer = root.committer(flush="os")
        self._loop, self._rng = loop, rng
        self._waiting: list[tuple[CommitUnit, asyncio.Future[tuple[AppendedRange, ...]]]] = []
        self._is_scheduled = False

    def submit(self, unit: CommitUnit) -> asyncio.Future[tuple[AppendedRange, ...]]:
        future: asyncio.Future[tuple[AppendedRange, ...]] = self._loop.create_future()
        self._waiting.append((unit, future))
        self._schedule()
        return future

    async def commit(self, unit: CommitUnit) -> tuple[AppendedRange, ...]:
        return await self.submit(unit)

    def close(self) -> None:
        self._writer.close()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._waiting:
            self._is_scheduled = True
            self._loop.call_later(self._rng.uniform(0, _LATENCY_S), self._commit)

    def _commit(self) -> None:
        taken, self._waiting = self._waiting, []
        results: Any
        try:
            results = self._writer.commit([unit for unit, _ in taken])
        except (KafkalogError, OSError) as error:
            results = [error] * len(taken)

        def tell() -> None:
            self._is_scheduled = False
            for (_, future), result in zip(taken, results, strict=True):
                if not future.cancelled():
                    future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)
            self._schedule()

        self._loop.call_later(self._rng.uniform(0, _LATENCY_S), tell)


class Server:
    """One server process; `start` restarts it, with an empty memory."""

    def __init__(self, simulation: CoordinatorSimulation, number: int, address: Path | StoreAddress) -> None:
        self._simulation, self._number, self._address = simulation, number, address
        self._starts = 0
        self.is_accepting = False
        self._pending: dict[asyncio.Future[Any], SimulatedLoop] = {}
        self.start()

    def start(self) -> None:
        time, rng = self._simulation.time, self._simulation.rng
        self._starts += 1
        self.loop = loop = time.new_loop()
        log_dir = open_log_dir(self._address, clock=self._simulation.wall_ms)
        root = log_dir.root.native()
        place = HeartbeatObjects(root.objects) if isinstance(root, ObjectRoot) else HeartbeatFiles(root.path)
        executor = LateExecutor(loop, rng, seconds_max=_LATENCY_S)
        self._cluster = ClusterOfServers(
            Node(self._number, "127.0.0.1", self._number),
            "simulated",
            f"start{self._starts}",
            place,
            executor,
            interval_s=0.5,
            timeout_ms=3_000,
            monotonic_ms=self._simulation.wall_ms,
        )
        self.committer = LateCommitter(root, loop, rng)
        self._context = context = ServerContext(
            root=root,
            native=root,
            cluster=self._cluster,
            committer=self.committer,
            guard=Permissions(),
            waiters=NoWaiters(),
            executor=executor,
            clock=self._simulation.wall_ms,
            monotonic_ms=self._simulation.wall_ms,
            **unlimited(),
        )
        self._groups, self._transactions = GroupCoordinator(context), TransactionCoordinator(context, root)
        self._admission = TransactionAdmission(self._transactions.logs)
        self._handlers = {
            **STATELESS_HANDLERS,
            **group_handlers(self._groups),
            **transaction_handlers(self._transactions, TransactionalCommits(self._groups)),
        }
        loop.create_task(self._join())

    async def _join(self) -> None:
        for service in (self._cluster, self._transactions, self._groups):
            await service.start()
        self.is_accepting = True

    def kill(self) -> None:
        self._simulation.time.kill(self.loop)
        self._disconnect()

    def stop(self, done: Callable[[], None]) -> None:
        """As after SIGTERM: connections end, then the services."""

        async def leave() -> None:
            self._disconnect()
            for service in (self._groups, self._transactions, self._cluster):
                await service.stop()
            self._simulation.time.kill(self.loop)
            done()

        self.loop.create_task(leave())

    def _disconnect(self) -> None:
        self.is_accepting = False
        for answer, loop in self._pending.items():
            loop.call_soon(_fail, answer)
        self._pending.clear()

    # Requests. They and their answers take a while; a frozen server gets them when it goes on.

    async def ask(self, loop: SimulatedLoop, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The answer of the server, to a client in `loop`. Raises ConnectionError, asyncio.TimeoutError."""
        rng = self._simulation.rng
        if not self.is_accepting:
            await asyncio.sleep(0.05)
            raise ConnectionError
        answer = loop.create_future()
        own = self.loop

        async def handle() -> None:
            result = await work()
            if self._pending.pop(answer, None) is not None and own is self.loop:
                loop.call_later(rng.uniform(0, _LATENCY_S), _tell, answer, result)

        self._pending[answer] = loop
        own.call_later(rng.uniform(0, _LATENCY_S), lambda: own.create_task(handle()))
        return await asyncio.wait_for(answer, _REQUEST_S)

    async def handle(self, api: ApiKey, version: int, body: Message) -> Any:
        return await self._handlers[api](self._context, Request(api, version, "c", body, SESSION))

    async def produce(self, name: str, producer: ProducerIdAndEpoch, sequence: int, partition: int, value: str) -> Any:
        """The error of a transactional batch of one record for topic `out`."""
        key = (producer.producer_id, producer.producer_epoch, sequence)
        data = batch([value.encode()], producer=key, is_transactional=True)
        try:
            await self.committer.commit(self._admission.produce_unit(12, name, append(data, "out", partition)))
        except KafkalogError as error:
            return error
        return None


def _tell(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(ConnectionError())


class RefusedError(Exception):
    """A coordinator has refused a request for good."""

    def __init__(self, code: int) -> None:
        self.code = ErrorCode(code)  # type: ignore[call-arg]
        super().__init__(self.code.name)


class Member:
    """A client: a member of the group, with a transactional id. `is_next`: by the protocol of KIP-848."""

    def __init__(self, simulation: CoordinatorSimulation, name: str, *, is_next: bool) -> None:
        self._simulation, self._is_next = simulation, is_next
        self._is_full_after_failure = simulation.rng.random() < 0.5
        self.name = name
        self.start()

    def start(self) -> None:
        """As a new process, with the same transactional id."""
        self._count = self._simulation.next_count()
        self.loop = self._simulation.time.new_loop()
        self._id, self._generation = "", 0
        self._owned: dict[int, int] = {}
        self._said_owned: frozenset[int] = frozenset()
        self._told_owned: frozenset[int] | None = None
        self._producer: ProducerIdAndEpoch | None = None
        self._heartbeat_s = 0.0
        self._coordinators: dict[int, Server] = {}
        self.loop.create_task(self._run())

    def kill(self) -> None:
        self._simulation.time.kill(self.loop)

    async def _run(self) -> None:
        while True:
            try:
                await self._work()
            except (ConnectionError, asyncio.TimeoutError):
                self._coordinators.clear()
            except RefusedError as refused:
                self._simulation.counts[refused.code.name] = self._simulation.counts.get(refused.code.name, 0) + 1
                self._generation, self._owned = 0, {}
                if self._producer is not None and refused.code not in _OF_GROUPS:
                    self._producer = None
                if refused.code is ErrorCode.UNKNOWN_MEMBER_ID:
                    self._id = ""
            await asyncio.sleep(self._simulation.rng.uniform(0.05, 0.3))

    async def _work(self) -> None:
        if self._producer is None:
            await self._init()
        if self._simulation.time.now_s >= self._heartbeat_s or not self._generation:
            await (self._beat() if self._is_next else self._keep_generation())
            self._heartbeat_s = self._simulation.time.now_s + 1
        for partition, position in list(self._owned.items()):
            rows = self._simulation.read(partition, position)
            if rows:
                await self._copy(partition, rows)
                return

    # Coordinators

    async def _ask_coordinator(
        self,
        key_type: int,
        api: ApiKey,
        version: int,
        body: Message,
        error_of: Callable[[Any], int],
        body_again: Callable[[], Message] | None = None,
    ) -> Any:
        """The answer of the coordinator; `body_again` is what is sent instead of `body` after a failure."""
        while True:
            try:
                if key_type not in self._coordinators:
                    self._coordinators[key_type] = await self._find(key_type)
                server = self._coordinators[key_type]
                answer = await server.ask(self.loop, lambda server=server, body=body: server.handle(api, version, body))
            except (ConnectionError, asyncio.TimeoutError):
                self._coordinators.pop(key_type, None)
                await asyncio.sleep(0.1)
                body = body_again() if body_again is not None else body
                continue
            error = error_of(answer)
            if error not in _AGAIN:
                return answer
            if error != ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinators.pop(key_type, None)
            await asyncio.sleep(0.1)
            body = body_again() if body_again is not None else body

    async def _find(self, key_type: int) -> Server:
        server = self._simulation.rng.choice(self._simulation.servers)
        body = groups.FindCoordinatorRequest(key=(GROUP, self.name)[key_type], key_type=key_type)
        found = await server.ask(self.loop, lambda: server.handle(ApiKey.FIND_COORDINATOR, 3, body))
        assert found.error_code == 0
        return self._simulation.servers[found.node_id - 1]

    async def _group(self, api: ApiKey, version: int, body: Message) -> Any:
        """Raises RefusedError."""
        answer = await self._ask_coordinator(0, api, version, body, lambda found: found.error_code)
        if answer.error_code:
            raise RefusedError(answer.error_code)
        return answer

    # The classic protocol

    async def _keep_generation(self) -> None:
        if self._generation:
            body = groups.HeartbeatRequest(group_id=GROUP, generation_id=self._generation, member_id=self._id)
            await self._group(ApiKey.HEARTBEAT, 4, body)
            return
        joined = await self._join()
        if joined is None:
            return
        assigned: dict[str, bytes] = {}
        if joined.leader == self._id:
            members = sorted(each.member_id for each in joined.members)
            for at, each in enumerate(members):
                assigned[each] = json.dumps(list(range(at, PARTITIONS, len(members)))).encode()
        sync = groups.SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=self._id,
            assignments=tuple(
                groups.SyncGroupRequestAssignment(member_id=each, assignment=value) for each, value in assigned.items()
            ),
        )
        synced = await self._group(ApiKey.SYNC_GROUP, 4, sync)  # later versions name the protocol
        self._generation = joined.generation_id
        await self._own(json.loads(bytes(synced.assignment) or b"[]"))

    async def _join(self) -> Any:
        body = groups.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=8_000,
            member_id=self._id,
            protocol_type="consumer",
            protocols=(groups.JoinGroupRequestProtocol(name="range", metadata=subscription("in")),),
        )
        joined = await self._ask_coordinator(0, ApiKey.JOIN_GROUP, 9, body, lambda found: found.error_code)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._id = joined.member_id
            return None
        if joined.error_code:
            raise RefusedError(joined.error_code)
        return joined

    # The consumer protocol

    async def _beat(self) -> None:
        self._id = self._id or f"{self.name}-{self._count}"
        found = await self._ask_coordinator(
            0,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            self._heartbeat(is_full=not self._generation),
            lambda answer: answer.error_code,
            lambda: self._heartbeat(is_full=self._is_full_after_failure or not self._generation),
        )
        if found.error_code:
            raise RefusedError(found.error_code)
        self._generation = found.member_epoch
        self._told_owned = self._said_owned
        if found.assignment is not None:
            await self._own([number for each in found.assignment.topic_partitions for number in each.partitions])
        self._simulation.check_owners()

    def _heartbeat(self, *, is_full: bool) -> Message:
        """A heartbeat as a client of Kafka sends it: what has not changed is left out, unless it `is_full`."""
        owned = frozenset(self._owned)
        parts = consumer_groups.ConsumerGroupHeartbeatRequestTopicPartitions(
            topic_id=self._simulation.topic_id, partitions=tuple(sorted(owned))
        )
        says_owned = is_full or owned != self._told_owned
        self._said_owned = owned
        return consumer_groups.ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._id,
            member_epoch=self._generation,
            rebalance_timeout_ms=8_000 if is_full else -1,
            subscribed_topic_names=("in",) if is_full else None,
            topic_partitions=((parts,) if owned else ()) if says_owned else None,
        )

    def believed(self) -> tuple[str, int, frozenset[int]]:
        """Its member id and epoch, and what it believes to own."""
        return self._id, self._generation, frozenset(self._owned)

    # Offsets and transactions

    async def _own(self, partitions: list[int]) -> None:
        """Begin with the committed offsets of new partitions, once no transaction is open over them."""
        self._owned = {each: position for each, position in self._owned.items() if each in partitions}
        new = tuple(each for each in partitions if each not in self._owned)
        if not new:
            return
        asked = offsets.OffsetFetchRequestGroup(
            group_id=GROUP, topics=(offsets.OffsetFetchRequestTopics(name="in", partition_indexes=new),)
        )
        body = offsets.OffsetFetchRequest(groups=(asked,), require_stable=True)

        def error_of(found: Any) -> int:
            errors = [found.groups[0].error_code]
            errors += [each.error_code for topic in found.groups[0].topics for each in topic.partitions]
            return max(errors, key=lambda error: error in _AGAIN)

        found = await self._ask_coordinator(0, ApiKey.OFFSET_FETCH, 8, body, error_of)
        assert not found.groups[0].error_code
        for each in found.groups[0].topics[0].partitions:
            assert each.error_code == 0
            self._owned[each.partition_index] = max(each.committed_offset, 0)

    async def _init(self) -> None:
        body = transactions.InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=_TRANSACTION_MS, producer_id=-1, producer_epoch=-1
        )
        found = await self._ask_coordinator(1, ApiKey.INIT_PRODUCER_ID, 5, body, lambda answer: answer.error_code)
        if found.error_code:
            raise RefusedError(found.error_code)
        self._producer = ProducerIdAndEpoch(found.producer_id, found.producer_epoch)

    async def _copy(self, partition: int, rows: list[tuple[int, str]]) -> None:
        producer = self._producer
        assert producer is not None
        error: int = ErrorCode.NONE
        for sequence, (_, value) in enumerate(rows):
            error = error or await self._produce(producer, sequence, partition, value)
        error = error or await self._commit_offset(producer, partition, rows[-1][0] + 1)
        body = transactions.EndTxnRequest(
            transactional_id=self.name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=not error,
        )
        ended = await self._ask_coordinator(1, ApiKey.END_TXN, 5, body, lambda answer: answer.error_code)
        if ended.error_code:
            raise RefusedError(ended.error_code)
        self._producer = ProducerIdAndEpoch(ended.producer_id, ended.producer_epoch)
        name = "aborted" if error else "committed"
        self._simulation.counts[name] = self._simulation.counts.get(name, 0) + 1
        if error:
            raise RefusedError(error)
        if partition in self._owned:
            self._owned[partition] = rows[-1][0] + 1

    async def _produce(self, producer: ProducerIdAndEpoch, sequence: int, partition: int, value: str) -> int:
        """The error code; a batch is sent until it is answered, to any server."""
        while True:
            server = self._simulation.rng.choice(self._simulation.servers)
            try:
                error = await server.ask(
                    self.loop, lambda server=server: server.produce(self.name, producer, sequence, partition, value)
                )
            except (ConnectionError, asyncio.TimeoutError):
                continue
            code = getattr(error, "error_code", ErrorCode.UNKNOWN_SERVER_ERROR) if error else ErrorCode.NONE
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return code
            await asyncio.sleep(0.05)

    async def _commit_offset(self, producer: ProducerIdAndEpoch, partition: int, offset: int) -> int:
        one = transactions.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        body = transactions.TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=GROUP,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            generation_id_or_member_epoch=self._generation,
            member_id=self._id,
            topics=(transactions.TxnOffsetCommitRequestTopic(name="in", partitions=(one,)),),
        )

        def error_of(found: Any) -> int:
            return int(found.topics[0].partitions[0].error_code)

        return error_of(await self._ask_coordinator(0, ApiKey.TXN_OFFSET_COMMIT, 5, body, error_of))


_OF_GROUPS: Final = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)


class CoordinatorSimulation:
    """Two servers, three members, and what happens to them."""

    def __init__(
        self, place: RootPlace, servers: Sequence[Path | StoreAddress], rng: random.Random, *, is_next: bool
    ) -> None:
        """`servers`: how each server opens the root at `place`. `is_next`: members use the protocol of KIP-848."""
        self.rng = rng
        self.time = SimulatedTime(rng)
        self.counts: dict[str, int] = {}
        self._members_made = 0
        self.log_dir = LogDir.create(place)
        self.log_dir.alter_broker_configs(add=CONFIGS)
        for topic in ("in", "out"):
            self.log_dir.create_topic(topic, PARTITIONS)
        self.topic_id = self.log_dir.topic("in").topic_id
        self._sent: dict[int, list[str]] = {each: [] for each in range(PARTITIONS)}
        self.servers = [Server(self, at, address) for at, address in enumerate(servers, 1)]
        self.members = [Member(self, f"copier{at}", is_next=is_next) for at in range(3)]
        self._is_disturbed = True

    def wall_ms(self) -> int:
        return T0 + int(self.time.now_s * 1000)

    def next_count(self) -> int:
        self._members_made += 1
        return self._members_made

    def read(self, partition: int, position: int) -> list[tuple[int, str]]:
        """Some values of `in` from the position on."""
        found = list(enumerate(self._sent[partition]))[position:]
        return found[: self.rng.randint(1, 4)]

    def run(self) -> None:
        faults = self.time.new_loop()
        faults.create_task(self._disturb())
        self.time.run(until=lambda: not self._is_disturbed, seconds_max=3_000)
        self.time.run(until=self._is_finished, seconds_max=180)
        self._check()

    async def _disturb(self) -> None:
        for at in range(max(VALUES, FAULTS)):
            await asyncio.sleep(self.rng.uniform(0.2, 3))
            if at < VALUES:
                partition = self.rng.randrange(PARTITIONS)
                self._sent[partition].append(f"value {at}")
                self.log_dir.append("in", pa.table({"value": [f"value {at}"]}), partition=partition, flush="os")
            if self.rng.random() < FAULTS / VALUES:
                await self._strike()
        self._is_disturbed = False

    async def _strike(self) -> None:
        kind = self.rng.choice(("freeze server", "freeze server", "kill server", "stop server", "freeze", "kill"))
        self.counts[kind] = self.counts.get(kind, 0) + 1
        pause_s = self.rng.choice((0.5, 2.0, 4.0, 8.0, 15.0))
        if "server" not in kind:
            member = self.rng.choice(self.members)
            if kind == "freeze":
                member.loop.frozen_until_s = self.time.now_s + pause_s
            else:
                member.kill()
                await asyncio.sleep(self.rng.uniform(0, 1))
                member.start()
            return
        server = self.rng.choice(self.servers)
        if not server.is_accepting:
            return
        if kind == "freeze server":
            server.loop.frozen_until_s = self.time.now_s + pause_s
        elif kind == "kill server":
            server.kill()
            await asyncio.sleep(self.rng.uniform(0, 5))
            server.start()
        else:
            loop = asyncio.get_running_loop()
            stopped = loop.create_future()
            server.stop(lambda: loop.call_soon(stopped.set_result, None))
            await stopped
            server.start()

    def check_owners(self) -> None:
        """No partition is two members', and what those members believe to own whose epoch is the log's is theirs."""
        self.log_dir.refresh()
        number = group_partition(GROUP, int(CONFIGS["offsets.topic.num.partitions"]))
        records = GroupLogs.of(self.log_dir.root).caught_up(self.log_dir.root, number).records(GROUP)
        group = consumer_group_of(GROUP, records)
        numbers = {
            member_id: [*each.assigned.get(self.topic_id, ()), *each.revoking.get(self.topic_id, ())]
            for member_id, each in group.members.items()
        }
        taken = [each for of_member in numbers.values() for each in of_member]
        assert len(taken) == len(set(taken)), numbers
        for member in self.members:
            member_id, epoch, believed = member.believed()
            if member_id in group.members and group.members[member_id].epoch == epoch:
                assert believed <= set(numbers[member_id]), (member_id, epoch, believed, numbers)

    def _is_shared_out(self) -> bool:
        """Whether each partition has one owner among the members."""
        owned = [each for member in self.members for each in member.believed()[2]]
        return sorted(owned) == list(range(PARTITIONS))

    def _committed(self) -> Mapping[int, int]:
        self.log_dir.refresh()
        return {each.partition: found.offset for each, found in self.log_dir.group(GROUP).fetch().items()}

    def _is_finished(self) -> bool:
        if int(self.time.now_s * 1000) % 100:
            return False  # looking takes longer than a step
        committed = self._committed()
        has_copied = all(committed.get(each, 0) == len(values) for each, values in self._sent.items())
        return has_copied and self._is_shared_out()

    def _check(self) -> None:
        for partition, sent in self._sent.items():
            copied = self.log_dir.read("out", partition=partition, isolation="read_committed")["value"].to_pylist()
            assert [each.decode() for each in copied] == sent, (partition, self.counts)

    def close(self) -> None:
        for server in self.servers:
            server.committer.close()
        self.time.close()
