"""DescribeClientQuotas and AlterClientQuotas.

They need DESCRIBE_CONFIGS or ALTER_CONFIGS on the cluster. A request's changes are one commit; entities whose change
Kafka refuses are answered with the error and leave the others alone.

Source of the rules: org.apache.kafka.image.ClientQuotasImage, org.apache.kafka.controller.ClientQuotaControlManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.access.client_quotas import (
    CLIENT_ID,
    IP,
    USER,
    QuotaEntity,
    QuotaFilter,
    alter_quotas,
    check_filter_types,
    find_quotas,
    quota_entity,
)
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.security import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntryData,
    EntityData,
    ValueData,
)
from pyspark_kafkalog.server.context import READ_ONLY, Request, ServerContext

_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY_NAME: Final = 2


async def describe(context: ServerContext, request: Request[DescribeClientQuotasRequest]) -> Message:
    """DescribeClientQuotas: the entities that a filter selects, with their quotas."""
    if not context.guard.allows(request.session, AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message)
    body = request.body
    for component in body.components:
        if component.entity_type and component.entity_type not in (USER, CLIENT_ID, IP):
            return _refused(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {component.entity_type}")
    try:
        chosen = parse_filter(body.components, strict=body.strict)
    except InvalidConfigError as error:
        return _refused(ErrorCode.INVALID_REQUEST, str(error))
    native = context.root.native()
    await context.run(native.refresh)
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=tuple(
            DescribeClientQuotasResponseEntryData(
                entity=_entity_data(entity),
                values=tuple(ValueData(key=key, value=value) for key, value in values.items()),
            )
            for entity, values in find_quotas(native.store.image.client_quotas, chosen)
        ),
    )


def _refused(code: ErrorCode, message: str) -> Message:
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


def parse_filter(components: Sequence[ComponentData], *, strict: bool) -> QuotaFilter:
    """The filter of a request. Raises InvalidConfigError."""
    check_filter_types([each.entity_type for each in components])
    exact: dict[str, str | None] = {}
    types: list[str] = []
    for each in components:
        if each.match_type not in (_EXACT, _DEFAULT, _ANY_NAME):
            raise InvalidConfigError(f"Unknown match type {each.match_type}")
        if (each.match is None) == (each.match_type == _EXACT):
            what = "set match string to null" if each.match is None else "also specified a match string"
            raise InvalidConfigError(f"Request specified match type {each.match_type}, but {what}.")
        if each.match_type == _ANY_NAME:
            types.append(each.entity_type)
        else:
            exact[each.entity_type] = each.match
    return QuotaFilter(exact, types, strict)


async def alter(context: ServerContext, request: Request[AlterClientQuotasRequest]) -> Message:
    """AlterClientQuotas: set or remove quotas; with `validate_only` nothing is changed."""
    body = request.body
    if not context.guard.allows(request.session, AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
        error = InvalidConfigError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message)
        return _answer(body, [error] * len(body.entries), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if context.native is None:
        error = InvalidConfigError(READ_ONLY)
        return _answer(body, [error] * len(body.entries), ErrorCode.POLICY_VIOLATION)
    results: list[InvalidConfigError | None] = []

    def build(image: MetadataImage) -> Sequence[MetadataRecord]:
        results.clear()
        records: list[MetadataRecord] = []
        seen: set[QuotaEntity] = set()
        for entry in body.entries:
            try:
                records += _alteration(image, entry, seen)
                results.append(None)
            except InvalidConfigError as error:
                results.append(error)
        return [] if body.validate_only else records

    native = context.native
    await context.run(lambda: native.commit(build, operation="alter client quotas"))
    return _answer(body, results, ErrorCode.INVALID_REQUEST)


def _alteration(
    image: MetadataImage, entry: AlterClientQuotasRequestEntryData, seen: set[QuotaEntity]
) -> list[MetadataRecord]:
    entity = quota_entity([(each.entity_type, each.entity_name) for each in entry.entity])
    changes: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in changes:
            raise InvalidConfigError(f"Duplicate quota key {op.key} not updating quota for this entity")
        changes[op.key] = None if op.remove else op.value
    if entity in seen:
        raise InvalidConfigError("Ignoring duplicate entity")
    seen.add(entity)
    return alter_quotas(image.client_quotas, entity, changes)


def _answer(
    body: AlterClientQuotasRequest, results: Sequence[InvalidConfigError | None], code: ErrorCode
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=tuple(
            AlterClientQuotasResponseEntryData(
                error_code=ErrorCode.NONE if error is None else code,
                error_message=None if error is None else str(error),
                entity=entry.entity,
            )
            for entry, error in zip(body.entries, results, strict=True)
        )
    )


def _entity_data(entity: QuotaEntity) -> tuple[EntityData, ...]:
    return tuple(EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in entity)
