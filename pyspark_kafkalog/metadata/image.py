"""The metadata image: the state that all commits below `next_offset` add up to. Immutable; `apply` returns a new one.

A new image shares all unchanged parts with the old one: a commit to 8 partitions creates 8 new PartitionImages, and new
tuples and dicts of references for their topics, whatever the size of the root. The rules of each record type are in
delta.py.

`image_records` is the way back: the records of a snapshot. Those that Kafka's tools know (features, the node, topics
with their partitions and configurations, producer ids, access control entries) have the order of KRaft's own snapshots.
Between them are this project's records: the format, the state of each partition that was written to, the objects of its
data (extents.py), the transactional ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import InvalidRecordError, UnknownTopicError
from pyspark_kafkalog.metadata.acl import Acl, acl_record
from pyspark_kafkalog.metadata.extents import (
    NO_OBJECTS,
    NO_PRODUCER_BATCHES,
    NO_RUNS,
    DataObjects,
    ProducerBatches,
    Runs,
)
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AppendedBatches,
    ConfigRecord,
    DataObjectRecord,
    DroppedObjectsRecord,
    FeatureLevelRecord,
    FollowingRecord,
    FormatRecord,
    MetadataRecord,
    PartitionRecord,
    PartitionRunsRecord,
    PartitionStateRecord,
    ProducerIdsRecord,
    ProducerState,
    RegisterBrokerRecord,
    SegmentObject,
    SegmentObjectsRecord,
    StagingHorizonRecord,
    TopicRecord,
    TransactionalIdRecord,
)
from pyspark_kafkalog.metadata.root_format import RootFormat
from pyspark_kafkalog.metadata.users import Quotas, ScramCredentials, credential_record, quota_records
from pyspark_kafkalog.record.reference import MalformedVarintError, encode_varlong, read_varlong
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import OFFSETS_TOPIC, TopicPartition
from pyspark_kafkalog.storage.objects.data_object import encode_rows, run_dtype
from pyspark_kafkalog.values import dataclass, quick_dataclass

if TYPE_CHECKING:
    import numpy as np

BROKER_RESOURCE: Final = 4
GROUP_RESOURCE: Final = 32
TOPIC_RESOURCE: Final = 2

#: The resource name of the settings for all brokers: a root has one node, so it has no settings for a single broker.
ALL_BROKERS: Final = ""

#: Number of earlier incarnations stored for a transactional id, so that their zombies are recognized as fenced.
MAX_FENCED_INCARNATIONS: Final = 16

#: The tagged field of a TopicRecord, in snapshots, with the topic's `offsets_ends`; Kafka ignores it.
OFFSETS_ENDS_TAG: Final = 20000
#: `offsets_ends` of a topic of a snapshot that does not have the tagged field: no offset is below them.
UNKNOWN_ENDS: Final = (-1,)

_SEGMENTS_A_RECORD: Final = 64
_RUNS_A_RECORD: Final = 1024


@quick_dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition; `state` is that of its log as of the image's last commit.

    `segments`, then `runs` are the parts of its log in an object store, in offset order: everything in an object root,
    in a file root what was tiered. `producer_batches` are those of the runs.
    """

    partition: int
    state: LogState
    segments: tuple[SegmentObject, ...] = ()
    runs: Runs = NO_RUNS
    producer_batches: ProducerBatches = NO_PRODUCER_BATCHES

    @property
    def high_watermark(self) -> int:
        return self.state.log_end_offset

    @property
    def has_extents(self) -> bool:
        """Whether an object store holds a part of its log."""
        return bool(self.segments) or len(self.runs) > 0

    @property
    def extents_bytes(self) -> int:
        """The bytes of the batches in its extents in an object store."""
        return self.runs.size_bytes + sum(each.size_bytes for each in self.segments)

    @property
    def extents_range(self) -> tuple[int, int]:
        """The first offset of its extents in an object store, and the end; twice the log end without an extent."""
        if not self.has_extents:
            return self.state.log_end_offset, self.state.log_end_offset
        runs = self.runs
        first = self.segments[0].base_offset if self.segments else int(runs.table["base_offset"][0])
        return first, int(runs.table["end_offset"][-1]) if len(runs) else self.segments[-1].end_offset


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic: id as Kafka's Uuid text, partitions by number from 0, configuration overrides by name.

    `offsets_ends`: the ends of the partitions of `__consumer_offsets` when the topic was created. Offsets that were
    committed below them are of an earlier topic of that name. Empty if all of them count, UNKNOWN_ENDS if a snapshot of
    an earlier version did not know. Those of `__consumer_offsets` itself tell where it ended when a broker's directory
    was adopted.
    """

    name: str
    topic_id: str
    partitions: tuple[PartitionImage, ...] = ()
    configs: Mapping[str, str] = field(default_factory=dict)
    offsets_ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionalIdImage:
    """A transactional id's last committed version, producer, and the commit and time (ms) that set them.

    `incarnation` is the current run of the writer ("" if it never gave one). `fenced` are earlier runs, newest last, at
    most MAX_FENCED_INCARNATIONS: their writes are refused.
    """

    transactional_id: str
    version: int
    producer_id: int
    producer_epoch: int
    last_commit_offset: int
    last_timestamp_ms: int
    incarnation: str = ""
    fenced: tuple[str, ...] = ()

    def held_by(self, incarnation: str) -> TransactionalIdImage:
        """The id with `incarnation` as its current one and the previous one fenced; unchanged for "" or the same."""
        if incarnation in ("", self.incarnation):
            return self
        fenced = self.fenced if not self.incarnation else (*self.fenced, self.incarnation)
        return replace(self, incarnation=incarnation, fenced=fenced[-MAX_FENCED_INCARNATIONS:])


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker: here the single node that represents the root in Kafka's tools."""

    broker_id: int
    incarnation_id: str
    broker_epoch: int
    log_dirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StagingHorizon:
    """Writes and merges planned below metadata offset `offset` have expired: no later commit may name their objects.

    `commit_offset` and `timestamp_ms` are those of the commit that set it. What was planned before that commit can be
    made to expire by the next one, after `staging.retention.ms`.
    """

    offset: int = 0
    commit_offset: int = -1
    timestamp_ms: int = -1

    def has_expired(self, planned_at: int) -> bool:
        """Whether what was planned at this metadata offset may not be committed any more."""
        return planned_at < self.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """The root follows a leader: only the follower with `following_id` changes what is copied (invariants.py).

    `leader`: as messages name it. `cluster_id`: its cluster's id, by which it is recognized. `topics`: the regular
    expression of the topics followed. `since_ms`: when the root began to follow this cluster. `had_records`: it had
    records of its own then, which the leader need not have.
    """

    following_id: str
    leader: str
    cluster_id: str
    topics: str
    since_ms: int
    had_records: bool = False


