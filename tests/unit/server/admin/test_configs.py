"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs as a server answers them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders.root_places import RootPlace
from fakes.admin_requests import AdminRequests
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.config.broker import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS
from pyspark_kafkalog.config.definitions import VALUE_CHARS_MAX
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.image import GROUP_RESOURCE
from pyspark_kafkalog.metadata.messages.metadata_records import ConfigRecord
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.topics import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from pyspark_kafkalog.root.admin import broker_config_record
from pyspark_kafkalog.server.admin.configs import ConfigResourceType, Operation

TOPIC, BROKER, GROUP = ConfigResourceType.TOPIC, ConfigResourceType.BROKER, ConfigResourceType.GROUP
SET, DELETE, APPEND, SUBTRACT = Operation


@pytest.fixture
def admin(root_place: RootPlace) -> AdminRequests:
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("orders", configs={"retention.ms": "7"})
    return AdminRequests(log_dir.root)


def describe(
    admin: AdminRequests,
    kind: int,
    name: str,
    *,
    keys: tuple[str, ...] | None = None,
    with_details: bool = True,
    version: int | None = None,
) -> DescribeConfigsResult:
    body = DescribeConfigsRequest(
        resources=(DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys),),
        include_synonyms=with_details,
        include_documentation=with_details and version is None,
    )
    (result,) = admin.ask(ApiKey.DESCRIBE_CONFIGS, body, DescribeConfigsResponse, version=version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def test_topic_has_all_configurations_with_sources_types_and_documentation(admin: AdminRequests) -> None:
    admin.root.alter_broker_configs(add={"log.segment.bytes": "2097152"})
    result = describe(admin, TOPIC, "orders")
    entries = {each.name: each for each in result.configs}
    assert (result.error_code, result.error_message) == (0, None)
    assert entries.keys() == TOPIC_CONFIGS.keys() - {"internal.segment.bytes"}
    retention = entries["retention.ms"]
    assert (retention.value, retention.config_source, retention.config_type) == ("7", 1, 5)
    assert retention.documentation
    assert not retention.read_only
    assert [(each.name, each.value, each.source) for each in entries["segment.bytes"].synonyms] == [
        ("log.segment.bytes", "2097152", 3),
        ("log.segment.bytes", "1073741824", 5),
    ]
    assert {each.config_type for each in result.configs} == {1, 2, 3, 5, 6, 7}


def test_only_wanted_configurations_are_described_with_no_more_than_asked_for(admin: AdminRequests) -> None:
    result = describe(admin, TOPIC, "orders", keys=("retention.ms", "nope"), with_details=False)
    (entry,) = result.configs
    assert (entry.name, entry.synonyms, entry.documentation) == ("retention.ms", (), None)
    (entry,) = describe(admin, TOPIC, "orders", keys=("retention.ms",), version=1).configs
    assert [each.source for each in entry.synonyms] == [1]


def test_broker_has_settings_and_properties_of_the_server(admin: AdminRequests) -> None:
    assert describe(admin, BROKER, "").configs == ()
    admin.root.alter_broker_configs(add={"num.partitions": "4"})
    (given,) = describe(admin, BROKER, "").configs
    assert (given.name, given.value, given.config_source) == ("num.partitions", "4", 3)
    entries = {each.name: each for each in describe(admin, BROKER, "7").configs}
    assert entries["num.partitions"].value == "4"
    assert (entries["broker.id"].value, entries["broker.id"].read_only) == ("7", True)
    assert entries["log.retention.ms"].value is None
    assert entries["log.dirs"].value == str(admin.root.path)


def test_groups_have_the_settings_of_all_groups_and_client_metrics_their_defaults(admin: AdminRequests) -> None:
    admin.root.alter_broker_configs(add={"group.consumer.session.timeout.ms": "50000"})
    group = describe(admin, GROUP, "readers").configs
    defaults = {name: each.default_text for name, each in GROUP_CONFIGS.items()}
    assert {each.name: each.value or "" for each in group} == {**defaults, "consumer.session.timeout.ms": "50000"}
    assert [each.name for each in group if each.value is None] == ["streams.assignor.name"]
    metrics = describe(admin, ConfigResourceType.CLIENT_METRICS, "any").configs
    assert {each.name: each.value for each in metrics} == {"interval.ms": "300000", "match": "", "metrics": ""}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "6", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (BROKER, "1" * 10_000, ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.BROKER_LOGGER, "5", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (3, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_resource_that_does_not_exist_is_an_error(admin: AdminRequests, kind: int, name: str, code: ErrorCode) -> None:
    result = describe(admin, kind, name)
    assert (result.error_code, result.configs) == (code, ())
    assert result.error_message
    assert "orders" not in result.error_message


def test_describing_needs_permission(admin: AdminRequests) -> None:
    denied = AdminRequests(
        admin.root,
        denied=[
            (AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "orders"),
            (AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME),
            (AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP, "readers"),
        ],
    )
    assert describe(denied, TOPIC, "orders").error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert describe(denied, BROKER, "").error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert describe(denied, GROUP, "readers").error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize("name", ["", "7"])
def test_values_of_settings_of_plug_ins_are_hidden_as_by_a_broker(admin: AdminRequests, name: str) -> None:
    """A broker of version 4.1 answers so for `super.users` and all else that only its plug-ins know."""
    hidden = {"super.users": "User:root", "allow.everyone.if.no.acl.found": "true"}
    admin.root.alter_broker_configs(add={**hidden, "log.roll.ms": "8"})
    entries = {each.name: each for each in describe(admin, BROKER, name).configs}
    for setting in hidden:
        entry = entries[setting]
        assert (entry.value, entry.is_sensitive, entry.read_only, entry.config_type) == (None, True, True, 0)
        assert [synonym.value for synonym in entry.synonyms] == [None]
    assert "rsm.config.location" not in entries
    assert entries["log.roll.ms"].value == "8"
    assert admin.root.broker_configs().items() >= hidden.items()


def test_topic_of_broker_directory_has_its_own_values_and_defaults(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "cluster-metadata", tmp_path / "theirs")
    (tmp_path / "theirs" / "meta-0-2-0").mkdir()
    admin = AdminRequests(LogDir.open(tmp_path / "theirs").root)
    entries = {each.name: each for each in describe(admin, TOPIC, "meta-0-2").configs}
    assert (entries["retention.ms"].value, entries["retention.ms"].config_source) == ("962180866", 1)
    assert entries["segment.bytes"].config_source == 5
    assert alter(admin, (TOPIC, "meta-0-2", [(SET, "retention.ms", "1")])) == [ErrorCode.POLICY_VIOLATION]


Change = tuple[int, str, list[tuple[int, str, str | None]]]


def alter(admin: AdminRequests, *changes: Change, validate_only: bool = False) -> list[int]:
    body = IncrementalAlterConfigsRequest(
        resources=tuple(
            IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    IncrementalAlterConfigsRequestAlterableConfig(config_operation=operation, name=key, value=value)
                    for operation, key, value in operations
                ),
            )
            for kind, name, operations in changes
        ),
        validate_only=validate_only,
    )
    response = admin.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body, IncrementalAlterConfigsResponse)
    assert [(each.resource_type, each.resource_name) for each in response.responses] == [each[:2] for each in changes]
    assert all(each.error_message for each in response.responses if each.error_code)
    return [each.error_code for each in response.responses]


