"""The configurations of topics, groups and brokers: the requests that describe and change them.

DescribeConfigs tells values, sources, types and documentation:

    topic            all topic configurations, with the broker-level settings that they fall back to
    broker ""        the broker-level settings that have been set; they are those of all servers
    broker 1         all broker-level settings, and what is known of the server 1
    group            what the `consumer` protocol uses: the group's own values, else the group.consumer.* settings
    client metrics   the values without a subscription: no telemetry is collected

The configurations of a broker's directory are those that its metadata log has for the topics; for all others Kafka's
defaults are given, since the broker's own settings are not in the directory. Log levels are no configurations here.

A broker treats the settings of its plug-ins as secrets, since it does not know their types: it names those that are set
and hides their values. The same here: a client that may describe the cluster does not learn who its super users are.

AlterConfigs and IncrementalAlterConfigs change the configurations of topics, groups, and the root as a whole:

    AlterConfigs               the configurations given are all that the resource has afterwards
    IncrementalAlterConfigs    single ones are set or deleted, or values are appended to, or removed from, a list

All topics of a request that can be changed are changed by one commit; each group, and the broker-level settings, by
another. A change of a list is applied to the value that it has at the commit. Each resource has its own answer.

Broker-level settings are those of all servers, so they are set for the broker with the empty name, not for one of them,
which has none to delete either. Requests change those that a broker can change while it runs, and no others: trusted
principals (`super.users`, `authorizer.class.name`) and the place of data (`rsm.config.*`) are set on the machine, by
`kafkalog configs`. AlterConfigs keeps such settings, although it names them not. Log levels and client metrics have no
configurations that can be changed.

Source of the rules: org.apache.kafka.common.config.ConfigResource, kafka.server.ConfigHelper,
org.apache.kafka.coordinator.group.GroupConfig, org.apache.kafka.server.metrics.ClientMetricsConfigs,
kafka.server.ConfigAdminManager, kafka.server.DynamicBrokerConfig,
org.apache.kafka.controller.ConfigurationControlManager; KIP-226, KIP-339.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.broker import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS, is_of_plugin
from pyspark_kafkalog.config.definitions import VALUE_CHARS_MAX, ConfigDefinition, ConfigType
from pyspark_kafkalog.config.entries import (
    ConfigEntry,
    ConfigSource,
    Synonym,
    broker_entries,
    group_entries,
    own_topic_entries,
    set_broker_entries,
    topic_entries,
)
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS, validate_topic_config
from pyspark_kafkalog.errors import InvalidConfigError, KafkalogError
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.image import ALL_BROKERS, MetadataImage, broker_configs
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.topics import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from pyspark_kafkalog.root import admin
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.server.context import AnyRequest, Node, Request, ServerContext, why_read_only
from pyspark_kafkalog.server.request_errors import ApiError, RequestError
from pyspark_kafkalog.storage.names import validate_topic_name


class ConfigResourceType(IntEnum):
    """The type of a resource, with its number in Kafka's protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def resource_type(number: int) -> ConfigResourceType:
    """The type with that number. Raises RequestError for an unknown one."""
    try:
        return ConfigResourceType(number)
    except ValueError:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown type of resource: {number}") from None


def check_allowed(
    context: ServerContext, request: AnyRequest, operation: AclOperation, kind: ConfigResourceType, name: str
) -> None:
    """Raise RequestError if the client may not do `operation` on the configurations of the resource."""
    if kind is ConfigResourceType.TOPIC:
        acl_type, acl_name = ResourceType.TOPIC, name
    elif kind is ConfigResourceType.GROUP:
        acl_type, acl_name = ResourceType.GROUP, name
    else:
        acl_type, acl_name = ResourceType.CLUSTER, CLUSTER_NAME
    if not context.guard.allows(request.session, operation, acl_type, acl_name):
        raise RequestError(_DENIED[acl_type])


