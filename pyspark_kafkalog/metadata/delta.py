"""How each record type changes the image: a delta collects the changes of one commit over a base image.

Kafka's record types that do not concern a root are accepted and ignored: controllers, fencing, tokens, ELR.

Source of the rules: org.apache.kafka.image.MetadataDelta and its parts (TopicsDelta, ConfigurationsDelta,
ProducerIdsDelta, AclsDelta, ScramDelta, ClientQuotasDelta).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import InvalidRecordError, InvalidTopicError
from pyspark_kafkalog.metadata.acl import Acl, parse_acl
from pyspark_kafkalog.metadata.commit_log import Commit
from pyspark_kafkalog.metadata.extent_changes import (
    ObjectChanges,
    check_segment_id,
    first_base_offset,
    run_row,
    trimmed,
    with_runs,
    with_segments,
    with_stored_batches,
    with_stored_runs,
)
from pyspark_kafkalog.metadata.extents import AT_LOG_END, EPOCH_OF_PARTITION
from pyspark_kafkalog.metadata.image import (
    BROKER_RESOURCE,
    FOLLOWING_FIELDS,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    UNKNOWN_ENDS,
    BrokerImage,
    Following,
    MetadataImage,
    PartitionImage,
    TopicImage,
    TransactionalIdImage,
    log_state,
    offsets_ends_of,
)
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    CommitRecord,
    ConfigRecord,
    DataObjectRecord,
    DelegationTokenRecord,
    DroppedObjectsRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    FollowingRecord,
    FormatRecord,
    MetadataRecord,
    NoOpRecord,
    ObjectsDeletedRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionRunsRecord,
    PartitionStateRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    SegmentObjectsRecord,
    StagingHorizonRecord,
    TopicRecord,
    TransactionalIdRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
    WriteCommitRecord,
    ZkMigrationStateRecord,
)
from pyspark_kafkalog.metadata.root_format import RootFormat
from pyspark_kafkalog.metadata.stored_partitions import StoredPartitions
from pyspark_kafkalog.metadata.users import (
    QuotaEntity,
    ScramCredential,
    ScramMechanism,
    apply_quota_record,
    credential_key,
    parse_credential,
)
from pyspark_kafkalog.record.header import NO_PRODUCER_ID
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import OFFSETS_TOPIC, validate_topic_name
from pyspark_kafkalog.storage.objects.data_object import parse_rows
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NO_LEADER_CHANGE: Final = -2


@dataclass(frozen=True, slots=True)
class ImageChanges:
    """The topics (by name), partitions (by number) and transactional ids that a commit created, changed or removed.

    `planned_at`: the metadata offsets at which the writes and merges were planned whose objects the commit names.
    """

    topics: set[str] = field(default_factory=set)
    partitions: set[tuple[str, int]] = field(default_factory=set)
    transactional_ids: set[str] = field(default_factory=set)
    planned_at: set[int] = field(default_factory=set)


class _TopicChange:
    """One topic while a commit is applied: partitions and configs are copied on the first change."""

    def __init__(self, topic: TopicImage) -> None:
        self._topic = topic
        self._partitions: list[PartitionImage] | None = None
        self._configs: dict[str, str] | None = None

    @property
    def partitions(self) -> list[PartitionImage]:
        if self._partitions is None:
            self._partitions = list(self._topic.partitions)
        return self._partitions

    @property
    def configs(self) -> dict[str, str]:
        if self._configs is None:
            self._configs = dict(self._topic.configs)
        return self._configs

    def build(self) -> TopicImage:
        return TopicImage(
            self._topic.name,
            self._topic.topic_id,
            self._topic.partitions if self._partitions is None else tuple(self._partitions),
            self._topic.configs if self._configs is None else self._configs,
            self._topic.offsets_ends,
        )


class ImageDelta:
    """The changes of one commit, or of one snapshot up to `commit_offset`, over `base`.

    Records that contradict the image raise InvalidRecordError, and so do names that Kafka does not allow: an image has
    only topics whose partitions can be directories and keys.
    """

    def __init__(
        self, base: MetadataImage, *, commit_offset: int, timestamp_ms: int, is_snapshot: bool = False
    ) -> None:
        self.base = base
        self._is_snapshot = is_snapshot
        self._commit_offset = commit_offset
        self._timestamp_ms = timestamp_ms
        self._topic_changes: dict[str, _TopicChange] = {}
        self._topics: dict[str, TopicImage] | None = None
        self._topic_names: dict[str, str] | None = None
        self._broker_configs: dict[str, dict[str, str]] = {}
        self._group_configs: dict[str, dict[str, str]] = {}
        self._brokers: dict[int, BrokerImage] | None = None
        self._features: dict[str, int] | None = None
        self._transactional_ids: dict[str, TransactionalIdImage] | None = None
        self._format = base.format
        self._next_producer_id = base.next_producer_id
        self._acls: dict[str, Acl] | None = None
        self._scram_credentials: dict[tuple[str, ScramMechanism], ScramCredential] | None = None
        self._client_quotas: dict[QuotaEntity, Mapping[str, float]] | None = None
        self._objects = ObjectChanges(
            base, commit_offset=commit_offset, timestamp_ms=timestamp_ms, is_snapshot=is_snapshot
        )
        #: Runs to be appended, by topic and partition: together they cost one new PartitionImage.
        self._new_runs: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        self._new_producer_batches: dict[tuple[str, int], list[NDArray[np.void]]] = {}  # of these runs
        self._following = base.following
        self._created: list[str] = []  # topics without `offsets_ends` yet
        self._are_offsets_cut = False
        self._record_offset = commit_offset - 1  # of the record that is being applied
        self.changes = ImageChanges()

    def replay(self, records: Iterable[MetadataRecord]) -> None:
        """Apply `records` in order."""
        for record in records:
            self._record_offset += 1
            handler = _HANDLERS[type(record)]
            if handler is not None:
                handler(self, record)

    def replay_runs(self, runs: Iterable[MetadataRecord | StoredPartitions]) -> None:
        """As `replay`, of a snapshot with neighbouring partitions together. `changes` lacks them: it is everything."""
        for each in runs:
            if not isinstance(each, StoredPartitions):
                self.replay((each,))
                continue
            self._record_offset += 1  # for an error about the first of the records
            partitions = self._change(self._name_of(each.topic_id)).partitions
            self._record_offset -= 1
            if each.partitions[0].partition == len(partitions):
                partitions += each.partitions
                self._record_offset += len(each.values)
            else:
                self.replay(each.records())

    @property
    def records_applied(self) -> int:
        """The number of records that were applied, with the one that was refused."""
        return self._record_offset + 1 - self._commit_offset

    def build(self, next_offset: int) -> MetadataImage:
        """The image after the changes."""
        for topic, partition in list(self._new_runs):
            self._append_new_runs(topic, partition)
        if self._topic_changes:
            self._own_topics().update((name, change.build()) for name, change in self._topic_changes.items())
        if self._created or self._are_offsets_cut:
            self._note_offsets_ends(self._own_topics())
        base = self.base
        objects, dropped, staging_horizon = self._objects.build()
        return MetadataImage(
            next_offset=next_offset,
            last_timestamp_ms=max(base.last_timestamp_ms, self._timestamp_ms),
            format=self._format,
            topics=base.topics if self._topics is None else self._topics,
            topic_names=base.topic_names if self._topic_names is None else self._topic_names,
            broker_configs=_changed_configs(base.broker_configs, self._broker_configs),
            group_configs=_changed_configs(base.group_configs, self._group_configs),
            brokers=base.brokers if self._brokers is None else self._brokers,
            features=base.features if self._features is None else self._features,
            transactional_ids=base.transactional_ids if self._transactional_ids is None else self._transactional_ids,
            next_producer_id=self._next_producer_id,
            acls=base.acls if self._acls is None else self._acls,
            scram_credentials=base.scram_credentials if self._scram_credentials is None else self._scram_credentials,
            client_quotas=base.client_quotas if self._client_quotas is None else self._client_quotas,
            objects=objects,
            dropped=dropped,
            staging_horizon=staging_horizon,
            following=self._following,
        )

    def _note_offsets_ends(self, topics: dict[str, TopicImage]) -> None:
        """Give new topics their `offsets_ends`, and bound those of others by a `__consumer_offsets` that was cut.

        A follower copies the records of offsets apart from the commits that create topics: it has the leader's ends.
        """
        was, now = self.base.topics.get(OFFSETS_TOPIC), topics.get(OFFSETS_TOPIC)
        is_same = was is not None and now is not None and was.topic_id == now.topic_id
        ends = tuple(each.high_watermark for each in now.partitions) if is_same and now is not None else ()
        if self._are_offsets_cut and (self._following is None or not is_same):
            for name, topic in topics.items():
                if topic.offsets_ends:
                    bounded = tuple(map(min, topic.offsets_ends, ends))
                    topics[name] = replace(topic, offsets_ends=bounded)
        if any(ends) and self._following is None:
            for name in self._created:
                if name in topics:
                    topics[name] = replace(topics[name], offsets_ends=ends)

    def _own_topics(self) -> dict[str, TopicImage]:
        if self._topics is None:
            self._topics = dict(self.base.topics)
        return self._topics

    def _own_topic_names(self) -> dict[str, str]:
        if self._topic_names is None:
            self._topic_names = dict(self.base.topic_names)
        return self._topic_names

    def _name_of(self, topic_id: str) -> str:
        names = self.base.topic_names if self._topic_names is None else self._topic_names
        name = names.get(topic_id)
        if name is None:
            raise InvalidRecordError(f"a metadata record names topic id {topic_id}, which no topic has")
        return name

    def _has_topic(self, name: str) -> bool:
        return name in (self.base.topics if self._topics is None else self._topics)

    def _change(self, name: str) -> _TopicChange:
        """The change of an existing topic."""
        change = self._topic_changes.get(name)
        if change is None:
            topics = self.base.topics if self._topics is None else self._topics
            change = self._topic_changes[name] = _TopicChange(topics[name])
            self.changes.topics.add(name)
        return change

    def _partition_to_change(self, topic_id: str, number: int) -> list[PartitionImage]:
        """The partitions of the topic with that id; partition `number` must exist."""
        name = self._name_of(topic_id)
        partitions = self._change(name).partitions
        if not 0 <= number < len(partitions):
            raise InvalidRecordError(
                f"a metadata record names partition {number} of topic {name!r}, which has {len(partitions)} partitions"
            )
        self.changes.partitions.add((name, number))
        self._append_new_runs(name, number)
        return partitions

    def _topic(self, record: TopicRecord) -> None:
        name, topic_id = _valid_topic(record.name), record.topic_id
        topics, names = self._own_topics(), self._own_topic_names()
        if name in topics or topic_id in names:
            raise InvalidRecordError(
                f"a TopicRecord creates topic {name!r} with id {topic_id}; one of the two is already used"
            )
        ends = offsets_ends_of(record)
        if ends is None:
            topics[name] = TopicImage(name, topic_id, offsets_ends=UNKNOWN_ENDS if self._is_snapshot else ())
        else:
            topics[name] = TopicImage(name, topic_id, offsets_ends=ends)
        names[topic_id] = name
        if ends is None and not self._is_snapshot:
            self._created.append(name)
        if name == OFFSETS_TOPIC and self._following is None:
            # Those of another `__consumer_offsets`, which the copy of some topics does not have.
            topics.update(
                (each.name, replace(each, offsets_ends=())) for each in self.base.topics.values() if each.offsets_ends
            )
        self.changes.topics.add(name)

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        name = self._name_of(record.topic_id)
        for number in [number for topic, number in self._new_runs if topic == name]:
            self._append_new_runs(name, number)
        for partition in self._change(name).partitions:
            self._objects.drop_runs(partition.runs.table["object_id"])
            self._objects.drop_segments(name, record.topic_id, partition.partition, partition.segments)
        del self._topic_changes[name]
        del self._own_topics()[name]
        del self._own_topic_names()[record.topic_id]
        self.changes.topics.add(name)
        self._are_offsets_cut |= name == OFFSETS_TOPIC

    def _partition(self, record: PartitionRecord) -> None:
        name = self._name_of(record.topic_id)
        partitions = self._change(name).partitions
        if record.partition_id == len(partitions):
            self.changes.partitions.add((name, len(partitions)))
            partitions.append(PartitionImage(len(partitions), LogState(leader_epoch=record.leader_epoch)))
            return
        number = record.partition_id
        partitions = self._partition_to_change(record.topic_id, number)
        state = replace(partitions[number].state, leader_epoch=record.leader_epoch)
        partitions[number] = replace(partitions[number], state=state)

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        if record.leader == _NO_LEADER_CHANGE:
            return
        number = record.partition_id
        partitions = self._partition_to_change(record.topic_id, number)
        state = partitions[number].state
        state = replace(state, leader_epoch=state.leader_epoch + 1)
        partitions[number] = replace(partitions[number], state=state)

    def _partition_state(self, record: PartitionStateRecord) -> None:
        number = record.partition
        partitions = self._partition_to_change(record.topic_id, number)
        log_end_offset = partitions[number].state.log_end_offset
        partitions[number] = replace(partitions[number], state=log_state(record))
        if record.log_end_offset < log_end_offset:
            self._are_offsets_cut |= self._name_of(record.topic_id) == OFFSETS_TOPIC
        # Appends raise the log end of an object root before its state, by their runs.
        is_cut = record.log_end_offset < log_end_offset or (
            self._format.in_object_store and record.log_end_offset > log_end_offset
        )
        dropping = trimmed(partitions[number], is_cut=is_cut)
        if dropping is not None:
            partitions[number], segments, object_ids = dropping
            self._objects.drop_runs(object_ids)
            self._objects.drop_segments(self._name_of(record.topic_id), record.topic_id, number, segments)

    def _data_object(self, record: DataObjectRecord) -> None:
        if not self._format.in_object_store:
            raise InvalidRecordError("a DataObjectRecord is in the log of a root that is not in an object store")
        added = self._objects.add(record, self._record_offset)
        if record.object_id < 0:
            self.changes.planned_at.add(record.planned_at)
        for topic in record.topics:
            name = self._name_of(topic.topic_id)
            partitions = self._change(name).partitions
            for run in topic.runs:
                if not 0 <= run.partition < len(partitions):
                    self._partition_to_change(topic.topic_id, run.partition)  # raises
                state = partitions[run.partition].state
                rows = self._new_runs.setdefault((name, run.partition), [])
                base_offset = rows[-1][1] if rows else state.log_end_offset
                if run.base_offset != AT_LOG_END:
                    base_offset = first_base_offset(run, partitions[run.partition], is_first=not rows)
                epoch = state.leader_epoch if run.leader_epoch == EPOCH_OF_PARTITION else run.leader_epoch
                rows.append(run_row(run, added, base_offset, epoch))
                if run.producer_batches:
                    batches = parse_rows(run.producer_batches, start_offset=base_offset, end_offset=rows[-1][1])
                    self._new_producer_batches.setdefault((name, run.partition), []).append(batches)
                self._objects.count_runs((added.object_id,))

    def _append_new_runs(self, name: str, number: int) -> None:
        rows = self._new_runs.pop((name, number), None)
        if rows is not None:
            partitions = self._change(name).partitions
            batches = self._new_producer_batches.pop((name, number), ())
            partitions[number] = with_runs(partitions[number], rows, batches)
            self.changes.partitions.add((name, number))

    def _partition_runs(self, record: PartitionRunsRecord) -> None:
        self._check_in_snapshot(record)
        partitions = self._partition_to_change(record.topic_id, record.partition)
        if record.producer_batches:
            partitions[record.partition] = with_stored_batches(partitions[record.partition], record.producer_batches)
            if not record.runs:
                return
        partitions[record.partition], object_ids = with_stored_runs(partitions[record.partition], record)
        self._objects.count_runs(object_ids)

    def _segment_objects(self, record: SegmentObjectsRecord) -> None:
        number = record.partition
        partitions = self._partition_to_change(record.topic_id, number)
        name = self._name_of(record.topic_id)
        for each in record.segments:
            check_segment_id(each.segment_id, self._commit_offset)
        partitions[number], segments, object_ids = with_segments(f"{name}-{number}", partitions[number], record)
        self.changes.planned_at.add(record.planned_at)
        self._objects.drop_runs(object_ids)
        self._objects.drop_segments(name, record.topic_id, number, segments)

    def _dropped_objects(self, record: DroppedObjectsRecord) -> None:
        self._check_in_snapshot(record)
        if not self._format.in_object_store and (record.data_keys or not self._format.may_have_segments):
            raise InvalidRecordError(
                "a DroppedObjectsRecord names objects that a root on a file system never puts into a store"
            )
        for each in record.segments:
            _valid_topic(each.topic)
        self._objects.restore_dropped(record)

    def _check_in_snapshot(self, record: MetadataRecord) -> None:
        """Raise InvalidRecordError for a commit's record of a type that this package writes into snapshots only."""
        if not self._is_snapshot:
            raise InvalidRecordError(f"a {type(record).__name__} is in a commit: expected it in snapshots only")

    def _objects_deleted(self, record: ObjectsDeletedRecord) -> None:
        self._objects.deleted(record)

    def _staging_horizon(self, record: StagingHorizonRecord) -> None:
        self._objects.set_horizon(record)

    def _follow(self, record: FollowingRecord) -> None:
        self._following = None
        if record.following_id:
            self._following = Following(**{name: getattr(record, name) for name in FOLLOWING_FIELDS})

    def _config(self, record: ConfigRecord) -> None:
        if record.resource_type == TOPIC_RESOURCE:
            if not self._has_topic(record.resource_name):
                return  # Kafka's snapshots keep configs of topics that were deleted
            configs = self._change(record.resource_name).configs
        elif record.resource_type == BROKER_RESOURCE:
            broker = record.resource_name
            configs = self._broker_configs.setdefault(broker, dict(self.base.broker_configs.get(broker, {})))
        elif record.resource_type == GROUP_RESOURCE:
            group_id = record.resource_name
            configs = self._group_configs.setdefault(group_id, dict(self.base.group_configs.get(group_id, {})))
        else:
            return  # configs of client metrics, which are not used here
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value

    def _feature_level(self, record: FeatureLevelRecord) -> None:
        if self._features is None:
            self._features = dict(self.base.features)
        if record.feature_level == 0:
            self._features.pop(record.name, None)
        else:
            self._features[record.name] = record.feature_level

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        self._next_producer_id = record.next_producer_id

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        if self._brokers is None:
            self._brokers = dict(self.base.brokers)
        broker_id = record.broker_id
        self._brokers[broker_id] = BrokerImage(
            broker_id, record.incarnation_id, record.broker_epoch, tuple(record.log_dirs)
        )

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        if self._brokers is None:
            self._brokers = dict(self.base.brokers)
        self._brokers.pop(record.broker_id, None)

    def _change_format(self, record: FormatRecord) -> None:
        known, changed = self._format, RootFormat(record.format_version, record.is_object_root)
        if known.version is not None and changed.in_object_store != known.in_object_store:
            raise InvalidRecordError(
                f"a FormatRecord changes the root from is_object_root={known.in_object_store} to "
                f"{changed.in_object_store}"
            )
        self._format = changed

    def _write_commit(self, record: WriteCommitRecord) -> None:
        name = record.transactional_id
        if name is None:
            return
        known = self.base.transactional_ids if self._transactional_ids is None else self._transactional_ids
        last = known.get(name)
        if last is None:
            last = TransactionalIdImage(name, -1, NO_PRODUCER_ID, -1, -1, -1)
        producer = (record.producer_id, record.producer_epoch)
        if record.producer_id == NO_PRODUCER_ID:
            producer = (last.producer_id, last.producer_epoch)
        held = last.held_by(record.incarnation)
        self._set_transactional_id(
            TransactionalIdImage(
                name,
                record.transaction_version,
                *producer,
                self._commit_offset,
                self._timestamp_ms,
                held.incarnation,
                held.fenced,
            )
        )

    def _transactional_id(self, record: TransactionalIdRecord) -> None:
        if record == TransactionalIdRecord(transactional_id=record.transactional_id):
            self._changed_transactional_ids().pop(record.transactional_id, None)
            self.changes.transactional_ids.add(record.transactional_id)
            return
        self._set_transactional_id(
            TransactionalIdImage(
                record.transactional_id,
                record.version,
                record.producer_id,
                record.producer_epoch,
                record.last_commit_offset,
                record.last_timestamp_ms,
                record.incarnation,
                record.fenced,
            )
        )

    def _set_transactional_id(self, image: TransactionalIdImage) -> None:
        self._changed_transactional_ids()[image.transactional_id] = image
        self.changes.transactional_ids.add(image.transactional_id)

    def _changed_transactional_ids(self) -> dict[str, TransactionalIdImage]:
        if self._transactional_ids is None:
            self._transactional_ids = dict(self.base.transactional_ids)
        return self._transactional_ids

    def _access_control_entry(self, record: AccessControlEntryRecord) -> None:
        self._own_acls()[record.id] = parse_acl(record)

    def _remove_access_control_entry(self, record: RemoveAccessControlEntryRecord) -> None:
        if self._own_acls().pop(record.id, None) is None:
            raise InvalidRecordError(
                f"a metadata record removes access control entry {record.id}, which does not exist"
            )

    def _own_acls(self) -> dict[str, Acl]:
        if self._acls is None:
            self._acls = dict(self.base.acls)
        return self._acls

    def _user_scram_credential(self, record: UserScramCredentialRecord) -> None:
        key, credential = parse_credential(record)
        self._own_scram_credentials()[key] = credential

    def _remove_user_scram_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        if self._own_scram_credentials().pop(credential_key(record.name, record.mechanism), None) is None:
            raise InvalidRecordError(
                f"a metadata record removes a SCRAM credential of user {record.name!r}, which does not exist"
            )

    def _own_scram_credentials(self) -> dict[tuple[str, ScramMechanism], ScramCredential]:
        if self._scram_credentials is None:
            self._scram_credentials = dict(self.base.scram_credentials)
        return self._scram_credentials

    def _client_quota(self, record: ClientQuotaRecord) -> None:
        if self._client_quotas is None:
            self._client_quotas = dict(self.base.client_quotas)
        apply_quota_record(self._client_quotas, record)

    def _abort_transaction(self, record: AbortTransactionRecord) -> None:
        raise InvalidRecordError(
            "the metadata log aborts a metadata transaction, which native roots never begin: each commit is atomic"
        )


