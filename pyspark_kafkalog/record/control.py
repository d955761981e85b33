"""Control records, which brokers write into a log for their own use; consumers never see them.

They are in batches with the control bit. The key holds the type, which determines the value's layout:

    key     int16 version 0, int16 type
    0 ABORT, 1 COMMIT   int16 version 0, int32 coordinator epoch
    2 LEADER_CHANGE     int16 version, int32 leader id, two arrays of voters (int32 id; from version 1 also a uuid)
    3 SNAPSHOT_HEADER   int16 version 0, int64 timestamp in ms
    4 SNAPSHOT_FOOTER   int16 version 0
    5 KRAFT_VERSION     int16 version 0, int16 kraft version
    6 KRAFT_VOTERS      int16 version 0, array of voters: int32 id, uuid, array of endpoints (name, host, uint16 port),
                        two int16 of kraft versions

Types 2 to 6 are flexible messages: array and string lengths are unsigned varints one greater than the length, and each
struct ends with tagged fields, none of which is defined yet (they are skipped). Transaction markers are in topics'
logs, the others in `__cluster_metadata` and its snapshots. Source of the rules: ControlRecordType, EndTransactionMarker
and the message classes of Kafka 4.1.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeVar

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, UnsupportedFormatError
from pyspark_kafkalog.record.reference import MalformedVarintError, encode_unsigned_varint, read_unsigned_varint
from pyspark_kafkalog.values import dataclass

CONTROL_KEY_VERSION: Final = 0
_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_UUID_BYTES: Final = 16

_Item = TypeVar("_Item")


class ControlRecordType(IntEnum):
    """The type in a control record's key; UNKNOWN stands for all types that Kafka 4.1 does not know."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionMarker:
    """The end of a producer's transaction; `control_type` is ABORT or COMMIT."""

    control_type: ControlRecordType
    coordinator_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChangeVoter:
    """A voter of a leader election; `directory_id` is None in version 0."""

    voter_id: int
    directory_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """A new leader of the metadata quorum; the first record of its epoch."""

    version: int = 0
    leader_id: int
    voters: tuple[LeaderChangeVoter, ...] = ()
    granting_voters: tuple[LeaderChangeVoter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """First record of a metadata snapshot; the timestamp (ms) is that of the last log record that it covers."""

    version: int = 0
    last_contained_log_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFooter:
    """Last record of a metadata snapshot."""

    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVersion:
    """The version of the quorum's protocol from this record on."""

    version: int = 0
    kraft_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterEndpoint:
    """The address of a voter's listener."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A member of the quorum with the range of protocol versions that it supports."""

    voter_id: int
    directory_id: uuid.UUID
    endpoints: tuple[VoterEndpoint, ...]
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVoters:
    """The members of the quorum from this record on."""

    version: int = 0
    voters: tuple[Voter, ...]


ControlRecord = EndTransactionMarker | LeaderChange | SnapshotHeader | SnapshotFooter | KRaftVersion | KRaftVoters


def parse_control_type(key: bytes | None, *, file: str, file_position: int) -> ControlRecordType:
    """The type in a control record's key; key versions above 0 are read as version 0, as by Kafka.

    Raises CorruptRecordError for a key shorter than 4 bytes or with a negative version.
    """
    if key is None or len(key) < _KEY.size:
        found = "null" if key is None else f"{len(key)} bytes"
        raise _corrupt(file, file_position, f"a control record key of {_KEY.size} bytes", found)
    version, type_id = _KEY.unpack_from(key)
    if version < CONTROL_KEY_VERSION:
        raise _corrupt(file, file_position, "a control record key version of 0 or more", str(version))
    known = 0 <= type_id <= ControlRecordType.KRAFT_VOTERS
    return ControlRecordType(type_id) if known else ControlRecordType.UNKNOWN


def parse_control_record(
    key: bytes | None, value: bytes | None, *, file: str, file_position: int
) -> ControlRecord | None:
    """The content of a control record, or None for a type that Kafka 4.1 does not know (to be skipped).

    `file_position` is that of the record's batch. Raises CorruptRecordError, or UnsupportedFormatError for a later
    version of a quorum record; a later version of a transaction marker is read as version 0, as by Kafka.
    """
    control_type = parse_control_type(key, file=file, file_position=file_position)
    if control_type is ControlRecordType.UNKNOWN:
        return None
    what = f"a {control_type.name} control record"
    if value is None:
        raise _corrupt(file, file_position, f"{what} with a value", "null")
    if control_type in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        return _parse_marker(control_type, value, file=file, file_position=file_position)
    reader = _Reader(value)
    try:
        version = reader.integer(2)
        highest = 1 if control_type is ControlRecordType.LEADER_CHANGE else 0
        if version > highest:
            raise UnsupportedFormatError(
                file=file,
                position=file_position,
                expected=f"{what} of version 0 to {highest}",
                found=f"version {version}",
                advice="this was written by a Kafka later than 4.1",
            )
        if version < 0:
            raise _BadValueError(f"version {version}")
        record = _parse_value(control_type, reader, version)
        reader.skip_tagged_fields()
        reader.expect_end()
    except (_BadValueError, MalformedVarintError) as error:
        raise _corrupt(file, file_position, what, str(error)) from error
    return record


def build_control_record(record: ControlRecord) -> tuple[bytes, bytes]:
    """Key and value of a control record, as Kafka encodes them. Raises InvalidRecordError for values out of range."""
    control_type = record.control_type if isinstance(record, EndTransactionMarker) else _TYPES[type(record)]
    try:
        return _KEY.pack(CONTROL_KEY_VERSION, control_type), _build_value(record)
    except struct.error as error:
        raise InvalidRecordError(f"a field of {record} does not fit its type: {error}") from error


_TYPES: Final[dict[type, ControlRecordType]] = {
    LeaderChange: ControlRecordType.LEADER_CHANGE,
    SnapshotHeader: ControlRecordType.SNAPSHOT_HEADER,
    SnapshotFooter: ControlRecordType.SNAPSHOT_FOOTER,
    KRaftVersion: ControlRecordType.KRAFT_VERSION,
    KRaftVoters: ControlRecordType.KRAFT_VOTERS,
}


def _corrupt(file: str, file_position: int, expected: str, found: str) -> CorruptRecordError:
    return CorruptRecordError(file=file, position=file_position, expected=expected, found=found)


class _BadValueError(Exception):
    """A control record's value breaks its format; the text describes what was found."""


class _Reader:
    """Reads a value from start to end; every read checks that enough bytes are left."""

    def __init__(self, value: bytes) -> None:
        self._value = value
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._value):
            raise _BadValueError(f"{size} bytes at byte {self._at} of a value of {len(self._value)}")
        taken = self._value[self._at : end]
        self._at = end
        return taken

    def integer(self, size: int, *, signed: bool = True) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.take(_UUID_BYTES))

    def unsigned_varint(self) -> int:
        value, self._at = read_unsigned_varint(self._value, self._at, len(self._value))
        return value

    def string(self) -> str:
        raw = self.take(self._compact_length())
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise _BadValueError(f"a string that is not UTF-8: {raw!r}") from error

    def array(self, read_item: Callable[[], _Item]) -> tuple[_Item, ...]:
        return tuple(read_item() for _ in range(self._compact_length()))  # bounded: the bytes left, in _compact_length

    def _compact_length(self) -> int:
        length = self.unsigned_varint() - 1
        if not 0 <= length <= len(self._value) - self._at:  # an item has at least one byte
            raise _BadValueError(f"a length of {length} with {len(self._value) - self._at} bytes left")
        return length

    def skip_tagged_fields(self) -> None:
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()  # the tag
            self.take(self.unsigned_varint())

    def expect_end(self) -> None:
        if self._at != len(self._value):
            raise _BadValueError(f"{len(self._value) - self._at} bytes after the value's end")


