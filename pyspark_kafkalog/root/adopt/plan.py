"""The plan for adopting a broker's directory. Making it changes nothing and reports all obstacles.

The topics are those with a partition directory in the root. Their ids, numbers of partitions and configurations come
from the broker's metadata log if the root contains it; otherwise the ids come from `partition.metadata`, and the number
of partitions from the largest partition number. A directory that the metadata log does not know, knows under another
topic id, or assigns to other nodes, is a stray to the broker, and is renamed as a stray. Directories that are already
renamed (`...-delete`, `...-stray`, `...-future`) are left as they are.

Some offsets cannot be read in the broker's directory. Those in complete batches above the checkpointed high watermark
become part of the log, because there is no other replica. Those in remote storage do not: the adopted log begins at the
first local segment. A broker that mounts the directory later would take that for the log start offset and delete the
remote segments below it (RemoteLogManager), so adoption without them has to be requested.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.broker import (
    AUTHORIZER_CONFIG,
    BROKER_CONFIGS,
    DYNAMIC_BROKER_CONFIGS,
    STANDARD_AUTHORIZER,
    BrokerConfig,
)
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.config.topic import validate_topic_config
from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, InvalidConfigError, KafkalogError, LogDirError
from pyspark_kafkalog.metadata.acl import Acl
from pyspark_kafkalog.metadata.image import ALL_BROKERS
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.users import Quotas, ScramCredentials
from pyspark_kafkalog.root.bootstrap import DEFAULT_NODE_ID
from pyspark_kafkalog.root.brokers.broker_root import BrokerRoot
from pyspark_kafkalog.root.brokers.image import BrokerMetadata, BrokerTopic, read_broker_metadata
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, in_remote_storage
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CHECKPOINTS,
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import (
    MetaProperties,
    read_meta_properties,
    read_properties_file,
    read_topic_id,
    was_clean_shutdown,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import check_log_directory, list_partitions
from pyspark_kafkalog.storage.below_root import refuse_link
from pyspark_kafkalog.storage.names import (
    CLUSTER_METADATA_TOPIC,
    META_PROPERTIES,
    PARTITION_METADATA,
    TopicPartition,
    partition_path,
    random_uuid,
)
from pyspark_kafkalog.units import plural

#: The new name of the broker's metadata log. To Kafka it is a stray partition of the metadata topic, which it ignores
#: when it loads logs; a directory with any other name would prevent the broker from starting.
KEPT_METADATA_DIR: Final = f"{METADATA_DIR}.kafka-stray"

#: The directory in which the commit log is built.
WORK_DIR: Final = f"{METADATA_DIR}.adopting-stray"

#: With more missing, the directory probably only looks like a partition's (backup-20240101) and is not a topic.
_MISSING_MAX: Final = 10_000
_REMOTE_STORAGE_ENABLE: Final = "remote.storage.enable"
_RENAMED_SUFFIXES: Final = ("-delete", "-stray", "-future")

#: The configurations of a broker's internal topics. Without them retention would delete what compaction should keep.
_INTERNAL_CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    "__consumer_offsets": {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
    "__transaction_state": {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": "104857600",
    },
    "__share_group_state": {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "retention.ms": "-1",
        "segment.bytes": "104857600",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic to adopt. `missing` are the partitions without a directory; `leader_epochs` are the cluster's."""

    name: str
    topic_id: str
    partitions_count: int
    configs: Mapping[str, str]
    missing: tuple[int, ...] = ()
    leader_epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionPlan:
    """All changes to be made to `root`. Offsets by partition are those of the checkpoint files.

    `damaged_checkpoints` are files that a broker does not use either: without them, the next one is written whole.
    `metadata_dir` is the current directory of the broker's metadata log, None if it has none. `notes` are for the user,
    and among them `lost_notes` tell which partitions are missing.
    """

    root: Path
    properties: MetaProperties
    topics: tuple[TopicPlan, ...]
    strays: tuple[TopicPartition, ...]
    broker_config: BrokerConfig
    next_producer_id: int
    acls: Mapping[str, Acl]
    scram_credentials: ScramCredentials
    client_quotas: Quotas
    group_configs: Mapping[str, Mapping[str, str]]
    clean_shutdown: bool
    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]
    cleaned: Mapping[TopicPartition, int]
    damaged_checkpoints: tuple[str, ...]
    metadata_dir: Path | None
    notes: tuple[str, ...]
    lost_notes: tuple[str, ...]


