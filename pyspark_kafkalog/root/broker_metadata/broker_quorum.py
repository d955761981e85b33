"""The quorum of a broker's metadata log, from the disk of one KRaft node.

    meta.properties                      cluster; the node itself
    __cluster_metadata-0/quorum-state    leader and epoch (quorum_state.py), unless the log has a later epoch
    the log's KRAFT_VOTERS records       the voters, the newest record counts; where there is none, they are configured:
    its LEADER_CHANGE records            ids of the voters at the last election, else those in quorum-state

Nodes receive the high watermark from the leader and do not write it to disk. It is known only for a node that is the
single voter, where it follows the last batch. The progress of other nodes is known only to the running leader.

Source of the rules: org.apache.kafka.raft.QuorumState and KRaftControlRecordStateMachine.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata.bootstrap import METADATA_DIR
from pyspark_kafkalog.record.control import KRaftVoters, LeaderChange, Voter, VoterEndpoint, parse_control_record
from pyspark_kafkalog.root.broker_metadata.log import BrokerLog
from pyspark_kafkalog.root.broker_metadata.quorum import Quorum, QuorumReplica
from pyspark_kafkalog.root.broker_metadata.quorum_state import NO_LEADER, QUORUM_STATE, QuorumState, read_quorum_state
from pyspark_kafkalog.storage.artefacts.marker_files import MetaProperties, read_meta_properties
from pyspark_kafkalog.storage.names import META_PROPERTIES, encode_uuid


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
    return Quorum(
        cluster_id=node.cluster_id,
        leader_id=state.leader_id,
        leader_epoch=state.leader_epoch,
        high_watermark=voters[0].log_end_offset if voters is not None and len(voters) == 1 else None,
        voters=voters,
        observers=_observers(voters, node, log.end_offset),
    )


def _voters_in(log: BrokerLog) -> tuple[QuorumReplica, ...] | None:
    """The voters in the newest record about them, after reading all of `log`; None if there is no such record."""
    voters = elected = None
    for batches in (log.snapshot(control_only=True), log.after_snapshot(control_only=True)):
        for batch in batches:
            for each in batch.records:
                said = parse_control_record(each.key, each.value, file=batch.file, file_position=batch.position)
                if isinstance(said, KRaftVoters):
                    voters = tuple(map(_replica, said.voters))
                elif isinstance(said, LeaderChange):
                    elected = tuple(
                        QuorumReplica(voter.voter_id, _directory_id(voter.directory_id)) for voter in said.voters
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