def _parse_marker(
    control_type: ControlRecordType, value: bytes, *, file: str, file_position: int
) -> EndTransactionMarker:
    expected = f"a {control_type.name} marker of {_MARKER_VALUE.size} bytes, version 0"
    if len(value) < _MARKER_VALUE.size:
        raise _corrupt(file, file_position, expected, f"{len(value)} bytes")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    if version < 0 or (version == 0 and len(value) > _MARKER_VALUE.size):
        raise _corrupt(file, file_position, expected, f"{len(value)} bytes, version {version}")
    return EndTransactionMarker(control_type=control_type, coordinator_epoch=coordinator_epoch)


def _parse_value(control_type: ControlRecordType, reader: _Reader, version: int) -> ControlRecord:
    """The fields after the version in the value of a quorum record, up to its own tagged fields."""
    if control_type is ControlRecordType.LEADER_CHANGE:
        return LeaderChange(
            version=version,
            leader_id=reader.integer(4),
            voters=reader.array(lambda: _read_leader_change_voter(reader, version)),
            granting_voters=reader.array(lambda: _read_leader_change_voter(reader, version)),
        )
    if control_type is ControlRecordType.SNAPSHOT_HEADER:
        return SnapshotHeader(version=version, last_contained_log_timestamp_ms=reader.integer(8))
    if control_type is ControlRecordType.SNAPSHOT_FOOTER:
        return SnapshotFooter(version=version)
    if control_type is ControlRecordType.KRAFT_VERSION:
        return KRaftVersion(version=version, kraft_version=reader.integer(2))
    return KRaftVoters(version=version, voters=reader.array(lambda: _read_voter(reader)))


