"""The quorum of a metadata log: its leader, voters and observers, as kafka-metadata-quorum shows them.

For a native root: its node is the single voter. For a broker's directory: what the disk of one KRaft node has.

    meta.properties                      cluster; the node itself
    __cluster_metadata-0/quorum-state    leader and epoch, unless the log has a later epoch
    the log's KRAFT_VOTERS records       the voters, the newest record counts; without one, they are configured:
    its LEADER_CHANGE records            ids of the voters at the last election, else those in quorum-state

Nodes receive the high watermark from the leader and do not write it to disk. It is known only for a node that is the
single voter, where it follows the last batch, and for a copy that has committed records only (COPY_MARKER). The
progress of other nodes is known only to the running leader.

`quorum-state` is one line of JSON about the last election that the node took part in:

    {"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}

Version 0, of a quorum whose voters are configured (kraft.version 0), has no `votedDirectoryId` but
`"currentVoters":[{"voterId":1},…]`; from version 1 on the voters are in the metadata log. The file is written under a
temporary name and renamed, so a crash leaves the old file or the new one.

A directory with `__cluster_metadata-0/kafkalog-observer` ("version=1\\n") is a copy of a cluster's metadata log: it has
no partitions of topics. Its topics are those of the metadata log, wherever their partitions are; all of its records
are committed.

Source of the rules: org.apache.kafka.raft.QuorumState, KRaftControlRecordStateMachine and FileQuorumStateStore.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import DiskFormatError, LogDirError, UnsupportedFormatError
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH
from pyspark_kafkalog.metadata.root_format import METADATA_DIR, is_metadata_copy
from pyspark_kafkalog.record.control import KRaftVoters, LeaderChange, Voter, VoterEndpoint, parse_control_record
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.marker_files import MetaProperties, RootIdentity, read_meta_properties
from pyspark_kafkalog.storage.filesystem import read_text_file
from pyspark_kafkalog.storage.names import META_PROPERTIES, encode_uuid
from pyspark_kafkalog.units import INT32_MAX, content_text
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.brokers.image import BrokerLog


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A node with a copy of the log; `endpoints` as "CONTROLLER://host:9093". None: not known."""

    node_id: int
    directory_id: str | None = None
    endpoints: tuple[str, ...] = ()
    log_end_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """The quorum of the metadata log; None: not known. `leader_id` is -1 while there is no leader.

    `as_of_ms` is the time of the replicas' positions.
    """

    cluster_id: str | None
    leader_id: int
    leader_epoch: int
    high_watermark: int | None
    voters: tuple[QuorumReplica, ...] | None
    observers: tuple[QuorumReplica, ...] = ()
    as_of_ms: int | None = None

    def max_follower_lag(self) -> int | None:
        """The number of records by which the slowest voter is behind the leader."""
        return 0 if self.voters is not None and len(self.voters) == 1 else None

    def lag(self, replica: QuorumReplica) -> int | None:
        """The number of records by which `replica` is behind the leader."""
        return 0 if replica.node_id == self.leader_id and replica in (self.voters or ()) else None


def node_id_of(root: Root) -> int | None:
    """The node id of a log directory; None if it has none, also for directories of several nodes."""
    if not root.directories and not root.is_broker_directory:
        return root.native().store.image.node.broker_id
    return node_id_in(root.directories)


def node_id_in(directories: Iterable[Path]) -> int | None:
    """The node id of directories; None if meta.properties, or the node id in it, is missing, or if they differ."""
    try:
        node_ids = {read_meta_properties(each / META_PROPERTIES).node_id for each in directories}
    except (DiskFormatError, OSError):
        return None  # partition folders copied out of a broker's directory have none
    return node_ids.pop() if len(node_ids) == 1 else None


def quorum_of(root: Root) -> Quorum:
    """The quorum of a root: as last seen by the node of a broker's directory, or a native root's.

    Raises LogDirError if a broker's directory has no metadata log or a damaged one, DiskFormatError, OSError.
    """
    if root.is_broker_directory:
        return read_broker_quorum(root.directories[0])
    return native_quorum(root.native())


def native_quorum(root: NativeRoot) -> Quorum:
    """A native root's quorum: its node is the single voter and leader; the high watermark follows the last commit."""
    identity = root.identity or RootIdentity(None, None)
    node_id = root.store.image.node.broker_id
    return Quorum(
        cluster_id=identity.cluster_id,
        leader_id=node_id,
        leader_epoch=LEADER_EPOCH,
        high_watermark=root.version,
        voters=(QuorumReplica(node_id, identity.directory_id, log_end_offset=root.version),),
        as_of_ms=root.clock(),
    )