def make_plan(root: Path, *, server_properties: Path | None, create_missing: bool, rng: random.Random) -> AdoptionPlan:
    """Make the plan for `root`, a broker's directory. The caller holds its lock.

    Raises LogDirError if `root` is not a log directory, for missing partitions without `create_missing`, for
    contradictory topic ids, and for records of the metadata log that a later version wrote; InvalidConfigError for
    invalid settings in `server_properties`; DiskFormatError for a damaged meta.properties.
    """
    found = list_partitions(root)
    check_log_directory(root, found)
    notes: list[str] = []
    directory = _metadata_dir(root)
    metadata = None if directory is None else read_broker_metadata(directory)
    if metadata is not None and metadata.undecoded is not None:
        raise LogDirError(
            f"the broker's metadata log has a record that cannot be read ({metadata.undecoded}), and what it says "
            "would be lost. If a later version of Kafka has written it, upgrade pyspark_kafkalog; else it is damaged "
            f"or forged: move {directory} out of {root} to go by the directories alone, with default configurations"
        )
    properties = _properties(root, rng)
    by_topic: dict[str, list[int]] = {}
    strays = []
    for each in found:
        if each.topic == CLUSTER_METADATA_TOPIC:
            continue
        if metadata is not None and _is_stray(root, each, metadata, properties.node_id):
            strays.append(each)
        else:
            by_topic.setdefault(each.topic, []).append(each.partition)
    broker_config = adopted_broker_config(metadata, properties.node_id, server_properties, notes)
    topics = tuple(
        _plan_topic(root, name, numbers, metadata, rng, broker_config, notes)
        for name, numbers in sorted(by_topic.items())
    )
    _refuse_shared_ids(root, topics)
    if not create_missing:
        _refuse_missing(root, topics)
    _note_omissions(root, metadata, topics, strays, notes)
    checkpoints = _checkpoints(root)
    damaged = tuple(name for name, offsets in checkpoints.items() if offsets is None)
    lost_notes = _lost_notes(root, topics, checkpoints[REPLICATION_OFFSET_CHECKPOINT] or {})
    notes += [f"{name} is damaged and not used, as by a broker, and is removed" for name in damaged]
    return AdoptionPlan(
        root=root,
        properties=properties,
        topics=topics,
        strays=tuple(strays),
        broker_config=broker_config,
        next_producer_id=0 if metadata is None else metadata.next_producer_id,
        acls={} if metadata is None else metadata.acls,
        scram_credentials={} if metadata is None else metadata.scram_credentials,
        client_quotas={} if metadata is None else metadata.client_quotas,
        group_configs=_group_configs(metadata, notes),
        clean_shutdown=was_clean_shutdown(root),
        recovery_points=checkpoints[RECOVERY_POINT_CHECKPOINT] or {},
        log_starts=checkpoints[LOG_START_OFFSET_CHECKPOINT] or {},
        high_watermarks=checkpoints[REPLICATION_OFFSET_CHECKPOINT] or {},
        cleaned=checkpoints[CLEANER_OFFSET_CHECKPOINT] or {},
        damaged_checkpoints=damaged,
        metadata_dir=directory,
        notes=(*notes, *lost_notes),
        lost_notes=lost_notes,
    )


def _metadata_dir(root: Path) -> Path | None:
    """The broker's metadata log: under its own name, or as renamed by an interrupted adoption."""
    current, kept = root / METADATA_DIR, root / KEPT_METADATA_DIR
    for each in (current, kept):
        refuse_link(each)
    if current.is_dir() and kept.is_dir():
        raise LogDirError(
            f"{root} holds both {METADATA_DIR} and {KEPT_METADATA_DIR}: remove the one that is out of date"
        )
    return current if current.is_dir() else kept if kept.is_dir() else None