@quick_dataclass(frozen=True, slots=True)
class MetadataImage:
    """All metadata as of `next_offset`, the offset of the next commit. Images share mappings: never modify one.

    `topics` by name; `topic_names` by topic id; `broker_configs` by broker id as text ("" for all brokers), then name;
    `group_configs` by group id, then name; `features`: levels by name; `next_producer_id`: the first one not allocated;
    `acls` by their ids.
    Who replaces an image may compare `topic_names`, `acls`, `scram_credentials`, `client_quotas`, `broker_configs` and
    `group_configs` by identity: a commit that does not change a mapping keeps it.
    `objects`: the data objects that runs refer to. `dropped`: the objects that commits replaced or dropped and that
    still exist in the store, oldest commit first. `following`: the leader that the root follows, None if it takes
    writes itself.
    """

    next_offset: int = 0
    last_timestamp_ms: int = -1
    format: RootFormat = RootFormat()
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[str, str] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    transactional_ids: Mapping[str, TransactionalIdImage] = field(default_factory=dict)
    next_producer_id: int = 0
    acls: Mapping[str, Acl] = field(default_factory=dict)
    scram_credentials: ScramCredentials = field(default_factory=dict)
    client_quotas: Quotas = field(default_factory=dict)
    objects: DataObjects = NO_OBJECTS
    dropped: tuple[DroppedObjectsRecord, ...] = ()
    staging_horizon: StagingHorizon = field(default_factory=StagingHorizon)
    following: Following | None = None

    @property
    def format_version(self) -> int | None:
        """The version of the root's format; None before the first commit."""
        return self.format.version

    @property
    def node(self) -> BrokerImage:
        """The single node that represents the root."""
        return self.brokers[min(self.brokers)]

    def topic(self, name: str) -> TopicImage:
        """The topic called `name`. Raises UnknownTopicError, whose message lists the existing topics."""
        found = self.topics.get(name)
        if found is None:
            existing = ", ".join(sorted(self.topics)[:20]) or "none"
            raise UnknownTopicError(f"there is no topic {name!r}; existing topics: {existing}")
        return found

    def find(self, topic: str, partition: int) -> PartitionImage | None:
        """One partition, None if it does not exist."""
        found = self.topics.get(topic)
        return None if found is None or not 0 <= partition < len(found.partitions) else found.partitions[partition]

    def partition(self, topic: str, partition: int) -> PartitionImage:
        """One partition. Raises UnknownTopicError."""
        partitions = self.topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise UnknownTopicError(f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {partition}")
        return partitions[partition]

    def state_of(self, topic_partition: TopicPartition, topic_id: str | None) -> LogState | None:
        """The partition's state if its topic still has that id; None if it was deleted, or re-created, meanwhile."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or topic.topic_id != topic_id:
            return None
        return topic.partitions[topic_partition.partition].state

    def has_committed(self, topic: str, topic_id: str | None, written_at: tuple[int, int] | None) -> bool:
        """Whether an offset of the topic that exists now was committed, and not of an earlier one of its name.

        `topic_id`: as the record of the offset says, None if it does not. `written_at`: the partition and the offset of
        that record in `__consumer_offsets`, None if it is not known.
        """
        found = self.topics.get(topic)
        if found is None or topic_id is not None:
            return found is not None and topic_id == found.topic_id
        if written_at is None or written_at[0] >= len(found.offsets_ends) or topic == OFFSETS_TOPIC:
            return True
        return written_at[1] >= found.offsets_ends[written_at[0]]


def may_be_elsewhere(image: MetadataImage, topic: str, written_at: tuple[int, int] | None) -> bool:
    """Whether an offset may be of a topic that another broker of an adopted directory's cluster has.

    `written_at` as in `has_committed`.
    """
    offsets = image.topics.get(OFFSETS_TOPIC)
    ends = () if offsets is None else offsets.offsets_ends
    if topic in image.topics or not any(ends) or ends == UNKNOWN_ENDS:
        return False
    return written_at is None or (written_at[0] < len(ends) and written_at[1] < ends[written_at[0]])


def broker_configs(image: MetadataImage) -> Mapping[str, str]:
    """The broker-level settings that have been set, by name; all others have their defaults."""
    return image.broker_configs.get(ALL_BROKERS, {})


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Records that, applied to an empty image, give an image equal to `image` except for its offset and time."""
    for feature, level in image.features.items():
        yield FeatureLevelRecord(name=feature, feature_level=level)
    if image.format.version is not None:
        yield FormatRecord(format_version=image.format.version, is_object_root=image.format.in_object_store)
    yield from _object_records(image)
    if image.following is not None:
        yield following_record(image.following)
    for broker in image.brokers.values():
        yield _broker_record(broker)
    for topic in image.topics.values():
        yield from _topic_records(topic, image.node)
    for resource_type, resources in ((BROKER_RESOURCE, image.broker_configs), (GROUP_RESOURCE, image.group_configs)):
        for name, configs in resources.items():
            for config, value in configs.items():
                yield _config_record(resource_type, name, config, value)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, next_producer_id=image.next_producer_id)
    for acl_id, acl in image.acls.items():
        yield acl_record(acl_id, acl)
    for (user, mechanism), credential in image.scram_credentials.items():
        yield credential_record(user, mechanism, credential)
    yield from quota_records(image.client_quotas)
    for held in image.transactional_ids.values():
        yield TransactionalIdRecord(**{name: getattr(held, name) for name in _TRANSACTIONAL_ID_FIELDS})


