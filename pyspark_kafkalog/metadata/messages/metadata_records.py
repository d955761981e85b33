"""The records of the metadata log, as classes: Kafka's own, and this project's (see records.py).

Generated from schemas/cluster_metadata.json and schemas/kafkalog.json by scripts/make_messages.py: change the schemas,
not this file. Field types, defaults and versions are those of the schemas; `unknown_tags` are the tagged fields that
the schema does not have, as (tag, bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, UnknownTags


class MetadataRecord(Message):
    """One record of the metadata log."""

    __slots__ = ()


class BrokerEndpoint(Message):
    """A struct of RegisterBrokerRecord."""

    name: str = ""
    host: str = ""
    port: int = 0
    security_protocol: int = 0
    unknown_tags: UnknownTags = ()


class BrokerFeature(Message):
    """A struct of RegisterBrokerRecord."""

    name: str = ""
    min_supported_version: int = 0
    max_supported_version: int = 0
    unknown_tags: UnknownTags = ()


class RegisterBrokerRecord(MetadataRecord):
    """RegisterBrokerRecord: api key 0, versions 0 to 4."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "end_points": BrokerEndpoint,
        "features": BrokerFeature,
    }

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
    unknown_tags: UnknownTags = ()


class UnregisterBrokerRecord(MetadataRecord):
    """UnregisterBrokerRecord: api key 1, version 0."""

    broker_id: int = 0
    broker_epoch: int = 0
    unknown_tags: UnknownTags = ()


class TopicRecord(MetadataRecord):
    """TopicRecord: api key 2, version 0."""

    name: str = ""
    topic_id: str = ZERO_UUID
    unknown_tags: UnknownTags = ()


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
    unknown_tags: UnknownTags = ()


class ConfigRecord(MetadataRecord):
    """ConfigRecord: api key 4, version 0."""

    resource_type: int = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = ""
    unknown_tags: UnknownTags = ()


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
    unknown_tags: UnknownTags = ()


class FenceBrokerRecord(MetadataRecord):
    """FenceBrokerRecord: api key 7, version 0."""

    id: int = 0
    epoch: int = 0
    unknown_tags: UnknownTags = ()


class UnfenceBrokerRecord(MetadataRecord):
    """UnfenceBrokerRecord: api key 8, version 0."""

    id: int = 0
    epoch: int = 0
    unknown_tags: UnknownTags = ()


class RemoveTopicRecord(MetadataRecord):
    """RemoveTopicRecord: api key 9, version 0."""

    topic_id: str = ZERO_UUID
    unknown_tags: UnknownTags = ()


class DelegationTokenRecord(MetadataRecord):
    """DelegationTokenRecord: api key 10, version 0."""

    owner: str = ""
    requester: str = ""
    renewers: tuple[str, ...] = ()
    issue_timestamp: int = 0
    max_timestamp: int = 0
    expiration_timestamp: int = 0
    token_id: str = ""
    unknown_tags: UnknownTags = ()


class UserScramCredentialRecord(MetadataRecord):
    """UserScramCredentialRecord: api key 11, version 0."""

    name: str = ""
    mechanism: int = 0
    salt: bytes = b""
    stored_key: bytes = b""
    server_key: bytes = b""
    iterations: int = 0
    unknown_tags: UnknownTags = ()


class FeatureLevelRecord(MetadataRecord):
    """FeatureLevelRecord: api key 12, version 0."""

    name: str = ""
    feature_level: int = 0
    unknown_tags: UnknownTags = ()


class EntityData(Message):
    """A struct of ClientQuotaRecord."""

    entity_type: str = ""
    entity_name: str | None = ""
    unknown_tags: UnknownTags = ()