def configs_of(admin: AdminRequests, topic: str = "orders") -> dict[str, str]:
    return dict(admin.root.topic(topic).configs)


def test_single_configurations_are_set_and_deleted(admin: AdminRequests) -> None:
    changes = [(SET, "segment.ms", "9"), (DELETE, "retention.ms", None), (DELETE, "flush.ms", None)]
    assert alter(admin, (TOPIC, "orders", changes), validate_only=True) == [0]
    assert configs_of(admin) == {"retention.ms": "7"}
    assert alter(admin, (TOPIC, "orders", changes)) == [0]
    assert configs_of(admin) == {"segment.ms": "9"}


def test_values_are_appended_to_a_list_and_removed_from_it(admin: AdminRequests) -> None:
    assert alter(admin, (TOPIC, "orders", [(APPEND, "cleanup.policy", "compact,delete")])) == [0]
    assert configs_of(admin)["cleanup.policy"] == "delete,compact"
    assert alter(admin, (TOPIC, "orders", [(SUBTRACT, "cleanup.policy", "delete")])) == [0]
    assert configs_of(admin)["cleanup.policy"] == "compact"


def test_list_does_not_grow_beyond_what_a_record_holds(admin: AdminRequests) -> None:
    name = "leader.replication.throttled.replicas"
    pairs = ",".join(f"{partition}:1" for partition in range(4000))
    more = pairs.replace(":1", ":22")
    assert len(pairs) < VALUE_CHARS_MAX < len(pairs) + len(more)
    assert alter(admin, (TOPIC, "orders", [(APPEND, name, pairs)])) == [0]
    assert alter(admin, (TOPIC, "orders", [(APPEND, name, more)])) == [ErrorCode.INVALID_CONFIG]
    assert configs_of(admin)[name] == pairs