def _object_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    horizon = image.staging_horizon
    if horizon != StagingHorizon():
        yield StagingHorizonRecord(
            horizon_offset=horizon.offset, commit_offset=horizon.commit_offset, timestamp_ms=horizon.timestamp_ms
        )
    for each in image.objects:
        yield DataObjectRecord(
            object_id=each.object_id, key=each.key, size_bytes=each.size_bytes, commit_offset=each.commit_offset
        )
    yield from image.dropped


def _broker_record(broker: BrokerImage) -> MetadataRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        rack=None,
        fenced=False,
        log_dirs=broker.log_dirs,
    )


def _topic_records(topic: TopicImage, node: BrokerImage) -> Iterator[MetadataRecord]:
    yield topic_record(topic.name, topic.topic_id, topic.offsets_ends, is_final=True)
    for config, value in topic.configs.items():
        yield _config_record(TOPIC_RESOURCE, topic.name, config, value)
    for partition in topic.partitions:
        state = partition.state
        yield partition_record(topic.topic_id, partition.partition, leader_epoch=state.leader_epoch, node=node)
        if state != LogState(leader_epoch=state.leader_epoch):
            yield partition_state_record(topic.topic_id, partition.partition, state)
        yield from _extent_records(topic.topic_id, partition)


def topic_record(
    name: str, topic_id: str, offsets_ends: tuple[int, ...] = (), *, is_final: bool = False
) -> TopicRecord:
    """The record that creates a topic; for `offsets_ends` see TopicImage.

    `is_final`: if there are none, it says so. Otherwise they are those of the image that the commit is applied to.
    """
    if not any(offsets_ends) and not is_final:
        return TopicRecord(name=name, topic_id=topic_id)
    encoded = b"".join(map(encode_varlong, offsets_ends if any(offsets_ends) else ()))
    return TopicRecord(name=name, topic_id=topic_id, unknown_tags=((OFFSETS_ENDS_TAG, encoded),))


