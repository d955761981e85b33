"""Writes the schemas of Kafka's messages (schemas/*.json in metadata/messages and in protocol) from Kafka's own.

    python scripts/make_schemas.py JAR ... [--check]

With --check nothing is written; exit code 1 means that a file differs from the jars' schemas.

The jars are those of `ARTIFACTS`, each in every release from 4.1 on, as kafka-clients-4.4.0.jar. They hold Kafka's
schemas as message/*.json and metadata/*.json. Those of the requests and records in `APIS` and `RECORDS` are written in
the form that metadata/messages/schema.py states, as the newest release has them: without texts and what only Kafka's
generator needs, with common structs in their place, and without versions of requests that a broker of that release does
not offer (`latestVersionUnstable`). `since` is the first release that has a version, or a tagged field that came
without a new version; the oldest release goes without saying. So the next release of Kafka costs a run with its jars.
Then run scripts/make_messages.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

from pyspark_kafkalog.version import KafkaVersion

PACKAGE_DIR: Final = Path(__file__).resolve().parents[1] / "pyspark_kafkalog"
ARTIFACTS: Final = (
    "kafka-clients",
    "kafka-metadata",
    "kafka-group-coordinator",
    "kafka-transaction-coordinator",
    "kafka-share-coordinator",
    "kafka-storage",
)

#: The APIs of each schema file in protocol/schemas. Left out is what a server without a quorum, share groups and
#: delegation tokens never sends or answers.
APIS: Final[Mapping[str, Sequence[str]]] = {
    "records": ("Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords"),
    "cluster": (
        "ApiVersions",
        "Metadata",
        "DescribeCluster",
        "DescribeTopicPartitions",
        "UpdateFeatures",
        "ListConfigResources",
        "DescribeQuorum",
        "FetchSnapshot",
    ),
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
#: The records of each schema file in metadata/messages/schemas, in the order of their types.
RECORDS: Final[Mapping[str, Sequence[str]]] = {
    "cluster_metadata": (
        "RegisterBrokerRecord",
        "UnregisterBrokerRecord",
        "TopicRecord",
        "PartitionRecord",
        "ConfigRecord",
        "PartitionChangeRecord",
        "FenceBrokerRecord",
        "UnfenceBrokerRecord",
        "RemoveTopicRecord",
        "DelegationTokenRecord",
        "UserScramCredentialRecord",
        "FeatureLevelRecord",
        "ClientQuotaRecord",
        "ProducerIdsRecord",
        "BrokerRegistrationChangeRecord",
        "AccessControlEntryRecord",
        "RemoveAccessControlEntryRecord",
        "NoOpRecord",
        "ZkMigrationStateRecord",
        "RemoveUserScramCredentialRecord",
        "BeginTransactionRecord",
        "EndTransactionRecord",
        "AbortTransactionRecord",
        "RemoveDelegationTokenRecord",
        "RegisterControllerRecord",
        "ClearElrRecord",
        "UnregisterControllerRecord",
    ),
    "group_coordinator": (
        "LegacyOffsetCommitKey",
        "LegacyOffsetCommitValue",
        "OffsetCommitKey",
        "OffsetCommitValue",
        "GroupMetadataKey",
        "GroupMetadataValue",
        "ConsumerGroupMetadataKey",
        "ConsumerGroupMetadataValue",
        "ConsumerGroupPartitionMetadataKey",
        "ConsumerGroupPartitionMetadataValue",
        "ConsumerGroupMemberMetadataKey",
        "ConsumerGroupMemberMetadataValue",
        "ConsumerGroupTargetAssignmentMetadataKey",
        "ConsumerGroupTargetAssignmentMetadataValue",
        "ConsumerGroupTargetAssignmentMemberKey",
        "ConsumerGroupTargetAssignmentMemberValue",
        "ConsumerGroupCurrentMemberAssignmentKey",
        "ConsumerGroupCurrentMemberAssignmentValue",
        "ShareGroupMemberMetadataKey",
        "ShareGroupMemberMetadataValue",
        "ShareGroupMetadataKey",
        "ShareGroupMetadataValue",
        "ShareGroupTargetAssignmentMetadataKey",
        "ShareGroupTargetAssignmentMetadataValue",
        "ShareGroupTargetAssignmentMemberKey",
        "ShareGroupTargetAssignmentMemberValue",
        "ShareGroupCurrentMemberAssignmentKey",
        "ShareGroupCurrentMemberAssignmentValue",
        "ShareGroupStatePartitionMetadataKey",
        "ShareGroupStatePartitionMetadataValue",
        "ConsumerGroupRegularExpressionKey",
        "ConsumerGroupRegularExpressionValue",
        "StreamsGroupMetadataKey",
        "StreamsGroupMetadataValue",
        "StreamsGroupMemberMetadataKey",
        "StreamsGroupMemberMetadataValue",
        "StreamsGroupTargetAssignmentMetadataKey",
        "StreamsGroupTargetAssignmentMetadataValue",
        "StreamsGroupTargetAssignmentMemberKey",
        "StreamsGroupTargetAssignmentMemberValue",
        "StreamsGroupCurrentMemberAssignmentKey",
        "StreamsGroupCurrentMemberAssignmentValue",
        "StreamsGroupTopologyKey",
        "StreamsGroupTopologyValue",
        "ConsumerProtocolAssignment",
        "ConsumerProtocolSubscription",
    ),
    "transaction_coordinator": (
        "TransactionLogKey",
        "TransactionLogValue",
    ),
    "share_coordinator": (
        "ShareSnapshotKey",
        "ShareSnapshotValue",
        "ShareUpdateKey",
        "ShareUpdateValue",
    ),
    "remote_log_metadata": (
        "RemoteLogSegmentMetadataRecord",
        "RemoteLogSegmentMetadataUpdateRecord",
        "RemotePartitionDeleteMetadataRecord",
    ),
}
_JAR_NAME: Final = re.compile(r"(kafka-[a-z-]+)-([0-9.]+)\.jar")
_SCHEMA_NAME: Final = re.compile(r"(?:common/)?(?:message|metadata)/[A-Za-z]+\.json")
_COMMENT: Final = re.compile(r"^\s*//.*$|(?<=[\s,\[{])//\s.*$", re.MULTILINE)
_LAST_VERSION: Final = 0x7FFF

_Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Kafka, as `4.3`, and its schemas by the name of the message."""

    name: str
    schemas: Mapping[str, _Json]

    def versions(self, message: str) -> range:
        """The versions of a message; of a request and its response, those that a broker of this release offers."""
        name = f"{message.removesuffix('Response')}Request" if message.endswith("Response") else message
        schema = self.schemas.get(name)
        if schema is None:
            return range(0)
        versions = _range(schema["validVersions"])
        return versions[:-1] if schema.get("latestVersionUnstable") else versions

    def tagged_fields(self, message: str) -> frozenset[tuple[str, ...]]:
        """The paths of the message's tagged fields."""
        schema = self.schemas.get(message)
        return frozenset() if schema is None else frozenset(_tagged(schema["fields"], _structs(schema)))