def _properties(root: Path, rng: random.Random) -> MetaProperties:
    """The root's identity, with new ids if meta.properties has none."""
    path = root / META_PROPERTIES
    found = read_meta_properties(path) if path.exists() else MetaProperties()
    if path.exists() and found.node_id is None and found.cluster_id is None:
        raise DiskFormatError(
            file=str(path),
            position=0,
            expected="the ids of the cluster and the broker",
            found="neither",
            advice="restore the file from another directory of the same broker, or move it away for new ids",
        )
    return MetaProperties(
        cluster_id=found.cluster_id or random_uuid(rng),
        node_id=DEFAULT_NODE_ID if found.node_id is None else found.node_id,
        directory_id=found.directory_id or random_uuid(rng),
    )


def _is_stray(root: Path, each: TopicPartition, metadata: BrokerMetadata, node_id: int | None) -> bool:
    """Kafka's rule: the topic with the directory's id no longer assigns the partition to this node."""
    topic = metadata.topics.get(each.topic)
    partition = None if topic is None else topic.partitions.get(each.partition)
    topic_id = _topic_id(partition_path(root, each))
    if topic is not None and partition is not None and topic_id in (None, topic.topic_id):
        return node_id not in partition.replicas
    if metadata.damage is not None:
        raise LogDirError(
            f"{each} is not in the broker's metadata log, which is damaged ({metadata.damage}), so it is unknown "
            f"whether it was deleted: restore {METADATA_DIR}, or move it out of {root} to go by the directories alone"
        )
    return True


def _topic_id(directory: Path) -> str | None:
    try:
        return read_topic_id(directory / PARTITION_METADATA)
    except (FileNotFoundError, DiskFormatError):
        return None  # an older broker's, or damaged: rewritten, as by a broker


def _plan_topic(
    root: Path,
    name: str,
    numbers: Sequence[int],
    metadata: BrokerMetadata | None,
    rng: random.Random,
    broker_config: BrokerConfig,
    notes: list[str],
) -> TopicPlan:
    known = None if metadata is None else metadata.topics.get(name)
    partitions = () if known is None else known.partitions
    count = max((*numbers, *partitions)) + 1
    if count - len(numbers) > _MISSING_MAX:
        raise LogDirError(
            f"{root} holds {name}-{max(numbers)}, but only {len(numbers)} of {count} partitions of a topic {name!r}: "
            "if it is none of Kafka's directories, move it away"
        )
    configs = _INTERNAL_CONFIGS.get(name, {}) if metadata is None else metadata.topic_configs.get(name, {})
    return TopicPlan(
        name=name,
        topic_id=_agreed_topic_id(root, name, numbers, known, rng),
        partitions_count=count,
        configs=_usable_configs(name, configs, broker_config, notes),
        missing=tuple(sorted(set(range(count)) - set(numbers))),  # bounded: _MISSING_MAX, above
        leader_epochs={} if known is None else {n: each.leader_epoch for n, each in known.partitions.items()},
    )


def _agreed_topic_id(
    root: Path, name: str, numbers: Sequence[int], known: BrokerTopic | None, rng: random.Random
) -> str:
    if known is not None:
        return known.topic_id
    directories = {number: _topic_id(partition_path(root, TopicPartition(name, number))) for number in numbers}
    found = sorted({topic_id for topic_id in directories.values() if topic_id is not None})
    if len(found) > 1:
        listed = ", ".join(f"{name}-{number}: {topic_id}" for number, topic_id in sorted(directories.items()))
        raise LogDirError(f"partitions of topic {name!r} have different topic ids ({listed}): move the old ones away")
    return found[0] if found else random_uuid(rng)


def _usable_configs(
    name: str, configs: Mapping[str, str], broker_config: BrokerConfig, notes: list[str]
) -> Mapping[str, str]:
    """`configs` without names and values that Kafka 4.4 does not accept."""
    usable = {}
    for config, value in sorted(configs.items()):
        try:
            validate_topic_config(config, value)
        except InvalidConfigError as error:
            notes.append(f"topic {name}: left out {config}={value}: {str(error).partition(';')[0]}")
        else:
            usable[config] = value
    try:
        broker_config.log_config(usable)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"the configuration of topic {name} is not allowed here: {error}") from None
    return usable


