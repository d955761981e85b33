"""Several servers and clients of the same transactional ids, in random order, with late requests: no torn transaction.

Each client writes transactions over three partitions and a group, with both versions of the protocol. Requests of
several clients, of one id too, come in one commit. Clients restart at random, which fences the others of their id.
Requests of version 2 are also repeated late, after the transaction, by another server; version 1 has no defence against
that in Kafka either. Timeouts pass, operators abort, and the clocks of the servers differ.

Of an aborted transaction, consumers never see a record. Whenever no transaction is open, which would hold back what
comes after it in a partition, they see of each transaction all acknowledged records or none, all if its commit was
confirmed. At the end, when timeouts have passed, no transaction is open.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders.root_places import RootPlace, client_address, memory_root
from fakes.faulty_store import FaultyStore, MemoryBucket
from fakes.transaction_servers import MINUTE_MS, Coordinated, run
from tiers import SEED, rest_full

from pyspark_kafkalog.errors import KafkalogError, UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.root.commit.changes import AppendedRange
from pyspark_kafkalog.root.transactions.end_transaction import abort_transactional_id
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch

PARTITIONS = (("a", 0), ("a", 1), ("b", 0))
TIMEOUT_MS = MINUTE_MS
STEPS = 120


@dataclass
class Transaction:
    """What the client knows of one transaction: the values that were acknowledged, and its confirmed end."""

    name: str
    acknowledged: set[bytes] = field(default_factory=set)
    offset: int | None = None
    is_committed: bool | None = None


@dataclass
class Client:
    """A producer: its version of the protocol, its epoch, None before InitProducerId, and its transactions."""

    number: int
    name: str
    is_v2: bool
    producer: ProducerIdAndEpoch | None = None
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    added: set[tuple[str, int]] = field(default_factory=set)
    current: Transaction | None = None

    def forget(self) -> None:
        """Restart: the next call is InitProducerId."""
        self.producer = self.current = None
        self.sequences.clear()
        self.added.clear()


class Simulation:
    def __init__(self, place: RootPlace, servers: Sequence[Path | StoreAddress], rng: random.Random) -> None:
        """`servers`: how each server opens the root at `place`."""
        self.rng = rng
        log_dir = LogDir.create(place)
        log_dir.create_topic("a", 2)
        log_dir.create_topic("b", 1)
        log_dir.create_topic("__consumer_offsets", 1, {"cleanup.policy": "compact"})
        log_dir.alter_broker_configs(add={"transaction.state.log.num.partitions": "1"})
        self.servers = [Coordinated(each) for each in servers]
        self.clients = [Client(at, name, is_v2) for at, (name, is_v2) in enumerate(
            [("t", True), ("t", True), ("t", False), ("u", True), ("v", False)]
        )]  # fmt: skip
        self.transactions: list[Transaction] = []
        self.late: list[tuple[Client, ProducerIdAndEpoch, tuple[str, int], int, bytes, Transaction]] = []
        self.late_ends: list[tuple[Client, ProducerIdAndEpoch, bool]] = []
        self.count = 0

    async def run(self) -> None:
        for _ in range(STEPS):
            server = self.rng.choice(self.servers)
            clients = self.rng.sample(self.clients, self.rng.randint(1, len(self.clients)))
            requests = [self.request(server, each) for each in clients]
            requests += [self.repeat(server) for _ in range(self.rng.randint(0, 2))]
            self.rng.shuffle(requests)
            await server.together(*requests)
            await self.disturb(server)
            if self.rng.random() < 0.2:
                self.check()
        latest_ms = max(each.served.now_ms for each in self.servers)  # their clocks differ
        for each in self.servers:
            each.served.now_ms = latest_ms + TIMEOUT_MS + 1
        await self.rng.choice(self.servers).coordinator.abort_timed_out()
        self.check()
        assert self.servers[0].unstable() == []

    async def disturb(self, server: Coordinated) -> None:
        drawn = self.rng.random()
        if drawn < 0.05:
            for each in self.servers:
                each.served.now_ms += self.rng.choice((100, TIMEOUT_MS // 2, TIMEOUT_MS + 1))
            await server.coordinator.abort_timed_out()
        elif drawn < 0.1:
            server.served.root.refresh()
            with contextlib.suppress(UnknownTopicError):  # it has no open transaction
                abort_transactional_id(server.served.root, self.rng.choice("tuv"))
        elif drawn < 0.15:
            self.rng.choice(self.clients).forget()

    # Requests

    def request(self, server: Coordinated, client: Client) -> Coroutine[Any, Any, None]:
        """The client's next request."""
        if client.producer is None:
            return self.begin(server, client)
        if client.current is None or self.rng.random() < 0.6:
            place = self.rng.choice(PARTITIONS)
            if not client.is_v2 and place not in client.added:
                return self.add(server, client, client.producer, place)
            return self.produce(server, client, client.producer, place)
        if self.rng.random() < 0.3:
            return self.commit_offset(server, client, client.producer, client.current)
        return self.end(server, client, client.producer, client.current)

    def transaction(self, client: Client) -> Transaction:
        if client.current is None:
            client.current = Transaction(f"{client.number}.{len(self.transactions)}")
            self.transactions.append(client.current)
        return client.current

    async def begin(self, server: Coordinated, client: Client) -> None:
        answer = await server.init(client.name, timeout_ms=TIMEOUT_MS)
        if answer.error_code == ErrorCode.NONE:
            client.forget()
            client.producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        else:
            assert answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS

    async def add(
        self, server: Coordinated, client: Client, producer: ProducerIdAndEpoch, place: tuple[str, int]
    ) -> None:
        error = await server.add(producer, [place], name=client.name)
        if error is ErrorCode.NONE:
            self.transaction(client)
            client.added.add(place)
        elif error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            assert error is ErrorCode.PRODUCER_FENCED
            client.forget()

    async def produce(
        self, server: Coordinated, client: Client, producer: ProducerIdAndEpoch, place: tuple[str, int]
    ) -> None:
        transaction = self.transaction(client)
        self.count += 1
        value = f"{transaction.name}/{self.count}".encode()
        sequence = client.sequences.get(place, 0)
        topic, number = place
        if client.is_v2:
            self.late.append((client, producer, place, sequence, value, transaction))
        result = await server.produce(
            producer, [value], sequence=sequence, topic=topic, partition=number, name=client.name,
            version=12 if client.is_v2 else 9,
        )  # fmt: skip
        if isinstance(result, AppendedRange):
            client.sequences[place] = sequence + 1
            transaction.acknowledged.add(value)
            return
        self.after_error(client, result)

    def after_error(self, client: Client, error: KafkalogError) -> None:
        assert isinstance(error, RequestError), error
        if error.code in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS):
            return  # the client sends the batch again: here, the next one
        assert error.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE), error
        client.forget()

    async def commit_offset(
        self, server: Coordinated, client: Client, producer: ProducerIdAndEpoch, transaction: Transaction
    ) -> None:
        group = f"g{client.number}"
        if not client.is_v2:
            error = await server.add_group(producer, group, name=client.name)
            if error is not ErrorCode.NONE:
                return
        offset = self.count
        error = await server.commit_offset(
            producer, offset, group=group, name=client.name, version=5 if client.is_v2 else 3
        )
        if error is ErrorCode.NONE:
            transaction.offset = offset

    async def end(
        self, server: Coordinated, client: Client, producer: ProducerIdAndEpoch, transaction: Transaction
    ) -> None:
        is_commit = self.rng.random() < 0.7
        answer = await server.end(producer, is_commit=is_commit, name=client.name, version=5 if client.is_v2 else 3)
        if isinstance(answer, ProducerIdAndEpoch):
            if client.is_v2:
                self.late_ends.append((client, producer, is_commit))
                client.sequences.clear()
            transaction.is_committed = is_commit
            client.producer = answer
            client.current = None
            client.added.clear()
        elif answer is not ErrorCode.CONCURRENT_TRANSACTIONS:
            assert answer in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE), answer
            client.forget()

    async def repeat(self, server: Coordinated) -> None:
        """A request of version 2 comes once more, perhaps long after it was answered."""
        if self.late_ends and self.rng.random() < 0.2:
            client, producer, is_commit = self.rng.choice(self.late_ends)
            await server.end(producer, is_commit=is_commit, name=client.name)
        elif self.late:
            client, producer, (topic, number), sequence, value, transaction = self.rng.choice(self.late[-30:])
            result = await server.produce(
                producer, [value], sequence=sequence, topic=topic, partition=number, name=client.name
            )
            if isinstance(result, AppendedRange):
                assert transaction.is_committed is None or result.is_duplicate
                transaction.acknowledged.add(value)
                if client.current is transaction:
                    client.sequences[topic, number] = max(client.sequences.get((topic, number), 0), sequence + 1)

    # Checks

    def check(self) -> None:
        """What consumers see is whole transactions, each record once."""
        seen = [value for topic, number in PARTITIONS for value in self.servers[0].committed(topic, number)]
        assert len(set(seen)) == len(seen)
        visible = set(seen)
        is_stable = not self.servers[0].unstable()
        for each in self.transactions:
            found = each.acknowledged & visible
            if each.is_committed is False:
                assert not found, f"transaction {each.name} was aborted"
            elif is_stable and each.is_committed:
                assert found == each.acknowledged, f"transaction {each.name} was committed"
            elif is_stable:
                assert found in (set(), each.acknowledged), f"transaction {each.name} is torn"
        if is_stable:
            self.check_offsets()

    def check_offsets(self) -> None:
        log_dir = self.servers[0].served.log_dir
        for client in self.clients:
            own = [each for each in self.transactions if each.name.startswith(f"{client.number}.")]
            committed = [each.offset for each in own if each.is_committed and each.offset is not None]
            unknown = {each.offset for each in own if each.is_committed is None}
            found = [each.offset for each in log_dir.group(f"g{client.number}").fetch().values()]
            assert found == committed[-1:] or set(found) <= unknown

    def close(self) -> None:
        for each in self.servers:
            each.close()


def simulate(place: RootPlace, servers: Sequence[Path | StoreAddress], number: int) -> None:
    simulation = Simulation(place, servers, random.Random(f"{SEED} {number}"))
    try:
        run(simulation.run())
    finally:
        simulation.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", rest_full(range(30)))
def test_transactions_of_many_clients_and_servers_are_never_torn(tmp_path: Path, number: int) -> None:
    root = tmp_path / "root"
    simulate(root, (root, root), number)


@pytest.mark.slow
@pytest.mark.parametrize("number", rest_full(range(10)))
def test_transactions_in_an_object_store_are_never_torn(number: int) -> None:
    bucket = MemoryBucket()
    url = memory_root(FaultyStore(bucket))
    simulate(url, [client_address(url, FaultyStore(bucket)) for _ in range(2)], number)
