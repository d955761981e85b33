"""AlterConfigs and IncrementalAlterConfigs: changes of the configurations of topics, groups, and the root as a whole.

    AlterConfigs               the configurations given are all that the resource has afterwards
    IncrementalAlterConfigs    single ones are set or deleted, or values are appended to, or removed from, a list

All topics of a request that can be changed are changed by one commit; each group, and the broker-level settings, by
another. A change of a list is applied to the value that it has at the commit. Each resource has its own answer.

Broker-level settings are those of all servers, so they are set for the broker with the empty name, not for one of them,
which has none to delete either. Requests change those that a broker can change while it runs, and no others: trusted
principals (`super.users`, `authorizer.class.name`) and the place of data (`rsm.config.*`) are set on the machine, by
`kafkalog configs`. AlterConfigs keeps such settings, although it names them not. Log levels and client metrics have no
configurations that can be changed.

Source of the rules: kafka.server.ConfigAdminManager, kafka.server.DynamicBrokerConfig,
org.apache.kafka.controller.ConfigurationControlManager; KIP-226, KIP-339.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from pyspark_kafkalog.config.broker import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS
from pyspark_kafkalog.config.definitions import VALUE_CHARS_MAX, ConfigDefinition, ConfigType
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.errors import InvalidConfigError, KafkalogError
from pyspark_kafkalog.metadata.access.acl import AclOperation
from pyspark_kafkalog.metadata.image import ALL_BROKERS, MetadataImage, broker_configs
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.topics import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from pyspark_kafkalog.root import admin
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.server.admin.config_resources import (
    ConfigResourceType,
    check_allowed,
    check_broker,
    resource_type,
)
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext, why_read_only
from pyspark_kafkalog.server.request_errors import ApiError, RequestError
from pyspark_kafkalog.storage.names import validate_topic_name


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
        error_code=error.code,
        error_message=error.message,
        resource_type=change.type_number,
        resource_name=change.name,
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
                _apply_alone(root, each, validate_only=validate_only)
                outcomes[each.key] = None
            except (KafkalogError, OSError) as error:
                outcomes[each.key] = error
    return outcomes


def _apply_alone(root: NativeRoot, change: ResourceChange, *, validate_only: bool) -> None:
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