def _group_configs(metadata: BrokerMetadata | None, notes: list[str]) -> Mapping[str, Mapping[str, str]]:
    """The configurations of groups. Those with a name that only later brokers know are kept for them."""
    found: dict[str, dict[str, str]] = {}
    for group_id, configs in sorted(({} if metadata is None else metadata.group_configs).items()):
        for name, value in sorted(configs.items()):
            try:
                if name in GROUP_CONFIGS:
                    GROUP_CONFIGS[name].parse(value)
            except InvalidConfigError as error:
                notes.append(f"group {group_id}: left out {name}={value}: {error}")
            else:
                found.setdefault(group_id, {})[name] = value
    return found


def adopted_broker_config(
    metadata: BrokerMetadata | None, node_id: int | None, server_properties: Path | None, notes: list[str]
) -> BrokerConfig:
    """The settings that adoption keeps; a note is added for each that it drops.

    Precedence is as for a broker: its own dynamic settings, those of all brokers, its server.properties. The metadata
    log also holds what clients set and no broker reads from there, such as super.users: it has no effect here either.
    """
    settings: dict[str, str] = {}
    if server_properties is not None:
        loaded = BrokerConfig.from_properties(read_properties_file(server_properties)).properties
        settings.update((name, value) for name, value in loaded.items() if name in BROKER_CONFIGS)
    for resource in (ALL_BROKERS, str(node_id)):
        for name, value in sorted(({} if metadata is None else metadata.broker_configs).get(resource, {}).items()):
            if name not in BROKER_CONFIGS:
                continue
            if name not in DYNAMIC_BROKER_CONFIGS:
                notes.append(f"broker: left out {name}={value}: a broker reads it from its server.properties alone")
                continue
            try:
                BROKER_CONFIGS[name].parse(value)
            except InvalidConfigError as error:
                notes.append(f"broker: left out {name}={value}: {error}")
            else:
                settings[name] = value
    config = BrokerConfig.from_properties(settings)
    if metadata is not None and metadata.has_authorizer and not (config.authorizer_class_name or config.super_users):
        settings[AUTHORIZER_CONFIG] = STANDARD_AUTHORIZER
        notes.append(f"set {AUTHORIZER_CONFIG}: the cluster checks access control entries, so servers do so here too")
    return BrokerConfig.from_properties(settings)


def _refuse_shared_ids(root: Path, topics: Sequence[TopicPlan]) -> None:
    by_id: dict[str, str] = {}
    for topic in topics:
        first = by_id.setdefault(topic.topic_id, topic.name)
        if first != topic.name:
            raise LogDirError(
                f"{root}: topics {first} and {topic.name} have the same topic id {topic.topic_id}, as a copied folder "
                f"leaves it: move the copy away, or remove its {PARTITION_METADATA} to adopt it as a topic of its own"
            )


def _refuse_missing(root: Path, topics: Sequence[TopicPlan]) -> None:
    lacking = [topic for topic in topics if topic.missing]
    if lacking:
        listed = "; ".join(f"{topic.name}: {_numbers(topic.missing)} of {topic.partitions_count}" for topic in lacking)
        raise LogDirError(
            f"{root} does not hold all partitions of its topics, missing are {listed}: bring their directories here "
            "first, or have them created empty (--create-missing)"
        )


def _numbers(numbers: Sequence[int], most: int = 20) -> str:
    text = ", ".join(map(str, numbers[:most]))
    return text if len(numbers) <= most else f"{text}, ... ({len(numbers)} in all)"


