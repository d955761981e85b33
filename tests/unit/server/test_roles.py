"""A served root is promoted, or begins to follow: the server changes its role, and clients stay connected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from builders.root_places import RootPlace
from fakes.group_servers import subscription
from fakes.hostile_clients import batch_of
from kafka_processes.served import serve
from patience import PATIENCE_S, wait_until

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import ApiVersionsResponse
from pyspark_kafkalog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from pyspark_kafkalog.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from pyspark_kafkalog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from pyspark_kafkalog.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pyspark_kafkalog.protocol.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from pyspark_kafkalog.root.native import begin_following, promote
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.server import roles as roles_module
from pyspark_kafkalog.server.config import Address, ServerConfig
from pyspark_kafkalog.server.groups.local_shard import OwnGroups
from pyspark_kafkalog.server.roles import Roles
from pyspark_kafkalog.storage.names import TopicPartition

GROUP, TOPIC = "g", "orders"
SERVED = ServerConfig(listen=Address("127.0.0.1", 0), flush="os")


class Client:
    """One connection, which stays open."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        host, _, port = bootstrap.rpartition(":")
        self.wire = WireClient.connect(host, int(port), client_id="c", timeout_s=PATIENCE_S)
        self.apis: ApiVersionsResponse = self.wire.negotiate()

    def produce(self) -> ErrorCode:
        data = PartitionProduceData(index=0, records=batch_of(b"x"))
        body = ProduceRequest(
            acks=-1, timeout_ms=10_000, topic_data=(TopicProduceData(name=TOPIC, partition_data=(data,)),)
        )
        (topic,) = self.wire.call(body, ProduceResponse, version=12).responses
        return ErrorCode(topic.partition_responses[0].error_code)  # type: ignore[call-arg]

    def init(self, name: str | None = None) -> InitProducerIdResponse:
        body = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            response = self.wire.call(body, InitProducerIdResponse)
            if response.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                return response
        raise AssertionError

    def end_transaction(self, producer: InitProducerIdResponse) -> ErrorCode:
        body = EndTxnRequest(
            transactional_id="t", producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
        )
        return ErrorCode(self.wire.call(body, EndTxnResponse).error_code)  # type: ignore[call-arg]

    def join(self) -> tuple[str, int]:
        """Become the group's only member; the id and the generation."""
        protocol = JoinGroupRequestProtocol(name="range", metadata=subscription(TOPIC))
        member_id = ""
        while True:
            body = JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=(protocol,),
            )
            joined = self.wire.call(body, JoinGroupResponse)
            member_id = joined.member_id
            if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
        assert joined.error_code == ErrorCode.NONE
        sync = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name=protocol.name,
            assignments=(SyncGroupRequestAssignment(member_id=member_id, assignment=b"all"),),
        )
        assert self.wire.call(sync, SyncGroupResponse).assignment == b"all"
        return member_id, joined.generation_id

    def heartbeat(self, member_id: str, generation: int) -> ErrorCode:
        body = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        return ErrorCode(self.wire.call(body, HeartbeatResponse).error_code)  # type: ignore[call-arg]

    def beat(self, group: str, member_id: str, epoch: int) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat of the consumer protocol; with epoch 0 it joins."""
        joining = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": (TOPIC,), "topic_partitions": ()}
        body = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=epoch, **(joining if epoch == 0 else {})
        )
        return self.wire.call(body, ConsumerGroupHeartbeatResponse)

    def wait_for_record(self) -> bytes:
        """The records of partition 0 of the topic, as soon as there are some."""
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        body = FetchRequest(max_wait_ms=15_000, min_bytes=1, topics=(FetchTopic(topic=TOPIC, partitions=(wanted,)),))
        (topic,) = self.wire.call(body, FetchResponse, version=12).responses
        assert topic.partitions[0].error_code == ErrorCode.NONE
        return bytes(topic.partitions[0].records or b"")  # type: ignore[arg-type]

    def commit(self, offset: int, member_id: str, generation: int, *, group: str = GROUP) -> ErrorCode:
        one = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        body = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=(OffsetCommitRequestTopic(name=TOPIC, partitions=(one,)),),
        )
        (topic,) = self.wire.call(body, OffsetCommitResponse, version=9).topics
        return ErrorCode(topic.partitions[0].error_code)  # type: ignore[call-arg]


@pytest.fixture
def place(root_place: RootPlace) -> RootPlace:
    settings = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}
    log_dir = LogDir.create(root_place)
    log_dir.alter_broker_configs(add={**settings, "transaction.state.log.num.partitions": "1"})
    log_dir.create_topic(TOPIC, 2)
    return root_place


@pytest.fixture
def client(place: RootPlace) -> Iterator[Callable[[], Client]]:
    """Makes a client of a server over the place as it is then."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def connected() -> Client:
            found = Client(stack.enter_context(serve(place, SERVED)))
            stack.callback(found.wire.close)
            return found

        yield connected


def follow(place: RootPlace) -> None:
    begin_following(open_root(place).native(), leader="a:9092", cluster_id="theirs", topics=".*")


def until(expected: object, ask: Callable[[], object]) -> None:
    wait_until(lambda: ask() == expected, str(expected))