def _valid_topic(name: str) -> str:
    """`name`, which becomes part of paths and keys. Raises InvalidRecordError for what Kafka does not allow."""
    try:
        return validate_topic_name(name)
    except InvalidTopicError as error:
        raise InvalidRecordError(str(error)) from None


_Handler = Callable[[ImageDelta, Any], None]
_HANDLERS: Final[Mapping[type[MetadataRecord], _Handler | None]] = {
    TopicRecord: ImageDelta._topic,
    RemoveTopicRecord: ImageDelta._remove_topic,
    PartitionRecord: ImageDelta._partition,
    PartitionChangeRecord: ImageDelta._partition_change,
    ConfigRecord: ImageDelta._config,
    FeatureLevelRecord: ImageDelta._feature_level,
    ProducerIdsRecord: ImageDelta._producer_ids,
    RegisterBrokerRecord: ImageDelta._register_broker,
    UnregisterBrokerRecord: ImageDelta._unregister_broker,
    FormatRecord: ImageDelta._change_format,
    WriteCommitRecord: ImageDelta._write_commit,
    PartitionStateRecord: ImageDelta._partition_state,
    TransactionalIdRecord: ImageDelta._transactional_id,
    DataObjectRecord: ImageDelta._data_object,
    SegmentObjectsRecord: ImageDelta._segment_objects,
    PartitionRunsRecord: ImageDelta._partition_runs,
    DroppedObjectsRecord: ImageDelta._dropped_objects,
    ObjectsDeletedRecord: ImageDelta._objects_deleted,
    StagingHorizonRecord: ImageDelta._staging_horizon,
    FollowingRecord: ImageDelta._follow,
    AccessControlEntryRecord: ImageDelta._access_control_entry,
    RemoveAccessControlEntryRecord: ImageDelta._remove_access_control_entry,
    UserScramCredentialRecord: ImageDelta._user_scram_credential,
    RemoveUserScramCredentialRecord: ImageDelta._remove_user_scram_credential,
    ClientQuotaRecord: ImageDelta._client_quota,
    AbortTransactionRecord: ImageDelta._abort_transaction,
    CommitRecord: None,  # for the history, and for a writer to recognize its commit
    BeginTransactionRecord: None,  # a commit is one batch, so it is always atomic
    EndTransactionRecord: None,
    BrokerRegistrationChangeRecord: None,
    FenceBrokerRecord: None,
    UnfenceBrokerRecord: None,
    RegisterControllerRecord: None,
    UnregisterControllerRecord: None,
    DelegationTokenRecord: None,
    RemoveDelegationTokenRecord: None,
    ClearElrRecord: None,
    NoOpRecord: None,
    ZkMigrationStateRecord: None,
}


