"""DescribeConfigs: the configurations of topics, brokers and groups: values, sources, types, documentation.

    topic            all topic configurations, with the broker-level settings that they fall back to
    broker ""        the broker-level settings that have been set; they are those of all servers
    broker 1         all broker-level settings, and what is known of the server 1
    group            what the `consumer` protocol uses: the group's own values, else the group.consumer.* settings
    client metrics   the values without a subscription: no telemetry is collected

The configurations of a broker's directory are those that its metadata log has for the topics; for all others Kafka's
defaults are given, since the broker's own settings are not in the directory. Log levels are no configurations here.

A broker treats the settings of its plug-ins as secrets, since it does not know their types: it names those that are set
and hides their values. The same here: a client that may describe the cluster does not learn who its super users are.

Source of the rules: kafka.server.ConfigHelper, org.apache.kafka.coordinator.group.GroupConfig,
org.apache.kafka.server.metrics.ClientMetricsConfigs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pyspark_kafkalog.config.broker import DYNAMIC_BROKER_CONFIGS, is_of_plugin
from pyspark_kafkalog.config.definitions import ConfigDefinition, ConfigType
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
from pyspark_kafkalog.config.topic import validate_topic_config
from pyspark_kafkalog.errors import InvalidConfigError, KafkalogError
from pyspark_kafkalog.metadata.access.acl import AclOperation
from pyspark_kafkalog.metadata.image import ALL_BROKERS
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.topics import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from pyspark_kafkalog.server.admin.config_resources import (
    ConfigResourceType,
    check_allowed,
    check_broker,
    resource_type,
)
from pyspark_kafkalog.server.admin.log_dirs import log_directories
from pyspark_kafkalog.server.context import AnyRequest, Node, Request, ServerContext
from pyspark_kafkalog.server.request_errors import ApiError, RequestError
from pyspark_kafkalog.storage.names import validate_topic_name

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
    if not root.is_broker_directory:
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
        (
            "default.replication.factor",
            ConfigType.INT,
            "1",
            "Replicas: the log directory is the only one.",
        ),
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
