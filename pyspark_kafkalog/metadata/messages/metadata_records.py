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


class BrokerEndpoint(Message):
    name: str = ""
    host: str = ""
    port: int = 0
    security_protocol: int = 0


class BrokerFeature(Message):
    name: str = ""
    min_supported_version: int = 0
    max_supported_version: int = 0


class RegisterBrokerRecord(MetadataRecord):
    """RegisterBrokerRecord: api key 0, versions 0 to 4."""

    broker_id: int = 0
    is_migrating_zk_broker: bool = False  # from version 2
    incarnation_id: str = ZERO_UUID
    broker_epoch: int = 0
    end_points: tuple[BrokerEndpoint, ...] = ()
    features: tuple[BrokerFeature, ...] = ()
    rack: str | None = ""
    fenced: bool = True
    in_controlled_shutdown: bool = False  # from version 1
    log_dirs: tuple[str, ...] = ()  # from version 3
    cordoned_log_dirs: tuple[str, ...] | None = None  # from version 4


class UnregisterBrokerRecord(MetadataRecord):
    """UnregisterBrokerRecord: api key 1, version 0."""

    broker_id: int = 0
    broker_epoch: int = 0


class TopicRecord(MetadataRecord):
    """TopicRecord: api key 2, version 0."""

    name: str = ""
    topic_id: str = ZERO_UUID


class PartitionRecord(MetadataRecord):
    """PartitionRecord: api key 3, versions 0 to 2."""

    partition_id: int = -1
    topic_id: str = ZERO_UUID
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader: int = -1
    leader_recovery_state: int = 0
    leader_epoch: int = -1
    partition_epoch: int = -1
    directories: tuple[str, ...] = ()  # from version 1
    eligible_leader_replicas: tuple[int, ...] | None = None  # from version 2
    last_known_elr: tuple[int, ...] | None = None  # from version 2


class ConfigRecord(MetadataRecord):
    """ConfigRecord: api key 4, version 0."""

    resource_type: int = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = ""


class PartitionChangeRecord(MetadataRecord):
    """PartitionChangeRecord: api key 5, versions 0 to 2."""

    partition_id: int = -1
    topic_id: str = ZERO_UUID
    isr: tuple[int, ...] | None = None
    leader: int = -2
    replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int = -1
    directories: tuple[str, ...] | None = None  # from version 1
    eligible_leader_replicas: tuple[int, ...] | None = None  # from version 2
    last_known_elr: tuple[int, ...] | None = None  # from version 2


class FenceBrokerRecord(MetadataRecord):
    """FenceBrokerRecord: api key 7, version 0."""

    id: int = 0
    epoch: int = 0


class UnfenceBrokerRecord(MetadataRecord):
    """UnfenceBrokerRecord: api key 8, version 0."""

    id: int = 0
    epoch: int = 0


class RemoveTopicRecord(MetadataRecord):
    """RemoveTopicRecord: api key 9, version 0."""

    topic_id: str = ZERO_UUID


class DelegationTokenRecord(MetadataRecord):
    """DelegationTokenRecord: api key 10, version 0."""

    owner: str = ""
    requester: str = ""
    renewers: tuple[str, ...] = ()
    issue_timestamp: int = 0
    max_timestamp: int = 0
    expiration_timestamp: int = 0
    token_id: str = ""


class UserScramCredentialRecord(MetadataRecord):
    """UserScramCredentialRecord: api key 11, version 0."""

    name: str = ""
    mechanism: int = 0
    salt: bytes = b""
    stored_key: bytes = b""
    server_key: bytes = b""
    iterations: int = 0


class FeatureLevelRecord(MetadataRecord):
    """FeatureLevelRecord: api key 12, version 0."""

    name: str = ""
    feature_level: int = 0


class EntityData(Message):
    entity_type: str = ""
    entity_name: str | None = ""


class ClientQuotaRecord(MetadataRecord):
    """ClientQuotaRecord: api key 14, version 0."""

    entity: tuple[EntityData, ...] = ()
    key: str = ""
    value: float = 0.0
    remove: bool = False


class ProducerIdsRecord(MetadataRecord):
    """ProducerIdsRecord: api key 15, version 0."""

    broker_id: int = 0
    broker_epoch: int = -1
    next_producer_id: int = 0