def _read_leader_change_voter(reader: _Reader, version: int) -> LeaderChangeVoter:
    voter_id = reader.integer(4)
    directory_id = reader.uuid() if version >= 1 else None
    reader.skip_tagged_fields()
    return LeaderChangeVoter(voter_id=voter_id, directory_id=directory_id)


def _read_voter(reader: _Reader) -> Voter:
    voter_id = reader.integer(4)
    directory_id = reader.uuid()
    endpoints = reader.array(lambda: _read_endpoint(reader))
    min_supported_version, max_supported_version = reader.integer(2), reader.integer(2)
    reader.skip_tagged_fields()  # those of the struct that holds the two versions
    reader.skip_tagged_fields()
    return Voter(
        voter_id=voter_id,
        directory_id=directory_id,
        endpoints=endpoints,
        min_supported_version=min_supported_version,
        max_supported_version=max_supported_version,
    )


def _read_endpoint(reader: _Reader) -> VoterEndpoint:
    endpoint = VoterEndpoint(name=reader.string(), host=reader.string(), port=reader.integer(2, signed=False))
    reader.skip_tagged_fields()
    return endpoint


_NO_TAGGED_FIELDS: Final = b"\0"


def _build_value(record: ControlRecord) -> bytes:
    if isinstance(record, EndTransactionMarker):
        if record.control_type not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            raise InvalidRecordError(f"a transaction ends with ABORT or COMMIT, not {record.control_type.name}")
        return _MARKER_VALUE.pack(0, record.coordinator_epoch)
    if isinstance(record, LeaderChange):
        body = struct.pack(">hi", record.version, record.leader_id)
        for voters in (record.voters, record.granting_voters):
            body += _array([_build_leader_change_voter(voter, record.version) for voter in voters])
    elif isinstance(record, SnapshotHeader):
        body = struct.pack(">hq", record.version, record.last_contained_log_timestamp_ms)
    elif isinstance(record, SnapshotFooter):
        body = struct.pack(">h", record.version)
    elif isinstance(record, KRaftVersion):
        body = struct.pack(">hh", record.version, record.kraft_version)
    else:
        body = struct.pack(">h", record.version) + _array([_build_voter(voter) for voter in record.voters])
    return body + _NO_TAGGED_FIELDS


def _build_leader_change_voter(voter: LeaderChangeVoter, version: int) -> bytes:
    if (voter.directory_id is not None) != (version >= 1):
        raise InvalidRecordError(
            f"version {version} of a leader change, and {voter}: directory ids come with version 1"
        )
    directory_id = b"" if voter.directory_id is None else voter.directory_id.bytes
    return struct.pack(">i", voter.voter_id) + directory_id + _NO_TAGGED_FIELDS


def _build_voter(voter: Voter) -> bytes:
    endpoints = [
        _string(endpoint.name) + _string(endpoint.host) + struct.pack(">H", endpoint.port) + _NO_TAGGED_FIELDS
        for endpoint in voter.endpoints
    ]
    versions = struct.pack(">hh", voter.min_supported_version, voter.max_supported_version) + _NO_TAGGED_FIELDS
    return (
        struct.pack(">i", voter.voter_id) + voter.directory_id.bytes + _array(endpoints) + versions + _NO_TAGGED_FIELDS
    )


def _array(items: list[bytes]) -> bytes:
    return encode_unsigned_varint(len(items) + 1) + b"".join(items)


def _string(text: str) -> bytes:
    raw = text.encode()
    return encode_unsigned_varint(len(raw) + 1) + raw