def check_broker(context: ServerContext, name: str) -> None:
    """Raise RequestError unless `name` is the id of a live server."""
    try:
        node_id = int(name) if len(name) <= len(str(-(1 << 31))) else None
    except ValueError:
        node_id = None
    if node_id is None or name != str(node_id):
        raise RequestError(ErrorCode.INVALID_REQUEST, f"the id of a broker must be an integer, but it is: {name[:100]}")
    live = [each.node_id for each in context.cluster.nodes()]
    if node_id not in live:
        text = f"there is no broker {node_id}: expected {', '.join(map(str, live))}, or none for all"
        raise RequestError(ErrorCode.INVALID_REQUEST, text)


#: Numbers of org.apache.kafka.common.requests.DescribeConfigsResponse.ConfigType.
_TYPE_NUMBERS: Final[Mapping[ConfigType, int]] = {
    ConfigType.BOOLEAN: 1,
    ConfigType.STRING: 2,
    ConfigType.INT: 3,
    ConfigType.LONG: 5,
    ConfigType.DOUBLE: 6,
    ConfigType.LIST: 7,
}

_UNKNOWN_TYPE: Final = 0

_CLIENT_METRICS_CONFIGS: Final = (
    ConfigDefinition("interval.ms", ConfigType.INT, 300_000, "How often clients send metrics."),
    ConfigDefinition("match", ConfigType.LIST, (), "Which clients send metrics."),
    ConfigDefinition("metrics", ConfigType.LIST, (), "The prefixes of the metrics that are sent."),
)


async def handle_describe_configs(
    context: ServerContext, request: Request[DescribeConfigsRequest]
) -> DescribeConfigsResponse:
    body = request.body
    results = [await _describe(context, request, body, each) for each in body.resources]
    return DescribeConfigsResponse(results=tuple(results))