class BrokerRegistrationChangeRecord(MetadataRecord):
    """BrokerRegistrationChangeRecord: api key 17, versions 0 to 3."""

    broker_id: int = 0
    broker_epoch: int = 0
    fenced: int = 0
    in_controlled_shutdown: int = 0  # from version 1
    log_dirs: tuple[str, ...] = ()  # from version 2
    cordoned_log_dirs: tuple[str, ...] | None = None  # from version 3


class AccessControlEntryRecord(MetadataRecord):
    """AccessControlEntryRecord: api key 18, version 0."""

    id: str = ZERO_UUID
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 0
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class RemoveAccessControlEntryRecord(MetadataRecord):
    """RemoveAccessControlEntryRecord: api key 19, version 0."""

    id: str = ZERO_UUID


class NoOpRecord(MetadataRecord):
    """NoOpRecord: api key 20, version 0."""


class ZkMigrationStateRecord(MetadataRecord):
    """ZkMigrationStateRecord: api key 21, version 0."""

    zk_migration_state: int = 0


class RemoveUserScramCredentialRecord(MetadataRecord):
    """RemoveUserScramCredentialRecord: api key 22, version 0."""

    name: str = ""
    mechanism: int = 0


class BeginTransactionRecord(MetadataRecord):
    """BeginTransactionRecord: api key 23, version 0."""

    name: str | None = None


class EndTransactionRecord(MetadataRecord):
    """EndTransactionRecord: api key 24, version 0."""


class AbortTransactionRecord(MetadataRecord):
    """AbortTransactionRecord: api key 25, version 0."""

    reason: str | None = None


class RemoveDelegationTokenRecord(MetadataRecord):
    """RemoveDelegationTokenRecord: api key 26, version 0."""

    token_id: str = ""


class ControllerEndpoint(Message):
    name: str = ""
    host: str = ""
    port: int = 0
    security_protocol: int = 0


class ControllerFeature(Message):
    name: str = ""
    min_supported_version: int = 0
    max_supported_version: int = 0


class RegisterControllerRecord(MetadataRecord):
    """RegisterControllerRecord: api key 27, version 0."""

    controller_id: int = 0
    incarnation_id: str = ZERO_UUID
    zk_migration_ready: bool = False
    end_points: tuple[ControllerEndpoint, ...] = ()
    features: tuple[ControllerFeature, ...] = ()


class ClearElrRecord(MetadataRecord):
    """ClearElrRecord: api key 28, version 0."""

    topic_name: str = ""


class UnregisterControllerRecord(MetadataRecord):
    """UnregisterControllerRecord: api key 29, version 0."""

    controller_id: int = 0


class FormatRecord(MetadataRecord):
    """FormatRecord: api key 20000, version 0."""

    format_version: int = 0
    is_object_root: bool = False


class WriterTurn(Message):
    writer: int = 0
    request_ms: int = 0
    left_ms: int = -1


class CommitRecord(MetadataRecord):
    """CommitRecord: api key 20001, version 0."""

    commit_id: str = ZERO_UUID
    operation: str = ""
    turn: WriterTurn | None = None


class WrittenPartition(Message):
    topic_id: str = ZERO_UUID
    partition: int = 0
    first_offset: int = 0
    records: int = 0
    bytes: int = 0


class WriteCommitRecord(MetadataRecord):
    """WriteCommitRecord: api key 20002, version 0."""

    write_id: str = ""
    transactional_id: str | None = None
    transaction_version: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    incarnation: str = ""
    partitions: tuple[WrittenPartition, ...] = ()


class ProducerState(Message):
    producer_id: int = -1
    producer_epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    last_timestamp_ms: int = -1
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1


class AppendedBatches(Message):
    first_offset: int = 0
    records: int = 0
    bytes: int = 0


class PartitionStateRecord(MetadataRecord):
    """PartitionStateRecord: api key 20003, version 0."""

    topic_id: str = ZERO_UUID
    partition: int = 0
    leader_epoch: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    active_base_offset: int = 0
    active_size_bytes: int = 0
    active_first_timestamp_ms: int = -1
    active_max_timestamp_ms: int = -1
    active_max_timestamp_offset: int = 0
    bytes_since_last_index_entry: int = 0
    producer: ProducerState | None = None
    first_unstable_offset: int = -1
    local_log_start_offset: int = -1
    appended: AppendedBatches | None = None


