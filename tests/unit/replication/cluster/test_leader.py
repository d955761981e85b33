"""The leader of a live cluster: moves, losses, throttling, changed topics, answers that are damaged or too large."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import cast

import pytest
from builders.certificates import Authority, common_name
from fakes.scripted_cluster import ScriptedCluster, ScriptedPartition, ScriptedTopic
from repository import DATA

from pyspark_kafkalog.errors import (
    AuthenticationError,
    InvalidConfigError,
    LeaderUnavailableError,
    NetworkError,
    UnsupportedApiError,
)
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.client_settings import ClientSettings, KeyStoreSettings, TlsClientSettings
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import MetadataRequest
from pyspark_kafkalog.protocol.messages.records import FetchRequest, FetchResponseEpochEndOffset
from pyspark_kafkalog.protocol.messages.security import DescribeAclsResponse
from pyspark_kafkalog.protocol.messages.topics import DescribeConfigsRequest
from pyspark_kafkalog.replication.cluster.answers import CallNode, ClusterAccess, cluster_access
from pyspark_kafkalog.replication.cluster.connections import NodeAddress, client_opener, parse_addresses
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.leader import EpochEnd, FetchOutcome, FetchPosition, LeaderAnswer
from pyspark_kafkalog.storage.names import TopicPartition

FIRST = TopicPartition("orders", 0)
SECOND = TopicPartition("orders", 1)
OLD_FORMATS = DATA / "old-formats" / "disk"
ORDERS_ID = "AAAAAAAAAAAAAAAAAAAAEQ"
BROKER_1, BROKER_2 = "broker 1 (broker:9001)", "broker 2 (broker:9002)"


@pytest.fixture
def cluster() -> ScriptedCluster:
    """Two brokers, each of which leads a partition of orders."""
    cluster = ScriptedCluster()
    cluster.topics["orders"] = ScriptedTopic(ORDERS_ID, [ScriptedPartition(1), ScriptedPartition(2)])
    return cluster


def leader_of(cluster: ScriptedCluster, **settings: int | str) -> ClusterLeader:
    return ClusterLeader(
        "broker:9001,broker:9002",
        ClientSettings(**settings),  # type: ignore[arg-type]
        frame_bytes_max=1 << 20,
        open_client=cluster.open_client,
        monotonic_s=cluster.clock.monotonic_s,
        sleep=cluster.clock.sleep,
    )


@pytest.fixture
def leader(cluster: ScriptedCluster) -> ClusterLeader:
    leader = leader_of(cluster)
    leader.describe(lambda _: True)
    return leader


def position(partition: TopicPartition = FIRST, offset: int = 0, epoch: int = 0) -> FetchPosition:
    return FetchPosition(topic_partition=partition, topic_id=ORDERS_ID, offset=offset, leader_epoch=epoch)


def fetch(leader: ClusterLeader, source: str = BROKER_1, *positions: FetchPosition) -> list[LeaderAnswer]:
    return leader.fetch(source, positions or (position(),), wait_ms=500, max_bytes=1 << 20, partition_bytes=1 << 20)


def test_sources_are_the_brokers_that_lead(leader: ClusterLeader) -> None:
    assert leader.sources([FIRST, SECOND]) == {BROKER_1: [FIRST], BROKER_2: [SECOND]}


def test_records_come_as_the_broker_has_them(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    data = cluster.partition(FIRST).append(records=3) + cluster.partition(FIRST).append()
    (answer,) = fetch(leader)
    assert (answer.outcome, bytes(answer.data)) == (FetchOutcome.RECORDS, data)
    assert (answer.high_watermark, answer.log_start_offset) == (4, 0)


@pytest.mark.parametrize("cut", [1, 20, 65])
def test_incomplete_last_batch_is_left_out(cluster: ScriptedCluster, leader: ClusterLeader, cut: int) -> None:
    partition = cluster.partition(FIRST)
    first = partition.append()
    partition.append()
    partition.data = partition.data[: len(first) + cut]
    (answer,) = fetch(leader)
    assert bytes(answer.data) == first


def test_nothing_beyond_the_high_watermark_and_before_the_position_is_returned(
    cluster: ScriptedCluster, leader: ClusterLeader
) -> None:
    partition = cluster.partition(FIRST)
    partition.append(records=2)
    second = partition.append(records=2)
    partition.append(records=2)
    partition.high_watermark = 5
    (answer,) = fetch(leader, BROKER_1, position(offset=3))
    assert bytes(answer.data) == second


def test_damaged_batch_fails_with_its_place_and_good_ones_before_it_are_kept(
    cluster: ScriptedCluster, leader: ClusterLeader
) -> None:
    partition = cluster.partition(FIRST)
    first = partition.append()
    broken = bytearray(partition.append())
    broken[16] = 9  # the magic
    partition.data = first + broken
    (answer,) = fetch(leader)
    assert bytes(answer.data) == first
    (answer,) = fetch(leader, BROKER_1, position(offset=1))
    assert answer.outcome == FetchOutcome.FAILED
    assert "broker 1 (broker:9001) sent a damaged batch of orders-0 at offset 1" in answer.error


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_an_old_format_are_refused_with_what_to_do(
    cluster: ScriptedCluster, leader: ClusterLeader, magic: int
) -> None:
    data = (OLD_FORMATS / f"v{magic}-none-0" / f"{0:020}.log").read_bytes()
    partition = cluster.partition(FIRST)
    partition.append(records=10)
    partition.data = data
    (answer,) = fetch(leader)
    assert (answer.outcome, len(answer.data)) == (FetchOutcome.FAILED, 0)
    assert answer.error == (
        f"a follower does not copy messages from before Kafka 0.11, which {BROKER_1} has of orders-0 at offset 0: "
        f"<FETCH response> at byte 16: expected record format v2 (magic 2), found magic {magic}; read the topic with a "
        "Kafka client or from the broker's directory, which converts the messages, and write the records into a topic "
        "of a new root; or leave the topic out with --topic"
    )


def test_batches_before_messages_of_an_old_format_are_kept(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    partition = cluster.partition(FIRST)
    first = partition.append()
    old = bytearray(partition.append())
    old[16] = 1  # the magic, of a topic that was set to an older format again
    partition.data = first + old
    (answer,) = fetch(leader)
    assert bytes(answer.data) == first
    (answer,) = fetch(leader, BROKER_1, position(offset=1))
    assert answer.outcome == FetchOutcome.FAILED
    assert "which broker 1 (broker:9001) has of orders-0 at offset 1: <FETCH response> at byte" in answer.error


def test_leader_that_moves_is_followed(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    partition = cluster.partition(FIRST)
    partition.leader, partition.epoch = 2, 1
    data = partition.append()
    (answer,) = fetch(leader)
    assert answer.outcome == FetchOutcome.LEADER_MOVED
    assert leader.sources([FIRST]) == {BROKER_2: [FIRST]}
    (answer,) = fetch(leader, BROKER_2)
    assert bytes(answer.data) == data


def test_epoch_that_the_cluster_has_named_is_used_where_the_follower_knows_an_older_one(
    cluster: ScriptedCluster, leader: ClusterLeader
) -> None:
    cluster.partition(FIRST).epoch = 4
    assert fetch(leader)[0].outcome == FetchOutcome.LEADER_MOVED
    leader.sources([FIRST])
    assert fetch(leader, BROKER_1, position(epoch=2))[0].outcome == FetchOutcome.RECORDS


def test_metadata_that_lags_behind_changes_nothing(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    partition = cluster.partition(FIRST)
    partition.leader, partition.epoch = 2, 3
    leader.describe(lambda _: True)
    partition.leader, partition.epoch = 1, 2
    description = leader.describe(lambda _: True)
    assert description.topics["orders"].leader_epochs == (3, 0)
    assert leader.sources([FIRST]) == {BROKER_2: [FIRST]}


def test_partition_without_a_leader_is_in_no_source_until_it_has_one(
    cluster: ScriptedCluster, leader: ClusterLeader
) -> None:
    partition = cluster.partition(FIRST)
    partition.leader, partition.epoch = -1, 1
    assert fetch(leader)[0].outcome == FetchOutcome.LEADER_MOVED
    assert leader.sources([FIRST, SECOND]) == {BROKER_2: [SECOND]}
    partition.leader, partition.epoch = 2, 2
    assert leader.sources([FIRST]) == {BROKER_2: [FIRST]}


def test_metadata_is_not_asked_more_often_than_the_backoff_allows(
    cluster: ScriptedCluster, leader: ClusterLeader
) -> None:
    cluster.partition(FIRST).leader = -1
    fetch(leader)
    before = cluster.clock.now_s
    for _ in range(10):
        leader.sources([FIRST])
    assert cluster.clock.now_s - before >= 0.9


def test_metadata_is_asked_again_after_its_age(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    asked = cluster.received[1, ApiKey.METADATA]
    leader.sources([FIRST])
    assert cluster.received[1, ApiKey.METADATA] == asked
    cluster.clock.now_s += 301
    leader.sources([FIRST])
    assert cluster.received[1, ApiKey.METADATA] == asked + 1


def test_lost_broker_is_named_and_the_others_are_asked(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    assert fetch(leader)[0].outcome == FetchOutcome.RECORDS
    cluster.down.add(1)
    cluster.partition(FIRST).leader = 2
    cluster.partition(FIRST).epoch = 1
    with pytest.raises(LeaderUnavailableError, match=r"broker 1 \(broker:9001\) does not answer FETCH"):
        fetch(leader)
    assert leader.sources([FIRST]) == {BROKER_2: [FIRST]}
    with pytest.raises(LeaderUnavailableError, match=r"broker 1 \(broker:9001\)"):
        fetch(leader)
    cluster.down.clear()
    cluster.brokers.remove(1)
    leader.describe(lambda _: True)
    assert fetch(leader, BROKER_2)[0].outcome == FetchOutcome.RECORDS


def test_reconnecting_waits_longer_each_time_up_to_a_bound(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    cluster.down.add(1)
    del cluster.clock.sleeps[:]
    for _ in range(12):
        with pytest.raises(LeaderUnavailableError):
            fetch(leader)
    sleeps = cluster.clock.sleeps
    assert len(sleeps) == 11
    assert 0.04 <= sleeps[0] <= 0.06
    assert all(0.8 <= each <= 1.2 for each in sleeps[5:])


def test_cluster_that_is_gone_is_an_error_that_names_all_its_servers(
    cluster: ScriptedCluster, leader: ClusterLeader
) -> None:
    cluster.down.update({1, 2})
    with pytest.raises(LeaderUnavailableError, match=r"broker 1 .*; broker 2 "):
        leader.describe(lambda _: True)
    cluster.down.clear()
    assert leader.describe(lambda _: True).topics.keys() == {"orders"}


def test_throttled_client_waits_before_its_next_request(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    cluster.throttle_ms = 1500
    fetch(leader)
    before = cluster.clock.now_s
    fetch(leader, BROKER_2, position(SECOND))
    assert cluster.clock.now_s == before
    fetch(leader)
    assert cluster.clock.now_s == pytest.approx(before + 1.5)


def test_topic_that_was_created_again_or_deleted_has_changed(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    cluster.topics["orders"].topic_id = "AAAAAAAAAAAAAAAAAAAAEg"
    assert fetch(leader)[0].outcome == FetchOutcome.TOPIC_CHANGED
    assert leader.describe(lambda _: True).topics["orders"].topic_id == "AAAAAAAAAAAAAAAAAAAAEg"
    del cluster.topics["orders"]
    assert fetch(leader)[0].outcome == FetchOutcome.TOPIC_CHANGED
    assert not leader.describe(lambda _: True).topics


def test_new_partitions_and_topics_are_described(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    cluster.topics["orders"].partitions.append(ScriptedPartition(2, epoch=7))
    cluster.topics["other"] = ScriptedTopic("AAAAAAAAAAAAAAAAAAAAEw", [ScriptedPartition(1)])
    description = leader.describe(lambda name: name == "orders")
    assert description.topics.keys() == {"orders"}
    assert description.topics["orders"].leader_epochs == (0, 0, 7)
    assert leader.sources([TopicPartition("orders", 2)]) == {BROKER_2: [TopicPartition("orders", 2)]}


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, FetchOutcome.OUT_OF_RANGE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, FetchOutcome.TOPIC_CHANGED),
        (ErrorCode.INCONSISTENT_TOPIC_ID, FetchOutcome.TOPIC_CHANGED),
        (ErrorCode.KAFKA_STORAGE_ERROR, FetchOutcome.LEADER_MOVED),
        (ErrorCode.REPLICA_NOT_AVAILABLE, FetchOutcome.LEADER_MOVED),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, FetchOutcome.FAILED),
        (ErrorCode.OFFSET_NOT_AVAILABLE, FetchOutcome.FAILED),
        (ErrorCode.UNKNOWN_SERVER_ERROR, FetchOutcome.FAILED),
        (9999, FetchOutcome.FAILED),
    ],
)
@pytest.mark.all_cases
def test_error_of_one_partition_leaves_the_others_alone(
    cluster: ScriptedCluster, leader: ClusterLeader, code: int, outcome: FetchOutcome
) -> None:
    cluster.partition(SECOND).leader = 1
    leader.describe(lambda _: True)
    cluster.partition(FIRST).error = code
    data = cluster.partition(SECOND).append()
    found = {each.topic_partition: each for each in fetch(leader, BROKER_1, position(), position(SECOND))}
    assert found[FIRST].outcome == outcome
    assert "broker 1 (broker:9001) answered FETCH of orders-0 with" in found[FIRST].error
    assert bytes(found[SECOND].data) == data


def test_diverging_epoch_is_passed_on(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    cluster.partition(FIRST).diverging = FetchResponseEpochEndOffset(epoch=3, end_offset=17)
    (answer,) = fetch(leader)
    assert (answer.outcome, answer.diverging) == (FetchOutcome.DIVERGING, EpochEnd(3, 17))


def test_answer_that_is_too_large_is_an_error_and_closes_the_connection(cluster: ScriptedCluster) -> None:
    cluster.frame_bytes_max = 10_000
    leader = leader_of(cluster)
    leader.describe(lambda _: True)
    cluster.partition(FIRST).append(size=20_000)
    opened = cluster.opened[1]
    with pytest.raises(LeaderUnavailableError, match="expected a frame of at most 10000 bytes"):
        fetch(leader)
    cluster.partition(FIRST).data = b""
    assert fetch(leader)[0].outcome == FetchOutcome.RECORDS
    assert cluster.opened[1] == opened + 2


def test_each_partition_is_first_in_its_turn(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    cluster.topics["orders"].partitions = [ScriptedPartition(1) for _ in range(3)]
    leader.describe(lambda _: True)
    positions = [position(TopicPartition("orders", each)) for each in range(3)]
    for _ in range(3):
        fetch(leader, BROKER_1, *positions)
    requests = cluster.of_api(1, FetchRequest)
    firsts = [each.topics[0].partitions[0].partition for each in requests if isinstance(each, FetchRequest)]
    assert sorted(firsts) == [0, 1, 2]


def test_replica_that_the_leader_names_is_read_until_an_error_there(cluster: ScriptedCluster) -> None:
    leader = leader_of(cluster, rack="a")
    leader.describe(lambda _: True)
    partition = cluster.partition(FIRST)
    partition.preferred = 2
    data = partition.append()
    assert fetch(leader)[0].outcome == FetchOutcome.LEADER_MOVED
    assert leader.sources([FIRST]) == {BROKER_2: [FIRST]}
    assert bytes(fetch(leader, BROKER_2)[0].data) == data
    partition.error = ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(leader, BROKER_2)[0].outcome == FetchOutcome.LEADER_MOVED
    assert leader.sources([FIRST]) == {BROKER_1: [FIRST]}
    assert fetch(leader)[0].outcome == FetchOutcome.OUT_OF_RANGE
    racks = {each.rack_id for each in cluster.of_api(1, FetchRequest) if isinstance(each, FetchRequest)}
    assert racks == {"a"}


@pytest.mark.parametrize("loss", ["age", "down"])
def test_replica_is_left_for_the_leader_after_a_while_or_if_it_is_lost(cluster: ScriptedCluster, loss: str) -> None:
    leader = leader_of(cluster)
    leader.describe(lambda _: True)
    cluster.partition(FIRST).preferred = 2
    fetch(leader)
    assert leader.sources([FIRST]) == {BROKER_2: [FIRST]}
    if loss == "age":
        cluster.clock.now_s += 301
    else:
        fetch(leader, BROKER_2)
        cluster.down.add(2)
        with pytest.raises(LeaderUnavailableError):
            fetch(leader, BROKER_2)
    assert leader.sources([FIRST]) == {BROKER_1: [FIRST]}


def test_brokers_before_fetch_12_are_refused(cluster: ScriptedCluster) -> None:
    cluster.newest[ApiKey.FETCH] = 11
    leader = leader_of(cluster)
    leader.describe(lambda _: True)
    with pytest.raises(UnsupportedApiError, match=r"broker 1 .* has FETCH up to version 11.* Kafka 2\.7 or newer"):
        fetch(leader)


def test_topics_without_ids_get_one_that_stays_and_are_fetched_by_name(cluster: ScriptedCluster) -> None:
    cluster.newest[ApiKey.METADATA] = 9
    data = cluster.partition(FIRST).append()
    ids = []
    for _ in range(2):
        leader = leader_of(cluster)
        ids.append(leader.describe(lambda _: True).topics["orders"].topic_id)
        asked = FetchPosition(topic_partition=FIRST, topic_id=ids[-1], offset=0)
        assert bytes(fetch(leader, BROKER_1, asked)[0].data) == data
    assert ids[0] == ids[1] != ORDERS_ID
    assert not ids[0].startswith("-")
    requests = [each for each in cluster.of_api(1, FetchRequest) if isinstance(each, FetchRequest)]
    assert {each.topics[0].topic for each in requests} == {"orders"}


def test_topics_that_cannot_be_read_are_named_with_the_reason(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    cluster.topics["closed"] = ScriptedTopic(
        "AAAAAAAAAAAAAAAAAAAAFA", [ScriptedPartition(1)], configs_error=ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    cluster.topics["broken"] = ScriptedTopic("AAAAAAAAAAAAAAAAAAAAFQ", [], error=ErrorCode.INVALID_TOPIC_EXCEPTION)
    cluster.topics["empty"] = ScriptedTopic("AAAAAAAAAAAAAAAAAAAAFg", [])
    description = leader.describe(lambda _: True)
    assert description.topics.keys() == {"orders"}
    assert description.unreadable.keys() == {"closed", "broken", "empty"}
    assert "TOPIC_AUTHORIZATION_FAILED" in description.unreadable["closed"]
    assert "INVALID_TOPIC_EXCEPTION" in description.unreadable["broken"]


def test_thousands_of_topics_are_described_by_many_requests(cluster: ScriptedCluster) -> None:
    for number in range(2500):
        name = f"t{number:05d}"
        cluster.topics[name] = ScriptedTopic(f"AAAAAAAAAAAAAAAAA{number:05d}"[:21] + "A", [ScriptedPartition(1)])
    cluster.frame_bytes_max = 1 << 22
    leader = leader_of(cluster)
    assert len(leader.describe(lambda _: True).topics) == 2501
    asked = [each for each in cluster.of_api(1, DescribeConfigsRequest) if isinstance(each, DescribeConfigsRequest)]
    assert max(len(each.resources) for each in asked) <= 250
    cluster.clock.now_s += 301
    assert len(leader.sources([TopicPartition(f"t{each:05d}", 0) for each in range(2500)])[BROKER_1]) == 2500
    named = [each for each in cluster.of_api(1, MetadataRequest) if isinstance(each, MetadataRequest)][1:]
    assert [len(each.topics or ()) for each in named] == [1000, 1000, 501]


def test_configurations_of_many_topics_are_asked_again_in_turn(cluster: ScriptedCluster) -> None:
    for number in range(600):
        cluster.topics[f"t{number:03d}"] = ScriptedTopic(f"AAAAAAAAAAAAAAAAAA{number:03d}A", [ScriptedPartition(1)])
    leader = leader_of(cluster)
    assert len(leader.describe(lambda _: True).topics) == 601
    for topic in cluster.topics.values():
        topic.configs = {"retention.ms": "1"}
    cluster.topics["new"] = ScriptedTopic("AAAAAAAAAAAAAAAAAAABAA", [ScriptedPartition(1)], configs={"a": "b"})
    del cluster.topics["t000"]
    asked = cluster.received[1, ApiKey.DESCRIBE_CONFIGS]
    assert leader.describe(lambda _: True).topics["t001"].configs == {}
    assert cluster.received[1, ApiKey.DESCRIBE_CONFIGS] == asked + 1  # for the new one
    cluster.clock.now_s += 30
    changed = []
    for _ in range(3):
        found = leader.describe(lambda _: True).topics
        cluster.clock.now_s += 5
        assert len(found) == 601
        assert found["new"].configs == {"a": "b"}
        changed.append(sum(each.configs == {"retention.ms": "1"} for each in found.values()))
    assert changed == [250, 500, 600]


def test_settings_of_the_cluster_are_those_of_the_broker_that_answered_before(cluster: ScriptedCluster) -> None:
    leader = leader_of(cluster)
    leader.describe(lambda _: True)
    asked = cluster.received[1, ApiKey.DESCRIBE_CONFIGS]
    cluster.clock.now_s += 30
    cluster.down.add(1)
    leader.describe(lambda _: True)
    cluster.down.clear()
    cluster.clock.now_s += 30
    leader.describe(lambda _: False)
    assert cluster.received[1, ApiKey.DESCRIBE_CONFIGS] == asked
    assert cluster.received[2, ApiKey.DESCRIBE_CONFIGS] >= 2


def test_what_is_not_permitted_is_not_asked_at_each_description(
    cluster: ScriptedCluster, leader: ClusterLeader
) -> None:
    assert leader.describe(lambda _: True).acls is None
    assert leader.describe(lambda _: True).quotas == {}
    assert cluster.received[1, ApiKey.DESCRIBE_ACLS] == 1
    assert cluster.received[1, ApiKey.DESCRIBE_CLIENT_QUOTAS] == 1
    cluster.clock.now_s += 30
    leader.describe(lambda _: True)
    assert cluster.received[1, ApiKey.DESCRIBE_ACLS] == 1
    assert cluster.received[1, ApiKey.DESCRIBE_CLIENT_QUOTAS] == 2
    cluster.clock.now_s += 271
    leader.describe(lambda _: True)
    assert cluster.received[1, ApiKey.DESCRIBE_ACLS] == 2


@pytest.mark.parametrize(
    ("error", "has_authorizer"),
    [(ErrorCode.NONE, True), (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, True), (ErrorCode.SECURITY_DISABLED, False)],
)
def test_cluster_that_refuses_to_show_its_entries_has_an_authorizer(error: ErrorCode, has_authorizer: bool) -> None:
    def call(request: ApiMessage, response: type[ApiMessage]) -> ApiMessage:
        return DescribeAclsResponse(error_code=error)

    found = cluster_access(cast("CallNode", call))
    assert found == ClusterAccess(has_authorizer, () if error == ErrorCode.NONE else None)


def test_server_that_accepts_and_is_silent_is_an_error_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = ClientSettings(request_timeout_ms=100, default_api_timeout_ms=100)
        leader = ClusterLeader(f"127.0.0.1:{listener.getsockname()[1]}", settings)
        with pytest.raises(LeaderUnavailableError, match="no response to API_VERSIONS"):
            leader.describe(lambda _: True)


def test_client_that_was_accepted_before_is_not_ended_by_a_refusal(tmp_path: Path) -> None:
    trusted = Authority(tmp_path)
    own = trusted.sign("own", common_name("broker"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    trust_store = tmp_path / "trusted.pem"
    trust_store.write_bytes(trusted.certificate.read_bytes())
    tls = TlsClientSettings(trust_store=KeyStoreSettings(location=trust_store))
    with ScriptedCluster().listening(context) as address:
        open_client = client_opener(ClientSettings(tls=tls, request_timeout_ms=5000))
        (tmp_path / "other").mkdir()
        trust_store.write_bytes(Authority(tmp_path / "other").certificate.read_bytes())
        with pytest.raises(AuthenticationError, match="certificate of 127"):
            open_client(address)
        trust_store.write_bytes(trusted.certificate.read_bytes())
        open_client(address).client.close()
        trust_store.write_text("half written")
        with pytest.raises(NetworkError, match="expected a file in PEM or PKCS12"):
            open_client(address)


def test_servers_of_another_cluster_are_refused(cluster: ScriptedCluster, leader: ClusterLeader) -> None:
    cluster.cluster_id = "other"
    with pytest.raises(LeaderUnavailableError, match="is the cluster other now, and was cluster"):
        leader.describe(lambda _: True)


def test_range_and_ends_of_epochs_are_asked_of_the_leader_that_moves(
    cluster: ScriptedCluster, leader: ClusterLeader
) -> None:
    partition = cluster.partition(FIRST)
    partition.append(records=5)
    partition.log_start = 2
    assert leader.range_of(position()) == (2, 5)
    partition.leader, partition.epoch = 2, 1
    assert leader.range_of(position()) == (2, 5)
    assert leader.epoch_end(position(), 1) == EpochEnd(1, 5)
    assert leader.epoch_end(position(), 0) is None


def test_question_without_an_answer_is_given_up_after_a_few_attempts(
    cluster: ScriptedCluster, leader: ClusterLeader
) -> None:
    cluster.partition(FIRST).error = ErrorCode.OFFSET_NOT_AVAILABLE
    before = cluster.clock.now_s
    with pytest.raises(LeaderUnavailableError, match="answered LIST_OFFSETS of orders-0 with OFFSET_NOT_AVAILABLE"):
        leader.range_of(position())
    assert cluster.received[1, ApiKey.LIST_OFFSETS] == 3
    assert 0.2 <= cluster.clock.now_s - before <= 2
    cluster.partition(FIRST).error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(LeaderUnavailableError, match="TOPIC_AUTHORIZATION_FAILED"):
        leader.range_of(position())
    assert cluster.received[1, ApiKey.LIST_OFFSETS] == 4


def test_authenticated_session_is_replaced_before_it_ends(cluster: ScriptedCluster) -> None:
    cluster.lifetime_ms = 10_000
    leader = leader_of(cluster)
    leader.describe(lambda _: True)
    fetch(leader)
    opened = cluster.opened[1]
    cluster.clock.now_s += 8
    fetch(leader)
    assert cluster.opened[1] == opened
    cluster.clock.now_s += 1
    fetch(leader)
    assert cluster.opened[1] == opened + 1


@pytest.mark.parametrize(
    ("text", "addresses"),
    [("a:1", [("a", 1)]), ("a:1, b.c:65535 ,a:1", [("a", 1), ("b.c", 65535)]), ("[::1]:9092", [("::1", 9092)])],
)
def test_addresses_are_parsed(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == [NodeAddress(*each) for each in addresses]


@pytest.mark.parametrize("text", ["", ",", "a", "a:", ":1", "a:0", "a:65536", "a:x", "::1:9092", "a:1 b:2"])
def test_addresses_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="expected"):
        parse_addresses(text)


def test_configurations_of_groups_are_those_that_were_set(cluster: ScriptedCluster) -> None:
    cluster.group_configs = {f"g{number}": {"consumer.session.timeout.ms": str(number)} for number in range(600)}
    assert leader_of(cluster).describe(lambda _: True).group_configs == cluster.group_configs


def test_configurations_of_groups_are_not_known_of_a_cluster_before_kafka_4_1(cluster: ScriptedCluster) -> None:
    cluster.newest[ApiKey.LIST_CONFIG_RESOURCES] = 0
    assert leader_of(cluster).describe(lambda _: True).group_configs is None
