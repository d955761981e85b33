"""Writes the schemas of Kafka's requests and responses (pyspark_kafkalog/protocol/schemas) from Kafka's own.

    python scripts/make_wire_schemas.py kafka-clients-4.1.0.jar [--check]

With --check nothing is written; exit code 1 means that a file differs from the jar's schemas.

The jar holds Kafka's schemas as common/message/*.json. Those of the APIs in `AREAS` are written in the form that
metadata/messages/schema.py states, one file for each area: without texts and what only Kafka's generator needs, with
common structs in their place, and without versions that a broker of this release does not offer
(`latestVersionUnstable`). Then run scripts/make_messages.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

SCHEMAS_DIR: Final = Path(__file__).resolve().parents[1] / "pyspark_kafkalog" / "protocol" / "schemas"

#: The APIs of each schema file. Left out is what a server without a quorum, share groups and delegation tokens never
#: sends or answers.
AREAS: Final[Mapping[str, Sequence[str]]] = {
    "records": ("Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords"),
    "cluster": (
        "ApiVersions",
        "Metadata",
        "DescribeCluster",
        "DescribeTopicPartitions",
        "UpdateFeatures",
        "ListConfigResources",
    ),
    "quorum": ("DescribeQuorum", "FetchSnapshot"),
    "replicas": (
        "DescribeLogDirs",
        "AlterReplicaLogDirs",
        "ElectLeaders",
        "AlterPartitionReassignments",
        "ListPartitionReassignments",
    ),
    "topics": (
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "DescribeConfigs",
        "AlterConfigs",
        "IncrementalAlterConfigs",
    ),
    "groups": (
        "FindCoordinator",
        "JoinGroup",
        "SyncGroup",
        "Heartbeat",
        "LeaveGroup",
        "DescribeGroups",
        "ListGroups",
        "DeleteGroups",
    ),
    "offsets": ("OffsetCommit", "OffsetFetch", "OffsetDelete"),
    "consumer_groups": ("ConsumerGroupHeartbeat", "ConsumerGroupDescribe"),
    "transactions": (
        "InitProducerId",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "EndTxn",
        "TxnOffsetCommit",
        "WriteTxnMarkers",
        "DescribeProducers",
        "DescribeTransactions",
        "ListTransactions",
    ),
    "security": (
        "SaslHandshake",
        "SaslAuthenticate",
        "DescribeAcls",
        "CreateAcls",
        "DeleteAcls",
        "DescribeClientQuotas",
        "AlterClientQuotas",
        "DescribeUserScramCredentials",
        "AlterUserScramCredentials",
    ),
}
_COMMENT: Final = re.compile(r"^\s*//.*$|(?<=[\s,\[{])//\s.*$", re.MULTILINE)
_LAST_VERSION: Final = 0x7FFF

_Json = dict[str, Any]


def read_schema(jar: ZipFile, name: str) -> _Json:
    schema: _Json = json.loads(_COMMENT.sub("", jar.read(f"common/message/{name}.json").decode("utf-8")))
    return schema


def _range(text: str) -> range:
    if text == "none":
        return range(0)
    first, dash, last = text.partition("-")
    if text.endswith("+"):
        return range(int(text[:-1]), _LAST_VERSION + 1)
    return range(int(first), int(last if dash else first) + 1)


def _text(versions: range) -> str:
    if not versions:
        return "none"
    if versions[-1] == _LAST_VERSION:
        return f"{versions[0]}+"
    return str(versions[0]) if len(versions) == 1 else f"{versions[0]}-{versions[-1]}"


def _common(first: range, second: range) -> range:
    return range(max(first.start, second.start), min(first.stop, second.stop))


def stable_versions(request: _Json) -> range:
    """The versions of an API that a broker of this release offers."""
    versions = _range(request["validVersions"])
    return versions[:-1] if request.get("latestVersionUnstable") else versions


class _Compact:
    """One message in the form of metadata/messages/schema.py, for `versions`."""

    def __init__(self, source: _Json, versions: range) -> None:
        self._source = source
        self._versions = versions
        self._structs = {each["name"]: each["fields"] for each in source.get("commonStructs", ())}

    def lines(self) -> Iterator[str]:
        source = self._source
        flexible = _common(_range(source["flexibleVersions"]), self._versions)
        texts = [f'"apiKey": {source["apiKey"]}', f'"versions": "{_text(self._versions)}"']
        texts += [f'"flexible": "{source["flexibleVersions"] if flexible else "none"}"', '"fields": [']
        yield f'  "{source["name"]}": {{{", ".join(texts)}'
        yield from self._fields(source["fields"], self._versions, "    ")
        yield "  ]}"

    def _fields(self, fields: Sequence[_Json], versions: range, indent: str) -> Iterator[str]:
        """The fields of a struct that the message has in `versions`."""
        kept = [each for each in fields if _common(_range(each["versions"]), versions)]
        for field in kept:
            comma = "" if field is kept[-1] else ","
            texts = [f'"{name}": {json.dumps(value)}' for name, value in self._members(field, versions).items()]
            element = field["type"].removeprefix("[]")
            struct = field.get("fields") or self._structs.get(element)
            if struct is None:
                yield f"{indent}{{{', '.join(texts)}}}{comma}"
            else:
                yield f'{indent}{{{", ".join(texts)}, "fields": ['
                yield from self._fields(struct, _common(_range(field["versions"]), versions), indent + "  ")
                yield f"{indent}]}}{comma}"

    @staticmethod
    def _members(field: _Json, versions: range) -> _Json:
        nullable = _range(field.get("nullableVersions", "none"))
        if "taggedVersions" in field and field["taggedVersions"] != field["versions"]:
            raise ValueError(f"{field['name']} is a tagged field in some of its versions only")
        members = {"name": field["name"][0].lower() + field["name"][1:], "type": field["type"]}
        if _common(_range(field["versions"]), versions) != versions:
            members["versions"] = field["versions"]
        if "tag" in field:
            members["tag"] = field["tag"]
        if _common(nullable, versions):
            members["nullable"] = field["nullableVersions"]
        if "default" in field and (default := _default(field)) not in (0, ""):
            members["default"] = default
        if field.get("ignorable") and "versions" in members:
            members["ignorable"] = True
        return members


def _default(field: _Json) -> Any:
    value, kind = str(field["default"]), field["type"]
    if value == "null":
        return None
    if kind == "bool":
        return value.lower() == "true"
    if kind == "string":
        return value
    if kind.startswith(("int", "uint")):
        return int(value, 0)
    raise ValueError(f"the default {value!r} of the {kind} {field['name']} has no form here")


def texts(jar: ZipFile) -> dict[str, str]:
    """The text of each schema file, by its name."""
    found = {}
    for area, apis in AREAS.items():
        messages = []
        for api in apis:
            request, response = read_schema(jar, f"{api}Request"), read_schema(jar, f"{api}Response")
            versions = stable_versions(request)
            messages += ["\n".join(_Compact(each, versions).lines()) for each in (request, response)]
        found[f"{area}.json"] = "{\n" + ",\n".join(messages) + "\n}\n"
    return found


def main(arguments: Sequence[str]) -> int:
    path, *options = arguments
    with ZipFile(path) as jar:
        files = texts(jar)
    if options == ["--check"]:
        return int(any((SCHEMAS_DIR / name).read_text() != text for name, text in files.items()))
    for name, text in files.items():
        (SCHEMAS_DIR / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