class TransactionalIdRecord(MetadataRecord):
    """TransactionalIdRecord: api key 20004, version 0."""

    transactional_id: str = ""
    version: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    last_commit_offset: int = -1
    last_timestamp_ms: int = -1
    incarnation: str = ""
    fenced: tuple[str, ...] = ()


class Run(Message):
    partition: int = 0
    position: int = 0
    size_bytes: int = 0
    offsets_count: int = 0
    records_count: int = 0
    batches_count: int = 0
    max_timestamp_ms: int = -1
    producer_batches: bytes = b""
    leader_epoch: int = -2
    base_offset: int = -1
    first_offset: int = -1


class TopicRuns(Message):
    topic_id: str = ZERO_UUID
    runs: tuple[Run, ...] = ()


class DataObjectRecord(MetadataRecord):
    """DataObjectRecord: api key 20005, version 0."""

    key: str = ""
    size_bytes: int = 0
    planned_at: int = 0
    inline_data: bytes | None = None
    object_id: int = -1
    commit_offset: int = -1
    topics: tuple[TopicRuns, ...] = ()


class SegmentLeaderEpoch(Message):
    leader_epoch: int = 0
    start_offset: int = 0


class SegmentObject(Message):
    segment_id: str = ZERO_UUID
    base_offset: int = 0
    end_offset: int = 0
    size_bytes: int = 0
    max_timestamp_ms: int = -1
    offset_index_bytes: int = 0
    time_index_bytes: int = 0
    producer_snapshot_bytes: int = 0
    leader_epoch_index_bytes: int = 0
    transaction_index_bytes: int = 0
    leader_epochs: tuple[SegmentLeaderEpoch, ...] = ()
    is_cleaned: bool = False


class SegmentObjectsRecord(MetadataRecord):
    """SegmentObjectsRecord: api key 20006, version 0."""

    topic_id: str = ZERO_UUID
    partition: int = 0
    planned_at: int = 0
    replaced_runs: int = 0
    replaced_segments: tuple[str, ...] = ()
    segments: tuple[SegmentObject, ...] = ()


class PartitionRunsRecord(MetadataRecord):
    """PartitionRunsRecord: api key 20007, version 0."""

    topic_id: str = ZERO_UUID
    partition: int = 0
    runs: bytes = b""
    producer_batches: bytes = b""


class DroppedSegment(Message):
    topic: str = ""
    topic_id: str = ZERO_UUID
    partition: int = 0
    base_offset: int = 0
    segment_id: str = ZERO_UUID


class DroppedObjectsRecord(MetadataRecord):
    """DroppedObjectsRecord: api key 20008, version 0."""

    commit_offset: int = 0
    timestamp_ms: int = 0
    data_keys: tuple[str, ...] = ()
    segments: tuple[DroppedSegment, ...] = ()


class ObjectsDeletedRecord(MetadataRecord):
    """ObjectsDeletedRecord: api key 20009, version 0."""

    dropped_below: int = 0


class StagingHorizonRecord(MetadataRecord):
    """StagingHorizonRecord: api key 20010, version 0."""

    horizon_offset: int = 0
    commit_offset: int = -1
    timestamp_ms: int = -1


class FollowingRecord(MetadataRecord):
    """FollowingRecord: api key 20011, version 0."""

    following_id: str = ""
    leader: str = ""
    cluster_id: str = ""
    topics: str = ""
    since_ms: int = -1
    had_records: bool = False


#: All types, in the order of the schemas.
METADATA_RECORDS: Final = (
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    TopicRecord,
    PartitionRecord,
    ConfigRecord,
    PartitionChangeRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    RemoveTopicRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
    FeatureLevelRecord,
    ClientQuotaRecord,
    ProducerIdsRecord,
    BrokerRegistrationChangeRecord,
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    NoOpRecord,
    ZkMigrationStateRecord,
    RemoveUserScramCredentialRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    AbortTransactionRecord,
    RemoveDelegationTokenRecord,
    RegisterControllerRecord,
    ClearElrRecord,
    UnregisterControllerRecord,
    FormatRecord,
    CommitRecord,
    WriteCommitRecord,
    PartitionStateRecord,
    TransactionalIdRecord,
    DataObjectRecord,
    SegmentObjectsRecord,
    PartitionRunsRecord,
    DroppedObjectsRecord,
    ObjectsDeletedRecord,
    StagingHorizonRecord,
    FollowingRecord,
)
