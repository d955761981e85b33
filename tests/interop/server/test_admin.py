"""The admin requests of Kafka's tools and clients: a server of this package answers them as a real broker does."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from fakes.hostile_clients import answer_or_end, frame_of, sized
from kafka_processes.admin_cases import CASES, CASES_OF_VERSIONS, AdminCase
from kafka_processes.compared_answers import ComparableAnswers, asked_until_equal, different
from kafka_processes.oracle import KAFKA_VERSION, Broker
from kafka_processes.served import serve
from patience import wait_until

from pyspark_kafkalog.config.broker import BROKER_CONFIGS, OWN_CONFIGS
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.protocol.api import APIS, Api, ApiKey
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import ApiVersionsRequest
from pyspark_kafkalog.protocol.messages.security import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    EntityData,
    OpData,
)
from pyspark_kafkalog.protocol.messages.topics import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from pyspark_kafkalog.server.admin.configs import ConfigResourceType, Operation
from pyspark_kafkalog.server.config import Address, ServerConfig

VERSIONS = sized(frame_of(APIS[ApiKey.API_VERSIONS], 0, ApiVersionsRequest()))
NODE_ID = 1  # that of the broker
VERSIONED = [
    *((case, version) for case in CASES for version in APIS[case.key].versions),
    *((case, version) for case, versions in CASES_OF_VERSIONS for version in versions),
]


@pytest.fixture(scope="module")
def servers(start_broker: Callable[..., Broker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a broker, and of a server over a new log directory."""
    path = tmp_path_factory.mktemp("served") / "log"
    with serve(path, ServerConfig(listen=Address("127.0.0.1", 0), node_id=NODE_ID, flush="os")) as bootstrap:
        yield start_broker().bootstrap, bootstrap


@pytest.fixture
def clients(servers: tuple[str, str]) -> Iterator[tuple[WireClient, WireClient]]:
    with ExitStack() as open_ones:
        found = []
        for bootstrap in servers:
            host, port = bootstrap.split(":")
            client = WireClient.connect(host, int(port), client_id="tests", timeout_s=30)
            open_ones.enter_context(client).negotiate()
            found.append(client)
        yield found[0], found[1]


def differences(clients: Sequence[WireClient], case: AdminCase, version: int) -> Iterator[str]:
    """Where the answers differ, if they do."""
    sides = [(each, ComparableAnswers()) for each in clients]
    for number, request in enumerate(case.requests(f"{case.name.replace('_', '-')}-{version}", NODE_ID)):
        api = next(each for each in APIS.values() if isinstance(request, each.request))
        ask_both = partial(_ask_both, sides, request, api, version if api.key == case.key else None)
        broker, own = asked_until_equal(api.key, ask_both)
        if broker != own:
            fields = "\n".join(
                f"    {path}: broker {left!r}, server {right!r}" for path, left, right in different(broker, own)
            )
            yield f"{case.name} v{version} request {number}: {request}\n{fields}"


def _ask_both(
    sides: Sequence[tuple[WireClient, ComparableAnswers]], request: ApiMessage, api: Api, version: int | None
) -> tuple[Any, Any]:
    broker, own = (answers.comparable(client.call(request, api.response, version=version)) for client, answers in sides)
    return broker, own


def test_newest_versions_are_answered_as_by_a_broker(clients: tuple[WireClient, WireClient]) -> None:
    newest = [(case, version) for case, version in VERSIONED if version == APIS[case.key].versions[-1]]
    assert {case.key for case, _ in newest} >= {ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS}
    found = [each for case, version in newest for each in differences(clients, case, version)]
    assert not found, "\n".join(found)


#: Settings of this package that a broker takes for unknown: it stores them as secrets, and they have no effect.
OWN_SETTINGS = {
    "super.users",
    "allow.everyone.if.no.acl.found",
    "rsm.config.location",
    "rsm.config.layout",
    *OWN_CONFIGS,
}


def set_configs(client: WireClient, kind: ConfigResourceType, resource: str, name: str, value: str | None) -> int:
    """The error code of one change of a configuration."""
    operation = Operation.DELETE if value is None else Operation.SET
    config = IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=operation, value=value)
    changed = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=resource, configs=(config,)
    )
    answer = client.call(IncrementalAlterConfigsRequest(resources=(changed,)), IncrementalAlterConfigsResponse)
    return answer.responses[0].error_code


