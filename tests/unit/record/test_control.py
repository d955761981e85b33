"""Control records: parsed and built as Kafka's bytes, invalid ones refused."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pytest
from builders.record_fixtures import decode_log, kafka_logs

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, UnsupportedFormatError
from pyspark_kafkalog.record.control import (
    ControlRecord,
    ControlRecordType,
    EndTransactionMarker,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    VoterEndpoint,
    build_control_record,
    parse_control_record,
    parse_control_type,
)

DIRECTORY = uuid.UUID("fd001124-d5a6-40ff-b420-da3b8d30c4eb")
VOTER = Voter(
    voter_id=1,
    directory_id=DIRECTORY,
    endpoints=(
        VoterEndpoint(name="CONTROLLER", host="127.0.0.1", port=65535),
        VoterEndpoint(name="schlüssel", host="", port=0),
    ),
    min_supported_version=0,
    max_supported_version=1,
)
SAMPLES: list[ControlRecord] = [
    EndTransactionMarker(control_type=ControlRecordType.ABORT, coordinator_epoch=-1),
    EndTransactionMarker(control_type=ControlRecordType.COMMIT, coordinator_epoch=2**31 - 1),
    LeaderChange(leader_id=3),
    LeaderChange(leader_id=3, voters=(LeaderChangeVoter(voter_id=3), LeaderChangeVoter(voter_id=4))),
    LeaderChange(
        version=1, leader_id=3, granting_voters=(LeaderChangeVoter(voter_id=3, directory_id=DIRECTORY),) * 130
    ),
    SnapshotHeader(last_contained_log_timestamp_ms=1_700_000_000_000),
    SnapshotFooter(),
    KRaftVersion(kraft_version=1),
    KRaftVoters(voters=()),
    KRaftVoters(voters=(VOTER, VOTER)),
]


def parse(key: bytes | None, value: bytes | None) -> ControlRecord | None:
    return parse_control_record(key, value, file="x.log", file_position=77)


def test_every_control_record_of_kafka_is_rebuilt_byte_for_byte(kafka_fixtures: Path) -> None:
    seen: Counter[type] = Counter()
    for path in kafka_logs(kafka_fixtures):
        for position, _, batch in decode_log(path):
            for found in batch.records if batch.header.is_control else ():
                parsed = parse_control_record(found.key, found.value, file=str(path), file_position=position)
                assert parsed is not None
                assert build_control_record(parsed) == (found.key, found.value)
                seen[type(parsed)] += 1
    assert {EndTransactionMarker, LeaderChange, SnapshotHeader, SnapshotFooter, KRaftVersion, KRaftVoters} == set(seen)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_control_record_round_trips(sample: ControlRecord) -> None:
    assert parse(*build_control_record(sample)) == sample


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_truncated_value_and_extra_byte_are_refused(sample: ControlRecord) -> None:
    key, value = build_control_record(sample)
    for length in range(len(value)):
        with pytest.raises(CorruptRecordError, match=r"x\.log at byte 77"):
            parse(key, value[:length])
    with pytest.raises(CorruptRecordError):
        parse(key, value + b"\0")


def test_commit_marker_has_kafkas_bytes() -> None:
    marker = EndTransactionMarker(control_type=ControlRecordType.COMMIT, coordinator_epoch=5)
    assert build_control_record(marker) == (b"\0\0\0\1", b"\0\0\0\0\0\5")


def test_unknown_tagged_fields_are_skipped() -> None:
    key, value = build_control_record(KRaftVersion(kraft_version=1))
    assert parse(key, value[:-1] + b"\x02\x00\x03abc\x07\x00") == KRaftVersion(kraft_version=1)


def test_tagged_field_longer_than_value_is_refused() -> None:
    key, value = build_control_record(SnapshotFooter())
    with pytest.raises(CorruptRecordError):
        parse(key, value[:-1] + b"\x01\x00\xff\xff\xff\xff\x0f")


def test_array_with_wrong_length_is_refused() -> None:
    key, value = build_control_record(KRaftVoters(voters=()))
    with pytest.raises(CorruptRecordError, match="a length of"):
        parse(key, value[:2] + b"\xff\xff\xff\xff\x0f\x00")
    with pytest.raises(CorruptRecordError, match="a length of -1"):
        parse(key, value[:2] + b"\x00\x00")


def test_control_type_of_later_kafka_is_parsed_as_unknown() -> None:
    assert parse(b"\0\0\0\7", b"whatever") is None
    assert parse(b"\0\0\xff\xff", None) is None
    assert parse_control_type(b"\0\0\0\7", file="x.log", file_position=0) is ControlRecordType.UNKNOWN


def test_later_key_version_is_read_as_the_first() -> None:
    assert parse_control_type(b"\0\1\0\1\0", file="x.log", file_position=0) is ControlRecordType.COMMIT


def test_later_version_of_marker_is_read_as_the_first() -> None:
    marker = EndTransactionMarker(control_type=ControlRecordType.ABORT, coordinator_epoch=9)
    assert parse(b"\0\0\0\0", b"\0\1\0\0\0\x09more") == marker


@pytest.mark.parametrize("version", [2, 2**15 - 1])
def test_later_version_of_quorum_record_is_refused_as_unsupported(version: int) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"found version {version}"):
        parse(b"\0\0\0\2", version.to_bytes(2, "big") + bytes(20))


@pytest.mark.parametrize("type_id", range(7))
def test_negative_version_is_reported_as_corrupt(type_id: int) -> None:
    with pytest.raises(CorruptRecordError, match="version -1"):
        parse(bytes([0, 0, 0, type_id]), b"\xff\xff" + bytes(4))


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_bad_control_key_is_reported_as_corrupt(key: bytes | None) -> None:
    with pytest.raises(CorruptRecordError, match="control record key"):
        parse(key, b"\0\0\0\0\0\0")


def test_null_value_is_reported_as_corrupt() -> None:
    with pytest.raises(CorruptRecordError, match="found null"):
        parse(b"\0\0\0\1", None)


def test_string_not_in_utf8_is_reported_as_corrupt() -> None:
    key, value = build_control_record(KRaftVoters(voters=(VOTER,)))
    with pytest.raises(CorruptRecordError, match="not UTF-8"):
        parse(key, value.replace(b"CONTROLLER", b"CONTROLL\xff\xfe"))


@pytest.mark.parametrize(
    "record",
    [
        EndTransactionMarker(control_type=ControlRecordType.SNAPSHOT_FOOTER, coordinator_epoch=0),
        EndTransactionMarker(control_type=ControlRecordType.ABORT, coordinator_epoch=2**31),
        LeaderChange(leader_id=0, voters=(LeaderChangeVoter(voter_id=0, directory_id=DIRECTORY),)),
        LeaderChange(version=1, leader_id=0, voters=(LeaderChangeVoter(voter_id=0),)),
        KRaftVersion(kraft_version=2**15),
    ],
)
def test_record_that_does_not_fit_its_layout_is_not_built(record: ControlRecord) -> None:
    with pytest.raises(InvalidRecordError):
        build_control_record(record)
