"""The quorum of the metadata log: its leader, voters and observers, as kafka-metadata-quorum shows them."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH
from pyspark_kafkalog.root.own import OwnRoot
from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties
from pyspark_kafkalog.storage.names import META_PROPERTIES


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


def own_quorum(root: OwnRoot) -> Quorum:
    """A native root's quorum: its node is the single voter and leader; the high watermark follows the last commit."""
    properties = read_meta_properties(root.path / META_PROPERTIES)
    node_id = root.store.image.node.broker_id
    return Quorum(
        cluster_id=properties.cluster_id,
        leader_id=node_id,
        leader_epoch=LEADER_EPOCH,
        high_watermark=root.version,
        voters=(QuorumReplica(node_id, properties.directory_id, log_end_offset=root.version),),
        as_of_ms=root.clock(),
    )
