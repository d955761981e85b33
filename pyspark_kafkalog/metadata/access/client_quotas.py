"""Quotas of clients: limits for users, client ids and hosts, as Kafka's metadata log stores them.

An entity names a user, a client id, both, or an IP address; the name None stands for all that have no quota of their
own. One ClientQuotaRecord sets or removes one quota of one entity:

    user, client-id   producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate
    ip                connection_creation_rate

Source of the rules: org.apache.kafka.controller.ClientQuotaControlManager, org.apache.kafka.image.ClientQuotasImage,
org.apache.kafka.server.config.QuotaConfig.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import InvalidConfigError, InvalidRecordError
from pyspark_kafkalog.metadata.access.acl import canonical_ip
from pyspark_kafkalog.metadata.messages.metadata_records import ClientQuotaRecord, EntityData, MetadataRecord
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

#: Quotas by name, with the largest value of those that are whole numbers; None: any positive number.
CLIENT_QUOTAS: Final[Mapping[str, int | None]] = {
    PRODUCER_BYTE_RATE: INT64_MAX,
    CONSUMER_BYTE_RATE: INT64_MAX,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
IP_QUOTAS: Final[Mapping[str, int | None]] = {CONNECTION_CREATION_RATE: INT32_MAX}

#: Type and name of each part, in order of the type; the name None: the default of the type.
QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]

_WHOLE_TOLERANCE: Final = 1e-6


def quota_entity(parts: Collection[tuple[str, str | None]]) -> QuotaEntity:
    """The entity of these parts. Raises InvalidConfigError if Kafka has no such entity."""
    types = [entity_type for entity_type, _ in parts]
    if not types:
        raise InvalidConfigError("Invalid empty client quota entity")
    for entity_type, name in parts:
        if types.count(entity_type) > 1:
            raise InvalidConfigError(f"Invalid client quota entity, duplicate entity entry {entity_type}")
        if entity_type not in (USER, CLIENT_ID, IP):
            raise InvalidConfigError(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise InvalidConfigError(f"Empty {entity_type} not supported")
    if IP in types and len(types) > 1:
        raise InvalidConfigError("Invalid quota entity combination, IP entity should not be combined with others")
    return tuple(sorted(parts))


def alter_quotas(quotas: Quotas, entity: QuotaEntity, changes: Mapping[str, float | None]) -> list[MetadataRecord]:
    """Records that set the quotas in `changes`, or remove those with the value None; none for unchanged ones.

    Raises InvalidConfigError for an unknown quota, a value that it cannot have, and a host that is no IP address. Kafka
    also takes names of hosts that it can resolve; here nothing is resolved.
    """
    host = dict(entity).get(IP)
    if host is not None and canonical_ip(host) is None and any(value is not None for value in changes.values()):
        raise InvalidConfigError(f"{host} is not a valid IP address")
    allowed = IP_QUOTAS if entity[0][0] == IP else CLIENT_QUOTAS
    current = quotas.get(entity, {})
    records: list[MetadataRecord] = []
    for key, value in changes.items():
        if value is None:
            if key in current:
                records.append(ClientQuotaRecord(entity=_entity_data(entity), key=key, remove=True))
            continue
        _check_value(allowed, key, value)
        if current.get(key) != value:
            records.append(quota_record(entity, key, value))
    return records


def _check_value(allowed: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in allowed:
        raise InvalidConfigError(f"Invalid configuration key {key}")
    if not value > 0 or math.isinf(value):
        raise InvalidConfigError(f"Quota {key} must be greater than 0")
    most = allowed[key]
    if most is None:
        return
    if value > most:
        raise InvalidConfigError(f"Proposed value for {key} is too large: expected at most {most}")
    if abs(value % 1.0) > _WHOLE_TOLERANCE:
        raise InvalidConfigError(f"{key} cannot be a fractional value.")


def quota_record(entity: QuotaEntity, key: str, value: float) -> ClientQuotaRecord:
    """The record that sets one quota."""
    return ClientQuotaRecord(entity=_entity_data(entity), key=key, value=value)


def _entity_data(entity: QuotaEntity) -> tuple[EntityData, ...]:
    return tuple(EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in entity)


def quota_records(quotas: Quotas) -> Iterator[MetadataRecord]:
    """The records of all quotas."""
    for entity, values in quotas.items():
        for key, value in values.items():
            yield quota_record(entity, key, value)


def apply_quota_record(quotas: dict[QuotaEntity, Mapping[str, float]], record: ClientQuotaRecord) -> None:
    """Set or remove the quota of `record`. Raises InvalidRecordError for an entity that does not exist."""
    try:
        entity = quota_entity([(each.entity_type, each.entity_name) for each in record.entity])
    except InvalidConfigError as error:
        raise InvalidRecordError(f"a ClientQuotaRecord cannot be read: {error}") from None
    values = dict(quotas.get(entity, {}))
    if record.remove:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value
    if values:
        quotas[entity] = values
    else:
        quotas.pop(entity, None)


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """Selects entities: those with the `exact` parts, and a part of each of the `types`; if `strict` no others."""

    exact: Mapping[str, str | None]
    types: Collection[str] = ()
    strict: bool = False

    def matches(self, entity: QuotaEntity) -> bool:
        """Whether the filter selects the entity."""
        parts = dict(entity)
        if self.strict and len(parts) != len(self.exact) + len(self.types):
            return False
        return all(each in parts for each in (*self.exact, *self.types)) and all(
            parts[entity_type] == name for entity_type, name in self.exact.items()
        )


def find_quotas(quotas: Quotas, quota_filter: QuotaFilter) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    """The entities that the filter selects, with their quotas."""
    return [(entity, values) for entity, values in quotas.items() if quota_filter.matches(entity)]


def check_filter_types(types: Sequence[str]) -> None:
    """Raises InvalidConfigError for a type that occurs twice, and for hosts together with users or client ids."""
    for entity_type in types:
        if not entity_type:
            raise InvalidConfigError("Invalid empty entity type.")
        if types.count(entity_type) > 1:
            raise InvalidConfigError(f"Entity type {entity_type} cannot appear more than once in the filter.")
    if IP in types and len(types) > 1:
        raise InvalidConfigError(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