def read_broker_quorum(root: Path) -> Quorum:
    """The quorum as last seen by the node with the directory `root`.

    Raises LogDirError if `root` has no metadata log or a damaged one, DiskFormatError for other damaged files, OSError.
    """
    directory = root / METADATA_DIR
    if not directory.is_dir():
        raise LogDirError(
            f"{root} holds no copy of the metadata log ({METADATA_DIR}): --path must be the node's metadata.log.dir, "
            "the first of its log.dirs by default"
        )
    from pyspark_kafkalog.root.brokers.image import BrokerLog  # not needed with a native root

    log = BrokerLog(directory)
    voters = _voters_in(log)
    if log.damage is not None:
        raise LogDirError(f"the metadata log is damaged: {log.damage}")
    state = _quorum_state(directory / QUORUM_STATE)  # read after the log: an election in between would look like damage
    if state.leader_epoch < log.leader_epoch:
        state = replace(state, leader_id=NO_LEADER, leader_epoch=log.leader_epoch)
    if voters is None and state.voter_ids is not None:
        voters = tuple(QuorumReplica(each) for each in state.voter_ids)
    node = _node(root / META_PROPERTIES)
    if voters is not None:
        voters = tuple(
            replace(each, log_end_offset=log.end_offset) if _is_node(each, node) else each
            for each in sorted(voters, key=lambda each: each.node_id)
        )
    high_watermark = voters[0].log_end_offset if voters is not None and len(voters) == 1 else None
    return Quorum(
        cluster_id=node.cluster_id,
        leader_id=state.leader_id,
        leader_epoch=state.leader_epoch,
        high_watermark=log.end_offset if is_metadata_copy(root) else high_watermark,
        voters=voters,
        observers=_observers(voters, node, log.end_offset),
    )


def _voters_in(log: BrokerLog) -> tuple[QuorumReplica, ...] | None:
    """The voters in the newest record about them, after reading all of `log`; None if there is no such record."""
    voters = elected = None
    for batches in (log.snapshot(control_only=True), log.after_snapshot(control_only=True)):
        for batch in batches:
            for each in batch.records:
                control = parse_control_record(each.key, each.value, file=batch.file, file_position=batch.position)
                if isinstance(control, KRaftVoters):
                    voters = tuple(map(_replica, control.voters))
                elif isinstance(control, LeaderChange):
                    elected = tuple(
                        QuorumReplica(voter.voter_id, _directory_id(voter.directory_id)) for voter in control.voters
                    )
    return elected if voters is None else voters


def _replica(voter: Voter) -> QuorumReplica:
    return QuorumReplica(voter.voter_id, _directory_id(voter.directory_id), tuple(map(_url, voter.endpoints)))


def _directory_id(directory_id: uuid.UUID | None) -> str | None:
    """The id in Kafka's text form; None for the Uuid of zeros."""
    return encode_uuid(directory_id.bytes) if directory_id is not None and directory_id.int != 0 else None


def _url(endpoint: VoterEndpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.name}://{host}:{endpoint.port}"


def _quorum_state(path: Path) -> QuorumState:
    try:
        return read_quorum_state(path)
    except FileNotFoundError:  # the node has not been started yet
        return QuorumState(NO_LEADER, 0)


def _node(path: Path) -> MetaProperties:
    try:
        return read_meta_properties(path)
    except FileNotFoundError:  # a copy of the partition alone
        return MetaProperties()


def _is_node(voter: QuorumReplica, node: MetaProperties) -> bool:
    """Whether `voter` is the node. A node with a replaced disk has another directory id and is another replica."""
    is_directory = voter.directory_id is None or node.directory_id in (None, voter.directory_id)
    return voter.node_id == node.node_id and is_directory


def _observers(
    voters: tuple[QuorumReplica, ...] | None, node: MetaProperties, log_end_offset: int
) -> tuple[QuorumReplica, ...]:
    """The node itself, unless it is a voter; its disk has no information about other observers."""
    if voters is None or node.node_id is None or any(_is_node(each, node) for each in voters):
        return ()
    return (QuorumReplica(node.node_id, node.directory_id, log_end_offset=log_end_offset),)


QUORUM_STATE: Final = "quorum-state"
NO_LEADER: Final = -1
_VERSION_MAX: Final = 1
_BYTES_MAX: Final = 1 << 16
_ADVICE: Final = "copy the file again, or start the node, which creates a missing file"


@dataclass(frozen=True, slots=True)
class QuorumState:
    """Leader (NO_LEADER: not known), its epoch, and ids of configured voters, None if the log has them."""

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
        raise _error(file, "a JSON object", content_text(data))
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
    if type(value) is not int or not smallest <= value <= INT32_MAX:  # bool is an int to isinstance
        raise _error(file, f"{name}, an integer of 32 bits from {smallest} on", _shown(value))
    return value


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)[:80]


def _error(file: str, expected: str, found: str) -> DiskFormatError:
    return DiskFormatError(file=file, position=0, expected=expected, found=found, advice=_ADVICE)
