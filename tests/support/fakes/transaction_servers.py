"""Servers' transaction coordinators over one root, and what tests ask of them; without sockets.

Requests go straight to the handlers. `Coordinated.together` puts the units of several requests into one commit, as a
server under load does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from builders.leader_writers import T0, Served, append, batch

from fakes.unlimited import unlimited
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.transactions.end_transaction import state_append
from pyspark_kafkalog.root.transactions.states import TransactionStatus, transaction_states_of
from pyspark_kafkalog.server.context import Node, Request, ServerContext, Session
from pyspark_kafkalog.server.groups.offsets import Permission
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.server.roles import transaction_handlers
from pyspark_kafkalog.server.transactions.coordinator import TransactionCoordinator
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch
from pyspark_kafkalog.server.transactions.units import TransactionAdmission
from pyspark_kafkalog.storage.names import TopicPartition

T = TypeVar("T")
#: Starts a server's coordinator over the root of a test.
Start: TypeAlias = "Callable[[], Coordinated]"
MINUTE_MS: Final = 60_000
SESSION: Final = Session("127.0.0.1", 40_000)

#: One thread for what handlers do outside of the event loop, for all servers of a test run.
_EXECUTOR: Final = ThreadPoolExecutor(1, thread_name_prefix="transactions")


class OneCluster:
    """A cluster of one server, which coordinates everything, or nothing."""

    node_id = 1
    cluster_id = "tests"

    def __init__(self) -> None:
        self.coordinator_id = 1

    def nodes(self) -> tuple[Node, ...]:
        return (Node(1, "127.0.0.1", 1),)

    def listed(self) -> tuple[Node, ...]:
        return self.nodes()

    def leader(self, topic_id: str, partition: int, client_id: str) -> Node:
        return self.nodes()[0]

    def coordinator(self, topic: str, partition: int) -> Node:
        return Node(self.coordinator_id, "127.0.0.1", 1)


class DirectCommitter:
    """Commits each unit at once; while `is_waiting`, units queue up, and `flush` commits them together."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._waiting: list[tuple[CommitUnit, asyncio.Future[tuple[AppendedRange, ...]]]] = []
        self.is_waiting = False

    def submit(self, unit: CommitUnit) -> asyncio.Future[tuple[AppendedRange, ...]]:
        future: asyncio.Future[tuple[AppendedRange, ...]] = asyncio.get_running_loop().create_future()
        self._waiting.append((unit, future))
        if not self.is_waiting:
            self.flush()
        return future

    async def commit(self, unit: CommitUnit) -> tuple[AppendedRange, ...]:
        return await self.submit(unit)

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        results = self._served.commit(*(unit for unit, _ in waiting))
        for (_, future), result in zip(waiting, results, strict=True):
            if isinstance(result, KafkalogError):
                future.set_exception(result)
            else:
                future.set_result(result)


class Permissions:
    """Allows everything but what is in `denied`."""

    def __init__(self) -> None:
        self.denied: set[tuple[AclOperation, ResourceType]] = set()

    def allows(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        logs_denial: bool = True,
    ) -> bool:
        return (operation, resource_type) not in self.denied

    def allows_any(self, session: Session, operation: AclOperation, resource_type: ResourceType) -> bool:
        return (operation, resource_type) not in self.denied


class NoWaiters:
    def subscribe(self, partitions: frozenset[TopicPartition]) -> asyncio.Event:
        raise AssertionError

    def unsubscribe(self, event: asyncio.Event) -> None:
        raise AssertionError

    def notify(self, partitions: frozenset[TopicPartition] | None) -> None:
        raise AssertionError


class AnyMember:
    """A group coordinator that says `error` of every member."""

    def __init__(self, served: Served) -> None:
        self.error = ErrorCode.NONE
        self._served = served

    async def validate_transactional_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, *, knows_epochs: bool
    ) -> Permission:
        if "__consumer_offsets" not in self._served.root.topics():
            self._served.root.create_topic("__consumer_offsets", 3, {"cleanup.policy": "compact"})
        return Permission(self.error)


