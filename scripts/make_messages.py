"""Writes the classes of Kafka's messages from their schemas: schemas/*.json in metadata/messages and in protocol.

    python scripts/make_messages.py [--check]

With --check nothing is written; exit code 1 means that a module differs from the schemas.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pyspark_kafkalog.metadata.messages.schema import (
    INTEGER_FORMATS,
    ZERO_UUID,
    FieldSpec,
    MessageSpec,
    load_schema_file,
)
from pyspark_kafkalog.protocol.messages.api_message import AREAS, SCHEMAS_PACKAGE

PACKAGE_DIR: Final = Path(__file__).resolve().parents[1] / "pyspark_kafkalog"

_METADATA_RECORDS: Final = '''\
"""The records of the metadata log, as classes: Kafka's own, and this project's (see records.py).

Generated from schemas/cluster_metadata.json and schemas/kafkalog.json by scripts/make_messages.py: change the schemas,
not this file. Field types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID


class MetadataRecord(Message):
    """One record of the metadata log."""

    __slots__ = ()
'''
_INTERNAL_RECORDS: Final = '''\
"""The records of Kafka's internal topics as classes: those of the coordinators, keys, values and the messages in them,
and those of `__remote_log_metadata`, in which brokers note what they tiered.

Generated from schemas/group_coordinator.json, schemas/transaction_coordinator.json and schemas/remote_log_metadata.json
by scripts/make_messages.py: change the schemas, not this file. Only the messages that this package reads or writes are
here. Field types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID


class RemoteLogRecord(Message):
    """One record of the remote log metadata topic."""

    __slots__ = ()
'''
_REQUESTS_AND_RESPONSES: Final = '''\
"""{title}