def _structs(schema: _Json) -> Mapping[str, Sequence[_Json]]:
    return {each["name"]: each["fields"] for each in schema.get("commonStructs", ())}


def _tagged(fields: Sequence[_Json], structs: Mapping[str, Sequence[_Json]]) -> Iterator[tuple[str, ...]]:
    for field in fields:
        if "tag" in field:
            yield (field["name"],)
        inner = field.get("fields") or structs.get(field["type"].removeprefix("[]"), ())
        yield from ((field["name"], *path) for path in _tagged(inner, structs))


def read_schemas(jars: Sequence[Path]) -> dict[str, _Json]:
    """Every schema in the jars, by the name of its message."""
    found: dict[str, _Json] = {}
    for path in jars:
        with ZipFile(path) as jar:
            names = [each for each in jar.namelist() if _SCHEMA_NAME.fullmatch(each)]
            schemas = [json.loads(_COMMENT.sub("", jar.read(each).decode("utf-8"))) for each in names]
        found |= {each["name"]: each for each in schemas}
    return found


def releases(jars: Sequence[Path]) -> list[Release]:
    """The releases of the jars, oldest first. Ends the program if a release lacks one of `ARTIFACTS`."""
    by_version: dict[KafkaVersion, dict[str, Path]] = {}
    for path in jars:
        found = _JAR_NAME.fullmatch(path.name)
        if found is None or found[1] not in ARTIFACTS:
            raise SystemExit(f"{path}: expected a jar named as {ARTIFACTS[0]}-4.4.0.jar, of {', '.join(ARTIFACTS)}")
        by_version.setdefault(KafkaVersion.parse(found[2]), {})[found[1]] = path
    for version, of_version in by_version.items():
        if lacking := [each for each in ARTIFACTS if each not in of_version]:
            raise SystemExit(f"the jars of Kafka {version} lack {', '.join(lacking)}")
    if not by_version:
        raise SystemExit(f"expected the jars of {', '.join(ARTIFACTS)}, of each release")
    return [
        Release(f"{version.major}.{version.minor}", read_schemas(list(of_version.values())))
        for version, of_version in sorted(by_version.items())
    ]


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


def _versions(field: _Json) -> str:
    """The versions of a field; a tagged one may state those alone in which it is tagged."""
    return str(field.get("versions", field.get("taggedVersions")))