def defaults_of_brokers(client: WireClient) -> dict[str, tuple[str | None, bool]]:
    """What is set for all brokers: the values, and whether requests cannot change them."""
    resource = DescribeConfigsResource(
        resource_type=ConfigResourceType.BROKER, resource_name="", configuration_keys=None
    )
    (found,) = client.call(DescribeConfigsRequest(resources=(resource,)), DescribeConfigsResponse).results
    return {each.name: (each.value, each.read_only) for each in found.configs}


def test_requests_change_the_settings_that_they_change_at_a_broker(clients: tuple[WireClient, WireClient]) -> None:
    kind, changed = ConfigResourceType.BROKER, []
    for name, definition in sorted(BROKER_CONFIGS.items()):
        if definition.since > KAFKA_VERSION:
            continue
        value = definition.default_text or "1000000"
        broker, own = (set_configs(client, kind, "", name, value) for client in clients)
        assert own == (broker if name not in OWN_SETTINGS else ErrorCode.INVALID_REQUEST), name
        assert set_configs(clients[1], kind, str(NODE_ID), name, value) == ErrorCode.INVALID_REQUEST, name
        if broker == 0:
            changed.append(name)
    wait_until(lambda: defaults_of_brokers(clients[0]).keys() >= set(changed), "all settings at the broker")
    broker_has, own_has = map(defaults_of_brokers, clients)
    assert {name for name in changed if broker_has[name] == (None, True)} == OWN_SETTINGS
    assert own_has == {name: broker_has[name] for name in set(changed) - OWN_SETTINGS}
    for name in changed:
        for client in clients:
            set_configs(client, kind, "", name, None)


def test_topics_take_the_configurations_that_they_take_at_a_broker(
    servers: tuple[str, str], clients: tuple[WireClient, WireClient]
) -> None:
    for bootstrap in servers:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        assert results(admin.create_topics([NewTopic("settings", 1, 1)])) == {"settings": None}
    kind = ConfigResourceType.TOPIC
    for name in sorted({*TOPIC_CONFIGS, *OWN_SETTINGS, "authorizer.class.name", "rsm.config.dir", "nope"}):
        known = TOPIC_CONFIGS.get(name)
        value = "1" if known is None else known.definition.default_text or "1000000"
        broker, own = (set_configs(client, kind, "settings", name, value) for client in clients)
        is_here_only = known is not None and (known.definition.since > KAFKA_VERSION or known.definition.is_own)
        assert own == (ErrorCode.NONE if is_here_only else broker), name


def test_groups_take_the_configurations_that_they_take_at_a_broker(clients: tuple[WireClient, WireClient]) -> None:
    kind = ConfigResourceType.GROUP
    refused = {"share.auto.offset.reset": "LATEST", "share.isolation.level": "none", "nope": "1"}
    for name in sorted({*GROUP_CONFIGS, "nope"}):
        known = GROUP_CONFIGS.get(name)
        if known is not None and known.since > KAFKA_VERSION:
            continue
        values = {"1" if known is None else known.default_text, refused.get(name, "x"), "-5"}
        for value in sorted(values):
            broker, own = (set_configs(client, kind, "group", name, value) for client in clients)
            assert own == broker, f"{name}={value}"
    broker, own = (described(client, kind, "group") for client in clients)
    assert {name: own[name] for name in broker} == broker


def described(client: WireClient, kind: ConfigResourceType, resource: str) -> dict[str, tuple[str | None, int]]:
    """The values of all configurations of a resource and their sources, by name."""
    asked = DescribeConfigsResource(resource_type=kind, resource_name=resource, configuration_keys=None)
    (found,) = client.call(DescribeConfigsRequest(resources=(asked,)), DescribeConfigsResponse).results
    return {each.name: (each.value, each.config_source) for each in found.configs}


def partitions_of(admin: AdminClient, topic: str) -> int:
    """The number of partitions that have a leader, as a broker knows them: a moment after a change."""
    found = admin.list_topics(timeout=60).topics.get(topic)
    return 0 if found is None else sum(each.leader >= 0 for each in found.partitions.values())