def _changed_configs(
    before: Mapping[str, Mapping[str, str]], changed: Mapping[str, Mapping[str, str]]
) -> Mapping[str, Mapping[str, str]]:
    """The configurations by resource after the change; `before` itself without one."""
    if not changed:
        return before
    return {resource: configs for resource, configs in {**before, **changed}.items() if configs}


def start_delta(image: MetadataImage, *, base_offset: int, timestamp_ms: int) -> ImageDelta:
    """A delta for the commit at `base_offset`. Raises InvalidRecordError if the commit does not follow `image`."""
    if base_offset != image.next_offset:
        raise InvalidRecordError(f"a commit at offset {base_offset} does not follow an image at {image.next_offset}")
    return ImageDelta(image, commit_offset=base_offset, timestamp_ms=timestamp_ms)


def apply(image: MetadataImage, commit: Commit) -> MetadataImage:
    """The image after `commit`; `image` is unchanged. Raises InvalidRecordError if the commit contradicts it."""
    delta = start_delta(image, base_offset=commit.base_offset, timestamp_ms=commit.timestamp_ms)
    replay_commit(delta, commit)
    return delta.build(commit.next_offset)


def replay_commit(delta: ImageDelta, commit: Commit) -> None:
    """Apply the records of `commit` to its delta. The InvalidRecordError names the offset of the refused record."""
    try:
        delta.replay(commit.records)
    except InvalidRecordError as error:
        offset = commit.base_offset + delta.records_applied - 1
        raise InvalidRecordError(f"{error} (record at offset {offset})") from error