def offsets_ends_of(record: TopicRecord) -> tuple[int, ...] | None:
    """What `topic_record` was given, None if the record does not say. Raises InvalidRecordError."""
    encoded = dict(record.unknown_tags).get(OFFSETS_ENDS_TAG)
    if encoded is None:
        return None
    ends: list[int] = []
    at = 0
    try:
        while at < len(encoded):
            end, at = read_varlong(encoded, at, len(encoded))
            ends.append(end)
    except MalformedVarintError as error:
        raise InvalidRecordError(
            f"a TopicRecord creates topic {record.name!r} with a damaged tagged field {OFFSETS_ENDS_TAG}: {error}"
        ) from error
    return tuple(ends)


@cache
def stored_run_dtype() -> np.dtype[np.void]:
    """A run in a snapshot."""
    stored: np.dtype[np.void] = run_dtype().newbyteorder(">")
    return stored


def _extent_records(topic_id: str, partition: PartitionImage) -> Iterator[MetadataRecord]:
    for at in range(0, len(partition.segments), _SEGMENTS_A_RECORD):
        segments = partition.segments[at : at + _SEGMENTS_A_RECORD]
        yield SegmentObjectsRecord(topic_id=topic_id, partition=partition.partition, segments=segments)
    runs, batches = partition.runs, partition.producer_batches
    for at in range(0, len(runs), _RUNS_A_RECORD):
        stored = runs.table[at : at + _RUNS_A_RECORD].astype(stored_run_dtype()).tobytes()
        yield PartitionRunsRecord(topic_id=topic_id, partition=partition.partition, runs=stored)
    for at in range(0, len(batches), _RUNS_A_RECORD):
        stored = encode_rows(batches.table[at : at + _RUNS_A_RECORD])
        yield PartitionRunsRecord(topic_id=topic_id, partition=partition.partition, producer_batches=stored)


def _config_record(resource_type: int, resource: str, name: str, value: str) -> MetadataRecord:
    return ConfigRecord(resource_type=resource_type, resource_name=resource, name=name, value=value)


def partition_record(topic_id: str, partition: int, *, leader_epoch: int, node: BrokerImage) -> PartitionRecord:
    """A partition on `node` alone, which leads it: as Kafka's tools see it; this package only uses its existence."""
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=(node.broker_id,),
        isr=(node.broker_id,),
        leader=node.broker_id,
        leader_epoch=leader_epoch,
        partition_epoch=0,
        directories=node.log_dirs[:1],
    )


#: The fields that LogState and PartitionStateRecord have in common, those of Following and of a producer's entry.
_STATE_FIELDS: Final = (
    *("leader_epoch", "log_start_offset", "log_end_offset", "active_base_offset", "active_size_bytes"),
    *("active_first_timestamp_ms", "active_max_timestamp_ms", "active_max_timestamp_offset"),
    *("bytes_since_last_index_entry", "first_unstable_offset", "local_log_start_offset"),
)
_TRANSACTIONAL_ID_FIELDS: Final = TransactionalIdRecord.own_fields()
FOLLOWING_FIELDS: Final = FollowingRecord.own_fields()
_PRODUCER_FIELDS: Final = ProducerState.own_fields()
_state_values: Final = attrgetter(*_STATE_FIELDS)
_producer_values: Final = attrgetter(*_PRODUCER_FIELDS)


def partition_state_record(
    topic_id: str, partition: int, state: LogState, appended: AppendedBatches | None = None
) -> PartitionStateRecord:
    """The record that makes `state` the partition's state. `appended`: what the commit appends, for the history."""
    values = dict(zip(_STATE_FIELDS, _state_values(state), strict=True))
    if not state.has_remote_start:
        values["local_log_start_offset"] = -1
    producer = None
    if state.producer is not None:
        producer = ProducerState(**dict(zip(_PRODUCER_FIELDS, _producer_values(state.producer), strict=True)))
    return PartitionStateRecord(topic_id=topic_id, partition=partition, producer=producer, appended=appended, **values)


def log_state(record: PartitionStateRecord) -> LogState:
    """The LogState in a PartitionStateRecord."""
    producer = None if record.producer is None else ProducerStateEntry(*_producer_values(record.producer))
    return LogState(producer=producer, **dict(zip(_STATE_FIELDS, _state_values(record), strict=True)))


def following_record(following: Following | None) -> FollowingRecord:
    """The record that makes `following` that of the root, or with None ends it."""
    if following is None:
        return FollowingRecord(following_id="")
    return FollowingRecord(**{name: getattr(following, name) for name in FOLLOWING_FIELDS})