def outcomes(bootstrap: str) -> dict[str, object]:
    """What librdkafka's AdminClient gets for requests of each kind: results, or the names of errors."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    append = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    new = [NewTopic("librdkafka", 3, 1, config={"retention.ms": "60000"}), NewTopic("a b", 1, 1)]
    names = ["librdkafka", "nope"]
    cluster = admin.describe_cluster().result(30)
    found: dict[str, object] = {
        "cluster": (cluster.controller.id, [each.id for each in cluster.nodes]),
        "create": results(admin.create_topics(new)),
        "create again": results(admin.create_topics(new[:1])),
        "validate": results(admin.create_topics([NewTopic("other", 1, 1)], validate_only=True)),
    }
    wait_until(lambda: partitions_of(admin, "librdkafka") == 3, "the topic")
    changes = [ConfigResource(ResourceType.TOPIC, each, incremental_configs=[append]) for each in names]
    start = [TopicPartition("librdkafka", 0, 0)]
    found |= {
        "add": results(admin.create_partitions([NewPartitions(each, 5) for each in names])),
        "alter": results(admin.incremental_alter_configs(changes)),
        "delete records": results(admin.delete_records(start), lambda deleted: deleted.low_watermark),
    }
    wait_until(lambda: partitions_of(admin, "librdkafka") == 5, "the partitions")
    asked = [ConfigResource(ResourceType.TOPIC, each) for each in names]
    wait_until(lambda: "compact" in str(results(admin.describe_configs(asked[:1]), own_configs)), "the configuration")
    elected = admin.elect_leaders(ElectionType.PREFERRED, start).result(30)
    topics = admin.describe_topics(TopicCollection(names), include_authorized_operations=True)
    return found | {
        "configs": results(admin.describe_configs(asked), own_configs),
        "topics": results(topics, described_topic),
        "elected": [(str(each), error and error.name()) for each, error in elected.items()],
        "delete": results(admin.delete_topics(names)),
    }


def results(futures: Mapping[Any, Any], show: Callable[[Any], object] = lambda result: None) -> dict[str, object]:
    found = {}
    for name, future in futures.items():
        try:
            found[str(name)] = show(future.result(30))
        except KafkaException as error:
            found[str(name)] = error.args[0].name()
    return found


def own_configs(configs: Mapping[str, Any]) -> object:
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return sorted((each.name, each.value) for each in configs.values() if each.source == own)


def described_topic(topic: Any) -> object:
    operations = sorted(each.name for each in topic.authorized_operations)
    return topic.is_internal, [(each.id, each.leader.id) for each in topic.partitions], operations


@pytest.mark.full
def test_admin_client_of_librdkafka_gets_what_a_broker_gives(servers: tuple[str, str]) -> None:
    broker, own = map(outcomes, servers)
    assert own == broker
    assert own["create"] == {"librdkafka": None, "a b": "TOPIC_EXCEPTION"}
    assert "('cleanup.policy', 'delete,compact')" in str(own["configs"])


@pytest.mark.full
@pytest.mark.parametrize(("case", "version"), VERSIONED, ids=[f"{case.name}-{version}" for case, version in VERSIONED])
def test_every_version_is_answered_as_by_a_broker(
    clients: tuple[WireClient, WireClient], case: AdminCase, version: int
) -> None:
    if version == APIS[case.key].versions[-1]:
        return  # the other test has asked the same
    found = list(differences(clients, case, version))
    assert not found, "\n".join(found)


def test_hosts_above_their_rate_of_connections_are_refused_as_by_a_broker(
    servers: tuple[str, str], clients: tuple[WireClient, WireClient]
) -> None:
    host, probe, rate = "127.0.0.2", "127.0.0.4", 2.0
    operation = OpData(key="connection_creation_rate", value=rate)
    entities = [(EntityData(entity_type="ip", entity_name=name),) for name in (host, probe)]
    entries = tuple(AlterClientQuotasRequestEntryData(entity=entity, ops=(operation,)) for entity in entities)
    accepted = []
    for bootstrap, client in zip(servers, clients, strict=True):
        answer = client.call(AlterClientQuotasRequest(entries=entries), AlterClientQuotasResponse)
        assert [entry.error_code for entry in answer.entries] == [ErrorCode.NONE] * 2
        address = bootstrap.rpartition(":")
        # A broker's quotas hold a moment after the answer, both at once: connections of another host show when.
        while all(connections(address, probe, 40)):
            pass
        accepted.append([sum(connections(address, host, 40)) for _ in range(2)])
        assert all(connections(address, "127.0.0.3", 5))
    print(f"accepted of 40 at {rate} a second: broker {accepted[0]}, server {accepted[1]}")
    for of_both in zip(*accepted, strict=True):
        assert max(of_both) - min(of_both) <= 4


def connections(address: tuple[str, str, str], source: str, count: int) -> list[bool]:
    """Which of so many connections were answered; refused ones are closed without an answer."""
    with ExitStack() as open_ones:
        opened = []
        for _ in range(count):
            sock = socket.create_connection((address[0], int(address[2])), 30, source_address=(source, 0))
            open_ones.enter_context(sock).sendall(VERSIONS)
            opened.append(sock)
        return [bool(answer_or_end(each, 30)) for each in opened]
