"""`__cluster_metadata-0/quorum-state`: the election that a KRaft node took part in last.

    {"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}

One line of JSON. Version 0, of a quorum whose voters are configured (kraft.version 0), has no `votedDirectoryId` but
`"currentVoters":[{"voterId":1},…]`; from version 1 on the voters are in the metadata log. Written as a whole under a
temporary name and renamed, so a crash leaves the old file or the new one. Source of the rules:
org.apache.kafka.raft.FileQuorumStateStore.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.errors import DiskFormatError, UnsupportedFormatError
from pyspark_kafkalog.storage.filesystem import read_text_file

QUORUM_STATE: Final = "quorum-state"
NO_LEADER: Final = -1
_VERSION_MAX: Final = 1
_BYTES_MAX: Final = 1 << 16
_INT32_MAX: Final = 2**31 - 1
_ADVICE: Final = "copy the file again, or start the node: it makes one when there is none"


@dataclass(frozen=True, slots=True)
class QuorumState:
    """Leader (NO_LEADER: not known), its epoch, and ids of configured voters, None where the log has them."""

    leader_id: int
    leader_epoch: int
    voter_ids: tuple[int, ...] | None = None


def read_quorum_state(path: Path) -> QuorumState:
    """Read the file. Raises DiskFormatError, UnsupportedFormatError for later versions, or OSError."""
    file = str(path)
    data = read_text_file(path, max_bytes=_BYTES_MAX, kind=DiskFormatError, advice=_ADVICE)
    try:
        tree = json.loads(data.split(b"\n", 1)[0])
    except (ValueError, RecursionError) as error:
        raise _error(file, "a line of JSON", str(error)) from None
    if not isinstance(tree, dict):
        raise _error(file, "a JSON object", repr(data[:80]))
    version = _int(tree, "data_version", file, 0)
    if version > _VERSION_MAX:
        raise UnsupportedFormatError(
            file=file,
            position=0,
            expected=f"data_version 0 to {_VERSION_MAX}",
            found=str(version),
            advice="read it with a release of this package that knows it",
        )
    return QuorumState(
        leader_id=_int(tree, "leaderId", file, NO_LEADER),
        leader_epoch=_int(tree, "leaderEpoch", file, 0),
        voter_ids=_voter_ids(tree, file) if version == 0 else None,
    )


def _voter_ids(tree: Mapping[str, Any], file: str) -> tuple[int, ...]:
    voters = tree.get("currentVoters")
    if not isinstance(voters, list) or not all(isinstance(each, dict) for each in voters):
        raise _error(file, "currentVoters, an array of objects", _shown(voters))
    return tuple(_int(each, "voterId", file, 0) for each in voters)


def _int(tree: Mapping[str, Any], name: str, file: str, smallest: int) -> int:
    value = tree.get(name)
    if type(value) is not int or not smallest <= value <= _INT32_MAX:  # bool is an int to isinstance
        raise _error(file, f"{name}, an integer of 32 bits from {smallest} on", _shown(value))
    return value


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)[:80]


def _error(file: str, expected: str, found: str) -> DiskFormatError:
    return DiskFormatError(file=file, position=0, expected=expected, found=found, advice=_ADVICE)