class Coordinated:
    """One server: its coordinator, its admission, and a client's calls of it."""

    def __init__(self, path: Path | StoreAddress, *, now_ms: int = T0 + MINUTE_MS) -> None:
        self.served = Served(path, now_ms=now_ms)
        self.committer = DirectCommitter(self.served)
        self.cluster = OneCluster()
        self.permissions = Permissions()
        self.groups = AnyMember(self.served)
        self.context = ServerContext(
            root=self.served.root,
            native=self.served.root,
            cluster=self.cluster,
            committer=self.committer,
            guard=self.permissions,
            waiters=NoWaiters(),
            executor=_EXECUTOR,
            clock=lambda: self.served.now_ms,
            monotonic_ms=lambda: self.served.now_ms,
            **unlimited(),
        )
        self.coordinator = TransactionCoordinator(self.context, self.served.root)
        self.admission = TransactionAdmission(self.coordinator.logs)
        self._handlers = transaction_handlers(self.coordinator, self.groups)

    def close(self) -> None:
        self.served.writer.close()

    # Requests

    async def ask(self, api: ApiKey, version: int, body: Message) -> Any:
        response = await self._handlers[api](self.context, Request(api, version, "test", body, SESSION))
        assert response is not None
        return response

    async def together(self, *requests: Coroutine[Any, Any, T]) -> list[T]:
        """Answer the requests, whose units are committed in one commit, in this order."""
        self.committer.is_waiting = True
        tasks = []
        for each in requests:
            tasks.append(asyncio.create_task(each))
            count = len(self.committer._waiting)
            while len(self.committer._waiting) == count and not tasks[-1].done():
                await asyncio.sleep(0)
        self.committer.is_waiting = False
        self.committer.flush()
        return list(await asyncio.gather(*tasks))

    async def init(
        self,
        name: str | None = "t",
        *,
        timeout_ms: int = MINUTE_MS,
        expected: ProducerIdAndEpoch | None = None,
        version: int = 5,
    ) -> InitProducerIdResponse:
        known = (
            {} if expected is None else {"producer_id": expected.producer_id, "producer_epoch": expected.producer_epoch}
        )
        body = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms, **known)
        response: InitProducerIdResponse = await self.ask(ApiKey.INIT_PRODUCER_ID, version, body)
        return response

    async def begin(self, name: str = "t", *, timeout_ms: int = MINUTE_MS) -> ProducerIdAndEpoch:
        """A producer that has called InitProducerId."""
        response = await self.init(name, timeout_ms=timeout_ms)
        assert response.error_code == ErrorCode.NONE, response
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    async def add(
        self, producer: ProducerIdAndEpoch, partitions: Sequence[tuple[str, int]], *, name: str = "t", version: int = 3
    ) -> ErrorCode:
        """AddPartitionsToTxn of an old client; the error of all partitions."""
        body = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=tuple(
                AddPartitionsToTxnTopic(name=topic, partitions=(number,)) for topic, number in partitions
            ),
        )
        response = await self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, body)
        errors = {
            each.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }
        (error,) = errors
        return code(error)

    async def add_group(self, producer: ProducerIdAndEpoch, group: str, *, name: str = "t") -> ErrorCode:
        body = AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=group,
        )
        return code((await self.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, body)).error_code)

    async def commit_offset(
        self,
        producer: ProducerIdAndEpoch,
        offset: int,
        *,
        group: str = "g",
        topic: str = "a",
        name: str = "t",
        version: int = 5,
        metadata: str = "",
    ) -> ErrorCode:
        one = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)
        body = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=(TxnOffsetCommitRequestTopic(name=topic, partitions=(one,)),),
        )
        response = await self.ask(ApiKey.TXN_OFFSET_COMMIT, version, body)
        return code(response.topics[0].partitions[0].error_code)

    async def produce(
        self,
        producer: ProducerIdAndEpoch,
        values: Sequence[bytes],
        *,
        sequence: int = 0,
        topic: str = "a",
        partition: int = 0,
        name: str = "t",
        version: int = 12,
    ) -> AppendedRange | KafkalogError:
        """A transactional batch: where it was appended, or what refused it."""
        data = batch(values, producer=(producer.producer_id, producer.producer_epoch, sequence), is_transactional=True)
        unit = self.admission.produce_unit(version, name, append(data, topic, partition))
        try:
            return (await self.committer.commit(unit))[-1]
        except KafkalogError as error:
            return error

    async def end_response(
        self, producer: ProducerIdAndEpoch, *, is_commit: bool, name: str = "t", version: int = 5
    ) -> EndTxnResponse:
        body = EndTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=is_commit,
        )
        response: EndTxnResponse = await self.ask(ApiKey.END_TXN, version, body)
        return response

    async def end(
        self, producer: ProducerIdAndEpoch, *, is_commit: bool = True, name: str = "t", version: int = 5
    ) -> ProducerIdAndEpoch | ErrorCode:
        """The producer with its next epoch, or the error."""
        response = await self.end_response(producer, is_commit=is_commit, name=name, version=version)
        if response.error_code != ErrorCode.NONE:
            return code(response.error_code)
        if version < 5:
            return producer
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    # The root

    def committed(self, topic: str = "a", partition: int = 0) -> list[bytes]:
        """What consumers with read_committed see."""
        return self.served.values(topic, partition, isolation="read_committed")

    def unstable(self) -> list[TopicPartition]:
        """The partitions with an open transaction."""
        image = self.served.root.store.refresh()
        return [
            TopicPartition(topic.name, each.partition)
            for topic in image.topics.values()
            for each in topic.partitions
            if each.state.first_unstable_offset >= 0
        ]


def code(number: int) -> ErrorCode:
    """The error with that number."""
    return next(each for each in ErrorCode if each == number)


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, in an event loop of its own."""
    return asyncio.run(work)


def error_of(result: object) -> ErrorCode:
    assert isinstance(result, RequestError), result
    return result.code


def epoch_after(result: ProducerIdAndEpoch | ErrorCode) -> ProducerIdAndEpoch:
    assert isinstance(result, ProducerIdAndEpoch), result
    return result


def status_of(server: Coordinated, name: str = "t") -> TransactionStatus:
    root = server.served.root
    assert isinstance(root, FileRoot)
    root.refresh()
    return TransactionStatus(transaction_states_of(root)[name].status)


async def with_epoch(server: Coordinated, epoch: int) -> ProducerIdAndEpoch:
    """The producer after so many transactions that it has this epoch."""
    found = await server.coordinator.find("t")
    log = server.coordinator.logs.of(server.context.image(), "t")
    assert found is not None
    assert log is not None
    topic_id = server.context.image().topic("__transaction_state").topic_id
    step = replace(found, producer_epoch=epoch)
    server.served.append(state_append(log.topic_partition, [step], topic_id=topic_id, now_ms=server.served.now_ms))
    return ProducerIdAndEpoch(found.producer_id, epoch)