class ClientQuotaRecord(MetadataRecord):
    """ClientQuotaRecord: api key 14, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "entity": EntityData,
    }

    entity: tuple[EntityData, ...] = ()
    key: str = ""
    value: float = 0.0
    remove: bool = False
    unknown_tags: UnknownTags = ()


class ProducerIdsRecord(MetadataRecord):
    """ProducerIdsRecord: api key 15, version 0."""

    broker_id: int = 0
    broker_epoch: int = -1
    next_producer_id: int = 0
    unknown_tags: UnknownTags = ()


class BrokerRegistrationChangeRecord(MetadataRecord):
    """BrokerRegistrationChangeRecord: api key 17, versions 0 to 3."""

    broker_id: int = 0
    broker_epoch: int = 0
    fenced: int = 0
    in_controlled_shutdown: int = 0  # from version 1
    log_dirs: tuple[str, ...] = ()  # from version 2
    cordoned_log_dirs: tuple[str, ...] | None = None  # from version 3
    unknown_tags: UnknownTags = ()


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
    unknown_tags: UnknownTags = ()


class RemoveAccessControlEntryRecord(MetadataRecord):
    """RemoveAccessControlEntryRecord: api key 19, version 0."""

    id: str = ZERO_UUID
    unknown_tags: UnknownTags = ()


class NoOpRecord(MetadataRecord):
    """NoOpRecord: api key 20, version 0."""

    unknown_tags: UnknownTags = ()


class ZkMigrationStateRecord(MetadataRecord):
    """ZkMigrationStateRecord: api key 21, version 0."""

    zk_migration_state: int = 0
    unknown_tags: UnknownTags = ()


class RemoveUserScramCredentialRecord(MetadataRecord):
    """RemoveUserScramCredentialRecord: api key 22, version 0."""

    name: str = ""
    mechanism: int = 0
    unknown_tags: UnknownTags = ()


class BeginTransactionRecord(MetadataRecord):
    """BeginTransactionRecord: api key 23, version 0."""

    name: str | None = None
    unknown_tags: UnknownTags = ()


class EndTransactionRecord(MetadataRecord):
    """EndTransactionRecord: api key 24, version 0."""

    unknown_tags: UnknownTags = ()


class AbortTransactionRecord(MetadataRecord):
    """AbortTransactionRecord: api key 25, version 0."""

    reason: str | None = None
    unknown_tags: UnknownTags = ()


class RemoveDelegationTokenRecord(MetadataRecord):
    """RemoveDelegationTokenRecord: api key 26, version 0."""

    token_id: str = ""
    unknown_tags: UnknownTags = ()


class ControllerEndpoint(Message):
    """A struct of RegisterControllerRecord."""

    name: str = ""
    host: str = ""
    port: int = 0
    security_protocol: int = 0
    unknown_tags: UnknownTags = ()


class ControllerFeature(Message):
    """A struct of RegisterControllerRecord."""

    name: str = ""
    min_supported_version: int = 0
    max_supported_version: int = 0
    unknown_tags: UnknownTags = ()


class RegisterControllerRecord(MetadataRecord):
    """RegisterControllerRecord: api key 27, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "end_points": ControllerEndpoint,
        "features": ControllerFeature,
    }

    controller_id: int = 0
    incarnation_id: str = ZERO_UUID
    zk_migration_ready: bool = False
    end_points: tuple[ControllerEndpoint, ...] = ()
    features: tuple[ControllerFeature, ...] = ()
    unknown_tags: UnknownTags = ()


class ClearElrRecord(MetadataRecord):
    """ClearElrRecord: api key 28, version 0."""

    topic_name: str = ""
    unknown_tags: UnknownTags = ()


class UnregisterControllerRecord(MetadataRecord):
    """UnregisterControllerRecord: api key 29, version 0."""

    controller_id: int = 0
    unknown_tags: UnknownTags = ()


class FormatRecord(MetadataRecord):
    """FormatRecord: api key 20000, version 0."""

    format_version: int = 0
    is_object_root: bool = False
    unknown_tags: UnknownTags = ()


class CommitRecord(MetadataRecord):
    """CommitRecord: api key 20001, version 0."""

    commit_id: str = ZERO_UUID
    operation: str = ""
    unknown_tags: UnknownTags = ()


class WrittenPartition(Message):
    """A struct of WriteCommitRecord."""

    topic_id: str = ZERO_UUID
    partition: int = 0
    first_offset: int = 0
    records: int = 0
    bytes: int = 0
    unknown_tags: UnknownTags = ()