async def _describe(
    context: ServerContext, request: AnyRequest, body: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    name, keys = resource.resource_name, resource.configuration_keys
    try:
        kind = resource_type(resource.resource_type)
        check_allowed(context, request, AclOperation.DESCRIBE_CONFIGS, kind, name)
        entries = await context.run(lambda: _entries(context, kind, name))
    except (KafkalogError, OSError) as error:
        failure = ApiError.of(error)
        return DescribeConfigsResult(
            error_code=failure.code,
            error_message=failure.message,
            resource_type=resource.resource_type,
            resource_name=name,
        )
    wanted = None if not keys else frozenset(keys)
    return DescribeConfigsResult(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=name,
        configs=tuple(_result(each, body) for each in entries if wanted is None or each.name in wanted),
    )


def _entries(context: ServerContext, kind: ConfigResourceType, name: str) -> Sequence[ConfigEntry]:
    """The configurations of a resource. Raises KafkalogError for one that does not exist."""
    if kind is ConfigResourceType.TOPIC:
        return _topic_entries(context, name)
    if kind is ConfigResourceType.BROKER:
        settings = context.broker_configs()
        if name == ALL_BROKERS:
            return _as_broker(set_broker_entries(settings))
        check_broker(context, name)
        (node,) = (each for each in context.cluster.nodes() if str(each.node_id) == name)
        return [*_as_broker(broker_entries(settings)), *_server_entries(context, node)]
    if not name:
        raise RequestError(ErrorCode.INVALID_REQUEST, "the name of the resource must not be empty")
    if kind is ConfigResourceType.GROUP:
        return _group_entries(context, name)
    if kind is ConfigResourceType.CLIENT_METRICS:
        return [_fixed_entry(each, each.name, each.default_text, ()) for each in _CLIENT_METRICS_CONFIGS]
    raise RequestError(ErrorCode.INVALID_REQUEST, "log levels cannot be described: they are not kept as configurations")


def _topic_entries(context: ServerContext, name: str) -> Sequence[ConfigEntry]:
    validate_topic_name(name)
    root = context.root
    if name not in root.topics():
        root.refresh()
    overrides = root.topic(name, readable_only=True).configs
    if root.has_broker_configs:
        return topic_entries(overrides, context.broker_configs())
    known = {key: value for key, value in overrides.items() if _is_known(key, value)}
    others = {key: value for key, value in overrides.items() if key not in known}
    return [*topic_entries(known, {}), *own_topic_entries(others)]


def _is_known(name: str, value: str) -> bool:
    """Whether this is a configuration of this version, and not of a broker of another one."""
    try:
        validate_topic_config(name, value)
    except InvalidConfigError:
        return False
    return True


def _as_broker(entries: Sequence[ConfigEntry]) -> Sequence[ConfigEntry]:
    """The broker-level settings, those of plug-ins if they are set; those that no request changes are read-only."""
    return [
        replace(each, is_read_only=each.name not in DYNAMIC_BROKER_CONFIGS)
        for each in entries
        if each.is_set or not is_of_plugin(each.name)
    ]


def _server_entries(context: ServerContext, node: Node) -> Sequence[ConfigEntry]:
    """What clients and consoles look for in the configuration of a broker, and what is a property of a server here."""
    properties = (
        ("broker.id", ConfigType.INT, str(node.node_id), "The number of the server."),
        ("broker.rack", ConfigType.STRING, node.rack, "The zone of the server."),
        ("default.replication.factor", ConfigType.INT, "1", "Replicas: the log directory is the only one."),
        ("log.dirs", ConfigType.STRING, ",".join(log_directories(context.root)), "The log directory."),
        ("node.id", ConfigType.INT, str(node.node_id), "The number of the server."),
    )
    return [
        ConfigEntry(
            name,
            value,
            () if value is None else (Synonym(ConfigSource.STATIC_BROKER_CONFIG, name, value),),
            kind,
            doc,
            is_read_only=True,
        )
        for name, kind, value, doc in properties
    ]


def log_directories(root: Root) -> list[str]:
    """The directories of the log: absolute paths, as brokers give them, or the URL of the one in an object store."""
    paths = root.directories or (root.path,)
    return [str(each.absolute()) if isinstance(each, Path) else str(each) for each in paths]


def _group_entries(context: ServerContext, group_id: str) -> Sequence[ConfigEntry]:
    return group_entries(context.group_configs().get(group_id, {}), context.broker_configs())


def _fixed_entry(definition: ConfigDefinition, name: str, text: str, synonyms: tuple[Synonym, ...]) -> ConfigEntry:
    """A configuration that the resource cannot change."""
    return ConfigEntry(name, text, synonyms, definition.type, definition.doc, is_read_only=True)


def _result(entry: ConfigEntry, body: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if body.include_synonyms else ()
    if is_of_plugin(entry.name):
        return DescribeConfigsResourceResult(
            name=entry.name,
            value=None,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=True,
            synonyms=tuple(
                DescribeConfigsSynonym(name=each.name, value=None, source=each.source)
                for each in synonyms
                if each.source is not ConfigSource.DEFAULT_CONFIG  # which a broker does not know
            ),
            config_type=_UNKNOWN_TYPE,
            documentation=None,
        )
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        synonyms=tuple(
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source) for each in synonyms
        ),
        config_type=_TYPE_NUMBERS[entry.type],
        documentation=entry.doc if body.include_documentation else None,
    )