class _Compact:
    """One message in the form of metadata/messages/schema.py, as of the last of the releases."""

    def __init__(self, message: str, known: Sequence[Release]) -> None:
        self._source = known[-1].schemas[message]
        self._versions = known[-1].versions(message)
        self._structs = _structs(self._source)
        self._since = self._first_releases(message, known)
        self._since_of_fields = self._first_releases_of_fields(message, known)

    @staticmethod
    def _first_releases(message: str, known: Sequence[Release]) -> dict[str, str]:
        """The first release of each version that the oldest release lacks."""
        versions = known[-1].versions(message)
        first = {each: next(release for release in known if each in release.versions(message)) for each in versions}
        return {str(each): release.name for each, release in first.items() if release is not known[0]}

    @staticmethod
    def _first_releases_of_fields(message: str, known: Sequence[Release]) -> dict[tuple[str, ...], str]:
        """The first release of each tagged field that came without a new version, by its path."""
        found: dict[tuple[str, ...], str] = {}
        for before, release in pairwise(known):
            if before.versions(message) == release.versions(message):
                new = release.tagged_fields(message) - before.tagged_fields(message)
                found |= dict.fromkeys(new, release.name)
        return found

    def lines(self) -> Iterator[str]:
        source = self._source
        flexible = _common(_range(source["flexibleVersions"]), self._versions)
        texts = [f'"apiKey": {source["apiKey"]}'] if "apiKey" in source else []
        texts += [f'"versions": "{_text(self._versions)}"']
        texts += [f'"flexible": "{source["flexibleVersions"] if flexible else "none"}"']
        texts += [f'"since": {json.dumps(self._since)}'] if self._since else []
        texts += ['"fields": [']
        yield f'  "{source["name"]}": {{{", ".join(texts)}'
        yield from self._fields(source["fields"], self._versions, ())
        yield "  ]}"

    def _fields(self, fields: Sequence[_Json], versions: range, path: tuple[str, ...]) -> Iterator[str]:
        """The fields of the struct at `path` that the message has in `versions`."""
        indent = "    " + "  " * len(path)
        kept = [each for each in fields if _common(_range(_versions(each)), versions)]
        for field in kept:
            comma = "" if field is kept[-1] else ","
            of_field = (*path, field["name"])
            members = self._members(field, versions)
            if of_field in self._since_of_fields:
                members["since"] = self._since_of_fields[of_field]
            texts = [f'"{name}": {json.dumps(value)}' for name, value in members.items()]
            element = field["type"].removeprefix("[]")
            struct = field.get("fields") or self._structs.get(element)
            if struct is None:
                yield f"{indent}{{{', '.join(texts)}}}{comma}"
            else:
                yield f'{indent}{{{", ".join(texts)}, "fields": ['
                yield from self._fields(struct, _common(_range(_versions(field)), versions), of_field)
                yield f"{indent}]}}{comma}"

    @staticmethod
    def _members(field: _Json, versions: range) -> _Json:
        nullable = _range(field.get("nullableVersions", "none"))
        if "taggedVersions" in field and field["taggedVersions"] != _versions(field):
            raise ValueError(f"{field['name']} is a tagged field in some of its versions only")
        members = {"name": field["name"][0].lower() + field["name"][1:], "type": field["type"]}
        if _common(_range(_versions(field)), versions) != versions:
            members["versions"] = _versions(field)
        if "tag" in field:
            members["tag"] = field["tag"]
        if _common(nullable, versions):
            members["nullable"] = field["nullableVersions"]
        # To Kafka's generator, null is a default as text alone; as JSON's null it is none.
        if field.get("default") is not None and (default := _default(field)) not in (0, ""):
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


def _file(messages: Sequence[str], known: Sequence[Release]) -> str:
    found = ["\n".join(_Compact(each, known).lines()) for each in messages]
    return "{\n" + ",\n".join(found) + "\n}\n"


def texts(known: Sequence[Release]) -> dict[str, str]:
    """The text of each schema file, by its path in the package. The releases are ordered, oldest first."""
    requests = {
        f"protocol/schemas/{area}.json": [f"{api}{kind}" for api in apis for kind in ("Request", "Response")]
        for area, apis in APIS.items()
    }
    records = {f"metadata/messages/schemas/{area}.json": messages for area, messages in RECORDS.items()}
    return {file: _file(messages, known) for file, messages in (requests | records).items()}


def main(arguments: Sequence[str]) -> int:
    files = texts(releases([Path(each) for each in arguments if each != "--check"]))
    if "--check" in arguments:
        return int(any((PACKAGE_DIR / name).read_text() != text for name, text in files.items()))
    for name, text in files.items():
        (PACKAGE_DIR / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