class WriteCommitRecord(MetadataRecord):
    """WriteCommitRecord: api key 20002, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": WrittenPartition,
    }

    write_id: str = ""
    transactional_id: str | None = None
    transaction_version: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    incarnation: str = ""
    partitions: tuple[WrittenPartition, ...] = ()
    unknown_tags: UnknownTags = ()


class ProducerState(Message):
    """A struct of PartitionStateRecord."""

    producer_id: int = -1
    producer_epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    last_timestamp_ms: int = -1
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1
    unknown_tags: UnknownTags = ()


class AppendedBatches(Message):
    """A struct of PartitionStateRecord."""

    first_offset: int = 0
    records: int = 0
    bytes: int = 0
    unknown_tags: UnknownTags = ()


class PartitionStateRecord(MetadataRecord):
    """PartitionStateRecord: api key 20003, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "producer": ProducerState,
        "appended": AppendedBatches,
    }

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
    unknown_tags: UnknownTags = ()


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
    unknown_tags: UnknownTags = ()


class Run(Message):
    """A struct of DataObjectRecord."""

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
    unknown_tags: UnknownTags = ()


class TopicRuns(Message):
    """A struct of DataObjectRecord."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "runs": Run,
    }

    topic_id: str = ZERO_UUID
    runs: tuple[Run, ...] = ()
    unknown_tags: UnknownTags = ()


class DataObjectRecord(MetadataRecord):
    """DataObjectRecord: api key 20005, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": TopicRuns,
    }

    key: str = ""
    size_bytes: int = 0
    planned_at: int = 0
    inline_data: bytes | None = None
    object_id: int = -1
    commit_offset: int = -1
    topics: tuple[TopicRuns, ...] = ()
    unknown_tags: UnknownTags = ()


class SegmentLeaderEpoch(Message):
    """A struct of SegmentObjectsRecord."""

    leader_epoch: int = 0
    start_offset: int = 0
    unknown_tags: UnknownTags = ()


class SegmentObject(Message):
    """A struct of SegmentObjectsRecord."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "leader_epochs": SegmentLeaderEpoch,
    }

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
    unknown_tags: UnknownTags = ()


class SegmentObjectsRecord(MetadataRecord):
    """SegmentObjectsRecord: api key 20006, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "segments": SegmentObject,
    }

    topic_id: str = ZERO_UUID
    partition: int = 0
    planned_at: int = 0
    replaced_runs: int = 0
    replaced_segments: tuple[str, ...] = ()
    segments: tuple[SegmentObject, ...] = ()
    unknown_tags: UnknownTags = ()


class PartitionRunsRecord(MetadataRecord):
    """PartitionRunsRecord: api key 20007, version 0."""

    topic_id: str = ZERO_UUID
    partition: int = 0
    runs: bytes = b""
    producer_batches: bytes = b""
    unknown_tags: UnknownTags = ()


class DroppedSegment(Message):
    """A struct of DroppedObjectsRecord."""

    topic: str = ""
    topic_id: str = ZERO_UUID
    partition: int = 0
    base_offset: int = 0
    segment_id: str = ZERO_UUID
    unknown_tags: UnknownTags = ()


class DroppedObjectsRecord(MetadataRecord):
    """DroppedObjectsRecord: api key 20008, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "segments": DroppedSegment,
    }

    commit_offset: int = 0
    timestamp_ms: int = 0
    data_keys: tuple[str, ...] = ()
    segments: tuple[DroppedSegment, ...] = ()
    unknown_tags: UnknownTags = ()


class ObjectsDeletedRecord(MetadataRecord):
    """ObjectsDeletedRecord: api key 20009, version 0."""

    dropped_below: int = 0
    unknown_tags: UnknownTags = ()


class StagingHorizonRecord(MetadataRecord):
    """StagingHorizonRecord: api key 20010, version 0."""

    horizon_offset: int = 0
    commit_offset: int = -1
    timestamp_ms: int = -1
    unknown_tags: UnknownTags = ()


class FollowingRecord(MetadataRecord):
    """FollowingRecord: api key 20011, version 0."""

    following_id: str = ""
    leader: str = ""
    cluster_id: str = ""
    topics: str = ""
    since_ms: int = -1
    had_records: bool = False
    unknown_tags: UnknownTags = ()


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