def test_resources_of_one_request_are_changed_or_refused_one_by_one(admin: AdminRequests) -> None:
    admin.root.create_topic("second")
    given = [(SET, "retention.ms", "8")]
    assert alter(
        admin,
        (TOPIC, "orders", given),
        (TOPIC, "nope", given),
        (TOPIC, "second", [(SET, "retention.ms", "x")]),
        (BROKER, "", [(SET, "log.retention.ms", "3")]),
    ) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_CONFIG, 0]
    assert (configs_of(admin), configs_of(admin, "second")) == ({"retention.ms": "8"}, {})
    assert admin.root.broker_configs() == {"log.retention.ms": "3"}
    assert alter(admin, (TOPIC, "orders", given), (TOPIC, "orders", given)) == [ErrorCode.INVALID_REQUEST] * 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ((TOPIC, "", [(SET, "retention.ms", "1")]), ErrorCode.INVALID_REQUEST),
        ((TOPIC, "orders", [(SET, "nope", "1")]), ErrorCode.INVALID_CONFIG),
        ((TOPIC, "orders", [(SET, "retention.ms", None)]), ErrorCode.INVALID_REQUEST),
        ((TOPIC, "orders", [(4, "retention.ms", "1")]), ErrorCode.INVALID_REQUEST),
        ((TOPIC, "orders", [(APPEND, "retention.ms", "1")]), ErrorCode.INVALID_CONFIG),
        ((TOPIC, "orders", [(SUBTRACT, "nope", "1")]), ErrorCode.INVALID_CONFIG),
        ((TOPIC, "orders", [(SET, "retention.ms", "1"), (DELETE, "retention.ms", None)]), ErrorCode.INVALID_REQUEST),
        ((BROKER, "5", [(SET, "log.roll.ms", "1")]), ErrorCode.INVALID_REQUEST),
        ((BROKER, "x", [(SET, "log.roll.ms", "1")]), ErrorCode.INVALID_REQUEST),
        ((BROKER, "", [(SET, "log.roll.ms", "0")]), ErrorCode.INVALID_CONFIG),
        ((BROKER, "", [(SET, "nope", "0")]), ErrorCode.INVALID_CONFIG),
        ((ConfigResourceType.BROKER_LOGGER, "5", [(SET, "a", "INFO")]), ErrorCode.INVALID_REQUEST),
        ((ConfigResourceType.CLIENT_METRICS, "all", [(SET, "interval.ms", "1000")]), ErrorCode.INVALID_REQUEST),
        ((GROUP, "", [(SET, "consumer.session.timeout.ms", "50000")]), ErrorCode.INVALID_REQUEST),
        ((GROUP, "g", [(SET, "consumer.session.timeout.ms", "44999")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(SET, "consumer.session.timeout.ms", "60001")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(SET, "consumer.heartbeat.interval.ms", "15001")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(SET, "consumer.heartbeat.interval.ms", "x")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(SET, "share.record.lock.duration.ms", "14999")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(SET, "share.heartbeat.interval.ms", "15001")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(SET, "streams.num.standby.replicas", "3")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(SET, "streams.task.offset.interval.ms", "14999")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(SET, "streams.assignor.name", "fair")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(SET, "errors.deadletterqueue.topic.name", "__dead")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(SET, "nope", "1")]), ErrorCode.INVALID_CONFIG),
        ((GROUP, "g", [(APPEND, "consumer.session.timeout.ms", "50000")]), ErrorCode.INVALID_CONFIG),
        ((5, "g", [(SET, "a", "b")]), ErrorCode.INVALID_REQUEST),
    ],
)
def test_refused_change_changes_nothing(admin: AdminRequests, change: Change, code: ErrorCode) -> None:
    assert alter(admin, change) == [code]
    assert configs_of(admin) == {"retention.ms": "7"}
    assert admin.root.broker_configs() == {}
    assert admin.root.group_configs() == {}


