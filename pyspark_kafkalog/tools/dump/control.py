"""Descriptions of control records in the dump: transaction markers as text, the quorum's records as Kafka's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.metadata.messages.json_form import json_text
from pyspark_kafkalog.record.control import (
    ControlRecord,
    EndTransactionMarker,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotHeader,
    Voter,
    parse_control_record,
)
from pyspark_kafkalog.storage.names import encode_uuid
from pyspark_kafkalog.tools.dump.records import DumpRecord
from pyspark_kafkalog.tools.dump.walk import DumpedBatch

_TITLES: Final[Mapping[str, str]] = {
    "LeaderChange": "LeaderChange:",
    "SnapshotHeader": "SnapshotHeader",
    "SnapshotFooter": "SnapshotFooter",
    "KRaftVersion": "KRaftVersion",
    "KRaftVoters": "KRaftVoters",
}


@dataclass(frozen=True, slots=True)
class ControlDescription:
    """A control record's content: `text` as kafka-dump-log appends it to the record's line, `tree` for JSON."""

    text: str
    tree: Mapping[str, Any]


def describe_control_record(batch: DumpedBatch, record: DumpRecord) -> ControlDescription:
    """Describe a record of a control batch. Raises DumpError if its key or value is invalid."""
    try:
        parsed = parse_control_record(record.key, record.value, file=batch.file, file_position=batch.position)
    except DiskFormatError as error:
        raise batch.damaged(f"expected {error.expected}, found {error.found}") from error
    if parsed is None:
        type_id = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
        return ControlDescription(f" controlType: UNKNOWN({type_id})", {"controlType": "UNKNOWN", "typeId": type_id})
    if isinstance(parsed, EndTransactionMarker):
        name = parsed.control_type.name
        return ControlDescription(
            f" endTxnMarker: {name} coordinatorEpoch: {parsed.coordinator_epoch}",
            {"controlType": name, "coordinatorEpoch": parsed.coordinator_epoch},
        )
    kind = type(parsed).__name__
    tree = _tree(parsed)
    return ControlDescription(f" {_TITLES[kind]} {json_text(tree)}", {"controlType": kind, "data": tree})


def _tree(record: ControlRecord) -> dict[str, Any]:
    """The fields in the order of Kafka's schemas."""
    if isinstance(record, LeaderChange):
        return {
            "version": record.version,
            "leaderId": record.leader_id,
            "voters": [_leader_change_voter(voter) for voter in record.voters],
            "grantingVoters": [_leader_change_voter(voter) for voter in record.granting_voters],
        }
    if isinstance(record, SnapshotHeader):
        return {"version": record.version, "lastContainedLogTimestamp": record.last_contained_log_timestamp_ms}
    if isinstance(record, KRaftVersion):
        return {"version": record.version, "kRaftVersion": record.kraft_version}
    if isinstance(record, KRaftVoters):
        return {"version": record.version, "voters": [_voter(voter) for voter in record.voters]}
    assert not isinstance(record, EndTransactionMarker)
    return {"version": record.version}


def _leader_change_voter(voter: LeaderChangeVoter) -> dict[str, Any]:
    tree: dict[str, Any] = {"voterId": voter.voter_id}
    if voter.directory_id is not None:
        tree["voterDirectoryId"] = encode_uuid(voter.directory_id.bytes)
    return tree


def _voter(voter: Voter) -> dict[str, Any]:
    return {
        "voterId": voter.voter_id,
        "voterDirectoryId": encode_uuid(voter.directory_id.bytes),
        "endpoints": [
            {"name": endpoint.name, "host": endpoint.host, "port": endpoint.port} for endpoint in voter.endpoints
        ],
        "kRaftVersionFeature": {
            "minSupportedVersion": voter.min_supported_version,
            "maxSupportedVersion": voter.max_supported_version,
        },
    }