Generated from ../schemas/{area}.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
{schema_import}from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
'''
_SCHEMA_IMPORT: Final = "from pyspark_kafkalog.metadata.messages.schema import {names}\n"
_COORDINATOR_MESSAGES: Final = (
    "OffsetCommitKey",
    "OffsetCommitValue",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "ConsumerGroupMetadataKey",
    "ConsumerGroupMetadataValue",
    "ConsumerGroupPartitionMetadataKey",
    "ConsumerGroupMemberMetadataKey",
    "ConsumerGroupMemberMetadataValue",
    "ConsumerGroupTargetAssignmentMetadataKey",
    "ConsumerGroupTargetAssignmentMetadataValue",
    "ConsumerGroupTargetAssignmentMemberKey",
    "ConsumerGroupTargetAssignmentMemberValue",
    "ConsumerGroupCurrentMemberAssignmentKey",
    "ConsumerGroupCurrentMemberAssignmentValue",
    "ConsumerGroupRegularExpressionKey",
    "ConsumerGroupRegularExpressionValue",
    "ConsumerProtocolSubscription",
    "ConsumerProtocolAssignment",
    "TransactionLogKey",
    "TransactionLogValue",
)
_TYPES: Final = {
    **dict.fromkeys(INTEGER_FORMATS, "int"),
    "bool": "bool",
    "float64": "float",
    "uuid": "str",
    "string": "str",
    "bytes": "bytes",
    "records": "Records",
}
_LAST_VERSION: Final = 0x7FFF


def modules() -> dict[str, str]:
    """The text of each generated module, by its path in the package."""
    records = [*load_schema_file("cluster_metadata").values(), *load_schema_file("kafkalog").values()]
    coordinators = {**load_schema_file("group_coordinator"), **load_schema_file("transaction_coordinator")}
    messages = [coordinators[name] for name in _COORDINATOR_MESSAGES]
    remote = [*load_schema_file("remote_log_metadata").values()]
    return {
        "metadata/messages/metadata_records.py": "\n\n".join(
            [
                _METADATA_RECORDS,
                *_Classes(records, base="MetadataRecord").texts(),
                _table("METADATA_RECORDS", "All types, in the order of the schemas.", records),
            ]
        ),
        "metadata/messages/internal_records.py": "\n\n".join(
            [
                _INTERNAL_RECORDS,
                *_Classes(messages, base="Message").texts(),
                _table("COORDINATOR_MESSAGES", "All messages of the coordinators' records.", messages),
                *_Classes(remote, base="RemoteLogRecord").texts(),
                _table("REMOTE_LOG_RECORDS", "All records of remote logs, in the order of the schemas.", remote),
            ]
        ),
        **{f"protocol/messages/{area}.py": _requests_and_responses(area) for area in AREAS},
    }


def _requests_and_responses(area: str) -> str:
    specs = [*load_schema_file(area, SCHEMAS_PACKAGE).values()]
    classes = "\n\n".join(_Classes(specs, base="ApiMessage").texts())
    apis = ", ".join(each.name.removesuffix("Request") for each in specs if each.name.endswith("Request"))
    names = ", ".join(
        name
        for name, is_used in (("ZERO_UUID", "ZERO_UUID" in classes), ("Records", "Records" in classes.split()))
        if is_used
    )
    head = _REQUESTS_AND_RESPONSES.format(
        title=textwrap.fill(f"Requests and responses, as classes: {apis}.", 120),
        area=area,
        schema_import=_SCHEMA_IMPORT.format(names=names) if names else "",
    )
    return f"{head}\n\n{classes}"


def _table(name: str, doc: str, specs: Sequence[MessageSpec]) -> str:
    names = "".join(f"    {each.name},\n" for each in specs)
    return f"#: {doc}\n{name}: Final = (\n{names})\n"


class _Classes:
    """The classes of messages and of their structs, structs first.

    A struct's class has the name of its type, after the message's name if another message has another type of that
    name. Messages share equal types.
    """

    def __init__(self, specs: Sequence[MessageSpec], *, base: str) -> None:
        self._specs = specs
        self._base = base
        types: dict[str, list[tuple[FieldSpec, ...]]] = {}
        for spec in specs:
            for field in _struct_fields(spec.fields):
                known = types.setdefault(field.element, [])
                if field.struct is not None and field.struct not in known:
                    known.append(field.struct)
        self._shared = {element for element, structs in types.items() if len(structs) > 1}

    def texts(self) -> Iterator[str]:
        written: dict[str, FieldSpec] = {}
        for spec in self._specs:
            for field in _struct_fields(spec.fields):
                name = self._struct_name(spec, field)
                if name not in written:
                    yield self._text(spec, name, "Message", "", field.struct or ())
                    written[name] = field
                elif written[name].struct != field.struct:
                    raise ValueError(f"{spec.name} has two different structs named {field.element}")
            versions = _versions_text(spec.versions, of_message=True)
            api_key = "" if spec.api_key is None else f"api key {spec.api_key}, "
            yield self._text(spec, spec.name, self._base, f"{spec.name}: {api_key}{versions}.", spec.fields)

    def _struct_name(self, spec: MessageSpec, field: FieldSpec) -> str:
        return f"{spec.name}{field.element}" if field.element in self._shared else field.element

    def _text(self, spec: MessageSpec, name: str, base: str, doc: str, fields: Sequence[FieldSpec]) -> str:
        lines = [f"class {name}({base}):"]
        if doc:
            lines += [f'    """{doc}"""', *([""] if fields else [])]
        return "\n".join([*lines, *(self._field(spec, each) for each in fields), ""])

    def _field(self, spec: MessageSpec, field: FieldSpec) -> str:
        element = _TYPES.get(field.element) or self._struct_name(spec, field)
        annotation = f"tuple[{element}, ...]" if field.is_array else element
        if len(field.nullable) or field.default is None:
            annotation += " | None"
        is_everywhere = field.versions.start <= spec.versions.start and field.versions[-1] >= spec.versions[-1]
        comment = "" if is_everywhere else f"  # {_versions_text(field.versions)}"
        return f"    {field.attribute}: {annotation} = {self._default(spec, field)}{comment}"

    def _default(self, spec: MessageSpec, field: FieldSpec) -> str:
        if field.default is None:
            return "None"
        if field.is_array:
            return "()"
        if field.struct is not None:
            return f"{self._struct_name(spec, field)}()"
        if field.default == ZERO_UUID:
            return "ZERO_UUID"
        return f'"{field.default}"' if isinstance(field.default, str) else repr(field.default).replace("b''", 'b""')


def _struct_fields(fields: Sequence[FieldSpec]) -> Iterator[FieldSpec]:
    """The fields that are structs or arrays of them, innermost first."""
    for field in fields:
        if field.struct is not None:
            yield from _struct_fields(field.struct)
            yield field


def _versions_text(versions: range, *, of_message: bool = False) -> str:
    first, last = versions[0], versions[-1]
    if first == last:
        return f"version {first}"
    return f"versions {first} to {last}" if of_message or last < _LAST_VERSION else f"from version {first}"


def main(arguments: Sequence[str]) -> int:
    texts = modules()
    if arguments == ["--check"]:
        return int(any((PACKAGE_DIR / name).read_text() != text for name, text in texts.items()))
    for name, text in texts.items():
        (PACKAGE_DIR / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