def test_group_has_its_own_values_until_they_are_deleted(admin: AdminRequests) -> None:
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    change = (GROUP, "readers", [(SET, session, "50000"), (SET, interval, "6000")])
    assert alter(admin, change, validate_only=True) == [0]
    assert admin.root.group_configs() == {}
    assert alter(admin, change) == [0]
    found = {
        each.name: (each.value, each.config_source, each.read_only)
        for each in describe(admin, GROUP, "readers", keys=(session, interval)).configs
    }
    assert found == {session: ("50000", 8, False), interval: ("6000", 8, False)}
    others = describe(admin, GROUP, "others", keys=(session, interval)).configs
    assert {each.value for each in others} == {"45000", "5000"}
    assert alter(admin, (GROUP, "readers", [(DELETE, session, None)])) == [0]
    assert LogDir.open(admin.root.path).group_configs() == {"readers": {interval: "6000"}}
    assert alter(admin, (GROUP, "readers", [(DELETE, interval, None)])) == [0]
    assert admin.root.group_configs() == {}


def test_group_keeps_a_value_that_only_a_broker_knows(admin: AdminRequests) -> None:
    record = ConfigRecord(resource_type=GROUP_RESOURCE, resource_name="g", name="share.of.a.later.version", value="1")
    admin.root.native().commit(lambda image: [record], operation="adopt")
    assert alter(admin, (GROUP, "g", [(SET, "consumer.heartbeat.interval.ms", "6000")])) == [0]
    assert len(admin.root.group_configs()["g"]) == 2


def test_session_of_a_group_outlasts_its_heartbeats(admin: AdminRequests) -> None:
    admin.root.alter_broker_configs(add={"group.consumer.session.timeout.ms": "6000"})
    assert alter(admin, (GROUP, "g", [(SET, "consumer.heartbeat.interval.ms", "6000")])) == [ErrorCode.INVALID_CONFIG]


def test_group_may_have_what_the_settings_of_an_adopted_broker_allow(admin: AdminRequests) -> None:
    adopted = {
        "group.share.min.record.lock.duration.ms": "2000",
        "group.share.session.timeout.ms": "15000",
        "group.streams.max.standby.replicas": "5",
        "group.streams.assignors": "sticky, fair",
    }
    records = [broker_config_record(name, value) for name, value in adopted.items()]
    admin.root.native().commit(lambda image: records, operation="adopt")
    allowed = {"share.record.lock.duration.ms": "2000", "streams.num.standby.replicas": "5"}
    allowed |= {"streams.assignor.name": "fair", "share.heartbeat.interval.ms": "14999"}
    assert alter(admin, (GROUP, "g", [(SET, name, value) for name, value in allowed.items()])) == [0]
    for name, value in (("share.heartbeat.interval.ms", "15000"), ("share.record.lock.duration.ms", "1999")):
        assert alter(admin, (GROUP, "g", [(SET, name, value)])) == [ErrorCode.INVALID_CONFIG]
    assert admin.root.group_configs() == {"g": allowed}