def _note_omissions(
    root: Path,
    metadata: BrokerMetadata | None,
    topics: Sequence[TopicPlan],
    strays: Sequence[TopicPartition],
    notes: list[str],
) -> None:
    if metadata is not None and metadata.damage is not None:
        notes.append(
            f"{METADATA_DIR} is damaged, so later changes of topics and settings are missing: {metadata.damage}"
        )
    if metadata is not None:
        elsewhere = sorted(metadata.topics.keys() - {topic.name for topic in topics})
        if elsewhere:
            notes.append(f"no partition here of {len(elsewhere)} topics of the cluster: {', '.join(elsewhere[:20])}")
    elif topics:
        notes.append(f"no {METADATA_DIR} here: the topics get the default configuration")
    notes.extend(f"{each} is a stray to the broker and is renamed" for each in strays)
    notes.extend(f"{topic.name}: empty partitions for {_numbers(topic.missing)}" for topic in topics if topic.missing)
    ignored = sorted(
        name
        for name in os.listdir(root)
        if name.endswith(_RENAMED_SUFFIXES) and name not in (KEPT_METADATA_DIR, WORK_DIR)
    )
    notes.extend(f"{name} is left unchanged" for name in ignored)


def _lost_notes(
    root: Path, topics: Sequence[TopicPlan], high_watermarks: Mapping[TopicPartition, int]
) -> tuple[str, ...]:
    """Notes on the partitions that the broker's checkpoint has records of, and that have no directory."""
    # bounded: _MISSING_MAX, in _plan_topic
    known = {TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions_count)}
    return tuple(
        f"{each} has no directory here; the broker's checkpoint has it up to offset {offset}"
        for each, offset in high_watermarks.items()
        if offset and each not in known and not partition_path(root, each).is_dir()
    )


def _checkpoints(root: Path) -> Mapping[str, Mapping[TopicPartition, int] | None]:
    """The offsets in each checkpoint file, by its name; None for a damaged one."""
    found: dict[str, Mapping[TopicPartition, int] | None] = {}
    for name in CHECKPOINTS:
        try:
            found[name] = read_offset_checkpoint(root / name)
        except CorruptIndexError:
            found[name] = None
    return found


def without_remote_storage(plan: AdoptionPlan) -> AdoptionPlan:
    """The plan without the topics' own remote.storage.enable=true; a note names each topic that loses it.

    Nothing copies segments to remote storage any more, so retention must not wait for that.
    """
    topics = []
    notes = []
    for topic in plan.topics:
        if topic.configs.get(_REMOTE_STORAGE_ENABLE, "").strip().lower() != "true":
            topics.append(topic)
            continue
        kept = {name: value for name, value in topic.configs.items() if name != _REMOTE_STORAGE_ENABLE}
        topics.append(replace(topic, configs=kept))
        notes.append(f"topic {topic.name}: removed {_REMOTE_STORAGE_ENABLE}=true, as its remote segments are given up")
    return replace(plan, topics=tuple(topics), notes=(*plan.notes, *notes))


def unread_notes(
    root: Path, partitions: Iterable[TopicPartition], *, local_only: bool, clock: Callable[[], int]
) -> tuple[str, ...]:
    """Notes for the user. Raises LogDirError for offsets in remote storage, unless `local_only`."""
    found = _describe(BrokerRoot(root, clock=clock), partitions)
    notes = []
    remote = in_remote_storage(found)
    if remote is not None:
        if not local_only:
            raise LogDirError(
                f"{root}: {remote}. Once adopted, each log begins at its first local offset, and a broker that mounts "
                "the directory later deletes the remote segments below that. Read or copy the remote records first, "
                "then adopt without them (--local-only)"
            )
        notes.append(f"{remote}: the logs begin after them")
    above = [each for each in found if each.offsets_above_high_watermark]
    if above:
        total = sum(each.offsets_above_high_watermark for each in above)
        notes.append(
            f"{plural(total, 'offset')} in {plural(len(above), 'partition')}, in whole batches above the high "
            "watermark of the broker's checkpoint, are part of the log: every whole batch counts, as after its recovery"
        )
    return tuple(notes)


def _describe(root: BrokerRoot, partitions: Iterable[TopicPartition]) -> list[PartitionSnapshot]:
    """The partitions that can be described; damage in the others is reported when their logs are opened."""
    found = []
    for each in partitions:
        try:
            found.append(root.partition(each.topic, each.partition))
        except (KafkalogError, OSError):
            continue
    return found
