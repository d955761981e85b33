"""Fetch sessions as a client sees them: what responses leave out, errors, changes of rights, requests that overtake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import pytest
from builders.engine_fixtures import partitions_with_offsets
from builders.root_places import RootPlace, is_object_place
from builders.tiered_roots import SMALL_SEGMENTS, TOPIC, append_rounds
from fakes.server_calls import ReadServer

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.acl import AclOperation
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from pyspark_kafkalog.root.reads import NativePartitions
from pyspark_kafkalog.server.context import ClientRates, Session
from pyspark_kafkalog.storage.names import TopicPartition

BY_NAME, BY_ID = 12, 17
RECORDS = 20
#: What a request waits for that is to be answered earlier, and how long a test waits for that.
LONG_MS = 600_000
PATIENCE_S = 60


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    """Four partitions, of which two have a commit of twenty records."""
    log_dir = LogDir.create(root_place)
    log_dir.create_topic(TOPIC, partitions=4, configs={} if is_object_place(root_place) else SMALL_SEGMENTS)
    for partition in (0, 1):
        append_rounds(log_dir, 1, partition=partition, records=RECORDS)
    return log_dir


@pytest.fixture
def server(log_dir: LogDir) -> Iterator[ReadServer]:
    with ReadServer(log_dir) as server:
        yield server


class Client:
    """A consumer with a session. `fetch` sends the next request of it."""

    def __init__(self, server: ReadServer, topic_id: str = ZERO_UUID, *, topic: str = TOPIC) -> None:
        self.server = server
        self.names = {"topic": topic, "topic_id": topic_id}
        self.version = BY_NAME if topic_id == ZERO_UUID else BY_ID
        self.session_id = 0
        self.epoch = 0

    def request(
        self,
        offsets: Mapping[int, int] | None = None,
        *,
        forgotten: Sequence[int] = (),
        partition: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> FetchRequest:
        common = {"partition_max_bytes": 1 << 20, **(partition or {})}
        asked = tuple(FetchPartition(partition=at, fetch_offset=each, **common) for at, each in (offsets or {}).items())
        forgets = (ForgottenTopic(**self.names, partitions=tuple(forgotten)),) if forgotten else ()
        values = {"session_id": self.session_id, "session_epoch": self.epoch, **named}
        return FetchRequest(
            topics=(FetchTopic(**self.names, partitions=asked),) if asked else (),
            forgotten_topics_data=forgets,
            **values,
        )

    def response(self, offsets: Mapping[int, int] | None = None, **named: Any) -> FetchResponse:
        return self.server.call(ApiKey.FETCH, self.version, self.request(offsets, **named), FetchResponse)

    def fetch(self, offsets: Mapping[int, int] | None = None, **named: Any) -> dict[int, PartitionData]:
        """The partitions of the response, in its order."""
        response = self.response(offsets, **named)
        assert response.error_code == ErrorCode.NONE
        assert response.session_id == (self.session_id or response.session_id) != 0
        self.session_id, self.epoch = response.session_id, self.epoch + 1
        return partitions_of(response)


def partitions_of(response: FetchResponse) -> dict[int, PartitionData]:
    return {each.partition_index: each for topic in response.responses for each in topic.partitions}


def with_records(found: Mapping[int, PartitionData]) -> list[int]:
    return [number for number, each in found.items() if len(cast(bytes, each.records))]


@pytest.fixture(params=["by name", "by id"])
def client(request: pytest.FixtureRequest, server: ReadServer, log_dir: LogDir) -> Client:
    """A consumer at the end of its four partitions, which has been told everything."""
    client = Client(server, (log_dir.topic(TOPIC).topic_id or "") if request.param == "by id" else ZERO_UUID)
    assert with_records(client.fetch({0: 0, 1: 0, 2: 0, 3: 0})) == [0, 1]
    assert client.fetch({0: RECORDS, 1: RECORDS}) == {}
    return client


def test_responses_hold_only_partitions_with_news(client: Client, log_dir: LogDir) -> None:
    assert client.fetch() == {}
    append_rounds(log_dir, 1, partition=2, records=RECORDS)
    client.server.context.root.refresh()
    found = client.fetch()
    assert with_records(found) == [2]
    assert list(found) == [2]
    assert list(client.fetch()) == [2]  # it was not taken
    assert client.fetch({2: RECORDS}) == {}
    delete_records(log_dir.root, {TopicPartition(TOPIC, 1): 5})
    client.server.context.root.refresh()
    assert [(at, each.log_start_offset) for at, each in client.fetch().items()] == [(1, 5)]
    assert client.fetch() == {}


def test_high_watermark_is_news_to_who_reads_behind_it(client: Client, log_dir: LogDir) -> None:
    append_rounds(log_dir, 2, partition=0, records=RECORDS)
    client.server.context.root.refresh()
    assert client.fetch()[0].high_watermark == 3 * RECORDS
    assert client.fetch({0: 3 * RECORDS}) == {}


def test_error_is_told_with_each_response_and_its_end_once(client: Client) -> None:
    for offsets in ({2: 99}, None):
        found = client.fetch(offsets)
        assert {at: each.error_code for at, each in found.items()} == {2: ErrorCode.OFFSET_OUT_OF_RANGE}
    assert {at: each.error_code for at, each in client.fetch({2: 0}).items()} == {2: ErrorCode.NONE}
    assert client.fetch() == {}


def test_diverging_epoch_is_told_until_the_client_has_moved(client: Client) -> None:
    for request in ({"offsets": {0: 99}, "partition": {"last_fetched_epoch": 0}}, {}):
        [found] = client.fetch(**request).values()
        assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, RECORDS)
    assert client.fetch({0: RECORDS}) == {}


def test_partitions_are_added_and_forgotten(client: Client, log_dir: LogDir) -> None:
    log_dir.add_partitions(TOPIC, 6)
    assert list(client.fetch({5: 0}, forgotten=[0, 3])) == [5]
    for partition in (0, 1, 5):
        append_rounds(log_dir, 1, partition=partition, records=RECORDS)
    client.server.context.root.refresh()
    assert sorted(client.fetch()) == [1, 5]
    assert client.server.sessions.partitions_count == 3
    assert sorted(client.fetch({0: 0})) == [0, 1, 5]


def test_session_ends_when_its_last_partition_is_forgotten(client: Client) -> None:
    response = client.response(forgotten=[0, 1, 2, 3])
    assert (response.error_code, response.session_id, response.responses) == (ErrorCode.NONE, 0, ())
    assert client.response(session_epoch=client.epoch + 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(client.server.sessions) == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"session_epoch": 7}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ({"session_id": 99}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ({"session_id": 0}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_wrong_ids_and_epochs_are_errors_that_leave_the_session_as_it_is(
    client: Client, fields: dict[str, int], error: ErrorCode
) -> None:
    response = client.response({0: 0}, **fields)
    assert (response.error_code, response.session_id, response.responses) == (error, 0, ())
    assert client.fetch() == {}


def test_session_by_name_does_not_go_on_by_id_nor_the_other_way(client: Client, log_dir: LogDir) -> None:
    other = Client(client.server, ZERO_UUID if client.version == BY_ID else log_dir.topic(TOPIC).topic_id or "")
    response = other.response(session_id=client.session_id, session_epoch=client.epoch)
    assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert client.fetch() == {}


@pytest.mark.parametrize("epoch", [0, -1])
def test_full_request_ends_the_session_that_it_names(client: Client, epoch: int) -> None:
    response = client.response({0: RECORDS}, session_epoch=epoch)
    assert list(partitions_of(response)) == [0]
    assert (response.session_id not in (0, client.session_id)) == (epoch == 0)
    assert client.response().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(client.server.sessions) == 1 + epoch


def test_old_versions_have_no_sessions(server: ReadServer) -> None:
    client = Client(server)
    client.version = 6
    assert client.response({0: 0}).session_id == 0
    assert len(server.sessions) == 0


def test_session_of_another_principal_is_not_found(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_bob(host: str, port: int) -> Session:
        return Session(host, port, principal="User:bob")

    with monkeypatch.context() as patched:
        patched.setattr("fakes.server_calls.Session", of_bob)
        assert client.response().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        client.response({0: 0}, session_epoch=-1)
    assert client.fetch() == {}


def test_rights_are_checked_with_each_request(client: Client, log_dir: LogDir) -> None:
    client.server.rights.denied.add((AclOperation.READ, TOPIC))
    append_rounds(log_dir, 1, partition=0, records=RECORDS)
    for _ in range(2):
        found = client.fetch()
        assert {each.error_code for each in found.values()} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert (sorted(found), with_records(found)) == ([0, 1, 2, 3], [])
    client.server.rights.denied.clear()
    found = client.fetch()
    assert (sorted(found), with_records(found)) == ([0, 1, 2, 3], [0])
    assert list(client.fetch()) == [0]


def test_replica_is_refused_in_a_session_too(client: Client) -> None:
    client.version = min(client.version, 14)
    found = client.fetch(replica_id=1)
    assert {each.error_code for each in found.values()} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert len(found) == 4


def test_partitions_that_gave_records_wait_for_the_others(server: ReadServer, log_dir: LogDir) -> None:
    append_rounds(log_dir, 1, partition=2, records=RECORDS)
    client = Client(server)
    client.fetch({0: 0, 1: 0, 2: 0, 3: 0}, max_bytes=1)
    served = [with_records(client.fetch(max_bytes=1)) for _ in range(6)]
    assert served == [[0], [1], [2], [0], [1], [2]]


def test_isolation_may_change_within_a_session(client: Client, log_dir: LogDir) -> None:
    assert client.fetch(isolation_level=1) == {}
    append_rounds(log_dir, 1, partition=3, records=RECORDS)
    client.server.context.root.refresh()
    assert client.fetch(isolation_level=1)[3].last_stable_offset == RECORDS


def test_topic_that_is_deleted_and_created_again_is_an_error_of_its_partitions(client: Client, log_dir: LogDir) -> None:
    log_dir.delete_topic(TOPIC)
    client.server.context.root.refresh()
    assert {each.error_code for each in client.fetch().values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    log_dir.create_topic(TOPIC, partitions=4)
    client.server.context.root.refresh()
    expected = ErrorCode.OFFSET_OUT_OF_RANGE if client.version == BY_NAME else ErrorCode.INCONSISTENT_TOPIC_ID
    found = client.fetch()
    assert found[0].error_code == expected
    assert found[2].error_code == (ErrorCode.NONE if client.version == BY_NAME else expected)


def test_unknown_topic_id_is_found_when_the_topic_is_there(server: ReadServer, log_dir: LogDir) -> None:
    known = log_dir.topic(TOPIC).topic_id or ""
    client = Client(server, known)
    client.fetch({0: RECORDS})
    unknown = Client(server, "AAAAAAAAAAAAAAAAAAAABw")
    unknown.session_id, unknown.epoch = client.session_id, client.epoch
    for offsets in ({0: 0}, None):
        [found] = unknown.fetch(offsets).values()
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert unknown.fetch(forgotten=[0]) == {}


def wait_then(client: Client, request: FetchRequest, then: Callable[[], Awaitable[None]]) -> FetchResponse:
    """The response to a request that waits, for which `then` makes records once it does."""

    async def main() -> FetchResponse:
        server = client.server
        asked = asyncio.create_task(server.answer(ApiKey.FETCH, client.version, request, FetchResponse))
        while not server.waiters.events and not asked.done():
            await asyncio.sleep(0.001)
        await then()
        server.waiters.notify(frozenset({TopicPartition(TOPIC, 3)}))
        return await asyncio.wait_for(asked, PATIENCE_S)

    return asyncio.run(main())


def test_session_waits_for_any_of_its_partitions(client: Client, log_dir: LogDir) -> None:
    async def append() -> None:
        [waited] = client.server.waiters.events.values()
        assert waited == {TopicPartition(TOPIC, each) for each in range(4)}
        append_rounds(log_dir, 1, partition=3, records=RECORDS)

    response = wait_then(client, client.request(max_wait_ms=LONG_MS, min_bytes=1), append)
    assert with_records(partitions_of(response)) == [3]


def test_request_that_was_overtaken_changes_nothing(client: Client, log_dir: LogDir) -> None:
    waiting = client.request(max_wait_ms=LONG_MS, min_bytes=1)
    client.epoch += 1
    overtaking = client.request({0: 0})
    answers = []

    async def overtake() -> None:
        answers.append(await client.server.answer(ApiKey.FETCH, client.version, overtaking, FetchResponse))
        append_rounds(log_dir, 1, partition=3, records=RECORDS)

    first = wait_then(client, waiting, overtake)
    expected = ErrorCode.INVALID_FETCH_SESSION_EPOCH, client.session_id, ()
    assert (first.error_code, first.session_id, first.responses) == expected
    [second] = answers
    assert with_records(partitions_of(second)) == [0]
    client.epoch += 1
    assert sorted(client.fetch()) == [0, 3]


class Throttling:
    """Rates that nobody may exceed while `throttle_ms` is set."""

    def __init__(self) -> None:
        self.throttle_ms = 0
        self.charged = 0.0

    def throttle(self, session: Session, client_id: str, quota: str, amount: float) -> int:
        self.charged += amount
        return self.throttle_ms

    def give_back(self, session: Session, client_id: str, quota: str, amount: float) -> None:
        self.charged -= amount


def test_throttled_response_leaves_the_session_as_it_was(client: Client, log_dir: LogDir) -> None:
    rates = Throttling()
    object.__setattr__(client.server.context, "quotas", cast(ClientRates, rates))
    append_rounds(log_dir, 1, partition=2, records=RECORDS)
    client.server.context.root.refresh()
    rates.throttle_ms = 250
    response = client.response({2: RECORDS})
    assert (response.throttle_time_ms, response.session_id, response.responses) == (250, client.session_id, ())
    assert rates.charged == 0
    full = client.response({0: 0}, session_id=0, session_epoch=0)
    assert (full.throttle_time_ms, full.session_id, full.responses) == (250, 0, ())
    rates.throttle_ms = 0
    client.epoch += 1
    assert client.fetch()[2].high_watermark == RECORDS  # the news of before
    assert rates.charged > 0


@pytest.mark.file_roots
def test_quiet_partitions_are_not_read_again(client: Client, log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[int] = []
    find = NativePartitions.find

    def watched(self: NativePartitions, topic: str, partition: int) -> Any:
        looked_up.append(partition)
        return find(self, topic, partition)

    monkeypatch.setattr(NativePartitions, "find", watched)
    assert client.fetch() == {}
    append_rounds(log_dir, 1, partition=2, records=RECORDS)
    client.server.context.root.refresh()
    assert list(client.fetch()) == [2]
    assert looked_up == [2]


def test_broker_directory_is_read_in_sessions() -> None:
    part = partitions_with_offsets()[0]
    with ReadServer(LogDir.open(part.root)) as server:
        client = Client(server, topic=part.topic)
        first = client.fetch({part.partition: part.offsets["earliest"]})
        assert with_records(first) == [part.partition]
        client.fetch({part.partition: first[part.partition].high_watermark})
        assert client.fetch() == {}