class Operation(IntEnum):
    """What an incremental change does to a configuration, with its number in Kafka's protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigOperation:
    """One change: the number of an Operation, the configuration, and its value, of a list those to add or remove."""

    operation: int
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """The changes of one resource. `replaces`: it has no other configurations afterwards."""

    type_number: int
    name: str
    operations: tuple[ConfigOperation, ...]
    replaces: bool

    @property
    def key(self) -> tuple[int, str]:
        return self.type_number, self.name


async def handle_alter_configs(context: ServerContext, request: Request[AlterConfigsRequest]) -> AlterConfigsResponse:
    body = request.body
    changes = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            tuple(ConfigOperation(Operation.SET, each.name, each.value) for each in resource.configs),
            replaces=True,
        )
        for resource in body.resources
    ]
    return AlterConfigsResponse(responses=await _alter(context, request, changes, validate_only=body.validate_only))


async def handle_incremental_alter_configs(
    context: ServerContext, request: Request[IncrementalAlterConfigsRequest]
) -> IncrementalAlterConfigsResponse:
    body = request.body
    changes = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            tuple(ConfigOperation(each.config_operation, each.name, each.value) for each in resource.configs),
            replaces=False,
        )
        for resource in body.resources
    ]
    responses = await _alter(context, request, changes, validate_only=body.validate_only)
    return IncrementalAlterConfigsResponse(responses=responses)


async def _alter(
    context: ServerContext, request: AnyRequest, changes: Sequence[ResourceChange], *, validate_only: bool
) -> tuple[AlterConfigsResourceResponse, ...]:
    """The answers for the resources, in the order of the request."""
    times = Counter(each.key for each in changes)
    errors: dict[tuple[int, str], BaseException | None] = {}
    wanted: list[ResourceChange] = []
    for each in changes:
        try:
            if times[each.key] > 1:
                raise RequestError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _check(context, request, each)
            wanted.append(each)
        except KafkalogError as error:
            errors[each.key] = error
    native = context.native
    if wanted and native is not None:
        errors |= await context.run(lambda: _apply(native, wanted, validate_only=validate_only))
    return tuple(_response(each, ApiError.of(errors[each.key])) for each in changes)


def _response(change: ResourceChange, error: ApiError) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error.code, error_message=error.message, resource_type=change.type_number, resource_name=change.name
    )


def _check(context: ServerContext, request: AnyRequest, change: ResourceChange) -> None:
    """Raise KafkalogError unless the form of the change is right, and the client may make it."""
    kind = resource_type(change.type_number)
    check_operations(change.operations)
    check_allowed(context, request, AclOperation.ALTER_CONFIGS, kind, change.name)
    if kind is ConfigResourceType.TOPIC:
        if not change.name:
            raise RequestError(ErrorCode.INVALID_REQUEST, "the name of the topic must not be empty")
        validate_topic_name(change.name)
    elif kind is ConfigResourceType.BROKER:
        if change.name != ALL_BROKERS:
            check_broker(context, change.name)
        if change.name != ALL_BROKERS and any(each.operation != Operation.DELETE for each in change.operations):
            text = "the settings of one server cannot be changed: all have the same, those of the default broker"
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{text} (kafka-configs --entity-default)")
    elif kind is ConfigResourceType.GROUP:
        if not change.name:
            raise RequestError(ErrorCode.INVALID_REQUEST, "the id of the group must not be empty")
    else:
        text = f"configurations of type {kind.name} cannot be changed: expected TOPIC, GROUP or BROKER"
        raise RequestError(ErrorCode.INVALID_REQUEST, text)
    read_only = why_read_only(context)
    if read_only is not None:
        raise read_only


def check_operations(operations: Sequence[ConfigOperation]) -> None:
    """Raise RequestError for duplicates, unknown operations and missing values."""
    times = Counter(each.name for each in operations)
    for each in operations:
        if times[each.name] > 1:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{each.name}: a configuration must appear at most once")
        if each.operation not in Operation.__members__.values():
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{each.name}: unknown operation {each.operation}")
        if each.value is None and each.operation != Operation.DELETE:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{each.name}: expected a value, found null")


def _apply(
    root: NativeRoot, changes: Sequence[ResourceChange], *, validate_only: bool
) -> dict[tuple[int, str], BaseException | None]:
    topics = [each for each in changes if each.type_number == ConfigResourceType.TOPIC]
    outcomes: dict[tuple[int, str], BaseException | None] = {}
    if topics:
        errors = root.change_topics(
            [admin.TopicChange(each.name, _topic_change(each)) for each in topics],
            operation="alter topic configs",
            frees_space=True,
            validate_only=validate_only,
        )
        outcomes |= {each.key: error for each, error in zip(topics, errors, strict=True)}
    for each in changes:
        if each.type_number != ConfigResourceType.TOPIC:
            try:
                _apply_separately(root, each, validate_only=validate_only)
                outcomes[each.key] = None
            except (KafkalogError, OSError) as error:
                outcomes[each.key] = error
    return outcomes


def _apply_separately(root: NativeRoot, change: ResourceChange, *, validate_only: bool) -> None:
    """Change a group, or the broker-level settings. What one server has for itself is nothing, so it is deleted."""
    if change.type_number == ConfigResourceType.GROUP:
        root.change_group_configs(change.name, _plan(change, GROUP_CONFIGS), validate_only=validate_only)
    elif change.name == ALL_BROKERS:
        root.change_broker_configs(_dynamic_plan(change), validate_only=validate_only)


def _topic_change(change: ResourceChange) -> admin.Build:
    def build(image: MetadataImage) -> Sequence[MetadataRecord]:
        definitions = {name: each.definition for name, each in TOPIC_CONFIGS.items()}
        wanted = planned(change, image.topic(change.name).configs, definitions)
        broker = broker_configs(image)
        return admin.alter_configs(image, change.name, add=wanted.add, delete=wanted.delete, broker_configs=broker)

    return build


def _plan(change: ResourceChange, definitions: Mapping[str, ConfigDefinition]) -> admin.ConfigPlan:
    return lambda current: planned(change, current, definitions)


def _dynamic_plan(change: ResourceChange) -> admin.ConfigPlan:
    """The plan of a change of broker-level settings, which raises RequestError for those that no request changes."""

    def plan(current: Mapping[str, str]) -> admin.ConfigChange:
        fixed = sorted(
            each.name
            for each in change.operations
            if each.name not in DYNAMIC_BROKER_CONFIGS
            and (each.name in current or (each.name in BROKER_CONFIGS and each.operation != Operation.DELETE))
        )
        if fixed:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs dynamically: {', '.join(fixed)}. No request changes them: "
                "run kafkalog configs --entity-type brokers --entity-default on a machine that has the log directory",
            )
        dynamic = {name: value for name, value in current.items() if name in DYNAMIC_BROKER_CONFIGS}
        return planned(change, dynamic, BROKER_CONFIGS)

    return plan


def planned(
    change: ResourceChange, current: Mapping[str, str], definitions: Mapping[str, ConfigDefinition]
) -> admin.ConfigChange:
    """What is set and deleted if the `current` values change so.

    Raises InvalidConfigError for a list that is none, and for values that are too long.
    """
    add: dict[str, str] = {}
    delete = set(current.keys() - {each.name for each in change.operations}) if change.replaces else set()
    for each in change.operations:
        if each.operation == Operation.DELETE:
            delete |= {each.name} & current.keys()
        elif each.operation == Operation.SET:
            add[each.name] = each.value or ""
        else:
            add[each.name] = ",".join(_changed_list(each, current, definitions.get(each.name)))
        if len(add.get(each.name, "")) > VALUE_CHARS_MAX:
            raise InvalidConfigError(f"{each.name}: a value has at most {VALUE_CHARS_MAX} characters")
    return admin.ConfigChange(add, delete)


def _changed_list(
    operation: ConfigOperation, current: Mapping[str, str], definition: ConfigDefinition | None
) -> Iterable[str]:
    if definition is None or definition.type is not ConfigType.LIST:
        verb = Operation(operation.operation).name.lower()
        raise InvalidConfigError(f"{operation.name}: cannot {verb} values, it is no list")
    text = current.get(operation.name, definition.default_text)
    values = text.split(",") if text else []
    for each in (operation.value or "").split(","):
        if operation.operation == Operation.SUBTRACT:
            values = [value for value in values if value != each]
        elif each not in values:
            values.append(each)
    return values
