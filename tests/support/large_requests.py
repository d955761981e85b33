"""Requests with as many elements as a server reads: for each array of a request's schema, one in which it is long."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import INTEGER_FORMATS, FieldSpec
from pyspark_kafkalog.protocol.api import Api
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.storage.names import encode_uuid

#: Values with which a request gets further than to the first check.
_VALUES: Final[Mapping[str, Any]] = {
    "acks": -1,
    "timeout_ms": 1000,
    "max_wait_ms": 0,
    "session_epoch": -1,
    "resource_type": 2,
    "num_partitions": 1,
    "replication_factor": -1,
    "count": 2,
    "generation_id_or_member_epoch": -1,
    "committed_offset": 1,
    "transaction_timeout_ms": 60_000,
    "rebalance_timeout_ms": 1000,
    "session_timeout_ms": 6000,
    "mechanism": 1,
    "iterations": 8192,
    "partition_max_bytes": 1000,
    "max_bytes": 1000,
    "replica_id": -1,
    "match_type": 2,
    "pattern_type_filter": 3,
    "resource_pattern_type": 3,
    "resource_pattern": 3,
    "operation": 3,
    "permission_type": 3,
    "transactional_id": None,
}


class LargeRequests:
    """Makes requests for `topic`, which has `records` (one batch) to be produced."""

    def __init__(self, topic: str, records: bytes) -> None:
        self._topic = topic
        self._records = records

    def of(self, api: Api, version: int, elements: int) -> Iterator[tuple[str, ApiMessage]]:
        """For each array of the API its path and a request in which it is long; other arrays have one element.

        All arrays together have `elements` at most.
        """
        fields = api.request.schema().spec.fields
        for path, below in _arrays(fields, version):
            count = (elements - len(path)) // (1 + below)
            made = self._struct(api.request, fields, version, path, count, 0)
            assert isinstance(made, ApiMessage)
            yield ".".join(path), made

    def _struct(
        self,
        cls: type[Message],
        fields: tuple[FieldSpec, ...],
        version: int,
        path: tuple[str, ...],
        count: int,
        index: int,
    ) -> Message:
        values = {}
        for field in fields:
            if version not in field.versions:
                continue
            on_path = bool(path) and field.attribute == path[0]
            if not field.is_array:
                values[field.attribute] = self._scalar(cls, field, version, index, is_element=False)
                continue
            size = count if on_path and len(path) == 1 else 1
            below = path[1:] if on_path else ()
            values[field.attribute] = tuple(
                self._struct(cls.structs()[field.attribute], field.struct, version, below, count, each + index)
                if field.struct is not None
                else self._scalar(cls, field, version, each + index, is_element=True)
                for each in range(size)
            )
        return cls(**values)

    def _scalar(self, cls: type[Message], field: FieldSpec, version: int, index: int, *, is_element: bool) -> Any:
        name = field.attribute
        if field.struct is not None:
            return self._struct(cls.structs()[name], field.struct, version, (), 0, index)
        if name in _VALUES and (_VALUES[name] is not None or version in field.nullable):
            return _VALUES[name]
        if field.element == "uuid":
            return encode_uuid(uuid.UUID(int=index + 1).bytes)
        if field.element == "records":
            return self._records
        if field.element == "bytes":
            return b"%032d" % index
        if field.element == "string":
            return self._topic if not index and name in ("name", "topic", "topic_name") else f"{name}-{index}"
        if field.element in INTEGER_FORMATS and (is_element or "partition" in name or name.endswith("index")):
            return index % (1 << 7 if field.element == "int8" else 1 << 15)
        default: Any = getattr(cls(), name)
        return default


def _arrays(fields: tuple[FieldSpec, ...], version: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """The path of each array, and the number of arrays below it."""
    for field in fields:
        if version in field.versions and field.is_array:
            inner = list(_arrays(field.struct or (), version))
            yield (field.attribute,), len(inner)
            for path, below in inner:
                yield (field.attribute, *path), below
