"""Servers' group coordinators over one root, and what tests ask of them; without sockets.

Requests go straight to the handlers, and each response is encoded in the request's version, as a server would. Several
servers over one root believe to coordinate everything, unless a test says otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

from patience import PATIENCE_S

from fakes.transaction_servers import SESSION, Coordinated
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import consumer_groups, groups, offsets
from pyspark_kafkalog.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from pyspark_kafkalog.server.committer import ReadOnlyCommitter
from pyspark_kafkalog.server.context import Request
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator
from pyspark_kafkalog.server.groups.offsets import TransactionalCommits
from pyspark_kafkalog.server.roles import group_handlers, transaction_handlers
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch

#: The last version of SyncGroup that does not name the protocol.
SYNC_WITHOUT_PROTOCOL = 4
GROUP = "g"


def run(work: Awaitable[None]) -> None:
    """Run a scenario, for as long as our patience lasts."""

    async def bounded() -> None:
        await asyncio.wait_for(work, PATIENCE_S)

    asyncio.run(bounded())


class GroupServer:
    """One server. `pass_time` moves its clock, and runs the timers that are due.

    With `read_only`, it only reads the log directory.
    """

    def __init__(self, path: Path, *, now_ms: int | None = None, read_only: bool = False) -> None:
        self.parts = Coordinated(path) if now_ms is None else Coordinated(path, now_ms=now_ms)
        self.context = self.parts.context
        if read_only:
            self.context = replace(self.context, native=None, committer=ReadOnlyCommitter(str(path)))
        self.coordinator = GroupCoordinator(self.context)
        transactions = transaction_handlers(self.parts.coordinator, TransactionalCommits(self.coordinator))
        self._handlers = {**transactions, **group_handlers(self.coordinator)}

    def close(self) -> None:
        self.parts.close()

    async def pass_time(self, ms: int) -> None:
        """In steps, as time passes for a process that runs."""
        for _ in range(0, ms, 1000):
            self.parts.served.now_ms += 1000
            self.coordinator.run_due()
            await asyncio.sleep(0)
        while self.coordinator._tasks:
            await asyncio.sleep(0)

    async def ask(self, api: ApiKey, version: int, body: Message, *, client_id: str = "c") -> Any:
        response = await self._handlers[api](self.context, Request(api, version, client_id, body, SESSION))
        assert response is not None
        response.encode(version)
        return response

    # The classic protocol

    async def join(
        self, member_id: str = "", *, version: int = 9, protocol: str = "range", session_timeout_ms: int = 10_000
    ) -> Any:
        body = groups.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=(groups.JoinGroupRequestProtocol(name=protocol, metadata=subscription("a")),),
        )
        return await self.ask(ApiKey.JOIN_GROUP, version, body)

    async def become_member(self, assignment: bytes = b"all") -> str:
        """Join as the only member, and sync; the member's id. The clock moves by the initial delay."""
        first = await self.join()
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joining = asyncio.create_task(self.join(first.member_id))
        while not joining.done():
            await asyncio.sleep(0)
            await self.pass_time(1000)
        joined = joining.result()
        assert joined.error_code == ErrorCode.NONE
        synced = await self.sync(first.member_id, joined.generation_id, {first.member_id: assignment})
        assert synced.assignment == assignment
        return str(first.member_id)

    async def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None) -> Any:
        body = groups.SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            assignments=tuple(
                groups.SyncGroupRequestAssignment(member_id=each, assignment=value)
                for each, value in (assignments or {}).items()
            ),
        )
        return await self.ask(ApiKey.SYNC_GROUP, SYNC_WITHOUT_PROTOCOL, body)

    async def heartbeat(self, member_id: str, generation: int) -> ErrorCode:
        body = groups.HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        return ErrorCode((await self.ask(ApiKey.HEARTBEAT, 4, body)).error_code)  # type: ignore[call-arg]

    # Offsets

    async def commit(
        self,
        offset: int,
        *,
        partition: int = 0,
        topic: str = "a",
        member: str = "",
        generation: int = -1,
        **fields: Any,
    ) -> ErrorCode:
        one = offsets.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, **fields)
        body = offsets.OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=(offsets.OffsetCommitRequestTopic(name=topic, partitions=(one,)),),
        )
        response = await self.ask(ApiKey.OFFSET_COMMIT, 9, body)
        return ErrorCode(response.topics[0].partitions[0].error_code)  # type: ignore[call-arg]

    async def fetch(self, *, require_stable: bool = False, partition: int = 0) -> tuple[int, ErrorCode]:
        """The offset of one partition of topic `a`, and its error."""
        asked = offsets.OffsetFetchRequestGroup(
            group_id=GROUP, topics=(offsets.OffsetFetchRequestTopics(name="a", partition_indexes=(partition,)),)
        )
        body = offsets.OffsetFetchRequest(groups=(asked,), require_stable=require_stable)
        (group,) = (await self.ask(ApiKey.OFFSET_FETCH, 8, body)).groups
        if group.error_code:
            return -1, ErrorCode(group.error_code)  # type: ignore[call-arg]
        found = group.topics[0].partitions[0]
        return found.committed_offset, ErrorCode(found.error_code)  # type: ignore[call-arg]

    async def commit_in_transaction(
        self, producer: ProducerIdAndEpoch, offset: int, *, member: str = "", generation: int = -1
    ) -> ErrorCode:
        """TxnOffsetCommit for partition 0 of topic `a`, with transactional id t."""
        one = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        body = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id=GROUP,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=(TxnOffsetCommitRequestTopic(name="a", partitions=(one,)),),
        )
        response = await self.ask(ApiKey.TXN_OFFSET_COMMIT, 5, body)
        return ErrorCode(response.topics[0].partitions[0].error_code)  # type: ignore[call-arg]

    async def delete(self) -> ErrorCode:
        response = await self.ask(ApiKey.DELETE_GROUPS, 2, groups.DeleteGroupsRequest(groups_names=(GROUP,)))
        return ErrorCode(response.results[0].error_code)  # type: ignore[call-arg]

    # The consumer protocol

    async def beat(self, member_id: str, epoch: int, **fields: Any) -> Any:
        """A heartbeat; one that joins subscribes to topic `a`."""
        if epoch == 0:
            fields = {"rebalance_timeout_ms": 5000, "subscribed_topic_names": ("a",), "topic_partitions": ()} | fields
        body = consumer_groups.ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, **fields
        )
        return await self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)


def subscription(*topics: str) -> bytes:
    """The metadata of a classic consumer's protocol."""
    from pyspark_kafkalog.metadata.messages.internal_records import ConsumerProtocolSubscription

    return b"\0\0" + ConsumerProtocolSubscription(topics=topics).encode(0)