def test_group_and_connection_go_on_when_the_copy_that_serves_them_is_promoted(
    place: RootPlace, client: Callable[[], Client]
) -> None:
    LogDir.open(place).group(GROUP).commit({TopicPartition(TOPIC, 0): 1, TopicPartition(TOPIC, 1): 4})
    follow(place)
    asking = client()
    assert asking.produce() is ErrorCode.POLICY_VIOLATION
    assert asking.init().error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert asking.init("t").error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert asking.wire.call(ListTransactionsRequest(), ListTransactionsResponse).error_code == ErrorCode.NONE
    member = asking.join()
    assert asking.commit(7, *member) is ErrorCode.NONE
    promote(open_root(place).native())
    # The first request that might be refused waits for the new role; the look at the root is a second old at most.
    until(0, lambda: asking.init("t").error_code)
    assert asking.heartbeat(*member) is ErrorCode.NONE
    assert asking.produce() is ErrorCode.NONE
    committed = LogDir.open(place).group(GROUP).fetch()
    assert {at.partition: found.offset for at, found in committed.items()} == {0: 7, 1: 4}
    assert asking.commit(8, *member) is ErrorCode.NONE
    assert asking.init().error_code == ErrorCode.NONE


def test_members_and_fetches_of_several_servers_go_on_when_their_root_is_promoted(
    place: RootPlace, client: Callable[[], Client]
) -> None:
    """Each server has groups of its own in memory until then, and one of them coordinates each of the groups after."""
    follow(place)
    asking, waiting = zip(*((found, Client(found.bootstrap)) for found in (client(), client())), strict=True)
    groups = {f"group-{each}": asking[each % 2] for each in range(6)}
    epochs = {}
    for number, (group, server) in enumerate(groups.items()):
        joined = server.beat(group, f"m-{group}", 0)
        assert joined.error_code == ErrorCode.NONE
        epochs[group] = joined.member_epoch
        assert server.commit(number + 10, f"m-{group}", joined.member_epoch, group=group) is ErrorCode.NONE
    with ThreadPoolExecutor(2) as executor:
        fetches = [executor.submit(each.wait_for_record) for each in waiting]
        promote(open_root(place).native())
        until(ErrorCode.NONE, asking[0].produce)
        first, second = (each.result(PATIENCE_S) for each in fetches)
    assert first == second != b""
    for each in waiting:
        each.wire.close()
    for number, group in enumerate(groups):

        def beaten(group: str = group) -> set[tuple[int, int]]:
            """The answers of those servers that coordinate the group."""
            answers = (each.beat(group, f"m-{group}", epochs[group]) for each in asking)
            return {(each.error_code, each.member_epoch) for each in answers if not each.error_code}

        until({(0, epochs[group])}, beaten)
        committed = LogDir.open(place).group(group).fetch()
        assert [each.offset for each in committed.values()] == [number + 10]


def test_server_only_reads_once_its_root_follows_and_says_so_to_producers(
    place: RootPlace, client: Callable[[], Client]
) -> None:
    asking = client()
    assert asking.produce() is ErrorCode.NONE
    producer = asking.init("t")
    assert producer.error_code == ErrorCode.NONE
    member = asking.join()
    assert asking.commit(1, *member) is ErrorCode.NONE
    apis = asking.apis.api_keys
    follow(place)
    assert asking.produce() is ErrorCode.POLICY_VIOLATION
    assert asking.end_transaction(producer) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    until(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, lambda: asking.init().error_code)
    until(ErrorCode.UNKNOWN_MEMBER_ID, lambda: asking.heartbeat(*member))
    assert asking.wire.negotiate().api_keys == apis
    again = asking.join()
    assert asking.commit(2, *again) is ErrorCode.NONE
    committed = LogDir.open(place).group(GROUP).fetch()
    assert [each.offset for each in committed.values()] == [1]


def test_role_that_cannot_start_is_tried_again_with_the_groups(
    place: RootPlace, client: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator

    take_in, failures = GroupCoordinator.take_in, [OSError("the disk is full")] * 2

    async def failing(self: GroupCoordinator, own: OwnGroups) -> None:
        if failures:
            raise failures.pop()
        await take_in(self, own)

    monkeypatch.setattr(GroupCoordinator, "take_in", failing)
    monkeypatch.setattr(roles_module, "_RETRY_S", 0.05)
    follow(place)
    asking = client()
    member = asking.join()
    assert asking.commit(7, *member) is ErrorCode.NONE
    promote(open_root(place).native())
    until(ErrorCode.NONE, asking.produce)
    assert not failures
    assert asking.heartbeat(*member) is ErrorCode.NONE
    assert [each.offset for each in LogDir.open(place).group(GROUP).fetch().values()] == [7]


def test_fixed_role_does_not_look_at_the_root() -> None:
    class Root:
        follows = None

        def refresh(self) -> None:
            raise AssertionError

    made: list[bool] = []

    async def refresh() -> None:
        raise AssertionError

    roles = Roles(Root(), lambda writes: made.append(writes), refresh, only_reads=True)  # type: ignore[arg-type, func-returns-value, return-value]
    assert asyncio.run(roles.for_request()) is None
    assert made == [False]