@pytest.mark.parametrize("operation", [SET, APPEND, SUBTRACT])
def test_no_request_sets_who_is_trusted_or_where_data_goes(admin: AdminRequests, operation: Operation) -> None:
    fixed = sorted(BROKER_CONFIGS.keys() - DYNAMIC_BROKER_CONFIGS)
    assert {"super.users", "authorizer.class.name", "allow.everyone.if.no.acl.found"} < set(fixed)
    assert {"rsm.config.location", "rsm.config.layout", "remote.log.storage.system.enable"} < set(fixed)
    for name in fixed:
        change = (BROKER, "", [(operation, name, BROKER_CONFIGS[name].default_text), (SET, "log.roll.ms", "8")])
        assert alter(admin, change) == [ErrorCode.INVALID_REQUEST], name
        assert alter(admin, (TOPIC, "orders", [(SET, name, "x")])) == [ErrorCode.INVALID_CONFIG], name
    assert admin.root.broker_configs() == {}


def test_what_was_set_on_the_machine_stays_whatever_requests_ask_for(admin: AdminRequests) -> None:
    trusted = {"super.users": "User:root", "num.partitions": "4"}
    admin.root.alter_broker_configs(add={**trusted, "log.roll.ms": "8"})
    for name in trusted:
        assert alter(admin, (BROKER, "", [(DELETE, name, None)])) == [ErrorCode.INVALID_REQUEST]
    assert alter(admin, (BROKER, "", [(DELETE, "authorizer.class.name", None)])) == [0]
    replacement = AlterConfigsRequestAlterConfigsResource(
        resource_type=BROKER,
        resource_name="",
        configs=(AlterConfigsRequestAlterableConfig(name="log.retention.ms", value="9"),),
    )
    answer = admin.ask(ApiKey.ALTER_CONFIGS, AlterConfigsRequest(resources=(replacement,)), AlterConfigsResponse)
    assert [each.error_code for each in answer.responses] == [0]
    assert admin.root.broker_configs() == {**trusted, "log.retention.ms": "9"}
    read_only = {each.name: each.read_only for each in describe(admin, BROKER, "").configs}
    assert read_only == {"super.users": True, "num.partitions": True, "log.retention.ms": False}


def test_one_server_has_no_settings_to_delete(admin: AdminRequests) -> None:
    admin.root.alter_broker_configs(add={"num.partitions": "4"})
    assert alter(admin, (BROKER, "5", [(DELETE, "num.partitions", None)])) == [0]
    assert admin.root.broker_configs() == {"num.partitions": "4"}


def test_changes_need_permission(admin: AdminRequests) -> None:
    denied = AdminRequests(
        admin.root,
        denied=[
            (AclOperation.ALTER_CONFIGS, ResourceType.TOPIC, "orders"),
            (AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME),
        ],
    )
    assert alter(denied, (TOPIC, "orders", [(SET, "retention.ms", "1")]), (BROKER, "", [])) == [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ]
    assert configs_of(admin) == {"retention.ms": "7"}


def test_whole_configuration_is_replaced(admin: AdminRequests) -> None:
    configs = (AlterConfigsRequestAlterableConfig(name="segment.ms", value="9"),)
    resource = AlterConfigsRequestAlterConfigsResource(resource_type=TOPIC, resource_name="orders", configs=configs)
    body = AlterConfigsRequest(resources=(resource,))
    (answer,) = admin.ask(ApiKey.ALTER_CONFIGS, body, AlterConfigsResponse).responses
    assert (answer.error_code, answer.error_message) == (0, None)
    assert configs_of(admin) == {"segment.ms": "9"}
